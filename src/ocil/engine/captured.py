"""A learner's steps as CUDA graphs: recorded once, then replayed without Python and without waiting for the host.

What a method must keep to be captured: in the steady state ``learn`` has static shapes, reads nothing back to the host
and draws all randomness from ``learner.rng``. The conformance tests check that on a CPU.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ocil.methods.base import Learner
from ocil.rng import Rng
from ocil.runner import Stepper
from ocil.streams import Stream


class CapturedStepper(Stepper):
    """Steps of one learner on a CUDA stream of its own, so that many learners share a device.

    The first steps, while the memory fills, and incomplete batches are taken as they are written.
    """

    def __init__(self, learner: Learner, stream: Stream) -> None:
        super().__init__(learner, stream)
        device = learner.device
        self.size = stream.config.batch_size
        self.starts = torch.tensor([first for first, _ in stream.bounds], device=device)
        self.within = torch.arange(self.size, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.next = -1  # the batch that the cursor on the device points to
        self.form = self._form()
        self.warm = False
        self.step: torch.cuda.CUDAGraph | None = None
        self.graphs: dict[tuple[str, int], tuple[Tensor, torch.cuda.CUDAGraph] | None] = {}

    def learn(self, number: int) -> None:
        first, last = self.stream.bounds[number]
        self.meet(number)
        self._follow_form()
        if last - first != self.size or (self.step is None and not self.warm):
            # One step in the steady state as it is written: it prepares what may not be prepared in a graph.
            self.warm = last - first == self.size and self.learner.steady()
            super().learn(number)
            return
        if self.step is None:
            self.step = self.record(self._learn_at_cursor)
        if self.next != number:
            self.cursor.fill_(number)
        self.next = number + 1
        self.step.replay()

    def _learn_at_cursor(self) -> None:
        index = self.stream.order[self.starts[self.cursor] + self.within]
        self.learner.learn(self.stream.resident.train_x[index], self.stream.resident.train_y[index])
        self.cursor += 1

    def review_one(self, slots: Tensor) -> None:
        self._on_slots("review", self.learner.review_step, slots)

    def rehearse_one(self, slots: Tensor) -> None:
        self._on_slots("rehearsal", self.learner.rehearsal_step, slots)

    def _on_slots(self, kind: str, step: Callable[[Tensor], None], slots: Tensor) -> None:
        """A step on memory slots. The first of a kind and size is taken as it is written, the second is recorded."""
        self._follow_form()
        key = (kind, len(slots))
        if key not in self.graphs:
            self.graphs[key] = None
            step(slots)
            return
        if (recorded := self.graphs[key]) is None:
            fixed = slots.clone()
            recorded = self.graphs[key] = (fixed, self.record(lambda: step(fixed)))
        fixed, graph = recorded
        fixed.copy_(slots)
        graph.replay()

    def _form(self) -> tuple[int, int]:
        """What was recorded depends on these: what a step does, and where the rows of the classes lie."""
        return self.learner.form(), self.learner.problem.classes

    def _follow_form(self) -> None:
        if (form := self._form()) != self.form:
            self.form, self.warm, self.step = form, False, None
            self.graphs.clear()

    def record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        return record(work, self.learner.rng)


def record(work: Callable[[], None], rng: Rng) -> torch.cuda.CUDAGraph:
    """Work as a graph on the current stream, which must not be the default one. It draws from ``rng`` alone."""
    graph = torch.cuda.CUDAGraph()
    for generator in rng.generators.values():
        graph.register_generator_state(generator)
    torch.cuda.synchronize(rng.device)
    graph.capture_begin()  # not torch.cuda.graph: that collects garbage each time, which adds up over many seeds
    try:
        work()
    finally:
        graph.capture_end()
    return graph
