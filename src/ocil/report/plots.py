"""Figures of what was measured. Each function makes one figure. Workers import this module, so it loads no PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ocil.data.derived import short_name
from ocil.evaluation.measures import Estimate
from ocil.evaluation.record_types import EASY, HARD
from ocil.report.style import COLOURS, INK, LINES, MARKERS, PALETTE, STYLE, Look, Looks, lay_out, looks, new_figure
from ocil.text import escaped, number_text

if TYPE_CHECKING:
    from ocil.runs.results import Summary

OUTSIDE: Any = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}  # a legend to the right of the axes
SAMPLE_TYPES = {"hard": f"below {HARD:g}", "ambiguous": f"{HARD:g} to {EASY:g}", "easy": f"above {EASY:g}"}
"""The score of the true class of each type."""
Box = tuple[float, float, float, float]  # left, low, right, high
Array = NDArray[np.float64]


def accuracy_after_each_task(summaries: Sequence["Summary"], names: Sequence[str] | None = None) -> Figure:
    """Mean accuracy over the classes shown so far, with its 95 % confidence interval, one line per method.

    ``names`` are for the legend, where they are not the labels of the methods.
    """
    names = [summary.config.label for summary in summaries] if names is None else names
    with mpl.rc_context(STYLE):
        figure, (axes,) = new_figure()
        for number, (summary, name) in enumerate(zip(summaries, names, strict=True)):
            again, place = divmod(number, len(COLOURS))
            look = Look(COLOURS[place], MARKERS[number % len(MARKERS)], LINES[again % len(LINES)])
            points = summary.accuracy_curve
            label = f"{name}  {number_text(points[-1].mean, 'percent')} %"
            _draw_curve(axes, points, look, label, alpha=0.15, markersize=5, linewidth=1.5)
        axes.set(xlabel="tasks learned", ylabel="accuracy on all classes so far, %", ylim=(0, 100))
        axes.set_title(title_of(summaries))
        axes.set_xticks(range(1, max(len(summary.accuracy_curve) for summary in summaries) + 1))
        outside = {} if len(summaries) <= len(COLOURS) else OUTSIDE
        axes.legend(frameon=False, title="at the end", **outside)
        return figure


def title_of(summaries: Sequence["Summary"]) -> str:
    """The dataset, the memories and the seeds of a figure that stands alone."""
    seeds = sorted({len(summary.average_accuracy.values) for summary in summaries})
    memories = sorted({summary.config.learner.memory for summary in summaries} - {0})
    parts = [
        escaped(short_name(summaries[0].config.dataset)),
        *([f"memory {', '.join(map(str, memories))}"] if memories else []),
        f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seed{'s' if seeds[-1] > 1 else ''}",
    ]
    return ", ".join(parts)


def accuracy(
    curves: Mapping[str, Sequence[Estimate]],
    units: str = "classes",
    xlabel: str = "tasks learned",
    look: Looks | None = None,
) -> Figure:
    """Accuracy on the classes (or other ``units``) so far after each task; the best at the end comes first."""
    figure, (axes,) = new_figure(7.2, 4.2)
    highest, look = 0.0, look or looks(curves)
    for name, points in sorted(curves.items(), key=lambda item: -item[1][-1].mean):
        _draw_curve(axes, points, look[name], f"{name}  {number_text(points[-1].mean, 'percent')}", alpha=0.12)
        highest = max(highest, *(100 * point.mean for point in points))
    top = min(100.0, 10 * np.ceil((highest + 3) / 10))
    axes.set(xlabel=xlabel, ylabel=f"accuracy on all {units} so far, %", ylim=(0, top))
    axes.set_xticks(range(1, max(map(len, curves.values())) + 1))
    axes.legend(title="% at the end", **OUTSIDE)
    return figure


def _draw_curve(axes: Axes, points: Sequence[Estimate], look: Look, label: str, alpha: float, **options: float) -> None:
    """Draw a line over the tasks with its 95 % interval, in percent."""
    tasks = range(1, len(points) + 1)
    axes.plot(tasks, draw_band(axes, tasks, points, look, alpha), look.line, **look.line_options | options, label=label)


def draw_band(axes: Axes, x: Sequence[int], points: Sequence[Estimate], look: Look, alpha: float) -> Array:
    """Draw the 95 % interval of a curve, a band of this ``alpha``. Returns the means of the curve. Both in percent."""
    mean = np.array([100 * point.mean for point in points])
    spread = np.array([100 * (point.spread or 0.0) for point in points])
    low, high = (mean - spread).clip(0, 100), (mean + spread).clip(0, 100)
    axes.fill_between(x, low, high, color=look.colour, alpha=alpha, linewidth=0)
    return mean


def old_and_new(curves: Mapping[str, tuple[Array, Array]], ylabel: str, look: Looks | None = None) -> Figure:
    """A mean over old and one over new classes after each task, one colour per method."""
    figure, (axes,) = new_figure(6.4, 3.8)
    longest = 1
    look = look or looks(curves)
    for name, (old, new) in curves.items():
        for age, means, line in (("new", new, "-"), ("old", old, "--")):
            longest = max(longest, len(means))
            axes.plot(range(1, len(means) + 1), means, line, **look[name].line_options, label=f"{name}, {age} classes")
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="tasks learned", ylabel=ylabel)
    axes.set_xticks(range(1, longest + 1))
    axes.legend(**OUTSIDE)
    return figure


def sample_types(curves: Mapping[str, Mapping[str, Array]], look: Looks | None = None) -> Figure:
    """How many samples of each type there are after each task, by method and type."""
    figure, panels = new_figure(8.4, 3.2, columns=3)
    look = look or looks(curves)
    for axes, (kind, scores) in zip(panels, SAMPLE_TYPES.items(), strict=True):
        for name, counts in curves.items():
            axes.plot(range(1, len(counts[kind]) + 1), counts[kind], **look[name].line_options, label=name)
        axes.set(xlabel="tasks learned", title=f"{kind}: {scores}")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("training samples of new classes")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(curves))
    return figure


def balance(points: Mapping[str, tuple[Estimate, Estimate]], look: Looks | None = None) -> Figure:
    """Forgetting over intransigence; the lower left is best."""
    figure, (axes,) = new_figure(6.8, 4.8)
    spots = [(100 * x.mean, 100 * y.mean) for x, y in points.values()]
    look = look or looks(points)
    for spot, (name, (x, y)) in zip(spots, points.items(), strict=True):
        options = look[name].line_options | {"markersize": 6, "linewidth": 0.8, "alpha": 0.95}
        axes.errorbar(spot[0], spot[1], xerr=100 * (x.spread or 0), yerr=100 * (y.spread or 0), **options)
    axes.set(xlabel="average intransigence, %", ylabel="average forgetting, %")
    axes.margins(0.12)
    name_points(figure, axes, spots, list(points))
    return figure


def name_points(figure: Figure, axes: Axes, spots: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write each name next to its point, on the side where it covers least of what is there already."""
    lay_out(figure)
    points = figure.dpi / 72
    size, away = 8.5, 6.0
    places = [axes.transData.transform(spot) / points for spot in spots]
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    for spot, (x, y), name in zip(spots, places, names, strict=True):
        wide, high = 0.58 * size * len(name), 1.2 * size
        boxes: dict[tuple[int, int], Box] = {}
        for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)):
            left = x + away * across - wide * (1 - across) / 2
            low = y + away * up - high * (1 - up) / 2
            boxes[across, up] = (left, low, left + wide, low + high)
        across, up = min(boxes, key=lambda side: sum(_shared(boxes[side], other) for other in taken))
        taken.append(boxes[across, up])
        sides: dict[str, Any] = {"ha": ("center", "left", "right")[across], "va": ("center", "bottom", "top")[up]}
        axes.annotate(name, spot, (away * across, away * up), textcoords="offset points", fontsize=size, **sides)


