"""Draw the README's picture and table from the runs kept under results/.

python tools/readme_figure.py
"""

from pathlib import Path

from ocil.report import figures, tables
from ocil.results import RunFolder, summarise

ROOT = Path(__file__).resolve().parent.parent
CELLS = ("fine-tune", "er-m5000", "er-rv-m5000", "afs-m5000")


def main() -> None:
    found = {}
    for folder in sorted((ROOT / "results").glob("cifar100-*")):
        name = folder.name.removeprefix("cifar100-").rpartition("-")[0]
        runs = [RunFolder(path).result() for path in sorted(folder.glob("seed-*"))]
        found[name] = {run.config.seed: run for run in runs if run is not None}
    reference = found["fine-tune"]
    summaries = [
        summarise(list(found[name].values()), [reference.get(seed) for seed in found[name]])
        for name in CELLS
        if name in found
    ]
    figures.save(figures.accuracy_after_each_task(summaries), ROOT / "docs/images/cifar100-accuracy.png")
    print(tables.markdown(summaries))


if __name__ == "__main__":
    main()
