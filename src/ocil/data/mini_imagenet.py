"""Mini-ImageNet from its three pickles, or from images and a CSV split.

Classes are numbered in the order train, val, test; within each file in the order of their images in the pickle, or
sorted by name with a CSV. One permutation per class, drawn from seed 0 in class order, makes the split: its first 100
images are the test set, the other 500 the training set.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data.catalog import DatasetInfo
from ocil.data.dataset import Dataset, shape_text
from ocil.data.images import read_image
from ocil.data.unpickle import load_pickle, text_of
from ocil.errors import OcilError

SPLITS = ("train", "val", "test")
PICKLE = "mini-imagenet-cache-{split}.pkl"
SEED = 0

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class _Class:
    """One class: its name, how many images it has, and how to read some of them."""

    name: str
    count: int
    read: Callable[[NDArray[np.int64]], Images]


def read_mini_imagenet(source: Path, info: DatasetInfo) -> Dataset:
    """``source`` is the folder with the three pickles or the three CSV files; ``info`` gives its classes and images."""
    if not source.is_dir():
        raise OcilError(f"{source} is not a folder. Give the one with {PICKLE.format(split='train')} or train.csv.")
    if (source / PICKLE.format(split="train")).is_file():
        read_split = _pickle_classes
    elif (source / "train.csv").is_file():
        read_split = _csv_classes
    else:
        raise OcilError(f"{source} has neither {PICKLE.format(split='train')} nor train.csv. Give the folder that has.")

    builder = _ClassByClass(source, info)
    for split in SPLITS:  # one at a time: a pickle takes most of a gigabyte
        for item in read_split(source, split, info):
            builder.add(item)
    return builder.finish()


class _ClassByClass:
    """Fills the arrays class by class, so that no image is held twice."""

    def __init__(self, source: Path, info: DatasetInfo) -> None:
        self.source, self.info = source, info
        self.test_each = info.test // info.classes
        self.train_each = info.train // info.classes
        self.rng = np.random.RandomState(SEED)  # its permutations are the same in every numpy version
        self.train_x = np.empty((info.train, *info.image_shape), np.uint8)
        self.test_x = np.empty((info.test, *info.image_shape), np.uint8)
        self.names: list[str] = []

    def add(self, item: _Class) -> None:
        label, each = len(self.names), self.train_each + self.test_each
        if item.name in self.names:
            raise OcilError(f"{self.source}: class {item.name} is in two of the files. Are they three different files?")
        if item.count != each:
            raise OcilError(f"{self.source}: class {item.name} has {item.count} images, expected {each}.")
        if label == self.info.classes:
            raise OcilError(f"{self.source} has more than the expected {label} classes.")
        order = self.rng.permutation(each).astype(np.int64)
        test, train = order[: self.test_each], order[self.test_each :]
        self.test_x[label * self.test_each : (label + 1) * self.test_each] = item.read(test)
        self.train_x[label * self.train_each : (label + 1) * self.train_each] = item.read(train)
        self.names.append(item.name)

    def finish(self) -> Dataset:
        if len(self.names) != self.info.classes:
            raise OcilError(f"{self.source} has {len(self.names)} classes, expected {self.info.classes}.")
        labels = np.arange(self.info.classes, dtype=np.int64)
        train_y, test_y = labels.repeat(self.train_each), labels.repeat(self.test_each)
        return Dataset(self.info.name, self.train_x, train_y, self.test_x, test_y, tuple(self.names))


def _pickle_classes(source: Path, split: str, info: DatasetInfo) -> list[_Class]:
    path = source / PICKLE.format(split=split)
    try:
        with path.open("rb") as file:
            content = load_pickle(file, str(path))
    except OSError as error:
        raise OcilError(f"cannot read {path}: {error.strerror or error}. All three pickles are needed.") from error
    images, members = _pickle_parts(path, content)
    if images.dtype != np.uint8 or images.shape[1:] != info.image_shape:
        want = shape_text(info.image_shape)
        raise OcilError(f"{path}: images must be uint8 {want}, but are {images.dtype} {shape_text(images.shape[1:])}.")

    def of_class(name: str, indices: NDArray[np.int64]) -> _Class:
        return _Class(name, len(indices), lambda chosen: images[indices[chosen]])

    listed = {name: _indices(path, name, members[name], len(images)) for name in sorted(members)}
    first = {name: int(indices.min(initial=len(images))) for name, indices in listed.items()}
    return [of_class(name, listed[name]) for name in sorted(listed, key=first.__getitem__)]


def _pickle_parts(path: Path, content: Any) -> tuple[NDArray[Any], dict[str, Any]]:
    wrong = OcilError(f"{path} must hold 'image_data' and 'class_dict'. Get the published file.")
    if not isinstance(content, dict):
        raise wrong
    parts = {text_of(key): value for key, value in content.items()}
    images, members = parts.get("image_data"), parts.get("class_dict")
    if not isinstance(images, np.ndarray) or not isinstance(members, dict):
        raise wrong
    return np.asarray(images), {text_of(key): value for key, value in members.items()}


def _indices(path: Path, name: str, values: Any, total: int) -> NDArray[np.int64]:
    try:
        indices = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        indices = np.empty(0)
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or not ((indices >= 0) & (indices < total)).all():
        raise OcilError(f"{path}: class {name} must list image numbers from 0 to {total - 1}. Get the published file.")
    return indices.astype(np.int64)


def _csv_classes(source: Path, split: str, info: DatasetInfo) -> list[_Class]:
    path, folder = source / f"{split}.csv", source / "images"
    members: dict[str, list[Path]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if rows.fieldnames is None or not {"filename", "label"} <= set(rows.fieldnames):
                raise OcilError(f"{path} must begin with the line 'filename,label'.")
            for row in rows:
                filename, label = row["filename"] or "", row["label"] or ""
                if not label or not filename or Path(filename).name != filename or "\\" in filename:
                    raise OcilError(f"{path}, line {rows.line_num}: needs the name of a file in images/ and a label.")
                members.setdefault(label, []).append(folder / filename)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise OcilError(f"cannot read {path}: {error}. train.csv, val.csv and test.csv are needed.") from error

    def of_class(name: str, paths: list[Path]) -> _Class:
        side = info.image_shape[0]
        return _Class(name, len(paths), lambda chosen: np.stack([read_image(paths[i], False, side) for i in chosen]))

    return [of_class(name, members[name]) for name in sorted(members)]
