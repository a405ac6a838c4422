"""Momentum knowledge distillation on experience replay (Michel, Wang, Xiao, Yamasaki, Rethinking Momentum Knowledge
Distillation in Online Continual Learning, ICML 2024)."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil.learning import losses
from ocil.methods.base import Learner
from ocil.methods.config import AugmentedConfig, LearnerConfig, Problem
from ocil.methods.passes import ExtraState, Pass, replayed, size_with_head
from ocil.methods.recorded_losses import total
from ocil.networks import Network, to_float


@dataclass(frozen=True)
class MKDConfig(AugmentedConfig):
    memory_batch: int = 64
    optimizer: str = "adam"
    lr: float = 0.0005

    distillation: float = 5.5
    """Weight of the distillation."""
    temperature: float = 4.0
    """Softens the distributions that are distilled."""
    alpha: float = 0.01
    """How far the teacher's weights move towards the network's with each step."""
    start: Literal["small", "copy"] = "small"
    """The teacher's first weights: ``alpha`` / (1 - ``alpha``) of the network's (released code), or the network's."""
    augment: bool = True
    """Whether the network learns from random views, and from raw images by distillation; else from raw images only."""

    crop: float = 0.2
    gray: float = 0.2

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"distillation": 0, "temperature": 1e-6}
    above: ClassVar[dict[str, float]] = LearnerConfig.above | {"alpha": 0}
    below: ClassVar[dict[str, float]] = LearnerConfig.below | {"alpha": 1}


class MKD(Learner):
    """Step: a random memory batch and the stream batch pass together. Cross-entropy of their views, plus the distance
    to a teacher's predictions for these views: of the network's predictions for the views, and for the raw images. One
    step of Adam; the teacher's weights follow; the raw stream batch enters the reservoir. The first batch is only
    stored. The mean of the two networks' weights predicts.
    """

    Config = MKDConfig
    config: MKDConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mini": {"memory_batch": 10}  # ours: the demo has to run on a slow laptop
    }
    vector_settings: ClassVar[dict[str, Any]] = {"augment": False}
    no_average = "its predictions are those of an average already"

    @classmethod
    def why_not_vectors(cls, config: MKDConfig) -> str | None:
        return "augment = true makes random views of images" if config.augment else None

    def __init__(self, config: MKDConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = config.random_views()
        self.trained = [name for name, weight in self.network.named_parameters() if weight.requires_grad]
        self.teacher = copy.deepcopy(self.network).requires_grad_(False)
        if config.start == "small":
            teacher, _ = self.averaged_weights(self.teacher)
            torch._foreach_mul_(teacher, config.alpha / (1 - config.alpha))

    @classmethod
    def passes(cls, config: MKDConfig, batch_size: int, classes: int) -> list[Pass]:
        both = batch_size + replayed(config)
        return (2 if config.augment else 1) * [Pass(both)] + [Pass(both, trains=False)]

    @classmethod
    def extra_state(cls, config: MKDConfig, problem: Problem, network: Network) -> ExtraState:
        """The teacher, and for scores the mean of both."""
        teacher = 4 * sum(size_with_head(network, problem.classes))
        return ExtraState(teacher, teacher)

    def learn(self, x: Tensor, y: Tensor) -> None:
        replay = self.memory.retrieve(self.config.memory_batch)
        loss = torch.zeros((), device=self.device)
        parts: dict[str, Tensor] = {}
        if replay is not None:
            parts = self.parts(to_float(torch.cat([replay[0], x])), torch.cat([replay[1], y]))
            self.optimizer.zero_grad()
            loss = total(parts)
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(*self.averaged_weights(self.teacher), self.config.alpha)
        self.memory.add(x, y)
        self.record_loss(loss, **parts)

    def parts(self, raw: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The parts of the loss. Each pass has its own batch statistics, the teacher's too: it is never evaluated."""
        c = self.config
        views = self.random_views(raw, self.rng["augment"]) if c.augment else raw
        logits = self.network(views)
        with torch.no_grad():
            taught = self.teacher(views)
        distance = distillation(logits, taught, c.temperature)
        if c.augment:
            distance = (distance + distillation(self.network(raw), taught, c.temperature)) / 2
        return {"cross_entropy": losses.cross_entropy(logits, labels), "distillation": c.distillation * distance}

    def averaged_weights(self, other: Network) -> tuple[list[Tensor], list[Tensor]]:
        """The weights of another network and of this one that are not frozen, in the same order."""
        theirs, ours = ([each.get_parameter(name).detach() for name in self.trained] for each in (other, self.network))
        return theirs, ours

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """Predictions of the mean of network and teacher, with the network's running statistics."""
        mean = copy.deepcopy(self.teacher).eval()
        with torch.no_grad():
            torch._foreach_lerp_(*self.averaged_weights(mean), 0.5)
            for buffer, running in zip(mean.buffers(), self.network.buffers(), strict=True):
                buffer.copy_(running)

        @torch.no_grad()
        def logits(x: Tensor) -> Tensor:
            scores: Tensor = mean(self.inputs(x))
            return self.masked(scores)

        return logits

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        views = to_float(x)
        if self.config.augment:
            views = self.random_views(views, self.rng["augment"])
        return losses.cross_entropy(self.network(views), y)


def distillation(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """The mean over images of ``T² · KL(teacher ‖ network)`` for logits ``[N, C]`` softened by ``T``."""
    log_p, log_q = (F.log_softmax(each.float() / temperature, dim=1) for each in (logits, taught))
    return temperature**2 * (log_q.exp() * (log_q - log_p)).sum(1).mean()
