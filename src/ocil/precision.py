"""The precision in which a GPU computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Literal

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


@contextmanager
def numerics(precision: Precision) -> Iterator[None]:
    """Set PyTorch's switches inside the block. ``fp32`` also asks for deterministic kernels."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    exact = is_exact(precision)
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = not exact, not exact, exact
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


class _Repeatable:
    """How many blocks of ``repeatable`` are open in all threads, and what the switches were before the first."""

    lock = Lock()
    open = 0
    before = (False, False)


@contextmanager
def repeatable() -> Iterator[None]:
    """Inside the block cuDNN takes the ways that give the same bits each time, and takes no time to find the fastest,
    in any precision. Several threads may be inside at once; what others compute meanwhile is repeatable too.
    """
    cudnn = torch.backends.cudnn
    with _Repeatable.lock:
        if not _Repeatable.open:
            _Repeatable.before = cudnn.benchmark, cudnn.deterministic
        _Repeatable.open += 1
        cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        with _Repeatable.lock:
            _Repeatable.open -= 1
            if not _Repeatable.open:
                cudnn.benchmark, cudnn.deterministic = _Repeatable.before
