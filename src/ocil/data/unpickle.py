"""Reads pickles of arrays and plain containers without running any code of theirs.

Published datasets come as pickles, and a pickle can name any function to call. Here only a few names resolve, each to a
function of this file that rebuilds an array of numbers; any other name is refused before it is looked up.
"""

import math
import pickle
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError

NUMBER_KINDS = "biuf"


def load_pickle(file: IO[bytes], label: str) -> Any:
    """Containers, strings, numbers and number arrays; ``label`` names the file in messages."""
    try:
        # Numpy arrays pickled by Python 2 need latin1; their text then comes as str.
        return _Restricted(file, encoding="latin1").load()
    except _ForbiddenError as error:
        raise OcilError(f"{label} is refused: {error}. Use the file as its authors published it.") from error
    except Exception as error:  # a broken pickle can fail in any way
        message = f"{label} is cut short or not a pickle ({type(error).__name__}). Get the file again."
        raise OcilError(message) from error


def text_of(value: Any) -> str:
    """Text that Python 2 may have pickled as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _ForbiddenError(Exception):
    pass


class _Global:
    """A callable that a pickle cannot alter: the BUILD opcode finds no attributes to set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise _ForbiddenError("it tries to change a function")


class _Dtype:
    """Stands in for numpy.dtype, so that no pickled state reaches the real one."""

    __slots__ = ("value",)

    def __init__(self, spec: Any) -> None:
        if not isinstance(spec, str):
            raise _ForbiddenError("it has an array type that is not a plain number")
        self.value = np.dtype(spec)
        if self.value.kind not in NUMBER_KINDS or self.value.subdtype is not None:
            raise _ForbiddenError(f"it holds an array of {self.value}, and only arrays of numbers are read")

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _ForbiddenError("it has an array type that is not a plain number")
        self.value = self.value.newbyteorder(state[1])


class _Array(np.ndarray[Any, Any]):
    """An array whose state is checked before numpy sees it."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        content = _as_bytes(raw)
        _check_size(content, dtype, shape)
        checked: Any = (1, shape, dtype.value, bool(fortran), content)
        super().__setstate__(checked)


def _as_bytes(raw: Any) -> bytes:
    if isinstance(raw, str):
        return raw.encode("latin1")
    if isinstance(raw, bytes | bytearray):
        return bytes(raw)
    raise _ForbiddenError("it holds an array of objects, and only arrays of numbers are read")


def _check_size(content: bytes, dtype: Any, shape: Any) -> None:
    whole = isinstance(shape, tuple) and all(isinstance(side, int) and side >= 0 for side in shape)
    if not whole or not isinstance(dtype, _Dtype) or math.prod(shape) * dtype.value.itemsize != len(content):
        raise _ForbiddenError("it holds an array whose content does not fit its shape")


def _refuse_call(*_: Any) -> Any:
    raise _ForbiddenError("it makes an array in an unknown way")


def _reconstruct(kind: Any, *_: Any) -> NDArray[Any]:
    if kind is not _NDARRAY:
        raise _ForbiddenError("it makes an array in an unknown way")
    return _Array((0,), dtype=np.uint8)


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> NDArray[Any]:
    content = _as_bytes(raw)
    _check_size(content, dtype, shape)
    flat = np.frombuffer(content, dtype=dtype.value)
    return flat.reshape(shape).transpose(axes) if order == "K" else flat.reshape(shape, order=order)


def _scalar(dtype: Any, raw: Any) -> Any:
    content = _as_bytes(raw)
    _check_size(content, dtype, ())
    return np.frombuffer(content, dtype=dtype.value)[0]


def _encode(text: Any, encoding: Any = None) -> bytes:
    # Pickles of protocol 2 and below spell bytes this way.
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _ForbiddenError("it uses _codecs.encode for more than bytes")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    # Pickles of protocol 2 and below spell empty bytes as a call of bytes without arguments.
    return b""


_NDARRAY = _Global(_refuse_call)
_ALLOWED = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Global(lambda spec, *_: _Dtype(spec)),
    ("_codecs", "encode"): _Global(_encode),
    ("__builtin__", "bytes"): _Global(_no_bytes),
    ("builtins", "bytes"): _Global(_no_bytes),
    **{
        (f"{core}.{module}", name): _Global(call)
        for core in ("numpy.core", "numpy._core")  # the name before and since numpy 2
        for module, name, call in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _frombuffer),
        )
    },
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _ForbiddenError(f"it asks for {f'{module}.{name}'!a}, which no dataset needs") from None
