"""The order of the images in all epochs of a stage, drawn from the seed before it starts."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ocil.rng import derive

ImageOrder = NDArray[np.int64]


def shuffled(images: int, batch_size: int, epochs: int, seed: int) -> ImageOrder:
    """Stage 1: a new permutation per epoch, without the incomplete last batch. ``[epochs, steps · batch_size]``."""
    rng = np.random.RandomState(derive(seed, "longtail-shuffle") % 2**32)
    used = images // batch_size * batch_size
    return np.stack([rng.permutation(images)[:used] for _ in range(epochs)])


def class_aware(labels: NDArray[np.int64], per_class: int, batch_size: int, epochs: int, seed: int) -> ImageOrder:
    """Stage 2: classes in turn, in a new order each time all have been drawn. Each time, a class gives the next
    ``per_class`` of its images, which are cycled through in the same way. An epoch has as many batches as the images
    fill. ``[epochs, steps · batch_size]``.
    """
    return _class_aware(labels.astype(np.int64).tobytes(), per_class, batch_size, epochs, seed)


@lru_cache(maxsize=8)  # the variants of a seed share an order, and a GPU waits while it is drawn
def _class_aware(content: bytes, per_class: int, batch_size: int, epochs: int, seed: int) -> ImageOrder:
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
