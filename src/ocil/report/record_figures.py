"""Which figures there are of what was recorded besides the accuracy matrix, with their titles and captions."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from itertools import accumulate
from typing import TypeVar

from ocil.evaluation.measures import mean_of
from ocil.report import record_plots, records
from ocil.report.cells import MeasuredCell, MeasuredColumn
from ocil.report.cost import bytes_kept, images_per_batch, run_images
from ocil.report.drawings import CROWD, Sketch, has_tasks, seeds_of, sketch_of, uncrowded, units_of
from ocil.report.formatting import range_note
from ocil.report.standings import Standings

MOST_CURVES = 8
MOST_PANELS = 3
MOST_POINTS = 60
SAME_COST = 0.02  # relative: settings that differ by less in their cost are one point
Recorded = TypeVar("Recorded")


def sketches_of_records(column: MeasuredColumn, standings: Standings) -> Iterator[Sketch]:
    """The figures of one column, for the methods that stand best in it."""
    everything = _best_first(column, standings)
    cells = uncrowded(everything)
    yield from _over_time(column, cells)
    yield from _heat_maps(column, cells)
    yield from _confusions(column, cells)
    yield from _reliability(column, cells)
    yield from _paired(column, standings)
    yield from _costs(column, everything)


def _best_first(column: MeasuredColumn, standings: Standings) -> dict[str, MeasuredCell]:
    """Ranked methods by accuracy; the reference of the standings, if it was chosen, comes first. No bounds."""
    found = {entry.name: entry.cells[column] for entry in standings.entries.ranked if column in entry.cells}
    first = standings.entries.named(standings.chosen).name if standings.chosen else ""
    order = sorted(found, key=lambda name: (name != first, -found[name].summary.average_accuracy.mean))
    return {name: found[name] for name in order}


def _first(found: Mapping[str, Recorded | None], most: int) -> dict[str, Recorded]:
    known = {name: each for name, each in found.items() if each is not None}
    return {name: known[name] for name in list(known)[:most]}


def _over_time(column: MeasuredColumn, cells: Mapping[str, MeasuredCell]) -> Iterator[Sketch]:
    curves = _first({name: records.over_time(cell) for name, cell in cells.items()}, MOST_CURVES)
    if not curves:
        return
    shown = [cells[name] for name in curves]
    units, marks = units_of(shown), ""
    if any(curve.tasks for curve in curves.values()):
        marks += f" Vertical lines are {'ends of tasks' if has_tasks(shown) else 'evaluations of the accuracy matrix'}."
    if any(curve.reviews for curve in curves.values()):
        marks += " Triangles are reviews."
    subset = max(curve.subset for curve in curves.values())
    tested = f" On {subset:,} test images that were drawn once." if subset else ""
    yield sketch_of(
        column,
        "over-time",
        "Accuracy over time",
        f"Mean accuracy on the {units} that have arrived; the band is the 95 % interval.{marks}{tested} "
        + seeds_of(shown),
        record_plots.over_time,
        curves,
        units,
        told_apart=[curves],
    )


def _heat_maps(column: MeasuredColumn, cells: Mapping[str, MeasuredCell]) -> Iterator[Sketch]:
    few = dict(list(cells.items())[:MOST_PANELS])
    found = _first({name: records.heat_map(cell) for name, cell in few.items()}, MOST_PANELS)
    if not found:
        return
    kind = next(iter(found.values())).rows
    found = {name: each for name, each in found.items() if each.rows == kind}
    what, row = {
        "classes": ("class", "class"),
        "domains": ("domain", "domain"),
        "tasks": ("task", "group of classes that came with one task"),
    }[kind]
    yield sketch_of(
        column,
        f"accuracy-per-{what}",
        f"Accuracy per {what} over time",
        f"A row per {row}, the first to arrive on top; grey before it has arrived. "
        f"{_which(found, cells)}{seeds_of(cells[name] for name in found)}",
        record_plots.heat_maps,
        found,
    )


def _which(found: Mapping[str, object], cells: Mapping[str, MeasuredCell]) -> str:
    return f"The {len(found)} best of {len(cells)} methods. " if 1 < len(found) < len(cells) else ""


def _confusions(column: MeasuredColumn, cells: Mapping[str, MeasuredCell]) -> Iterator[Sketch]:
    found = _first({name: records.confusion(cell) for name, cell in cells.items()}, MOST_PANELS)
    if found:
        yield sketch_of(
            column,
            "confusion",
            "Confusion at the end",
            "Where the test images of each class (a row) end up. Bright columns on the right mean that old classes are "
            f"taken for new ones. {_which(found, cells)}{seeds_of(cells[name] for name in found)}",
            record_plots.confusions,
            found,
        )


def _reliability(column: MeasuredColumn, cells: Mapping[str, MeasuredCell]) -> Iterator[Sketch]:
    found = _first({name: records.calibration(cell) for name, cell in cells.items()}, MOST_CURVES)
    if found:
        yield sketch_of(
            column,
            "calibration",
            "Calibration at the end",
            "How often predictions of a confidence are right. Below the dotted line a method trusts itself too much. "
            + seeds_of(cells[name] for name in found),
            record_plots.reliability,
            found,
            told_apart=[found],
        )


def _paired(column: MeasuredColumn, standings: Standings) -> Iterator[Sketch]:
    reference = standings.reference(column)
    found = {
        entry.name: difference
        for entry in standings.ordered
        if not entry.bound
        and (number := standings.numbers[entry.name].get(column))
        and (difference := number.difference)
    }
    if reference is None or standings.quantity.form != "percent" or not found:
        return
    cells = uncrowded({name: entry.cells[column] for entry in standings.ordered if (name := entry.name) in found})
    found = {name: found[name] for name in cells}
    ordered = sorted(found, key=lambda name: -found[name].mean)
    left_out = f" The {MOST_POINTS} nearest of {len(found)}." if len(found) > MOST_POINTS else ""
    near = sorted(found, key=lambda name: abs(found[name].mean))[:MOST_POINTS]
    yield sketch_of(
        column,
        "paired-differences",
        f"Difference to {reference.name}",
        "Over the seeds that both have, with the 95 % interval. A diamond marks an interval that leaves out zero."
        + range_note(found.values())
        + left_out,
        record_plots.paired,
        {name: found[name] for name in ordered if name in near},
        f"points of {standings.quantity.title.removesuffix(' %')} against {reference.name}",
    )


def _costs(column: MeasuredColumn, cells: Mapping[str, MeasuredCell]) -> Iterator[Sketch]:
    passed = {name: _mean([run_images(run) for run in cell.runs]) for name, cell in cells.items()}
    per_batch = {name: images_per_batch(cell) for name, cell in cells.items()}
    caption = "Images that pass forward and backward; forward alone counts a third."
    if _known(passed) > _known(per_batch):  # not where older runs, which have no record of it, would be left out
        yield from _against_cost(column, cells, "compute", passed, "images passed", f"{caption} As recorded.")
    else:
        caption += " As the methods state it, with the share of reviews where it is known."
        yield from _against_cost(column, cells, "compute", per_batch, "images passed per stream batch", caption)
    kept = {name: _mean([bytes_kept(run) for run in cell.runs]) for name, cell in cells.items()}
    caption = "Stored samples, weights, optimiser and whatever else a learner keeps, as recorded."
    yield from _against_cost(column, cells, "bytes", kept, "bytes kept", caption)


def _against_cost(
    column: MeasuredColumn,
    cells: Mapping[str, MeasuredCell],
    kind: str,
    costs: Mapping[str, float | None],
    label: str,
    caption: str,
) -> Iterator[Sketch]:
    """Accuracy against one kind of cost, if that differs. ``costs``: of each cell, None where it is not known."""
    known = {name: cost for name, cost in costs.items() if cost is not None and cost > 0}
    varied = _varied({name: cells[name] for name in known}, known)
    shown = _apart({name: cells[name] for name in known}, varied)
    if len({known[name] for name in shown}) < 2:
        return
    curves = {
        title: [(known[name], cells[name].summary.average_accuracy) for name in names]
        for title, names in _curves(shown, varied).items()
    }
    lines = [title for title, points in curves.items() if len(points) > 1]
    yield sketch_of(
        column,
        f"accuracy-against-{kind}",
        f"Accuracy against {kind}",
        f"{caption} The upper left is best. Bars are 95 % intervals; a line joins settings of one method. "
        + seeds_of(shown.values()),
        record_plots.against_cost,
        curves,
        label,
        told_apart=[curves, lines],
    )


def _known(values: Mapping[str, float | None]) -> int:
    return sum(value is not None for value in values.values())


def _varied(cells: Mapping[str, MeasuredCell], costs: Mapping[str, float]) -> set[str]:
    """The cells with another cost than that of their method's own settings; of each method those that change the same
    settings as most of them."""
    own = {cell.label: costs[name] for name, cell in cells.items() if not cell.learner_settings}
    found: dict[str, dict[frozenset[str], list[str]]] = {}
    for name, cell in cells.items():
        if cell.learner_settings and abs(costs[name] / own.get(cell.label, math.inf) - 1) > SAME_COST:
            found.setdefault(cell.label, {}).setdefault(frozenset(cell.learner_settings), []).append(name)
    return {name for by_settings in found.values() for name in max(by_settings.values(), key=len)}


def _apart(cells: Mapping[str, MeasuredCell], varied: Set[str]) -> dict[str, MeasuredCell]:
    """What a figure of costs shows: all if they are few, else each method with its own settings, and the ``varied``
    ones. A method is drawn with all its points or not at all, the most accurate first."""
    chosen = {
        name: cell for name, cell in cells.items() if len(cells) <= CROWD or not cell.learner_settings or name in varied
    }
    methods = Counter(cell.label for cell in chosen.values())
    drawn = {
        label
        for label, all_before in zip(methods, accumulate(methods.values()), strict=True)
        if all_before <= MOST_POINTS
    }
    return {name: cell for name, cell in chosen.items() if cell.label in drawn}


def _curves(cells: Mapping[str, MeasuredCell], varied: Set[str]) -> dict[str, list[str]]:
    """The names of cells by the curve they belong to: a method with its own settings and with one setting varied."""
    curves: dict[str, list[str]] = {}
    for name, cell in cells.items():
        joined = not cell.learner_settings or name in varied
        curves.setdefault(cell.label if joined else name, []).append(name)
    return {names[0] if len(names) == 1 else title: names for title, names in curves.items()}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean_of(known) if known and len(known) == len(values) else None
