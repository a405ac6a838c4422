"""Write the tables of README.md, docs/results.md and results/README.md from the runs kept under results/.

python tools/results_page.py
"""

import re
from collections.abc import Container
from pathlib import Path

from ocil.config import command
from ocil.methods import METHODS
from ocil.report import longtail, tables
from ocil.report.collect import Cell, Collection, collect
from ocil.report.comparison import counterpart, difference, overlap
from ocil.report.formats import beside, gap
from ocil.report.published import MEMORY, STUDY

ROOT = Path(__file__).resolve().parent.parent
DATASETS = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10", "mini_imagenet": "Mini-ImageNet"}
STUDIED = ("alpha", "sigma")
QUESTIONS = {  # cells that change one of these settings answer one question, in a table of their own
    "sample values": {"sample_value"},
    "scale": {"ce_scale"},
    "no task ends": {"boundary"},
    "class orders": {"class_order"},
    "memory batch": {"memory_batch"},
}
IN_EVERY_COLUMN = ("afs", "er-rv", "scr")
HEAD = ("method", "memory", "seeds", "accuracy %", "published %", "difference", "forgetting %", "intransigence %")


def load(found: Collection) -> list[Cell]:
    order = list(METHODS)

    def place(cell: Cell) -> tuple[int, str, int, str]:
        learner = cell.config.learner
        return order.index(cell.config.method), cell.config.label, -learner.memory, learner.precision

    return sorted(found.cells, key=place)


def changed(cell: Cell) -> set[str]:
    """The settings that a row names, precision aside."""
    return set(re.findall(r"(\w+)=", command(cell.config))) - {"precision"}


def group(cell: Cell) -> str:
    """Which table of the page a cell stands in."""
    if not (names := changed(cell)):
        return "table"
    for question, settings in QUESTIONS.items():
        if names & settings:
            return question
    if names == {"alpha", "regulariser"}:  # its rows without virtual distillation belong beside those of cross-entropy
        return "scale"
    if cell.config.method != "afs":
        return "further"
    if names <= {"loss", "regulariser"}:
        return "ablation"
    return "study" if studied(cell) and len(names) == 1 and names <= {*STUDIED} else "further"


def studied(cell: Cell) -> bool:
    config = cell.config
    return (config.method, config.learner.precision, config.dataset, config.learner.memory) == ("afs", "bf16", *STUDY)


def words_of(cell: Cell) -> str:
    """The command without what every row has."""
    words = command(cell.config).removeprefix("ocil run ").replace(f" --dataset {cell.config.dataset}", "")
    return re.sub(r" --memory \d+", "", words)


def row(cell: Cell) -> list[str]:
    summary, paper = cell.summary, counterpart(cell)
    accuracy = summary.average_accuracy
    apart = " (apart)" if overlap(accuracy, paper) is False else ""
    return [
        f"`{words_of(cell)}`", str(cell.config.learner.memory or "-"), str(len(cell.runs)),
        tables.percent(accuracy), beside(paper), gap(difference(accuracy, paper)) + apart,
        tables.percent(summary.average_forgetting), tables.percent(summary.average_intransigence),
    ]  # fmt: skip


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def place(path: Path, name: str, text: str) -> None:
    """Put a table between its two marks."""
    page = path.read_text()
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    if not re.search(pattern, page, re.DOTALL):
        raise SystemExit(f"{path.name} has no place for {name}")
    path.write_text(re.sub(pattern, lambda found: f"{found[1]}{text}\n{found[2]}", page, count=1, flags=re.DOTALL))


def longtail_tables(found: Collection) -> str:
    """Measured rows of each dataset, what holds of the paper's directions, and the paper's rows."""
    text = longtail.markdown(found.longtail).split("\n## ", 1)[1]
    return "### " + text.replace("\n## ", "\n### ").strip()


def longtail_cells(found: Collection) -> str:
    rows = [
        [f"`{cell.config.cell}`", f"`{cell.command}`", str(len(cell.results)), tables.percent(cell.value("overall")),
         f"{cell.wall_seconds:.0f} s a run"]
        for cell in found.longtail
    ]  # fmt: skip
    return table(("folder", "command", "seeds", "overall %", "time"), rows)


def main() -> None:
    found = collect([ROOT / "results"])
    cells = load(found)
    if found.longtail:
        place(ROOT / "docs/results.md", "longtail", longtail_tables(found))
        place(ROOT / "results/README.md", "longtail", longtail_cells(found))
    for dataset in DATASETS:
        for kind in ("table", "ablation", *QUESTIONS, "further"):
            if rows := [row(cell) for cell in cells if (cell.config.dataset, group(cell)) == (dataset, kind)]:
                place(ROOT / "docs/results.md", f"{dataset} {kind}", table(HEAD, rows))
    for name in STUDIED:
        chosen = [cell for cell in cells if studied(cell) and changed(cell) <= {name}]
        chosen.sort(key=lambda cell: getattr(cell.config.learner, name))
        place(ROOT / "docs/results.md", name, table(HEAD, [row(cell) for cell in chosen]))
    place(ROOT / "docs/results.md", "sizes", sizes(cells, DATASETS))
    place(ROOT / "README.md", "sizes", sizes(cells, {cell.config.dataset for cell in cells}))
    rows = [
        [f"`{cell.name}`", f"`{cell.command}`", str(len(cell.runs)),
         tables.percent(cell.summary.average_accuracy), seconds(cell)]
        for cell in sorted(cells, key=lambda cell: cell.config.dataset)
    ]  # fmt: skip
    place(ROOT / "README.md", "overview", overview(cells))
    place(ROOT / "results/README.md", "cells", table(("folder", "command", "seeds", "accuracy %", "time"), rows))


def sizes(cells: list[Cell], datasets: Container[str]) -> str:
    """Three methods in every column of Table I."""
    found = {
        (cell.config.dataset, cell.config.learner.memory, cell.config.label): cell
        for cell in cells
        if group(cell) == "table" and cell.config.learner.precision == "bf16"
    }
    rows = [
        [DATASETS[dataset], str(memory), *(shown(found.get((dataset, memory, label))) for label in IN_EVERY_COLUMN)]
        for dataset in DATASETS
        if dataset in datasets
        for memory in MEMORY[dataset]
    ]
    return table(("dataset", "memory", *IN_EVERY_COLUMN), rows)


def overview(cells: list[Cell]) -> str:
    """Every method, with and without review, beside the paper: one column a dataset."""
    columns = {"cifar100": 5000, "cifar10": 1000}
    found = {
        (cell.config.label, cell.config.dataset): cell
        for cell in cells
        if group(cell) == "table"
        and cell.config.learner.precision == "bf16"
        and cell.config.learner.memory in (0, columns.get(cell.config.dataset))
    }
    rows = [
        [label, *(shown(found.get((label, dataset))) for dataset in columns)]
        for label in dict.fromkeys(label for label, _ in found)
    ]
    return table(("method", *(f"{DATASETS[name]}, memory {memory}" for name, memory in columns.items())), rows)


def shown(cell: Cell | None) -> str:
    if cell is None:
        return "not measured"
    paper = counterpart(cell)
    return tables.percent(cell.summary.average_accuracy) + (f" ({beside(paper)})" if paper else "")


def seconds(cell: Cell) -> str:
    """Of all seeds together where they had the GPU for themselves, else of a run among others."""
    together = cell.runs[0].result.environment.get("seconds_for_all")
    return f"{together} s for all" if together else f"{cell.summary.wall_seconds.mean:.0f} s a run"


if __name__ == "__main__":
    main()
