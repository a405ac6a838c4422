"""Which figures a report has, from what was measured, with their titles and captions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ocil.evaluation.measures import Estimate
from ocil.methods.review_label import Label
from ocil.report import formulas, plots
from ocil.report.cells import INPUT, UNNAMED, Collection, MeasuredCell, MeasuredColumn, settings_text
from ocil.report.comparison import difference, published_accuracy
from ocil.report.drawings import (
    CROWD,
    Drawing,
    Sketch,
    draw,
    file_name,
    has_tasks,
    seeds_of,
    sketch_of,
    uncrowded,
    units_of,
    with_looks,
)
from ocil.report.papers import Paper
from ocil.report.record_figures import sketches_of_records
from ocil.report.rendering import OnFigure, ignore
from ocil.report.standings import Standings
from ocil.report.style import render
from ocil.text import escaped

MOST_CURVES = 12
MOST_COLUMNS = 24  # columns with figures of their own, those with most methods
MOST_ACCURATE = 3  # methods in figures of old and new classes, where no paper chooses them


@cache
def _rendered_once(paint: Callable[[], Any]) -> str:
    """The SVG of a figure that is computed and not measured, so it never changes."""
    return render(paint)


def draw_all(
    collection: Collection, standings: Standings, paper: Paper, workers: int = 1, progress: OnFigure = ignore
) -> list[Drawing]:
    """Every figure there are numbers for. Many are drawn in up to ``workers`` processes."""
    columns = [(column, cells) for column in standings.entries.columns if (cells := standings.entries.at(column))]
    largest = sorted((column for column, _ in columns), key=lambda column: -len(standings.entries.at(column)))[
        :MOST_COLUMNS
    ]
    columns = [(column, cells) for column, cells in columns if column in largest]
    bounds = {entry.name for entry in standings.entries.all if entry.bound}
    of_columns: list[Sketch] = []
    for column, cells in columns:
        few = uncrowded(cells)
        of_columns += [*_accuracy(column, few), *sketches_of_records(column, standings), *_balance(column, few)]
        of_columns += _bias(column, few, paper, bounds)
    others = [*_times(collection), *_memory_batch(collection), *_differences(collection, paper)]
    best_first = sorted(standings.ordered, key=lambda entry: entry.bound)
    found = draw(with_looks([*of_columns, *others], [entry.name for entry in best_first]), workers, progress)
    found[len(of_columns) : len(of_columns)] = [_formula(name) for name in paper.formulas]
    taken: set[str] = set()
    for number, drawing in enumerate(found):
        names = (drawing.name, *(f"{drawing.name}-{again}" for again in range(2, number + 3)))
        found[number] = replace(drawing, name=next(name for name in names if name not in taken))
        taken.add(found[number].name)
    return found


def _formula(name: str) -> Drawing:
    title, caption, paint = FORMULA_FIGURES[name]
    return Drawing(file_name(name), title, caption, _rendered_once(paint), paint)


def _bias(
    column: MeasuredColumn, cells: Mapping[str, MeasuredCell], paper: Paper, bounds: Set[str]
) -> Iterator[Sketch]:
    rows = _rows_of_labels(cells, paper.recency_bias)
    rows = rows or _most_accurate({name: cell for name, cell in cells.items() if name not in bounds})

    def having(number: str) -> dict[str, MeasuredCell]:
        return {name: cell for name, cell in rows.items() if np.isfinite(cell.over_seeds(number)).any()}

    for what, where in (
        ("mean weight", "in the last layer, bias included,"),
        ("mean logit", "over the test samples of all classes so far,"),
    ):
        quantity = what.replace(" ", "_")
        if known := having(f"{quantity}_new"):
            yield sketch_of(
                column,
                f"{what}s",
                f"{what.capitalize()}s of old and new classes",
                f"The {what} {where} of the classes just learned (solid) and of all before them (dashed). "
                f"The further apart, the more a learner leans to new classes. {seeds_of(known.values())}",
                plots.old_and_new,
                {
                    n: (cell.over_seeds(f"{quantity}_old"), cell.over_seeds(f"{quantity}_new"))
                    for n, cell in known.items()
                },
                what,
                told_apart=[known],
            )
    if known := having("hard"):
        yield sketch_of(
            column,
            "sample-types",
            "Hard, ambiguous and easy samples",
            "How many training samples of the newest classes have a true-class score in each range, after each task. "
            + seeds_of(known.values()),
            plots.sample_types,
            {name: {kind: cell.over_seeds(kind) for kind in plots.SAMPLE_TYPES} for name, cell in known.items()},
            told_apart=[known],
        )


def _rows_of_labels(cells: Mapping[str, MeasuredCell], labels: Iterable[str]) -> dict[str, MeasuredCell]:
    """The first row of each label."""
    first: dict[str, str] = {}
    for name, cell in cells.items():
        first.setdefault(cell.label, name)
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


def _accuracy(column: MeasuredColumn, cells: Mapping[str, MeasuredCell]) -> Iterator[Sketch]:
    rows = {name: cell for name, cell in cells.items() if len(cell.summary.accuracy_curve) > 1}
    left_out = ""
    if len(rows) > CROWD:
        rows = _with_review(rows)
        left_out = "Methods that were run with and without the review trick are shown with it. "
        best = sorted(rows, key=lambda name: -rows[name].summary.average_accuracy.mean)[:MOST_CURVES]
        left_out += f"The {len(best)} most accurate ones. " if len(best) < len(rows) else ""
        rows = {name: cell for name, cell in rows.items() if name in best}
    if rows:
        yield sketch_of(
            column,
            "accuracy",
            "Accuracy after each task" if has_tasks(rows.values()) else "Accuracy at equal distances",
            f"Mean accuracy over the tasks so far; the band is the 95 % interval. {left_out}{seeds_of(rows.values())}",
            plots.accuracy,
            {name: cell.summary.accuracy_curve for name, cell in rows.items()},
            units_of(rows.values()),
            "tasks learned" if has_tasks(rows.values()) else "evaluations",
            told_apart=[rows],
        )


def _with_review(cells: Mapping[str, MeasuredCell]) -> dict[str, MeasuredCell]:
    """The cells without those that are there with the review trick too, under a name that is else the same."""
    labels = {name: Label.parse(cell.label) for name, cell in cells.items()}
    behind = {name: name.removeprefix(cell.label) for name, cell in cells.items()}

    def is_shown(name: str) -> bool:
        of, review = labels[name]
        others = {None: (Label(of, True),), True: (), False: (Label(of),)}[review]
        return not any(f"{other}{behind[name]}" in cells for other in others)

    return {name: cell for name, cell in cells.items() if is_shown(name)}


def _balance(column: MeasuredColumn, cells: Mapping[str, MeasuredCell]) -> Iterator[Sketch]:
    points: dict[str, tuple[Estimate, Estimate]] = {}
    for name, cell in cells.items():
        x, y = cell.summary.average_intransigence, cell.summary.average_forgetting
        if x is not None and y is not None:
            points[name] = (x, y)
    if len(points) > 1:
        yield sketch_of(
            column,
            "intransigence-forgetting",
            "Intransigence against forgetting",
            "The nearer to the lower left, the better old and new are balanced. Lines are 95 % intervals. "
            + seeds_of(cells[name] for name in points),
            plots.balance,
            points,
            told_apart=[points],
        )


def _times(collection: Collection) -> Iterator[Sketch]:
    """One figure per dataset, memory and device, since times on two devices do not compare methods.

    Neither do times of runs that shared a device with runs of other cells. Where a cell had the device for itself, the
    time for all its seeds is known.
    """
    groups: dict[tuple[MeasuredColumn, str], list[MeasuredCell]] = {}
    for column in collection.columns:
        for cell in collection.at(column):
            surroundings = [run.result.environment for run in cell.runs]
            if all("seconds_for_all" in known or "side_by_side" not in known for known in surroundings):
                groups.setdefault((column, cell.devices), []).append(cell)
    for (column, device), cells in groups.items():
        times = {_name(cell): cell.summary.wall_seconds for cell in cells}
        if len(times) > 1 and any(cell.column.memory for cell in cells):  # not of the bounds alone
            yield sketch_of(
                column,
                "running-time",
                "Running time",
                "Training and evaluation of one run. The seeds of a cell may have shared the device, so these may be "
                "times of a run among its like, not of a run alone.",
                plots.running_time,
                times,
                device=device,
            )


def _memory_batch(collection: Collection) -> Iterator[Sketch]:
    for column in collection.columns:
        curves: dict[str, dict[int, Estimate]] = {}
        for cell in collection.at(column):
            if cell.column.memory and not set(cell.changed) - UNNAMED - INPUT - {"memory_batch"}:
                name = _name(cell, without={"memory_batch"})
                curves.setdefault(name, {})[cell.config.learner.memory_batch] = cell.summary.average_accuracy
        curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
        if curves:
            yield sketch_of(
                column,
                "memory-batch",
                "Retrieved batch size",
                "Average accuracy at the end by how many images are drawn from the memory for each stream batch.",
                plots.memory_batch,
                curves,
                told_apart=[curves],
            )


def _differences(collection: Collection, paper: Paper) -> Iterator[Sketch]:
    groups: dict[str, dict[str, tuple[float, float | None]]] = {}
    for cell in collection.cells:
        value, published = cell.summary.average_accuracy, published_accuracy(cell, paper)
        points = difference(value, published)
        if published is None or points is None:
            continue
        known = value.shown_interval is not None and published.interval is not None
        reach = 100 * (value.shown_interval or 0) + (published.interval or 0) if known else None
        memory = f", {cell.column.memory}" if cell.column.memory else ""
        groups.setdefault(cell.config.dataset, {})[_name(cell) + memory] = (points, reach)
    for dataset, rows in groups.items():
        yield sketch_of(
            MeasuredColumn(dataset, 0),
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
        if name not in without and name not in INPUT
    ]
    return escaped(f"{cell.label} ({', '.join(words)})" if words else cell.label)
