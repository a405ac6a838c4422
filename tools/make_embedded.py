"""Makes the dataset that comes with the package from the published Fashion-MNIST files.

    python tools/make_embedded.py FOLDER

FOLDER holds the four idx .gz files. Images shrink by the mean of square blocks; of each class the first images in file
order are kept. The same input gives the same bytes.
"""

import argparse
import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ocil.data.dataset import Dataset
from ocil.errors import OcilError

SIDE = 28
MAX_BYTES = 2_500_000
OUTPUT = Path(__file__).resolve().parents[1] / "src" / "ocil" / "data" / "embedded" / "fashion-mini.npz"
CLASSES = ("tshirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file is a magic number, its sides as big-endian integers, then the bytes."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise OcilError(f"cannot read {path}: {error}. Give the folder with the Fashion-MNIST .gz files.") from error
    dimensions = content[3]
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def shrink(images: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The mean of each block of pixels, halves rounded up."""
    block = SIDE // size
    sums = images.reshape(-1, size, block, size, block).sum(axis=(2, 4), dtype=np.uint32)
    means: NDArray[np.uint8] = ((2 * sums + block * block) // (2 * block * block)).astype(np.uint8)
    return means[..., None]


def first_of_each_class(labels: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """Positions of the first ``count`` images of each class, in file order."""
    chosen = [np.flatnonzero(labels == label)[:count] for label in range(len(CLASSES))]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def make(folder: Path, size: int, train: int, test: int) -> Dataset:
    def split(prefix: str, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
        keep = first_of_each_class(labels, count)
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")[keep]
        return shrink(images, size), labels[keep].astype(np.int64)

    return Dataset("fashion-mini", *split("train", train), *split("t10k", test), CLASSES)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the embedded dataset from the Fashion-MNIST files.")
    parser.add_argument("folder", type=Path, help="folder with the four idx .gz files")
    parser.add_argument("--size", type=int, default=14, choices=(7, 14, 28), help="side of the images in pixels")
    parser.add_argument("--train", type=int, default=300, help="training images per class")
    parser.add_argument("--test", type=int, default=100, help="test images per class")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the file to write")
    args = parser.parse_args()
    try:
        make(args.folder, args.size, args.train, args.test).save(args.output, compressed=True)
    except OcilError as error:
        sys.exit(f"make_embedded: error: {error}")
    written = args.output.stat().st_size
    print(f"{args.output}: {written} bytes")
    if written > MAX_BYTES:
        sys.exit(f"make_embedded: error: more than {MAX_BYTES} bytes; take fewer or smaller images")


if __name__ == "__main__":
    main()
