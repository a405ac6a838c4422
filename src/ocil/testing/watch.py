"""Watches operations on tensors: what would make the host wait for a GPU, and which shapes occur."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ocil.testing.contract import must

READS = frozenset(
    {
        "_local_scalar_dense",
        "item",
        "nonzero",
        "nonzero_numpy",
        "argwhere",
        "masked_select",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "is_nonzero",
        "equal",
        "bincount",
        "repeat_interleave",
        "histc",
        "tolist",
    }
)
"""Operators of PyTorch whose result, or its shape, the host has to wait for."""


class HostWatch(TorchDispatchMode):
    """Fails inside the block on whatever makes the host wait for the device; keeps the operations and their shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        must(name not in READS, f"the operator {name} reads back to the host")
        if name.startswith("index"):
            indices = [t for a in args if isinstance(a, list | tuple) for t in a if isinstance(t, Tensor)]
            masked = any(t.dtype in (torch.bool, torch.uint8) for t in indices)
            must(not masked, "a mask is used as an index, so a shape depends on values")
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in (*args, result) if isinstance(t, Tensor)]
        self.trace.append((name, [tuple(t.shape) for t in tensors]))
        return result


def watched(work: Callable[[], Any]) -> list[Any]:
    """The operations of some work with their shapes. Fails on what makes the host wait for the device."""
    watch = HostWatch()
    with watch:
        work()
    return watch.trace
