"""The precision in which a GPU computes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Literal, NamedTuple

import torch

Precision = Literal["fp32", "tf32", "bf16"]

DEFAULT: Precision = "tf32"
ON_GPU: Precision = "bf16"
"""The default on an NVIDIA GPU that computes in bfloat16. Results agree with those in fp32, which take eight times as
long: docs/performance.md. Folders of runs name the precision, so what was measured in another one stays as it is."""


def usual() -> Precision:
    """The precision of a run whose settings name none, on this machine."""
    return ON_GPU if torch.cuda.is_available() and has_bf16_units(torch.device("cuda")) else DEFAULT


def elsewhere(chosen: Precision) -> Precision | None:
    """The precision that machines of another kind have where this one is the default; None if it is no default."""
    return {DEFAULT: ON_GPU, ON_GPU: DEFAULT}.get(chosen)


def on(device: torch.device, chosen: Precision) -> Precision:
    """The precision in which a network computes there: on a CPU always float32, and bf16 only on GPUs that have units
    for it, since elsewhere it would only cost time. So a model that learned on one machine goes on on any other."""
    if device.type == "cpu":
        return "fp32"
    return DEFAULT if chosen == "bf16" and not has_bf16_units(device) else chosen


def has_bf16_units(device: torch.device) -> bool:
    """Whether this GPU computes in bfloat16: NVIDIA's do since Ampere, and AMD's that PyTorch supports."""
    if device.type != "cuda":
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def widest(device: torch.device) -> torch.dtype:
    """The widest floating type of a device: an Apple GPU has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_exact(precision: Precision) -> bool:
    """Whether a GPU takes the same steps bit for bit each time."""
    return precision == "fp32"


class _Switches(NamedTuple):
    """cuDNN's, as far as they are set here."""

    allow_tf32: bool
    """Whether convolutions may round their factors to TF32."""
    benchmark: bool
    """Whether it tries its algorithms and takes the fastest."""
    deterministic: bool
    """Whether it takes only algorithms that give the same bits each time."""

    @classmethod
    def now(cls) -> "_Switches":
        cudnn = torch.backends.cudnn
        return cls(cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)

    @classmethod
    def of(cls, precision: Precision) -> "_Switches":
        exact = is_exact(precision)
        return cls(not exact, not exact, exact)

    def set(self) -> None:
        cudnn = torch.backends.cudnn
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = self


@dataclass(eq=False)  # two blocks of the same precision are not the same block
class _Block:
    """An open block of ``numerics``, or of ``repeatable`` if it names no precision."""

    precision: Precision | None


class _OpenBlocks:
    """cuDNN's switches belong to the process, so blocks of several threads may overlap: the latest open precision wins,
    and the last block to end restores what was set before the first.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: list[_Block] = []  # in all threads, the latest last
        self._before = _Switches(allow_tf32=True, benchmark=False, deterministic=False)

    @contextmanager
    def block(self, precision: Precision | None) -> Iterator[None]:
        opened = _Block(precision)
        with self._lock:
            if not self._blocks:
                self._before = _Switches.now()
            self._blocks.append(opened)
            self._wanted().set()
        try:
            yield
        finally:
            with self._lock:
                self._blocks.remove(opened)
                self._wanted().set()

    def _wanted(self) -> _Switches:
        wanted = self._before
        for block in self._blocks:
            if block.precision is not None:
                wanted = _Switches.of(block.precision)
        if any(block.precision is None for block in self._blocks):
            wanted = wanted._replace(benchmark=False, deterministic=True)
        return wanted


_open = _OpenBlocks()


def numerics(precision: Precision) -> AbstractContextManager[None]:
    """Set PyTorch's switches inside the block. ``fp32`` also asks for deterministic kernels.

    Several threads may be inside at once, if they compute in the same precision: PyTorch has one for the process.
    """
    return _open.block(precision)


def repeatable() -> AbstractContextManager[None]:
    """Inside the block cuDNN takes algorithms that give the same bits each time, and takes no time to find the fastest,
    in any precision. Several threads may be inside at once; what others compute meanwhile is repeatable too.
    """
    return _open.block(None)
