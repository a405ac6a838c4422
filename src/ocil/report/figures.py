"""Which figures a report has, from what was measured, with their titles and captions."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ocil.evaluation.measures import Estimate
from ocil.methods.review_label import Label
from ocil.report import formulas, plots
from ocil.report.cells import UNNAMED, Collection, MeasuredCell, Place, settings_text
from ocil.report.comparison import ComparedTable, difference, published_accuracy
from ocil.report.papers import Paper
from ocil.report.style import render

CROWD = 8  # with more lines than this, a method is shown with the review trick only
MOST_ACCURATE = 3  # methods in figures of old and new classes, where no paper chooses them


@dataclass(frozen=True)
class Drawing:
    """A figure that was rendered: a file name without ending, its title, what it shows, and its SVG."""

    name: str
    title: str
    caption: str
    svg: str
    place: Place | None = None
    """The dataset and memory it is about; None where it is about none in particular."""
    photos: bool = False
    """Whether it holds images, whose colours a page must not change."""


def _drawing(
    place: Place, name: str, title: str, caption: str, paint: Callable[..., Any], *args: Any, device: str = ""
) -> Drawing:
    """A figure about a place, which its name and title end with, and about a device if one is given."""
    name, title = f"{name}-{place.slug}-{device}", ", ".join(filter(None, (title, place.title, device)))
    return Drawing(file_name(name), title, caption, render(paint, *args), place)


def file_name(text: str) -> str:
    """Letters, digits and hyphens, whatever the text is."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text)[:100].strip("-") or "figure"


@cache
def _rendered_once(paint: Callable[[], Any]) -> str:
    """The SVG of a figure that is computed and not measured, so it never changes."""
    return render(paint)


def draw_all(collection: Collection, tables: Sequence[ComparedTable], paper: Paper) -> list[Drawing]:
    """Every figure there are numbers for. ``tables`` begins with that of all methods."""
    places = list(_columns(tables[0])) if tables else []
    found = [drawing for place, cells in places for drawing in _bias(place, cells, paper)]
    for name in paper.formulas:
        title, caption, paint = FORMULA_FIGURES[name]
        found.append(Drawing(file_name(name), title, caption, _rendered_once(paint)))
    for place, cells in places:
        found += [*_accuracy(place, cells), *_balance(place, cells)]
    found += [*_times(collection), *_memory_batch(collection), *_differences(collection, paper)]
    taken: set[str] = set()
    for number, drawing in enumerate(found):
        names = (drawing.name, *(f"{drawing.name}-{again}" for again in range(2, number + 3)))
        found[number] = replace(drawing, name=next(name for name in names if name not in taken))
        taken.add(found[number].name)
    return found


def _columns(compared: ComparedTable) -> Iterator[tuple[Place, dict[str, MeasuredCell]]]:
    """The measured rows of each column, the bounds first."""
    for grid in compared.grids:
        bounds = {row.name: cell for row in grid.bounds if (cell := row.numbers[0].cell)}
        for number, column in enumerate(grid.columns):
            rows = {row.name: cell for row in grid.rows if (cell := row.numbers[number].cell)}
            if rows:
                yield Place(column.dataset, column.memory), bounds | rows
        if not grid.columns and bounds:
            yield Place(grid.bounds[0].numbers[0].column.dataset, 0), bounds


def _bias(place: Place, cells: Mapping[str, MeasuredCell], paper: Paper) -> Iterator[Drawing]:
    rows = _rows_of_labels(cells, paper.recency_bias) if paper.recency_bias else _most_accurate(cells)

    def having(number: str) -> dict[str, MeasuredCell]:
        return {name: cell for name, cell in rows.items() if np.isfinite(cell.over_seeds(number)).any()}

    for what, where in (
        ("mean weight", "in the last layer, bias included,"),
        ("mean logit", "over the test samples of all classes so far,"),
    ):
        quantity = what.replace(" ", "_")
        if known := having(f"{quantity}_new"):
            yield _drawing(
                place,
                f"{what}s",
                f"{what.capitalize()}s of old and new classes",
                f"The {what} {where} of the classes just learned (solid) and of all before them (dashed). "
                f"The further apart, the more a learner leans to new classes. {_seeds(known.values())}",
                plots.old_and_new,
                known,
                quantity,
                what,
            )
    if known := having("hard"):
        yield _drawing(
            place,
            "sample-types",
            "Hard, ambiguous and easy samples",
            "How many training samples of the newest classes have a true-class score in each range, after each task. "
            + _seeds(known.values()),
            plots.sample_types,
            known,
        )


def _rows_of_labels(cells: Mapping[str, MeasuredCell], labels: Iterable[str]) -> dict[str, MeasuredCell]:
    """The first row of each label."""
    first: dict[str, str] = {}
    for name, cell in cells.items():
        first.setdefault(cell.config.label, name)
    return {first[label]: cells[first[label]] for label in labels if label in first}


def _most_accurate(cells: Mapping[str, MeasuredCell]) -> dict[str, MeasuredCell]:
    best = sorted(cells, key=lambda name: -cells[name].summary.average_accuracy.mean)[:MOST_ACCURATE]
    return {name: cell for name, cell in cells.items() if name in best}


