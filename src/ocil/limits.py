"""Limits that several packages share. Importing this loads nothing, so the command line can check them first."""

import math
from operator import index
from typing import Any

from ocil.errors import OcilError

MAX_THREADS = 1024
"""The largest number of threads or worker processes."""
MAX_SIDE = 1024
"""The largest side of an image, in pixels."""
MAX_WIDTH = 1024
"""The largest number of channels of the first stage of a ResNet."""
BUILT_IN = frozenset({bool, int, float, str, list, tuple, dict, type(None)})


def check(good: bool, name: str, value: object, wanted: str) -> None:
    """Raise unless the value of a setting is good. ``wanted``: what it must be, such as "at least 1"."""
    if not good:
        raise OcilError(f"{name} = {value} must be {wanted}.")


def whole(name: str, value: Any, least: int, most: float = math.inf) -> int:
    """The value as a whole number of Python. Raises if it is none (a bool is none), or is out of these bounds."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most:,}"
        raise OcilError(f"{name} = {repr(value)[:60]} must be a whole number {bounds}.")
    return number


def python_value(value: Any) -> Any:
    """A number of NumPy as Python's, and an array as a list: JSON and names of folders need these. All else as it is.

    A float32 becomes the number that it is written as.

    >>> import numpy as np
    >>> python_value(np.int64(3)), python_value(np.float32(0.1)), python_value(np.arange(2)), python_value("a")
    (3, 0.1, [0, 1], 'a')
    """
    if type(value).__module__ != "numpy" or not hasattr(value, "item"):
        return value
    if value.shape:
        return [python_value(each) for each in value]
    is_float = value.dtype.kind == "f" and value.dtype.itemsize != 8  # those of 8 bytes are Python's own
    return float(str(value)) if is_float else value.item()


def use_python_values(config: Any) -> None:
    """``python_value`` of each field of a frozen dataclass, in its place. A report makes thousands of these."""
    fields = vars(config)
    for name in [name for name, value in fields.items() if type(value) not in BUILT_IN]:
        object.__setattr__(config, name, python_value(fields[name]))


def check_threads(threads: int | None) -> None:
    if threads is not None:
        whole("threads", threads, 1, MAX_THREADS)
