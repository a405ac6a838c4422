"""Labelled samples on disk, in the order in which they are learned."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ocil.data.label_file import LabelledFile, read_label_file
from ocil.data.layouts import list_images, other_pictures, training_folder
from ocil.data.split import MOST_SEED
from ocil.errors import OcilError
from ocil.online.arrays import ArrayRows, Names, Rows, is_array_file, open_labels, open_rows
from ocil.online.formats import InputFormat
from ocil.online.images import ImageFormat
from ocil.online.inputs import InputError, first_not_finite
from ocil.online.labels import ClassLabel, encoded
from ocil.online.vectors import VectorFormat
from ocil.text import bytes_text

CHECKED_TOGETHER = 2**22
"""Numbers that are looked at together when a whole file is checked."""
SHUFFLED_BYTES = 2**30
"""A Parquet file is learned in random order only if its numbers fit into so much memory."""


class LabelledBatch(NamedTuple):
    """Samples as a model takes them, and why others are left out."""

    inputs: NDArray[Any]
    labels: list[ClassLabel]
    problems: list[str]


class LabelledSource(Protocol):
    """Labelled samples in a fixed order."""

    @property
    def labels(self) -> Sequence[ClassLabel]:
        """The label of each of them, before those that cannot be read are left out."""

    def __len__(self) -> int: ...

    def check(self, input_format: InputFormat, new: bool = True) -> None:
        """Raise an ``OcilError`` if a model of this format cannot learn these samples. ``new``: it has learned none."""

    def batch(self, first: int, last: int, input_format: InputFormat) -> LabelledBatch:
        """The samples from ``first`` up to, but not including, ``last``."""

    def identities(self, first: int, last: int) -> Iterator[bytes]:
        """What distinguishes these samples from others: a list that was learned in part is known by it."""


@dataclass(frozen=True)
class LabelledImages:
    """Image files. One that cannot be read is left out. They are known by their names and labels."""

    files: Sequence[LabelledFile]

    @property
    def labels(self) -> Sequence[ClassLabel]:
        return [file.label for file in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def check(self, input_format: InputFormat, new: bool = True) -> None:
        """Raise an ``OcilError`` if the model is new and not one image can be read. It stops at the first that can."""
        if not isinstance(input_format, ImageFormat):
            raise OcilError(f"the model takes {input_format}, and these are images.")
        if not new:
            return
        first: InputError | None = None
        for file in self.files:
            try:
                input_format.read([file.path])
            except InputError as error:
                first = first or error
            else:
                return
        raise OcilError(f"not one of {len(self)} images could be read, the first because {first}")

    def batch(self, first: int, last: int, input_format: InputFormat) -> LabelledBatch:
        images: list[NDArray[Any]] = []
        labels: list[ClassLabel] = []
        problems: list[str] = []
        for file in self.files[first:last]:
            try:
                images.append(input_format.read([file.path])[0])
                labels.append(file.label)
            except InputError as error:
                problems.append(str(error))
        empty = np.empty((0, *input_format.network_shape), input_format.dtype)
        return LabelledBatch(np.stack(images) if images else empty, labels, problems)

    def identities(self, first: int, last: int) -> Iterator[bytes]:
        for file in self.files[first:last]:
            yield f"{file.name}\0{file.label}\0".encode(errors="surrogatepass")  # a name need not be text


@dataclass(frozen=True)
class LabelledRows:
    """Rows of numbers with their labels. They are known by both, whatever file they are in."""

    rows: Rows
    labels: Sequence[ClassLabel]
    input_format: VectorFormat

    @classmethod
    def of(cls, path: Path, names: Names, shuffle: int | None = None) -> "LabelledRows":
        rows, labels = open_rows(path, names), open_labels(path, names)
        if len(rows) != len(labels):
            raise OcilError(f"{path} has {len(rows)} rows, and there are {len(labels)} labels: each row needs one.")
        if not len(rows):
            raise OcilError(f"{path} has no rows.")
        input_format = VectorFormat(rows.size, "float16" if rows.dtype == np.float16 else "float32")
        if shuffle is not None:
            order = random_order(len(rows), shuffle)
            rows, labels = _shuffled(rows, order), [labels[number] for number in order]
        return cls(rows, labels, input_format)

    def __len__(self) -> int:
        return len(self.labels)

    def check(self, input_format: InputFormat, new: bool = True) -> None:
        """Raise an ``OcilError`` if a row is not finite, before anything is learned."""
        if not isinstance(input_format, VectorFormat) or input_format.size != self.rows.size:
            raise OcilError(f"the model takes {input_format}, and these are {self.input_format}.")
        together = max(1, CHECKED_TOGETHER // self.rows.size)
        for first in range(0, len(self), together):
            with np.errstate(over="ignore"):
                part = self.rows.read(first, min(first + together, len(self))).astype(input_format.dtype)
            if not np.isfinite(part).all():
                number = first + first_not_finite(part)
                if isinstance(self.rows, _InOrder):
                    number = int(self.rows.order[number])
                row = f"row {number} of {self.rows.path}"
                reason = f"NaN, infinite or too large for {input_format.precision}"
                raise OcilError(
                    f"{row} has a number that is {reason}: replace it, or leave the row out. The first row is row 0."
                )

    def batch(self, first: int, last: int, input_format: InputFormat) -> LabelledBatch:
        return LabelledBatch(input_format.read(self.rows.read(first, last)), list(self.labels[first:last]), [])

    def identities(self, first: int, last: int) -> Iterator[bytes]:
        together = max(1, CHECKED_TOGETHER // self.rows.size)
        for start in range(first, last, together):
            end = min(start + together, last)
            part = self.rows.read(start, end).astype(self.input_format.dtype)
            for row, label in zip(part, self.labels[start:end], strict=True):
                yield row.tobytes() + json.dumps(encoded(label)).encode()


@dataclass(frozen=True)
class _InOrder:
    """Rows of an array in another order."""

    rows: ArrayRows
    order: NDArray[np.int64]

    @property
    def path(self) -> Path:
        return self.rows.path

    @property
    def size(self) -> int:
        return self.rows.size

    @property
    def dtype(self) -> "np.dtype[Any]":
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.order)

    def read(self, first: int, last: int) -> NDArray[Any]:
        return self.rows.reader.take(self.order[first:last])


def _shuffled(rows: Rows, order: NDArray[np.int64]) -> Rows:
    if isinstance(rows, ArrayRows):
        return _InOrder(rows, order)
    size = len(rows) * rows.size * rows.dtype.itemsize
    if size > SHUFFLED_BYTES:
        raise OcilError(
            f"{rows.path} has {bytes_text(size)} of numbers, too many to read in a random order: shuffle its rows "
            "when you write it, or save it as .npy."
        )
    return _InOrder(ArrayRows(rows.path, rows.read(0, len(rows))), order)


def class_after_class(labels: Sequence[ClassLabel]) -> bool:
    """Whether all samples of a class come before the first of the next one.

    >>> class_after_class(["cat", "cat", "dog"]), class_after_class(["cat", "dog", "cat"])
    (True, False)
    >>> class_after_class(["cat", "dog"]), class_after_class(["cat", "cat"])  # one of each, or one class
    (False, False)
    """
    return 1 < len(set(labels)) == sum(1 for _ in groupby(labels)) < len(labels)


def random_order(count: int, seed: int) -> NDArray[np.int64]:
    if not 0 <= seed <= MOST_SEED:
        raise OcilError(f"the seed {seed} of the random order must be from 0 to {MOST_SEED}.")
    return np.random.RandomState(seed).permutation(count)  # the same in every version of numpy


def open_source(path: Path, names: Names | None = None, shuffle: int | None = None) -> LabelledSource:
    """The labelled samples of a file of rows, or of a list of images."""
    names = names or Names()
    if is_array_file(path):
        return LabelledRows.of(path, names, shuffle)
    if names != Names():
        raise OcilError(f"--x, --y and --labels are for files of numbers, not for {path}: leave them out.")
    return LabelledImages(read_list(path, shuffle))


def read_list(source: Path, shuffle: int | None = None) -> list[LabelledFile]:
    """The labelled images of a list: a CSV with columns ``path`` and ``label``, or a folder CLASS/IMAGE or
    CLASS/images/IMAGE.

    The rows of a CSV keep their order; the images of a folder are sorted by class and name. Of a folder with a split,
    only train/CLASS is read, and of a CSV with a column ``split`` only the rows for training. ``shuffle``: the seed of
    a random order.
    """
    if source.is_dir():
        files = _read_folder(source)
    elif source.suffix.lower() == ".csv" and source.is_file():
        files = _read_csv(source)
    elif not source.exists():
        raise OcilError(f"there is no file or folder {source}.")
    else:
        raise OcilError(
            f"{source} is neither a folder CLASS/IMAGE nor a .csv file with columns path and label, nor rows of "
            "numbers in a .npy, .npz, .parquet or .csv file."
        )
    if shuffle is not None:
        files = [files[number] for number in random_order(len(files), shuffle)]
    return files


def _read_folder(source: Path) -> list[LabelledFile]:
    root, classes = training_folder(source)
    files = [
        LabelledFile(path.relative_to(root).as_posix(), path, classes[label])
        for path, label in list_images(root, classes)
    ]
    if not files:
        others = other_pictures([root], classes)
        advice = f"It has {others}" if others else f"Lay them out as {source.absolute().name}/CLASS/IMAGE.png"
        raise OcilError(f"{root} holds no images. {advice}.")
    return files


def left_out_of(source: Path) -> str:
    """Which pictures of a folder ``read_list`` passes over, see ``other_pictures``."""
    if not source.is_dir():
        return ""
    root, classes = training_folder(source)
    return other_pictures([root], classes)


def _read_csv(source: Path) -> list[LabelledFile]:
    files = [file for file in read_label_file(source) if file.split == "train"]
    if not files:
        raise OcilError(f"{source} has no images for training: its column split says test or val in every line.")
    return files
