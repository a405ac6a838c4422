"""Rows of numbers in a Parquet file: one column of lists, or one column per number. Needs the extra ``parquet``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError, optional

with optional("reading Parquet files needs pyarrow", "parquet", "pyarrow"):
    import pyarrow as pa
    import pyarrow.parquet as pq
    import pyarrow.types as kinds

from ocil.data.number_table import chosen_columns, label_column, listed
from ocil.online.labels import ClassLabel

INDEX = "__index_level_*"  # pandas writes its index so
NUMBERS = 2**22
"""Numbers that are decoded together."""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A Parquet file inside this block; whatever is wrong with it becomes one ``OcilError``."""
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError, KeyError, NotImplementedError) as error:
        if isinstance(error, OcilError):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise OcilError(f"{path} cannot be read: {reason.rstrip('.')}.") from None


class ParquetRows:
    """The rows of a Parquet file, decoded some at a time. Reading on is cheap, going back reads a row group again."""

    def __init__(self, path: Path, x: Sequence[str] = (), y: str = "") -> None:
        """``x`` and ``y``: the columns of numbers and of labels; empty: those with the usual names."""
        self.path = path
        with opened(path) as file:
            self._length: int = file.metadata.num_rows
            self._groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            self._columns = _vector_columns(path, file.schema_arrow, x, y)
            field = file.schema_arrow.field(self._columns[0])
            self._is_lists = _is_list(field.type)
            types = [file.schema_arrow.field(name).type for name in self._columns]
            self.dtype = np.result_type(
                *(_number_type(path, name, kind) for name, kind in zip(self._columns, types, strict=True))
            )
            self.size = len(self._columns)
            if self._is_lists:
                self.size = field.type.list_size if kinds.is_fixed_size_list(field.type) else self._first_length(file)
        if self._length and not self.size:
            raise OcilError(f"the lists in column '{self._columns[0]}' of {path} are empty.")
        self._parts: Iterator[NDArray[Any]] = iter(())
        self._part, self._at = np.empty((0, self.size), self.dtype), 0

    def __len__(self) -> int:
        return self._length

    def read(self, first: int, last: int) -> NDArray[Any]:
        if first < self._at:
            self._seek(first)
        found = []
        while first < last:
            while self._at + len(self._part) <= first:
                self._next()
            part = self._part[first - self._at : last - self._at]
            found.append(part)
            first += len(part)
        return np.concatenate(found) if found else self._part[:0]

    def _seek(self, row: int) -> None:
        group = start = 0
        while group < len(self._groups) and start + self._groups[group] <= row:
            start += self._groups[group]
            group += 1
        self._parts, self._part, self._at = self._decoded(group), self._part[:0], start

    def _next(self) -> None:
        if not self._at and not len(self._part):
            self._parts = self._decoded(0)
        self._at += len(self._part)
        part = next(self._parts, None)
        if part is None:
            raise OcilError(f"{self.path} is cut short: it has {self._at} rows, not the {self._length} that it claims.")
        self._part = part

    def _decoded(self, group: int) -> Iterator[NDArray[Any]]:
        together = max(1, NUMBERS // max(1, self.size))
        with opened(self.path) as file:
            groups = range(group, file.num_row_groups)
            for batch in file.iter_batches(together, row_groups=groups, columns=self._columns):
                if batch.num_rows:
                    yield self._numbers(batch)

    def _numbers(self, batch: Any) -> NDArray[Any]:
        if self._is_lists:
            return self._from_lists(batch.column(0))
        columns = []
        for name in self._columns:
            column = batch.column(batch.schema.get_field_index(name))
            if column.null_count:
                raise OcilError(f"column '{name}' of {self.path} has missing values: leave out these rows.")
            columns.append(column.to_numpy(zero_copy_only=False))
        return np.stack(columns, 1).astype(self.dtype, copy=False)

    def _from_lists(self, column: Any) -> NDArray[Any]:
        lengths = column.value_lengths() if not kinds.is_fixed_size_list(column.type) else None
        if column.null_count or (lengths is not None and (lengths.to_numpy(zero_copy_only=False) != self.size).any()):
            raise OcilError(f"column '{self._columns[0]}' of {self.path} has lists of other lengths than {self.size}.")
        values = column.flatten()
        if values.null_count:
            raise OcilError(f"column '{self._columns[0]}' of {self.path} has missing values: leave out these rows.")
        found: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(column), self.size)
        return found

    def _first_length(self, file: Any) -> int:
        for batch in file.iter_batches(1, columns=self._columns):
            (first,) = batch.column(0).value_lengths().to_pylist()
            return int(first or 0)
        return 0


def read_labels(path: Path, y: str = "") -> list[ClassLabel]:
    """The labels of a Parquet file, each equal one the same object: a long file has few classes."""
    with opened(path) as file:
        schema = file.schema_arrow
        name = label_column(path, schema.names, y)
        if name is None:
            raise OcilError(f"{path} has no column of labels: name it with --y; there are {listed(schema.names)}.")
        kind = schema.field(name).type
        kind = kind.value_type if kinds.is_dictionary(kind) else kind
        if not (
            kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind)
        ):
            raise OcilError(f"column '{name}' of {path} has {kind}, but labels must be text or whole numbers.")
        once: dict[ClassLabel, ClassLabel] = {}
        labels = [
            once.setdefault(one, one)
            for batch in file.iter_batches(columns=[name])
            for one in batch.column(0).to_pylist()
        ]
    if None in once:
        raise OcilError(f"column '{name}' of {path} has missing labels: row {labels.index(None)}.")
    return labels


def _vector_columns(path: Path, schema: Any, x: Sequence[str], y: str) -> list[str]:
    label = label_column(path, schema.names, y)
    others = [name for name in schema.names if name != label and not fnmatchcase(name, INDEX)]
    if x:
        chosen = chosen_columns(others, x)
    else:
        lists = [name for name in others if _is_list(schema.field(name).type)]
        chosen = lists if len(lists) == 1 else others
    if not chosen:
        raise OcilError(f"{path} has no columns of numbers: name them with --x; there are {listed(schema.names)}.")
    if len(chosen) > 1 and any(_is_list(schema.field(name).type) for name in chosen):
        raise OcilError(f"{path} has several columns with lists: name one with --x; there are {listed(chosen)}.")
    return chosen


def _is_list(kind: Any) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _number_type(path: Path, name: str, kind: Any) -> "np.dtype[Any]":
    kind = kind.value_type if _is_list(kind) else kind
    if not (kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_boolean(kind)):
        raise OcilError(f"column '{name}' of {path} has {kind}, not numbers: name the columns of numbers with --x.")
    found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return found
