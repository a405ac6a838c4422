"""Any folder of images: SOURCE/train/CLASS/*.png or *.jpg, and SOURCE/test/CLASS/ (or val) if there is one."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ocil.data.dataset import Dataset
from ocil.data.images import SUFFIXES, probe, read_image
from ocil.errors import OcilError

HELD_OUT = 6  # without a test folder, one image in six of each class is held out
MAX_SIDE = 1024
MAX_BYTES = 16 * 2**30
SEED = 0

Files = list[tuple[Path, int]]


def read_folder(name: str, source: Path, size: int | None = None) -> Dataset:
    """Classes are the sorted names of the folders under train. ``size`` makes every image a square of that side."""
    if size is not None and not 1 <= size <= MAX_SIDE:
        raise OcilError(f"the image size {size} is not between 1 and {MAX_SIDE}.")
    train_folder, test_folder = source / "train", find_test_folder(source)
    if not train_folder.is_dir():
        raise OcilError(f"{source} has no folder 'train'. Lay the images out as {source.name}/train/CLASS/IMAGE.png.")
    classes = _class_folders(train_folder)
    if not classes:
        raise OcilError(f"{train_folder} has no class folders. Lay the images out as train/CLASS/IMAGE.png.")
    train = _list_images(train_folder, classes)
    if test_folder is None:
        train, test = _hold_out(train, classes)
    else:
        if strangers := sorted(set(_class_folders(test_folder)) - set(classes)):
            raise OcilError(
                f"{test_folder} has a class '{strangers[0]}' that {train_folder} lacks. Rename or remove it."
            )
        test = _list_images(test_folder, classes)
    side, gray = _common_format([path for path, _ in train + test], size)
    train_x, train_y = _decode(train, side, gray, size)
    test_x, test_y = _decode(test, side, gray, size)
    return Dataset(name, train_x, train_y, test_x, test_y, tuple(classes))


def find_test_folder(source: Path) -> Path | None:
    """SOURCE/test, else SOURCE/val, else None: then part of the training images is held out."""
    return next((source / split for split in ("test", "val") if (source / split).is_dir()), None)


def _class_folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _list_images(folder: Path, classes: list[str]) -> Files:
    files: Files = []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        paths = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES)
        files += [(path, label) for path in paths if not path.name.startswith(".") and path.is_file()]
    return files


def _hold_out(files: Files, classes: list[str]) -> tuple[Files, Files]:
    rng = np.random.RandomState(SEED)  # its permutations are the same in every numpy version
    train: Files = []
    test: Files = []
    for label, name in enumerate(classes):
        members = [item for item in files if item[1] == label]
        if len(members) == 1:
            raise OcilError(f"class '{name}' has one image; it needs two, one of them to test with.")
        held = max(1, round(len(members) / HELD_OUT)) if members else 0
        chosen = set(rng.permutation(len(members))[:held].tolist())
        test += [item for position, item in enumerate(members) if position in chosen]
        train += [item for position, item in enumerate(members) if position not in chosen]
    return train, test


def _common_format(paths: list[Path], size: int | None) -> tuple[tuple[int, int], bool]:
    """(height, width) of all images, and whether all are grayscale. Headers only, so a mix is found before any work."""
    first: tuple[Path, tuple[int, int]] | None = None
    gray = True
    for path in paths:
        sides, is_gray = probe(path)
        gray = gray and is_gray
        first = first or (path, sides)
        if size is None and sides != first[1]:
            here, there = ("x".join(map(str, pair)) for pair in (sides, first[1]))
            raise OcilError(f"{path} is {here} but {first[0]} is {there}. Resize all with --size N (for example 32).")
    if first is None:
        raise OcilError(f"the class folders hold no images ({', '.join(SUFFIXES)}).")
    width, height = (size, size) if size is not None else first[1]
    needed = len(paths) * height * width * (1 if gray else 3)
    if needed > MAX_BYTES:
        raise OcilError(f"these images need {needed / 2**30:.0f} GiB of memory. Make them smaller with --size N.")
    return (height, width), gray


def _decode(
    files: Files, side: tuple[int, int], gray: bool, size: int | None
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images = np.empty((len(files), *side, 1 if gray else 3), np.uint8)
    for position, (path, _) in enumerate(files):
        images[position] = read_image(path, gray, size)
    return images, np.array([label for _, label in files], dtype=np.int64)
