"""Long-tailed datasets: cut from a balanced one, or read from published file lists and a folder of images."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil import data
from ocil.data import Dataset
from ocil.data.archive import names_in, read_arrays
from ocil.data.images import read_image
from ocil.data.places import data_dirs
from ocil.errors import OcilError
from ocil.files import atomic_write
from ocil.limits import MAX_SIDE
from ocil.longtail.config import LongTailConfig
from ocil.rng import derive
from ocil.text import lines_of

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

ARRAYS = ("train_x", "train_y", "val_x", "val_y", "test_x", "test_y", "open_x")
LISTS = ("train", "val", "test", "open")
FOLDER = "longtail"  # holds prepared long-tailed datasets, in the folder of the datasets
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
MAX_BYTES = 16 * 2**30
LABEL_DIGITS = 9  # at most; no list has so many classes


@dataclass(frozen=True, eq=False)
class LongTailed:
    """A long-tailed dataset. Known classes count from 0; ``open_x`` are test images of classes never trained on."""

    name: str
    train_x: Images
    train_y: Labels
    val_x: Images
    val_y: Labels
    test_x: Images
    test_y: Labels
    open_x: Images
    classes: tuple[str, ...]
    """Names of the known classes; of a cut dataset from the largest to the smallest."""
    open_classes: tuple[str, ...] = ()
    train_index: Labels | None = None
    """Indices of the training images in the dataset that this was cut from."""
    val_index: Labels | None = None
    digest: str = ""
    """Identifies the images: a digest of their indices, or of the images of a prepared dataset."""
    fingerprint: str = ""
    """Of the dataset that this was cut from; the digest of a prepared one."""

    def __post_init__(self) -> None:
        for split in ("train", "val", "test"):
            images, labels = getattr(self, f"{split}_x"), getattr(self, f"{split}_y")
            if len(images) != len(labels) or not len(labels):
                raise OcilError(f"{self.name}: {split} has {len(images)} images and {len(labels)} labels.")
            if labels.min() < 0 or labels.max() >= len(self.classes):
                raise OcilError(f"{self.name}: a label of {split} is outside 0..{len(self.classes) - 1}.")
        if not self.counts.all():
            raise OcilError(f"{self.name}: class {int(self.counts.argmin())} has no training image.")

    @property
    def counts(self) -> Labels:
        """Training images of each class."""
        return np.bincount(self.train_y, minlength=len(self.classes))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        _, height, width, channels = self.train_x.shape
        return height, width, channels

    def summary(self) -> dict[str, Any]:
        """What a result records: classes, numbers of images, and the digest."""
        return {
            "classes": list(self.classes),
            "open_classes": list(self.open_classes),
            "counts": self.counts.tolist(),
            "train": len(self.train_y),
            "validation": len(self.val_y),
            "test": len(self.test_y),
            "open": len(self.open_x),
            "digest": self.digest,
        }


class LongTailDeviceData:
    """The images of a long-tailed dataset on a device, as uint8. The runs of a seed share them."""

    def __init__(self, split: LongTailed, device: torch.device) -> None:
        def put(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)

        self.split, self.device = split, device
        self.train_x, self.train_y, self.val_x, self.val_y, self.test_x, self.test_y, self.open_x = (
            put(getattr(split, name)) for name in ARRAYS
        )


def profile(classes: int, most: int, imbalance: float) -> list[int]:
    """Images per class, falling exponentially from ``most`` to ``most / imbalance``; at least one."""
    steps = max(1, classes - 1)
    return [max(1, int(most * imbalance ** (-k / steps))) for k in range(classes)]


def cut(dataset: Dataset, imbalance: float, open_share: float, validation: int, seed: int) -> LongTailed:
    """Cut a long tail from a dataset with about as many images of each class. The seed decides which classes are
    unknown, which of the known ones are rare, and which images are kept.

    ``validation`` images of each known class are held out first.
    """
    total = dataset.num_classes
    unknown = round(open_share * total)
    if total - unknown < 2:
        left = f"{total - unknown} of {total} classes known"
        raise OcilError(f"open_share = {open_share:g} leaves {left}: at least 2 are needed.")
    order = _random(seed, "classes").permutation(total)
    known, held_out = order[: total - unknown], np.sort(order[total - unknown :])
    shuffled = _random(seed, "images").permutation(len(dataset.train_y))
    members = [shuffled[dataset.train_y[shuffled] == label] for label in known]
    most = min(map(len, members)) - validation
    if validation < 1 or most < 1:
        fewest = min(map(len, members))
        if fewest == 1:
            raise OcilError(
                f"{dataset.name} has a class of one training image, and a long tail needs two or more: to train with, "
                "and to validate with."
            )
        raise OcilError(
            f"validation = {validation}: {dataset.name} has {fewest} images of a class; take 1 to {fewest - 1}."
        )
    counts = profile(len(known), most, imbalance)
    number = np.full(total, -1)
    number[known] = np.arange(len(known))
    val = np.sort(np.concatenate([images[:validation] for images in members]))
    train = np.sort(np.concatenate([m[validation : validation + n] for m, n in zip(members, counts, strict=True)]))
    test_y = number[dataset.test_y]
    return LongTailed(
        dataset.name,
        dataset.train_x[train],
        number[dataset.train_y[train]],
        dataset.train_x[val],
        number[dataset.train_y[val]],
        dataset.test_x[test_y >= 0],
        test_y[test_y >= 0],
        dataset.test_x[test_y < 0],
        tuple(dataset.classes[label] for label in known),
        tuple(dataset.classes[label] for label in held_out),
        train,
        val,
        _digest(train, val, test_y),
        dataset.fingerprint,
    )


def load(config: LongTailConfig, data_dir: Path | None = None, dataset: Dataset | None = None) -> LongTailed:
    """The data of a configuration. ``dataset`` is the one to cut from, if it is loaded already."""
    if not config.imbalance:
        return load_prepared(config.dataset, data_dir)
    dataset = dataset or data.load_once(config.dataset, data_dir)
    return cut(dataset, config.imbalance, config.open_share, config.validation, config.seed)


def prepared_path(name: str, data_dir: Path | None = None) -> Path:
    if not NAME.fullmatch(name):
        raise OcilError(f"'{name}' cannot be a name: use small letters, digits, - and _.")
    found = [folder / FOLDER / f"{name}.npz" for folder in data_dirs(data_dir)]
    return next((path for path in found if path.is_file()), found[0])


def is_prepared(name: str, data_dir: Path | None = None) -> bool:
    return bool(NAME.fullmatch(name)) and prepared_path(name, data_dir).is_file()


def save_prepared(split: LongTailed, path: Path) -> None:
    arrays: dict[str, Any] = {name: getattr(split, name) for name in ARRAYS}
    with atomic_write(path) as file:
        np.savez(file, classes=np.array(split.classes, dtype=np.str_), digest=np.array(split.digest), **arrays)


def load_prepared(name: str, data_dir: Path | None = None) -> LongTailed:
    """Read what ``ocil longtail prepare`` wrote. Pickled content is refused."""
    path = prepared_path(name, data_dir)
    advice = f"Prepare it again: ocil longtail prepare {name} LISTS IMAGES"
    arrays: dict[str, Any] = read_arrays(path, (*ARRAYS, "classes", "digest"), (), advice)
    classes, digest = names_in(arrays.pop("classes"), path, advice), arrays.pop("digest")
    if digest.dtype.kind != "U" or digest.ndim:
        raise OcilError(f"{path}: digest is {digest.dtype} {list(digest.shape)}. {advice}")
    for key, array in arrays.items():
        of_images = key.endswith("_x")
        if array.dtype != (np.uint8 if of_images else np.int64):
            raise OcilError(f"{path}: {key} is {array.dtype}. Prepare it again.")
        if array.ndim != (4 if of_images else 1) or (of_images and array.shape[1:] != arrays["train_x"].shape[1:]):
            raise OcilError(f"{path}: {key} has the shape {list(array.shape)}. Prepare it again.")
    return LongTailed(name, **arrays, classes=classes, digest=str(digest), fingerprint=str(digest))


def read_lists(name: str, lists: Path, images: Path, size: int) -> LongTailed:
    """Read the published form: ``*_train.txt``, ``*_val.txt``, ``*_test.txt``, ``*_open.txt``, with lines "PATH LABEL".

    The middle square of every image is resized to ``size`` pixels. Labels of the open list are not read.
    """
    if not 8 <= size <= MAX_SIDE:
        raise OcilError(f"the image size {size} is not between 8 and {MAX_SIDE}.")
    entries = {split: _read_list(_list_file(lists, split), images, split == "open") for split in LISTS}
    needed = sum(map(len, entries.values())) * size * size * 3
    if needed > MAX_BYTES:
        raise OcilError(f"these images need {needed / 2**30:.0f} GiB of memory. Make them smaller with --size.")
    classes = _class_names(entries["train"])
    for split in ("val", "test"):  # checked before the images are read, which takes long
        if (most := max(label for _, label in entries[split])) >= len(classes):
            raise OcilError(f"{name}: a label of {split} is {most}, outside 0..{len(classes) - 1}.")
    arrays: dict[str, Any] = {f"{split}_x": _decode(found, size) for split, found in entries.items()}
    arrays |= {f"{split}_y": np.array([y for _, y in found], np.int64) for split, found in entries.items()}
    digest = _digest(*arrays.values())
    del arrays["open_y"]
    return LongTailed(name, **arrays, classes=classes, digest=digest)


def _list_file(lists: Path, split: str) -> Path:
    found = sorted(lists.glob(f"*_{split}.txt")) if lists.is_dir() else []
    if len(found) != 1:
        raise OcilError(f"{lists} has {len(found)} files named *_{split}.txt: it must have one.")
    return found[0]


def _read_list(path: Path, images: Path, unlabelled: bool) -> list[tuple[Path, int]]:
    try:
        lines = lines_of(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OcilError(f"cannot read {path}: {error}.") from None
    root = images.resolve()
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where, _, label = line.strip().rpartition(" ")
        if unlabelled and not where:
            where, label = label, "0"
        if not where or not (unlabelled or (label.isdecimal() and len(label) <= LABEL_DIGITS)):
            raise OcilError(f"line {number} of {path} is not 'PATH LABEL': {line.strip()[:80]!r}.")
        found.append((_inside(root, where, path, number), 0 if unlabelled else int(label)))
    if not found:
        raise OcilError(f"{path} lists no image.")
    return found


def _inside(root: Path, where: str, path: Path, number: int) -> Path:
    """The image that a list names. Raises if it is not a file below the folder of the images."""
    named = PurePosixPath(where)
    target = root / named
    try:
        inside = not named.is_absolute() and ".." not in named.parts and target.resolve().is_relative_to(root)
        there = inside and target.is_file()
    except (OSError, ValueError, RuntimeError):  # too long a name, no permission, a null byte, a loop of links
        inside, there = True, False
    if not inside:
        raise OcilError(f"line {number} of {path} leads out of the folder of the images: {where[:80]!r}.")
    if not there:
        raise OcilError(f"line {number} of {path}: there is no image {where[:80]!r} in {root}.")
    return target


def _class_names(train: Sequence[tuple[Path, int]]) -> tuple[str, ...]:
    """The name of the folder of each class's first image if those are distinct, else the number of the class."""
    first: dict[int, str] = {}
    for path, label in train:
        first.setdefault(label, path.parent.name)
    count = max(first) + 1
    if count != len(first):
        missing = next(label for label in range(count) if label not in first)
        raise OcilError(f"the training list has no image of class {missing}: labels must count from 0 without gaps.")
    names = [first[label] for label in range(count)]
    return tuple(names) if len(set(names)) == count else tuple(f"class {label}" for label in range(count))


def _decode(entries: Sequence[tuple[Path, int]], size: int) -> Images:
    images = np.empty((len(entries), size, size, 3), np.uint8)
    for position, (path, _) in enumerate(entries):
        images[position] = read_image(path, gray=False, size=size, crop=True)
    return images


def _digest(*parts: NDArray[Any]) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(str(part.shape).encode())
        sha.update(np.ascontiguousarray(part).data)
    return sha.hexdigest()[:16]


def _random(seed: int, purpose: str) -> np.random.RandomState:
    """A generator whose permutations are the same in every numpy version."""
    return np.random.RandomState(derive(seed, f"longtail-{purpose}") % 2**32)
