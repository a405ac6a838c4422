"""What the learners of frozen features share: a network that never changes, and statistics of what it computes.

The statistics are sums over all samples so far, so a learner is the same, up to rounding, in whatever order they came.
They are kept in float64: a sum of 100,000 float32 numbers would lose the digits that the inverse of a covariance needs.
Apple's GPUs (MPS) have no float64, so sums are float32 there.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ocil import networks
from ocil.learning.optimizers import Optimizer
from ocil.learning.sgd import SGD
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import Pass
from ocil.precision import widest

T = TypeVar("T")


class FrozenLearner(Learner):
    """Learns from features of a network that keeps its weights and its batch statistics: nothing is trained.

    What is derived from the statistics for scoring, such as the inverse of a covariance, is computed when scores are
    asked for, and kept until the next step (``kept``).
    """

    trains_network = False
    no_average = "its network never learns, so there is nothing to average"

    def __init__(
        self, config: LearnerConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, problem, seed, device)
        self.network.head = nn.Identity()
        self.network.requires_grad_(False)
        self.optimizer = self.make_optimizer()
        self.exact = widest(self.device)
        self._kept: tuple[Any, Any] = (None, None)

    @classmethod
    def why_not_images(cls, config: LearnerConfig) -> str | None:
        if not networks.has_random_weights(config.network, config.pretrained):
            return None
        return (
            "its network never learns, and would have random weights: give features=timm:NAME or network=timm:NAME, "
            "and pretrained=FILE"
        )

    @classmethod
    def passes(cls, config: LearnerConfig, batch_size: int, classes: int) -> list[Pass]:
        return [Pass(batch_size, trains=False)]

    def shapes_are_static(self) -> bool:
        return True  # a step retrieves nothing

    def make_optimizer(self) -> Optimizer:
        return SGD([], self.config.lr)  # nothing is trained

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Features ``[B, d]`` in float32, with the network's running statistics."""
        with networks.evaluating(self.network):
            return self.network.features(self.inputs(x))

    def buffer(self, *shape: int) -> Tensor:
        """Zeros to add up statistics in."""
        return nn.Buffer(torch.zeros(shape, dtype=self.exact, device=self.device))

    def members(self, y: Tensor) -> Tensor:
        """``[C, B]``, 1 where a sample is of a class: a product with it adds up per class, in a fixed order."""
        return (torch.arange(self.problem.classes, device=y.device)[:, None] == y).to(self.exact)

    def kept(self, compute: Callable[[], T]) -> T:
        """The value of ``compute``, computed anew only if something was learned since the last call. Reads from the
        device.
        """
        now = int(self.steps), self.problem.classes
        if self._kept[0] != now:
            self._kept = now, compute()
        found: T = self._kept[1]
        return found

    def load_state(self, state: dict[str, Tensor], generators: bool = True) -> None:
        super().load_state(state, generators)
        self._kept = (None, None)

    def only_seen(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Scores ``[B, C]`` with minus infinity for classes without a sample; 0 for all while no class has one."""
        seen = counts > 0
        return self.masked(torch.where(seen, scores, torch.where(seen.any(), -torch.inf, 0.0)))


def in_float64(statistics: Tensor) -> Tensor:
    """The statistics in float64, in which equations are solved. They move to the CPU if the device has no float64."""
    return statistics.cpu().double() if statistics.device.type == "mps" else statistics.double()
