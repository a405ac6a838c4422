"""Adaptive focus shifting (Liang et al., New Insights on Relieving Task-Recency Bias for Online Class Incremental
Learning, TCSVT 2023)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ocil.learning import losses
from ocil.learning.losses import SampleValue
from ocil.learning.views import CropRule, RandomViews
from ocil.methods.base import Learner
from ocil.methods.config import AugmentedConfig, LearnerConfig, Problem
from ocil.methods.passes import Pass, replayed
from ocil.methods.recorded_losses import added, total
from ocil.networks import Outputs, bn_momentum, to_float

PUBLISHED_BETA = {  # the authors' choice for each dataset and memory size, from their released commands
    "cifar10": {200: 0.05, 500: 0.05, 1000: 0.1},
    "cifar100": {1000: 0.15, 2000: 0.05, 5000: 0.1},
    "mini_imagenet": {1000: 0.05, 2000: 0.1, 5000: 0.05},
}


@dataclass(frozen=True)
class AFSConfig(AugmentedConfig):
    memory_batch: int = 100
    review: bool = True
    review_keep_last: bool = True

    loss: Literal["rfl", "focal", "ce"] = "rfl"
    """Classification loss: revised focal, focal, or cross-entropy, as in the paper's ablation table."""
    regulariser: Literal["vkd", "lsr", "none"] = "vkd"
    """Added to the loss of stream and memory, not in a review: virtual distillation, label smoothing, or nothing."""
    alpha: float = 0.25
    """Factor of the focal losses."""
    ce_scale: float = 1.0
    """Factor of cross-entropy. 0.25 is a control: is the gain that of the loss, or that of a smaller step?"""
    gamma: float = 2.0
    """Exponent of the focal loss."""
    mu: float = 0.3
    """Score that the revised focal loss weighs most."""
    sigma: float = 0.5
    """How fast that weight falls off on both sides."""
    sample_value: SampleValue = "p_t"
    """What the revised focal loss weighs by: the true class's score, or a label-free measure (Table III)."""
    beta: float = 0.1
    """Strength of the regulariser. Published values per dataset and memory size are filled in."""
    temperature: float = 20.0
    """Temperature of virtual distillation: the higher, the softer the distributions that are compared."""
    epsilon: float = 0.01
    """Share that the virtual teacher, and label smoothing, give to the other classes."""

    forward: Literal["separate", "joint"] = "separate"
    """``separate``: stream and memory pass one after the other and their mean losses add up (released code).
    ``joint``: one pass and one mean over both (the paper's formula)."""
    views: Literal["both", "augmented", "raw"] = "both"
    """Views of a memory image that are replayed. ``both`` makes 200 images of a memory batch of 100 (released code)."""
    double_bn_update: bool = True
    """The released code passes each batch twice with VKD, so running statistics move twice. Here one pass does it."""

    crop_rule: CropRule = "reject"
    """``reject``: redraw boxes that do not fit, up to ten times (released code). ``clamp``: cut them to the image."""
    gray: float = 0.0
    """Probability that an image turns gray (0.2 on CIFAR-10)."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {
        "alpha": 0,
        "ce_scale": 0,
        "gamma": 0,
        "beta": 0,
        "sigma": 1e-6,
        "temperature": 1e-6,
        "epsilon": 0,
    }
    below: ClassVar[dict[str, float]] = LearnerConfig.below | {"epsilon": 1}

    def random_views(self) -> RandomViews:
        return replace(super().random_views(), crop_rule=self.crop_rule)


class AFS(Learner):
    """Step: revised focal loss plus virtual distillation on the stream batch; the same on a random memory batch, each
    image raw and augmented; one SGD step; the raw stream batch enters the reservoir. Reviews use the revised focal loss
    alone, on raw images. The paper's ablations and its "baseline" are settings of ``loss`` and ``regulariser``.
    """

    Config = AFSConfig
    config: AFSConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"gray": 0.2},  # published
        "fashion-mini": {"memory_batch": 10},  # ours: the demo has to run on a slow laptop
    }
    vector_settings: ClassVar[dict[str, Any]] = {"views": "raw"}

    @classmethod
    def why_not_vectors(cls, config: AFSConfig) -> str | None:
        return None if config.views == "raw" else f"views = {config.views} makes random views of images"

    def __init__(self, config: AFSConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = config.random_views()
        twice = config.double_bn_update and config.regulariser == "vkd"
        self.bn_momentum = 1 - 0.9**2 if twice else 0.1

    @classmethod
    def settings_for(cls, dataset: str, memory: int, classes: int | None = None) -> dict[str, Any]:
        betas = PUBLISHED_BETA.get(dataset)
        beta = {"beta": betas[min(betas, key=lambda size: abs(size - memory))]} if betas else {}
        return super().settings_for(dataset, memory, classes) | beta

    @classmethod
    def passes(cls, config: AFSConfig, batch_size: int, classes: int) -> list[Pass]:
        memory = replayed(config) * (2 if config.views == "both" else 1)
        return [Pass(batch_size + memory)] if config.forward == "joint" else [Pass(batch_size), Pass(memory)]

    def learn(self, x: Tensor, y: Tensor) -> None:
        replay = self.memory.retrieve(self.config.memory_batch)
        batches = [(to_float(x), y)]
        if replay is not None:
            batches.append(self.views(*replay))
        if self.config.forward == "joint":
            batches = [(torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches]))]

        self.optimizer.zero_grad()
        with bn_momentum(self.network, self.bn_momentum):
            outputs = self.network.outputs_of([images for images, _ in batches])
        labels = [labels for _, labels in batches]
        loss, parts = self.loss(list(zip(outputs, labels, strict=True)), regularise=True)
        loss.backward()
        self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss, **parts)

    def views(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        raw = to_float(x)
        if self.config.views == "raw":
            return raw, y
        augmented = self.random_views(raw, self.rng["augment"])
        if self.config.views == "augmented":
            return augmented, y
        return torch.cat([raw, augmented]), torch.cat([y, y])

    def loss(self, batches: list[tuple[Outputs, Tensor]], regularise: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of the mean losses of batches, and its parts over all batches, by name, without a gradient."""
        c = self.config
        has_kernel = c.loss == "ce" or (c.loss == "rfl" and c.sample_value == "p_t")
        if has_kernel and not (regularise and c.regulariser == "lsr"):
            return self.focus_loss(batches, distils=regularise and c.regulariser == "vkd")
        found = [self.parts(outputs, labels, regularise) for outputs, labels in batches]
        sums = {name: added(parts[name].detach() for parts in found) for name in found[0]}
        return added(total(parts) for parts in found), sums

    def focus_loss(self, batches: list[tuple[Outputs, Tensor]], distils: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """``loss`` for the published loss, and for cross-entropy in its place. On a GPU one kernel computes it."""
        c, focal = self.config, self.config.loss == "rfl"
        loss, parts = losses.focus(
            [(outputs.scores, labels) for outputs, labels in batches],
            c.alpha if focal else c.ce_scale,
            c.mu,
            c.sigma,
            c.beta if distils else 0.0,
            c.temperature,
            c.epsilon,
            focal=focal,
            met=self.met,
        )
        classification, distillation = parts.sum(0)
        found = {"revised_focal" if focal else "cross_entropy": classification}
        return loss, found | ({"virtual_distillation": distillation} if distils else {})

    def parts(self, outputs: Outputs, labels: Tensor, regularise: bool) -> dict[str, Tensor]:
        """The parts of the loss of a batch, by name, for the ablations that ``focus_loss`` does not have."""
        c, met = self.config, self.met
        features, logits = outputs
        parts: dict[str, Tensor] = {}
        if c.loss == "focal":
            parts["focal"] = losses.focal(logits, labels, c.alpha, c.gamma)
        elif c.loss == "ce":
            parts["cross_entropy"] = losses.cross_entropy(logits, labels, c.ce_scale)
        else:
            parts["revised_focal"] = losses.revised_focal(
                logits, labels, c.alpha, c.mu, c.sigma, c.sample_value, features, met=met
            )
        if regularise and c.regulariser == "vkd":
            parts["virtual_distillation"] = losses.virtual_distillation(
                logits, labels, c.beta, c.temperature, c.epsilon, met=met
            )
        elif regularise and c.regulariser == "lsr":
            parts["label_smoothing"] = losses.label_smoothing(logits, labels, c.epsilon, scale=c.beta, met=met)
        return parts

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        (outputs,) = self.network.outputs_of([to_float(x)])
        return self.loss([(outputs, y)], regularise=False)[0]
