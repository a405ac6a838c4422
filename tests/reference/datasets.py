"""Tiny datasets made by hand."""

from collections.abc import Sequence

import numpy as np

from ocil.data import Dataset


def numbered(counts: Sequence[int], seed: int = 0) -> Dataset:
    """``counts[c]`` samples of class c, mixed; image i has the pixels i % 256, i // 256, label: each can be told."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    number = np.arange(len(labels))
    x = np.stack([number % 256, number // 256, labels], axis=1).astype(np.uint8).reshape(-1, 1, 1, 3)
    classes = np.arange(len(counts))
    names = tuple(f"class {c}" for c in classes)
    return Dataset("numbered", x, labels, np.zeros((len(counts), 1, 1, 3), np.uint8), classes, names)


def noise(count: int = 60, classes: int = 6, shape: tuple[int, int, int] = (8, 8, 3), seed: int = 0) -> Dataset:
    """Images without meaning."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    y = np.arange(count) % classes
    return Dataset("noise", x, y, x[:classes].copy(), y[:classes].copy(), tuple(f"class {c}" for c in range(classes)))


def patterned(per_class: int = 30, classes: int = 4, side: int = 8, seed: int = 0) -> Dataset:
    """Each class is one random picture under noise: easy to learn, and test images differ from training images."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(40, 216, (classes, side, side, 3))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(count * classes) % classes
        x = pictures[y] + rng.integers(-40, 40, (len(y), side, side, 3))
        return x.astype(np.uint8), y

    return Dataset("patterned", *draw(per_class), *draw(10), tuple(f"class {c}" for c in range(classes)))
