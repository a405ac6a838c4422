"""Experience replay with asymmetric cross-entropy (Caccia et al., New Insights on Reducing Abrupt Representation Change
in Online Continual Learning, ICLR 2022)."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil.learning import losses
from ocil.methods._cosine_head import cosine_head
from ocil.methods._seen_classes import SeesClasses
from ocil.methods.base import Learner
from ocil.methods.config import REVIEW, LearnerConfig, Problem
from ocil.methods.recorded_losses import total
from ocil.networks import to_float
from ocil.rng import derive

Future = Literal["largest", "unseen"]


@dataclass(frozen=True)
class ERACEConfig(LearnerConfig):
    future: Future = "largest"
    """Classes in the stream's softmax in addition to those of the batch. ``largest``: all labels from the largest one
    seen so far upwards (released code; for classes in ascending order). ``unseen``: those not seen yet (any order)."""
    head: Literal["cosine", "linear"] = "cosine"
    """``cosine``: ``scale`` times the cosine of feature and class weight (released code). ``linear``: as elsewhere."""
    scale: float = 10.0
    """Factor of the cosines."""
    inputs: Literal["signed", "unit"] = "signed"
    """Pixels from -1 to 1 (released code) or from 0 to 1 (the other methods). Without effect on vectors, and for a
    network that normalises its inputs itself."""
    augment: Literal["none", "memory", "both"] = "both"
    """Which batches of a step are randomly shifted and flipped: none, that of the memory, or the stream's too."""
    review_augment: bool = field(default=True, metadata=REVIEW)
    """Whether a review shifts and flips its images (the paper's ER-ACE-RV row is "review + augmentation")."""
    pad: int = 4
    """Black border, in pixels, inside which an augmented image is shifted; at most half of the image's side."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"scale": 1e-6, "pad": 0}


class ERACE(SeesClasses):
    """Step: cross-entropy of the stream batch over its own and future classes only, so that it does not push old ones
    down; plus cross-entropy of a random memory batch over all classes, in a pass of its own; one SGD step; the stream
    batch enters the reservoir.
    """

    Config = ERACEConfig
    config: ERACEConfig
    class_rows = (*Learner.class_rows, "seen_classes")
    vector_settings: ClassVar[dict[str, Any]] = {"augment": "none", "review_augment": False}

    @classmethod
    def why_not_vectors(cls, config: ERACEConfig) -> str | None:
        shifted = config.augment != "none" or (config.review and config.review_augment)
        return "augment and review_augment shift and flip images" if shifted else None

    def __init__(
        self, config: ERACEConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, problem, seed, device)
        self.seen_classes = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        if config.head == "cosine":
            size, head_seed = self.network.feature_size, derive(seed, "head")
            head = cosine_head(size, problem.classes, config.scale, head_seed, config.growing)
            self.network.head = head.to(self.device)
            self.optimizer = self.make_optimizer()

    def learn(self, x: Tensor, y: Tensor) -> None:
        augment = self.config.augment
        replay = self.memory.retrieve(self.config.memory_batch)
        self.seen_classes.index_fill_(0, y, True)
        kept = kept_classes(y, self.seen_classes, self.config.future)
        parts: dict[str, Tensor] = {}
        self.optimizer.zero_grad()
        logits = self.network(self.prepare(x, augment == "both"))
        loss = losses.cross_entropy(logits.masked_fill(~kept, -1e9), y)
        loss.backward()
        if replay is not None:
            replay_logits = self.network(self.prepare(replay[0], augment != "none"))
            replay_loss = losses.cross_entropy(replay_logits, replay[1])
            replay_loss.backward()
            parts = {"stream": loss.detach(), "memory": replay_loss.detach()}
            loss = total(parts)
        self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss, **parts)

    def inputs(self, x: Tensor) -> Tensor:
        inputs = to_float(x)
        own_range = self.network.normalises or not self.problem.is_images
        return 2 * inputs - 1 if self.config.inputs == "signed" and not own_range else inputs

    def prepare(self, x: Tensor, augmented: bool) -> Tensor:
        """Network inputs of stored images, shifted and flipped at random if ``augmented``."""
        return self.inputs(shift_and_flip(x, self.config.pad, self.rng["augment"]) if augmented else x)

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.cross_entropy(self.network(self.prepare(x, self.config.review_augment)), y)


def kept_classes(y: Tensor, seen: Tensor, future: Future) -> Tensor:
    """Which classes ``[C]`` the softmax of a stream batch runs over. ``seen`` includes the classes of the batch."""
    present = torch.zeros_like(seen).index_fill_(0, y, True)
    if future == "unseen":
        return present | ~seen
    index = torch.arange(len(seen), device=seen.device)
    return present | (index >= torch.where(seen, index, 0).max())


def shift_and_flip(x: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """A random window of each image ``[B, H, W, C]`` inside a black border; half of the windows are mirrored.

    The border is at most half as wide as the image: every window shows a part of it. A batch of black windows would
    have no batch statistics, and the step would give NaN.
    """
    pad = min(pad, min(x.shape[1:3]) // 2)
    top, left = torch.randint(2 * pad + 1, (2, len(x)), generator=generator, device=x.device)
    flipped = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    return cut(x, pad, top, left, flipped)


def cut(x: Tensor, pad: int, top: Tensor, left: Tensor, flipped: Tensor) -> Tensor:
    """Windows of the padded images, one per row of ``top``, ``left`` and ``flipped`` (mirrored left to right)."""
    count, height, width, _ = x.shape
    image = torch.arange(count, device=x.device)[:, None, None]
    row = top[:, None] + torch.arange(height, device=x.device)
    column = torch.arange(width, device=x.device)
    column = left[:, None] + torch.where(flipped[:, None], width - 1 - column, column)
    padded = F.pad(x, (0, 0, pad, pad, pad, pad))
    return padded[image, row[:, :, None], column[:, None, :]]
