"""What the runs of a cell recorded besides the accuracy matrix, as arrays over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ocil.evaluation.measures import Estimate, estimate, expected_calibration_error

if TYPE_CHECKING:
    from ocil.evaluation.record_types import AnytimeRecord
    from ocil.report.cells import MeasuredCell
    from ocil.runs.results import Result

Array = NDArray[np.float64]
MOST_POINTS = 400  # of a curve or a heat map: more cannot be told apart
MOST_CLASSES = 1000


@dataclass(frozen=True)
class OverTime:
    """Accuracy on the classes that have arrived, at points that all seeds have in common."""

    batches: tuple[int, ...]
    """Stream batches learned by then."""
    accuracy: tuple[Estimate, ...]
    reviews: tuple[int, ...] = ()
    """Batches after which a review took place, in the first seed."""
    tasks: tuple[int, ...] = ()
    """Batches with which a task ended, if these are the same in all seeds."""
    subset: int = 0
    """Test images that were used, if not all."""
    at_end: bool = True
    """Whether the last point is at the end of the stream, in all seeds."""


@dataclass(frozen=True)
class HeatMap:
    """Accuracy over time, a row per class, or per group of classes, in the order of arrival."""

    times: tuple[int, ...]
    accuracy: Array
    """``[rows, times]``, mean over seeds: row k is the k-th class to arrive. NaN before it has arrived."""
    rows: str
    """``classes``, ``domains`` or ``tasks``."""
    unit: str
    """What the times count."""


@dataclass(frozen=True)
class Confusion:
    """``[true class, predicted class]``: shares of the test images of a class, summed over seeds."""

    shares: Array
    by_arrival: bool
    """Whether classes are in the order of arrival, else by their number."""


@dataclass(frozen=True)
class Calibration:
    """Test images by the confidence of their prediction, summed over seeds: one value per bin that is not empty."""

    confidence: Array
    accuracy: Array
    error: float
    """Expected calibration error, the mean over seeds, as tables have it. That of all seeds together would be smaller:
    too much confidence of one seed makes up for too little of another."""


def shared_points(records: "Sequence[AnytimeRecord]") -> dict[int, list[float]]:
    """The accuracies of all seeds, by the number of batches, at points that they have in common: the stream of one seed
    may be shorter than that of another."""
    curves = [{point["batch"]: float(point["accuracy"]) for point in record.get("points", ())} for record in records]
    shared = sorted(set.intersection(*map(set, curves)))
    return {batch: [curve[batch] for curve in curves] for batch in shared}


def over_time(cell: "MeasuredCell") -> OverTime | None:
    """What a figure shows of ``curve_of`` the runs of a cell."""
    return curve_of(cell.anytime, MOST_POINTS)


def curve_of(records: "Sequence[AnytimeRecord]", most: int | None = None) -> OverTime | None:
    """Accuracy over time, at no more than ``most`` points. None unless all seeds have evaluations between tasks, two or
    more of them at the same batches."""
    points = shared_points(records)
    shared = _some(list(points), most or len(points))
    if len(shared) < 2:
        return None
    first, ends = records[0], {tuple(record.get("tasks", ())) for record in records}
    return OverTime(
        tuple(shared),
        tuple(estimate(points[batch]) for batch in shared),
        tuple(first.get("reviews", ())),
        next(iter(ends)) if len(ends) == 1 else (),
        first.get("subset", 0),
        all(shared[-1] >= each[-1] for each in ends if each),
    )


def heat_map(cell: "MeasuredCell") -> HeatMap | None:
    """Per domain in a stream of domains; else per class between tasks, per class after each task, or per task."""
    return _domains_anytime(cell) or _classes_anytime(cell) or _classes_by_task(cell) or _groups(cell)


def _domains_anytime(cell: "MeasuredCell") -> HeatMap | None:
    time, records = over_time(cell), cell.anytime
    if (
        time is None
        or cell.config.stream.scenario != "domain"
        or not all("domains_arrived" in each for each in records)
    ):
        return None
    if not 1 < len(records[0]["domains_arrived"]) <= MOST_CLASSES:
        return None
    found = []
    for record in records:
        points = {point["batch"]: point["correct_by_domain"] for point in record["points"]}
        correct = np.array([points[batch] for batch in time.batches], dtype=float).sum(axis=2).T
        tested = np.array(record["tested_by_domain"], dtype=float).sum(axis=1)
        arrived = np.array(record["domains_arrived"], dtype=float)
        found.append(_in_order(_share(correct, tested), arrived, np.array(time.batches, dtype=float)))
    return _mean_map(found, time.batches, "domains", "stream batches")


def _classes_anytime(cell: "MeasuredCell") -> HeatMap | None:
    time = over_time(cell)
    if time is None or not 1 < len(cell.runs[0].result.anytime["tested"]) <= MOST_CLASSES:
        return None
    found = []
    for run in cell.runs:
        record = run.result.anytime
        points = {point["batch"]: point["correct"] for point in record["points"]}
        correct = np.array([points[batch] for batch in time.batches], dtype=float).T
        tested, arrived = (np.array(record[name], dtype=float) for name in ("tested", "arrived"))
        found.append(_in_order(_share(correct, tested), arrived, np.array(time.batches, dtype=float)))
    return _mean_map(found, time.batches, "classes", "stream batches")


def _classes_by_task(cell: "MeasuredCell") -> HeatMap | None:
    found, tasks = [], cell.config.stream.tasks
    for run in cell.runs:
        result = run.result
        correct = [each["correct"] for each in result.evaluations if each.get("correct")]
        if len(correct) != tasks or tasks < 2 or not result.groups or not 1 < len(result.tested) <= MOST_CLASSES:
            return None
        arrived = np.full(len(result.tested), np.inf)
        for task, classes in enumerate(result.groups, 1):
            arrived[classes] = task
        share = _share(np.array(correct, dtype=float).T, np.array(result.tested, dtype=float))
        found.append(_in_order(share, arrived, np.arange(1, tasks + 1, dtype=float)))
    return _mean_map(found, range(1, tasks + 1), "classes", "tasks learned")


def _groups(cell: "MeasuredCell") -> HeatMap | None:
    matrices = [np.array(run.result.matrix, dtype=float) for run in cell.runs]
    rows, columns = matrices[0].shape
    if rows != columns or rows < 2 or rows > MOST_CLASSES:
        return None
    arrived, times = np.arange(1, rows + 1, dtype=float), np.arange(1, rows + 1, dtype=float)
    maps = [_in_order(matrix.T, arrived, times) for matrix in matrices]
    return _mean_map(maps, range(1, rows + 1), "tasks", "tasks learned")


def _in_order(accuracy: Array, arrived: Array, times: Array) -> Array:
    """Rows in the order of arrival, NaN at times before it."""
    order = np.argsort(arrived, kind="stable")
    return np.where(times[None] >= arrived[order][:, None], accuracy[order], np.nan)


def _share(correct: Array, tested: Array) -> Array:
    """Correct images of each class, ``[classes, times]``, by its test images; NaN for a class without any."""
    return np.asarray(correct / np.where(tested > 0, tested, np.nan)[:, None]).clip(0, 1)


def _mean_map(maps: Sequence[Array], times: Sequence[int], rows: str, unit: str) -> HeatMap | None:
    if len({each.shape for each in maps}) != 1:
        return None
    stack = np.stack(maps)
    known = ~np.isnan(stack)
    counts = known.sum(axis=0)
    mean = np.where(counts > 0, np.where(known, stack, 0.0).sum(axis=0) / np.maximum(counts, 1), np.nan)
    return HeatMap(tuple(times), mean, rows, unit)


def confusion(cell: "MeasuredCell") -> Confusion | None:
    """None unless all seeds recorded it, for as many classes."""
    results = [run.result for run in cell.runs]
    sizes = {len(result.confusion) for result in results}
    if len(sizes) > 1 or not 1 < max(sizes) <= MOST_CLASSES:
        return None
    counts = [np.array(result.confusion, dtype=float) for result in results]
    orders = [_order_of_arrival(result) for result in results]
    if by_arrival := all(order is not None for order in orders):
        pairs = zip(counts, orders, strict=True)
        counts = [each[np.ix_(order, order)] for each, order in pairs if order is not None]
    total = np.asarray(np.sum(counts, axis=0))
    return Confusion(total / np.maximum(total.sum(axis=1, keepdims=True), 1), by_arrival) if total.sum() else None


def _order_of_arrival(result: "Result") -> NDArray[np.int64] | None:
    """The classes in the order in which they first came, or by tasks; None if that is not known."""
    if arrived := result.anytime.get("arrived"):
        return np.argsort(arrived, kind="stable")
    classes = [name for group in result.groups for name in group]
    return np.array(classes) if len(classes) == len(result.tested) else None


def calibration(cell: "MeasuredCell") -> Calibration | None:
    """None unless all seeds recorded it."""
    found = [run.result.calibration for run in cell.runs]
    if not all(found):
        return None
    tables = [[each[name] for name in ("count", "correct", "confidence")] for each in found]
    count, correct, confidence = np.sum(np.array(tables, dtype=float), axis=0)
    errors = [error for each in found if (error := expected_calibration_error(each)) is not None]
    full = count > 0
    if not full.any():
        return None
    return Calibration(confidence[full] / count[full], correct[full] / count[full], float(np.mean(errors)))


def _some(values: Sequence[int], most: int) -> list[int]:
    """At most so many of them, at equal distances, with the first and the last."""
    if len(values) <= most:
        return list(values)
    places = np.linspace(0, len(values) - 1, most).round().astype(int)
    return [values[place] for place in places]
