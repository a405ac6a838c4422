"""An order of arrival from numbers of samples that somebody else has chosen, task by task."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ocil.data import Dataset
from ocil.data.class_names import some
from ocil.errors import OcilError
from ocil.limits import whole
from ocil.streams.choices import TaskEnds
from ocil.streams.order import Indices, Order, tasks_of


def order_of(data: Dataset, tasks: Iterable[Any], batch_size: int, task_ends: TaskEnds = "usual") -> Order:
    """The order in which these samples of a dataset come, cut into batches. The last batch of a task may be smaller.

    ``tasks``: for each task the numbers of its training samples, in the order of their arrival. A sample may come more
    than once. A task that brings no new class belongs to the one before.
    """
    batch_size = whole("batch_size", batch_size, least=1)
    if isinstance(tasks, Mapping) or not isinstance(tasks, Iterable):
        kind = type(tasks).__name__
        raise OcilError(f"give a list with the numbers of the samples of each task as tasks, not {kind}.")
    parts = [_numbers(given, number, len(data.train_y)) for number, given in enumerate(tasks)]
    if not parts:
        raise OcilError("there are no tasks: give for each task the numbers of its training samples.")
    samples = np.concatenate(parts)
    _refuse_absent_classes(data, samples)
    bounds, named, start = [], [], 0
    for number, part in enumerate(parts):
        end = start + len(part)
        cuts = [(first, min(first + batch_size, end)) for first in range(start, end, batch_size)]
        bounds += cuts
        named += [number] * len(cuts)
        start = end
    labels = data.train_y[samples]
    points, groups = tasks_of([set(labels[first:last].tolist()) for first, last in bounds], named)
    return Order(samples, bounds, points, groups, "clear", task_ends=task_ends)


def _numbers(given: Any, task: int, count: int) -> Indices:
    """The numbers of the samples of a task. ``OcilError`` if they are not numbers of training samples."""
    try:
        found = np.asarray(given if hasattr(given, "__array__") else list(given))
    except (TypeError, ValueError, RuntimeError):  # a single number, or numbers beside lists of them
        found = np.empty(0)
    if found.ndim == 1 and found.dtype.kind == "b":
        raise OcilError(
            f"task {task} is a mask of yes and no: give the numbers of its samples, as np.flatnonzero does."
        )
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu":
        raise OcilError(f"task {task} is not a list of numbers of training samples, with at least one.")
    if found.min() < 0 or found.max() >= count:
        raise OcilError(
            f"task {task} has sample {int(found.min() if found.min() < 0 else found.max())}, "
            f"but the training samples have the numbers 0 to {count - 1}."
        )
    return found.astype(np.int64)


def _refuse_absent_classes(data: Dataset, samples: Indices) -> None:
    absent = np.setdiff1d(np.arange(data.num_classes), data.train_y[samples])
    if absent.size:
        names = some([data.classes[label] for label in absent])
        raise OcilError(
            f"no task has a sample of the {'class' if len(absent) == 1 else 'classes'} {names}: "
            "give samples of all classes, or make a dataset without those that are not to come."
        )
