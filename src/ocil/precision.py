"""The precision in which a GPU computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


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
