"""Holds out samples to test with, where a dataset has none, or draws them anew where it has."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocil.data.class_names import some
from ocil.data.dataset import Dataset
from ocil.errors import OcilError
from ocil.limits import whole

USUAL = 6  # one in six of each class is held out
MOST_SEED = 2**32 - 1
"""The largest that a RandomState of NumPy takes."""


def hold_out(labels: ArrayLike, classes: Sequence[str], share: float | None = None, seed: int = 0) -> NDArray[np.bool_]:
    """Which samples are held out: ``share`` of each class, by default a sixth, at least one and never all.

    The choice depends on the labels and the seed alone.
    """
    if share is not None and not 0 < share < 1:
        raise OcilError(f"the test share {share:g} must be more than 0 and less than 1.")
    y = np.asarray(labels, dtype=np.int64)
    # Its permutations are the same in every numpy version.
    rng = np.random.RandomState(whole("seed", seed, 0, MOST_SEED))
    held = np.zeros(len(y), dtype=np.bool_)
    by_class = np.argsort(y, kind="stable")
    ends = np.cumsum(np.bincount(y, minlength=len(classes)))
    _refuse_single(np.bincount(y, minlength=len(classes)), classes)
    for members in np.split(by_class, ends[:-1]):
        count = len(members)
        wanted = round(count / USUAL if share is None else count * share)
        chosen = rng.permutation(count)[: min(max(1, wanted), count - 1) if count else 0]
        held[members[chosen]] = True
    return held


def _refuse_single(counts: NDArray[np.int64], classes: Sequence[str]) -> None:
    """Raise an ``OcilError`` that names the classes of which no sample can be held out."""
    single = [classes[label] for label in np.flatnonzero(counts == 1).tolist()]
    if not single:
        return
    if len(single) == 1:
        found, them = f"class '{single[0]}' has one sample; it needs two", "it"
    else:
        found, them = f"{len(single)} classes have one sample each ({some(single)}); they need two", "them"
    how = f"add some, take {them} out, or give test samples of your own"
    raise OcilError(f"{found}, one of them to test with: {how}.")


def split_again(dataset: Dataset, seed: int) -> Dataset:
    """All samples of a dataset, training and test, split at random by a seed: one permutation per class, in the order
    of the classes. Each class has as many test samples as before, the first of its permutation.

    This is the protocol of Mini-ImageNet in online class-incremental learning: 100 of the 600 images of each class are
    drawn as test images.
    """
    if not 0 <= seed <= MOST_SEED:
        raise OcilError(f"the seed {seed} of a random split must be from 0 to {MOST_SEED}.")
    if dataset.domains or dataset.unseen:
        raise OcilError(f"{dataset.name} has domains or unseen classes: it cannot be split again.")
    rng = np.random.RandomState(seed)  # its permutations are the same in every numpy version
    train: list[NDArray[np.int64]] = []
    test: list[NDArray[np.int64]] = []
    count = len(dataset.train_y)
    for label in range(dataset.num_classes):
        held = np.flatnonzero(dataset.test_y == label)
        members = np.concatenate([np.flatnonzero(dataset.train_y == label), count + held])
        order = members[rng.permutation(len(members))]
        test.append(order[: len(held)])
        train.append(order[len(held) :])

    def chosen(parts: list[NDArray[np.int64]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        index = np.concatenate(parts)
        x = np.empty((len(index), *dataset.input_shape), dataset.train_x.dtype)
        x[index < count] = dataset.train_x[index[index < count]]
        x[index >= count] = dataset.test_x[index[index >= count] - count]
        return x, np.repeat(np.arange(dataset.num_classes), [len(part) for part in parts])

    return Dataset(dataset.name, *chosen(train), *chosen(test), dataset.classes)


def in_words(share: float | None) -> str:
    """``a sixth``, or the share as a number."""
    return "a sixth" if share is None else f"{share:g}"
