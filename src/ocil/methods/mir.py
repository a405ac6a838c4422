"""Maximally interfered retrieval (Aljundi et al., Online Continual Learning with Maximally Interfered Retrieval,
NeurIPS 2019)."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ocil.learning import losses
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig
from ocil.methods.passes import Pass, replayed
from ocil.methods.recorded_losses import total
from ocil.networks import evaluating, to_float, virtual_step


@dataclass(frozen=True)
class MIRConfig(LearnerConfig):
    candidates: int = 50
    """Random memory images of which the ``memory_batch`` most interfered ones are replayed."""
    candidate_statistics: Literal["batch", "running"] = "batch"
    """How the candidates are normalised when they are scored. ``batch``: by their own statistics, and the network's
    running ones move (published numbers). ``running``: as in evaluation, nothing moves."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"candidates": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_less("candidates", "memory_batch")


class MIR(Learner):
    """Step: cross-entropy of the stream batch, plus that of the random memory candidates whose loss would rise most if
    a step followed the stream's gradient alone; one SGD step; the stream batch enters the reservoir.
    """

    Config = MIRConfig
    config: MIRConfig

    @classmethod
    def passes(cls, config: MIRConfig, batch_size: int, classes: int) -> list[Pass]:
        scored = Pass(replayed(config, config.candidates), trains=False)
        return [Pass(batch_size), scored, scored, Pass(replayed(config))]

    def learn(self, x: Tensor, y: Tensor) -> None:
        candidates = self.memory.retrieve(self.config.candidates)
        parts: dict[str, Tensor] = {}
        self.optimizer.zero_grad()
        loss = losses.cross_entropy(self.network(to_float(x)), y)
        loss.backward()
        if candidates is not None:
            images, labels = candidates
            harm = self.interference(to_float(images), labels)
            worst = harm.topk(min(self.config.memory_batch, len(labels))).indices
            replay_loss = losses.cross_entropy(self.network(to_float(images[worst])), labels[worst])
            replay_loss.backward()
            parts = {"stream": loss.detach(), "memory": replay_loss.detach()}
            loss = total(parts)
        self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss, **parts)

    def shapes_are_static(self) -> bool:
        return self.memory.holds_more_than(self.config.candidates)

    @torch.no_grad()
    def interference(self, images: Tensor, labels: Tensor) -> Tensor:
        """By how much one SGD step along the present gradients would raise each image's loss."""
        with evaluating(self.network) if self.config.candidate_statistics == "running" else nullcontext():
            now = self.network(images)
            with virtual_step(self.network, self.config.lr):
                then = self.network(images)
        after, before = (losses.cross_entropy(logits, labels, reduction="none") for logits in (then, now))
        return after - before
