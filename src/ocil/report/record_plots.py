"""Figures of what was recorded over time, per class, and at what cost. Each function makes one figure."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator

from ocil.evaluation.measures import Estimate
from ocil.report.plots import OUTSIDE, draw_band, name_points
from ocil.report.records import Array, Calibration, Confusion, HeatMap, OverTime
from ocil.report.style import INK, RULE, Look, Looks, looks, new_figure
from ocil.text import kilo, number_text

COLOURS = "viridis"
NUMBERED = 10  # classes: with as many or fewer, a confusion matrix has numbers
MOST_DIGITS = 7  # of a tick with a prefix; more are written out
MOST_MARKS = 60  # reviews or task ends: more would cover the curves


def over_time(curves: Mapping[str, OverTime], units: str = "classes", look: Looks | None = None) -> Figure:
    """Accuracy on the classes (or other ``units``) so far by stream batches, the 95 % interval as a band. Lines mark
    task ends, triangles at a curve its reviews."""
    figure, (axes,) = new_figure(8.2, 4.2)
    ends = max((curve.tasks for curve in curves.values()), key=len, default=())
    if len(ends) <= MOST_MARKS:
        for end in ends:
            axes.axvline(end, color=RULE, linewidth=1.1, zorder=0)
    highest, look = 0.0, look or looks(curves)
    ordered = sorted(curves.items(), key=lambda item: -item[1].accuracy[-1].mean)
    for number, (name, curve) in enumerate(ordered):
        mean = draw_band(axes, curve.batches, curve.accuracy, look[name], alpha=0.13)
        colour, label = look[name].colour, f"{_short(name)}  {number_text(mean[-1], '.1f')}"
        axes.plot(curve.batches, mean, look[name].line, color=colour, linewidth=1.3, label=label)
        if 0 < len(curve.reviews) <= MOST_MARKS:
            at = np.interp(curve.reviews, curve.batches, mean)
            gid = f"reviews-{number}"
            axes.plot(curve.reviews, at, linestyle="none", marker="^", markersize=5, color=colour, gid=gid)
        highest = max(highest, float(mean.max()))
    axes.set(xlabel="stream batches learned", ylabel=f"accuracy on all {units} so far, %")
    axes.set_ylim(0, min(100.0, 10 * np.ceil((highest + 3) / 10)))
    axes.grid(False, axis="x")
    last = "at the end" if all(curve.at_end for curve in curves.values()) else "at the last point"
    axes.legend(title=f"% {last}", **OUTSIDE)
    return figure


def heat_maps(maps: Mapping[str, HeatMap]) -> Figure:
    """A panel per method: classes in their order of arrival, from top to bottom, over time."""
    figure = Figure(figsize=(2.6 + 2.5 * len(maps), 3.6), layout="constrained")
    panels = list(np.atleast_1d(figure.subplots(1, len(maps), sharey=True)))
    colours = mpl.colormaps[COLOURS].with_extremes(bad=RULE)
    highest = max(
        (float(np.nanmax(each.accuracy)) for each in maps.values() if not np.isnan(each.accuracy).all()), default=1.0
    )
    for axes, (name, each) in zip(panels, maps.items(), strict=True):
        rows = len(each.accuracy)
        edges = _edges(each.times)
        image = axes.imshow(
            _evenly(each, edges),
            cmap=colours,
            vmin=0,
            vmax=100 * max(highest, 0.01),
            aspect="auto",
            interpolation="nearest",
            extent=(edges[0], edges[-1], rows + 0.5, 0.5),
        )
        axes.set(title=_short(name), xlabel=each.unit)
        axes.grid(False)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    first = next(iter(maps.values()))
    labels = {"classes": "class, by arrival", "domains": "domain, by arrival", "tasks": "classes of task"}
    panels[0].set_ylabel(labels[first.rows])
    figure.colorbar(image, ax=panels, label="accuracy, %", shrink=0.9)
    return figure


def _edges(times: Sequence[int]) -> Array:
    """Where each time begins and the last ends: halfway to its neighbours."""
    at = np.array(times, dtype=float)
    middle = (at[1:] + at[:-1]) / 2
    return np.concatenate([[at[0] - (middle[0] - at[0])], middle, [at[-1] + (at[-1] - middle[-1])]])


def _evenly(each: HeatMap, edges: Array) -> Array:
    """The map in percent with columns at equal distances, as an image has them."""
    count = min(400, max(len(each.times), 1) * 2)
    centres = np.linspace(edges[0], edges[-1], 2 * count + 1)[1::2]
    at = np.searchsorted(edges, centres, side="right") - 1
    return np.asarray(100 * each.accuracy[:, at.clip(0, len(each.times) - 1)])


def confusions(maps: Mapping[str, Confusion]) -> Figure:
    """A panel per method: true classes down, predicted classes across, in percent of each true class."""
    figure = Figure(figsize=(1.4 + 3.1 * len(maps), 3.4), layout="constrained")
    panels = list(np.atleast_1d(figure.subplots(1, len(maps))))
    for axes, (name, each) in zip(panels, maps.items(), strict=True):
        count = len(each.shares)
        extent = (0.5, count + 0.5, count + 0.5, 0.5)
        image = axes.imshow(100 * each.shares, cmap=COLOURS, vmin=0, vmax=100, interpolation="nearest", extent=extent)
        order = "class, by arrival" if each.by_arrival else "class"
        axes.set(title=_short(name), xlabel=f"predicted {order}", ylabel=f"true {order}")
        axes.grid(False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True))
        if count <= NUMBERED:
            _number(axes, each)
    figure.colorbar(image, ax=panels, label="% of the true class", shrink=0.9)
    return figure


def _number(axes: Axes, each: Confusion) -> None:
    for (row, column), share in np.ndenumerate(each.shares):
        ink = "#000000" if share > 0.6 else "#ffffff"
        axes.text(column + 1, row + 1, f"{100 * share:.0f}", ha="center", va="center", fontsize=7, color=ink)


def reliability(curves: Mapping[str, Calibration], look: Looks | None = None) -> Figure:
    """Accuracy by confidence; on the diagonal a prediction is right as often as it says."""
    figure, (axes,) = new_figure(6.4, 4.0)
    axes.plot([0, 100], [0, 100], color=INK, linewidth=0.8, linestyle=":")
    look = look or looks(curves)
    for name, curve in curves.items():
        label = f"{_short(name)}  {number_text(curve.error, 'percent')}"
        axes.plot(100 * curve.confidence, 100 * curve.accuracy, **look[name].line_options, label=label)
    axes.set(xlabel="confidence, %", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 100))
    axes.legend(title="calibration error, %", **OUTSIDE)
    return figure


def against_cost(
    curves: Mapping[str, Sequence[tuple[float, Estimate]]], xlabel: str, look: Looks | None = None
) -> Figure:
    """Accuracy against a cost, a line per method; the upper left is best. Costs that differ much are on a log scale."""
    figure, (axes,) = new_figure(7.2, 4.4)
    costs = [cost for points in curves.values() for cost, _ in points]
    if min(costs) > 0 and max(costs) > 4 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(_Counts())
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    spots, look = [], look or looks(curves)
    for name, points in curves.items():
        ordered = sorted(points, key=lambda point: point[0])
        at, means = [cost for cost, _ in ordered], [100 * value.mean for _, value in ordered]
        bars = [100 * (value.spread or 0) for _, value in ordered]
        axes.errorbar(at, means, yerr=bars, capsize=2, **look[name].line_options | {"markersize": 6, "linewidth": 0.9})
        best = int(np.argmax(means))
        spots.append((at[best], means[best]))
    axes.set(xlabel=xlabel, ylabel="accuracy at the end, %")
    axes.margins(0.14)
    name_points(figure, axes, spots, [_short(name) for name in curves])
    return figure


class _Counts(Formatter):
    """Ticks as counts, with as many digits as tell them apart."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return kilo(x)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        for digits in range(3, MOST_DIGITS):
            found = [kilo(value, digits) for value in values]
            if len(set(found)) == len(found):
                return found
        return [f"{value:,.0f}" for value in values]


def paired(rows: Mapping[str, Estimate], xlabel: str) -> Figure:
    """Differences to one method with their 95 % intervals; a diamond marks those that leave out zero."""
    figure, (axes,) = new_figure(6.8, 1.0 + 0.26 * len(rows))
    for number, value in enumerate(reversed(list(rows.values()))):
        apart = value.shown_interval is not None and abs(value.mean) > value.shown_interval
        look = Look.number(1 if apart else 0)
        axes.errorbar(
            100 * value.mean,
            number,
            xerr=None if value.spread is None else 100 * value.spread,
            color=look.colour,
            marker="D" if apart else "o",
            markersize=4.5,
            linewidth=1,
        )
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(rows)), [_short(name, 48) for name in rows][::-1])
    axes.set(xlabel=xlabel)
    axes.margins(y=0.7 / max(1, len(rows)))
    return figure


def _short(name: str, most: int = 30) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
