"""Checks whether a stored dataset is the one that the catalog describes."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ocil.data import catalog
from ocil.data.archive import check_sums
from ocil.data.catalog import SOURCES, DatasetInfo
from ocil.data.dataset import AGAIN, Dataset, pieces, shape_text
from ocil.data.lookup import dataset_path, load
from ocil.data.mapped import is_mapped
from ocil.data.raw import damage, is_store


@dataclass(frozen=True)
class Report:
    """What a dataset holds, and how it differs from the catalog."""

    name: str
    classes: int
    image_shape: tuple[int, ...]
    """Height, width and channels of an image, or the length of a vector."""
    train: int
    test: int
    train_md5: str
    known_md5: bool
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def check(name: str, data_dir: Path | None = None) -> Report:
    """Read a dataset in full and validate it (OcilError if that fails), then compare it with the catalog."""
    dataset = load(name, data_dir, verify=False)  # everything is read below
    problems = _damage(name, data_dir) if is_mapped(dataset.train_x) and SOURCES.find(name) is None else ()
    info = catalog.find(dataset.name)
    md5 = train_md5(dataset)
    known = info is not None and info.train_md5 is not None
    problems += differences(dataset, info, md5) if info else ()
    train, test = len(dataset.train_y), len(dataset.test_y)
    return Report(dataset.name, dataset.num_classes, dataset.input_shape, train, test, md5, known, problems)


def _damage(name: str, data_dir: Path | None) -> tuple[str, ...]:
    """The damage to the files of a mapped dataset that is not noticed when it is opened."""
    with dataset_path(name, data_dir) as path:
        if is_store(path):
            return tuple(damage(path))
        check_sums(path, AGAIN)
        return ()


def differences(dataset: Dataset, info: DatasetInfo, md5: str | None = None) -> tuple[str, ...]:
    """How a dataset differs from the one that ``info`` describes, one text per difference."""
    pairs = (
        ("classes", str(dataset.num_classes), str(info.classes)),
        ("image size", shape_text(dataset.input_shape), shape_text(info.image_shape)),
        ("training images", str(len(dataset.train_y)), str(info.train)),
        ("test images", str(len(dataset.test_y)), str(info.test)),
    )
    found = tuple(f"{what} {have}, expected {want}" for what, have, want in pairs if have != want)
    if not found and info.train_md5 and (md5 or train_md5(dataset)) != info.train_md5:
        found = ("the training images are not the published ones or are in another order",)
    return found


def train_md5(dataset: Dataset) -> str:
    """MD5 sum of the bytes of the training images, in order."""
    md5 = hashlib.md5(usedforsecurity=False)
    for piece in pieces(dataset.train_x):
        md5.update(piece.data)
    return md5.hexdigest()
