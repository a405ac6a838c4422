"""Repeated augmented rehearsal (Zhang, Pfahringer, Frank, Bifet, Lim, Jia, A Simple but Strong Baseline for Online
Continual Learning: Repeated Augmented Rehearsal, NeurIPS 2022)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ocil.learning import losses
from ocil.learning.randaugment import STRONGEST, RandAugment
from ocil.methods._class_means import mean_scorer
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import Pass, replayed
from ocil.methods.recorded_losses import total
from ocil.networks import to_float


@dataclass(frozen=True)
class RARConfig(LearnerConfig):
    repeats: int = 10
    """Steps on each stream batch, each with a memory batch of its own."""
    operations: int = 1
    """Random operations on each image (RandAugment's N); 0 switches the augmentation off."""
    magnitude: float = 14.0
    """Strength of the operations, from 0 to 30 (RandAugment's M)."""
    readout: Literal["ncm", "head"] = "ncm"
    """What classifies: the nearest class mean of the memory's features (released results), or the network's head."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"repeats": 1, "operations": 0, "magnitude": 0}
    maximum: ClassVar[dict[str, float]] = LearnerConfig.maximum | {"magnitude": STRONGEST}


class RAR(Learner):
    """Step, several times on each stream batch: a random memory batch and the stream batch, both with RandAugment, pass
    together; the sum of their two mean cross-entropies; one SGD step. Then the raw stream batch enters the reservoir.
    The nearest class mean of the memory's features classifies.
    """

    Config = RARConfig
    config: RARConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mini": {"repeats": 2}  # ours: the demo has to run on a slow laptop
    }
    vector_settings: ClassVar[dict[str, Any]] = {"operations": 0}
    scores_are_logits = False

    @classmethod
    def why_not_vectors(cls, config: RARConfig) -> str | None:
        return f"operations = {config.operations} augments images" if config.operations else None

    def __init__(self, config: RARConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.randaugment = RandAugment(config.operations, config.magnitude)

    @classmethod
    def passes(cls, config: RARConfig, batch_size: int, classes: int) -> list[Pass]:
        return [Pass(batch_size + replayed(config)) for _ in range(config.repeats)]

    def learn(self, x: Tensor, y: Tensor) -> None:
        parts: dict[str, Tensor] = {}
        for _ in range(self.config.repeats):
            replay = self.memory.retrieve(self.config.memory_batch)
            images = x if replay is None else torch.cat([x, replay[0]])
            self.optimizer.zero_grad()
            logits = self.network(self.augmented(images))
            parts = {"stream": losses.cross_entropy(logits[: len(x)], y)}
            if replay is not None:
                parts["memory"] = losses.cross_entropy(logits[len(x) :], replay[1])
            total(parts).backward()
            self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(total(parts), **parts)  # of the last step

    def augmented(self, x: Tensor) -> Tensor:
        return to_float(self.randaugment(x, self.rng["augment"]))

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.cross_entropy(self.network(self.augmented(x)), y)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """Scores are negative distances to the class means, or the head's logits."""
        if self.config.readout == "head":
            return super().scorer()
        return mean_scorer(self)
