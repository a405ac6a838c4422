"""The precision in which a GPU computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]

DEFAULT: Precision = "tf32"
ON_GPU: Precision = "tf32"
"""The default on a GPU that computes in bfloat16. To change it, write ``bf16`` here: folders of runs keep their names,
and commands that are printed then always name the precision. experiments/precision.toml measures what speaks for it."""


def usual() -> Precision:
    """The precision of a run whose settings name none, on this machine."""
    if ON_GPU != DEFAULT and torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False):
        return ON_GPU
    return DEFAULT


def widest(device: torch.device) -> torch.dtype:
    """The widest floating type of a device: an Apple GPU has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def numerics(precision: Precision) -> Iterator[None]:
    """Set PyTorch's switches inside the block. ``fp32`` also asks for deterministic kernels."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    exact = precision == "fp32"
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = not exact, not exact, exact
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
