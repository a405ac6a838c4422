"""Write the tables of README.md, docs/results.md and results/README.md from the runs kept under results/.

python tools/results_page.py
"""

import re
from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path

from ocil.methods import METHODS
from ocil.report import longtail, papers
from ocil.report.cells import Collection, MeasuredCell, title_of
from ocil.report.collect import find
from ocil.report.comparison import difference, overlap, published_accuracy
from ocil.report.cost import images_per_batch
from ocil.report.entries import Entries, Entry, entries
from ocil.report.formatting import percent, points, published_percent
from ocil.report.quantities import named
from ocil.report.standing_tables import images_text, methods_tables, side_by_side
from ocil.report.standings import Standings
from ocil.report.table import Column, Row, Table, Value, markdown_table
from ocil.runs.config import command

ROOT = Path(__file__).resolve().parent.parent
DATASETS = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10", "mini_imagenet": "Mini-ImageNet"}
PAPER = papers.load()
STUDIED = ("alpha", "sigma")
STUDY = ("cifar100", 5000)
FROZEN = "frozen features"
QUESTIONS = {  # cells that change one of these settings answer one question, in a table of their own
    FROZEN: {"features"},
    "networks": {"network"},
    "sample values": {"sample_value"},
    "scale": {"ce_scale"},
    "no task ends": {"boundary"},
    "class orders": {"class_order"},
    "memory batch": {"memory_batch"},
    "any time": {"evaluate_every"},
}
PARTS = {"steps", "views", "raw", "adjustment", "loss", "beta"}  # of stride, which can be removed
COMPUTE = {"images", "memory_batch"}  # how many images a step passes
IN_EVERY_COLUMN = ("afs", "er-rv", "scr")
PAPER_SEEDS = range(10)  # as many as the paper has
UNSEEN_SEEDS = range(10, 20)  # no search of stride's settings has seen them
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
SINCE = ("pcr", "derpp", "rar", "mkd", "ccl-dc", "mose", "gsa")  # methods that came after AFS
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
    return set(re.findall(r"(\w+)=", command(cell.config))) - {"precision"}


def group(cell: MeasuredCell) -> str:
    """The table of the page that a cell belongs to."""
    if not (names := changed(cell)):
        return "table"
    if "scenario" in names or names >= {"boundary", "class_order"}:
        return "streams"
    for question, settings in QUESTIONS.items():
        if names & settings:
            return question
    if names == {"alpha", "regulariser"}:  # its rows without virtual distillation belong with those of cross-entropy
        return "scale"
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


