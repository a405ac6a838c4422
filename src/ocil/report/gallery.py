"""Which figures a report has, from what was measured, and what each of them says."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ocil.metrics import Estimate
from ocil.report import drawings
from ocil.report.collect import LABEL_FREE, Cell, Collection, memory_of, title_of, written
from ocil.report.comparison import Table, counterpart, difference
from ocil.report.drawings import draw

SHOWN = ("er", "er-rv", "afs")  # the rows of the paper's figures on task-recency bias
CROWD = 8  # with more lines than this, a method is shown with the review trick only


@dataclass(frozen=True)
class Drawing:
    """A figure: a file name without ending, its title, what it shows, its SVG, and the group it stands with."""

    name: str
    title: str
    caption: str
    svg: str
    group: str
    place: "Place | None" = None
    """What it is about; a memory of 0 means all sizes, None no dataset in particular."""


class Gallery:
    """Collects drawings under names of their own."""

    def __init__(self) -> None:
        self.drawings: list[Drawing] = []

    def add(
        self,
        group: str,
        name: str,
        title: str,
        caption: str,
        paint: Callable[..., Any],
        *args: Any,
        place: "Place | None" = None,
    ) -> None:
        name = re.sub(r"[^A-Za-z0-9]+", "-", name)[:100].strip("-") or "figure"
        taken = {drawing.name for drawing in self.drawings}
        free = next(n for n in (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        svg = draw(paint, *args) if args else _drawn(paint)
        self.drawings.append(Drawing(free, title, caption, svg, group, place))


@cache
def _drawn(paint: Callable[[], Any]) -> str:
    """Of a figure that is computed, not measured: always the same."""
    return draw(paint)


def gallery(collection: Collection, table1: Table) -> list[Drawing]:
    """Every figure there are numbers for, in the order of the paper."""
    shown = Gallery()
    places = list(_places(table1))
    for place, cells in places:
        _bias(shown, place, cells)
    _formulas(shown)
    for place, cells in places:
        _accuracy(shown, place, cells)
        _balance(shown, place, cells)
    _times(shown, collection)
    _memory_batch(shown, collection)
    _differences(shown, collection)
    return shown.drawings


@dataclass(frozen=True)
class Place:
    """A dataset and memory size."""

    dataset: str
    memory: int

    @property
    def title(self) -> str:
        return title_of(self.dataset) + (f", memory {self.memory}" if self.memory else "")

    @property
    def slug(self) -> str:
        return Path(self.dataset).stem + (f"-m{self.memory}" if self.memory else "")


def _places(table: Table) -> Iterator[tuple[Place, dict[str, Cell]]]:
    """The measured rows of each column of Table I, the bounds first."""
    for part in table.parts:
        bounds = {row.name: cell for row in part.bounds if (cell := row.entries[0].cell)}
        for number, column in enumerate(part.columns):
            rows = {row.name: cell for row in part.rows if (cell := row.entries[number].cell)}
            if rows:
                yield Place(column.dataset, column.memory), bounds | rows
        if not part.columns and bounds:
            yield Place(part.bounds[0].entries[0].column.dataset, 0), bounds


def _bias(shown: Gallery, place: Place, cells: Mapping[str, Cell]) -> None:
    first: dict[str, str] = {}
    for name, cell in cells.items():
        first.setdefault(cell.config.label, name)
    rows = {first[label]: cells[first[label]] for label in SHOWN if label in first}
    for quantity, what in (("mean_weight", "mean weight"), ("mean_logit", "mean logit")):
        known = {n: c for n, c in rows.items() if np.isfinite(drawings.over_seeds(c, f"{quantity}_new")).any()}
        if known:
            where = {
                "mean_weight": "in the last layer, bias included,",
                "mean_logit": "over the test samples of all classes so far,",
            }[quantity]
            shown.add(
                "bias", f"{what}s-{place.slug}", f"{what.capitalize()}s of old and new classes, {place.title}",
                f"The {what} {where} of the classes just learned (solid) and of all before them (dashed). "
                f"The further apart, the more a learner leans to new classes. {_seeds(known.values())}",
                drawings.old_and_new, known, quantity, what, place=place,
            )  # fmt: skip
    known = {n: c for n, c in rows.items() if np.isfinite(drawings.over_seeds(c, "hard")).any()}
    if known:
        shown.add(
            "bias", f"sample-types-{place.slug}", f"Hard, ambiguous and easy samples, {place.title}",
            "How many training samples of the newest classes have a true-class score in each range, after each task. "
            + _seeds(known.values()),
            drawings.sample_types, known, place=place,
        )  # fmt: skip


def _formulas(shown: Gallery) -> None:
    shown.add(
        "losses", "losses", "Cross-entropy, focal and revised focal loss",
        "By the score of the true class, two classes, alpha 1. The band is where samples are ambiguous: there the "
        "revised focal loss (RFL) has the larger gradient, while focal loss (FL) favours hard samples. Computed, not "
        "measured.",
        drawings.losses,
    )  # fmt: skip
    shown.add(
        "losses", "label-distribution", "What the two regularisers pull to",
        "Target probabilities of label smoothing (LSR) and of the virtual teacher (VKD) for ten classes, C3 the true "
        "one; the two scales differ. Computed, not measured.",
        drawings.label_distribution,
    )  # fmt: skip


def _accuracy(shown: Gallery, place: Place, cells: Mapping[str, Cell]) -> None:
    rows = {name: cell for name, cell in cells.items() if len(cell.summary.accuracy_curve) > 1}
    left_out = ""
    if len(rows) > CROWD:
        rows = {name: cell for name, cell in rows.items() if f"{name}-rv" not in rows and not name.endswith("-no-rv")}
        left_out = "Methods that were run with and without the review trick are shown with it. "
    if rows:
        shown.add(
            "accuracy", f"accuracy-{place.slug}", f"Accuracy after each task, {place.title}",
            f"Mean accuracy over all classes so far; the band is the 95 % interval. {left_out}{_seeds(rows.values())}",
            drawings.accuracy, {name: cell.summary.accuracy_curve for name, cell in rows.items()}, place=place,
        )  # fmt: skip


def _balance(shown: Gallery, place: Place, cells: Mapping[str, Cell]) -> None:
    points: dict[str, tuple[Estimate, Estimate]] = {}
    for name, cell in cells.items():
        x, y = cell.summary.average_intransigence, cell.summary.average_forgetting
        if x is not None and y is not None:
            points[name] = (x, y)
    if len(points) > 1:
        shown.add(
            "balance", f"intransigence-forgetting-{place.slug}", f"Intransigence against forgetting, {place.title}",
            "The nearer to the lower left, the better old and new are balanced. Lines are 95 % intervals. "
            + _seeds(cells[name] for name in points),
            drawings.balance, points, place=place,
        )  # fmt: skip


def _times(shown: Gallery, collection: Collection) -> None:
    """One figure a dataset, memory and device: times on two devices say nothing of the methods. Nor do those of runs
    that had others of all kinds beside them; where a cell had the device for itself, the time for all of it is known.
    """
    groups: dict[tuple[str, int, str], list[Cell]] = {}
    for dataset, memory in collection.places:
        for cell in collection.of(dataset, memory):
            surroundings = [run.result.environment for run in cell.runs]
            if all("seconds_for_all" in known or "side_by_side" not in known for known in surroundings):
                groups.setdefault((dataset, memory, cell.devices), []).append(cell)
    for (dataset, memory, device), cells in groups.items():
        place = Place(dataset, memory)
        times = {_name(cell): cell.summary.wall_seconds for cell in cells}
        if len(times) > 1 and any(memory_of(cell.config) for cell in cells):  # not of the bounds alone
            shown.add(
                "time", f"running-time-{place.slug}-{device}", f"Running time, {place.title}, {device}",
                "Training and evaluation of one run. The seeds of a cell may have shared the device, so these may be "
                "times of a run among its like, not of a run alone.",
                drawings.running_time, times, place=place,
            )  # fmt: skip


def _memory_batch(shown: Gallery, collection: Collection) -> None:
    for dataset, memory in collection.places:
        curves: dict[str, dict[int, Estimate]] = {}
        for cell in collection.of(dataset, memory):
            if memory_of(cell.config) and not set(cell.changed) - LABEL_FREE - {"memory_batch"}:
                name = _name(cell, without={"memory_batch"})
                curves.setdefault(name, {})[cell.config.learner.memory_batch] = cell.summary.average_accuracy
        curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
        if curves:
            place = Place(dataset, memory)
            shown.add(
                "memory-batch", f"memory-batch-{place.slug}", f"Retrieved batch size, {place.title}",
                "Average accuracy at the end by how many images are drawn from the memory for each stream batch.",
                drawings.memory_batch, curves, place=place,
            )  # fmt: skip


def _differences(shown: Gallery, collection: Collection) -> None:
    groups: dict[str, dict[str, tuple[float, float | None]]] = {}
    for cell in collection.cells:
        value, paper = cell.summary.average_accuracy, counterpart(cell)
        gap = difference(value, paper)
        if paper is None or gap is None:
            continue
        reach = None if value.interval is None else 100 * value.interval + paper.interval
        memory = f", {memory_of(cell.config)}" if memory_of(cell.config) else ""
        groups.setdefault(cell.config.dataset, {})[_name(cell) + memory] = (gap, reach)
    for dataset, rows in groups.items():
        shown.add(
            "difference", f"difference-{Path(dataset).stem}", f"Measured less published, {title_of(dataset)}",
            "A bar is the sum of the two 95 % intervals, so it reaches zero where they overlap; a diamond marks those "
            "that do not. Rows are named by method, what differs from its defaults, and memory.",
            drawings.differences, rows, place=Place(dataset, 0),
        )  # fmt: skip


def _name(cell: Cell, without: Set[str] = frozenset()) -> str:
    """A cell in a figure: its label and, in brackets, what differs from the defaults; a precision needs no name."""
    words = [
        str(value) if name == "precision" else written({name: value})
        for name, value in cell.changed.items()
        if name not in without
    ]
    return f"{cell.config.label} ({', '.join(words)})" if words else cell.config.label


def _seeds(cells: Iterable[Cell]) -> str:
    counts = sorted({len(cell.runs) for cell in cells})
    if counts == [1]:
        return "One seed."
    return f"{counts[0]} seeds." if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds."


def examples(cell: str, place: str, groups: Mapping[str, Sequence[drawings.Example]]) -> Drawing:
    """Training images of the task before the last by the score of their true class."""
    shown = Gallery()
    shown.add(
        "examples", f"examples-{cell}", f"Hard, ambiguous and easy samples: {place}",
        "Training images of the task before the last, after the last was learned, from low to high score of their true "
        "class (above each image; its class below). Of several runs the last decides of what kind a sample is.",
        drawings.examples, groups,
    )  # fmt: skip
    return shown.drawings[0]
