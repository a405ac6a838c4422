"""Holds out samples to test with, where a dataset has none."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocil.errors import OcilError

USUAL = 6  # one in six of each class is held out


def hold_out(labels: ArrayLike, classes: Sequence[str], share: float | None = None, seed: int = 0) -> NDArray[np.bool_]:
    """Which samples are held out: ``share`` of each class, by default a sixth, at least one and never all.

    The choice depends on the labels and the seed alone.
    """
    if share is not None and not 0 < share < 1:
        raise OcilError(f"the test share {share:g} must be more than 0 and less than 1.")
    y = np.asarray(labels, dtype=np.int64)
    rng = np.random.RandomState(seed)  # its permutations are the same in every numpy version
    held = np.zeros(len(y), dtype=np.bool_)
    by_class = np.argsort(y, kind="stable")
    ends = np.cumsum(np.bincount(y, minlength=len(classes)))
    for label, members in enumerate(np.split(by_class, ends[:-1])):
        count = len(members)
        if count == 1:
            raise OcilError(f"class '{classes[label]}' has one sample; it needs two, one of them to test with.")
        wanted = round(count / USUAL if share is None else count * share)
        chosen = rng.permutation(count)[: min(max(1, wanted), count - 1) if count else 0]
        held[members[chosen]] = True
    return held


def in_words(share: float | None) -> str:
    """``a sixth``, or the share as a number."""
    return "a sixth" if share is None else f"{share:g}"
