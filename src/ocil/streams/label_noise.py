"""Label noise: a share of the training samples comes with the label of another class (symmetric noise)."""

from dataclasses import replace

import numpy as np

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.seeds import derive
from ocil.streams.config import StreamConfig
from ocil.streams.order import Indices, Order


def with_noise(order: Order, data: Dataset, config: StreamConfig, samples: Indices, seed: int) -> Order:
    """The same order with wrong labels for exactly ``label_noise`` of ``samples``, rounded; drawn by the seed.

    Each seed has wrong labels of its own: an interval over seeds covers this chance too.
    """
    if not config.label_noise:
        return order
    rng = np.random.default_rng(derive(seed, "label-noise"))
    chosen = rng.permutation(samples)[: round(config.label_noise * len(samples))]
    labels = data.train_y.copy()
    groups = order.groups if config.noise_among == "task" else [list(range(data.num_classes))]
    for group in groups:
        if len(group) < 2:
            name = data.classes[group[0]]
            remedy = "noise_among = 'all'" if config.noise_among == "task" and data.num_classes > 1 else "more classes"
            raise OcilError(f"label_noise takes labels of other classes, and {name!r} stands alone: use {remedy}.")
        classes = np.array(group, dtype=np.int64)
        here = chosen[np.isin(data.train_y[chosen], classes)]
        place = np.empty(data.num_classes, dtype=np.int64)
        place[classes] = np.arange(len(classes))
        # A step of 1 to n - 1 around the circle of n classes reaches each other class equally often.
        steps = rng.integers(1, len(classes), len(here))
        labels[here] = classes[(place[data.train_y[here]] + steps) % len(classes)]
    return replace(order, labels=labels)
