"""The figures of a report, each as SVG that stands alone and that a page can take in."""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ocil.metrics import Estimate
from ocil.report.figures import COLOURS, LINES, MARKERS, STYLE

if TYPE_CHECKING:
    from ocil.report.collect import Cell

INK, RULE, PAPER = "#1f2328", "#e3e3df", "#ffffff"
# Text stays text: it can be read aloud, searched and follows the page's font.
DRAWING: Any = STYLE | {
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": RULE,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.titlesize": 10,
    "legend.facecolor": "none",
    "legend.frameon": False,
}
PALETTE = (*COLOURS[:-1], INK)


def draw(paint: Callable[..., Figure], *args: Any) -> str:
    """A figure's SVG, equal bytes for equal numbers."""
    with mpl.rc_context(DRAWING), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's font has it, where ours has not
        figure = paint(*args)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue().replace("#000000", INK)


def inline(svg: str, name: str, label: str) -> str:
    """For a page: the page's colours and font, names of its own, no background, a label for those who cannot see it."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", svg)
    for colour, page in ((INK, "currentColor"), (RULE, "var(--rule)"), (f"fill: {PAPER}", "fill: none")):
        svg = svg.replace(colour, page)
    label = label.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


@dataclass(frozen=True)
class Style:
    colour: str
    marker: str
    line: str

    @classmethod
    def number(cls, n: int) -> "Style":
        again = n // len(PALETTE)  # the same colour once more, with another marker and line
        return cls(PALETTE[n % len(PALETTE)], MARKERS[(n + again) % len(MARKERS)], LINES[again % len(LINES)])


def _axes(width: float = 6.4, height: float = 4.0, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, columns)))


def accuracy(curves: Mapping[str, Sequence[Estimate]]) -> Figure:
    """Accuracy on the classes so far after each task; the best at the end comes first."""
    figure, (axes,) = _axes(7.2, 4.2)
    highest = 0.0
    for number, (name, points) in enumerate(sorted(curves.items(), key=lambda item: -item[1][-1].mean)):
        style, tasks = Style.number(number), range(1, len(points) + 1)
        mean = np.array([100 * point.mean for point in points])
        spread = np.array([100 * (point.interval or 0.0) for point in points])
        axes.plot(
            tasks, mean, style.line, color=style.colour, marker=style.marker, markersize=4.5, linewidth=1.4,
            label=f"{name}  {mean[-1]:.1f}",
        )  # fmt: skip
        low, high = (mean - spread).clip(0, 100), (mean + spread).clip(0, 100)
        axes.fill_between(tasks, low, high, color=style.colour, alpha=0.12, linewidth=0)
        highest = max(highest, float(mean.max()))
    longest = max(map(len, curves.values()))
    top = min(100.0, 10 * np.ceil((highest + 3) / 10))
    axes.set(xlabel="tasks learned", ylabel="accuracy on all classes so far, %", ylim=(0, top))
    axes.set_xticks(range(1, longest + 1))
    axes.legend(title="% at the end", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def old_and_new(cells: Mapping[str, "Cell"], quantity: str, ylabel: str) -> Figure:
    """A mean over old and over new classes after each task, one colour a method."""
    figure, (axes,) = _axes(6.4, 3.8)
    longest = 1
    for number, (name, cell) in enumerate(cells.items()):
        style = Style.number(number)
        for age, line in (("new", "-"), ("old", "--")):
            means = over_seeds(cell, f"{quantity}_{age}")
            longest = max(longest, len(means))
            axes.plot(
                range(1, len(means) + 1), means, line, color=style.colour, marker=style.marker, markersize=4.5,
                linewidth=1.4, label=f"{name}, {age} classes",
            )  # fmt: skip
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="tasks learned", ylabel=ylabel)
    axes.set_xticks(range(1, longest + 1))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def sample_types(cells: Mapping[str, "Cell"]) -> Figure:
    figure, panels = _axes(8.4, 3.2, columns=3)
    for axes, kind, text in zip(
        panels, ("hard", "ambiguous", "easy"), ("hard: below 0.3", "ambiguous: 0.3 to 0.6", "easy: above 0.6"),
        strict=True,
    ):  # fmt: skip
        for number, (name, cell) in enumerate(cells.items()):
            style, counts = Style.number(number), over_seeds(cell, kind)
            axes.plot(
                range(1, len(counts) + 1), counts, color=style.colour, marker=style.marker, markersize=4.5,
                linewidth=1.4, label=name,
            )  # fmt: skip
        axes.set(xlabel="tasks learned", title=text)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("training samples of new classes")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(cells))
    return figure


def over_seeds(cell: "Cell", name: str) -> NDArray[np.float64]:
    """Mean over seeds of a number of the evaluations, after each task; nan where it is not there."""
    rows = [[_float(e.get(name)) for e in run.result.evaluations] for run in cell.runs]
    shortest = min(map(len, rows))
    return np.asarray(np.array([row[:shortest] for row in rows], dtype=float).mean(axis=0))


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)


def losses() -> Figure:
    """Loss, weight and gradient of cross-entropy and the two focal losses, from ``ocil.losses``, with alpha 1."""
    import torch

    from ocil import losses

    p = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    labels = torch.zeros(len(p), dtype=torch.int64)
    kinds = {
        "CE": losses.cross_entropy(*(inputs := _two_classes(p, labels)), reduction="none"),
        "FL, γ = 2": losses.focal(*inputs, alpha=1.0, reduction="none"),
        "RFL, μ = 0.3, σ = 0.5": losses.revised_focal(*inputs, alpha=1.0, reduction="none"),
    }
    plain = kinds["CE"].detach()
    figure, panels = _axes(8.4, 3.3, columns=3)
    for number, (name, values) in enumerate(kinds.items()):
        style = Style.number(number)
        (gradient,) = torch.autograd.grad(values.sum(), inputs[0], retain_graph=True)
        values = values.detach()
        for axes, curve in zip(panels, (values, values / plain, -gradient[:, 0]), strict=True):
            axes.plot(p.numpy(), curve.numpy(), color=style.colour, linewidth=1.6, label=name)
    for axes, title in zip(panels, ("loss", "weight: loss / CE", "gradient at the true logit, size"), strict=True):
        axes.axvspan(0.3, 0.6, color="#e69f00", alpha=0.1, linewidth=0)
        axes.set(xlabel="score of the true class", title=title, xlim=(0, 1))
        axes.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _two_classes(p: Any, labels: Any) -> tuple[Any, Any]:
    """Logits whose softmax gives the first class p."""
    import torch

    logits = torch.stack([torch.logit(p), torch.zeros_like(p)], dim=1)
    return logits.requires_grad_(), labels


def label_distribution(classes: int = 10, true: int = 3, temperature: float = 20.0) -> Figure:
    """The target that each regulariser pulls to, read from the gradient of ``ocil.losses`` at equal logits."""
    import torch

    from ocil import losses

    labels = torch.tensor([true])

    def target(loss: Callable[..., Any], scale: float) -> NDArray[np.float64]:
        logits = torch.zeros(1, classes, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(logits, labels), logits)
        return np.asarray(1 / classes - gradient[0].numpy() / scale)

    distill = target(lambda z, y: losses.virtual_distillation(z, y, beta=1.0, temperature=temperature), temperature)
    smooth = target(losses.label_smoothing, 1.0)
    figure, panels = _axes(7.2, 3.0, columns=2)
    for axes, values, name in zip(panels, (smooth, distill), ("LSR", f"VKD, T = {temperature:g}"), strict=True):
        colours = [PALETTE[1] if c == true else PALETTE[0] for c in range(classes)]
        axes.bar(range(classes), values, color=colours, width=0.75)
        axes.set(title=f"{name}: {values[true]:.4f} and {values[0]:.4f}", xlabel="class")
        axes.set_xticks(range(classes), [f"C{c}" for c in range(classes)])
        axes.grid(False, axis="x")
    panels[0].set_ylabel("probability in the target")
    return figure


def balance(points: Mapping[str, tuple[Estimate, Estimate]]) -> Figure:
    """Forgetting over intransigence; the lower left is best."""
    figure, (axes,) = _axes(6.8, 4.8)
    for number, (x, y) in enumerate(points.values()):
        style = Style.number(number)
        axes.errorbar(
            100 * x.mean, 100 * y.mean, xerr=100 * (x.interval or 0), yerr=100 * (y.interval or 0), color=style.colour,
            marker=style.marker, markersize=6, linewidth=0.8, alpha=0.95,
        )  # fmt: skip
    axes.set(xlabel="average intransigence, %", ylabel="average forgetting, %")
    axes.margins(0.12)
    spots = [(100 * x.mean, 100 * y.mean) for x, y in points.values()]
    _name_points(figure, axes, spots, list(points))
    return figure


def _name_points(figure: Figure, axes: Axes, spots: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write each name beside its point, at the side where it covers least of what is there already."""
    figure.draw_without_rendering()  # settles the layout, so that places can be computed
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
        axes.annotate(
            name, spot, (away * across, away * up), textcoords="offset points", fontsize=size,
            ha={1: "left", 0: "center", -1: "right"}[across], va={1: "bottom", 0: "center", -1: "top"}[up],
        )  # fmt: skip


