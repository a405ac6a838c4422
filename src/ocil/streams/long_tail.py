"""Long-tailed streams: classes have fewer and fewer samples (Liu et al., Long-Tailed Class Incremental Learning, ECCV
2022). The test set keeps all its samples.
"""

import numpy as np

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.seeds import derive
from ocil.streams.config import StreamConfig
from ocil.streams.order import Indices


def select(data: Dataset, config: StreamConfig, classes: Indices, seed: int) -> Indices:
    """Numbers of the training samples that take part, ascending: all of them unless the settings make classes smaller.

    ``classes``: in the order of their arrival. Which samples of a class take part is drawn by the seed.
    """
    if not is_long_tailed(config):
        return np.arange(len(data.train_y))
    rng = np.random.default_rng(derive(seed, "long-tail"))
    counts = class_counts(data, config, _largest_first(config, classes, rng))
    chosen = [rng.permutation(np.flatnonzero(data.train_y == c))[:count] for c, count in enumerate(counts)]
    return np.sort(np.concatenate(chosen))


def is_long_tailed(config: StreamConfig) -> bool:
    return config.imbalance_factor != 1 or bool(config.class_counts)


def counts_of(data: Dataset, config: StreamConfig, classes: Indices, seed: int) -> list[int]:
    """By label: how many samples of each class ``select`` chooses."""
    rng = np.random.default_rng(derive(seed, "long-tail"))
    return class_counts(data, config, _largest_first(config, classes, rng))


def _largest_first(config: StreamConfig, classes: Indices, rng: np.random.Generator) -> Indices:
    return rng.permutation(classes) if config.imbalance_order == "seeded" else classes


def class_counts(data: Dataset, config: StreamConfig, largest_first: Indices) -> list[int]:
    """By label: how many samples of each class take part.

    With ``imbalance_factor`` r, the class of rank i of C gets the size of the largest class times
    ``r ** (-i / (C - 1))``, rounded down, at least 1, and no more than it has.
    """
    there = np.bincount(data.train_y, minlength=data.num_classes)
    if config.class_counts:
        if len(config.class_counts) != data.num_classes:
            given = len(config.class_counts)
            raise OcilError(f"class_counts has {given} numbers, and {data.name} has {data.num_classes} classes.")
        for label, (count, most) in enumerate(zip(config.class_counts, there.tolist(), strict=True)):
            if count > most:
                name = data.classes[label]
                raise OcilError(f"class_counts asks for {count} samples of {name!r}, which has {most}.")
        return list(config.class_counts)
    last = max(1, data.num_classes - 1)
    wanted = np.empty(data.num_classes, dtype=np.int64)
    for rank, label in enumerate(largest_first):
        # The small addition keeps an exact quotient, such as 500 / 100, from being rounded down by its last bit.
        wanted[label] = int(there.max() * config.imbalance_factor ** (-rank / last) + 1e-9)
    return [int(count) for count in np.clip(wanted, 1, there)]
