"""Blurry tasks: a share of each task's samples goes into one pool, which is dealt out to all tasks again."""

import numpy as np

from ocil.streams.material import Material
from ocil.streams.order import Order


def blurry(material: Material) -> Order:
    """Tasks keep their sizes. A sample may come back into its own task."""
    rng, groups = material.rng, material.groups()
    tasks = [material.of_group(group) for group in groups]
    shares = [round(material.config.blurry_share * len(task)) for task in tasks]
    pool = rng.permutation(np.concatenate([task[:share] for task, share in zip(tasks, shares, strict=True)]))
    dealt = np.split(pool, np.cumsum(shares)[:-1])
    mixed = [rng.permutation(np.concatenate([d, t[len(d) :]])) for d, t in zip(dealt, tasks, strict=True)]
    return material.order(mixed, groups)
