"""Si-Blurry (Moon, Park, Kim, Park, Online Class Incremental Learning on Stochastic Blurry Task Boundary via Mask and
Visual Prompt Tuning, ICCV 2023): i-Blurry in which the number of classes per task and the blurry share per task are
random.
"""

import numpy as np

from ocil.streams.material import Material
from ocil.streams.order import Order


def si_blurry(material: Material) -> Order:
    """A share of all classes is disjoint, as in i-Blurry. Random cuts divide the disjoint and the blurry classes among
    the tasks, and divide the samples that change places: a task gives so many of its blurry samples to a pool, and gets
    as many from it.
    """
    rng, config = material.rng, material.config
    count = len(material.arrival)
    disjoint = round(config.disjoint_share * count)
    alone, shared = cut(disjoint, config.tasks, rng), cut(count - disjoint, config.tasks, rng)
    fill_empty(alone, shared)
    groups = material.groups([a + s for a, s in zip(alone, shared, strict=True)])
    blurry_units = [rng.permutation(group)[a:] for group, a in zip(groups, alone, strict=True)]
    blurry = [material.of_group(units) for units in blurry_units]
    rest = [material.of_group(np.setdiff1d(g, units)) for g, units in zip(groups, blurry_units, strict=True)]
    moved = round(config.blurry_share * sum(map(len, blurry)))
    sizes = within(cut(moved, config.tasks, rng), [len(task) for task in blurry])
    pool = rng.permutation(np.concatenate([task[:size] for task, size in zip(blurry, sizes, strict=True)]))
    dealt = np.split(pool, np.cumsum(sizes)[:-1])
    tasks = zip(dealt, blurry, rest, strict=True)
    return material.order([rng.permutation(np.concatenate([d, b[len(d) :], r])) for d, b, r in tasks], groups)


def cut(count: int, parts: int, rng: np.random.Generator) -> list[int]:
    """``count`` things in ``parts`` parts of random sizes, some of them perhaps empty."""
    cuts = np.sort(rng.integers(0, count + 1, parts - 1))
    return [int(size) for size in np.diff(cuts, prepend=0, append=count)]


def fill_empty(alone: list[int], shared: list[int]) -> None:
    """Give a task without classes one from the task that has most: each task is a column of the accuracy matrix."""
    for task in range(len(alone)):
        if not alone[task] + shared[task]:
            largest = max(range(len(alone)), key=lambda number: alone[number] + shared[number])
            kind = alone if alone[largest] > shared[largest] else shared
            kind[largest] -= 1
            kind[task] += 1


def within(sizes: list[int], most: list[int]) -> list[int]:
    """The sizes, none above ``most``: what is too much goes to the tasks that have room, first come, first served."""
    found = [min(size, limit) for size, limit in zip(sizes, most, strict=True)]
    left = sum(sizes) - sum(found)
    for task, limit in enumerate(most):
        more = min(left, limit - found[task])
        found[task] += more
        left -= more
    return found
