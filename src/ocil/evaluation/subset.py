"""A part of the test images, for evaluations that are made often."""

import numpy as np
from numpy.typing import NDArray

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.rng import derive

SEED = 0  # of the draw: all runs on a dataset are evaluated on the same images


def chosen_images(data: Dataset, count: int) -> NDArray[np.int64]:
    """The numbers of the test images that ``evaluate_on = count`` asks for, ascending; all of them for 0.

    Classes (and domains, if there are any) have equally many, as far as they have enough. The choice depends on the
    dataset alone, not on the seed of a run.
    """
    total, kinds = len(data.test_y), kinds_of(data)
    if not count or count >= total:
        return np.arange(total)
    if count < (needed := len(np.unique(kinds))):
        what = "class of each domain" if data.domains else "class"
        raise OcilError(f"evaluate_on = {count} is too small: give at least {needed}, one image per {what}.")
    shuffled = np.random.default_rng(derive(SEED, "evaluate-on")).permutation(total)
    # The images are dealt out in rounds: each round has one image of each kind that has any left.
    by_kind = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    sizes = np.bincount(kinds)
    rounds = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(by_kind[np.argsort(rounds, kind="stable")[:count]])


def kinds_of(data: Dataset) -> NDArray[np.int64]:
    """The kind of each test image: its class, or ``domain * classes + class`` if the dataset has domains."""
    return data.test_y if data.test_domain is None else data.test_domain * data.num_classes + data.test_y
