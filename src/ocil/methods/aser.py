"""Adversarial Shapley value experience replay (Shim et al., Online Class-Incremental Continual Learning with
Adversarial Shapley Value, AAAI 2021)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil import networks
from ocil.learning import losses
from ocil.methods._distances import distances
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import Pass, replayed
from ocil.networks import bn_momentum, to_float
from ocil.precision import widest

ScoreType = Literal["asvm", "asv", "neg_sv"]

PER_CLASS = {
    "cifar10": 9,  # published, as are the next two
    "cifar100": 2,
    "mini_imagenet": 3,
    "fashion-mini": 9,  # ours: it has as many classes as CIFAR-10
}


@dataclass(frozen=True)
class ASERConfig(LearnerConfig):
    aser_type: ScoreType = "asvm"
    """Score of a replay candidate. ``asvm``: its mean value for the memory less its mean value for the stream batch.
    ``asv``: largest less smallest value. ``neg_sv``: its negative value for the stream batch alone."""
    k: int = 3
    """Neighbours that vote in the classifier behind the Shapley values."""
    per_class: int = 2
    """Images drawn of each stored class as candidates, and as many for evaluation; less than half of the memory's
    images per class. Published values are filled in."""
    bn_updates: int = 3
    """How often running statistics move per step. The released code passes stream and memory once more each without
    using their gradients, which makes three. This has the same effect in one pass."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"k": 1, "per_class": 1, "bn_updates": 1}


