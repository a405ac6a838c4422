"""Watches operations on tensors: what would make the host wait for a GPU, and which shapes occur."""

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.overrides import TorchFunctionMode
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
LIBRARIES = tuple(str(Path(file).parent) for file in (torch.__file__, sys.modules["ocil"].__file__) if file)
"""Folders whose lines a user does not look for a mistake in."""


class HostWatch(TorchDispatchMode):
    """Fails inside the block on whatever makes the host wait for the device; keeps the operations and their shapes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace: list[Any] = []
        self.on_cpu_alone = False
        """Whether the operators to come are a check that PyTorch makes on a CPU and not on a GPU."""

    @contextmanager
    def check_on_cpu(self) -> Iterator[None]:
        self.on_cpu_alone = True
        try:
            yield
        finally:
            self.on_cpu_alone = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS and not self.on_cpu_alone:
            must(False, f"the operator {name} reads back to the host{_line_of_user()}")
        if name.startswith("index"):
            indices = [t for a in args if isinstance(a, list | tuple) for t in a if isinstance(t, Tensor)]
            if any(t.dtype in (torch.bool, torch.uint8) for t in indices):
                must(False, f"a mask is used as an index, so a shape depends on values{_line_of_user()}")
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in (*args, result) if isinstance(t, Tensor)]
        self.trace.append((name, [tuple(t.shape) for t in tensors]))
        return result


class OneHotWatch(TorchFunctionMode):
    """Lets ``one_hot(labels, n)`` pass a ``HostWatch``: with the number of classes, it reads the labels on a CPU alone,
    where it checks them. On a GPU the kernel does."""

    def __init__(self, watch: HostWatch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not one_hot or (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1:
            return func(*args, **kwargs)
        with self.watch.check_on_cpu():
            return func(*args, **kwargs)


def _line_of_user() -> str:
    """Where the work that is watched has come to: its innermost line that belongs neither to PyTorch nor to ocil."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code is not watched.__code__:
        name, number = frame.f_code.co_filename, frame.f_lineno
        if not name.startswith(LIBRARIES):
            text = linecache.getline(name, number).strip()
            return f" in {Path(name).name}, line {number}" + (f": {text}" if text else "")
        frame = frame.f_back
    return ""


def watched(work: Callable[[], Any]) -> list[Any]:
    """The operations of some work with their shapes. Fails on what makes the host wait for the device."""
    watch = HostWatch()
    with watch, OneHotWatch(watch):
        work()
    return watch.trace
