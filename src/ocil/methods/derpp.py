"""Dark experience replay with labels, DER++ (Buzzega, Boschini, Porrello, Abati, Calderara, Dark Experience for General
Continual Learning: a Strong, Simple Baseline, NeurIPS 2020)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ocil.learning import losses
from ocil.methods._stored_outputs import StoredOutputs, squared_difference
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.er_ace import shift_and_flip
from ocil.methods.passes import ExtraState, Pass, replayed
from ocil.methods.recorded_losses import total
from ocil.networks import Network, to_float


@dataclass(frozen=True)
class DERPlusPlusConfig(LearnerConfig):
    alpha: float = 0.1
    """Weight of the squared difference to the logits that memory images had when they were stored."""
    beta: float = 0.5
    """Weight of the cross-entropy of a second memory batch."""
    augment: bool = True
    """Whether all images of a step are randomly shifted and flipped."""
    pad: int = 4
    """Black border, in pixels, inside which an augmented image is shifted; at most half of the image's side."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"alpha": 0, "beta": 0, "pad": 0}


class DERPlusPlus(Learner):
    """Step: cross-entropy of the stream batch; ``alpha`` times the mean squared difference of a memory batch's logits
    to its stored ones; ``beta`` times the cross-entropy of another memory batch; three passes, each with its own batch
    statistics; one SGD step; then the raw stream batch enters the reservoir with its logits.
    """

    Config = DERPlusPlusConfig
    config: DERPlusPlusConfig
    vector_settings: ClassVar[dict[str, Any]] = {"augment": False}

    @classmethod
    def why_not_vectors(cls, config: DERPlusPlusConfig) -> str | None:
        return "augment = true shifts and flips images" if config.augment else None

    def __init__(
        self, config: DERPlusPlusConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, problem, seed, device)
        self.outputs = StoredOutputs(self.memory, problem.classes)

    @classmethod
    def passes(cls, config: DERPlusPlusConfig, batch_size: int, classes: int) -> list[Pass]:
        return [Pass(batch_size), Pass(replayed(config)), Pass(replayed(config))]

    @classmethod
    def extra_state(cls, config: DERPlusPlusConfig, problem: Problem, network: Network) -> ExtraState:
        return ExtraState(StoredOutputs.bytes_held(config.memory, problem.classes))

    def learn(self, x: Tensor, y: Tensor) -> None:
        memory, c = self.memory, self.config
        first, second = memory.draw(c.memory_batch), memory.draw(c.memory_batch)
        self.optimizer.zero_grad()
        logits = self.network(self.views(x))
        parts = {"stream": losses.cross_entropy(logits, y)}
        parts["stream"].backward()
        if first is not None and second is not None:
            difference = squared_difference(self.network(self.views(memory.images[first])), *self.outputs.read(first))
            parts["logits"] = c.alpha * difference
            parts["logits"].backward()
            parts["memory"] = losses.cross_entropy(
                self.network(self.views(memory.images[second])), memory.labels[second], c.beta
            )
            parts["memory"].backward()
        self.optimizer.step()
        self.outputs.keep(memory.add(x, y), logits.detach(), self.met)
        parts = {name: part.detach() for name, part in parts.items()}
        self.record_loss(total(parts), **parts)

    def views(self, x: Tensor) -> Tensor:
        return to_float(shift_and_flip(x, self.config.pad, self.rng["augment"]) if self.config.augment else x)

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.cross_entropy(self.network(self.views(x)), y)
