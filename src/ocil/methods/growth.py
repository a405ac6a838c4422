"""Classes that are not known in advance: a learner meets them, and all that it keeps per class grows."""

from collections.abc import Iterable
from dataclasses import replace
from operator import index
from typing import ClassVar

import torch
from torch import Tensor, nn

from ocil import networks
from ocil.errors import OcilError
from ocil.learning.optimizers import Optimizer
from ocil.methods.config import Problem

FIRST_CAPACITY = 16  # classes; the capacity doubles, so that growth is rare


def capacity_for(classes: int) -> int:
    """The smallest capacity that holds so many classes: 16, 32, 64, ..."""
    capacity = FIRST_CAPACITY
    while capacity < classes:
        capacity *= 2
    return capacity


class GrowsByClass(nn.Module):
    """The part of a learner that knows its classes.

    With ``growing`` a learner has room for ``problem.classes`` classes and has met some of them. It meets the classes
    of a batch before it learns from the batch: by itself, which reads the labels back to the host, or, with
    ``classes_announced``, because the caller calls ``meet``. Without ``growing`` all classes are there from the start
    and nothing here has an effect.
    """

    class_rows: ClassVar[tuple[str, ...]] = ("met",)
    """Buffers with one row per class. They grow; new rows are 0."""
    classes_announced: bool = False
    """Whether the caller promises to ``meet`` every class before a batch has it, as a run does. ``learn`` then does not
    read the labels back, and can be captured."""
    problem: Problem
    optimizer: Optimizer
    met: Tensor | None
    """bool ``[C]`` on the device: the classes met so far. None unless the learner grows."""
    _met_numbers: set[int]
    """The host's copy of ``met``."""

    def make_optimizer(self) -> Optimizer:
        """The optimiser of all trainable parameters, also after the head has grown."""
        raise NotImplementedError

    def start_classes(self, growing: bool, device: torch.device) -> None:
        """Begin with no class met. ``growing``: whether classes are not known in advance."""
        self._met_numbers = set()
        none_met = torch.zeros(self.problem.classes, dtype=torch.bool, device=device)
        self.register_buffer("met", none_met if growing else None)

    @property
    def classes_met(self) -> list[int]:
        """The classes met so far, in ascending order; all classes, unless the learner grows."""
        return sorted(self._met_numbers) if self.met is not None else list(range(self.problem.classes))

    @property
    def class_count(self) -> int | Tensor:
        """How many classes have been met, as a tensor on the device; the number of all, unless the learner grows."""
        return self.problem.classes if self.met is None else self.met.sum()

    def meet(self, classes: Iterable[int]) -> None:
        """Prepare for these classes, which are about to appear. Classes met before are ignored.

        Do not call this inside a step: rows are drawn on the host, and all that is kept per class is allocated anew if
        the learner has no room for a class.
        """
        if self.met is None or not (new := sorted({index(number) for number in classes} - self._met_numbers)):
            return
        if new[0] < 0:
            raise OcilError(f"class {new[0]} cannot be met: classes count from 0.")
        if new[-1] >= self.problem.classes:
            self.grow(capacity_for(new[-1] + 1))
        networks.meet(self, new)
        self.met[new] = True
        self._met_numbers |= set(new)

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` classes: fewer than now only when a state with fewer is loaded."""
        self.problem = replace(self.problem, classes=capacity)
        networks.grow(self, capacity)
        former, self.optimizer = self.optimizer, self.make_optimizer()
        self.optimizer.go_on_from(former)

    def load_classes(self, met: Tensor) -> None:
        """Take over the met classes of a state, and its room for classes."""
        if len(met) != self.problem.classes:
            self.grow(len(met))
        self._met_numbers = set(met.nonzero().flatten().tolist())

    def masked(self, scores: Tensor) -> Tensor:
        """Scores ``[B, C]`` in which a class not met is never the largest: it has the score ``NOT_MET``, or minus
        infinity beside a class that scores less than that, as distances between long vectors do."""
        known = self.predictable()
        if known is None:
            return scores
        lowest = scores.masked_fill(~known | (scores == -torch.inf), torch.inf).amin(1, keepdim=True)
        return torch.where(known, scores, torch.where(lowest > networks.NOT_MET, networks.NOT_MET, -torch.inf))

    def predictable(self) -> Tensor | None:
        """The classes that may be predicted, ``[C]``; None: all. A method that teaches its head nothing about classes
        that it has not seen overrides this."""
        return self.met
