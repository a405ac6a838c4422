"""How the steps of a model that learns online are taken, on batches that come from outside: by calling the learner's
methods, or by replaying CUDA graphs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ocil.learning import optimizers
from ocil.methods.base import Learner
from ocil.runs.captured import Graph, Recordings, record
from ocil.runs.stepper import MemorySteps


class BatchStepper(MemorySteps):
    """Takes a learner's steps by calling its methods."""

    def learn(self, x: Tensor, y: Tensor) -> None:
        """One batch, whose classes the learner has met."""
        self.learner.learn(x, y)

    def memory_changed(self) -> None:
        """Samples were removed from the memory between two steps."""


class CapturedBatchStepper(BatchStepper):
    """Takes the same steps by replaying CUDA graphs.

    A graph has tensors of its own for the batch, which is copied to them. It is recorded again when the learner's
    variant changes. The first steps, while the memory fills, and batches that are not of the usual size are taken by
    calling the learner. All steps run on a CUDA stream beside the current one, and the two wait for each other: the
    caller may read and change the learner between steps as if there were one stream.
    """

    def __init__(self, learner: Learner, size: int) -> None:
        """``size``: of the batches that are recorded."""
        super().__init__(learner)
        self.size = size
        self.recordings = Recordings(learner)
        self.static = False
        """Whether shapes have become static; asked until they are, because it reads from the device."""
        self.stream = torch.cuda.Stream(learner.device) if learner.device.type == "cuda" else None

    def learn(self, x: Tensor, y: Tensor) -> None:
        with self._beside():
            self.static = self.static or self.learner.shapes_are_static()
            if self.static and len(y) == self.size:
                self.recordings.take(self.record, "learn", self.learner.learn, x, y)
            else:
                self.learner.learn(x, y)

    def review_step(self, slots: Tensor) -> None:
        with self._beside():
            self.recordings.take(self.record, "review", self.learner.review_step, slots)

    def task_end_step(self, slots: Tensor) -> None:
        with self._beside():
            self.recordings.take(self.record, "task end", self.learner.task_end_step, slots)

    def memory_changed(self) -> None:
        self.static = False  # there may be fewer than a step draws

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Around each step: graphs that have become stale are forgotten, and the step runs on its stream."""
        if self.recordings.follow_variant():
            self.static = False
        if self.stream is None:
            yield
            return
        current = torch.cuda.current_stream(self.learner.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    def record(self, work: Callable[[], None]) -> Graph:
        return record(work, self.learner.rng, other_threads=True)  # a service predicts meanwhile


def batch_stepper_for(learner: Learner, size: int, capturable: bool) -> BatchStepper:
    """Captured steps where they are possible: on a GPU, if the method is ``capturable`` and its optimiser is too.

    ``size``: of the usual batches, which are recorded.
    """
    captured = learner.device.type == "cuda" and capturable and optimizers.can_be_captured(learner.config.optimizer)
    return CapturedBatchStepper(learner, size) if captured else BatchStepper(learner)
