"""Repeated classes: a class returns in later tasks, each time with samples that have not come before (after Hemati et
al., Class-Incremental Learning with Repetition, CoLLAs 2023).
"""

import numpy as np

from ocil.streams.material import Material
from ocil.streams.order import Indices, Order


def repeated(material: Material) -> Order:
    """A class comes first in the task of its group, and in each later task with the probability ``return_share``. Its
    samples are divided evenly among these tasks.
    """
    rng, groups = material.rng, material.groups()
    parts: list[list[Indices]] = [[] for _ in groups]
    for task, group in enumerate(groups):
        later = np.arange(task + 1, len(groups))
        for unit in group:
            returns = later[rng.random(len(later)) < material.config.return_share]
            tasks = [task, *returns.tolist()]
            for number, few in zip(tasks, np.array_split(material.of_group([unit]), len(tasks)), strict=True):
                parts[number].append(few)
    return material.order([rng.permutation(np.concatenate(part)) for part in parts], groups)
