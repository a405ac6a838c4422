"""No boundaries: classes fade in and out one after the other, and no task ends."""

from itertools import chain

import numpy as np

from ocil.streams.material import Material, batch_bounds
from ocil.streams.order import Order, equal_distances


def fading(material: Material) -> Order:
    """A class takes one unit of time. Its samples come at even moments in it, moved by ``fade`` times a normal number.

    Nothing ends, so the learner is evaluated at equal distances.
    """
    rng, config, groups = material.rng, material.config, material.groups()
    place = np.empty(len(material.arrival))
    place[list(chain(*groups))] = np.arange(len(place))
    count = len(material.samples)
    time = place[material.units] + rng.random(count) + config.fade * rng.standard_normal(count)
    samples = material.samples[np.argsort(time, kind="stable")]
    batches, _ = batch_bounds([count], config.batch_size, config.drop_last)
    return material.order([samples], groups, equal_distances(len(batches), config.tasks))
