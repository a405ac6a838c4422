"""Proxy-based contrastive replay (Lin, Zhang, Feng, Li, Ye, PCR: Proxy-based Contrastive Replay for Online
Class-Incremental Continual Learning, CVPR 2023) and its successor HPCR (Lin et al., HPCR: Holistic Proxy-based
Contrastive Replay for Online Continual Learning, TNNLS 2025)."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import networks
from ocil.learning import losses
from ocil.methods._cosine_head import cosine_head, unit
from ocil.methods._seen_classes import SeesClasses
from ocil.methods._stored_outputs import StoredOutputs, squared_difference
from ocil.methods.base import Learner
from ocil.methods.config import AugmentedConfig, LearnerConfig, Problem
from ocil.methods.passes import ExtraState, Pass, replayed
from ocil.methods.recorded_losses import total
from ocil.networks import to_float
from ocil.rng import derive

EPSILON = 1e-6  # added to the length of features and proxies, as released
HYBRID = {"needs": "hybrid"}  # of settings that have no effect otherwise


@dataclass(frozen=True)
class PCRConfig(AugmentedConfig):
    temperature: float = 0.09
    """Divides the cosines of features and proxies."""
    views: Literal["both", "raw"] = "both"
    """Views of stream and memory images in a step: each image raw and augmented, or raw only."""

    hybrid: bool = False
    """HPCR: a loss whose size follows a cycle, and distillation from what was stored with the memory images."""
    cycle: int = field(default=500, metadata=HYBRID)
    """Stream batches in a cycle, which begins with each task."""
    cycle_low: float = field(default=0.5625, metadata=HYBRID)
    """Factor of the contrastive loss at the beginning and end of a cycle."""
    cycle_high: float = field(default=1.8, metadata=HYBRID)
    """Factor of the contrastive loss in the middle of a cycle."""
    logit_weight: float = field(default=0.1, metadata=HYBRID)
    """Weight of the squared difference to the stored logits (0.01 on CIFAR-10)."""
    relation_weight: float = field(default=0.5, metadata=HYBRID)
    """Weight of the difference between the similarities of memory images now and when they were stored."""
    distil_from: Literal["second_task", "start"] = field(default="second_task", metadata=HYBRID)
    """When distillation begins. A stream without announced tasks has no second one: ``start`` is for it."""

    crop: float = 0.2
    gray: float = 0.2

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {
        "temperature": 1e-6,
        "cycle": 1,
        "cycle_low": 0,
        "cycle_high": 0,
        "logit_weight": 0,
        "relation_weight": 0,
    }


class PCR(SeesClasses):
    """Step: the stream batch, raw and augmented, passes; then a random memory batch does; each of their features is
    contrasted with the proxies (the weights of a cosine head) of all labels in both; one SGD step; the raw stream batch
    enters the reservoir. The first batch is only stored. ``hybrid`` makes it HPCR.
    """

    Config = PCRConfig
    config: PCRConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {"cifar10": {"logit_weight": 0.01}}  # released
    class_rows = (*Learner.class_rows, "seen_classes")
    vector_settings: ClassVar[dict[str, Any]] = {"views": "raw"}

    @classmethod
    def why_task_ends(cls, config: PCRConfig) -> str | None:
        late = config.hybrid and config.distil_from == "second_task"
        return "HPCR distils from the second task on, or with distil_from=start at once" if late else None

    @classmethod
    def why_not_vectors(cls, config: PCRConfig) -> str | None:
        return None if config.views == "raw" else f"views = {config.views} makes random views of images"

    def __init__(self, config: PCRConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = config.random_views()
        size, scale = self.network.feature_size, 1 / config.temperature
        head = cosine_head(size, problem.classes, scale, derive(seed, "head"), config.growing, EPSILON)
        self.network.head = head.to(self.device)
        self.optimizer = self.make_optimizer()
        self.seen_classes = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.batches_of_task: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=self.device))
        self.outputs = StoredOutputs(self.memory, problem.classes, size) if config.hybrid else None

    @classmethod
    def passes(cls, config: PCRConfig, batch_size: int, classes: int) -> list[Pass]:
        views = 2 if config.views == "both" else 1
        return [Pass(views * batch_size), Pass(views * replayed(config))]

    @classmethod
    def review_passes(cls, config: PCRConfig, classes: int) -> list[Pass]:
        return [Pass((2 if config.views == "both" else 1) * config.review_batch)]

    @classmethod
    def extra_state(cls, config: PCRConfig, problem: Problem, network: networks.Network) -> ExtraState:
        kept = StoredOutputs.bytes_held(config.memory, problem.classes, network.feature_size)
        return ExtraState(kept if config.hybrid else 0)

    def learn(self, x: Tensor, y: Tensor) -> None:
        slots = self.memory.draw(self.config.memory_batch)
        self.seen_classes.index_fill_(0, y, True)
        features, logits, labels = self.outputs_of(x, y)
        loss = torch.zeros((), device=self.device)
        parts: dict[str, Tensor] = {}
        if slots is not None:
            memory_features, memory_logits, memory_labels = self.outputs_of(
                self.memory.images[slots], self.memory.labels[slots]
            )
            labels = torch.cat([labels, memory_labels])
            parts["contrast"] = proxy_contrast(torch.cat([logits, memory_logits]), labels)
            if self.outputs is not None:
                parts["contrast"] = self.cycle() * parts["contrast"]
                if self.distils:
                    parts |= self.distillation(self.outputs, slots, memory_features, memory_logits, labels)
            self.optimizer.zero_grad()
            loss = total(parts)
            loss.backward()
            self.optimizer.step()
        stored = self.memory.add(x, y)
        if self.outputs is not None:
            self.outputs.keep(stored, logits[: len(x)].detach(), self.met, features[: len(x)].detach())
        self.batches_of_task += 1
        self.record_loss(loss, **parts)

    def outputs_of(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features, logits and labels of a batch, all raw images first, then their augmented views."""
        images = to_float(x)
        if self.config.views == "both":
            images, y = torch.cat([images, self.random_views(images, self.rng["augment"])]), torch.cat([y, y])
        features = self.network.features(images)
        return features, self.network.head(features), y

    def cycle(self) -> Tensor:
        """HPCR's factor of the loss: a cosine wave from ``cycle_low`` to ``cycle_high`` and back."""
        c = self.config
        wave = 0.5 - 0.5 * torch.cos(self.batches_of_task * (2 * math.pi / c.cycle))
        return c.cycle_low + (c.cycle_high - c.cycle_low) * wave

    @property
    def distils(self) -> bool:
        return self.config.hybrid and (self.config.distil_from == "start" or self.task_number > 0)

    def distillation(
        self, outputs: StoredOutputs, slots: Tensor, features: Tensor, logits: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """HPCR's two parts of the loss of memory images; ``labels`` are those of stream and memory."""
        views = len(logits) // len(slots)
        then, known = (each.repeat(views, 1) for each in outputs.read(slots))
        difference = squared_difference(logits, then, counts(labels, logits.shape[1]) * known)
        old_features = outputs.features[slots].repeat(views, 1)
        relation = relation_change(features, old_features, self.config.temperature)
        return {"logits": self.config.logit_weight * difference, "relations": self.config.relation_weight * relation}

    def step_variant(self) -> int:
        return int(self.distils)

    @torch.no_grad()
    def task_ended(self) -> None:
        super().task_ended()
        self.batches_of_task.zero_()

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        _, logits, labels = self.outputs_of(x, y)
        return proxy_contrast(logits, labels)

    def predictable(self) -> Tensor:
        """A class that was not seen yet is not predicted: its proxy is still random. A head that grows knows this."""
        return self.seen_classes if self.met is None else self.met


def proxy_contrast(logits: Tensor, labels: Tensor) -> Tensor:
    """PCR's loss from logits ``[N, C]``, cosine / temperature: the mean over i of ``log Σ_j exp(z_i,y_j) - z_i,y_i``,
    where j runs over the whole batch, so that a label that occurs n times counts n times.

    This is cross-entropy over the classes of the batch with the logarithm of their counts added to the logits, up to a
    constant, which is added here. The sum over classes in the place of images needs no ``[N, N]``.
    """
    number = counts(labels, logits.shape[1])
    log_counts = number.clamp_min(1).log()
    # The smallest number there is: any other would be among the logits of a small enough temperature.
    among = (logits + log_counts).masked_fill(number == 0, torch.finfo(logits.dtype).min)
    return losses.cross_entropy(among, labels) + log_counts[labels].mean()


def counts(labels: Tensor, classes: int) -> Tensor:
    """How often each class occurs, as floats ``[C]``."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).sum(0).float()


def relation_change(now: Tensor, then: Tensor, temperature: float) -> Tensor:
    """The mean over rows of the cross-entropy between the similarities ``then`` and ``now`` of features ``[N, D]``.

    The similarities of a row are the softmax over all other rows of cosine / temperature. A single row has none, and
    nothing to change.
    """
    itself = torch.eye(len(now), dtype=torch.bool, device=now.device)
    similar, similar_then = (
        (unit(rows, EPSILON) @ unit(rows, EPSILON).T / temperature).masked_fill(itself, torch.finfo(rows.dtype).min)
        for rows in (now, then)
    )
    log_p = F.log_softmax(similar, dim=1).masked_fill(itself, 0)
    return -(similar_then.softmax(1) * log_p).sum(1).mean()
