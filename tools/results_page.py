"""Write the tables of docs/results.md and results/README.md from the runs kept under results/.

python tools/results_page.py
"""

import re
from pathlib import Path

from ocil.config import command
from ocil.methods import METHODS
from ocil.report import tables
from ocil.report.published import published
from ocil.results import Result, RunFolder, Summary, summarise

ROOT = Path(__file__).resolve().parent.parent
DATASETS = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10", "mini_imagenet": "Mini-ImageNet"}
HEAD = ("method", "memory", "seeds", "accuracy %", "published %", "difference", "forgetting %", "intransigence %")


def load() -> list[Summary]:
    """A summary for each cell, intransigence against the fine-tuned runs of the same precision."""
    cells: dict[str, dict[int, Result]] = {}
    for path in sorted((ROOT / "results").glob("*/seed-*")):
        if (result := RunFolder(path).result()) is not None:
            cells.setdefault(result.config.cell, {})[result.config.seed] = result
    found = []
    for runs in cells.values():
        references = [cells.get(run.config.reference().cell, {}).get(seed) for seed, run in runs.items()]
        found.append(summarise(list(runs.values()), references))
    order = list(METHODS)
    return sorted(found, key=lambda s: (order.index(s.config.method), s.config.label, s.config.learner.precision))


def words_of(summary: Summary) -> str:
    """The command without what every row has."""
    config = summary.config
    words = command(config).removeprefix("ocil run ").replace(f" --dataset {config.dataset}", "")
    return re.sub(r" --memory \d+", "", words)


def row(summary: Summary) -> list[str]:
    config, accuracy = summary.config, summary.average_accuracy
    paper = None
    if not set(re.findall(r"(\w+)=", words_of(summary))) - {"precision"}:
        paper = published(config.label, config.dataset, config.learner.memory)
    beside, difference = "-", "-"
    if paper is not None:
        beside = f"{paper.mean} ± {paper.interval}"
        gap = 100 * accuracy.mean - paper.mean
        apart = abs(gap) > 100 * (accuracy.interval or 0) + paper.interval
        difference = f"{gap:+.1f}" + (" (apart)" if apart else "")
    return [
        f"`{words_of(summary)}`", str(config.learner.memory or "-"), str(len(accuracy.values)),
        tables.percent(accuracy), beside, difference,
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


def main() -> None:
    summaries = load()
    for dataset in DATASETS:
        if rows := [row(summary) for summary in summaries if summary.config.dataset == dataset]:
            place(ROOT / "docs/results.md", dataset, table(HEAD, rows))
    rows = [
        [f"`{s.config.cell}`", f"`{command(s.config)}`", str(len(s.average_accuracy.values)),
         tables.percent(s.average_accuracy), seconds(s)]
        for s in sorted(summaries, key=lambda s: s.config.dataset)
    ]  # fmt: skip
    place(ROOT / "results/README.md", "cells", table(("folder", "command", "seeds", "accuracy %", "time"), rows))


def seconds(summary: Summary) -> str:
    """Of all seeds together where they had the GPU for themselves, else of a run among others."""
    path = next((ROOT / "results" / summary.config.cell).glob("seed-*"))
    result = RunFolder(path).result()
    together = result.environment.get("seconds_for_all") if result else None
    return f"{together} s for all" if together else f"{summary.wall_seconds.mean:.0f} s a run"


if __name__ == "__main__":
    main()
