"""The first figure of a page: what each method scores against what it costs. SVG that takes the colours of the page."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from ocil.evaluation.measures import Estimate, estimate, mean_of
from ocil.report.cost import images_per_batch
from ocil.report.entries import Entry
from ocil.report.formatting import count, duration, range_note, spread_text
from ocil.report.standings import Standings
from ocil.report.table import MINUS
from ocil.text import kilo, number_text

MOST_POINTS = 24
LONGEST = 22  # characters of a name beside its point; the whole name is in its title
LOGARITHMIC = 4  # costs that differ by more than this factor are drawn on a logarithmic axis
LETTER = 0.6  # of the size of the letters: the width of one, for places where a label fits
IMAGES, TIME = "images passed per stream batch", "time per run"
OF_ONE_NETWORK = "Networks differ, and so does the cost of an image: compare points of one network."


@dataclass(frozen=True)
class MethodPoint:
    """A method: what it scores, in percent or in the unit of its measure, and what it costs."""

    name: str
    value: float
    over_seeds: Estimate
    """Of the seeds that all columns share, in the same unit. Its mean may differ: ``value`` is over all seeds."""
    costs: tuple[float, float, float]
    """The lowest, the mean and the highest over the columns of the ranking."""

    @property
    def cost(self) -> float:
        return self.costs[1]

    @property
    def ends(self) -> tuple[float, float]:
        """Where the bar begins and ends: at the values of two seeds, else at the interval. Equal: there is no bar."""
        reach = self.over_seeds.interval or 0.0
        return self.over_seeds.shown_range or (self.value - reach, self.value + reach)


@dataclass(frozen=True)
class CostFigure:
    """The figure in two sizes, of which the page shows one, with a title and a caption."""

    title: str
    caption: str
    wide: str
    narrow: str


def cost_figure(standings: Standings) -> CostFigure | None:
    """The figure; None where fewer than two methods have both a score and a cost."""
    ranked = [standing.name for standing in standings.ranking.standings if standing.mean_rank is not None]
    entries = sorted(
        (entry for entry in standings.ordered if entry.name in ranked), key=lambda entry: ranked.index(entry.name)
    )
    by_images = sum(bool(_images(standings, entry)) for entry in entries) > 1
    costs = _images if by_images else _seconds
    found = [point for entry in entries if (point := _point(standings, entry, costs(standings, entry)))]
    if len(found) < 2:
        return None
    shown, higher = found[:MOST_POINTS], standings.quantity.higher_is_better
    cost, write = (IMAGES, kilo) if by_images else (TIME, duration)
    measure = standings.quantity.title.removesuffix(" %")
    title = f"{measure[:1].upper()}{measure[1:]} against cost"
    unit = " %" if standings.quantity.form == "percent" else ""
    spoken = "; ".join(f"{point.name} {number_text(point.value, '.1f')}{unit}, {write(point.cost)}" for point in shown)
    label = f"{title}, in {cost}. {spoken}."
    heading = f"{'mean ' if len(standings.ranking.columns) > 1 else ''}{standings.quantity.title}"
    sizes = (Canvas(660, 400, 13), Canvas(358, 320, 12))
    wide, narrow = (_svg(shown, higher, canvas, heading, cost, write, label) for canvas in sizes)
    return CostFigure(title, _caption(standings, entries, found, by_images), wide, narrow)


def _caption(standings: Standings, entries: Sequence[Entry], found: Sequence[MethodPoint], by_images: bool) -> str:
    """How the figure is to be read, and what it leaves out. ``found``: the points of those entries that have one."""
    columns, shown = standings.ranking.columns, found[:MOST_POINTS]
    over = f"{'The mean over' if len(columns) > 1 else 'Over'} {count(len(columns), 'column')}"
    better = "more accurate" if standings.quantity.title.removesuffix(" %") == "accuracy" else "better"
    words = [
        f"{over}; bars are 95 % intervals over seeds.{range_note(point.over_seeds for point in shown)}",
        f"No method is both cheaper and {better} than one on the line.",
    ]
    if by_images:
        words.append("An image that only passes forward counts a third.")
    if by_images and len(_networks(standings, entries)) > 1:
        words.append(OF_ONE_NETWORK)
    if len(entries) > len(found):
        words.append(f"Without a known cost: {count(len(entries) - len(found), 'method')}.")
    if len(found) > len(shown):
        words.append(f"The first {len(shown)} of {len(found)} are drawn.")
    return " ".join(words)


def frontier(points: Sequence[MethodPoint], higher: bool = True) -> list[MethodPoint]:
    """The points that no other beats in both score and cost, by rising cost."""
    sign, best = 1 if higher else -1, -math.inf
    found = []
    for point in sorted(points, key=lambda point: (point.cost, -sign * point.value)):
        if sign * point.value > best:
            best = sign * point.value
            found.append(point)
    return found


def _images(standings: Standings, entry: Entry) -> list[float]:
    found = [images_per_batch(cell) for cell in standings.cells_of(entry)]
    return [value for value in found if value is not None] if None not in found else []


def _networks(standings: Standings, entries: Sequence[Entry]) -> set[tuple[str, int, str]]:
    """The networks that images pass through, told apart by name, width and features."""
    learners = [cell.config.learner for entry in entries for cell in standings.cells_of(entry)]
    return {(learner.network, learner.width, learner.features) for learner in learners}


def _seconds(standings: Standings, entry: Entry) -> list[float]:
    return [cell.summary.wall_seconds.mean for cell in standings.cells_of(entry)]


def _point(standings: Standings, entry: Entry, costs: Sequence[float]) -> MethodPoint | None:
    mean = standings.mean_value(entry)
    if mean is None or not costs or not all(math.isfinite(value) and value > 0 for value in costs):
        return None
    per_column = [standings.by_seed[entry.name][column] for column in standings.ranking.columns]
    shared = set.intersection(*(set(values) for values in per_column))
    over_seeds = [mean_of(values[seed] for values in per_column) for seed in sorted(shared)]
    factor = 100.0 if standings.quantity.form == "percent" else 1.0
    spread = estimate([factor * value for value in over_seeds]) if over_seeds else Estimate(factor * mean, None, ())
    return MethodPoint(entry.name, factor * mean, spread, (min(costs), mean_of(costs), max(costs)))


@dataclass(frozen=True)
class Canvas:
    """A size of the figure, and the place of its axes."""

    width: int
    height: int
    letters: int
    left: int = 36
    right: int = 14
    top: int = 30
    bottom: int = 46


@dataclass(frozen=True)
class Scale:
    """From a number to a place on the canvas."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Round numbers inside the range, at most so many."""
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps: Sequence[tuple[int, ...]] = ((1, 2, 5), (1, 3), (1,))
            choices = [[digit * 10.0**power for power in decades for digit in digits] for digits in steps]
        else:
            power = 10.0 ** math.floor(math.log10(self.high - self.low))
            widths = [power * digit for digit in (0.1, 0.2, 0.5, 1, 2, 5)]
            choices = [[n * width for n in _between(self.low / width, self.high / width)] for width in widths]
        inside = [[tick for tick in ticks if self.low <= tick <= self.high] for ticks in choices]
        return next((ticks for ticks in inside if len(ticks) <= most), inside[-1][:most])


