"""Any folder of images: SOURCE/CLASS/*.png or *.jpg, or SOURCE/train/CLASS/ and SOURCE/test/CLASS/ (or val)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ocil.data.dataset import Dataset
from ocil.data.images import SUFFIXES, probe, read_image
from ocil.errors import OcilError

HELD_OUT = 6  # without a test folder, one image in six of each class is held out
MAX_SIDE = 1024
MAX_BYTES = 16 * 2**30
NAMED = 5  # how many unreadable images a message names
SEED = 0

Files = list[tuple[Path, int]]


def read_folder(
    name: str,
    source: Path,
    size: int | None = None,
    *,
    test_share: float | None = None,
    strict: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Dataset:
    """Classes are the sorted names of the folders. ``size`` makes every image a square of that side.

    Without a test folder, ``test_share`` of each class (default: a sixth) is held out, always the same images. Images
    that cannot be read are left out, as long as each class keeps some; with ``strict`` they raise an ``OcilError``.
    ``note`` is called with a line about either.
    """
    if size is not None and not 1 <= size <= MAX_SIDE:
        raise OcilError(f"the image size {size} is not between 1 and {MAX_SIDE}.")
    if test_share is not None and not 0 < test_share < 1:
        raise OcilError(f"the test share {test_share:g} must be more than 0 and less than 1.")
    train_folder, test_folder = training_folder(source), find_test_folder(source)
    classes = class_folders(train_folder)
    if not classes:
        raise OcilError(f"{train_folder} has no class folders. Lay the images out as {source.name}/CLASS/IMAGE.png.")
    reader = _FolderReader(size, strict)
    train = reader.readable(list_images(train_folder, classes))
    if test_folder is None:
        train, test = _hold_out(train, classes, test_share)
        share = "a sixth" if test_share is None else f"{test_share:g}"
        note(f"{source} has no test folder: {share} of each class is held out to test with")
    else:
        if test_share is not None:
            raise OcilError(f"{test_folder} is the test set of {source}: leave out --test-share.")
        if more := sorted(set(class_folders(test_folder)) - set(classes)):
            raise OcilError(f"{test_folder} has a class '{more[0]}' that {train_folder} lacks. Rename or remove it.")
        test = reader.readable(list_images(test_folder, classes))
    reader.refuse_too_much(len(train) + len(test))
    train_x, train_y = reader.decoded(train)
    test_x, test_y = reader.decoded(test)
    if reader.problems:
        for label in set(range(len(classes))) - set(train_y.tolist()):
            raise OcilError(f"class '{classes[label]}' has no image that can be read: {reader.problems[0]}")
        note(reader.summary())
    return Dataset(name, train_x, train_y, test_x, test_y, tuple(classes))


def training_folder(source: Path) -> Path:
    """SOURCE/train if it holds class folders, else SOURCE itself, whose folders are then the classes."""
    train = source / "train"
    if train.is_dir() and (class_folders(train) or not list_images(source, ["train"])):
        return train
    if find_test_folder(source) is not None and not train.is_dir():
        raise OcilError(f"{source} has a test set but no folder 'train'. Lay the images out as train/CLASS/IMAGE.png.")
    return source


def find_test_folder(source: Path) -> Path | None:
    """SOURCE/test, else SOURCE/val, else None."""
    splits = (source / split for split in ("test", "val"))
    return next((split for split in splits if split.is_dir() and class_folders(split)), None)


def class_folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def list_images(folder: Path, classes: list[str]) -> Files:
    """Images with their labels, class by class, sorted by name."""
    files: Files = []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        paths = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES)
        files += [(path, label) for path in paths if not path.name.startswith(".") and path.is_file()]
    return files


def _hold_out(files: Files, classes: list[str], share: float | None) -> tuple[Files, Files]:
    rng = np.random.RandomState(SEED)  # its permutations are the same in every numpy version
    train: Files = []
    test: Files = []
    for label, name in enumerate(classes):
        members = [item for item in files if item[1] == label]
        if len(members) == 1:
            raise OcilError(f"class '{name}' has one image; it needs two, one of them to test with.")
        wanted = round(len(members) / HELD_OUT if share is None else len(members) * share)
        held = min(max(1, wanted), len(members) - 1) if members else 0
        chosen = set(rng.permutation(len(members))[:held].tolist())
        test += [item for position, item in enumerate(members) if position in chosen]
        train += [item for position, item in enumerate(members) if position not in chosen]
    return train, test


class _FolderReader:
    """Reads the images of a folder in one format, and remembers those that it could not read."""

    def __init__(self, size: int | None, strict: bool) -> None:
        self.size, self.strict = size, strict
        self.first: tuple[Path, tuple[int, int]] | None = None
        """The first image with its width and height, which all others must have."""
        self.gray = True
        self.problems: list[str] = []
        self.broken: list[Path] = []

    def readable(self, files: Files) -> Files:
        """The images whose header can be read. Raises if they differ in size and are not to be resized."""
        found: Files = []
        for path, label in files:
            try:
                sides, is_gray = probe(path)
            except OcilError as error:
                self._leave_out(path, error)
                continue
            self.first = self.first or (path, sides)
            if self.size is None and sides != self.first[1]:
                here, there = ("x".join(map(str, pair)) for pair in (sides, self.first[1]))
                advice = "Resize all with --size N (for example 32)."
                raise OcilError(f"{path} is {here} but {self.first[0]} is {there}. {advice}")
            self.gray = self.gray and is_gray
            found.append((path, label))
        return found

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        if self.first is None:
            why = f": {self.problems[0]}" if self.problems else f" ({', '.join(SUFFIXES)})."
            raise OcilError(f"the class folders hold no images{why}")
        width, height = (self.size, self.size) if self.size is not None else self.first[1]
        return height, width, 1 if self.gray else 3

    def refuse_too_much(self, count: int) -> None:
        needed = count * int(np.prod(self.shape))
        if needed > MAX_BYTES:
            raise OcilError(f"these images need {needed / 2**30:.0f} GiB of memory. Make them smaller with --size N.")

    def decoded(self, files: Files) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images = np.empty((len(files), *self.shape), np.uint8)
        labels: list[int] = []
        for path, label in files:
            try:
                images[len(labels)] = read_image(path, self.gray, self.size)
                labels.append(label)
            except OcilError as error:
                self._leave_out(path, error)
        return images[: len(labels)], np.array(labels, dtype=np.int64)

    def summary(self) -> str:
        """How many images were left out, with the names of the first."""
        names = ", ".join(map(str, self.broken[:NAMED]))
        more = f" and {len(self.broken) - NAMED} more" if len(self.broken) > NAMED else ""
        return f"images that cannot be read and are left out, {len(self.broken)}: {names}{more}"

    def _leave_out(self, path: Path, error: OcilError) -> None:
        if self.strict:
            raise error
        self.problems.append(str(error))
        self.broken.append(path)
