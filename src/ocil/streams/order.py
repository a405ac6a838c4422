"""An order of arrival: which samples come in which batch, and where the learner is evaluated. It is drawn by one of
``ocil.streams.kinds``, or read from a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.files import atomic_write
from ocil.streams.choices import Boundary, Scenario, TaskEnds
from ocil.streams.config import StreamConfig
from ocil.streams.order_file import (
    AGAIN,
    NUMBERS,
    Arrays,
    boundary_of,
    digest_of,
    read_order,
    scenario_of,
    task_ends_of,
)

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Order:
    """The order in which the training samples of a dataset arrive.

    It says all that a stream has to know: a new kind of stream is a function that returns an ``Order``.
    """

    samples: Indices
    """Numbers of training samples, in the order of their arrival."""
    bounds: Sequence[tuple[int, int]]
    """Where each batch begins and ends in ``samples``."""
    points: Sequence[int]
    """The numbers of the batches after which the learner is evaluated."""
    groups: list[list[int]]
    """The classes of each group; with the scenario ``domain``, its domains."""
    boundary: Boundary
    """How one task turns into the next. See ``StreamConfig``."""
    scenario: Scenario = "class"
    """What is new in a task. See ``StreamConfig``."""
    task_ends: TaskEnds = "usual"
    """Whether methods hear that a task is over. See ``StreamConfig``."""
    labels: Indices | None = None
    """The label with which each training sample of the dataset comes, by its number, if some of them are wrong."""

    @classmethod
    def from_file(cls, path: Path, data: Dataset, digest: str = "") -> "Order":
        """The order that ``save`` wrote. ``OcilError`` if it is of other data, or not an order of these.

        ``digest``: that of the content which is expected, if it is known.
        """
        arrays = read_order(path)
        if digest and digest_of(arrays) != digest:
            raise OcilError(
                f"{path} has changed since this was planned: plan it again, by the same command or by ocil.resolve."
            )
        if str(arrays["images"]) != data.fingerprint:
            raise OcilError(f"{path} is an order of other data than {data.name}. Write one with Stream.save_order.")
        samples, ends, points, group_of = (arrays[key] for key in NUMBERS)
        boundary, scenario, labels = boundary_of(arrays), scenario_of(arrays), arrays.get("labels")
        units = data.num_domains if scenario == "domain" else data.num_classes
        groups = _groups(group_of, arrays.get("arrival"), units)
        fits = (
            len(groups) > 0
            and _within(samples, len(data.train_y))
            and _ascend(ends, 1, len(samples))
            and _ascend(points, 0, len(ends) - 1)  # measures of the end are those of the last evaluation
            and len(points) == (1 if boundary == "iid" else len(groups))
            and (labels is None or (labels.shape == data.train_y.shape and _within(labels, data.num_classes)))
        )
        if not fits:
            raise OcilError(f"{path} is not an order of {data.name}: its numbers do not fit together. {AGAIN}")
        bounds = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
        return cls(samples, bounds, points.tolist(), groups, boundary, scenario, task_ends_of(arrays), labels)

    def save(self, path: Path, data: Dataset) -> None:
        """Write an .npz file from which ``from_file`` reads the same order. Samples that never arrive are left out."""
        with atomic_write(path) as file:
            arrays: dict[str, Any] = {**self._arrays(), "images": np.array(data.fingerprint)}
            np.savez(file, **arrays)

    @property
    def config(self) -> StreamConfig:
        """The settings that this order decides."""
        size = max(last - first for first, last in self.bounds)
        more: dict[str, Any] = {"boundary": self.boundary, "scenario": self.scenario, "task_ends": self.task_ends}
        return StreamConfig(len(self.groups), size, drop_last=False, **more)

    @property
    def arriving(self) -> Indices:
        """Numbers of the training samples that come in some batch, ascending: a dropped last batch has no others."""
        return np.unique(np.concatenate([self.samples[first:last] for first, last in self.bounds]))

    @property
    def dropped(self) -> int:
        """How many training samples come in no batch: those of incomplete last ones, unless another epoch has them."""
        whole = sum(last - first for first, last in self.bounds) == len(self.samples)
        return 0 if whole else len(np.unique(self.samples)) - len(self.arriving)

    @cached_property
    def digest(self) -> str:
        """Short digest of which samples come when and with which labels, and of the classes of each group."""
        return digest_of(self._arrays())

    def _arrays(self) -> Arrays:
        group_of = np.empty(sum(map(len, self.groups)), np.int64)
        for number, classes in enumerate(self.groups):
            group_of[classes] = number
        unusual: Arrays = {}
        if self.scenario != "class":
            unusual["scenario"] = np.array(self.scenario)
        if self.task_ends != "usual":
            unusual["task_ends"] = np.array(self.task_ends)
        if self.labels is not None:
            unusual["labels"] = self.labels
        if any(group != sorted(group) for group in self.groups):
            unusual["arrival"] = np.array(list(chain(*self.groups)), dtype=np.int64)
        return unusual | {
            "samples": np.concatenate([self.samples[first:last] for first, last in self.bounds]),
            "batch_ends": np.cumsum([last - first for first, last in self.bounds], dtype=np.int64),
            "points": np.array(self.points, dtype=np.int64),
            "group_of": group_of,
            "boundary": np.array(self.boundary),
        }


def equal_distances(batches: int, count: int) -> list[int]:
    """The numbers of ``count`` batches at equal distances; the last one is the last of the stream."""
    return [batches * (part + 1) // count - 1 for part in range(count)]


def tasks_of(batches: list[set[int]], named: list[Any] | None) -> tuple[list[int], list[list[int]]]:
    """The last batch of each task, and the classes that are new in it, in the order of their arrival.

    ``batches``: the classes of each batch. ``named``: what tells the task of each batch; without it, a task ends where
    no class that has come comes again. A task that brings no new class belongs to the one before.
    """
    last = {label: number for number, batch in enumerate(batches) for label in batch}
    points: list[int] = []
    groups: list[list[int]] = []
    seen: set[int] = set()
    new: list[int] = []
    latest = 0
    for number, batch in enumerate(batches):
        new += sorted(batch - seen)
        seen |= batch
        latest = max([latest, *(last[label] for label in batch)])
        final = number + 1 == len(batches)
        ends = latest == number if named is None else final or named[number + 1] != named[number]
        if not ends and not final:
            continue
        if new:
            points.append(number)
            groups.append(new)
            new = []
        else:
            points[-1] = number
    return points, groups


def _groups(group_of: Indices, arrival: Indices | None, units: int) -> list[list[int]]:
    """The classes, or domains, of each group in the order of their arrival; none if the numbers do not fit together.

    ``arrival``: all of them by group; None: they ascend in each group. ``units``: how many the dataset has.
    """
    ascending = np.arange(len(group_of))
    arrival = ascending if arrival is None else arrival
    if not np.array_equal(np.sort(arrival), ascending):
        return []
    count = min(int(group_of.max(initial=-1)) + 1, units)  # more would not fit, however many it names
    groups: list[list[int]] = [arrival[group_of[arrival] == group].tolist() for group in range(count)]
    return groups if sum(map(len, groups)) == len(group_of) == units and all(groups) else []


def _ascend(numbers: Indices, least: int, last: int) -> bool:
    """Whether these are ascending numbers from ``least`` on, of which the last one is ``last``."""
    return len(numbers) > 0 and bool((np.diff(numbers, prepend=least - 1) > 0).all()) and numbers[-1] == last


def _within(numbers: Indices, count: int) -> bool:
    return bool(((numbers >= 0) & (numbers < count)).all())