Box = tuple[float, float, float, float]


def _shared(a: Box, b: Box) -> float:
    """Area that two boxes have in common."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def running_time(times: Mapping[str, Estimate]) -> Figure:
    figure, (axes,) = _axes(6.8, 0.9 + 0.26 * len(times))
    names = sorted(times, key=lambda name: -times[name].mean)
    seconds = [times[name].mean for name in names]
    axes.barh(range(len(names)), seconds, color=PALETTE[0], height=0.66)
    for number, value in enumerate(seconds):
        axes.annotate(f"{value:.1f}", (value, number), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="wall seconds of a run")
    axes.margins(x=0.1, y=0.5 / max(1, len(names)))
    axes.grid(False, axis="y")
    return figure


def memory_batch(curves: Mapping[str, Mapping[int, Estimate]]) -> Figure:
    figure, (axes,) = _axes(6.0, 3.6)
    sizes = sorted({size for curve in curves.values() for size in curve})
    for number, (name, curve) in enumerate(curves.items()):
        style, at = Style.number(number), sorted(curve)
        axes.errorbar(
            at, [100 * curve[size].mean for size in at], yerr=[100 * (curve[size].interval or 0) for size in at],
            color=style.colour, marker=style.marker, markersize=5, linewidth=1.4, capsize=2, label=name,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="images drawn from the memory a step", ylabel="accuracy, %")
    axes.legend()
    return figure


def differences(rows: Mapping[str, tuple[float, float | None]]) -> Figure:
    """Measured less published. A bar is the sum of both intervals, so it reaches zero where they overlap."""
    figure, (axes,) = _axes(6.8, 1.0 + 0.24 * len(rows))
    for number, (gap, reach) in enumerate(reversed(list(rows.values()))):
        apart = reach is not None and abs(gap) > reach
        colour = PALETTE[1] if apart else PALETTE[0]
        axes.errorbar(gap, number, xerr=reach, color=colour, marker="D" if apart else "o", markersize=4.5, linewidth=1)
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
            told = [f"{score:.2f}" if lines == 1 else f"{run} {score:.2f}" for run, score in example.scores.items()]
            axes.set_title("\n".join(told), fontsize=9 if lines == 1 else 7, pad=3)
            axes.set_xlabel(name, fontsize=7, labelpad=2)
    return figure
