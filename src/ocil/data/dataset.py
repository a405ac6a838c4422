"""A labelled image dataset in memory: plain arrays, checked once when it is made."""

import hashlib
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError
from ocil.files import atomic_write

KEYS = ("train_x", "train_y", "test_x", "test_y", "classes")
UNREADABLE = (OSError, ValueError, EOFError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images as uint8 [N,H,W,C] with one or three channels, labels as int64 [N] that count from 0."""

    name: str
    train_x: NDArray[np.uint8]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]
    classes: tuple[str, ...]
    unseen: int = 0
    """Further classes that a network must have outputs for although none of their images is here: where the first tasks
    stand for a whole stream, the loss still runs over all classes."""

    def __post_init__(self) -> None:
        self.validate()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        _, height, width, channels = self.train_x.shape
        return height, width, channels

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """Short digest of all images, labels and class names."""
        sha = hashlib.sha256("\n".join(self.classes).encode())
        if self.unseen:
            sha.update(f"and {self.unseen} more".encode())
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()[:12]

    def validate(self) -> None:
        """Raise OcilError, in one line, for the first thing that is not as promised."""
        self._check_names()
        for split, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            self._check_images(split, x)
            self._check_labels(split, x, y)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            train, test = (shape_text(x.shape[1:]) for x in (self.train_x, self.test_x))
            self._refuse(f"training images are {train} but test images are {test}; both must have one size")
        counts = np.bincount(self.train_y, minlength=self.num_classes)
        if not counts.all():
            label = int(counts.argmin())
            self._refuse(f"class {label} ('{self.classes[label]}') has no training image; add some or drop the class")

    def save(self, path: Path, compressed: bool = False) -> None:
        """Write one .npz file; it is there whole or not at all."""
        arrays: dict[str, Any] = {key: getattr(self, key) for key in KEYS}
        arrays["classes"] = np.array(self.classes, dtype=np.str_)
        if self.unseen:
            arrays["unseen"] = np.int64(self.unseen)
        with atomic_write(path) as file:
            (np.savez_compressed if compressed else np.savez)(file, **arrays)

    def _check_names(self) -> None:
        if not self.classes:
            self._refuse("there are no class names; give one name a class")
        for name, times in Counter(self.classes).items():
            if times > 1:
                self._refuse(f"the class name {name!r} appears {times} times; names must differ")
            if not name or not name.isprintable():
                self._refuse(f"the class name {name!r} is empty or has unprintable characters; rename it")

    def _check_images(self, split: str, x: NDArray[Any]) -> None:
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3) or 0 in x.shape[1:]:
            self._refuse(f"{split}_x must be uint8 [N,H,W,C] with C 1 or 3, but it is {x.dtype} {list(x.shape)}")

    def _check_labels(self, split: str, x: NDArray[Any], y: NDArray[Any]) -> None:
        if y.dtype != np.int64 or y.ndim != 1:
            self._refuse(f"{split}_y must be int64 [N], but it is {y.dtype} {list(y.shape)}")
        if len(x) != len(y):
            self._refuse(f"{split} has {len(x)} images but {len(y)} labels; there must be one label an image")
        if len(y) == 0:
            self._refuse(f"the {split} split is empty; it needs at least one image")
        for label in (int(y.min()), int(y.max())):
            if not 0 <= label < self.num_classes:
                self._refuse(f"label {label} in {split}_y is outside 0..{self.num_classes - 1}")

    def _refuse(self, what: str) -> None:
        raise OcilError(f"dataset '{self.name}': {what}.")


def load_npz(path: Path, name: str) -> Dataset:
    """Read what ``Dataset.save`` wrote. Pickled content is refused, never run."""
    try:
        with _open(path) as archive:
            arrays = {key: archive[key] for key in KEYS}
            unseen = int(archive["unseen"]) if "unseen" in archive else 0
    except UNREADABLE as error:
        raise OcilError(f"cannot read {path}: {_reason(error)}. Import or download the dataset again.") from error
    classes = arrays.pop("classes")
    if classes.dtype.kind != "U" or classes.ndim != 1:
        raise OcilError(f"{path}: classes must be a list of names, but it is {classes.dtype} {list(classes.shape)}.")
    return Dataset(name=name, classes=tuple(classes.tolist()), unseen=unseen, **arrays)


def peek_npz(path: Path) -> tuple[int, tuple[int, ...], int, int]:
    """Number of classes, image shape, training and test images, from the headers alone: a listing stays quick."""
    try:
        with _open(path) as archive:
            (classes,), (train, *image), (test, *_) = (
                _header_shape(archive, key) for key in ("classes", "train_x", "test_x")
            )
    except UNREADABLE as error:
        raise OcilError(f"cannot read {path}: {_reason(error)}. Import or download the dataset again.") from error
    return classes, tuple(image), train, test


def shape_text(shape: tuple[int, ...]) -> str:
    """``32x32x3``."""
    return "x".join(map(str, shape))


def _open(path: Path) -> Any:
    # np.load takes a bare array or a pickle as well; only a zip archive can be a dataset.
    if not path.is_file():
        raise FileNotFoundError("it is not a file" if path.exists() else "there is no such file")
    if not zipfile.is_zipfile(path):
        raise ValueError("it is cut short or not an .npz file")
    return np.load(path, allow_pickle=False)


def _header_shape(archive: Any, key: str) -> tuple[int, ...]:
    with archive.zip.open(f"{key}.npy") as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape: tuple[int, ...] = read(member)[0]
    return shape


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"an array is missing (it needs {', '.join(KEYS)})"
    if isinstance(error, ValueError) and "allow_pickle" in str(error):
        return "it holds pickled objects, which are not loaded"
    if isinstance(error, MemoryError):
        return "it does not fit in memory"
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
