"""Supervised contrastive replay (Mai, Li, Kim, Sanner, Supervised Contrastive Replay: Revisiting the Nearest Class Mean
Classifier in Online Class-Incremental Continual Learning, CVPR Workshop 2021)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import networks
from ocil.methods._class_means import mean_scorer
from ocil.methods.base import Learner
from ocil.methods.config import AugmentedConfig, LearnerConfig, Problem
from ocil.methods.passes import Pass, replayed
from ocil.networks import to_float
from ocil.rng import derive


@dataclass(frozen=True)
class SCRConfig(AugmentedConfig):
    memory_batch: int = 100
    review: bool = True
    """Part of the method as published."""
    review_batch: int = 100
    """Images in each batch of a review."""

    temperature: float = 0.1
    """Divides the similarities. 0.1 in the authors' configurations; their code's own default is 0.07."""
    projection: int = 128
    """Size of the vectors that are contrasted."""

    crop: float = 0.2
    gray: float = 0.2

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"temperature": 1e-6, "projection": 1}


class SCR(Learner):
    """Step: a random memory batch and the stream batch pass together, raw and then augmented; supervised contrastive
    loss over all projections; one SGD step; the raw stream batch enters the reservoir. The first batch is only stored.
    The nearest class mean of the memory's features classifies.
    """

    Config = SCRConfig
    config: SCRConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mini": {"memory_batch": 20, "review_batch": 20}  # ours: the demo has to run on a slow laptop
    }
    scores_are_logits = False

    @classmethod
    def why_not_vectors(cls, config: SCRConfig) -> str | None:
        return "it contrasts random views of images"

    def __init__(self, config: SCRConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = config.random_views()
        size = self.network.feature_size

        def head() -> nn.Sequential:
            return nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, config.projection))

        self.network.head = networks.seeded(head, derive(seed, "projection")).to(self.device)
        self.optimizer = self.make_optimizer()

    @classmethod
    def passes(cls, config: SCRConfig, batch_size: int, classes: int) -> list[Pass]:
        return 2 * [Pass(batch_size + replayed(config))]

    @classmethod
    def review_passes(cls, config: SCRConfig, classes: int) -> list[Pass]:
        return 2 * [Pass(config.review_batch)]

    def learn(self, x: Tensor, y: Tensor) -> None:
        replay = self.memory.retrieve(self.config.memory_batch)
        loss = torch.zeros((), device=self.device)
        if replay is not None:
            images, labels = torch.cat([replay[0], x]), torch.cat([replay[1], y])
            self.optimizer.zero_grad()
            loss = self.contrast(images, labels)
            loss.backward()
            self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss)

    def contrast(self, x: Tensor, y: Tensor) -> Tensor:
        raw = to_float(x)
        views = [raw, self.random_views(raw, self.rng["augment"])]
        projections = torch.stack([F.normalize(each.scores) for each in self.network.outputs_of(views)], dim=1)
        return supervised_contrastive(projections, y, self.config.temperature)

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.contrast(x, y)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """Scores are negative distances to the class means; minus infinity for a class without a stored image."""
        return mean_scorer(self)


def supervised_contrastive(projections: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020) of unit vectors ``[N, views, D]``, two views or more.

    Each of the ``N · views`` vectors is an anchor. Its loss is the mean of -log p over all other vectors of its label,
    where p is the softmax over all other vectors of inner product / temperature. Returns the mean over anchors.
    """
    views = projections.shape[1]
    z, y = projections.flatten(0, 1), labels[:, None].expand(-1, views).flatten()
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    # An anchor is masked before the softmax: its similarity with itself would leave the others no digits.
    log_p = F.log_softmax((z @ z.T / temperature).masked_fill(itself, -torch.inf), dim=1)
    positive = (y[:, None] == y) & ~itself
    return -(log_p.masked_fill(~positive, 0).sum(1) / positive.sum(1)).mean()
