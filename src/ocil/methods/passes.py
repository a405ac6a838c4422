"""What a step costs: passes of images through the network, and state beside it. Both stand in the method's file:
``Learner.passes`` and ``Learner.extra_state``."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ocil.methods.config import LearnerConfig
from ocil.networks import Network


class Pass(NamedTuple):
    """One batch that passes through the network."""

    images: int
    trains: bool = True
    """Whether a backward pass follows the forward pass."""


FORWARD_WEIGHT = 1 / 3
"""What an image that only passes forward counts, where images stand for compute: a backward pass takes about as long as
two forward passes."""


def weighted_images(passes: Iterable[Pass]) -> float:
    """Images that pass through the network, in images that pass forward and backward."""
    return sum(each.images * (1 if each.trains else FORWARD_WEIGHT) for each in passes)


class ExtraState(NamedTuple):
    """Device memory of a learner beside its network, its memory of images and its optimiser, in bytes."""

    kept: int = 0
    """Held all the time."""
    scoring: int = 0
    """Held for a moment, when scores are computed from what is kept."""


class NetworkSize(NamedTuple):
    """How many numbers a copy of a network holds."""

    weights: int
    statistics: int
    """Running statistics and other buffers."""


def size_with_head(network: Network, classes: int) -> NetworkSize:
    """The size of a network as ``Learner.extra_state`` gets it, together with a linear head for all classes."""
    weights = sum(each.numel() for each in network.parameters()) + (network.feature_size + 1) * classes
    return NetworkSize(weights, sum(each.numel() for each in network.buffers()))


def replayed(config: LearnerConfig, count: int | None = None) -> int:
    """How many of ``count`` images (``memory_batch`` by default) a full memory gives: no more than it holds."""
    return min(config.memory_batch if count is None else count, config.memory)


def images_held(passes: Sequence[Pass]) -> int:
    """The largest number of images whose activations are held at a time during a step.

    Passes that train may wait for one common backward pass; the others free their activations at once.
    """
    trained = sum(each.images for each in passes if each.trains)
    return max([trained, *(each.images for each in passes)])