def place(path: Path, name: str, text: str) -> None:
    """Put a table between its two marks."""
    page = path.read_text()
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    if not re.search(pattern, page, re.DOTALL):
        raise SystemExit(f"{path.name} has no place for {name}")
    path.write_text(re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", page, count=1, flags=re.DOTALL))


def longtail_tables(found: Collection) -> str:
    """Measured rows of each dataset, which claims of the paper hold, and the paper's rows."""
    return "\n\n".join(markdown_table(table, level=3) for table in longtail.document(found.longtail, PAPER).tables)


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
    cells = load(found)
    places = [(cell.config.dataset, group(cell)) for cell in cells]
    place(ROOT / "README.md", "in short", in_short(load(everything)))
    for page in ("docs/results.md", "docs/methods/stride.md"):
        place(ROOT / page, "stride", beside(unseen))
    place(ROOT / "docs/results.md", "field", field(unseen))
    place(ROOT / "docs/results.md", "any time", over_time(of_group(unseen, "any time")))
    if cells_of_streams := of_group(found, "streams"):
        place(ROOT / "docs/results.md", "streams", streams(cells_of_streams))
    if removed := parts(unseen):
        place(ROOT / "docs/methods/stride.md", "parts", removed)
    if spent := compute(unseen):
        place(ROOT / "docs/results.md", "compute", spent)
    if found.longtail:
        place(ROOT / "docs/results.md", "longtail", longtail_tables(found))
        place(ROOT / "results/README.md", "longtail", longtail_cells(found))
    for dataset in DATASETS:
        for kind in ("table", "ablation", *QUESTIONS, "further"):  # "any time" has other seeds, and a place of its own
            if rows := [row(cell) for cell, its in zip(cells, places, strict=True) if its == (dataset, kind)]:
                place(ROOT / "docs/results.md", f"{dataset} {kind}", table(HEAD, rows, code=1))
    for name in STUDIED:
        chosen = [cell for cell in cells if studied(cell) and changed(cell) <= {name}]
        chosen.sort(key=lambda cell: getattr(cell.config.learner, name))
        place(ROOT / "docs/results.md", name, table(HEAD, [row(cell) for cell in chosen], code=1))
    place(ROOT / "docs/results.md", "sizes", sizes(cells, DATASETS))
    rows = [
        Row.of(cell.name, cell.command, len(cell.runs), percent(cell.summary.average_accuracy), seconds(cell))
        for cell in sorted(load(everything), key=lambda cell: cell.config.dataset)
    ]
    place(ROOT / "docs/results.md", "overview", overview(cells))
    place(
        ROOT / "results/README.md", "cells", table(("folder", "command", "seeds", "accuracy %", "time"), rows, code=2)
    )


def beside(found: Collection) -> str:
    """Stride and others on the same seeds, with paired differences."""
    rows = entries([cell for cell in found.cells if group(cell) == "table"])
    there = [name for name in BESIDE if any(row.name == name for row in rows.rows)]
    return markdown_table(side_by_side(Standings(rows.only(there), named("accuracy"), "stride")), level=0)


def field(found: Collection) -> str:
    """Methods since AFS beside stride and AFS on the same seeds, with what they cost, in the columns that they have."""
    since = [cell for cell in found.cells if cell.config.method in SINCE]
    columns = {(cell.config.dataset, cell.config.learner.memory) for cell in since}
    beside = [
        cell
        for cell in found.cells
        if cell.config.label in BESIDE
        and group(cell) == "table"
        and (cell.config.dataset, cell.config.learner.memory) in columns
    ]
    names = [name for name in BESIDE if any(cell.config.label == name for cell in beside)]
    wider = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    note = f"Seeds 10 to 12; {wider} have 10 to 19. Differences are over the seeds that both have."
    datasets = dict.fromkeys(cell.config.dataset for cell in since)
    tables = [
        with_images([cell for cell in (*since, *beside) if cell.config.dataset == name], note) for name in datasets
    ]
    return "\n\n".join(tables)


def with_images(cells: list[MeasuredCell], note: str) -> str:
    """Methods on one dataset beside stride, with the images that they pass per stream batch."""
    standings = Standings(entries(cells), named("accuracy"), "stride")
    images = {row.name: images_text(standings, row) for row in standings.rows}
    tables = []
    for each in methods_tables(standings):
        rows = (replace(row, values=(*row.values, Value(images[row.values[0].text]))) for row in each.rows)
        heads = (*each.columns, Column("images / batch", "number"))
        tables.append(replace(each, columns=heads, rows=tuple(rows), note=note))
    return "\n\n".join(markdown_table(each, level=0) for each in tables)


def of_group(found: Collection, name: str) -> list[MeasuredCell]:
    return [cell for cell in load(found) if group(cell) == name]


def over_time(cells: Iterable[MeasuredCell]) -> str:
    """Runs that were tested every so many batches: the accuracy at their end, and at all points. A table per
    dataset."""
    measures = [named(name) for name in AT_ANY_TIME]
    rows: dict[str, list[Row]] = {}
    for cell in cells:
        shown = (measure.text(measure.estimate(cell)) for measure in measures)
        row = Row.of(words_of(cell), cell.config.learner.memory, len(cell.runs), *shown)
        rows.setdefault(title_of(cell.config.dataset), []).append(row)
    head = ("method", "memory", "seeds", *(measure.title for measure in measures))
    return "\n\n".join(f"{title}\n\n{table(head, rows[title], code=1)}" for title in rows)


def streams(cells: list[MeasuredCell]) -> str:
    """A table per measure: a row per stream and memory size, a column per method with its differences to AFS."""
    found = by_label(entries(cells))
    tables = (side_by_side(Standings(found, named(name), "afs")) for name in IN_STREAMS)
    return "\n\n".join(markdown_table(each, level=0) for each in tables)


def by_label(found: Entries) -> Entries:
    """One row per method. A method may have other settings in other columns."""
    rows: dict[str, Entry] = {}
    for row in found.rows:
        there = rows[row.label].cells if row.label in rows else {}
        if twice := there.keys() & row.cells.keys():
            raise SystemExit(f"{row.label} has two settings in {min(place.title for place in twice)}")
        rows[row.label] = replace(row, name=row.label, cells={**there, **row.cells})
    return Entries(tuple(rows.values()), found.columns)


def parts(found: Collection) -> str:
    """Stride with each of its parts removed; nothing if that is not measured."""
    stride = [cell for cell in found.cells if cell.config.method == "stride" and changed(cell) <= PARTS]
    columns = {cell.place for cell in stride if changed(cell) or not cell.config.learner.review}
    cells = [cell for cell in stride if cell.place in columns]
    if not cells:
        return ""
    standings = Standings(entries(cells), named("accuracy"), "stride")
    return "\n\n".join(markdown_table(each, level=0) for each in methods_tables(standings))


def compute(found: Collection) -> str:
    """Accuracy by the images that pass per stream batch; nothing if that is not measured."""
    dataset, memory = STUDY
    cells = [
        cell
        for cell in load(found)
        if cell.config.label in BESIDE and changed(cell) <= COMPUTE
        if (cell.config.dataset, cell.config.learner.memory) == (dataset, memory)
    ]
    if not any(changed(cell) for cell in cells):
        return ""
    cells.sort(key=lambda cell: (BESIDE.index(cell.config.label), images_per_batch(cell) or 0))
    rows = [
        Row.of(words_of(cell), images_of(cell), len(cell.runs), percent(cell.summary.average_accuracy))
        for cell in cells
    ]
    return table(("method", "images per stream batch", "seeds", "accuracy %"), rows, code=1)


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
