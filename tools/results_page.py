"""Write the tables of the pages below from the runs kept under results/.

python tools/results_page.py

A page says where a table belongs by two marks, ``<!-- name -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from ocil.longtail.results import LongTailCell
from ocil.methods import METHODS
from ocil.report import longtail, papers
from ocil.report.cells import Collection, MeasuredCell, MeasuredColumn, title_of
from ocil.report.collect import find
from ocil.report.comparison import difference, overlap, published_accuracy
from ocil.report.cost import images_per_batch
from ocil.report.entries import Entries, Entry, entries
from ocil.report.formatting import percent, points, published_percent
from ocil.report.quantities import find_quantity
from ocil.report.standing_tables import images_text, methods_tables, paired_text, side_by_side
from ocil.report.standings import Standings
from ocil.report.table import Column, Row, Table, Value, markdown_table
from ocil.runs.config import RunConfig, command
from ocil.text import number_text

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/results.md", "docs/results-in-full.md", "docs/methods/stride.md", "results/README.md")
DATASETS = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10", "mini_imagenet": "Mini-ImageNet"}
PAPER = papers.load()
STUDIED = ("alpha", "sigma")
STUDY = ("cifar100", 5000)
FROZEN = "frozen features"
MIRRORED = "mirrored"
QUESTIONS = {  # cells that change one of these settings answer one question, in a table of their own
    FROZEN: {"features"},
    "networks": {"network"},
    "sample values": {"sample_value"},
    "scale": {"ce_scale"},
    "no task ends": {"boundary"},
    "class orders": {"class_order"},
    "memory batch": {"memory_batch"},
    "any time": {"evaluate_every"},
    MIRRORED: {"test_flip"},
}
PARTS = {
    "stride": "all of its parts",
    "stride steps=1": "one large step",
    "stride views=1 raw=true": "raw and one view, as AFS",
    "stride adjustment=0.0": "logits not adjusted",
    "stride loss=ce": "cross-entropy",
    "stride beta=0.0": "no virtual distillation",
    "stride-no-rv": "no review",
}  # stride, and what it is without each of its parts
PART_SETTINGS = {"steps", "views", "raw", "adjustment", "loss", "beta"}
COMPUTE = {"images", "memory_batch"}  # how many images a step passes
WIDE = "resnet18"  # the network with 64 channels
IMAGES = (55, 110, 220, 440, 880)  # per stream batch, with the share of the review
CLOSE = 0.15  # how far off, as a share, a number of images may be
STREAMS = {"i-blurry": "i-Blurry-50-10", "si-blurry": "Si-Blurry", "none": "no boundaries"}
IN_EVERY_COLUMN = ("afs", "er-rv", "scr")
PAPER_SEEDS = range(10)  # as many as the paper has
UNSEEN_SEEDS = range(10, 20)  # no search of stride's settings has seen them
ANY_SEEDS = {"mini_imagenet"}  # most of its runs have seeds of stride's table
COLUMNS = {"cifar100": 5000, "cifar10": 1000}  # the memory size of an overview
COLUMN_HEADS = tuple(f"{DATASETS[dataset]}, memory {memory}" for dataset, memory in COLUMNS.items())
IN_SHORT = {
    "fine-tune": "no memory: the lower bound",
    "er": "experience replay",
    "er-rv": "the same with reviews",
    "scr": "supervised contrastive replay",
    "afs": "the paper's method",
    "stride": "our own",
    "iid-offline": "not online: all images, again and again",
}  # the rows of README.md
BESIDE = ("stride", "afs", "scr", "er-rv")
BY_COMPUTE = (*BESIDE, "mose")
SINCE = ("pcr", "derpp", "rar", "mkd", "ccl-dc", "mose", "gsa")  # methods that came after AFS
LONGTAIL_IN_SHORT = ("many", "few", "overall", "auroc")
IN_STREAMS = ("average_accuracy", "area_under_accuracy", "worst_case_accuracy")
AT_ANY_TIME = ("average_accuracy", "area_under_accuracy", "lowest_anytime_accuracy")
HEAD = ("method", "memory", "seeds", "accuracy %", "published %", "difference", "forgetting %", "intransigence %")


def load(found: Collection) -> list[MeasuredCell]:
    order = list(METHODS)

    def place(cell: MeasuredCell) -> tuple[int, str, int, str]:
        learner = cell.config.learner
        return order.index(cell.config.method), cell.config.label, -learner.memory, learner.precision

    return sorted(found.cells, key=place)


def changed(cell: MeasuredCell) -> set[str]:
    """The settings that a row names, precision aside."""
    return _changed(cell.config)


@cache
def _changed(config: RunConfig) -> set[str]:
    return set(re.findall(r"(\w+)=", command(config))) - {"precision"}


def group(cell: MeasuredCell) -> str:
    """The table of the page that a cell belongs to."""
    if not (names := changed(cell)):
        return "table"
    if "scenario" in names or names >= {"boundary", "class_order"}:
        return "streams"
    for question, settings in QUESTIONS.items():
        if names & settings:
            return question
    if "alpha" in names and names <= {"alpha", "regulariser"} and not (studied(cell) and len(names) == 1):
        return "scale"  # beside cross-entropy with the same factor
    if cell.config.method != "afs":
        return "further"
    if names <= {"loss", "regulariser"}:
        return "ablation"
    return "study" if studied(cell) and len(names) == 1 and names <= {*STUDIED} else "further"


def studied(cell: MeasuredCell) -> bool:
    config = cell.config
    return (config.method, config.learner.precision, config.dataset, config.learner.memory) == ("afs", "bf16", *STUDY)


def words_of(cell: MeasuredCell) -> str:
    """The command without what every row has."""
    words = command(cell.config).removeprefix("ocil run ").replace(f" --dataset {cell.config.dataset}", "")
    words = re.sub(r" --memory \d+", "", words)
    words = re.sub(r" ('?)(features|pretrained)=[^ ]+", "", words)  # the same in all rows of a table
    # bf16 is the default where these runs were made, and on vectors all precisions compute the same
    words = re.sub(r" precision=\S+" if cell.config.learner.features else " precision=bf16", "", words)
    return words.removesuffix(" --set")


def row(cell: MeasuredCell) -> Row:
    summary, published = cell.summary, published_accuracy(cell, PAPER)
    accuracy = summary.average_accuracy
    apart = " (apart)" if overlap(accuracy, published) is False else ""
    return Row.of(
        words_of(cell),
        cell.config.learner.memory or "-",
        len(cell.runs),
        percent(accuracy),
        published_percent(published),
        points(difference(accuracy, published)) + apart,
        percent(summary.average_forgetting),
        percent(summary.average_intransigence),
    )


def table(head: tuple[str, ...], rows: list[Row], code: int = 0) -> str:
    """Markdown, with the first ``code`` columns set as code."""
    columns = (Column(title, "code" if number < code else "text") for number, title in enumerate(head))
    return markdown_table(Table("", tuple(columns), tuple(rows)))


def place(name: str, text: str) -> None:
    """Put a table between its two marks, in every page that has them."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    pages = {ROOT / page: (ROOT / page).read_text() for page in PAGES}
    wanted = {path: page for path, page in pages.items() if re.search(pattern, page, re.DOTALL)}
    if not wanted:
        raise SystemExit(f"no page has a place for {name}")
    for path, page in wanted.items():
        path.write_text(re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", page, count=1, flags=re.DOTALL))


def longtail_tables(found: Collection) -> str:
    """Measured rows of each dataset, which claims of the paper hold, and the paper's rows."""
    return "\n\n".join(markdown_table(table, level=3) for table in longtail.document(found.longtail, PAPER).tables)


def longtail_in_short(found: Collection) -> str:
    """A row per variant. Columns per dataset and number of epochs: of the longest training all that is measured in
    short, of others the accuracy on all classes."""
    groups = sorted(longtail.groups(found.longtail), key=lambda g: (list(DATASETS).index(dataset_of(g)), epochs_of(g)))
    longest = {dataset_of(group): epochs_of(group) for group in groups}  # the last one of each dataset
    columns = []
    for group in groups:
        dataset, epochs = dataset_of(group), epochs_of(group)
        for name in LONGTAIL_IN_SHORT if epochs == longest[dataset] else ("overall",):
            if any(cell.value(name) for cell in group):
                head = f"{DATASETS[dataset]} ({epochs[0]} + {epochs[1]}): {longtail.HEADINGS[name]}"
                columns.append((head, {cell.config.variant: percent(cell.value(name)) for cell in group}))
    rows = [
        Row.of(title, *(shown.get(variant, "-") for _, shown in columns))
        for variant, title in longtail.NAMES.items()
        if any(variant in shown for _, shown in columns)
    ]
    return table(("method", *(head for head, _ in columns)), rows)


def dataset_of(group: Sequence[LongTailCell]) -> str:
    return group[0].config.dataset


def epochs_of(group: Sequence[LongTailCell]) -> tuple[int, int]:
    """Of the two stages."""
    return group[0].config.epochs1, group[0].config.epochs2


def longtail_cells(found: Collection) -> str:
    rows = [
        Row.of(
            cell.config.cell,
            cell.command,
            len(cell.results),
            percent(cell.value("overall")),
            f"{cell.wall_seconds:.0f} s per run",
        )
        for cell in found.longtail
    ]
    return table(("folder", "command", "seeds", "overall %", "time"), rows, code=2)


def main() -> None:
    results = find([ROOT / "results"])
    everything, found, unseen = (results.collection(seeds) for seeds in (None, PAPER_SEEDS, UNSEEN_SEEDS))
    cells = [cell for cell in load(found) if cell.config.dataset not in ANY_SEEDS]
    cells += [cell for cell in load(everything) if cell.config.dataset in ANY_SEEDS]
    place("in short", in_short(load(everything)))
    place("overview", overview(cells))
    place("sizes", sizes(cells, DATASETS))
    place("stride", beside(unseen))
    place("field", field(unseen))
    place("wide", wide(unseen))
    place(MIRRORED, mirrored(unseen))
    place("any time", over_time(of_group(unseen, "any time")))
    if streamed := of_group(found, "streams"):
        place("streams", streams(streamed))
        place("streams in full", streams_in_full(streamed))
    if removed := parts(unseen):
        place("parts", removed)
    if spent := compute(unseen):
        place("compute", spent)
    place("frozen in short", frozen_in_short(of_group(found, FROZEN)))
    if found.longtail:
        place("longtail in short", longtail_in_short(found))
        place("longtail", longtail_tables(found))
        place("longtail cells", longtail_cells(found))
    for (dataset, kind), rows in by_question(cells).items():
        place(f"{dataset} {kind}", table(HEAD, rows, code=1))
    for name in STUDIED:
        chosen = [cell for cell in cells if studied(cell) and changed(cell) <= {name}]
        chosen.sort(key=lambda cell: getattr(cell.config.learner, name))
        place(name, table(HEAD, [row(cell) for cell in chosen], code=1))
    place("cells", every_cell(everything))


def by_question(cells: list[MeasuredCell]) -> dict[tuple[str, str], list[Row]]:
    """The rows of the tables that have the same columns, by dataset and kind. "any time" has other seeds."""
    kinds = ("table", "ablation", *QUESTIONS, "further")
    found: dict[tuple[str, str], list[Row]] = {}
    for cell in cells:
        if cell.config.dataset in DATASETS and (kind := group(cell)) in kinds:
            found.setdefault((cell.config.dataset, kind), []).append(row(cell))
    return found


def frozen_in_short(cells: list[MeasuredCell]) -> str:
    """Accuracy of each method on the features of a trained network, with the learning rate that its search chose."""
    accuracy = {
        (cell.config.method, cell.config.learner.memory, cell.config.dataset): percent(cell.summary.average_accuracy)
        for cell in cells
    }
    rows = [
        Row.of(method, memory or "-", *(accuracy.get((method, memory, dataset), "-") for dataset in COLUMNS))
        for method, memory in dict.fromkeys((method, memory) for method, memory, _ in accuracy)
    ]
    return table(("method", "memory", *(DATASETS[dataset] for dataset in COLUMNS)), rows, code=1)


def every_cell(everything: Collection) -> str:
    rows = [
        Row.of(cell.name, cell.command, len(cell.runs), percent(cell.summary.average_accuracy), seconds(cell))
        for cell in sorted(load(everything), key=lambda cell: cell.config.dataset)
    ]
    return table(("folder", "command", "seeds", "accuracy %", "time"), rows, code=2)


def beside(found: Collection) -> str:
    """Stride and others on the same seeds, with paired differences."""
    of_table = entries([cell for cell in found.cells if group(cell) == "table"])
    there = [name for name in BESIDE if any(entry.name == name for entry in of_table.all)]
    return markdown_table(side_by_side(Standings(of_table.only(there), find_quantity("accuracy"), "stride")), level=0)


def field(found: Collection) -> str:
    """Methods since AFS beside stride and AFS on the same seeds, with what they cost, in the columns that they have."""
    other = {"network", *COMPUTE}
    since = [cell for cell in found.cells if cell.config.method in SINCE and not changed(cell) & other]
    columns = {(cell.config.dataset, cell.config.learner.memory) for cell in since}
    beside = [
        cell
        for cell in found.cells
        if cell.config.label in BESIDE
        and group(cell) == "table"
        and (cell.config.dataset, cell.config.learner.memory) in columns
    ]
    runs = {name: [len(cell.runs) for cell in beside if cell.config.label == name] for name in BESIDE}
    names = [name for name in BESIDE if set(runs[name]) == {len(UNSEEN_SEEDS)}]
    wider = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    note = f"Seeds 10 to 12; {wider} have 10 to 19. Differences are over the seeds that both have."
    datasets = dict.fromkeys(cell.config.dataset for cell in since)
    tables = [
        with_images([cell for cell in (*since, *beside) if cell.config.dataset == name], note) for name in datasets
    ]
    return "\n\n".join(tables)


def wide(found: Collection) -> str:
    """Methods with the full ResNet-18, with what they cost."""
    cells = [cell for cell in found.cells if changed(cell) == {"network"} and cell.config.learner.network == WIDE]
    return with_images(cells, "Seeds 10 to 12.")


def mirrored(found: Collection) -> str:
    """Methods that score images with their mirror images, beside the same ones that do not."""
    flipped = of_group(found, MIRRORED)
    columns = {(cell.config.label, cell.config.dataset, cell.config.learner.memory) for cell in flipped}
    plain = [
        cell
        for cell in of_group(found, "table")
        if (cell.config.label, cell.config.dataset, cell.config.learner.memory) in columns
    ]
    standings = Standings(entries([*flipped, *plain]), find_quantity("accuracy"), "stride")
    tables = (replace(each, note="") for each in methods_tables(standings))
    return "\n\n".join(markdown_table(each, level=0) for each in tables)


def with_images(cells: list[MeasuredCell], note: str) -> str:
    """Methods on one dataset beside stride, with the images that they pass per stream batch."""
    standings = Standings(entries(cells), find_quantity("accuracy"), "stride")
    images = {entry.name: images_text(standings, entry) for entry in standings.ordered}
    tables = []
    for each in methods_tables(standings):
        rows = (replace(row, values=(*row.values, Value(images[row.values[0].text]))) for row in each.rows)
        heads = (*each.columns, Column("images / batch", "number"))
        tables.append(replace(each, columns=heads, rows=tuple(rows), note=note))
    return "\n\n".join(markdown_table(each, level=0) for each in tables)


def of_group(found: Collection, name: str) -> list[MeasuredCell]:
    return [cell for cell in load(found) if group(cell) == name]


def over_time(cells: Iterable[MeasuredCell]) -> str:
    """Runs that were tested every so many batches, a table per dataset and a column per memory size: the accuracy at
    their end, and over all points."""
    measures = [find_quantity(name) for name in AT_ANY_TIME]
    tables: dict[str, dict[str, dict[int, str]]] = {}
    for cell in cells:
        words = re.sub(r" evaluate_every=\S+", "", words_of(cell)).removesuffix(" --set")
        shown = " / ".join(measure.text(measure.estimate(cell)) for measure in measures)
        rows = tables.setdefault(title_of(cell.config.dataset), {})
        rows.setdefault(words, {})[cell.config.learner.memory] = shown
    return "\n\n".join(f"{title}\n\n{by_memory(rows)}" for title, rows in tables.items())


def by_memory(rows: dict[str, dict[int, str]]) -> str:
    sizes = sorted({memory for row in rows.values() for memory in row})
    shown = [Row.of(words, *(row.get(memory, "-") for memory in sizes)) for words, row in rows.items()]
    return table(("method", *(f"memory {memory}" for memory in sizes)), shown, code=1)


def streams(cells: list[MeasuredCell]) -> str:
    """A row per stream and memory size, a column per method: the means of three measures."""
    found = by_label(entries(cells))
    standings = [Standings(found, find_quantity(name)) for name in IN_STREAMS]
    rows = []
    for column in sorted(found.columns, key=lambda column: (column.dataset, column.stream, column.memory)):
        values = [" / ".join(mean_text(each, entry, column) for each in standings) for entry in found.all]
        rows.append(Row.of(stream_name(column), column.memory, *values))
    return table(("stream", "memory", *(entry.name for entry in found.all)), rows)


def stream_name(column: MeasuredColumn) -> str:
    return next((title for kind, title in STREAMS.items() if f"boundary={kind}" in column.stream), "noise")


def mean_text(standings: Standings, entry: Entry, column: MeasuredColumn) -> str:
    number = standings.numbers[entry.name].get(column)
    return "-" if number is None else number_text(number.value.mean, "percent")


def streams_in_full(cells: list[MeasuredCell]) -> str:
    """A table per measure: a row per stream and memory size, a column per method with its differences to AFS."""
    found = by_label(entries(cells))
    tables = (side_by_side(Standings(found, find_quantity(name), "afs")) for name in IN_STREAMS)
    return "\n\n".join(markdown_table(each, level=0) for each in tables)


def by_label(found: Entries) -> Entries:
    """One row per method. A method may have other settings in other columns."""
    merged: dict[str, Entry] = {}
    for entry in found.all:
        there = merged[entry.label].cells if entry.label in merged else {}
        if twice := there.keys() & entry.cells.keys():
            raise SystemExit(f"{entry.label} has two settings in {min(column.title for column in twice)}")
        merged[entry.label] = replace(entry, name=entry.label, cells={**there, **entry.cells})
    return Entries(tuple(merged.values()), found.columns)


def parts(found: Collection) -> str:
    """Stride with each of its parts removed, and the difference to it; nothing if that is not measured."""
    stride = [cell for cell in found.cells if cell.config.method == "stride" and changed(cell) <= PART_SETTINGS]
    measured = {cell.column for cell in stride if changed(cell)}
    if not measured:
        return ""
    standings = Standings(entries([cell for cell in stride if cell.column in measured]), chosen="stride")
    there = {entry.name: entry for entry in standings.entries.all}
    columns = standings.entries.columns
    rows = [
        Row.of(words, *(with_difference(standings, there[name], column) for column in columns))
        for name, words in PARTS.items()
        if name in there
    ]
    return table(("stride with", *(column.title for column in columns)), rows)


def with_difference(standings: Standings, entry: Entry, column: MeasuredColumn) -> str:
    number, paired = standings.numbers[entry.name].get(column), paired_text(standings, entry, column)
    if number is None:
        return "-"
    return standings.quantity.text(number.value) + (f" ({paired})" if paired else "")


def compute(found: Collection) -> str:
    """Accuracy by the images that pass per stream batch: a row per method; nothing if that is not measured."""
    dataset, memory = STUDY
    cells = [
        cell
        for cell in load(found)
        if cell.config.label in BY_COMPUTE and changed(cell) <= COMPUTE
        if (cell.config.dataset, cell.config.learner.memory) == (dataset, memory)
    ]
    if not any(changed(cell) for cell in cells):
        return ""
    rows = [
        Row.of(label, *(shown_at(images, [cell for cell in cells if cell.config.label == label]) for images in IMAGES))
        for label in BY_COMPUTE
    ]
    return table(("method", *(f"{images} images" for images in IMAGES)), rows)


def shown_at(images: int, cells: list[MeasuredCell]) -> str:
    """The accuracy of the cell that passes so many images per stream batch, or nearly."""
    off = {abs((images_per_batch(cell) or 0) / images - 1): cell for cell in cells}
    return percent(off[min(off)].summary.average_accuracy) if off and min(off) < CLOSE else "-"


def sizes(cells: list[MeasuredCell], datasets: Container[str]) -> str:
    """Three methods in every column of Table I."""
    found = {
        (cell.config.dataset, cell.config.learner.memory, cell.config.label): cell
        for cell in cells
        if group(cell) == "table" and cell.config.learner.precision == "bf16"
    }
    rows = [
        Row.of(DATASETS[dataset], memory, *(shown(found.get((dataset, memory, label))) for label in IN_EVERY_COLUMN))
        for dataset in DATASETS
        if dataset in datasets
        for memory in PAPER.tables[0].memory[dataset]
    ]
    return table(("dataset", "memory", *IN_EVERY_COLUMN), rows)


def overview(cells: list[MeasuredCell]) -> str:
    """Every method, with and without review, with the published number: one column per dataset."""
    found = in_columns(cells)
    rows = [
        Row.of(label, *(shown(found.get((label, dataset))) for dataset in COLUMNS))
        for label in dict.fromkeys(label for label, _ in found)
    ]
    return table(("method", *COLUMN_HEADS), rows)


def in_short(cells: list[MeasuredCell]) -> str:
    """A few methods from the lower bound to the upper one, with all their seeds."""
    found = in_columns(cells)
    rows = [
        Row.of(
            label,
            words,
            *(percent(found[label, dataset].summary.average_accuracy) for dataset in COLUMNS),
            images_of(found[label, "cifar100"]),
        )
        for label, words in IN_SHORT.items()
    ]
    return table(("method", "what it is", *COLUMN_HEADS, "images per stream batch"), rows, code=1)


def images_of(cell: MeasuredCell) -> str:
    images = images_per_batch(cell)
    return "-" if images is None or cell.config.method == "iid-offline" else f"{images:.0f}"


def in_columns(cells: list[MeasuredCell]) -> dict[tuple[str, str], MeasuredCell]:
    """The cells of ``COLUMNS`` and the bounds, by method and dataset."""
    return {
        (cell.config.label, cell.config.dataset): cell
        for cell in cells
        if group(cell) == "table"
        and cell.config.learner.precision == "bf16"
        and cell.config.learner.memory in (0, COLUMNS.get(cell.config.dataset))
    }


def shown(cell: MeasuredCell | None) -> str:
    if cell is None:
        return "not measured"
    published = published_accuracy(cell, PAPER)
    return percent(cell.summary.average_accuracy) + (f" ({published_percent(published)})" if published else "")


def seconds(cell: MeasuredCell) -> str:
    """The time of all seeds together if they had the GPU for themselves, else the mean time of a run."""
    together = cell.runs[0].result.environment.get("seconds_for_all")
    return f"{together} s for all" if together else f"{cell.summary.wall_seconds.mean:.0f} s per run"


if __name__ == "__main__":
    main()
