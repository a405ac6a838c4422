"""What a step costs: passes of images through the network, and state beside it. Both stand in the method's file:
``Learner.passes`` and ``Learner.extra_state``."""

from collections.abc import Sequence
from typing import NamedTuple

from ocil.methods.config import LearnerConfig


class Pass(NamedTuple):
    """One batch that passes through the network."""

    images: int
    trains: bool = True
    """Whether a backward pass follows the forward pass."""


class ExtraState(NamedTuple):
    """Device memory of a learner beside its network, its memory of images and its optimiser, in bytes."""

    kept: int = 0
    """Held all the time."""
    scoring: int = 0
    """Held for a moment, when scores are computed from what is kept."""


def replayed(config: LearnerConfig, count: int | None = None) -> int:
    """How many of ``count`` images (``memory_batch`` by default) a full memory gives: no more than it holds."""
    return min(config.memory_batch if count is None else count, config.memory)


def images_held(passes: Sequence[Pass]) -> int:
    """The largest number of images whose activations are held at a time during a step.

    Passes that train may wait for one common backward pass; the others free their activations at once.
    """
    trained = sum(each.images for each in passes if each.trains)
    return max([trained, *(each.images for each in passes)])