def _between(low: float, high: float) -> range:
    return range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)


def _cost_scale(points: Sequence[MethodPoint], canvas: Canvas) -> Scale:
    low, high = min(point.costs[0] for point in points), max(point.costs[2] for point in points)
    start, end = canvas.left, canvas.width - canvas.right
    if high / low > LOGARITHMIC:
        return Scale(low / 1.25, high * 1.25, start, end, logarithmic=True)
    return Scale(0, high * 1.1, start, end)


def _value_scale(points: Sequence[MethodPoint], canvas: Canvas, higher: bool) -> Scale:
    ends = [end for point in points for end in (point.value, *point.ends)]
    low, high = min(ends), max(ends)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    places = (canvas.height - canvas.bottom, canvas.top)
    return Scale(low - room, high + room, *(places if higher else reversed(places)))


def _svg(
    points: Sequence[MethodPoint],
    higher: bool,
    canvas: Canvas,
    heading: str,
    cost: str,
    write: Callable[[float], str],
    label: str,
) -> str:
    """The figure in one size. The first of the points is the leader."""
    across, up = _cost_scale(points, canvas), _value_scale(points, canvas, higher)
    best = frontier(points, higher)
    line = " ".join(f"{across(point.cost):.1f},{up(point.value):.1f}" for point in best)
    parts = [
        *_axes(across, up, canvas, heading, cost, write),
        f'<polyline class="front" points="{line}"/>' if len(best) > 1 else "",
        *(_mark(point, across, up, point in best, point is points[0], write) for point in reversed(points)),
        *_labels(points, best, across, up, canvas),
    ]
    size = f'viewBox="0 0 {canvas.width} {canvas.height}" font-size="{canvas.letters}"'
    return f'<svg role="img" aria-label="{escape(label)}" {size}>\n' + "\n".join(filter(None, parts)) + "\n</svg>"


def _axes(
    across: Scale, up: Scale, canvas: Canvas, heading: str, cost: str, write: Callable[[float], str]
) -> Iterator[str]:
    left, right = canvas.left, canvas.width - canvas.right
    floor = canvas.height - canvas.bottom
    for tick in up.ticks(7):
        y = up(tick)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        number = f"{tick:g}".replace("-", MINUS)
        yield f'<text class="tick" x="{left - 8}" y="{y + 0.35 * canvas.letters:.1f}" text-anchor="end">{number}</text>'
    yield f'<line class="axis" x1="{left}" x2="{right}" y1="{floor}" y2="{floor}"/>'
    for tick in across.ticks(8 if canvas.width > 500 else 5):
        x = across(tick)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}"/>'
        number = write(tick) if tick else "0"
        yield f'<text class="tick" x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{escape(number)}</text>'
    yield f'<text class="heading" x="0" y="{canvas.letters}">{escape(heading)} ↑</text>'
    yield f'<text class="heading" x="{right}" y="{canvas.height - 6}" text-anchor="end">{escape(cost)} →</text>'


