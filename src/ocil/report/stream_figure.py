"""A picture of what arrives when in a stream."""

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from ocil.report.style import INK, PAPER, new_figure
from ocil.streams.timeline import Timeline

MOST_NAMES = 30  # more would not be readable


def arrivals(timeline: Timeline, title: str) -> Figure:
    """One row per class or domain, time from left to right: the darker, the more samples arrive. Lines are evaluation
    points, solid where methods hear of a task's end.
    """
    rows = len(timeline.names)
    figure, (axes,) = new_figure(6.4, min(7.0, 1.2 + 0.2 * max(rows, 6)))
    edges = np.array([0, *timeline.ends])
    rate = timeline.counts / np.diff(edges)  # spans may differ by a batch
    shades = PowerNorm(0.5, 0, max(rate.max(), 1e-9))  # so that a few samples are seen beside many
    axes.pcolormesh(edges, np.arange(rows + 1), rate, cmap="Blues", norm=shades, rasterized=True)
    for point in timeline.points[:-1]:
        axes.axvline(point, color=INK, linewidth=0.9, linestyle="-" if timeline.announced else ":")
    for border in np.cumsum(timeline.group_sizes)[:-1]:
        axes.axhline(border, color=PAPER, linewidth=1.5)
    step = -(-rows // MOST_NAMES)
    axes.set_yticks(np.arange(0, rows, step) + 0.5, [name[:24] for name in timeline.names[::step]])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set(xlabel="samples that have arrived", title=title)
    return figure
