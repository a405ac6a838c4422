"""Pictures of results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from ocil.files import atomic_write
from ocil.results import Summary
from ocil.text import escaped

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "svg.hashsalt": "ocil",  # the same figure gives the same bytes
    "text.parse_math": False,  # a name from a file is no formula
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # safe for colour-blind readers
MARKERS = "osD^vP*"
LINES = ("-", "--", ":")


def accuracy_after_each_task(summaries: Sequence[Summary], names: Sequence[str] | None = None) -> Figure:
    """Mean accuracy over the classes shown so far, with its 95 % confidence interval, one line per method.

    ``names`` are for the legend, where they are not those of the methods.
    """
    names = [summary.config.label for summary in summaries] if names is None else names
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        for number, (summary, name) in enumerate(zip(summaries, names, strict=True)):
            tasks = range(1, len(summary.accuracy_curve) + 1)
            mean = [100 * point.mean for point in summary.accuracy_curve]
            spread = [100 * (point.interval or 0.0) for point in summary.accuracy_curve]
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(
                tasks, mean, LINES[number // len(COLOURS) % len(LINES)], color=colour,
                marker=MARKERS[number % len(MARKERS)], markersize=5, label=f"{name}  {mean[-1]:.1f} %",
            )  # fmt: skip
            low = [max(0.0, m - s) for m, s in zip(mean, spread, strict=True)]
            high = [min(100.0, m + s) for m, s in zip(mean, spread, strict=True)]
            axes.fill_between(tasks, low, high, color=colour, alpha=0.15, linewidth=0)
        longest = max(len(summary.accuracy_curve) for summary in summaries)
        config = summaries[0].config
        seeds = len(summaries[0].average_accuracy.values)
        memory = max(summary.config.learner.memory for summary in summaries)
        axes.set(
            xlabel="tasks learned",
            ylabel="accuracy on all classes so far, %",
            xticks=range(1, longest + 1),
            ylim=(0, 100),
            title=f"{escaped(Path(config.dataset).stem)}, memory {memory}, {seeds} seed{'s' if seeds > 1 else ''}",
        )
        if len(summaries) <= len(COLOURS):
            axes.legend(frameon=False, title="at the end")
        else:
            axes.legend(frameon=False, title="at the end", loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def save(figure: Figure, path: Path) -> None:
    """Write by atomic rename; the suffix chooses PNG or SVG."""
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    try:
        with mpl.rc_context(STYLE), atomic_write(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=150, metadata=metadata)
    finally:
        plt.close(figure)
