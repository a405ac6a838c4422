"""Nearest class mean of frozen features (Mensink et al., Distance-Based Image Classification: Generalizing to New
Classes at Near-Zero Cost, TPAMI 2013)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil.methods._distances import distances
from ocil.methods._frozen import FrozenLearner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import ExtraState
from ocil.networks import Network


@dataclass(frozen=True)
class NCMConfig(LearnerConfig):
    metric: Literal["cosine", "euclidean"] = "cosine"
    """``cosine``: features and class means have length 1. ``euclidean``: both as they are (published)."""


class NCM(FrozenLearner):
    """Step: the sum and the number of the features of each class. The nearest class mean classifies."""

    Config = NCMConfig
    config: NCMConfig
    class_rows = (*FrozenLearner.class_rows, "sums", "counts")
    scores_are_logits = False

    def __init__(self, config: NCMConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.sums = self.buffer(problem.classes, self.network.feature_size)
        self.counts = self.buffer(problem.classes)

    @classmethod
    def extra_state(cls, config: NCMConfig, problem: Problem, network: Network) -> ExtraState:
        return ExtraState(8 * problem.classes * (network.feature_size + 1))

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> None:
        features, members = self.encode(x), self.members(y)
        self.sums += members @ features.to(self.exact)
        self.counts += members.sum(1)
        away = features - (self.sums[y] / self.counts[y, None]).float()
        self.record_loss(away.square().sum(1).mean())

    def encode(self, x: Tensor) -> Tensor:
        features = super().encode(x)
        return F.normalize(features) if self.config.metric == "cosine" else features

    def means(self) -> Tensor:
        """Class means ``[C, d]``; 0 for a class without a sample."""
        means = (self.sums / self.counts.clamp_min(1)[:, None]).float()
        return F.normalize(means) if self.config.metric == "cosine" else means

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """Scores are negative distances to the class means."""
        means, counts = self.kept(lambda: (self.means(), self.counts.clone()))

        @torch.no_grad()
        def scores(x: Tensor) -> Tensor:
            return self.only_seen(-distances(self.encode(x), means), counts)

        return scores
