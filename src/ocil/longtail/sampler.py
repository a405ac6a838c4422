"""In which order images come: the whole order of a stage, drawn from the seed at its start."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ocil.rng import derive

Order = NDArray[np.int64]


def shuffled(images: int, batch_size: int, epochs: int, seed: int) -> Order:
    """Stage 1: every epoch a new permutation, its incomplete last batch dropped. ``[epochs, steps · batch_size]``."""
    rng = np.random.RandomState(derive(seed, "longtail-shuffle") % 2**32)
    used = images // batch_size * batch_size
    return np.stack([rng.permutation(images)[:used] for _ in range(epochs)])


def class_aware(labels: NDArray[np.int64], per_class: int, batch_size: int, epochs: int, seed: int) -> Order:
    """Stage 2: classes in turn, each cycle in a new order, and of a drawn class the next ``per_class`` images of a
    cycle of its own. As many batches an epoch as the images fill. ``[epochs, steps · batch_size]``.
    """
    return _class_aware(labels.astype(np.int64).tobytes(), per_class, batch_size, epochs, seed)


@lru_cache(maxsize=8)  # the variants of a seed share it, and drawing it keeps a GPU waiting
def _class_aware(content: bytes, per_class: int, batch_size: int, epochs: int, seed: int) -> Order:
    labels = np.frombuffer(content, np.int64)
    rng = np.random.RandomState(derive(seed, "longtail-class-aware") % 2**32)
    classes = _cycle(np.unique(labels), rng)
    members = {int(label): _cycle(np.flatnonzero(labels == label), rng) for label in np.unique(labels)}
    used = len(labels) // batch_size * batch_size
    order = [
        next(members[label])
        for label in (next(classes) for _ in range(epochs * used // per_class))
        for _ in range(per_class)
    ]
    return np.array(order, np.int64).reshape(epochs, used)


def _cycle(values: NDArray[np.int64], rng: np.random.RandomState) -> Iterator[int]:
    while True:
        yield from rng.permutation(values).tolist()
