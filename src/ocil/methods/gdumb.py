"""GDumb (Prabhu et al., GDumb: A Simple Approach that Questions Our Progress in Continual Learning, ECCV 2020)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ocil import losses, networks
from ocil.memory import Memory
from ocil.methods.base import Learner, LearnerConfig, Problem
from ocil.networks import ImageShape, to_float
from ocil.rng import derive


@dataclass(frozen=True)
class GDumbConfig(LearnerConfig):
    weight_decay: float = 1e-6
    rehearsal_epochs: int = 30
    """Passes over the memory at each task's end."""
    rehearsal_batch: int = 16
    """Images of a step on the memory; the incomplete last batch of a pass is dropped."""
    clip: float = 10.0
    """Longest gradient, as the norm over all parameters; longer ones are cut to it. 0 switches it off."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {
        "rehearsal_epochs": 0, "rehearsal_batch": 1, "clip": 0,
    }  # fmt: skip


class GDumb(Learner):
    """Step: store the batch, keeping classes balanced; nothing is trained. At each task's end the network is begun anew
    and trained on the memory alone: cross-entropy, SGD with clipped gradients, 30 passes. Nothing is augmented.
    """

    Config = GDumbConfig
    config: GDumbConfig
    memory: "BalancedMemory"

    def __init__(
        self, config: GDumbConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, problem, seed, device)
        self.memory = BalancedMemory(config.memory, problem.image_shape, problem.classes, self.rng["memory"])

    def steady(self) -> bool:
        return True  # nothing is retrieved, so a step never changes its shapes

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.memory.add(x, y)
        self.watch(torch.zeros((), device=self.device))

    def task_ended(self) -> None:
        super().task_ended()
        c, p = self.config, self.problem
        seed = derive(self.rng.seed, f"init after task {self.tasks}")
        fresh = networks.build(p.image_shape, p.classes, c.width, seed, self.device, c.precision, c.growing)
        networks.meet(fresh, self.classes_met)
        self.network.load_state_dict(fresh.state_dict())  # in place: recorded steps know these tensors
        for velocity in self.optimizer.velocity.values():
            velocity.zero_()

    def rehearsal(self) -> Iterator[Tensor]:
        for _ in range(self.config.rehearsal_epochs):
            order = self.memory.epoch()
            size = min(self.config.rehearsal_batch, len(order))
            if size >= networks.smallest_batch(self.problem.image_shape):
                yield from order[: len(order) - len(order) % size].split(size)

    def rehearsal_step(self, slots: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = losses.cross_entropy(self.network(to_float(self.memory.images[slots])), self.memory.labels[slots])
        loss.backward()
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.optimizer.parameters, self.config.clip)
        self.optimizer.step()
        self.watch(loss, "rehearsal")


class BalancedMemory(Memory):
    """A memory that keeps as many images of one class as of another, greedily (GDumb's sampler).

    A sample is taken if its class is not here, or has fewer than its share, ``size // classes here``. In a full memory
    it takes the place of a random sample of the largest class; of several, of the one that has been here longest.
    A class that lost its last sample no longer counts, and is new when it comes again.

    ``seen`` counts filled slots here, not samples: what was refused leaves no trace.
    """

    class_rows: ClassVar[tuple[str, ...]] = ("counts", "since")

    def __init__(self, size: int, image_shape: ImageShape, classes: int, generator: torch.Generator) -> None:
        super().__init__(size, image_shape, generator)
        self.counts: Tensor
        self.since: Tensor
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64, device=generator.device))
        self.register_buffer("since", torch.zeros(classes, dtype=torch.int64, device=generator.device))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the slot each sample went to, ``size`` for those that were refused."""
        keys = torch.rand(len(y), self.size, generator=self.generator, device=y.device)
        # One sample after the other: whether one is taken depends on what became of those before it.
        slots = [self._add_one(x[i : i + 1], y[i : i + 1], keys[i]) for i in range(len(y))]
        return torch.cat(slots)

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
