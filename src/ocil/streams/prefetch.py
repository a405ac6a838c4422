"""Batches that are made ahead of time, so that a step does not wait for them."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil.data.mapped import RowReader

AHEAD = 4  # batches

T = TypeVar("T")
BatchTensors = tuple[Tensor, Tensor]


class Prefetcher(Generic[T]):
    """Makes items 0, 1, 2, ... in a thread, at most ``ahead`` of them before they are asked for.

    ``make`` is called in that thread with the number of an item. It must not refer to the prefetcher, which ends its
    thread when nobody refers to it any more.
    """

    def __init__(self, make: Callable[[int], T], count: int, ahead: int = AHEAD) -> None:
        self._make, self._count, self._ahead = make, count, ahead
        self._lane: _Lane[T] | None = None
        self._at_end: weakref.finalize[..., Any] | None = None

    def take(self, number: int) -> T:
        """The item of this number. Another one than the next starts the thread anew, from there on.

        An error of ``make`` is raised here, when its item is asked for.
        """
        if self._lane is None or self._lane.next != number:
            self.close()
            self._lane = _Lane(self._make, range(number, self._count), self._ahead)
            self._at_end = weakref.finalize(self, self._lane.stop)
        try:
            return self._lane.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the thread. It is started again when an item is asked for."""
        if self._lane is not None:
            self._lane.stop()
            self._lane.thread.join()
            self._lane = None
        if self._at_end is not None:
            self._at_end.detach()  # it keeps the lane, and the items that were made in vain


class _Lane(Generic[T]):
    """A thread that makes the items of these numbers, in order."""

    def __init__(self, make: Callable[[int], T], numbers: range, ahead: int) -> None:
        self.next = numbers.start
        self.room = threading.Semaphore(ahead)
        self.made: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self.stopped = threading.Event()
        work = (make, numbers, self.room, self.made, self.stopped)
        self.thread = threading.Thread(target=_fill, args=work, name="ocil-prefetch", daemon=True)
        self.thread.start()

    def take(self) -> T:
        item, error = self.made.get()
        if error is not None:
            raise error
        self.next += 1
        self.room.release()
        return item  # type: ignore[return-value]  # one of the two is not None

    def stop(self) -> None:
        self.stopped.set()
        self.room.release()


def _fill(
    make: Callable[[int], T],
    numbers: range,
    room: threading.Semaphore,
    made: "SimpleQueue[tuple[T | None, BaseException | None]]",
    stopped: threading.Event,
) -> None:
    for number in numbers:
        room.acquire()
        if stopped.is_set():
            return
        try:
            made.put((make(number), None))
        except BaseException as error:
            made.put((None, error))
            return
    made.put((None, IndexError(f"there are {numbers.stop} items")))


class HostBatches:
    """Reads the batches of a stream on the host."""

    def __init__(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        samples: NDArray[np.int64],
        bounds: Sequence[tuple[int, int]],
    ) -> None:
        self.rows, self.labels, self.samples, self.bounds = RowReader(inputs), labels, samples, bounds

    def __len__(self) -> int:
        return len(self.bounds)

    @property
    def largest(self) -> int:
        """The number of samples of the largest batch."""
        return max(last - first for first, last in self.bounds)

    def read(self, number: int) -> BatchTensors:
        """A batch in memory of its own."""
        first, last = self.bounds[number]
        index = self.samples[first:last]
        return torch.from_numpy(self.rows.take(index)), torch.from_numpy(self.labels[index])

    def read_into(self, number: int, x: Tensor, y: Tensor) -> int:
        """Read a batch into the first rows of these tensors. Returns the number of its samples."""
        first, last = self.bounds[number]
        index, size = self.samples[first:last], last - first
        self.rows.take(index, x.numpy()[:size])
        np.take(self.labels, index, out=y.numpy()[:size], mode="clip")
        return size


class BatchLoader(Protocol):
    """Gives a learner the batches of a stream, on its device."""

    def take(self, number: int) -> BatchTensors: ...

    def close(self) -> None: ...


def loader_for(batches: HostBatches, device: torch.device) -> BatchLoader:
    """Batches that are read ahead of time, and brought to the device if it is a GPU."""
    if device.type == "cuda":
        return CudaBatchLoader(batches, device)
    return Prefetcher(batches.read, len(batches))


class CudaBatchLoader:
    """Brings batches to a GPU: a thread reads them into pinned memory, and this thread queues their copies on a CUDA
    stream of their own, so that they overlap with the steps before.

    The reading thread makes no call to CUDA: while a CUDA graph is recorded, no other thread may.
    """

    def __init__(self, batches: HostBatches, device: torch.device, ahead: int = AHEAD) -> None:
        self.batches, self.device, self.ahead = batches, device, ahead
        shape, dtype = batches.rows.array.shape[1:], torch.from_numpy(batches.rows.array[:0]).dtype
        self.buffers = [
            (self.pinned((batches.largest, *shape), dtype), self.pinned((batches.largest,), torch.int64))
            for _ in range(ahead + 2)  # one is being filled and one being copied
        ]
        self.copies = self.copy_stream()
        self.next = 0
        self._begin(0)

    def take(self, number: int) -> BatchTensors:
        if number != self.next:
            self.close()
            self._begin(number)
        buffer, size = self.filled.take(number)
        x, y, copied = self.copy(*(tensor[:size] for tensor in self.buffers[buffer]))
        self.copying.append((copied, buffer))
        while len(self.copying) > 1:
            self._recycle()
        self.next = number + 1
        return x, y

    def close(self) -> None:
        """End the thread and wait for the copies under way. ``take`` starts again."""
        self.free.put(None)  # the thread may be waiting for a free buffer
        self.filled.close()
        while self.copying:
            self._recycle()
        self.next = -1

    def _begin(self, number: int) -> None:
        self.free: SimpleQueue[int | None] = SimpleQueue()
        for buffer in range(len(self.buffers)):
            self.free.put(buffer)
        weakref.finalize(self, self.free.put, None)
        self.copying: deque[tuple[CopyEvent, int]] = deque()
        self.filled = Prefetcher(
            partial(_fill_buffer, self.batches, self.buffers, self.free), len(self.batches), self.ahead
        )
        self.next = number

    def _recycle(self) -> None:
        """Let the thread fill a buffer again, once its copy is finished."""
        copied, buffer = self.copying.popleft()
        copied.synchronize()
        self.free.put(buffer)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def copy_stream(self) -> "torch.cuda.Stream":
        return torch.cuda.Stream(self.device)

    def copy(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, "CopyEvent"]:
        """Queue copies to the device, for which the current stream waits."""
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.copies):
            moved = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            copied = self.copies.record_event()
        current.wait_event(copied)
        for tensor in moved:
            tensor.record_stream(current)
        return *moved, copied


class CopyEvent(Protocol):
    """What is known about a queued copy."""

    def synchronize(self) -> None: ...


def _fill_buffer(
    batches: HostBatches, buffers: list[BatchTensors], free: "SimpleQueue[int | None]", number: int
) -> tuple[int, int]:
    """Wait for a free buffer and read a batch into it. Returns its number and the number of samples."""
    if (buffer := free.get()) is None:
        raise RuntimeError("the loader is closed")
    return buffer, batches.read_into(number, *buffers[buffer])
