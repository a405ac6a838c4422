"""GDumb (Prabhu et al., GDumb: A Simple Approach that Questions Our Progress in Continual Learning, ECCV 2020)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ocil import networks
from ocil.learning import losses
from ocil.learning.memory import Memory, RowsToMove
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import Pass
from ocil.networks import InputShape, to_float
from ocil.rng import derive


@dataclass(frozen=True)
class GDumbConfig(LearnerConfig):
    weight_decay: float = 1e-6
    rehearsal_epochs: int = 30
    """Passes over the memory at each task's end."""
    rehearsal_batch: int = 16
    """Images per step of such a pass, whose incomplete last batch is dropped."""
    clip: float = 10.0
    """Largest norm of the gradient over all parameters; longer gradients are scaled down. 0 switches clipping off."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {
        "rehearsal_epochs": 0,
        "rehearsal_batch": 1,
        "clip": 0,
    }


class GDumb(Learner):
    """Step: store the batch, keeping classes balanced; nothing is trained. At each task's end a new network is trained
    on the memory alone: cross-entropy, SGD with clipped gradients, 30 passes. Nothing is augmented.
    """

    Config = GDumbConfig
    config: GDumbConfig
    restarts = True
    memory: "BalancedMemory"

    def __init__(
        self, config: GDumbConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, problem, seed, device)
        sizes = (config.memory, problem.input_shape, problem.classes)
        self.memory = BalancedMemory(*sizes, self.rng["memory"], problem.dtype)

    def shapes_are_static(self) -> bool:
        return True  # a step retrieves nothing

    def step_variant(self) -> int:
        return 0  # `task_ended` changes tensors in place

    @classmethod
    def passes(cls, config: GDumbConfig, batch_size: int, classes: int) -> list[Pass]:
        return []

    @classmethod
    def task_end_passes(cls, config: GDumbConfig, classes: int, stored: int) -> list[Pass]:
        size = max(1, min(config.rehearsal_batch, stored))
        return [Pass(size)] * (config.rehearsal_epochs * (stored // size))

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.memory.add(x, y)
        self.record_loss(torch.zeros((), device=self.device))

    def task_ended(self) -> None:
        super().task_ended()
        fresh = self.make_network(derive(self.rng.seed, f"init after task {self.task_number}"))
        networks.meet(fresh, self.classes_met)
        drawn = {name: value for name, value in fresh.state_dict().items() if not self.network.is_frozen(name)}
        self.network.load_state_dict(drawn, strict=False)  # in place: captured steps use these tensors
        self.optimizer.reset()
        if self.average is not None:
            self.average.restart()

    def task_end_batches(self) -> Iterator[Tensor]:
        for _ in range(self.config.rehearsal_epochs):
            order = self.memory.epoch()
            size = min(self.config.rehearsal_batch, len(order))
            if size >= self.network.smallest_batch:
                yield from order[: len(order) - len(order) % size].split(size)

    def task_end_step(self, slots: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = losses.cross_entropy(self.network(to_float(self.memory.images[slots])), self.memory.labels[slots])
        loss.backward()
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.optimizer.parameters, self.config.clip)
        self.optimizer.step()
        self.record_loss(loss, "rehearsal")


class BalancedMemory(Memory):
    """A memory that keeps as many images of one class as of another, greedily (GDumb's sampler).

    A sample is stored if its class is not stored yet, or has fewer images than its share, ``size // stored classes``.
    In a full memory it replaces a random sample of the largest class; of several, of the one stored first. A class that
    lost its last sample no longer counts, and is new when it comes again.

    Here ``seen`` counts filled slots, not samples.
    """

    class_rows: ClassVar[tuple[str, ...]] = ("counts", "since")

    def __init__(
        self,
        size: int,
        input_shape: InputShape,
        classes: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        super().__init__(size, input_shape, generator, dtype)
        self.counts: Tensor = nn.Buffer(torch.zeros(classes, dtype=torch.int64, device=generator.device))
        self.since: Tensor = nn.Buffer(torch.zeros(classes, dtype=torch.int64, device=generator.device))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the slot of each sample, ``size`` for those that were not stored."""
        keys = torch.rand(len(y), self.size, generator=self.generator, device=y.device)
        # One after the other: whether a sample is stored depends on those before it.
        slots = [self._add_one(x[i : i + 1], y[i : i + 1], keys[i]) for i in range(len(y))]
        return torch.cat(slots)

    def relabel(self, slot: int, label: int) -> None:
        old = int(self.labels[slot])
        if old == label:
            return
        if not int(self.counts[label]):  # as if the class came now
            self.since[label] = self.since.max() + 1
        self.counts[old] -= 1
        self.counts[label] += 1
        super().relabel(slot, label)

    def count_out(self, slot: int, also: Sequence[int] = ()) -> RowsToMove:
        """The last sample moves to the free slot: here all counters are of stored samples."""
        self.counts[self.labels[slot]] -= 1
        return super().count_out(slot, also)

    def _add_one(self, x: Tensor, y: Tensor, key: Tensor) -> Tensor:
        """``key`` ranks the slots at random."""
        full = self.seen >= self.size
        share = self.size // (self.counts > 0).sum().clamp_min(1)
        new = self.counts[y] == 0
        taken = new | (self.counts[y] < share)
        oldest = torch.where(self.counts == self.counts.max(), self.since, torch.iinfo(torch.int64).max)
        largest = oldest.argmin(0, keepdim=True)
        victim = torch.where(self.labels[: self.size] == largest, key, -1.0).argmax(0, keepdim=True)
        slot = torch.where(taken, torch.where(full, victim, self.seen), self.size)

        self.put(slot, x, y)
        self.since[y] = torch.where(taken & new, self.since.max() + 1, self.since[y])
        self.counts.index_add_(0, largest, -(taken & full).long())
        self.counts.index_add_(0, y, taken.long())
        self.seen += (taken & ~full).squeeze(0)
        return slot
