"""Random projections of frozen features and ridge regression (McDonnell et al., RanPAC: Random Projections and
Pre-trained Models for Continual Learning, NeurIPS 2023)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ocil.methods._frozen import FrozenLearner, in_float64
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import ExtraState
from ocil.networks import Network
from ocil.rng import derive

RIDGES = tuple(10.0**power for power in range(-8, 9))  # published
HOLD_OUT = 5  # every fifth batch is held out: the published share is a fifth


@dataclass(frozen=True)
class RanPACConfig(LearnerConfig):
    projection: int = 2000
    """Random features. 10,000 are published: their matrices take 1.6 GB and a step on a CPU a quarter of a second."""
    ridge: float | None = None
    """Strength of the ridge penalty; None: the power of ten from 1e-8 to 1e8 that predicts held-out batches best."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"projection": 1}
    maximum: ClassVar[dict[str, float]] = LearnerConfig.maximum | {"projection": 30_000}
    above: ClassVar[dict[str, float]] = LearnerConfig.above | {"ridge": 0}


class RanPAC(FrozenLearner):
    """Step: features go through a random projection and ReLU; their outer products, and their sums per class, are added
    up. A ridge regression of the labels on these random features, solved from the two sums, classifies.

    The sums of every fifth batch are kept apart: from them follows the squared error on these batches for any ridge.
    """

    Config = RanPACConfig
    config: RanPACConfig
    class_rows = (*FrozenLearner.class_rows, "sums", "held_sums", "counts")
    scores_are_logits = False

    def __init__(
        self, config: RanPACConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, problem, seed, device)
        generator = torch.Generator().manual_seed(derive(seed, "projection"))
        drawn = torch.randn(self.network.feature_size, config.projection, generator=generator)
        self.projection = nn.Buffer(drawn.to(self.device), persistent=False)  # the seed decides it
        self.sums, self.held_sums = (self.buffer(problem.classes, config.projection) for _ in range(2))
        self.products, self.held_products = (self.buffer(config.projection, config.projection) for _ in range(2))
        self.counts = self.buffer(problem.classes)

    @classmethod
    def extra_state(cls, config: RanPACConfig, problem: Problem, network: Network) -> ExtraState:
        """The random projection and the sums. To choose a ridge and to solve takes up to six more matrices."""
        size, classes = config.projection, problem.classes
        sums = 8 * (2 * size * size + 2 * classes * size + classes)
        return ExtraState(4 * network.feature_size * size + sums, 8 * 6 * size * max(size, classes))

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor) -> None:
        features, members = self.encode(x), self.members(y)
        random = features.to(self.exact)
        held_out = self.config.ridge is None and int(self.steps) % HOLD_OUT == HOLD_OUT - 1
        products, sums = (self.held_products, self.held_sums) if held_out else (self.products, self.sums)
        products.addmm_(random.T, random)
        sums += members @ random
        self.counts += members.sum(1)
        self.record_loss(features.square().sum(1).mean())

    def encode(self, x: Tensor) -> Tensor:
        """Random features ``[B, projection]``."""
        return (super().encode(x) @ self.projection).relu()

    def scorer(self) -> Callable[[Tensor], Tensor]:
        weight, counts = self.kept(lambda: (self.weight(), self.counts.clone()))

        @torch.no_grad()
        def scores(x: Tensor) -> Tensor:
            return self.only_seen(self.encode(x) @ weight, counts)

        return scores

    @torch.no_grad()
    def weight(self) -> Tensor:
        """The solution of the ridge regression on all samples so far, ``[projection, C]``."""
        statistics = (self.products, self.sums, self.held_products, self.held_sums)
        products, sums, held_products, held_sums = map(in_float64, statistics)
        ridge = self.config.ridge
        if ridge is None:
            ridge = best_ridge(products, sums.T, held_products, held_sums.T)
        return solve(products + held_products, (sums + held_sums).T, ridge).to(self.device).float()


def solve(products: Tensor, sums: Tensor, ridge: float) -> Tensor:
    identity = torch.eye(len(products), dtype=products.dtype, device=products.device)
    found: Tensor = torch.linalg.solve(products + ridge * identity, sums)
    return found


def best_ridge(products: Tensor, sums: Tensor, held_products: Tensor, held_sums: Tensor) -> float:
    """The ridge whose solution for the first two sums has the smallest squared error on the samples of the others.

    With weights W that error is tr(W' P W) - 2 tr(W' S), up to a constant, for held-out products P and sums S. One
    decomposition serves all ridges. Before the first held-out batch all errors are equal, and 1 is chosen.
    """
    values, vectors = torch.linalg.eigh(products)
    values = values.clamp_min(0)[:, None]
    sums, held_sums = vectors.T @ sums, vectors.T @ held_sums
    held_products = vectors.T @ held_products @ vectors
    if not bool(held_products.any()):
        return 1.0
    errors = []
    for ridge in RIDGES:
        weight = sums / (values + ridge)
        errors.append((weight * (held_products @ weight - 2 * held_sums)).sum())
    return RIDGES[int(torch.stack(errors).argmin())]
