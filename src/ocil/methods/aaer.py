"""Anchor assisted experience replay: our own reconstruction, after Lin et al. (Anchor Assisted Experience Replay for
Online Class-Incremental Learning, TCSVT 2022). There is no public code: what the abstract leaves open is our choice."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import networks
from ocil.learning import losses
from ocil.learning.views import RandomViews
from ocil.methods._class_means import unit_features
from ocil.methods._distances import nearness
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import ExtraState, Pass, replayed
from ocil.methods.recorded_losses import total
from ocil.networks import Outputs, to_float

FAR = 1e4  # the squared distance to an anchor that does not count; others are at most 4
TASK_END_BATCH = 500  # memory images per pass at a task's end


@dataclass(frozen=True)
class AAERConfig(LearnerConfig):
    memory_batch: int = 100

    compensation: Literal["forward", "backward", "none"] = "backward"
    """How old class centres and new features are made comparable. ``forward``: each centre moves as its anchor has
    moved. ``backward``: each test feature moves back by as much as its nearest anchor has moved. ``none``: neither."""
    drift_weight: float = 1.0
    """Strength of the pull of replayed images towards the anchor of their class."""
    anchor_margin: float = 0.0
    """0: the pull is the squared distance to the own anchor. Above 0: it ends where the own anchor is nearer than every
    other one by so much, in squared distances of unit vectors (at most 4)."""
    updates: int = 1
    """SGD steps per stream batch, each with a memory batch of its own."""
    augment: bool = True
    """Whether each memory image is replayed raw and augmented, as in AFS, or only raw."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"drift_weight": 0, "anchor_margin": 0, "updates": 1}