def _shared(a: Box, b: Box) -> float:
    """Area that two boxes have in common."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def running_time(times: Mapping[str, Estimate]) -> Figure:
    figure, (axes,) = new_figure(6.8, 0.9 + 0.26 * len(times))
    names = sorted(times, key=lambda name: -times[name].mean)
    seconds = [times[name].mean for name in names]
    axes.barh(range(len(names)), seconds, color=PALETTE[0], height=0.66)
    for number, value in enumerate(seconds):
        text = number_text(value, ".1f")
        axes.annotate(text, (value, number), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="wall seconds of a run")
    axes.margins(x=0.1, y=0.5 / max(1, len(names)))
    axes.grid(False, axis="y")
    return figure


def memory_batch(curves: Mapping[str, Mapping[int, Estimate]], look: Looks | None = None) -> Figure:
    figure, (axes,) = new_figure(6.0, 3.6)
    sizes = sorted({size for curve in curves.values() for size in curve})
    look = look or looks(curves)
    for name, curve in curves.items():
        at = sorted(curve)
        axes.errorbar(
            at,
            [100 * curve[size].mean for size in at],
            yerr=[100 * (curve[size].spread or 0) for size in at],
            **look[name].line_options | {"markersize": 5},
            capsize=2,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="images drawn from the memory per step", ylabel="accuracy, %")
    axes.legend()
    return figure


def differences(rows: Mapping[str, tuple[float, float | None]]) -> Figure:
    """Measured less published. A bar is the sum of both intervals, so it reaches zero where they overlap."""
    figure, (axes,) = new_figure(6.8, 1.0 + 0.24 * len(rows))
    for number, (difference, reach) in enumerate(reversed(list(rows.values()))):
        colour, marker = (PALETTE[1], "D") if reach is not None and abs(difference) > reach else (PALETTE[0], "o")
        axes.errorbar(difference, number, xerr=reach, color=colour, marker=marker, markersize=4.5, linewidth=1)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(rows)), list(rows)[::-1])
    axes.set(xlabel="measured less published, points of accuracy")
    axes.margins(y=0.7 / max(1, len(rows)))
    return figure


@dataclass(frozen=True)
class Example:
    """A training image and the score of its true class, by each run."""

    image: NDArray[np.uint8]
    scores: Mapping[str, float]
    name: str


def examples(groups: Mapping[str, Sequence[Example]]) -> Figure:
    """A row of images for each kind of sample."""
    across = max(1, *(len(group) for group in groups.values()))
    lines = max((len(example.scores) for group in groups.values() for example in group), default=1)
    figure = Figure(figsize=(0.95 * across + 0.9, (1.2 + 0.15 * lines) * len(groups)), layout="constrained")
    grid = figure.subplots(len(groups), across, squeeze=False)
    for row, (kind, group) in zip(grid, groups.items(), strict=True):
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(False)
            for edge in axes.spines.values():
                edge.set_visible(False)
        row[0].set_ylabel(kind, rotation=0, ha="right", va="center")
        for axes, example in zip(row, group, strict=False):
            image = example.image
            axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
            name = "".join(letter for letter in example.name if letter.isprintable())
            name = name if len(name) <= 14 else f"{name[:13]}…"
            scores = [f"{score:.2f}" if lines == 1 else f"{run} {score:.2f}" for run, score in example.scores.items()]
            axes.set_title("\n".join(scores), fontsize=9 if lines == 1 else 7, pad=3)
            axes.set_xlabel(name, fontsize=7, labelpad=2)
    return figure