def _mark(point: MethodPoint, across: Scale, up: Scale, best: bool, leads: bool, write: Callable[[float], str]) -> str:
    x, y = across(point.cost), up(point.value)
    low, _, high = point.costs
    spread = spread_text(point.over_seeds, lambda number: number_text(number, ".1f"))
    value = f"{number_text(point.value, '.1f')} {spread}".strip()
    title = f"{point.name}: {value}; {write(low)}" + (f" to {write(high)}" if high > low else "")
    bars = ""
    if point.ends[0] < point.ends[1]:
        bottom, top = (f"{up(end):.1f}" for end in point.ends)
        bars = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
    kind = "point leader" if leads else "point best" if best else "point"
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6.5 if leads else 4.5}"/>'
    return f'<g class="{kind}"><title>{escape(title)}</title>{bars}{dot}</g>'


@dataclass(frozen=True)
class Box:
    """A rectangle that is taken."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        beside = self.left >= other.right or other.left >= self.right
        return not (beside or self.top >= other.bottom or other.top >= self.bottom)


def _labels(
    points: Sequence[MethodPoint], best: Sequence[MethodPoint], across: Scale, up: Scale, canvas: Canvas
) -> Iterator[str]:
    """Names beside the points, where there is room: the leader first, then the line, then the others by rank."""
    taken = [box for point in points for box in _taken(point, across, up)]
    taken += _along([(across(point.cost), up(point.value)) for point in best])
    leader = points[0]
    first = [leader, *(point for point in best if point is not leader)]
    for point in [*first, *(point for point in points if point not in first)]:
        name = point.name if len(point.name) <= LONGEST else point.name[: LONGEST - 1] + "…"
        number = f" {number_text(point.value, '.1f')}" if point in first or point is points[1] else ""
        width = LETTER * canvas.letters * (len(name) + len(number)) * (1.08 if point is leader else 1)
        places = _places(across(point.cost), up(point.value), width, canvas)
        free = ((box, anchor) for box, anchor in places if not any(box.meets(other) for other in taken))
        if (found := next(free, None)) is not None:
            taken.append(found[0])
            kind = "label leader" if point is leader else "label best" if point in best else "label"
            yield _label(*found, kind, name, number, canvas.letters)


def _label(box: Box, anchor: str, kind: str, name: str, number: str, letters: int) -> str:
    x = {"start": box.left, "middle": (box.left + box.right) / 2, "end": box.right}[anchor]
    place = f'x="{x:.1f}" y="{box.bottom - 0.28 * letters:.1f}" text-anchor="{anchor}"'
    value = f'<tspan class="value">{number}</tspan>' if number else ""
    return f'<text class="{kind}" {place}>{escape(name)}{value}</text>'


def _taken(point: MethodPoint, across: Scale, up: Scale) -> Iterator[Box]:
    x, y = across(point.cost), up(point.value)
    yield Box(x - 7, y - 7, x + 7, y + 7)
    if point.ends[0] < point.ends[1]:
        top, bottom = sorted(map(up, point.ends))
        yield Box(x - 1, top, x + 1, bottom)


def _along(corners: Sequence[tuple[float, float]]) -> Iterator[Box]:
    """What a line through these points takes, in short pieces."""
    for (x, y), (to_x, to_y) in pairwise(corners):
        pieces = max(1, math.ceil(math.hypot(to_x - x, to_y - y) / 4))
        for piece in range(pieces):
            at, by = x + (to_x - x) * piece / pieces, y + (to_y - y) * piece / pieces
            yield Box(at - 1, by - 1, at + 1, by + 1)


def _places(x: float, y: float, width: float, canvas: Canvas) -> Iterator[tuple[Box, str]]:
    """Where the label of a point may stand, the best place first; nothing that the edges would cut."""
    half, gap = 0.62 * canvas.letters, 9
    sides = [(x + gap, "start"), (x - gap - width, "end")]
    found = [(Box(left, y - half, left + width, y + half), anchor) for left, anchor in sides]
    for middle in (y - gap - half, y + gap + half):
        left = x - width / 2
        found.append((Box(left, middle - half, left + width, middle + half), "middle"))
        found += [(Box(at, middle - half, at + width, middle + half), anchor) for at, anchor in sides]
    for box, anchor in found:
        if box.left >= canvas.left and box.right <= canvas.width and box.bottom <= canvas.height - canvas.bottom:
            yield box, anchor
