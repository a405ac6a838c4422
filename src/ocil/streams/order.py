"""An order of arrival: which samples come in which batch, and where the learner is evaluated. It is drawn by one of
``ocil.streams.kinds``, or read from a file.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from ocil.data import Dataset
from ocil.data.archive import read_arrays
from ocil.errors import OcilError
from ocil.files import atomic_write
from ocil.streams.config import Boundary, Scenario, StreamConfig, TaskEnds

NUMBERS = ("samples", "batch_ends", "points", "group_of")
TEXTS = ("boundary", "images")
MORE_NUMBERS, MORE_TEXTS = ("labels", "arrival"), ("scenario", "task_ends")
"""What a file has only if it is not as usual. ``arrival``: all classes by group, if they do not ascend in each."""
AGAIN = "Write it again with Stream.save_order."

Indices = NDArray[np.int64]
T = TypeVar("T")


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
        arrays = _read(path)
        if digest and _digest(arrays) != digest:
            raise OcilError(f"{path} has changed since this was planned: give the same command again.")
        if str(arrays["images"]) != data.fingerprint:
            raise OcilError(f"{path} is an order of other data than {data.name}. Write one with Stream.save_order.")
        samples, ends, points, group_of = (arrays[key] for key in NUMBERS)
        scenario, task_ends, labels = _scenario(arrays), _task_ends(arrays), arrays.get("labels")
        units = data.num_domains if scenario == "domain" else data.num_classes
        count = min(int(group_of.max(initial=-1)) + 1, units)  # more would not fit, however many it names
        arrival = arrays.get("arrival", np.arange(len(group_of)))
        orderly = np.array_equal(np.sort(arrival), np.arange(len(group_of)))
        groups = [arrival[group_of[arrival] == group].tolist() for group in range(count if orderly else 0)]
        rows = 1 if str(arrays["boundary"]) == "iid" else len(groups)
        fits = (
            sum(map(len, groups)) == len(group_of) == units
            and all(groups)
            and len(ends) > 0
            and _within(samples, len(data.train_y))
            and (np.diff(ends, prepend=0) > 0).all()
            and ends[-1] == len(samples)
            and len(points) == rows
            and (np.diff(points, prepend=-1) > 0).all()
            and points[-1] == len(ends) - 1  # measures of the end are those of the last evaluation
            and (labels is None or (labels.shape == data.train_y.shape and _within(labels, data.num_classes)))
        )
        if not fits:
            raise OcilError(f"{path} is not an order of {data.name}: its numbers do not fit together. {AGAIN}")
        bounds = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
        return cls(samples, bounds, points.tolist(), groups, _boundary(arrays), scenario, task_ends, labels)

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
    def digest(self) -> str:
        """Short digest of which samples come when and with which labels, and of the classes of each group."""
        return _digest(self._arrays())

    def _arrays(self) -> dict[str, NDArray[Any]]:
        group_of = np.empty(sum(map(len, self.groups)), np.int64)
        for number, classes in enumerate(self.groups):
            group_of[classes] = number
        unusual: dict[str, NDArray[Any]] = {}
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


def settings_in(path: Path) -> dict[str, Any]:
    """The settings of a stream that an order file decides, and a digest of the file's content."""
    arrays = _read(path)
    sizes = np.diff(arrays["batch_ends"], prepend=0)
    return {
        "tasks": int(arrays["group_of"].max(initial=0)) + 1,
        "batch_size": max(1, int(sizes.max(initial=1))),
        "boundary": _boundary(arrays),
        "scenario": _scenario(arrays),
        "task_ends": _task_ends(arrays),
        "order_digest": _digest(arrays),
    }


def equal_distances(batches: int, count: int) -> list[int]:
    """The numbers of ``count`` batches at equal distances; the last one is the last of the stream."""
    return [batches * (part + 1) // count - 1 for part in range(count)]


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    sha = hashlib.sha256()
    for key in sorted(arrays.keys() - {"arrival"}):  # files from before have none, and replay the same batches
        sha.update(f"{key} {arrays[key].shape}".encode())
        sha.update(np.ascontiguousarray(arrays[key]).tobytes())
    return sha.hexdigest()[:12]


def _read(path: Path) -> dict[str, NDArray[Any]]:
    arrays = read_arrays(path, (*NUMBERS, *TEXTS), (*MORE_NUMBERS, *MORE_TEXTS), AGAIN)
    for key, array in arrays.items():
        numbers = key in (*NUMBERS, *MORE_NUMBERS)
        if array.ndim != numbers or (array.dtype != np.int64 if numbers else array.dtype.kind != "U"):
            raise OcilError(f"{path} is not an order: {key} is {array.dtype} {list(array.shape)}. {AGAIN}")
        if not numbers:
            _refuse_what_is_no_text(key, array, path)
    return arrays


def _refuse_what_is_no_text(key: str, array: NDArray[Any], path: Path) -> None:
    try:
        array.item().encode()
    except (ValueError, SystemError):  # code points outside Unicode, or half a pair
        raise OcilError(f"{path} is not an order: {key} is not text. {AGAIN}") from None


def _boundary(arrays: dict[str, NDArray[Any]]) -> Boundary:
    return _choice(arrays, "boundary", get_args(Boundary))


def _scenario(arrays: dict[str, NDArray[Any]]) -> Scenario:
    return _choice(arrays, "scenario", get_args(Scenario)) if "scenario" in arrays else "class"


def _task_ends(arrays: dict[str, NDArray[Any]]) -> TaskEnds:
    return _choice(arrays, "task_ends", get_args(TaskEnds)) if "task_ends" in arrays else "usual"


def _choice(arrays: dict[str, NDArray[Any]], key: str, known: tuple[T, ...]) -> T:
    for choice in known:
        if str(arrays[key]) == choice:
            return choice
    raise OcilError(f"an order has the {key} {str(arrays[key])[:20]!r}. {AGAIN}")


def _within(numbers: Indices, count: int) -> bool:
    return bool(((numbers >= 0) & (numbers < count)).all())