FORMULA_FIGURES: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "losses": (
        "Cross-entropy, focal and revised focal loss",
        "By the score of the true class, two classes, alpha 1. The band is where samples are ambiguous: there the "
        "revised focal loss (RFL) has the larger gradient, while focal loss (FL) favours hard samples. Computed, not "
        "measured.",
        formulas.losses,
    ),
    "label-distribution": (
        "What the two regularisers pull to",
        "Target probabilities of label smoothing (LSR) and of the virtual teacher (VKD) for ten classes, C3 the true "
        "one; the two scales differ. Computed, not measured.",
        formulas.label_distribution,
    ),
}


def _accuracy(place: Place, cells: Mapping[str, MeasuredCell]) -> Iterator[Drawing]:
    rows = {name: cell for name, cell in cells.items() if len(cell.summary.accuracy_curve) > 1}
    left_out = ""
    if len(rows) > CROWD:
        labels = {name: Label.parse(name) for name in rows}
        twice = {label.method for label in labels.values() if label.review}
        rows = {n: cell for n, cell in rows.items() if n not in twice and labels[n].review is not False}
        left_out = "Methods that were run with and without the review trick are shown with it. "
    if rows:
        yield _drawing(
            place,
            "accuracy",
            "Accuracy after each task",
            f"Mean accuracy over all classes so far; the band is the 95 % interval. {left_out}{_seeds(rows.values())}",
            plots.accuracy,
            {name: cell.summary.accuracy_curve for name, cell in rows.items()},
        )


def _balance(place: Place, cells: Mapping[str, MeasuredCell]) -> Iterator[Drawing]:
    points: dict[str, tuple[Estimate, Estimate]] = {}
    for name, cell in cells.items():
        x, y = cell.summary.average_intransigence, cell.summary.average_forgetting
        if x is not None and y is not None:
            points[name] = (x, y)
    if len(points) > 1:
        yield _drawing(
            place,
            "intransigence-forgetting",
            "Intransigence against forgetting",
            "The nearer to the lower left, the better old and new are balanced. Lines are 95 % intervals. "
            + _seeds(cells[name] for name in points),
            plots.balance,
            points,
        )


def _times(collection: Collection) -> Iterator[Drawing]:
    """One figure per dataset, memory and device, since times on two devices do not compare methods.

    Neither do times of runs that shared a device with runs of other cells. Where a cell had the device for itself, the
    time for all its seeds is known.
    """
    groups: dict[tuple[Place, str], list[MeasuredCell]] = {}
    for place in collection.places:
        for cell in collection.at(place):
            surroundings = [run.result.environment for run in cell.runs]
            if all("seconds_for_all" in known or "side_by_side" not in known for known in surroundings):
                groups.setdefault((place, cell.devices), []).append(cell)
    for (place, device), cells in groups.items():
        times = {_name(cell): cell.summary.wall_seconds for cell in cells}
        if len(times) > 1 and any(cell.place.memory for cell in cells):  # not of the bounds alone
            yield _drawing(
                place,
                "running-time",
                "Running time",
                "Training and evaluation of one run. The seeds of a cell may have shared the device, so these may be "
                "times of a run among its like, not of a run alone.",
                plots.running_time,
                times,
                device=device,
            )


def _memory_batch(collection: Collection) -> Iterator[Drawing]:
    for place in collection.places:
        curves: dict[str, dict[int, Estimate]] = {}
        for cell in collection.at(place):
            if cell.place.memory and not set(cell.changed) - UNNAMED - {"memory_batch"}:
                name = _name(cell, without={"memory_batch"})
                curves.setdefault(name, {})[cell.config.learner.memory_batch] = cell.summary.average_accuracy
        curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
        if curves:
            yield _drawing(
                place,
                "memory-batch",
                "Retrieved batch size",
                "Average accuracy at the end by how many images are drawn from the memory for each stream batch.",
                plots.memory_batch,
                curves,
            )


def _differences(collection: Collection, paper: Paper) -> Iterator[Drawing]:
    groups: dict[str, dict[str, tuple[float, float | None]]] = {}
    for cell in collection.cells:
        value, published = cell.summary.average_accuracy, published_accuracy(cell, paper)
        points = difference(value, published)
        if published is None or points is None:
            continue
        known = value.interval is not None and published.interval is not None
        reach = 100 * (value.interval or 0) + (published.interval or 0) if known else None
        memory = f", {cell.place.memory}" if cell.place.memory else ""
        groups.setdefault(cell.config.dataset, {})[_name(cell) + memory] = (points, reach)
    for dataset, rows in groups.items():
        yield _drawing(
            Place(dataset, 0),
            "difference",
            "Measured less published",
            "A bar is the sum of the two 95 % intervals, so it reaches zero where they overlap; a diamond marks those "
            "that do not. Rows are named by method, what differs from its defaults, and memory.",
            plots.differences,
            rows,
        )


def _name(cell: MeasuredCell, without: Set[str] = frozenset()) -> str:
    """The name of a cell in a figure: its label and, in brackets, what differs from the defaults."""
    words = [
        str(value) if name == "precision" else settings_text({name: value})
        for name, value in cell.changed.items()
        if name not in without
    ]
    return f"{cell.config.label} ({', '.join(words)})" if words else cell.config.label


def _seeds(cells: Iterable[MeasuredCell]) -> str:
    counts = sorted({len(cell.runs) for cell in cells})
    if counts == [1]:
        return "One seed."
    return f"{counts[0]} seeds." if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds."
