"""Stride, a method of our own: small steps, random views, debiased logits.

It is AFS with its compute spent in another way: several small steps in the place of a large one, on random views alone,
with logits that are adjusted by how often each class was seen lately.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ocil import kernels
from ocil.errors import OcilError
from ocil.learning import losses
from ocil.methods._cosine_head import cosine_head
from ocil.methods._seen_classes import SeesClasses
from ocil.methods.base import Learner
from ocil.methods.config import AugmentedConfig, LearnerConfig, Problem
from ocil.methods.gdumb import BalancedMemory
from ocil.methods.passes import Pass, replayed
from ocil.networks import bn_momentum, to_float
from ocil.rng import derive

LEAST_FREQUENCY = 1e-5  # of a class that was not seen for long, so that its logarithm is finite
MANY_CLASSES = 20
AFS_IMAGES = 210  # that AFS passes forward and backward for a stream batch: 10, and 100 memory images in two views


@dataclass(frozen=True)
class StrideConfig(AugmentedConfig):
    images: int = AFS_IMAGES
    """Images that pass forward and backward for a stream batch, in all steps together: the compute that a step may
    take. AFS takes 210. Reviews come on top, as they do for AFS."""
    steps: int = 0
    """Steps per stream batch; 0: by the number of classes, see ``default_steps``."""
    memory_batch: int = 0
    """Images drawn from the memory for each step; 0: as many as ``images`` allows."""
    views: int = 2
    """Random views of each memory image in a step."""
    raw: bool = False
    """Whether the image itself is replayed beside its views."""
    augment_stream: bool = False
    """Whether the stream batch is shown in a random view in each step, or as it is."""
    jitter: float = 0.4
    """Probability that a view has other colours. AFS has 0.8."""

    adjustment: float = 0.5
    """Strength of the adjustment of logits by the logarithm of a running label frequency; 0: none."""
    frequency_decay: float = 0.95
    """How much of the running label frequency is kept in a step."""
    seen_only: bool = False
    """Whether the losses run over the classes seen so far, or over all. Over all, distillation lifts the logits of
    classes that are yet to come, to make up for their adjustment, and they win over all others when they come."""

    loss: Literal["rfl", "ce"] = "rfl"
    """Classification loss: revised focal, or cross-entropy."""
    alpha: float = 0.25
    """Factor of the classification loss."""
    mu: float = 0.3
    """Score that the revised focal loss weighs most."""
    sigma: float = 0.5
    """How fast that weight falls off on both sides."""
    beta: float = 0.1
    """Strength of virtual distillation, which is added on stream and memory, not in a review; 0: none."""
    temperature: float = 20.0
    """Temperature of virtual distillation: the higher, the softer the distributions that are compared."""
    epsilon: float = 0.01
    """Share that the virtual teacher gives to the other classes."""
    bn_momentum: float = 1 - 0.9**2
    """How far running statistics move in a pass. AFS's released code passes each batch twice, which is this value."""

    balanced: bool = False
    """Whether memory images are drawn so that each class is as likely as another, instead of each image."""
    balanced_memory: bool = False
    """Whether the memory keeps as many images of each class (GDumb's sampler), instead of a reservoir."""
    cosine: float = 0.0
    """Scale of a cosine head, which takes the linear head's place; 0: linear."""

    review: bool = True
    review_keep_last: bool = True
    review_views: bool = False
    """Whether a review shows each image in a random view, or as it is."""
    adjust_review: bool = False
    """Whether logits are adjusted in reviews too."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {
        "images": 1,
        "steps": 0,
        "memory_batch": 0,
        "views": 0,
        "adjustment": 0,
        "frequency_decay": 0,
        "alpha": 0,
        "beta": 0,
        "sigma": 1e-6,
        "temperature": 1e-6,
        "epsilon": 0,
        "bn_momentum": 0,
        "cosine": 0,
    }
    maximum: ClassVar[dict[str, float]] = LearnerConfig.maximum | {"bn_momentum": 1}
    below: ClassVar[dict[str, float]] = LearnerConfig.below | {"frequency_decay": 1, "epsilon": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.copies:
            raise OcilError("views = 0 with raw = false replays nothing: give views = 1 or more, or raw = true.")

    @property
    def copies(self) -> int:
        """How often a memory image passes through the network in a step."""
        return self.views + self.raw


class Stride(SeesClasses):
    """Step, taken several times for each stream batch: revised focal loss plus virtual distillation on the stream
    batch; the same on a new random memory batch, each image in two random views; logits of both adjusted by the running
    label frequency; one SGD step. Then the raw stream batch enters the reservoir. Reviews are those of AFS.
    """

    Config = StrideConfig
    config: StrideConfig
    class_rows = (*Learner.class_rows, "frequency", "seen_classes")
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"gray": 0.2},  # as AFS has it there
        "fashion-mini": {"images": 60},  # the demo has to run on a slow laptop
    }
    vector_settings: ClassVar[dict[str, Any]] = {"views": 0, "raw": True}

    @classmethod
    def why_not_vectors(cls, config: StrideConfig) -> str | None:
        shown = {"views": config.views, "augment_stream": config.augment_stream, "review_views": config.review_views}
        name = next((name for name, value in shown.items() if value), None)
        return None if name is None else f"{name} = {str(shown[name]).lower()} makes random views of images"

    def __init__(
        self, config: StrideConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = config.random_views()
        numbers = ("alpha", "mu", "sigma", "beta", "temperature", "epsilon")
        self.loss_settings: dict[str, Any] = {name: getattr(config, name) for name in numbers}
        """What ``losses.focus`` takes."""
        self.loss_settings["focal"] = config.loss == "rfl"
        self.frequency: Tensor = nn.Buffer(torch.zeros(problem.classes, device=self.device))
        """How often each class was seen in the last steps, on any scale."""
        self.seen_classes = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.drawn = config.memory_batch or config.images // config.copies
        """Memory images of a step; until the first stream batch tells its size, the most there can be."""
        if config.balanced_memory:
            sizes = (config.memory, problem.input_shape, problem.classes)
            self.memory = BalancedMemory(*sizes, self.rng["memory"], problem.dtype)
        if config.cosine:
            size, head_seed = self.network.feature_size, derive(seed, "head")
            head = cosine_head(size, problem.classes, config.cosine, head_seed, config.growing)
            self.network.head = head.to(self.device)
            self.optimizer = self.make_optimizer()

    @classmethod
    def passes(cls, config: StrideConfig, batch_size: int, classes: int) -> list[Pass]:
        steps, count = plan(config, batch_size, classes)
        return steps * [Pass(batch_size), Pass(config.copies * replayed(config, count))]

    def shapes_are_static(self) -> bool:
        return self.memory.holds_more_than(self.drawn)

    def step_variant(self) -> int:
        """The number of steps, which may follow the number of classes met."""
        return default_steps(self.config, len(self.classes_met))

    def learn(self, x: Tensor, y: Tensor) -> None:
        steps, self.drawn = plan(self.config, len(y), len(self.classes_met))
        # The memory stays as it is until the last step, so the images of all steps are drawn at once.
        slots = self.memory.draws(steps, self.drawn, self.problem.classes if self.config.balanced else 0)
        replays = [] if slots is None else self.replays(slots)
        stream, parts = to_float(x), []
        for step in range(steps):
            batches = [(self.view(x) if self.config.augment_stream else stream, y), *replays[step : step + 1]]
            offset = self.count_labels([labels for _, labels in batches])
            self.optimizer.zero_grad()
            with bn_momentum(self.network, self.config.bn_momentum):
                outputs = self.network.outputs_of([images for images, _ in batches])
            scores = [(each.scores, labels) for each, (_, labels) in zip(outputs, batches, strict=True)]
            loss, parts_of_step = losses.focus(scores, offset=offset, met=self.learned_classes(), **self.loss_settings)
            loss.backward()
            self.optimizer.step()
            parts.append(parts_of_step)
        self.memory.add(x, y)
        means = (torch.stack(parts).sum(2) / steps).sum(0)
        self.record_loss(means.sum(), **dict(zip(("stream", "memory"), means, strict=False)))

    def replays(self, slots: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The memory images in these slots, ``[steps, count]``, as they are shown in each step, with their labels."""
        c, steps = self.config, len(slots)
        shown = []
        if c.raw:
            shown.append(to_float(self.memory.images[slots.flatten()]).chunk(steps))
        if c.views:
            images = to_float(self.memory.images[slots.repeat(1, c.views).flatten()])
            shown.append(self.random_views(images, self.rng["augment"], batches=steps).chunk(steps))
        labels = self.memory.labels[slots.repeat(1, c.copies)]
        return [(torch.cat(each) if len(each) > 1 else each[0], y) for *each, y in zip(*shown, labels, strict=True)]

    @torch.no_grad()
    def count_labels(self, batches: list[Tensor]) -> Tensor:
        """Count the labels of batches in the running frequency, each batch with the same weight, whatever its size.
        Returns the ``offset`` that follows: on a GPU one kernel does both.
        """
        c = self.config
        if kernels.present(self.frequency):
            numbers = (c.frequency_decay, c.adjustment, LEAST_FREQUENCY)
            offset = kernels.label_offset(self.frequency, self.seen_classes, batches, *numbers)
            if offset is not None:
                return offset
        classes = torch.arange(self.problem.classes, device=self.device)
        self.frequency *= c.frequency_decay
        for y in batches:
            self.frequency += (y[:, None] == classes).mean(0, dtype=self.frequency.dtype)
        self.seen_classes |= self.frequency > 0
        return self.offset()

    def offset(self) -> Tensor:
        """What is added to the logits of each class, ``[C]``: the logarithm of its frequency.

        The sum favours classes that are seen often, so the network itself does not learn to. At test time nothing is
        added, and these classes are not favoured.
        """
        share = self.frequency / self.frequency.sum()
        return self.config.adjustment * share.clamp_min(LEAST_FREQUENCY).log()

    def predictable(self) -> Tensor:
        """Classes that were never seen are never predicted: adjusted logits keep them out of the softmax, so that
        nothing is learned of them."""
        return self.seen_classes if self.met is None else self.met

    def view(self, x: Tensor) -> Tensor:
        return self.random_views(to_float(x), self.rng["augment"])

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.network(self.view(x) if self.config.review_views else to_float(x))
        offset = self.offset() if self.config.adjust_review else None
        met = self.learned_classes()
        loss, _ = losses.focus([(logits, y)], offset=offset, met=met, **self.loss_settings | {"beta": 0.0})
        return loss

    def learned_classes(self) -> Tensor | None:
        """The classes that the losses run over, ``[C]``; None: all. Those of a growing learner are the ones met."""
        return self.seen_classes if self.met is None and self.config.seen_only else self.met


def plan(config: StrideConfig, batch_size: int, classes: int) -> tuple[int, int]:
    """The number of steps for a stream batch, and the number of memory images in each.

    All steps together pass at most ``images`` images, unless ``memory_batch`` says otherwise. If ``steps`` is not
    given, there are no more steps than leave half of the images to the memory.
    """
    steps = config.steps or default_steps(config, classes)
    if config.memory_batch:
        return steps, config.memory_batch
    if not config.steps:
        steps = max(1, min(steps, config.images // (2 * batch_size)))
    count = (config.images // steps - batch_size) // config.copies
    if count < 1:
        least = steps * (batch_size + config.copies)
        raise OcilError(
            f"images = {config.images} leaves no memory image to {steps} steps on batches of {batch_size}: "
            f"give images = {least} or more."
        )
    return steps, count


def default_steps(config: StrideConfig, classes: int) -> int:
    """The number of steps per stream batch, unless it is given.

    4 with many classes, 3 with few: the best on held-out training images, see docs/methods/stride.md. Their number
    grows with ``images``, so that steps keep their size.
    """
    usual = 4 if classes > MANY_CLASSES else 3
    return max(1, round(usual * config.images / AFS_IMAGES))
