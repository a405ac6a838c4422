"""Averaged gradient episodic memory (Chaudhry et al., Efficient Lifelong Learning with A-GEM, ICLR 2019)."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ocil.learning import losses
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig
from ocil.networks import to_float


@dataclass(frozen=True)
class AGEMConfig(LearnerConfig):
    pass


class AGEM(Learner):
    """Step: gradient of the stream batch's cross-entropy; from the second task on, if it points against the gradient of
    a random memory batch, its component along that gradient is removed; one SGD step; the stream batch enters the
    reservoir. The memory is only a constraint: no step follows its own gradient.
    """

    Config = AGEMConfig
    kernel_factor = 1.4  # it copies all gradients into one vector, twice

    def step_variant(self) -> int:
        return min(self.task_number, 1)

    def learn(self, x: Tensor, y: Tensor) -> None:
        replay = self.memory.retrieve(self.config.memory_batch) if self.task_number else None
        self.optimizer.zero_grad()
        loss = losses.cross_entropy(self.network(to_float(x)), y)
        loss.backward()
        if replay is not None:
            gradient = flat(self.gradients())
            self.optimizer.zero_grad()
            losses.cross_entropy(self.network(to_float(replay[0])), replay[1]).backward()
            reference = self.gradients()
            projected = project(gradient, flat(reference))
            for place, part in zip(reference, projected.split([g.numel() for g in reference]), strict=True):
                place.copy_(part.view(place.shape))
        self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss)

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.optimizer.parameters if parameter.grad is not None]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All tensors as one vector: the constraint is one inequality for the whole network, not one per layer."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """The vector nearest to ``gradient`` whose inner product with ``reference`` is not negative."""
    agreement, square = (gradient * reference).sum(), reference.square().sum()
    share = agreement / square.clamp_min(torch.finfo(square.dtype).tiny)
    return torch.where(agreement < 0, gradient - share * reference, gradient)
