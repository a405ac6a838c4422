"""Draw the README's picture and print the first table of docs/performance.md from the runs kept under results/.

python tools/readme_figure.py [--out docs/images/cifar100-accuracy.png]
"""

import argparse
from pathlib import Path

from ocil.report.cells import MeasuredCell
from ocil.report.collect import FoundResults, find
from ocil.report.formatting import percent
from ocil.report.plots import accuracy_after_each_task
from ocil.report.style import save

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("fine-tune", "er", "er-rv", "afs, cross-entropy alone", "afs")
SHOWN = ("fine-tune", "er", "er-rv", "afs", "stride")
FOLDERS = ("fine-tune", "er-m5000", "er-rv-m5000", "afs-m5000", "stride-m5000")  # of the rows above
PAPER_SEEDS = range(10)  # the table: as many as the paper has
UNSEEN_SEEDS = range(10, 20)  # the picture, where a method has them: no search of stride's settings has seen them


def name_of(cell: MeasuredCell) -> str:
    if not cell.row_settings:
        return cell.config.label
    return "afs, cross-entropy alone" if cell.row_settings == {"loss": "ce", "regulariser": "none"} else ""


def cells_of(results: FoundResults, seeds: range) -> dict[tuple[str, str], MeasuredCell]:
    """The cells of CIFAR-100 with the largest memory, by name and precision."""
    # Of cells that differ in how often they were tested, the largest.
    found = sorted(results.collection(seeds).cells, key=lambda cell: len(cell.runs))
    return {(name_of(c), c.config.learner.precision): c for c in found if c.column.memory in (0, 5000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/cifar100-accuracy.png")
    options = parser.parse_args()
    results = find(sorted(folder for name in FOLDERS for folder in (ROOT / "results").glob(f"cifar100-{name}-*")))
    cells = cells_of(results, PAPER_SEEDS)
    for name in ORDER:
        for precision in ("tf32", "bf16"):
            if cell := cells.get((name, precision)):
                seconds = cell.runs[0].result.environment.get("seconds_for_all", "-")
                summary = cell.summary
                measures = (summary.average_accuracy, summary.average_forgetting, summary.average_intransigence)
                print(f"| {name} | {precision} | " + " | ".join(map(percent, measures)) + f" | {seconds} s |")
    drawn = cells | cells_of(results, UNSEEN_SEEDS)
    shown = {name: drawn[name, "bf16"].summary for name in SHOWN}
    save(accuracy_after_each_task(list(shown.values()), list(shown)), options.out)


if __name__ == "__main__":
    main()
