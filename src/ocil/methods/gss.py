"""GSS-greedy (Aljundi et al., Gradient Based Sample Selection for Online Continual Learning, NeurIPS 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ocil.learning import losses
from ocil.learning.memory import Memory
from ocil.methods._gradients import gradient_products
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import Pass
from ocil.methods.recorded_losses import total
from ocil.networks import InputShape, evaluating, to_float
from ocil.precision import repeatable


@dataclass(frozen=True)
class GSSConfig(LearnerConfig):
    groups: int = 10
    """Number of groups of memory images that a sample's gradient is compared with; fewer while the memory is small."""
    group_size: int = 10
    """Images per group. The gradient of a group is that of their mean loss."""
    first_score: float = 0.1
    """Score of the first images, while the memory is empty and there is nothing to compare them with."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"groups": 1, "group_size": 1, "first_score": -1}


class GSS(Learner):
    """Step: as ER, cross-entropy of the stream batch plus that of a random memory batch. Then each stream sample is
    scored by the largest cosine of its gradient with those of random memory groups. It is stored while there is room;
    later it may replace a sample of high score, if the gradient of the whole batch points away from every group.
    """

    Config = GSSConfig
    config: GSSConfig
    kernel_factor = 3.7  # gradients of single samples
    memory: "ScoredMemory"

    def __init__(self, config: GSSConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.memory = ScoredMemory(config.memory, problem.input_shape, self.rng["memory"], problem.dtype)

    def shapes_are_static(self) -> bool:
        grouped = self.config.groups * self.config.group_size
        return super().shapes_are_static() and self.memory.holds_more_than(grouped - 1)

    @classmethod
    def passes(cls, config: GSSConfig, batch_size: int, classes: int) -> list[Pass]:
        size = min(config.group_size, config.memory)
        grouped = size * min(config.groups, config.memory // size)
        return [*super().passes(config, batch_size, classes), Pass(batch_size + grouped)]

    def learn(self, x: Tensor, y: Tensor) -> None:
        replay = self.memory.retrieve(self.config.memory_batch)
        parts: dict[str, Tensor] = {}
        self.optimizer.zero_grad()
        if replay is not None:
            stream, memory = self.network.outputs_of([to_float(x), to_float(replay[0])])
            parts["stream"] = losses.cross_entropy(stream.scores, y)
            parts["memory"] = losses.cross_entropy(memory.scores, replay[1])
            loss = total(parts)
        else:
            loss = losses.cross_entropy(self.network(to_float(x)), y)
        loss.backward()
        self.optimizer.step()
        self.memory.offer(x, y, *self.similarity(x, y))
        self.record_loss(loss, **parts)

    def similarity(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """How much the gradients of each sample and of the whole batch agree with the memory's: cosines, -1 to 1."""
        slots = self.memory.groups(self.config.groups, self.config.group_size)
        if slots is None:
            return torch.full(y.shape, self.config.first_score, device=self.device), torch.ones((), device=self.device)
        images = torch.cat([x, self.memory.images[slots].flatten(0, 1)])
        labels = torch.cat([y, self.memory.labels[slots].flatten()])
        # Scores are stored: a difference in the last bit of one would later become another choice of samples.
        with evaluating(self.network), repeatable():
            products = gradient_products(self.network, to_float(images), labels, len(y), slots.shape[1])
        return similarities(products, len(y))


def similarities(products: Tensor, singles: int) -> tuple[Tensor, Tensor]:
    """The largest cosine of each sample with a group, and that of the batch, from the inner products of the gradients
    of ``singles`` samples and then of the groups. A gradient that is not finite counts as nothing new: 1.
    """
    # In evaluation mode samples do not touch each other, so the gradient of the batch is the mean of theirs.
    of_samples, squares = products[:singles, singles:], products.diagonal()
    with_groups = torch.cat([of_samples, of_samples.mean(0, keepdim=True)])
    lengths = torch.cat([squares[:singles], products[:singles, :singles].mean().view(1)]).clamp_min(0).sqrt()
    cosine = with_groups / (lengths[:, None] * squares[singles:].sqrt()).clamp_min(1e-8)
    nearest = cosine.nan_to_num(1.0).amax(1).clamp(-1, 1)
    return nearest[:-1], nearest[-1]


class ScoredMemory(Memory):
    """A memory that keeps each sample's score. A high score means that the memory held similar samples already."""

    slot_rows = (*Memory.slot_rows, "score")

    def __init__(
        self, size: int, input_shape: InputShape, generator: torch.Generator, dtype: torch.dtype = torch.uint8
    ) -> None:
        super().__init__(size, input_shape, generator, dtype)
        self.score: Tensor = nn.Buffer(torch.zeros(size + 1, device=generator.device))

    def groups(self, count: int, group_size: int) -> Tensor | None:
        """Slots ``[count, group_size]`` of disjoint random groups: all that can be filled, or a single smaller one."""
        if self._at_least < min(count * group_size, self.size):  # only in the first steps: ask how many there are
            self._at_least = len(self)
        if self._at_least == 0:
            return None
        group_size = min(group_size, self._at_least)
        count = min(count, self._at_least // group_size)
        return self.shuffled(count * group_size).view(count, group_size)  # of one draw: no slot is in two groups

    def offer(self, x: Tensor, y: Tensor, score: Tensor, batch_score: Tensor) -> Tensor:
        """Store what fits. In a full memory a sample may replace a drawn one if the batch's score is negative, with a
        chance that grows with the score of the drawn one and falls with its own.

        Returns the slot of each sample, ``size`` for those that were not kept.
        """
        rival = self.draw_similar(len(y))
        ours, theirs = score + 1, self.score[rival] + 1
        chance = torch.rand(y.shape, generator=self.generator, device=y.device)
        replaces = (batch_score < 0) & (chance * (ours + theirs) < theirs)
        position = self.seen + torch.arange(len(y), device=y.device)
        # If a batch fills the memory, its samples that no longer fit are dropped and do not compete.
        slot = torch.where(self.seen < self.size, position, torch.where(replaces, rival, self.size))
        slot = slot.clamp_(max=self.size)
        self.put(slot, x, y)
        self.score.index_copy_(0, slot, score)
        self.score[self.size].zero_()
        self.seen += len(y)
        return slot

    def draw_similar(self, count: int) -> Tensor:
        """``count`` distinct slots, drawn one after the other in proportion to their score above the lowest score.

        The spare row, ``size``, stands for those beyond the memory's size.
        """
        score = self.score[: self.size]
        low, high = score.aminmax()
        # Never 0, so that the lowest scores come last in random order, and equal scores are drawn evenly.
        weight = ((score - low) / (high - low + 0.01)).clamp_min(1e-12)
        # The smallest of exponential draws at these rates are such a sequence.
        clock = torch.empty_like(weight).exponential_(generator=self.generator) / weight
        drawn = clock.topk(min(count, self.size), largest=False).indices
        return nn.functional.pad(drawn, (0, count - len(drawn)), value=self.size)
