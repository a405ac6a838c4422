"""Deep streaming linear discriminant analysis (Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear
Discriminant Analysis, CVPR Workshop 2020)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ocil.methods._frozen import FrozenLearner, in_float64
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import ExtraState
from ocil.networks import Network


@dataclass(frozen=True)
class SLDAConfig(LearnerConfig):
    shrinkage: float = 1e-4
    """The share of the identity in the covariance, which could not be inverted without it."""

    above: ClassVar[dict[str, float]] = LearnerConfig.above | {"shrinkage": 0}
    maximum: ClassVar[dict[str, float]] = LearnerConfig.maximum | {"shrinkage": 1}


class SLDA(FrozenLearner):
    """Step: the sum and the number of the features of each class, and the sum of their outer products. Scores are the
    log-likelihoods of Gaussians with the class means and one covariance that all classes share.
    """

    Config = SLDAConfig
    config: SLDAConfig
    class_rows = (*FrozenLearner.class_rows, "sums", "counts")

    def __init__(self, config: SLDAConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        size = self.network.feature_size
        self.sums = self.buffer(problem.classes, size)
        self.counts = self.buffer(problem.classes)
        self.products = self.buffer(size, size)

    @classmethod
    def extra_state(cls, config: SLDAConfig, problem: Problem, network: Network) -> ExtraState:
        """``rule`` makes up to five matrices of the size of the covariance."""
        size, classes = network.feature_size, problem.classes
        return ExtraState(8 * (size * size + classes * (size + 1)), 8 * 5 * size * max(size, classes))

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> None:
        features, members = self.encode(x).to(self.exact), self.members(y)
        self.sums += members @ features
        self.counts += members.sum(1)
        self.products.addmm_(features.T, features)
        away = features - self.sums[y] / self.counts[y, None]
        self.record_loss(away.square().sum(1).mean().float())

    def scorer(self) -> Callable[[Tensor], Tensor]:
        rule = self.kept(self.rule)

        @torch.no_grad()
        def scores(x: Tensor) -> Tensor:
            return self.only_seen((self.encode(x) - rule.centre) @ rule.weight + rule.bias, rule.counts)

        return scores

    @torch.no_grad()
    def rule(self) -> "Rule":
        """The linear rule of the statistics so far.

        Means and features are taken from the mean of all samples: that adds the same to the scores of all classes, and
        keeps numbers small.
        """
        sums, counts, products = (in_float64(each) for each in (self.sums, self.counts, self.products))
        number = counts.sum().clamp_min(1)
        means = sums / counts.clamp_min(1)[:, None]
        within = (products - means.T @ (counts[:, None] * means)) / number
        share, identity = self.config.shrinkage, torch.eye(len(within), dtype=within.dtype, device=within.device)
        centre = sums.sum(0) / number
        means -= centre
        weight = torch.linalg.solve((1 - share) * within + share * identity, means.T)
        bias = -(means.T * weight).sum(0) / 2
        return Rule(*(each.to(self.device).float() for each in (centre, weight, bias, counts)))


class Rule(NamedTuple):
    """Scores are ``(features - centre) @ weight + bias``."""

    centre: Tensor
    weight: Tensor
    bias: Tensor
    counts: Tensor
    """Samples of each class."""
