"""An order of arrival: which samples come in which batch, and where the learner is evaluated. Drawn, or read from a
file.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ocil.data import Dataset
from ocil.data.archive import read_arrays
from ocil.errors import OcilError
from ocil.files import atomic_write
from ocil.rng import derive
from ocil.streams.config import Boundary, StreamConfig

NUMBERS = ("samples", "batch_ends", "points", "group_of")
TEXTS = ("boundary", "images")
AGAIN = "Write it again with Stream.save_order."

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
    """The classes of each group."""
    boundary: Boundary
    """How one task turns into the next. See ``StreamConfig``."""

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
        count = min(int(group_of.max(initial=-1)) + 1, data.num_classes)  # more would not fit, however many it names
        groups = [np.flatnonzero(group_of == group).tolist() for group in range(count)]
        rows = 1 if str(arrays["boundary"]) == "iid" else len(groups)
        fits = (
            sum(map(len, groups)) == len(group_of) == data.num_classes
            and all(groups)
            and len(ends) > 0
            and ((samples >= 0) & (samples < len(data.train_y))).all()
            and (np.diff(ends, prepend=0) > 0).all()
            and ends[-1] == len(samples)
            and len(points) == rows
            and (np.diff(points, prepend=-1) > 0).all()
            and points[-1] < len(ends)
        )
        if not fits:
            raise OcilError(f"{path} is not an order of {data.name}: its numbers do not fit together. {AGAIN}")
        bounds = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
        return cls(samples, bounds, points.tolist(), groups, _boundary(arrays))

    def save(self, path: Path, data: Dataset) -> None:
        """Write an .npz file from which ``from_file`` reads the same order. Samples that never arrive are left out."""
        with atomic_write(path) as file:
            arrays: dict[str, Any] = {**self._arrays(), "images": np.array(data.fingerprint)}
            np.savez(file, **arrays)

    @property
    def config(self) -> StreamConfig:
        """The settings that this order decides."""
        size = max(last - first for first, last in self.bounds)
        return StreamConfig(len(self.groups), size, boundary=self.boundary, drop_last=False)

    @property
    def digest(self) -> str:
        """Short digest of all of it."""
        return _digest(self._arrays())

    def _arrays(self) -> dict[str, NDArray[Any]]:
        group_of = np.empty(sum(map(len, self.groups)), np.int64)
        for number, classes in enumerate(self.groups):
            group_of[classes] = number
        return {
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
        "order_digest": _digest(arrays),
    }


def draw(data: Dataset, config: StreamConfig, seed: int) -> Order:
    """The order of a configuration and a seed."""
    classes = np.arange(data.num_classes)
    if config.class_order == "seeded":
        classes = np.random.default_rng(derive(seed, "class-order")).permutation(classes)
    groups: list[list[int]] = [group.tolist() for group in np.array_split(classes, config.tasks)]
    segments = _segments(data.train_y, groups, config, np.random.default_rng(derive(seed, "stream-order")))
    bounds, points = _batch_bounds([len(segment) for segment in segments], config)
    rows = 1 if config.boundary == "iid" else config.tasks
    if len(set(points)) < rows or min(points) < 0:
        raise OcilError(f"batch_size = {config.batch_size} is more than a task of {data.name} holds.")
    return Order(np.concatenate(segments), bounds, points, groups, config.boundary)


def _segments(
    labels: Indices, groups: list[list[int]], config: StreamConfig, rng: np.random.Generator
) -> list[Indices]:
    """The indices of the samples in arrival order, in segments that no batch crosses."""
    if config.boundary == "iid":
        return [rng.permutation(len(labels)) for _ in range(config.epochs)]
    if config.boundary == "none":
        place = np.empty(sum(map(len, groups)))
        place[list(chain(*groups))] = np.arange(len(place))
        time = place[labels] + rng.random(len(labels)) + config.fade * rng.standard_normal(len(labels))
        return [np.argsort(time, kind="stable")]
    tasks = [rng.permutation(np.flatnonzero(np.isin(labels, group))) for group in groups]
    if config.boundary == "blurry":
        # The first share of each shuffled task goes into one pool and is dealt out again.
        shares = [round(config.blurry_share * len(task)) for task in tasks]
        pool = rng.permutation(np.concatenate([task[:share] for task, share in zip(tasks, shares, strict=True)]))
        dealt = np.split(pool, np.cumsum(shares)[:-1])
        tasks = [rng.permutation(np.concatenate([d, t[len(d) :]])) for d, t in zip(dealt, tasks, strict=True)]
    return tasks


def _batch_bounds(lengths: list[int], config: StreamConfig) -> tuple[list[tuple[int, int]], list[int]]:
    """Where each batch begins and ends, and after which batches the learner is evaluated."""
    bounds: list[tuple[int, int]] = []
    last_batches: list[int] = []
    offset = 0
    for length in lengths:
        end = length - length % config.batch_size if config.drop_last else length
        bounds += [(offset + b, offset + min(b + config.batch_size, end)) for b in range(0, end, config.batch_size)]
        last_batches.append(len(bounds) - 1)
        offset += length
    if config.boundary == "none":  # no task ends here, so evaluate at equal distances
        last_batches = equal_distances(len(bounds), config.tasks)
    if config.boundary == "iid":
        last_batches = last_batches[-1:]
    return bounds, last_batches


def equal_distances(batches: int, count: int) -> list[int]:
    """The numbers of ``count`` batches at equal distances; the last one is the last of the stream."""
    return [batches * (part + 1) // count - 1 for part in range(count)]


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    sha = hashlib.sha256()
    for key in sorted(arrays):
        sha.update(f"{key} {arrays[key].shape}".encode())
        sha.update(np.ascontiguousarray(arrays[key]).tobytes())
    return sha.hexdigest()[:12]


def _read(path: Path) -> dict[str, NDArray[Any]]:
    arrays = read_arrays(path, (*NUMBERS, *TEXTS), (), AGAIN)
    for key, array in arrays.items():
        if array.ndim != (key in NUMBERS) or (array.dtype != np.int64 if key in NUMBERS else array.dtype.kind != "U"):
            raise OcilError(f"{path} is not an order: {key} is {array.dtype} {list(array.shape)}. {AGAIN}")
    return arrays


def _boundary(arrays: dict[str, NDArray[Any]]) -> Boundary:
    known: tuple[Boundary, ...] = get_args(Boundary)
    for boundary in known:
        if str(arrays["boundary"]) == boundary:
            return boundary
    raise OcilError(f"an order has the boundary {str(arrays['boundary'])[:20]!r}. {AGAIN}")
