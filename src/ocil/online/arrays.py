"""Rows of numbers on disk: ``.npy``, ``.npz`` and ``.parquet`` files, read in parts, and ``.csv`` files.

A file may come from anywhere: nothing is unpickled, and no size that it claims is believed before it is checked against
the file. An array of a ``.npy`` file, or of an ``.npz`` file that is not compressed, is never read whole, unless its
columns lie together. A file that is cut short while it is read is an error, not the end of the process.
"""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from ocil.data.archive import ENCRYPTED, content_offset, is_stored
from ocil.data.inputs import EXACT
from ocil.data.mapped import RowReader, mapped
from ocil.data.npy import read_header
from ocil.data.number_table import NumberTable, is_number_table, listed
from ocil.errors import OcilError
from ocil.files import machine_memory
from ocil.online.labels import ClassLabel
from ocil.text import bytes_text, lines_of

SUFFIXES = (".npy", ".npz", ".parquet")


class Rows(Protocol):
    """Rows of numbers, all of the same length."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int:
        """Numbers of a row."""

    @property
    def dtype(self) -> "np.dtype[Any]": ...

    def __len__(self) -> int: ...

    def read(self, first: int, last: int) -> NDArray[Any]:
        """The rows from ``first`` up to, but not including, ``last``."""


@dataclass(frozen=True)
class ArrayRows:
    """The rows of an array, in a file or in memory."""

    path: Path
    array: NDArray[Any]

    @cached_property
    def reader(self) -> RowReader:
        return RowReader(self.array)

    @property
    def size(self) -> int:
        return int(self.array.shape[1])

    @property
    def dtype(self) -> "np.dtype[Any]":
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def read(self, first: int, last: int) -> NDArray[Any]:
        return self.reader.part(first, last)


@dataclass(frozen=True)
class Names:
    """Which arrays or columns of a file hold what. Empty: those with the usual names."""

    x: tuple[str, ...] = ()
    y: str = ""
    labels: Path | None = None
    """A file of its own for the labels."""


def is_array_file(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES or is_number_table(path)


def open_rows(path: Path, names: Names) -> Rows:
    """The rows of a file. ``OcilError`` if it holds none."""
    if path.suffix.lower() == ".parquet":
        from ocil.online.parquet import ParquetRows

        return ParquetRows(path, names.x, names.y)
    if path.suffix.lower() == ".csv":
        return ArrayRows(path, NumberTable.read(path).vectors(names.x, names.y))
    return ArrayRows(path, _checked_rows(path, _array(path, names.x, "x", "--x")))


def open_labels(path: Path, names: Names) -> list[ClassLabel]:
    """The labels that belong to the rows of a file, in their order."""
    if names.labels is not None:
        if names.y:
            raise OcilError("--y and --labels both name the labels: give one of them.")
        return _label_file(names.labels)
    if path.suffix.lower() == ".parquet":
        from ocil.online.parquet import read_labels

        return read_labels(path, names.y)
    if path.suffix.lower() == ".csv":
        return _labels_of(NumberTable.read(path), names)
    if path.suffix.lower() == ".npy":
        raise OcilError(
            f"{path} has no labels: name a file of them with --labels, a .npy, or a .txt with one per line."
        )
    return as_labels(path, _array(path, (names.y,) if names.y else (), "y", "--y"))


def _labels_of(table: NumberTable, names: Names) -> list[ClassLabel]:
    labels = table.labels(names.y)
    if labels is None:
        known = listed(table.columns)
        raise OcilError(
            f"{table.path} has no column of labels: name it with --y, or a file with --labels; there are {known}."
        )
    return [*labels]


def as_labels(path: Path, array: NDArray[Any]) -> list[ClassLabel]:
    """Labels as plain Python values: text, whole numbers, or true and false."""
    if array.ndim:
        array = RowReader(array).part(0, len(array))
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise OcilError(f"the labels in {path} must be one per row, but their array is {_sizes(array.shape)}.")
    if array.dtype.kind == "f" and (np.abs(array) <= EXACT).all() and (array == np.rint(array)).all():
        array = array.astype(np.int64)
    if array.dtype.kind not in "biuU":
        raise OcilError(f"the labels in {path} must be text or whole numbers, not {array.dtype}.")
    labels: list[ClassLabel] = array.tolist()
    return labels


def _label_file(path: Path) -> list[ClassLabel]:
    if path.suffix.lower() == ".npy":
        return as_labels(path, _array(path, (), "y", "--y"))
    try:
        lines = lines_of(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise OcilError(f"{path} cannot be read: {error}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise OcilError(f"{path}, line {number}: a label is missing.")
    return [line.strip() for line in lines]


def _checked_rows(path: Path, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 2 or not array.shape[1]:
        raise OcilError(
            f"{path} holds an array of {_sizes(array.shape)}: rows of numbers [N, D] are learned. For images, name a "
            "folder or a .csv file."
        )
    if array.dtype.kind not in "biuf":
        raise OcilError(f"{path} holds {array.dtype}, not numbers.")
    return array


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _array(path: Path, chosen: Sequence[str], usual: str, option: str) -> NDArray[Any]:
    """An array of a file, by its name in it."""
    try:
        if path.suffix.lower() == ".npy":
            if chosen:
                raise OcilError(f"{path} holds one array without a name: leave out {option}.")
            with path.open("rb") as file:
                return _in_file(path, file, 0, path.stat().st_size)
        return _from_archive(path, chosen, usual, option)
    except (OcilError, MemoryError):
        raise
    except Exception as error:  # a broken file can fail in any way, down to numpy's parsing of Python source
        in_words = isinstance(error, OSError | ValueError | EOFError | zipfile.BadZipFile | NotImplementedError)
        text = " ".join(str(error).split())[:200] if in_words else f"it is damaged ({type(error).__name__})"
        raise OcilError(f"{path} cannot be read: {getattr(error, 'strerror', None) or text}.") from None


def _from_archive(path: Path, chosen: Sequence[str], usual: str, option: str) -> NDArray[Any]:
    if len(chosen) > 1:
        raise OcilError(f"{option} {' '.join(chosen)}: an .npz file has its rows in one array, so name one.")
    name = chosen[0] if chosen else usual
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        there = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if name not in there:
            known = ", ".join(sorted(there)[:8]) or "nothing"
            raise OcilError(f"{path} has no array '{name}': it has {known}. Name one with {option}.")
        entry = there[name]
        if entry.flag_bits & ENCRYPTED:
            raise ValueError("it is encrypted")
        if is_stored(entry):
            start = content_offset(file, entry)
            if start + entry.file_size > path.stat().st_size:
                raise ValueError("it is cut short")
            return _in_file(path, file, start, start + entry.file_size)
        if entry.file_size > machine_memory() // 2:
            size = bytes_text(entry.file_size)
            raise OcilError(f"'{name}' of {path} has {size} unpacked: save it as .npy, which is read in parts.")
        with archive.open(entry) as packed:
            content = io.BytesIO(packed.read(entry.file_size + 1))
    shape, order, dtype = _header(content, content.getbuffer().nbytes)
    return np.frombuffer(content.getbuffer(), dtype, prod(shape), content.tell()).reshape(shape, order=order)


def _in_file(path: Path, file: BinaryIO, start: int, end: int) -> NDArray[Any]:
    """The array in a file from byte ``start`` on. It stays there, unless it is tiny or its columns lie together."""
    file.seek(start)
    shape, order, dtype = _header(file, end)
    if order == "C" and prod(shape) * dtype.itemsize >= dtype.itemsize + 1:
        return mapped(path.resolve(), dtype, shape, file.tell())
    if end - start > machine_memory() // 2:
        size = bytes_text(end - start)
        raise OcilError(f"{path} has {size} with its columns together: save it by rows, with np.ascontiguousarray.")
    return np.frombuffer(file.read(end - file.tell()), dtype, prod(shape)).reshape(shape, order=order)


def _header(file: BinaryIO, end: int) -> tuple[tuple[int, ...], Any, "np.dtype[Any]"]:
    """Shape, order and type of an array, checked against the bytes up to ``end``; then the file is at its numbers."""
    shape, dtype, _, columns_first = read_header(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which are not loaded")
    if any(side < 0 for side in shape) or prod(shape) * dtype.itemsize != end - file.tell():
        raise ValueError(f"its header asks for {_sizes(shape)} numbers, which are not what it holds")
    return shape, "F" if columns_first else "C", dtype
