"""Dual view consistency (Gu, Yang, Wei, Deng, Not Just Selection, but Exploration: Online Class-Incremental Continual
Learning via Dual View Consistency, CVPR 2022)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import networks
from ocil.learning import losses
from ocil.learning.views import RandomViews
from ocil.methods.base import Learner
from ocil.methods.config import AugmentedConfig, LearnerConfig, Problem
from ocil.methods.passes import ExtraState, Pass, replayed
from ocil.methods.recorded_losses import total
from ocil.networks import Growing, GrowingHead, to_float
from ocil.rng import derive

FLOOR = torch.finfo(torch.float64).eps  # the least probability that a logarithm is taken of, as released


@dataclass(frozen=True)
class DVCConfig(AugmentedConfig):
    dl_weight: float = 4.0
    """Weight of the distance between the joint distribution and those of the two views (2 on CIFAR-10)."""
    candidates: int = 50
    """Random memory images that are scored for each memory batch; at least ``memory_batch``."""
    qnet_units: int = 128
    """Hidden units of the network that joins the two views."""

    per_batch: bool = True
    """Whether a whole batch shares one draw of the augmentation, as released, or each image has its own."""
    crop: float = 0.2
    jitter: float = 1.0
    """Probability that colours are changed: always, as released."""
    gray: float = 0.2

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"dl_weight": 0, "qnet_units": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_less("candidates", "memory_batch")

    def random_views(self) -> RandomViews:
        return replace(super().random_views(), per_batch=self.per_batch)


class DVC(Learner):
    """Step: the dual-view loss of the stream batch and its augmented view in one pass; then that of the memory images
    whose gradient this step would make grow most (MGI), each pass with its own batch statistics; one SGD step; the raw
    stream batch enters the reservoir.
    """

    Config = DVCConfig
    config: DVCConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"dl_weight": 2.0}  # published: 2 on CIFAR-10, 4 on CIFAR-100 and Mini-ImageNet
    }

    @classmethod
    def why_not_vectors(cls, config: DVCConfig) -> str | None:
        return "it compares two views of an image"

    def __init__(self, config: DVCConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = config.random_views()
        classes, units = problem.classes, config.qnet_units

        def qnet() -> nn.Sequential:
            if not config.growing:
                return nn.Sequential(nn.Linear(2 * classes, units), nn.ReLU(), nn.Linear(units, classes))
            first = GrowingPair(classes, units, derive(seed, "qnet in"))
            return nn.Sequential(first, nn.ReLU(), GrowingHead(units, classes, derive(seed, "qnet out")))

        self.qnet = networks.seeded(qnet, derive(seed, "qnet")).to(self.device)
        self.optimizer = self.make_optimizer()

    @classmethod
    def extra_state(cls, config: DVCConfig, problem: Problem, network: networks.Network) -> ExtraState:
        """The Q-net, with its gradients and velocities."""
        return ExtraState(4 * 3 * ((3 * problem.classes + 1) * config.qnet_units + problem.classes))

    @classmethod
    def passes(cls, config: DVCConfig, batch_size: int, classes: int) -> list[Pass]:
        scored = Pass(2 * replayed(config, config.candidates), trains=False)
        return [Pass(2 * batch_size), scored, scored, Pass(2 * replayed(config))]

    @classmethod
    def review_passes(cls, config: DVCConfig, classes: int) -> list[Pass]:
        return [Pass(2 * config.review_batch)]

    def shapes_are_static(self) -> bool:
        return self.memory.holds_more_than(self.config.candidates)

    def learn(self, x: Tensor, y: Tensor) -> None:
        raw = to_float(x)
        self.optimizer.zero_grad()
        loss = self.loss(raw, self.random_views(raw, self.rng["augment"]), y)
        loss.backward()
        parts = {"stream": loss.detach()}
        replay = self.retrieve()
        if replay is not None:
            replay_loss = self.loss(*replay)
            replay_loss.backward()
            parts["memory"] = replay_loss.detach()
        self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(total(parts), **parts)

    def loss(self, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
        z, z2 = self.network(torch.cat([first, second])).chunk(2)
        return dvc_loss(z, z2, self.qnet(torch.cat([z, z2], dim=1)), labels, self.config.dl_weight, self.met)

    @torch.no_grad()
    def retrieve(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Maximal gradient interference: the candidates whose gradient a step along the present ones makes grow most.

        Returns their two views and labels. The score needs no Q-net, so only the network takes the virtual step.
        """
        slots = self.memory.draw(self.config.candidates)
        if slots is None:
            return None
        first, labels = to_float(self.memory.images[slots]), self.memory.labels[slots]
        second = self.random_views(first, self.rng["augment"])
        now = self.gradient_sizes(first, second, labels)
        with networks.virtual_step(self.network, self.config.lr):
            growth = self.gradient_sizes(first, second, labels) - now
        best = growth.topk(min(self.config.memory_batch, len(slots))).indices
        return first[best], second[best], labels[best]

    def gradient_sizes(self, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
        """``gradient_size`` of the first views, which pass together with the second ones."""
        features = self.network.features(torch.cat([first, second]))[: len(first)]
        return gradient_size(features, self.network.head(features), labels)

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        raw = to_float(x)
        return self.loss(raw, self.random_views(raw, self.rng["augment"]), y)


class GrowingPair(Growing):
    """The Q-net's first layer for classes that are not known in advance: one row per class, for both views.

    PyTorch would initialise it from a range that depends on the number of classes; this range depends on the units.
    """

    def __init__(self, classes: int, units: int, seed: int) -> None:
        super().__init__()
        bound = units**-0.5
        self.weight = nn.Parameter(torch.zeros(classes, 2, units))
        self.bias = nn.Parameter(torch.empty(units).uniform_(-bound, bound))
        self.start(classes, seed, bound)

    def forward(self, x: Tensor) -> Tensor:
        x = x.masked_fill(~self.met.repeat(2), 0)
        return F.linear(x, self.weight.permute(2, 1, 0).flatten(1), self.bias)


def dvc_loss(z: Tensor, z2: Tensor, z3: Tensor, labels: Tensor, weight: float, met: Tensor | None = None) -> Tensor:
    """The loss of DVC from the logits ``[N, C]`` of the first view, the second view and both together.

    The sum of: cross-entropy of the 2N views; a third of the summed negative entropies of the three mean distributions;
    ``weight`` times the mean distance |p'' - p| and |p'' - p'| over views and classes. The logits of classes that are
    not ``met`` are masked, and the mean is over the others.
    """
    p, p2, p3 = (logits.softmax(1) for logits in (z, z2, z3))
    means = torch.stack([q.mean(0) for q in (p, p2, p3)]).clamp_min(FLOOR)
    agreement = (means * means.log()).sum() / 3
    distance = F.l1_loss(torch.cat([p3, p3]), torch.cat([p, p2]))
    if met is not None:
        distance = distance * (len(met) / met.sum())
    return losses.cross_entropy(torch.cat([z, z2]), torch.cat([labels, labels])) + agreement + weight * distance


def gradient_size(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Size of the last layer's gradient, one number per sample: |softmax - one-hot|₁ · |feature|₁."""
    p = logits.softmax(1)
    residual = p.scatter_add(1, labels[:, None], -torch.ones_like(p[:, :1]))
    return residual.abs().sum(1) * features.abs().sum(1)
