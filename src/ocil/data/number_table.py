"""Tables of numbers: CSV files whose first line names the columns. Every other line is a vector and its label."""

import csv
import io
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ocil.data.label_file import SplitName, columns_of, split_name, text
from ocil.errors import OcilError

LABELS = ("label", "y")
"""Usual names of the column of labels."""
SPLIT = "split"
INDEX = ("", "Unnamed: *")  # pandas writes its index so, and reads it so
WILD = re.compile(r"[*?[]")
FIRST_LINES = 2**20  # bytes that are looked at to find out what a file is


def is_number_table(path: Path) -> bool:
    """Whether a file is a CSV in which most columns are numbers, and not a list of images."""
    if path.suffix.lower() != ".csv" or not path.is_file() or columns_of(path) is not None:
        return False
    try:
        with path.open("rb") as file:
            lines = csv.reader(io.StringIO(file.read(FIRST_LINES).decode("utf-8-sig", "replace"), newline=""))
            names, values = next(lines, []), next(lines, [])
    except (OSError, csv.Error):
        return False
    numbers = [_is_number(value) for name, value in zip(names, values, strict=False) if name.strip() not in LABELS]
    return 2 * sum(numbers) > len(numbers)


def label_column(path: Path, columns: Sequence[str], wanted: str = "") -> str | None:
    """The column of the labels: the one that is wanted, or the one with a usual name."""
    if wanted and wanted not in columns:
        raise OcilError(f"{path} has no column '{wanted}': there are {listed(columns)}.")
    return wanted or next((name for name in LABELS if name in columns), None)


def chosen_columns(columns: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The columns with one of these names, where ``f*`` is all that begin with f."""
    exact, wild = set(patterns), [pattern for pattern in patterns if WILD.search(pattern)]
    return [name for name in columns if name in exact or any(fnmatchcase(name, one) for one in wild)]


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


@dataclass(frozen=True)
class NumberTable:
    """A table in memory, as text."""

    path: Path
    content: str
    columns: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "NumberTable":
        content = text(path.resolve())
        try:
            columns = tuple(name.strip() for name in next(csv.reader(io.StringIO(content, newline="")), []))
        except csv.Error as error:
            raise OcilError(f"{path} is not a CSV file: {error}.") from error
        if columns and all(_is_number(name) for name in columns):
            raise OcilError(f"{path} begins with numbers: its first line must name the columns.")
        if len(set(columns)) < len(columns):
            again = min(name for name, count in Counter(columns).items() if count > 1)
            raise OcilError(f"{path} has several columns with the name '{again}'. Leave one of them.")
        return cls(path, content, columns)

    def features(self, names: Sequence[str] = (), label: str = "") -> list[str]:
        """The columns with these names; without names, all but that of the labels and an index."""
        labels = label_column(self.path, self.columns, label)
        others = [name for name in self.columns if name != labels]
        index = set(chosen_columns(others, INDEX))
        return chosen_columns(others, names) if names else [name for name in others if name not in index]

    def vectors(self, names: Sequence[str] = (), label: str = "") -> NDArray[np.float32]:
        """The numbers ``[N, D]`` of these columns; without names, of all but that of the labels and an index."""
        chosen = self.features(names, label)
        if not chosen:
            raise OcilError(f"{self.path} has no such columns of numbers: there are {listed(self.columns)}.")
        place_of = {name: place for place, name in enumerate(self.columns)}
        places = [place_of[name] for name in chosen]
        numbers = array("f")
        for line, values in self._lines():
            try:
                numbers.extend([float(values[place]) for place in places])
            except ValueError:
                name, value = next((self.columns[n], values[n]) for n in places if not _is_number(values[n]))
                what = f"has {value[:40]!r}, not a number" if value.strip() else "is empty"
                raise OcilError(f"{self.path}, line {line}: column '{name}' {what}.") from None
        return np.frombuffer(numbers, np.float32).reshape(-1, len(places))

    def labels(self, label: str = "") -> list[str] | None:
        """The labels as text; None if no column has a usual name."""
        name = label_column(self.path, self.columns, label)
        if name is None:
            return None
        place, found = self.columns.index(name), []
        for line, values in self._lines():
            if not values[place].strip():
                raise OcilError(f"{self.path}, line {line} has no label.")
            found.append(values[place].strip())
        return found

    def splits(self) -> list[SplitName] | None:
        """To which part each line belongs, by the column ``split``; None if there is none, or if it holds numbers."""
        if SPLIT not in self.columns:
            return None
        place = self.columns.index(SPLIT)
        words = [(line, values[place].strip().lower()) for line, values in self._lines()]
        if all(_is_number(word) for _, word in words):
            return None
        return [split_name(word, f"{self.path}, line {line}") for line, word in words]

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """The values of each line below the first that is not empty, with its number."""
        reader = csv.reader(io.StringIO(self.content, newline=""))
        try:
            next(reader, None)
            for values in reader:
                if not values:
                    continue
                if len(values) != len(self.columns):
                    here, there = len(values), len(self.columns)
                    raise OcilError(f"{self.path}, line {reader.line_num} has {here} values for {there} columns.")
                yield reader.line_num, values
        except csv.Error as error:
            raise OcilError(f"{self.path} is not a CSV file: {error}.") from error


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
