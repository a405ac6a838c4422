"""How many CPU threads learning uses. docs/performance.md has the measurements behind the rule."""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from pathlib import Path

import torch

LARGE_WORK = 7_200_000  # multiply-adds for the features of an image: from here on a second thread pays
MOST = 4  # threads that are used by default

_chosen: ContextVar[bool] = ContextVar("_chosen", default=False)  # whether the code is inside a block of ``using``


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads(multiply_adds: int) -> int:
    """The default number of threads for a network that takes so many multiply-adds for one input.

    One thread for small networks, else all cores but one, up to ``MOST``: with one core left for other processes, no
    thread waits for another that cannot run. ``OMP_NUM_THREADS`` and a surrounding ``using`` block override this, and
    so does ``torch.set_num_threads`` unless its number is what PyTorch starts with (all cores, or half of them with
    hyper-threading). The present number is never exceeded.
    """
    now = torch.get_num_threads()
    if _chosen.get() or "OMP_NUM_THREADS" in os.environ or now not in (cores(), cores() // 2):
        return now
    return min(now, MOST, max(1, cores() - 1)) if multiply_adds >= LARGE_WORK else 1


@contextmanager
def using(count: int) -> Iterator[None]:
    """Compute with ``count`` threads inside the block, afterwards with as many as before."""
    before, chosen = torch.get_num_threads(), _chosen.set(True)
    torch.set_num_threads(count)
    try:
        with _convolutions.using(count):
            yield
    finally:
        _chosen.reset(chosen)
        torch.set_num_threads(before)


class _ConvolutionThreads:
    """The threads of ARM's convolutions. Their number belongs to the process, so blocks of several threads may overlap:
    the latest open block wins, and the last one to end restores the number from before the first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[list[int]] = []  # one entry for each open block in any thread, the latest last
        self._before = 0

    @contextmanager
    def using(self, count: int) -> Iterator[None]:
        scheduler = _arm_scheduler()
        if scheduler is None:
            yield
            return
        block = [count]  # a list: two blocks of the same number are not the same block
        with self._lock:
            if not self._blocks:
                self._before = scheduler.count
            self._blocks.append(block)
            scheduler.count = count
        try:
            yield
        finally:
            with self._lock:
                self._blocks = [other for other in self._blocks if other is not block]
                scheduler.count = self._blocks[-1][0] if self._blocks else self._before


_convolutions = _ConvolutionThreads()


def default_if_free(multiply_adds: int) -> AbstractContextManager[None]:
    """``using`` the default number, unless a surrounding block of ``using`` has set it."""
    return nullcontext() if _chosen.get() else using(default_threads(multiply_adds))


def set_threads(count: int) -> None:
    """Set the number from now on: PyTorch's own for the calling thread, that of ARM's convolutions for the process."""
    torch.set_num_threads(count)
    if scheduler := _arm_scheduler():
        scheduler.count = count


class _ArmScheduler:
    """The scheduler of the Arm Compute Library, which computes convolutions on ARM.

    It reads the number of threads once, when it is loaded, and ``torch.set_num_threads`` does not change it. PyTorch
    offers no other way, so this calls its own functions.
    """

    OPENMP = 2  # the kind of scheduler whose functions these are

    def __init__(self, library: ctypes.CDLL) -> None:
        self._get = library._ZN11arm_compute9Scheduler3getEv
        self._kind = library._ZN11arm_compute9Scheduler8get_typeEv
        self._read = library._ZNK11arm_compute12OMPScheduler11num_threadsEv
        self._write = library._ZN11arm_compute12OMPScheduler15set_num_threadsEj
        self._get.restype = ctypes.c_void_p
        self._read.argtypes, self._read.restype = [ctypes.c_void_p], ctypes.c_uint
        self._write.argtypes, self._write.restype = [ctypes.c_void_p, ctypes.c_uint], None

    @property
    def usable(self) -> bool:
        return bool(self._kind() == self.OPENMP)

    @property
    def count(self) -> int:
        return int(self._read(self._get()))

    @count.setter
    def count(self, threads: int) -> None:
        self._write(self._get(), threads)


@cache
def _arm_scheduler() -> _ArmScheduler | None:
    """None if PyTorch was built without it, or with a version that is not known here."""
    path = Path(torch.__file__).parent / "lib" / "libarm_compute.so"
    if not path.is_file():
        return None
    try:
        scheduler = _ArmScheduler(ctypes.CDLL(str(path)))
    except (OSError, AttributeError):
        return None
    return scheduler if scheduler.usable else None
