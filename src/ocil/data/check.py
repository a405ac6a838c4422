"""Checks whether a stored dataset is the one that the catalog describes."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ocil.data import catalog
from ocil.data.catalog import DatasetInfo
from ocil.data.dataset import Dataset, shape_text
from ocil.data.store import load


@dataclass(frozen=True)
class Report:
    """What a dataset holds, and how it differs from the catalog."""

    name: str
    classes: int
    image_shape: tuple[int, int, int]
    train: int
    test: int
    train_md5: str
    known_md5: bool
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def check(name: str, data_dir: Path | None = None) -> Report:
    """Read and validate a dataset (OcilError if that fails), then compare it with the catalog."""
    dataset = load(name, data_dir)
    info = catalog.find(dataset.name)
    md5 = train_md5(dataset)
    known, problems = info is not None and info.train_md5 is not None, differences(dataset, info, md5) if info else ()
    train, test = len(dataset.train_y), len(dataset.test_y)
    return Report(dataset.name, dataset.num_classes, dataset.image_shape, train, test, md5, known, problems)


def differences(dataset: Dataset, info: DatasetInfo, md5: str | None = None) -> tuple[str, ...]:
    """How a dataset differs from the one that ``info`` describes, one text per difference."""
    pairs = (
        ("classes", str(dataset.num_classes), str(info.classes)),
        ("image size", shape_text(dataset.image_shape), shape_text(info.image_shape)),
        ("training images", str(len(dataset.train_y)), str(info.train)),
        ("test images", str(len(dataset.test_y)), str(info.test)),
    )
    found = tuple(f"{what} {have}, expected {want}" for what, have, want in pairs if have != want)
    if not found and info.train_md5 and (md5 or train_md5(dataset)) != info.train_md5:
        found = ("the training images are not the published ones or are in another order",)
    return found


def train_md5(dataset: Dataset) -> str:
    """MD5 sum of the bytes of the training images, in order."""
    return hashlib.md5(np.ascontiguousarray(dataset.train_x).data, usedforsecurity=False).hexdigest()
