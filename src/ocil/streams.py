"""The order in which images arrive."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil.data import CATALOG, Dataset
from ocil.errors import OcilError
from ocil.rng import derive

Boundary = Literal["clear", "blurry", "none", "iid"]
ClassOrder = Literal["fixed", "seeded"]


DEFAULT_TASKS = 5
MAX_EPOCHS = 10_000  # the order of all of them is drawn at once


@dataclass(frozen=True)
class StreamConfig:
    """How a dataset becomes a stream. The defaults are the paper's protocol."""

    tasks: int = 5
    """Number of class groups; they arrive one after the other and the accuracy matrix has one column for each."""
    batch_size: int = 10
    """Samples that arrive together."""
    class_order: ClassOrder = "fixed"
    """``fixed``: ascending labels, as in the paper. ``seeded``: shuffled by the seed."""
    boundary: Boundary = "clear"
    """``clear``: one task after the other. ``blurry``: a share of each task's samples changes places.
    ``none``: classes fade in and out and nobody announces a task. ``iid``: all classes mixed, for the upper bound."""
    blurry_share: float = 0.1
    """With ``blurry``: this share of each task's samples goes into one pool and is dealt out to all tasks again."""
    fade: float = 0.5
    """With ``none``: how far a class spreads in time, in units of the time one class takes."""
    epochs: int = 1
    """Passes over the data. Online learning has one; ``iid`` may have more."""
    drop_last: bool = True
    """Drop a task's incomplete last batch, as the published protocol does."""

    def __post_init__(self) -> None:
        for name, choices in (("boundary", get_args(Boundary)), ("class_order", get_args(ClassOrder))):
            if getattr(self, name) not in choices:
                raise OcilError(f"{name} = {getattr(self, name)!r} is not one of {', '.join(choices)}.")
        for name in ("tasks", "batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise OcilError(f"{name} = {getattr(self, name)} must be at least 1.")
        if not 0 <= self.blurry_share <= 1:
            raise OcilError(f"blurry_share = {self.blurry_share} must lie between 0 and 1.")
        if not self.fade >= 0:
            raise OcilError(f"fade = {self.fade} must not be negative.")
        if self.boundary == "none" and not self.fade:
            raise OcilError("fade = 0 with boundary = 'none' lets no class fade: give more, or boundary = 'clear'.")
        if self.epochs > MAX_EPOCHS:
            raise OcilError(f"epochs = {self.epochs} must be at most {MAX_EPOCHS:,}.")
        if self.epochs > 1 and self.boundary != "iid":
            raise OcilError("epochs > 1 needs boundary = 'iid': an online stream is seen once.")


@dataclass(frozen=True)
class Batch:
    """Images uint8 ``[B, H, W, C]`` and labels ``[B]`` on the device.

    ``checkpoint`` is the number of the class group that has just gone by (0, 1, ...) or None in between: time to
    evaluate. ``ends_task`` says that the stream announces it, so that methods may use it.
    """

    x: Tensor
    y: Tensor
    number: int
    checkpoint: int | None
    ends_task: bool


def usual_tasks(name: str, classes: int | None = None) -> int:
    """As many as the literature has for a dataset of the catalog, else five, if there are so many classes."""
    return CATALOG[name].tasks if name in CATALOG else min(DEFAULT_TASKS, classes or DEFAULT_TASKS)


class DeviceData:
    """A dataset's images on a device, as uint8: uploaded once, shared by every stream over it. No copy on a CPU."""

    def __init__(self, data: Dataset, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.train_x, self.train_y, self.test_x, self.test_y = (
            torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self.device)
            for array in (data.train_x, data.train_y, data.test_x, data.test_y)
        )


class Stream:
    """A dataset on a device, its images in arrival order. ``batches(start)`` goes on from any batch.

    The whole order is drawn from the seed at the start: two streams of the same dataset, configuration and seed are
    equal. ``resident`` shares images that are on the device already.
    """

    def __init__(
        self,
        data: Dataset,
        config: StreamConfig | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        resident: DeviceData | None = None,
    ) -> None:
        config = config or StreamConfig(tasks=usual_tasks(data.name, data.num_classes))
        if config.tasks > data.num_classes:
            raise OcilError(f"tasks = {config.tasks} is more than the {data.num_classes} classes of {data.name}.")
        self.data = data
        self.config = config
        self.resident = resident or DeviceData(data, device)
        self.device = self.resident.device
        classes = np.arange(data.num_classes)
        if config.class_order == "seeded":
            classes = np.random.default_rng(derive(seed, "class-order")).permutation(classes)
        self.groups: list[list[int]] = [group.tolist() for group in np.array_split(classes, config.tasks)]
        segments = _segments(data.train_y, self.groups, config, np.random.default_rng(derive(seed, "stream-order")))
        self.bounds, self._checkpoints = _batch_bounds([len(segment) for segment in segments], config)
        rows = 1 if config.boundary == "iid" else config.tasks
        if len(self._checkpoints) < rows or min(self._checkpoints) < 0:
            raise OcilError(f"batch_size = {config.batch_size} is more than a task of {data.name} holds.")
        self.order = torch.from_numpy(np.concatenate(segments)).to(self.device)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.bounds)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    @property
    def checkpoints(self) -> int:
        """How many times the learner is evaluated: the rows of the accuracy matrix."""
        return len(self._checkpoints)

    @property
    def announces_tasks(self) -> bool:
        return self.config.boundary != "none"

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for number in range(start, len(self)):
            checkpoint = self.checkpoint_after(number)
            yield Batch(*self.fetch(number), number, checkpoint, checkpoint is not None and self.announces_tasks)

    def fetch(self, number: int) -> tuple[Tensor, Tensor]:
        """Images and labels of one batch."""
        first, last = self.bounds[number]
        index = self.order[first:last]
        return self.resident.train_x[index], self.resident.train_y[index]

    def checkpoint_after(self, number: int) -> int | None:
        """The class group that is complete after a batch, if one is."""
        return self._checkpoints.get(number)

    def new_classes(self, checkpoint: int) -> list[int]:
        """The classes that the stream has just shown."""
        return sorted(chain(*self.groups)) if self.config.boundary == "iid" else self.groups[checkpoint]

    def old_classes(self, checkpoint: int) -> list[int]:
        return [] if self.config.boundary == "iid" else list(chain(*self.groups[:checkpoint]))


Indices = NDArray[np.int64]


def _segments(
    labels: Indices, groups: list[list[int]], config: StreamConfig, rng: np.random.Generator
) -> list[Indices]:
    """The sample numbers in arrival order, in pieces that no batch crosses."""
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


def _batch_bounds(lengths: list[int], config: StreamConfig) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """Where each batch begins and ends, and after which batches the learner is evaluated."""
    bounds: list[tuple[int, int]] = []
    last_batches: list[int] = []
    offset = 0
    for length in lengths:
        end = length - length % config.batch_size if config.drop_last else length
        bounds += [(offset + b, offset + min(b + config.batch_size, end)) for b in range(0, end, config.batch_size)]
        last_batches.append(len(bounds) - 1)
        offset += length
    if config.boundary == "none":  # nobody says where a task ends, so evaluate at equal distances
        last_batches = [len(bounds) * (part + 1) // config.tasks - 1 for part in range(config.tasks)]
    if config.boundary == "iid":
        last_batches = last_batches[-1:]
    return bounds, {batch: number for number, batch in enumerate(last_batches)}
