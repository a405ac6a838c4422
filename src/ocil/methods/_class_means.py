"""The nearest-class-mean read-out: class means of the memory's features, for the methods that classify by them."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil.learning.memory import Memory
from ocil.methods._distances import nearness
from ocil.methods.base import Learner
from ocil.networks import Network, evaluating, to_float
from ocil.precision import widest

MEANS_BATCH = {"cuda": 2500}  # memory images per pass for the class means; 500 on other devices


@torch.no_grad()
def class_means(memory: Memory, classes: int, size: int, encode: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Class means of the features of all stored images as unit vectors ``[C, size]``, and which classes have an image.

    ``encode`` turns stored images ``[B, ...]`` into features ``[B, size]``, usually unit vectors. Reads the number of
    stored images back: not for use inside a step.
    """
    stored, device = len(memory), memory.labels.device
    labels = memory.labels[:stored]
    sums = torch.zeros(classes, size, dtype=widest(device), device=device)
    together = MEANS_BATCH.get(device.type, 500)
    for x, y in zip(memory.images[:stored].split(together), labels.split(together), strict=True):
        if len(y):  # a product: index_add_ adds in no fixed order on a GPU
            sums += F.one_hot(y, classes).to(sums.dtype).T @ encode(x).to(sums.dtype)
    present = torch.zeros(classes, dtype=torch.bool, device=device).index_fill_(0, labels, True)
    return F.normalize(sums.float()), present  # a sum has the direction of the mean


def unit_features(network: Network, x: Tensor) -> Tensor:
    """Features ``[B, D]`` of stored inputs as unit vectors, by running statistics."""
    with evaluating(network):
        return F.normalize(network.features(to_float(x)))


def mean_scorer(learner: Learner) -> Callable[[Tensor], Tensor]:
    """Scores by negative distances of ``unit_features`` to their class means; minus infinity for a class without a
    stored image.
    """
    network, classes = learner.network, learner.problem.classes
    encode = partial(unit_features, network)
    means, present = class_means(learner.memory, classes, network.feature_size, encode)

    @torch.no_grad()
    def scores(x: Tensor) -> Tensor:
        return learner.masked(nearness(encode(x), means, present))

    return scores
