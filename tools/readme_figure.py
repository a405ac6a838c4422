"""Draw the README's picture and print its table from the runs kept under results/.

python tools/readme_figure.py [--out docs/images/cifar100-accuracy.png]
"""

import argparse
from pathlib import Path

from ocil.report import figures, tables
from ocil.report.collect import Cell, collect, memory_of

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("fine-tune", "er", "er-rv", "afs, cross-entropy alone", "afs")


def name_of(cell: Cell) -> str:
    if cell.plain:
        return cell.config.label
    settings = {name: value for name, value in cell.changed.items() if name != "precision"}
    return "afs, cross-entropy alone" if settings == {"loss": "ce", "regulariser": "none"} else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/cifar100-accuracy.png")
    options = parser.parse_args()
    found = collect(sorted((ROOT / "results").glob("cifar100-*"))).cells
    cells = {(name_of(c), c.config.learner.precision): c for c in found if memory_of(c.config) in (0, 5000)}
    for name in ORDER:
        for precision in ("tf32", "bf16"):
            if cell := cells.get((name, precision)):
                seconds = cell.runs[0].result.environment.get("seconds_for_all", "-")
                summary = cell.summary
                measures = (summary.average_accuracy, summary.average_forgetting, summary.average_intransigence)
                print(f"| {name} | {precision} | " + " | ".join(map(tables.percent, measures)) + f" | {seconds} s |")
    shown = {name: (cells.get((name, "bf16")) or cells[name, "tf32"]).summary for name in ORDER}
    figure = figures.accuracy_after_each_task(list(shown.values()), list(shown))
    figures.save(figure, options.out)


if __name__ == "__main__":
    main()
