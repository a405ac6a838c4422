"""Collaborative learning with a distillation chain on experience replay (Wang, Michel, Xiao, Yamasaki, Improving
Plasticity in Online Continual Learning via Collaborative Learning, CVPR 2024)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ocil import networks
from ocil.learning import losses, optimizers
from ocil.learning.randaugment import STRONGEST, RandAugment
from ocil.learning.views import RandomViews, crop_range
from ocil.methods.base import Learner
from ocil.methods.config import AugmentedConfig, LearnerConfig, Problem
from ocil.methods.mkd import distillation
from ocil.methods.passes import ExtraState, Pass, replayed, size_with_head
from ocil.methods.recorded_losses import added, total
from ocil.networks import Network, to_float
from ocil.rng import derive


class Views(NamedTuple):
    """The views of a batch, or a network's logits for them, in the order in which they pass, as released."""

    augmented: Tensor
    hardest: Tensor
    raw: Tensor
    cropped: Tensor
    hard: Tensor


@dataclass(frozen=True)
class CCLDCConfig(AugmentedConfig):
    memory_batch: int = 64
    optimizer: str = "adamw"
    lr: float = 0.0005
    weight_decay: float = 0.0001

    distillation: float = 2.0
    """Weight of the distances to the other network's predictions."""
    temperature: float = 4.0
    """Softens the distributions that are distilled."""
    augment: bool = True
    """Whether the networks learn from views, each harder than the one before; else from raw images only."""
    chain_crop: float = 0.6
    """Smallest area of the crop in the chain, as a share of the image; 1 switches that crop off."""
    operations: int = 3
    """Random operations from one view of the chain to the next (RandAugment's N)."""
    magnitude: float = 15.0
    """Strength of these operations, from 0 to 30 (RandAugment's M)."""
    per_batch: bool = True
    """Whether all images get the same operations (released code), or each its own."""

    crop: float = 0.2
    gray: float = 0.2

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {
        "distillation": 0,
        "temperature": 1e-6,
        "operations": 0,
        "magnitude": 0,
    }
    maximum: ClassVar[dict[str, float]] = LearnerConfig.maximum | {"magnitude": STRONGEST}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chain_views()  # raises if chain_crop is out of its bounds

    def chain_views(self) -> RandomViews:
        return RandomViews(crop_scale=crop_range(self.chain_crop, "chain_crop"), flip=0.5, jitter=0.0)


class CCLDC(Learner):
    """Step: a random memory batch and the stream batch pass through two networks, in an augmented view and in four
    views that are harder and harder, the raw images first. Each network minimises half of its cross-entropies, plus the
    distance of what it says of a view to what the other says of the next harder one. One step of AdamW; the raw stream
    batch enters the reservoir. The first batch is only stored. The mean of the two networks' logits predicts.
    """

    Config = CCLDCConfig
    config: CCLDCConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mini": {"memory_batch": 10}  # ours: the demo has to run on a slow laptop
    }
    vector_settings: ClassVar[dict[str, Any]] = {"augment": False}
    no_average = "its predictions are those of two networks, of which one would be averaged"

    @classmethod
    def why_not_vectors(cls, config: CCLDCConfig) -> str | None:
        return "augment = true makes views of images" if config.augment else None

    def __init__(
        self, config: CCLDCConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = config.random_views()
        self.chain_views = config.chain_views()
        self.randaugment = RandAugment(config.operations, config.magnitude, "torchvision", config.per_batch)
        self.peer = self.make_network(derive(seed, "peer"))
        self.optimizer = self.make_optimizer()  # of both: no gradient goes from one network to the other

    @classmethod
    def passes(cls, config: CCLDCConfig, batch_size: int, classes: int) -> list[Pass]:
        views = len(Views._fields) if config.augment else 1
        return 2 * views * [Pass(batch_size + replayed(config))]

    @classmethod
    def review_passes(cls, config: CCLDCConfig, classes: int) -> list[Pass]:
        return 2 * [Pass(config.review_batch)]

    @classmethod
    def extra_state(cls, config: CCLDCConfig, problem: Problem, network: Network) -> ExtraState:
        """The other network, its gradient, and what the optimiser keeps of it."""
        peer = size_with_head(network, problem.classes)
        return ExtraState(4 * ((2 + optimizers.numbers_kept(config.optimizer)) * peer.weights + peer.statistics))

    def learn(self, x: Tensor, y: Tensor) -> None:
        replay = self.memory.retrieve(self.config.memory_batch)
        loss = torch.zeros((), device=self.device)
        parts: dict[str, Tensor] = {}
        if replay is not None:
            self.optimizer.zero_grad()
            parts = self.parts(torch.cat([replay[0], x]), torch.cat([replay[1], y]))
            loss = total(parts)
            loss.backward()
            self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss, **parts)

    def parts(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The parts of both networks' losses. Each view passes by itself, with its own batch statistics."""
        c, views = self.config, self.views(images)
        first, second = ([each.scores for each in net.outputs_of(views)] for net in (self.network, self.peer))
        entropies = [losses.cross_entropy(logits, labels) for logits in (*first, *second)]
        distances = [
            distillation(own, taught.detach(), c.temperature)
            for student, teacher in ((first, second), (second, first))
            for own, taught in links(student, teacher)
        ]
        return {"cross_entropy": added(entropies) / 2, "distillation": c.distillation * added(distances)}

    def views(self, images: Tensor) -> Sequence[Tensor]:
        """``Views``, or the raw images alone. Hard ones are cropped ones after RandAugment, and the hardest ones after
        it once more."""
        raw = to_float(images)
        if not self.config.augment:
            return [raw]
        rng = self.rng["augment"]
        augmented, cropped = self.random_views(raw, rng), self.chain_views(raw, rng)
        hard = self.randaugment((255.999 * cropped).to(torch.uint8).permute(0, 2, 3, 1), rng)
        return Views(augmented, to_float(self.randaugment(hard, rng)), raw, cropped, to_float(hard))

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """Predictions by the mean of both networks' logits."""

        @torch.no_grad()
        def logits(x: Tensor) -> Tensor:
            with networks.evaluating(self.network), networks.evaluating(self.peer):
                inputs = self.inputs(x)
                scores: Tensor = (self.network(inputs) + self.peer(inputs)) / 2
            return self.masked(scores)

        return logits

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        views = to_float(x)
        if self.config.augment:
            views = self.random_views(views, self.rng["augment"])
        return losses.cross_entropy(self.network(views), y) + losses.cross_entropy(self.peer(views), y)


def links(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The student's logits for a view with the teacher's for the next harder one, which they are drawn to, from the raw
    images on; for the raw images alone, if there are no views."""
    if len(student) == 1:
        return [(student[0], teacher[0])]
    mine, theirs = Views(*student), Views(*teacher)
    return [
        (mine.raw, theirs.cropped),
        (mine.cropped, theirs.hard),
        (mine.hard, theirs.hardest),
        (mine.hardest, theirs.hardest),
    ]