class ASER(Learner):
    """Step: retrieve the memory images that help most to classify the memory and least to classify the stream batch, by
    their KNN Shapley values (random images until the memory is full); cross-entropy of memory and stream in one pass;
    one SGD step; then stream images replace memory images of smaller Shapley value.
    """

    Config = ASERConfig
    config: ASERConfig

    def __init__(self, config: ASERConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.bn_momentum = 1 - 0.9**config.bn_updates

    @classmethod
    def passes(cls, config: ASERConfig, batch_size: int, classes: int) -> list[Pass]:
        drawn = config.per_class * classes
        chosen = Pass(2 * drawn + batch_size, trains=False)
        stored = Pass(drawn + min(drawn, config.memory) + batch_size, trains=False)
        return [chosen, Pass(batch_size + replayed(config)), stored]

    @classmethod
    def settings_for(cls, dataset: str, memory: int, classes: int | None = None) -> dict[str, Any]:
        if dataset not in PER_CLASS or classes is None:
            return {}
        # At most half of a memory smaller than the published ones: images used for evaluation cannot be overwritten.
        return {"per_class": min(PER_CLASS[dataset], max(1, memory // (2 * classes)))}

    def learn(self, x: Tensor, y: Tensor) -> None:
        images, labels = x, y
        slots = self.memory.draw(self.config.memory_batch)
        if slots is not None:
            slots = self.choose(slots, x, y)
            images = torch.cat([self.memory.images[slots], x])
            labels = torch.cat([self.memory.labels[slots], y])
        self.optimizer.zero_grad()
        with bn_momentum(self.network, self.bn_momentum):
            loss = losses.cross_entropy(self.network(to_float(images)), labels)
            loss.backward()
        self.optimizer.step()
        self.store(x, y)
        self.record_loss(loss)

    @torch.no_grad()
    def choose(self, drawn: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The slots of the candidates with the best scores, once the memory is full; as many as ``drawn``, which are
        random slots and fill up where candidates are too few.
        """
        memory, count, k = self.memory, self.config.per_class, self.config.k
        slots, real, _ = self.balanced(2 * count)  # the two halves are two disjoint draws
        candidate, evaluated = slots[:, :count].flatten(), slots[:, count:].flatten()
        usable, asked = real[:, :count].flatten(), real[:, count:].flatten()
        features = self.features(torch.cat([memory.images[candidate], memory.images[evaluated], x]))
        of_candidate, of_evaluated, of_stream = features.split([len(candidate), len(evaluated), len(x)])

        labels = memory.labels[candidate]
        adversarial = knn_shapley(distances(of_stream, of_candidate), y[:, None] == labels, k, usable)
        same = memory.labels[evaluated][:, None] == labels
        cooperative = knn_shapley(distances(of_evaluated, of_candidate), same, k, usable)
        score = replay_score(cooperative, adversarial, asked, self.config.aser_type)

        usable = usable & (memory.seen > memory.size)
        again = ((drawn[:, None] == candidate) & usable).any(1)
        score = torch.where(usable, score, -torch.inf)
        makeweight = torch.where(again, -torch.inf, torch.finfo(score.dtype).min)
        best = ranking(torch.cat([score, makeweight]), self.rng["memory"])[: len(drawn)]
        return torch.cat([candidate, drawn])[best]

    @torch.no_grad()
    def store(self, x: Tensor, y: Tensor) -> None:
        """Fill free slots in order. An image that finds none replaces a random memory image of smaller value.

        A batch may do both: its first images fill the memory, and the others compete with the images stored.
        """
        memory, classes = self.memory, self.problem.classes
        position = memory.seen + torch.arange(len(y), device=y.device)
        memory.put(position.clamp(max=memory.size), x, y)
        memory.seen += len(y)
        late = position >= memory.size

        slots, real, sizes = self.balanced(self.config.per_class)
        evaluated, asked = slots.flatten(), real.flatten()
        threshold = torch.rand((), generator=self.rng["memory"], device=y.device) / self.class_count
        minority = late & (sizes[y] / memory.size < threshold)

        key = torch.rand(memory.size + 1, generator=self.rng["memory"], device=y.device)
        key.index_fill_(0, torch.where(asked, evaluated, memory.size), 2.0)  # not those used for evaluation
        key = torch.where(self.filled(), key[: memory.size], 2.0)
        first = key.topk(min(self.config.per_class * classes, memory.size), largest=False)
        candidate, usable = first.indices, first.values < 2
        if self.met is not None:  # classes not met bring no candidates
            usable &= torch.arange(len(usable), device=y.device) < self.config.per_class * self.class_count

        features = self.features(torch.cat([memory.images[evaluated], memory.images[candidate], x]))
        of_evaluated, of_candidate, of_stream = features.split([len(evaluated), len(candidate), len(x)])
        value = knn_shapley(
            distances(torch.cat([of_evaluated, of_stream]), torch.cat([of_candidate, of_stream])),
            torch.cat([memory.labels[evaluated], y])[:, None] == torch.cat([memory.labels[candidate], y]),
            self.config.k,
            torch.cat([usable, late]),
        )
        score = torch.where(torch.cat([asked, minority])[:, None], value, 0).sum(0)
        score = torch.where(torch.cat([usable, late]), score, -torch.inf)
        kept = ranking(score, self.rng["memory"]).argsort() < usable.sum()
        memory.put(places(candidate, usable & ~kept[: -len(y)], kept[-len(y) :], memory.size), x, y)

    def balanced(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        labels = self.memory.labels[: self.memory.size]
        return class_balanced(labels, self.filled(), self.problem.classes, count, self.rng["memory"])

    def filled(self) -> Tensor:
        return torch.arange(self.memory.size, device=self.device) < self.memory.seen

    def features(self, images: Tensor) -> Tensor:
        with networks.evaluating(self.network):
            return self.network.features(to_float(images))


def knn_shapley(distance: Tensor, same: Tensor, k: int, valid: Tensor) -> Tensor:
    """Shapley value ``[E, N]`` of each candidate for the KNN classification of each evaluation point.

    A set of candidates is worth 1/k for each of its k nearest with the point's label (``same``). Candidates that are
    not ``valid`` take no part and get 0. Of two at the same distance the first counts as nearer.
    """
    order = distance.masked_fill(~valid, torch.inf).argsort(dim=1, stable=True)
    right = (same & valid).gather(1, order).to(distance.dtype)
    rank = torch.arange(1, right.shape[1] + 1, device=right.device)
    step = (right - F.pad(right[:, 1:], (0, 1))) * rank.clamp(max=k) / (k * rank)
    value = step.flip(1).cumsum(1).flip(1)
    return value.gather(1, order.argsort(dim=1))


def replay_score(cooperative: Tensor, adversarial: Tensor, asked: Tensor, kind: ScoreType) -> Tensor:
    """Score of each candidate from its values for memory points (those ``asked``) and for stream points."""
    if kind == "neg_sv":
        return -adversarial.sum(0)
    if kind == "asv":
        helpful = cooperative.masked_fill(~asked[:, None], -torch.inf).amax(0)
        return torch.where(asked.any(), helpful, 0) - adversarial.amin(0)
    total = cooperative.masked_fill(~asked[:, None], 0).sum(0)
    return total / asked.sum().clamp(min=1) - adversarial.mean(0)


def class_balanced(
    labels: Tensor, filled: Tensor, classes: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Up to ``count`` random slots of each class, in random order.

    Returns slots ``[classes, count]``, which of them are real, and the number of filled slots per class.
    """
    chance = torch.rand(labels.shape, generator=generator, device=labels.device).to(widest(labels.device))
    shelf, order = torch.where(filled, labels + chance, classes).sort(stable=True)  # by class, then at random
    edges = torch.searchsorted(shelf, torch.arange(classes + 1, device=labels.device).to(chance.dtype))
    first, sizes = edges[:-1, None], edges.diff()
    within = torch.arange(count, device=labels.device)
    return order[(first + within).clamp(max=len(labels) - 1)], within < sizes[:, None], sizes


def ranking(score: Tensor, generator: torch.Generator) -> Tensor:
    """Indices from the largest score to the smallest, equal ones in random order: many Shapley values are equal."""
    shuffled = torch.rand(score.shape, generator=generator, device=score.device).argsort()
    return shuffled[score[shuffled].argsort(descending=True, stable=True)]


def places(slots: Tensor, leaving: Tensor, entering: Tensor, nowhere: int) -> Tensor:
    """A slot per sample: that of a leaving one for each entering one (there are as many), else ``nowhere``."""
    vacant = slots[(~leaving).int().argsort(stable=True)]
    turn = (entering.cumsum(0) - 1).clamp(0, len(slots) - 1)
    return torch.where(entering, vacant[turn], nowhere)
