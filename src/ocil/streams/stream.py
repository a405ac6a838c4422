"""The order in which images arrive."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
# Metadata of fields that concern online methods only, or offline methods only: see ``ocil.runs.config.concerns``.
BOUNDARIES: Mapping[str, str] = {"concerns": "boundaries"}
EPOCHS: Mapping[str, str] = {"concerns": "epochs"}
DEFAULT_TASKS = 5
MAX_EPOCHS = 10_000  # the order of all epochs is drawn at once


@dataclass(frozen=True)
class StreamConfig:
    """How a dataset becomes a stream. The defaults are the paper's protocol."""

    tasks: int = 5
    """Number of class groups. They arrive one after the other; the accuracy matrix has one column per group."""
    batch_size: int = 10
    """Samples that arrive together."""
    class_order: ClassOrder = "fixed"
    """``fixed``: ascending labels, as in the paper. ``seeded``: shuffled by the seed."""
    boundary: Boundary = field(default="clear", metadata=BOUNDARIES)
    """``clear``: one task after the other. ``blurry``: a share of each task's samples moves to other tasks.
    ``none``: classes fade in and out, without announced tasks. ``iid``: all classes mixed, for the upper bound."""
    blurry_share: float = field(default=0.1, metadata=BOUNDARIES)
    """With ``blurry``: the share of each task's samples that goes into a pool, which is dealt out to all tasks."""
    fade: float = field(default=0.5, metadata=BOUNDARIES)
    """With ``none``: how far a class spreads in time, in units of the time one class takes."""
    epochs: int = field(default=1, metadata=EPOCHS)
    """Passes over the data: one for online learning, or more with ``iid``."""
    drop_last: bool = True
    """Whether a task's incomplete last batch is dropped, as in the published protocol."""

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

    ``evaluation_point`` is the number of the class group that is complete after this batch (0, 1, ...), where the
    learner is evaluated, else None. ``ends_task`` is true if the stream announces this to methods.
    """

    x: Tensor
    y: Tensor
    number: int
    evaluation_point: int | None
    ends_task: bool


def usual_tasks(name: str, classes: int | None = None) -> int:
    """The number of tasks in the literature for a dataset of the catalog, else five, or fewer if classes are fewer."""
    return CATALOG[name].tasks if name in CATALOG else min(DEFAULT_TASKS, classes or DEFAULT_TASKS)


class DeviceData:
    """A dataset's images on a device, as uint8: uploaded once and shared by all its streams. No copy on a CPU."""

    def __init__(self, data: Dataset, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.train_x, self.train_y, self.test_x, self.test_y = (
            torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self.device)
            for array in (data.train_x, data.train_y, data.test_x, data.test_y)
        )


class Stream:
    """The images of a dataset in arrival order, on a device. ``batches(start)`` continues from any batch.

    The whole order is drawn from the seed at the start: two streams of the same dataset, configuration and seed are
    equal. ``resident`` is the dataset on the device, to share it between streams.
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
        self.bounds, self._evaluation_points = _batch_bounds([len(segment) for segment in segments], config)
        rows = 1 if config.boundary == "iid" else config.tasks
        if len(self._evaluation_points) < rows or min(self._evaluation_points) < 0:
            raise OcilError(f"batch_size = {config.batch_size} is more than a task of {data.name} holds.")
        self.order = torch.from_numpy(np.concatenate(segments)).to(self.device)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.bounds)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    @property
    def evaluation_points(self) -> int:
        """The number of evaluations, which is the number of rows of the accuracy matrix."""
        return len(self._evaluation_points)

    @property
    def announces_tasks(self) -> bool:
        return self.config.boundary != "none"

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for number in range(start, len(self)):
            point = self.evaluation_point_after(number)
            yield Batch(*self.fetch(number), number, point, point is not None and self.announces_tasks)

    def fetch(self, number: int) -> tuple[Tensor, Tensor]:
        """Images and labels of one batch."""
        first, last = self.bounds[number]
        index = self.order[first:last]
        return self.resident.train_x[index], self.resident.train_y[index]

    def evaluation_point_after(self, number: int) -> int | None:
        """The number of the class group that is complete after a batch, else None."""
        return self._evaluation_points.get(number)

    def new_classes(self, evaluation_point: int) -> list[int]:
        """The classes of the group that is complete at this point."""
        return sorted(chain(*self.groups)) if self.config.boundary == "iid" else self.groups[evaluation_point]

    def old_classes(self, evaluation_point: int) -> list[int]:
        """The classes of the groups before that group."""
        return [] if self.config.boundary == "iid" else list(chain(*self.groups[:evaluation_point]))


Indices = NDArray[np.int64]


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
    if config.boundary == "none":  # no task ends here, so evaluate at equal distances
        last_batches = [len(bounds) * (part + 1) // config.tasks - 1 for part in range(config.tasks)]
    if config.boundary == "iid":
        last_batches = last_batches[-1:]
    return bounds, {batch: number for number, batch in enumerate(last_batches)}
