"""Is a dataset's split harder than a random one? How often the nearest training image has a test image's class.

    python benchmarks/split_hardness.py DATASET [--data-dir DIR] [--random 3] [--side 12]

Images are compared as thumbnails of ``--side`` pixels without their mean, scaled to length one. A random split has as
many test images of each class as the given one, from the same images.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ocil import data

AT_ONCE = 1000

Indices = NDArray[np.int64]


def thumbnails(images: NDArray[np.uint8], side: int) -> Tensor:
    parts = []
    for first in range(0, len(images), AT_ONCE):
        part = torch.from_numpy(images[first : first + AT_ONCE]).permute(0, 3, 1, 2).float()
        parts.append(F.interpolate(part, size=(side, side), mode="area").flatten(1))
    found = torch.cat(parts)
    return F.normalize(found - found.mean(1, keepdim=True))


def right(points: Tensor, labels: NDArray[np.int64], train: Indices, test: Indices) -> float:
    """Share of ``test`` whose nearest of ``train`` has their class."""
    known, classes = points[train], labels[train]
    hits = 0
    for first in range(0, len(test), AT_ONCE):
        part = test[first : first + AT_ONCE]
        nearest = (points[part] @ known.T).argmax(1)
        hits += int((classes[nearest.numpy()] == labels[part]).sum())
    return hits / len(test)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--random", type=int, default=3, help="random splits")
    parser.add_argument("--side", type=int, default=12)
    options = parser.parse_args()
    found = data.load(options.dataset, options.data_dir)
    points = torch.cat([thumbnails(x, options.side) for x in (found.train_x, found.test_x)])
    labels = np.concatenate([found.train_y, found.test_y])
    everything, count = np.arange(len(labels)), len(found.train_y)
    print(f"{found.name} as it is: {right(points, labels, everything[:count], everything[count:]):.2%}")
    for seed in range(options.random):
        order = np.random.default_rng(seed).permutation(everything)
        members = [order[labels[order] == label] for label in range(found.num_classes)]
        sizes = np.bincount(found.test_y, minlength=found.num_classes)
        test = np.concatenate([some[:size] for some, size in zip(members, sizes, strict=True)])
        train = np.setdiff1d(everything, test)
        print(f"random split {seed}: {right(points, labels, train, test):.2%}", flush=True)


if __name__ == "__main__":
    main()
