"""Arrays that stay in their files: processes that map the same file share it, and rows are read as they are needed."""

import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError
from ocil.files import open_regular


class FileMap(mmap.mmap):
    """The mapping of a file, and the file itself, which stays open as long as the mapping is used."""

    path: Path
    descriptor: int
    offset: int
    """Where the mapping begins in the file."""

    @classmethod
    def of(cls, path: Path, start: int, size: int) -> "FileMap":
        """Map ``size`` bytes that begin at ``start``, and what lies before them in their page."""
        descriptor = open_regular(path)
        try:
            offset = start - start % mmap.ALLOCATIONGRANULARITY
            made = cls(descriptor, start - offset + size, access=mmap.ACCESS_COPY, offset=offset)
        except BaseException:
            os.close(descriptor)
            raise
        made.path, made.descriptor, made.offset = path, descriptor, offset
        return made

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], start: int = 0) -> NDArray[Any]:
    """An array in a regular file, as if it were in memory. Writing to it changes this process's copy alone, so PyTorch
    takes it as it is.

    That the file is long enough is for the caller to check. ``OSError`` if it cannot be opened.
    """
    count = math.prod(shape)
    if not count:
        return np.empty(shape, dtype)
    file = FileMap.of(path, start, count * dtype.itemsize)
    return np.frombuffer(file, dtype, count, start - file.offset).reshape(shape)


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether an array lies in a file, not in memory."""
    return _map_of(array) is not None


class RowReader:
    """Copies rows of an array, which may be mapped.

    Rows of a mapped array are read from its file and not through the mapping: a page that was touched would count as
    memory of this process, together with up to 2 MB around it, and a file that was cut short would end the process.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.size = array[:1].nbytes
        file = _map_of(array) if array.flags.c_contiguous and hasattr(os, "preadv") else None
        self._file = file
        self._start = 0 if file is None else file.offset + _address(array) - _address(np.frombuffer(file, np.uint8))

    def __len__(self) -> int:
        return len(self.array)

    def take(self, index: NDArray[np.int64], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The rows of these numbers, which must be there; in ``out`` if it is given."""
        found = np.empty((len(index), *self.array.shape[1:]), self.array.dtype) if out is None else out
        if self._file is None:
            return np.take(self.array, index, axis=0, out=found, mode="clip")
        for row, number in zip(found, index.tolist(), strict=True):
            self._read(self._file, row, number)
        return found

    def part(self, first: int, last: int) -> NDArray[Any]:
        """The rows from ``first`` up to but not including ``last``."""
        if self._file is None:
            return self.array[first:last].copy()
        found = np.empty((last - first, *self.array.shape[1:]), self.array.dtype)
        self._read(self._file, found, first)
        return found

    def _read(self, file: FileMap, target: NDArray[Any], number: int) -> None:
        """Fill ``target``, which is contiguous, from the row of this number on."""
        left, place = target.reshape(-1).view(np.uint8).data, self._start + number * self.size
        while left:
            if not (done := os.preadv(file.descriptor, [left], place)):
                raise OcilError(f"{file.path} has been cut short. Write or import it again.")
            left, place = left[done:], place + done


def _map_of(array: NDArray[Any]) -> FileMap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, FileMap) else None


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
