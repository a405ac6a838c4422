"""Draw the README's picture and print its table from the runs kept under results/.

python tools/readme_figure.py
"""

from pathlib import Path

from ocil.methods.afs import AFSConfig
from ocil.report import figures, tables
from ocil.results import Result, RunFolder, Summary, summarise

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("fine-tune", "er", "er-rv", "afs, cross-entropy alone", "afs")


def name_of(result: Result) -> str:
    learner = result.config.learner
    plain = isinstance(learner, AFSConfig) and (learner.loss, learner.regulariser) == ("ce", "none")
    return "afs, cross-entropy alone" if plain else result.config.label


def main() -> None:
    cells: dict[tuple[str, str], dict[int, Result]] = {}
    for path in sorted((ROOT / "results").glob("cifar100-*/seed-*")):
        result = RunFolder(path).result()
        if result is not None:
            key = (name_of(result), result.config.learner.precision)
            cells.setdefault(key, {})[result.config.seed] = result
    summaries: dict[tuple[str, str], Summary] = {}
    for name in ORDER:
        for precision in ("tf32", "bf16"):
            if runs := cells.get((name, precision)):
                references = cells["fine-tune", precision]
                summary = summarise(list(runs.values()), [references.get(seed) for seed in runs])
                summaries[name, precision] = summary
                seconds = next(iter(runs.values())).environment.get("seconds_for_all", "-")
                measures = (summary.average_accuracy, summary.average_forgetting, summary.average_intransigence)
                print(f"| {name} | {precision} | " + " | ".join(map(tables.percent, measures)) + f" | {seconds} s |")
    shown = {name: summaries.get((name, "bf16")) or summaries[name, "tf32"] for name in ORDER}
    figure = figures.accuracy_after_each_task(list(shown.values()), list(shown))
    figures.save(figure, ROOT / "docs/images/cifar100-accuracy.png")


if __name__ == "__main__":
    main()
