"""i-Blurry-N-M (Koh, Kim, Ha, Choi, Online Continual Learning on Class Incremental Blurry Task Configuration with
Anytime Inference, ICLR 2022).

A share N of the classes is disjoint: all their samples come in one task. The others are blurry: a share M of their
samples comes in the other tasks, so that no task shows the end of a class.
"""

import numpy as np

from ocil.streams.material import Groups, Material
from ocil.streams.order import Indices, Order


def i_blurry(material: Material) -> Order:
    """Of each blurry class, ``blurry_share`` of the samples is spread evenly over the tasks that are not its own."""
    rng, share, groups = material.rng, material.config.blurry_share, material.groups()
    disjoint = choose_disjoint(groups, material.config.disjoint_share, rng)
    parts: list[list[Indices]] = [[] for _ in groups]
    for task, group in enumerate(groups):
        for unit in group:
            own = material.of_group([unit])
            others = [number for number in range(len(groups)) if number != task]
            moved = round(share * len(own)) if others and unit not in disjoint else 0
            parts[task].append(own[moved:])
            if moved:  # where the numbers are not divisible, other tasks have one more each time
                for number, few in zip(rng.permutation(others), np.array_split(own[:moved], len(others)), strict=True):
                    parts[number].append(few)
    return material.order([rng.permutation(np.concatenate(part)) for part in parts], groups)


def choose_disjoint(groups: Groups, share: float, rng: np.random.Generator) -> set[int]:
    """The share of all units that are disjoint, divided among the groups in proportion to their sizes.

    Where that leaves some to round up, groups with the largest fractions get them; equal ones are drawn.
    """
    wanted = [share * len(group) for group in groups]
    counts = [int(number) for number in wanted]
    if more := round(share * sum(map(len, groups))) - sum(counts):
        drawn = rng.permutation(len(groups))
        for number in sorted(drawn, key=lambda number: counts[number] - wanted[number])[:more]:
            counts[number] += 1
    return {int(unit) for group, count in zip(groups, counts, strict=True) for unit in rng.permutation(group)[:count]}
