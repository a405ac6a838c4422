"""What the runs of a cell recorded besides the accuracy matrix, as arrays over seeds.

A file may hold anything: what is not of the shape that it should have counts as not recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.evaluation.measures import Estimate, estimate
from ocil.report.cells import FinishedRun, MeasuredCell

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
    """Batches with which a task ended."""
    subset: int = 0
    """Test images that were used, if not all."""


@dataclass(frozen=True)
class HeatMap:
    """Accuracy over time, a row per class, or per group of classes, in the order of arrival."""

    times: tuple[int, ...]
    accuracy: Array
    """``[rows, times]``, mean over seeds: row k is the k-th class to arrive. NaN before it has arrived."""
    rows: str
    """``classes`` or ``tasks``."""
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
    count: Array

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of confidence and accuracy, weighted by images."""
        return float((self.count * abs(self.confidence - self.accuracy)).sum() / self.count.sum())


def over_time(cell: MeasuredCell) -> OverTime | None:
    """None unless all seeds have evaluations between tasks, some of them at the same batches."""
    records = [run.result.anytime for run in cell.runs]
    if not all(record.get("points") for record in records):
        return None
    curves = [{point["batch"]: float(point["accuracy"]) for point in record["points"]} for record in records]
    shared = _some(sorted(set.intersection(*(set(curve) for curve in curves))))
    if len(shared) < 2:
        return None
    first = records[0]
    marks = {name: tuple(_some(_whole_numbers(first.get(name)))) for name in ("reviews", "tasks")}
    subset = first.get("subset")
    return OverTime(
        tuple(shared),
        tuple(estimate([curve[batch] for curve in curves]) for batch in shared),
        subset=subset if type(subset) is int and subset > 0 else 0,
        **marks,
    )


def heat_map(cell: MeasuredCell) -> HeatMap | None:
    """Per class between tasks, else per class after each task, else per group of classes after each task."""
    return _classes_anytime(cell) or _classes_by_task(cell) or _groups(cell)


def _classes_anytime(cell: MeasuredCell) -> HeatMap | None:
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


def _classes_by_task(cell: MeasuredCell) -> HeatMap | None:
    found, tasks = [], cell.config.stream.tasks
    for run in cell.runs:
        correct = _matrix([each.get("correct") for each in run.result.evaluations])
        tested, arrived = _matrix([run.record("tested")]), _arrival(run)
        if correct is None or tested is None or correct.shape[1] != tested.shape[1] or len(correct) != tasks:
            return None
        if not 1 < correct.shape[1] <= MOST_CLASSES or tasks < 2:
            return None
        if arrived is None or len(arrived) != correct.shape[1]:
            arrived = np.zeros(correct.shape[1])  # not known: all are shown from the first task on, by their number
        steps = np.array(_ends(run, tasks), dtype=float)
        found.append(_in_order(_share(correct.T, tested[0]), arrived, steps))
    return _mean_map(found, range(1, tasks + 1), "classes", "tasks learned")


def _groups(cell: MeasuredCell) -> HeatMap | None:
    matrices = [np.array(run.result.matrix, dtype=float) for run in cell.runs]
    rows, columns = matrices[0].shape
    if rows != columns or rows < 2 or rows > MOST_CLASSES:
        return None
    arrived, times = np.arange(1, rows + 1, dtype=float), np.arange(1, rows + 1, dtype=float)
    maps = [_in_order(matrix.T, arrived, times) for matrix in matrices]
    return _mean_map(maps, range(1, rows + 1), "tasks", "tasks learned")


def _ends(run: FinishedRun, tasks: int) -> list[float]:
    """When each task ended, in the unit of ``arrived``; far behind all arrivals, if that is not known."""
    ends = _whole_numbers((run.record("anytime") or {}).get("tasks"))
    return [float(end) for end in ends] if len(ends) == tasks else [np.inf] * tasks


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


def confusion(cell: MeasuredCell) -> Confusion | None:
    """None unless all seeds recorded it, for as many classes."""
    counts = [found for run in cell.runs if (found := _matrix(run.record("confusion"))) is not None]
    size = len(counts[0]) if counts else 0
    if len(counts) < len(cell.runs) or size < 2 or any(each.shape != (size, size) for each in counts):
        return None
    arrived = [found for run in cell.runs if (found := _arrival(run)) is not None and len(found) == size]
    by_arrival = len(arrived) == len(counts)
    if by_arrival:
        orders = [np.argsort(each, kind="stable") for each in arrived]
        counts = [each[np.ix_(order, order)] for each, order in zip(counts, orders, strict=True)]
    total = np.asarray(np.sum(counts, axis=0))
    if not total.sum():
        return None
    return Confusion(total / np.maximum(total.sum(axis=1, keepdims=True), 1), by_arrival)


def calibration(cell: MeasuredCell) -> Calibration | None:
    """None unless all seeds recorded it."""
    found = []
    for run in cell.runs:
        record = run.record("calibration")
        parts = [record.get(name) for name in ("count", "correct", "confidence")] if isinstance(record, Mapping) else []
        table = _matrix(parts) if parts else None
        if table is None or not table[0].sum() or (table[1:] > table[0] * (1 + 1e-6)).any():
            return None
        found.append(table)
    if len({table.shape for table in found}) != 1:
        return None
    count, correct, confidence = np.sum(found, axis=0)
    full = count > 0
    return Calibration(confidence[full] / count[full], correct[full] / count[full], count[full])


def _arrival(run: FinishedRun) -> Array | None:
    """When each class arrived; None if it was not recorded."""
    arrived = (run.record("anytime") or {}).get("arrived")
    return np.array(arrived, dtype=float) if arrived else None


def _matrix(value: Any) -> Array | None:
    """Lists of equally long lists of counts as an array; None if it is anything else."""
    if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
        return None
    if len({len(row) for row in value}) != 1 or len(value) * len(value[0]) > MOST_CLASSES**2:
        return None
    if not all(type(each) in (int, float) and 0 <= each < 1e15 for row in value for each in row):
        return None
    return np.array(value, dtype=float)


def _whole_numbers(value: Any) -> list[int]:
    """Numbers of batches, ascending; empty if it is anything else."""
    if not isinstance(value, list) or not all(type(each) is int and 0 < each < 1e12 for each in value):
        return []
    return sorted(set(value))


def _some(values: Sequence[int]) -> list[int]:
    """At most ``MOST_POINTS`` of them, at equal distances, with the first and the last."""
    if len(values) <= MOST_POINTS:
        return list(values)
    places = np.linspace(0, len(values) - 1, MOST_POINTS).round().astype(int)
    return [values[place] for place in places]
