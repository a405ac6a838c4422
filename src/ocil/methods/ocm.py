"""Online continual learning through mutual information maximisation (Guo, Liu, Zhao, Online Continual Learning through
Mutual Information Maximization, ICML 2022)."""

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import networks
from ocil.errors import OcilError
from ocil.learning import losses
from ocil.learning.views import RandomViews
from ocil.methods._seen_classes import SeesClasses
from ocil.methods._standardised import Standardise, StandardisedConfig
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import ExtraState, Pass, replayed, size_with_head
from ocil.methods.recorded_losses import total
from ocil.networks import InputShape, Network, image_shape, to_float
from ocil.rng import derive

VARIANTS = 16
EPSILON = 1e-8


@dataclass(frozen=True)
class OCMConfig(StandardisedConfig):
    lr: float = 0.03
    """Learning rate of plain SGD. The authors use Adam; the paper searched SGD's rate but does not give it."""
    memory_batch: int = 64
    """Images drawn from the memory from the second task on, at most ``per_class`` for each class seen."""
    per_class: int = 7
    """Memory images of a batch for each class seen, while that is less than ``memory_batch``."""
    temperature: float = 0.07
    """Divides the similarities."""
    similarity_weight: float = 1.0
    """Factor of both parts of the similarity from the second task on (0.5 on CIFAR-10). In the first task it is 1."""
    projection: int = 128
    """Size of the vectors that are contrasted, and of the slice of the feature; at most the feature's own size."""
    flip: float = 0.5
    """Probability that an image is mirrored."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {
        "per_class": 1,
        "temperature": 1e-6,
        "similarity_weight": 0,
        "projection": 1,
    }

    def random_views(self) -> RandomViews:
        return replace(super().random_views(), flip=self.flip)


class OCM(SeesClasses):
    """Step: contrast of 16 turned variants of each stream image, raw and augmented. In the first task, plus the
    cross-entropy of the stream. Later, plus the same contrast and the cross-entropy of a memory batch, whose outputs
    are also kept close to those of the last task's model. One SGD step; the raw stream batch enters the reservoir.
    """

    Config = OCMConfig
    config: OCMConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "cifar10": {"similarity_weight": 0.5},  # released: 0.5 on CIFAR-10, 1 elsewhere
        "fashion-mini": {"memory_batch": 10},  # ours: the demo has to run on a slow laptop
    }
    class_rows = (*Learner.class_rows, "seen_classes", "old_classes")

    @classmethod
    def why_not_vectors(cls, config: OCMConfig) -> str | None:
        return "it turns halves of images"

    def __init__(self, config: OCMConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        channels = image_shape(problem.input_shape)[2]
        self.random_views = config.random_views()
        self.channels = self.network.channels
        self.slice = min(config.projection, self.channels)
        projection = networks.seeded(lambda: nn.Linear(self.channels, self.slice), derive(seed, "projection"))
        self.projection = projection.to(self.device)
        self.previous_network = copy.deepcopy(self.network).requires_grad_(False)
        self.previous_projection = copy.deepcopy(self.projection).requires_grad_(False)
        self.optimizer = self.make_optimizer()
        self.old_count = 0  # how many old classes there are, on the host
        self.seen_classes = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.old_classes: Tensor = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.standard = Standardise(channels, self.device, config.normalise and not self.network.normalises)

    @classmethod
    def check_network(cls, config: OCMConfig, network: Network, input_shape: InputShape) -> None:
        height, width, _ = image_shape(input_shape)
        if height != width:
            raise OcilError(f"ocm turns images by 90 degrees and so needs square ones, not {height}x{width}.")

    @classmethod
    def extra_state(cls, config: OCMConfig, problem: Problem, network: networks.Network) -> ExtraState:
        """The last task's network, and a projection beside each of the two networks."""
        projection = (network.channels + 1) * min(config.projection, network.channels)
        return ExtraState(4 * (sum(size_with_head(network, problem.classes)) + 2 * projection))

    @classmethod
    def passes(cls, config: OCMConfig, batch_size: int, classes: int) -> list[Pass]:
        """An upper bound: the memory batch grows with the classes."""
        memory = replayed(config, min(config.memory_batch, config.per_class * classes))
        contrast, previous = Pass(2 * VARIANTS * (batch_size + memory)), Pass(VARIANTS * memory, trains=False)
        return [contrast, previous, Pass(memory), Pass(memory, trains=False)]

    def learn(self, x: Tensor, y: Tensor) -> None:
        replay = self.memory.retrieve(self.replay_batch()) if self.task_number else None
        tau, weight = self.config.temperature, self.config.similarity_weight
        self.seen_classes.index_fill_(0, y, True)
        self.optimizer.zero_grad()
        if replay is None:
            h, u = self.embed(self.network, self.projection, self.pairs(x))
            parts = {"contrast": sup_n(self.similarity(u, h, 1.0), self.pseudo_labels(y, 2), tau)}
            parts["cross_entropy"] = losses.cross_entropy(self.network(self.views(x)), y)
        else:
            memory_x, memory_y = replay
            stream, memory = self.pairs(x), self.pairs(memory_x)
            h, u = self.embed(self.network, self.projection, torch.cat([stream, memory]))
            (h, memory_h), (u, memory_u) = (part.split([len(stream), len(memory)]) for part in (h, u))
            raw = len(memory) // 2
            with torch.no_grad():
                _, previous_u = self.embed(self.previous_network, self.previous_projection, memory[:raw])
            parts = {"contrast": sup_n(self.similarity(u, h, weight), self.pseudo_labels(y, 2), tau)}
            similarity = self.similarity(memory_u, memory_h, weight)
            parts["memory_contrast"] = sup_u(similarity, self.pseudo_labels(memory_y, 2), tau)
            parts["sup_p"] = sup_u(memory_u[:raw] @ previous_u.T, self.pseudo_labels(memory_y, 1), tau)
            logits = self.network(self.views(memory_x))
            with torch.no_grad():
                previous_logits = self.previous_network(self.views(memory_x))
            parts["cross_entropy"] = losses.cross_entropy(logits, memory_y)
            parts["distillation"] = squared_difference(logits, previous_logits, self.old_classes)
        loss = total(parts)
        loss.backward()
        self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss, **parts)

    def replay_batch(self) -> int:
        """``per_class`` for each class seen by the end of this task, if it has as many classes as earlier tasks had."""
        expected = round(self.old_count * (self.task_number + 1) / self.task_number)
        if not self.config.growing:
            expected = min(self.problem.classes, expected)
        return max(1, min(self.config.memory_batch, self.config.per_class * expected))

    def pairs(self, x: Tensor) -> Tensor:
        """All variants of all images, then an augmented view of each variant."""
        raw = to_float(turned(x))
        return self.standard(torch.cat([raw, self.random_views(raw, self.rng["augment"])]))

    def views(self, x: Tensor) -> Tensor:
        return self.standard(self.random_views(to_float(x), self.rng["augment"]))

    def embed(self, network: Network, projection: nn.Linear, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features, averaged over the image, and their projections, both as unit vectors."""
        h = network.features(images).unflatten(1, (self.channels, -1)).mean(2)
        return F.normalize(h, eps=EPSILON), F.normalize(projection(h), eps=EPSILON)

    def similarity(self, u: Tensor, h: Tensor, weight: float) -> Tensor:
        """Inner products of the projections with each other, plus those with a random slice of the features."""
        places = max(1, self.channels - self.slice)
        offset = torch.randint(places, (1,), generator=self.rng["slice"], device=u.device)
        v = h.index_select(1, offset + torch.arange(self.slice, device=u.device))
        return weight * (u @ u.T + u @ v.T)

    def pseudo_labels(self, y: Tensor, views: int) -> Tensor:
        """Each variant of a class is a class of its own."""
        variant = torch.arange(VARIANTS, device=y.device)[:, None]
        return (y + self.problem.classes * variant).flatten().repeat(views)

    def shapes_are_static(self) -> bool:
        return self.task_number == 0 or self.memory.holds_more_than(self.replay_batch())

    def step_variant(self) -> int:
        return self.task_number

    @torch.no_grad()
    def task_ended(self) -> None:
        super().task_ended()
        self.old_classes.copy_(self.seen_classes)
        self.old_count = int(self.old_classes.sum())
        for kept, now in ((self.previous_network, self.network), (self.previous_projection, self.projection)):
            for parameter, value in zip(kept.parameters(), now.parameters(), strict=True):
                parameter.copy_(value)  # in place: captured steps read these tensors

    def load_state(self, state: dict[str, Tensor], generators: bool = True) -> None:
        super().load_state(state, generators)
        self.old_count = int(self.old_classes.sum())

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.cross_entropy(self.network(self.views(x)), y)

    def inputs(self, x: Tensor) -> Tensor:
        return self.standard(to_float(x))


def turned(images: Tensor) -> Tensor:
    """16 variants of square images ``[B, S, S, C]``, one variant of all after the other: ``[16 B, S, S, C]``.

    The left and the right half each as they are or upside down (turned by 180°), and the whole turned by 0, 90, 180
    and 270°.
    """
    left, right = images.tensor_split([images.shape[2] // 2], dim=2)
    halves = [torch.cat([a, b], dim=2) for a in (left, left.flip(1, 2)) for b in (right, right.flip(1, 2))]
    inner = torch.cat(halves)
    return torch.cat([inner.rot90(quarter, (1, 2)) for quarter in range(4)])


def sup_n(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Contrastive loss of two stacked views, whose rows and columns are the same ``2n`` images: each image with its
    other view, plus twice each image with all of its label. An image is masked in its own softmax, yet counts among its
    label, as a constant 18.4."""
    itself = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    surprise = surprises((similarity / temperature).masked_fill(itself, -torch.inf))
    other_view = surprise.roll(len(similarity) // 2, dims=1).diagonal()
    return other_view.mean() + 2 * mean_of_label(surprise, labels)


def sup_u(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Contrastive loss of each row with all columns of its label, itself included; columns have the rows' labels."""
    return mean_of_label(surprises(similarity / temperature), labels)


def surprises(logits: Tensor) -> Tensor:
    return -torch.log(logits.softmax(1) + EPSILON)


def mean_of_label(values: Tensor, labels: Tensor) -> Tensor:
    """The mean over rows of their means over the columns of the same label."""
    same = labels[:, None] == labels
    return (values.masked_fill(~same, 0).sum(1) / same.sum(1)).mean()


def squared_difference(logits: Tensor, previous: Tensor, columns: Tensor) -> Tensor:
    """The mean squared difference over all rows and the columns marked true."""
    return ((logits - previous).square() * columns).sum() / (len(logits) * columns.sum().clamp_min(1))
