"""Measures of accuracy over time, as pure functions of the record ``anytime`` of a result.

The record holds, for each evaluation point, how many test images of each class were classified correctly among those of
the classes that had arrived (``ocil.evaluation.anytime`` writes it). ``groups`` are the classes of each task, as in
``Result.groups``. Without them, tasks are of domains (``domain_groups`` of the record) if it has counts by domain.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocil.evaluation.record_types import AnytimeRecord

Groups = Sequence[Sequence[int]]


def area_under_accuracy(anytime: AnytimeRecord) -> float | None:
    """A_AUC of i-Blurry: the area under the curve of accuracy over stream samples, divided by the samples.

    Each point stands for the samples since the one before it. With points at equal distances it is their mean.
    """
    points = anytime.get("points", ())
    if not points:
        return None
    samples = [point.get("samples", point["batch"]) for point in points]
    widths = np.diff(samples, prepend=0)
    return float((widths * [point["accuracy"] for point in points]).sum() / samples[-1])


def average_anytime_accuracy(anytime: AnytimeRecord, groups: Groups = ()) -> float | None:
    """AAA of the survey: at each point the mean of the accuracies on the tasks that have begun, averaged over points.

    Without tasks it is the mean accuracy of the points.
    """
    points = anytime.get("points", ())
    if not points:
        return None
    if (found := _by_group(anytime, groups)) is None:
        return float(np.mean([point["accuracy"] for point in points]))
    begun = found.tested > 0
    return float((_share(found.correct, found.tested).sum(axis=1) / begun.sum(axis=1)).mean())


def lowest_anytime_accuracy(anytime: AnytimeRecord) -> float | None:
    """The smallest accuracy of all points."""
    return min((float(point["accuracy"]) for point in anytime.get("points", ())), default=None)


def minimum_accuracy(anytime: AnytimeRecord, groups: Groups = ()) -> float | None:
    """min-ACC of De Lange et al.: the lowest accuracy on each task since it ended, averaged over all but the last task.

    None if some task has no point after its end, or if there are not as many task ends as groups.
    """
    return _minimum_accuracy(_by_group(anytime, groups), anytime.get("tasks", ()))


def _minimum_accuracy(found: "_ByGroup | None", ends: Sequence[int]) -> float | None:
    if found is None or len(ends) != found.tested.shape[1] or len(ends) < 2:
        return None
    accuracy, lowest = _share(found.correct, found.tested), []
    for group, end in enumerate(ends[:-1]):
        later = (found.batches > end) & (found.tested[:, group] > 0)
        if not later.any():
            return None
        lowest.append(accuracy[later, group].min())
    return float(np.mean(lowest))


def worst_case_accuracy(anytime: AnytimeRecord, groups: Groups = ()) -> float | None:
    """WC-ACC of De Lange et al.: the last point's accuracy on the last task, and min-ACC on those before it, weighted
    by their numbers of tasks."""
    found = _by_group(anytime, groups)
    lowest = _minimum_accuracy(found, anytime.get("tasks", ()))
    if lowest is None or found is None or not found.tested[-1, -1]:
        return None
    tasks = found.tested.shape[1]
    return float(found.correct[-1, -1] / found.tested[-1, -1] / tasks + (1 - 1 / tasks) * lowest)


def stability_gap(anytime: AnytimeRecord) -> float | None:
    """How far accuracy on what is known falls after a task's end: that at the last point up to the end, less the lowest
    one on the same test images until the end of the next task, averaged over task ends. Below 0 if it only rises.
    """
    if not anytime.get("points") or (cells := _cells(anytime)) is None:
        return None
    ends, drops = anytime.get("tasks", ()), []
    for end, next_end in pairwise(ends):
        before = np.flatnonzero(cells.batches <= end)
        during = (cells.batches > end) & (cells.batches <= next_end)
        if not len(before) or not during.any():
            continue
        known = cells.arrived <= cells.batches[before[-1]]
        curve = cells.correct[:, known].sum(axis=1) / cells.tested[known].sum()
        drops.append(curve[before[-1]] - curve[during].min())
    return float(np.mean(drops)) if drops else None


class _Cells(NamedTuple):
    """Counts of the kinds of test images: by class, or by domain and class."""

    batches: NDArray[np.int64]
    """``[points]``: batches learned."""
    correct: NDArray[np.int64]
    """``[points, kinds]``"""
    tested: NDArray[np.int64]
    """``[kinds]``"""
    arrived: NDArray[np.int64]
    """``[kinds]``: the number of batches after which they are tested."""
    domains: int
    """0 if there are none."""


def _cells(anytime: AnytimeRecord) -> _Cells | None:
    points = anytime["points"]
    if "arrived" not in anytime or "correct" not in points[0]:
        return None
    batches, arrived = np.array([point["batch"] for point in points]), np.array(anytime["arrived"])
    if not anytime.get("tested_by_domain"):
        correct = np.array([point["correct"] for point in points])
        return _Cells(batches, correct, np.array(anytime["tested"]), arrived, 0)
    tested, domains = np.array(anytime["tested_by_domain"]), np.array(anytime["domains_arrived"])
    correct = np.array([point["correct_by_domain"] for point in points]).reshape(len(points), -1)
    since = np.maximum(arrived[None, :], domains[:, None])
    return _Cells(batches, correct, tested.ravel(), since.ravel(), len(domains))


class _ByGroup(NamedTuple):
    batches: NDArray[np.int64]
    correct: NDArray[np.int64]
    """``[points, groups]``"""
    tested: NDArray[np.int64]
    """``[points, groups]``: images of what has arrived by then."""


def _by_group(anytime: AnytimeRecord, groups: Groups) -> _ByGroup | None:
    if not anytime.get("points") or (cells := _cells(anytime)) is None or not (groups or cells.domains):
        return None
    classes = len(anytime["tested"])
    if groups:
        member = np.tile(_membership(classes, groups), (max(1, cells.domains), 1))
    else:
        tasks = anytime.get("domain_groups") or [[domain] for domain in range(cells.domains)]
        member = np.repeat(_membership(cells.domains, tasks), classes, axis=0)
    here = (cells.arrived[None, :] <= cells.batches[:, None]) * cells.tested[None, :]
    return _ByGroup(cells.batches, cells.correct @ member, here @ member)


def _membership(count: int, groups: Groups) -> NDArray[np.int64]:
    """``[count, groups]``: 1 where a class or domain is in a group."""
    member = np.zeros((count, len(groups)), dtype=np.int64)
    for group, names in enumerate(groups):
        member[list(names), group] = 1
    return member


def _share(correct: NDArray[np.int64], tested: NDArray[np.int64]) -> NDArray[np.float64]:
    """Accuracies: correct images divided by tested ones, 0 where nothing was tested."""
    return np.asarray(correct / np.maximum(tested, 1))