class AAER(Learner):
    """Our own reconstruction. Step: cross-entropy of the stream batch; cross-entropy of a random memory batch plus the
    squared distance of its features to those of their class's anchor; one SGD step; reservoir. At a task's end the
    anchor of each class becomes its stored image of smallest loss. The nearest class centre classifies; anchors show
    how far the features have drifted since the centre was computed.
    """

    Config = AAERConfig
    config: AAERConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        **{name: {"updates": 4} for name in ("mini_imagenet", "cifar100", "cifar10")},  # ours: docs/methods/aaer.md
        "fashion-mini": {"memory_batch": 10},  # ours: the demo has to run on a slow laptop
    }
    class_rows = (*Learner.class_rows, "anchors", "known", "centres", "taken", "moved")
    vector_settings: ClassVar[dict[str, Any]] = {"augment": False}
    scores_are_logits = False
    no_average = "its class centres and anchors are features of the network that is trained"

    @classmethod
    def why_not_vectors(cls, config: AAERConfig) -> str | None:
        return "augment = true makes random views of images" if config.augment else None

    def __init__(self, config: AAERConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = RandomViews()
        size = (problem.classes, self.network.feature_size)
        # Copies of images: the reservoir may overwrite an anchor's slot.
        inputs = torch.zeros((problem.classes, *problem.input_shape), dtype=problem.dtype, device=self.device)
        self.anchors: Tensor = nn.Buffer(inputs)
        self.known: Tensor = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.centres: Tensor = nn.Buffer(torch.zeros(size, device=self.device))
        self.taken: Tensor = nn.Buffer(torch.zeros(size, device=self.device))
        """The anchors' features when they were chosen."""
        self.moved: Tensor = nn.Buffer(torch.zeros(size, device=self.device))
        """How far the earlier anchors of a class have moved."""

    @classmethod
    def extra_state(cls, config: AAERConfig, problem: Problem, network: networks.Network) -> ExtraState:
        """An anchor and three vectors per class."""
        anchor = math.prod(problem.input_shape) * problem.dtype.itemsize
        return ExtraState(problem.classes * (anchor + 1 + 3 * 4 * network.feature_size))

    @classmethod
    def passes(cls, config: AAERConfig, batch_size: int, classes: int) -> list[Pass]:
        memory = Pass(replayed(config) * (2 if config.augment else 1))
        return [Pass(batch_size), memory, *cls.anchor_passes(config, classes)] * config.updates

    @classmethod
    def review_passes(cls, config: AAERConfig, classes: int) -> list[Pass]:
        return [Pass(config.review_batch), *cls.anchor_passes(config, classes)]

    @classmethod
    def task_end_passes(cls, config: AAERConfig, classes: int, stored: int) -> list[Pass]:
        sizes = [min(TASK_END_BATCH, stored - first) for first in range(0, stored, TASK_END_BATCH)]
        return [Pass(size, trains=False) for size in (*sizes, classes, classes)] if stored else []

    @staticmethod
    def anchor_passes(config: AAERConfig, classes: int) -> list[Pass]:
        return [Pass(classes, trains=False)] if config.drift_weight else []

    def learn(self, x: Tensor, y: Tensor) -> None:
        for _ in range(self.config.updates):
            replay = self.memory.retrieve(self.config.memory_batch)
            batches = [(to_float(x), y)]
            if replay is not None:
                batches.append(self.views(*replay))
            self.optimizer.zero_grad()
            outputs = self.network.outputs_of([images for images, _ in batches])
            parts = {"stream": losses.cross_entropy(outputs[0].scores, y)}
            if replay is not None:
                parts["memory"] = self.anchored_loss(outputs[1], batches[1][1])
            loss = total(parts)
            loss.backward()
            self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss, **parts)

    def views(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        raw = to_float(x)
        if not self.config.augment:
            return raw, y
        return torch.cat([raw, self.random_views(raw, self.rng["augment"])]), torch.cat([y, y])

    def anchored_loss(self, outputs: Outputs, labels: Tensor) -> Tensor:
        features, scores = outputs
        loss = losses.cross_entropy(scores, labels)
        if self.task_number and self.config.drift_weight:
            anchors = self.features(self.anchors)
            pull = drift(features, anchors, labels, self.known, self.config.anchor_margin)
            loss = loss + self.config.drift_weight * pull
        return loss

    def step_variant(self) -> int:
        return min(self.task_number, 1)  # anchors exist from the first task's end on

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        (outputs,) = self.network.outputs_of([to_float(x)])
        return self.anchored_loss(outputs, y)

    @torch.no_grad()
    def task_ended(self) -> None:
        super().task_ended()
        labels = self.memory.labels[: len(self.memory)]
        if not len(labels):
            return
        means, loss = self.look_at_memory()
        slot, stored = least_by_class(loss, labels, self.problem.classes)
        self.moved += torch.where(self.known[:, None], self.features(self.anchors) - self.taken, 0)
        self.centres.copy_(torch.where((stored & ~self.known)[:, None], means, self.centres))
        self.anchors.copy_(
            torch.where(stored.view(-1, *[1] * len(self.problem.input_shape)), self.memory.images[slot], self.anchors)
        )
        self.known |= stored
        self.taken.copy_(self.features(self.anchors))

    def relabel(self, slots: Sequence[int], label: int) -> None:
        self.drop_anchors(slots)
        super().relabel(slots, label)

    def forget(self, slots: Sequence[int]) -> None:
        self.drop_anchors(slots)
        super().forget(slots)

    @torch.no_grad()
    def drop_anchors(self, slots: Sequence[int]) -> None:
        """A class whose anchor is a copy of one of these samples has none until the next task's end."""
        for slot in slots:
            same = (self.anchors == self.memory.images[slot]).flatten(1).all(1) & self.known
            for rows in (self.anchors, self.known, self.centres, self.taken, self.moved):
                rows[same] = 0

    def look_at_memory(self) -> tuple[Tensor, Tensor]:
        """Mean normalised feature ``[C, D]`` of each stored class (0 for the others), and each image's loss."""
        count = len(self.memory)
        labels, lost = self.memory.labels[:count], []
        sums, members = torch.zeros_like(self.centres), self.centres.new_zeros(len(self.centres), 1)
        images = self.memory.images[:count].split(TASK_END_BATCH)
        for x, y in zip(images, labels.split(TASK_END_BATCH), strict=True):
            with networks.evaluating(self.network):
                features = self.network.features(to_float(x))
                lost.append(losses.cross_entropy(self.network.head(features), y, reduction="none"))
            belongs = (y == torch.arange(len(sums), device=y.device)[:, None]).float()
            sums += belongs @ F.normalize(features)
            members += belongs.sum(1, keepdim=True)
        return sums / members.clamp(min=1), torch.cat(lost)

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Unit vectors, by running statistics: an anchor's features must not depend on the other images."""
        return unit_features(self.network, images)

    @torch.no_grad()
    def scorer(self) -> Callable[[Tensor], Tensor]:
        labels = self.memory.labels[: len(self.memory)]
        stored = torch.zeros_like(self.known).index_fill_(0, labels, True)
        present = self.known | stored
        centres, anchors = self.centres, self.features(self.anchors)
        offset = self.moved + anchors - self.taken
        if bool((stored & ~self.known).any()):  # classes of the present task: no drift yet, present means
            means, old = self.look_at_memory()[0], self.known[:, None]
            centres, anchors = torch.where(old, centres, means), torch.where(old, anchors, means)
            offset = torch.where(old, offset, 0)
        if self.config.compensation == "forward":
            centres = centres + offset

        @torch.no_grad()
        def scores(x: Tensor) -> Tensor:
            features = self.features(x)
            if self.config.compensation == "backward":
                features = features - offset[nearness(features, anchors, present).argmax(1)]
            return self.masked(nearness(features, centres, present))

        return scores


def drift(features: Tensor, anchors: Tensor, labels: Tensor, known: Tensor, margin: float = 0.0) -> Tensor:
    """Mean over the batch of ``||f(x) - f(a_y)||²``, features normalised; 0 for a label without anchor.

    With a margin: of ``max(0, margin + ||f(x) - f(a_y)||² - min_j ||f(x) - f(a_j)||²)`` over the other anchors j.
    """
    features, anchors = F.normalize(features), anchors.detach()
    apart = (features - anchors[labels]).square().sum(1)
    if margin:
        others = 2 - 2 * features @ anchors.T  # squared distances of unit vectors
        own = labels[:, None] == torch.arange(len(anchors), device=labels.device)
        apart = (margin + apart - others.masked_fill(own | ~known, FAR).min(1).values).clamp_min(0)
    return torch.where(known[labels], apart, 0).mean()


def least_by_class(loss: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """For each class the index of its smallest loss (the first of equals), and whether it has any."""
    order = loss.argsort(stable=True)
    shelf, within = labels[order].sort(stable=True)
    edges = torch.searchsorted(shelf, torch.arange(classes + 1, device=labels.device))
    return order[within[edges[:-1].clamp(max=len(labels) - 1)]], edges.diff() > 0
