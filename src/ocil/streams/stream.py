"""A dataset in its order of arrival, batch by batch."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil.data import Dataset
from ocil.data.dataset import require_dataset
from ocil.errors import OcilError
from ocil.seeds import check_seed
from ocil.streams.choices import TaskEnds
from ocil.streams.config import StreamConfig, usual_task_sizes, usual_tasks
from ocil.streams.device import DeviceData
from ocil.streams.kinds import draw
from ocil.streams.order import Order
from ocil.streams.prefetch import BatchLoader, HostBatches, loader_for

if TYPE_CHECKING:
    from ocil.streams.record import RecordOptions


@dataclass(frozen=True)
class Batch:
    """Images uint8 ``[B, H, W, C]`` or vectors ``[B, D]``, and labels ``[B]`` on the device.

    ``evaluation_point`` is the number of the group that is complete after this batch (0, 1, ...), where the learner is
    evaluated, else None. ``ends_task`` is true if the stream announces this to methods.

    Examples:
        >>> batch = next(iter(ocil.Stream(ocil.load_dataset(), seed=0)))
        >>> tuple(batch.x.shape), tuple(batch.y.shape), batch.ends_task
        ((10, 14, 14, 1), (10,), False)
    """

    x: Tensor
    y: Tensor
    number: int
    evaluation_point: int | None
    ends_task: bool


class Stream:
    """The samples of a dataset in arrival order, on a device. ``batches(start)`` continues from any batch.

    The whole order is drawn from the seed at the start: two streams of the same dataset, configuration and seed are
    equal. It may also be given: as the file ``config.order``, or as ``arrivals``.

    Args:
        data: The dataset.
        config: Which kind of stream; by default the usual one of the dataset.
        seed: What the order is drawn from.
        device: Where batches are.
        resident: The ``device_data`` of another stream of the same dataset, to share what is on the device.
        arrivals: The order itself, in place of one that is drawn.

    Raises:
        OcilError: The dataset does not suit the configuration, for example if it has fewer classes than tasks, or the
            seed is not a whole number.

    Examples:
        >>> stream = ocil.Stream(ocil.load_dataset(), ocil.StreamConfig(tasks=5), seed=0)
        >>> [batch.evaluation_point for batch in stream if batch.ends_task]
        [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        data: Dataset,
        config: StreamConfig | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        resident: DeviceData | None = None,
        arrivals: Order | None = None,
    ) -> None:
        require_dataset(data)
        check_seed(seed)
        if config is None:
            config = arrivals.config if arrivals else usual_stream(data)
        if not isinstance(config, StreamConfig):
            raise OcilError(f"the settings of a stream are an ocil.StreamConfig, not a {type(config).__name__}.")
        self.data = data
        self.config = config
        if arrivals is None and config.order:
            arrivals = Order.from_file(Path(config.order), data, config.order_digest)
        self.arrivals = arrivals = arrivals or draw(data, config, seed)
        self.device_data = resident or DeviceData(data, device)
        """The dataset as this stream and its evaluators read it: on the device as a whole, or part by part."""
        self.device = self.device_data.device
        self.groups, self.bounds = arrivals.groups, arrivals.bounds
        self._evaluation_points = {batch: number for number, batch in enumerate(arrivals.points)}
        self.samples = torch.from_numpy(arrivals.samples).to(self.device_data.index_device)
        """Numbers of training samples, in the order of their arrival: where they are looked up."""
        self.given_labels = data.train_y if arrivals.labels is None else arrivals.labels
        """The label with which each training sample comes. Its true label is ``data.train_y``."""
        noisy = arrivals.labels is not None
        self._labels = torch.from_numpy(self.given_labels).to(self.device) if noisy else self.device_data.train_y
        self._loader: BatchLoader | None = None

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Any],
        test: tuple[Any, Any] | None = None,
        *,
        device: torch.device | str = "cpu",
        **options: "Unpack[RecordOptions]",
    ) -> "Stream":
        """A stream of the batches of any iterable or generator, which must end, in the order in which they come.

        A batch is ``(x, y)`` or ``(x, y, task)``: images or vectors in any form that ``Dataset.from_arrays`` takes,
        labels of any kind, and anything that is the same for all batches of a task, or an array of that per sample.

        Classes are numbered as they arrive, unless ``classes`` names them in order. Tasks come from the third part of
        the batches; a task that brings no new class belongs to the one before. Without it, a task ends where no class
        that has come comes again. If that is nowhere, no tasks are announced: the classes form ``tasks`` groups
        (default: five) in the order of their arrival, and the learner is evaluated at equal distances.

        Args:
            batches: The batches. All of them are read now.
            test: Inputs and labels to evaluate on. Without them a share of each class is held out.
            device: Where batches are.
            options: ``name`` of the dataset; ``classes``; ``tasks``; ``layout``, ``test_share``, ``seed`` and ``note``
                as in ``Dataset.from_arrays``.

        Raises:
            OcilError: There are no batches, or some do not go together.

        Examples:
            >>> import numpy as np
            >>> x = np.zeros((10, 8, 8, 1), np.uint8)
            >>> batches = [(x, ["owl", "wren"] * 5, "night"), (x, ["robin", "crow"] * 5, "day")]
            >>> stream = ocil.Stream.from_batches(batches, test=(x[:4], ["owl", "wren", "robin", "crow"]))
            >>> stream.data.classes, stream.groups
            (('owl', 'wren', 'robin', 'crow'), [[0, 1], [2, 3]])
        """
        from ocil.streams.record import record

        recorded = record(batches, test, **options)
        return cls(recorded.data, device=device, arrivals=recorded.order)

    @classmethod
    def from_indices(
        cls,
        data: Dataset,
        tasks: Iterable[Iterable[int]],
        *,
        batch_size: int = 10,
        task_ends: TaskEnds = "usual",
        device: torch.device | str = "cpu",
    ) -> "Stream":
        """A stream of your own making: the samples of a dataset in the order that you choose.

        Args:
            data: The dataset. Each of its classes must come in some task.
            tasks: For each task the numbers of its training samples, in the order of their arrival. A sample may come
                more than once. A task that brings no new class belongs to the one before.
            batch_size: Samples of a batch; the last one of a task may be smaller.
            task_ends: Whether methods hear that a task is over. See ``StreamConfig``.
            device: Where batches are.

        Raises:
            OcilError: A task is empty or has numbers that are not those of training samples, or a class never comes.

        Examples:
            >>> import numpy as np
            >>> data = ocil.load_dataset()
            >>> odd = np.flatnonzero(data.train_y % 2)
            >>> even = np.flatnonzero(data.train_y % 2 == 0)
            >>> stream = ocil.Stream.from_indices(data, [odd, even])
            >>> stream.groups
            [[1, 3, 5, 7, 9], [0, 2, 4, 6, 8]]
        """
        from ocil.streams.indices import order_of

        require_dataset(data)
        return cls(data, device=device, arrivals=order_of(data, tasks, batch_size, task_ends))

    def save_order(self, path: Path | str) -> None:
        """Write the order to an .npz file. A stream with ``order=FILE`` replays it on the same dataset."""
        self.arrivals.save(Path(path), self.data)

    def __repr__(self) -> str:
        return f"<Stream of {self.data.name}: {self.config.boundary}, {self.config.tasks} tasks, {len(self)} batches>"

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.bounds)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    @cached_property
    def fingerprint(self) -> str:
        """Short digest of the samples and of their order."""
        return fingerprint_with(self.data, self.arrivals.digest)

    @property
    def evaluation_points(self) -> int:
        """The number of evaluations, which is the number of rows of the accuracy matrix."""
        return len(self._evaluation_points)

    @property
    def announces_tasks(self) -> bool:
        """Whether methods hear of task ends."""
        return self.config.announces_tasks

    @property
    def test_groups(self) -> NDArray[np.int64]:
        """The group of each test sample, ``[N]``: its column of the accuracy matrix."""
        by_domain = self.arrivals.scenario == "domain"
        labels = self.data.test_domain if by_domain else self.data.test_y
        group_of = np.empty(self.data.num_domains if by_domain else self.data.num_classes, dtype=np.int64)
        for number, units in enumerate(self.groups):
            group_of[units] = number
        return group_of[labels]

    def group_name(self, group: int) -> str:
        """The names of a group's classes or domains, for messages."""
        names = self.data.domains if self.arrivals.scenario == "domain" else self.data.classes
        return ", ".join(names[unit] for unit in self.groups[group])

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The batches in their order, from number ``start`` on."""
        for number in range(start, len(self)):
            point = self.evaluation_point_after(number)
            yield Batch(*self.fetch(number), number, point, point is not None and self.announces_tasks)

    def fetch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of one batch. If the dataset is not on the device, the next batches are read meanwhile."""
        if not self.device_data.resident:
            return self._host_loader().take(number)
        first, last = self.bounds[number]
        return self.rows(self.samples[first:last])

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of these training samples, as they arrive, if the dataset is on the device."""
        return self.device_data.inputs(index), self._labels[index]

    def close(self) -> None:
        """End the thread that reads ahead, if there is one. ``fetch`` starts it again."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def _host_loader(self) -> BatchLoader:
        if self._loader is None:
            batches = HostBatches(self.data.train_x, self.given_labels, self.arrivals.samples, self.bounds)
            self._loader = loader_for(batches, self.device)
        return self._loader

    def evaluation_point_after(self, number: int) -> int | None:
        """The number of the group that is complete after a batch, else None."""
        return self._evaluation_points.get(number)

    def new_classes(self, evaluation_point: int) -> list[int]:
        """The classes of the group that is complete at this point; none if groups are not of classes."""
        if self.arrivals.scenario == "domain":
            return []
        return sorted(chain(*self.groups)) if self.config.boundary == "iid" else self.groups[evaluation_point]

    def old_classes(self, evaluation_point: int) -> list[int]:
        """The classes of the groups before that group."""
        mixed = self.config.boundary == "iid" or self.arrivals.scenario == "domain"
        return [] if mixed else list(chain(*self.groups[:evaluation_point]))


def usual_stream(data: Dataset) -> StreamConfig:
    """The usual tasks of a dataset."""
    if sizes := usual_task_sizes(data):
        return StreamConfig(task_sizes=sizes)
    return StreamConfig(tasks=usual_tasks(data.name, data.num_classes))


def fingerprint_with(data: Dataset, order: str) -> str:
    """Short digest of the samples of a dataset and of the digest of their order."""
    return hashlib.sha256(f"{data.fingerprint} {order}".encode()).hexdigest()[:12]
