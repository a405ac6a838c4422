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
    counts = _counts(data, config, classes, rng)
    chosen = [rng.permutation(np.flatnonzero(data.train_y == c))[:count] for c, count in enumerate(counts)]
    return np.sort(np.concatenate(chosen))


def is_long_tailed(config: StreamConfig) -> bool:
    return config.imbalance_factor != 1 or bool(config.class_counts)


def counts_of(data: Dataset, config: StreamConfig, classes: Indices, seed: int) -> list[int]:
    """How many samples of each class ``select`` chooses, by label."""
    return _counts(data, config, classes, np.random.default_rng(derive(seed, "long-tail")))


def sizes_by_rank(data: Dataset, config: StreamConfig) -> list[int]:
    """The sizes that classes of a long tail get, before each is cut to what its class has.

    With ``imbalance_factor`` r, the class of rank i of C gets the size of the largest class times
    ``r ** (-i / (C - 1))``, rounded down.
    """
    if config.class_counts:
        return list(config.class_counts)
    largest, last = np.bincount(data.train_y).max(), max(1, data.num_classes - 1)
    # The small addition keeps an exact quotient, such as 500 / 100, from being rounded down by its last bit.
    return [int(largest * config.imbalance_factor ** (-rank / last) + 1e-9) for rank in range(data.num_classes)]


def _counts(data: Dataset, config: StreamConfig, classes: Indices, rng: np.random.Generator) -> list[int]:
    """How many samples of each class take part, by label: at least 1 and no more than the class has.

    Shuffled sizes may be those of more classes than the data holds: classes that are still unseen get some of them.
    """
    shuffled = config.imbalance_order == "seeded"
    if config.class_counts:
        _refuse_another_number(data, config, data.num_classes + (data.unseen if shuffled else 0))
        if not shuffled:
            return _as_given(data, config)
    sizes = sizes_by_rank(data, config)
    labels = np.concatenate([classes, np.arange(data.num_classes, len(sizes))])
    largest_first = rng.permutation(labels) if shuffled else labels
    wanted = np.empty(len(sizes), dtype=np.int64)
    wanted[largest_first] = sizes
    there = np.bincount(data.train_y, minlength=data.num_classes)
    return [int(count) for count in np.clip(wanted[: data.num_classes], 1, there)]


def _as_given(data: Dataset, config: StreamConfig) -> list[int]:
    there = np.bincount(data.train_y, minlength=data.num_classes)
    for label, (count, most) in enumerate(zip(config.class_counts, there.tolist(), strict=True)):
        if count > most:
            name = data.classes[label]
            raise OcilError(f"class_counts asks for {count} samples of {name!r}, which has {most}.")
    return list(config.class_counts)


def _refuse_another_number(data: Dataset, config: StreamConfig, classes: int) -> None:
    if (given := len(config.class_counts)) != classes:
        raise OcilError(f"class_counts has {given} numbers, and {data.name} has {classes} classes.")
