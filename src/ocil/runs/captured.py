"""A learner's steps as CUDA graphs: recorded once, then replayed without Python and without waiting for the host.

A method is capturable if ``learn`` in the steady state has static shapes, reads nothing back to the host and draws all
randomness from ``learner.rng``. The conformance tests check that on a CPU.

``CapturedStepper`` takes the steps of a run, ``batch_stepper`` those on batches that come from outside.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol
from warnings import catch_warnings

import torch
from torch import Tensor

from ocil.evaluation.prequential import Prequential
from ocil.learning import optimizers
from ocil.methods import method
from ocil.methods.base import Learner
from ocil.processes import garbage_kept
from ocil.rng import Rng
from ocil.runs.config import RunConfig
from ocil.runs.stepper import Stepper
from ocil.streams import Stream

ROOM = 0.25  # of a device's memory: with less of it free, the allocator gives back what it keeps before a recording


def can_be_captured(config: RunConfig) -> bool:
    """Whether the steps of a run can be captured: those of its method, and those of its optimiser."""
    return method(config.method).capturable and optimizers.can_be_captured(config.learner.optimizer)


class Graph(Protocol):
    """What a recording gives: a ``torch.cuda.CUDAGraph``, or in tests what stands for one."""

    def replay(self) -> None: ...


Record = Callable[[Callable[[], None]], Graph]


class Recordings:
    """The graphs of a learner's steps, by their kind and the shapes of the tensors that they take."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.variant = self._variant()
        self.graphs: dict[tuple[object, ...], tuple[tuple[Tensor, ...], Graph] | None] = {}

    def _variant(self) -> tuple[int, int]:
        """What a recording depends on: the variant of the step, and how many classes the tensors have room for."""
        return self.learner.step_variant(), self.learner.problem.classes

    def follow_variant(self) -> bool:
        """Forget all graphs if steps have become others. Returns whether they have."""
        if (variant := self._variant()) == self.variant:
            return False
        self.variant = variant
        self.graphs.clear()
        return True

    def take(self, record: Record, kind: str, step: Callable[..., None], *inputs: Tensor) -> None:
        """Take a step. The first of a kind and shape is taken outside of a graph: it prepares what a graph may not
        prepare. The second one is recorded on copies of its tensors, which are filled before each replay.

        ``record``: how. It is not kept: graphs go with their owner only if they do not know it in turn.
        """
        self.follow_variant()
        key = (kind, *(value.shape for value in inputs))
        if key not in self.graphs:
            self.graphs[key] = None
            step(*inputs)
            return
        if (recorded := self.graphs[key]) is None:
            fixed = tuple(value.clone() for value in inputs)
            recorded = self.graphs[key] = (fixed, record(lambda: step(*fixed)))
        fixed, graph = recorded
        for target, source in zip(fixed, inputs, strict=True):
            target.copy_(source)
        graph.replay()


class CapturedStepper(Stepper):
    """Steps of one learner on a CUDA stream of its own, so that many learners share a device.

    The first steps, while the memory fills, and those on incomplete batches are taken by calling the learner.
    """

    def __init__(self, learner: Learner, stream: Stream) -> None:
        super().__init__(learner, stream)
        device = learner.device
        self.size = stream.config.batch_size
        self.starts = torch.tensor([first for first, _ in stream.bounds], device=device)
        self.within = torch.arange(self.size, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.cursor_number = -1  # the host's copy of the cursor: the batch that the next replay learns
        self.warm = False
        """Whether a step was taken outside of a graph since shapes are static: the next one can be recorded."""
        self.step_graph: Graph | None = None
        self.inputs: tuple[Tensor, Tensor] | None = None
        """The tensors that a recorded step reads, if the images are not on the device; filled before each replay."""
        self.recordings = Recordings(learner)

    def learn(self, number: int) -> None:
        first, last = self.stream.bounds[number]
        self.meet(number)
        self._follow_variant()
        if last - first != self.size or (self.step_graph is None and not self.warm):
            # One step in the steady state is taken outside of a graph: it prepares what a graph may not prepare.
            self.warm = last - first == self.size and self.learner.shapes_are_static()
            super().learn(number)
            return
        if not self.stream.device_data.resident:
            self._replay_on(*self.fetch(number))
            return
        if self.step_graph is None:
            self.step_graph = self.record(self._learn_at_cursor)
        if self.cursor_number != number:
            self.cursor.fill_(number)
        self.cursor_number = number + 1
        self.step_graph.replay()

    def count(self, prequential: Prequential, x: Tensor, y: Tensor) -> None:
        """A method with a read-out of its own may read something back, so that its predictions are not captured."""
        if len(y) != self.size or type(self.learner).scorer is not Learner.scorer:
            super().count(prequential, x, y)
            return
        self._follow_variant()
        self.recordings.take(self.record, "prediction", partial(prequential.count, self.learner), x, y)

    def _learn_at_cursor(self) -> None:
        index = self.stream.samples[self.starts[self.cursor] + self.within]
        self.learner.learn(*self.stream.rows(index))
        self.cursor += 1

    def _replay_on(self, x: Tensor, y: Tensor) -> None:
        """The step on a batch that was brought to the device just now."""
        if self.inputs is None:
            self.inputs = torch.empty_like(x), torch.empty_like(y)
        inputs = self.inputs
        for target, source in zip(inputs, (x, y), strict=True):
            target.copy_(source)
        if self.step_graph is None:
            self.step_graph = self.record(lambda: self.learner.learn(*inputs))
        self.step_graph.replay()

    def review_step(self, slots: Tensor) -> None:
        self._follow_variant()
        self.recordings.take(self.record, "review", self.learner.review_step, slots)

    def task_end_step(self, slots: Tensor) -> None:
        self._follow_variant()
        self.recordings.take(self.record, "task end", self.learner.task_end_step, slots)

    def _follow_variant(self) -> None:
        if self.recordings.follow_variant():
            self.warm, self.step_graph = False, None

    def record(self, work: Callable[[], None]) -> Graph:
        return record(work, self.learner.rng)


def record(work: Callable[[], None], rng: Rng, other_threads: bool = False) -> torch.cuda.CUDAGraph:
    """Record work that draws from ``rng`` alone, on the current stream, which must not be the default one.

    ``other_threads``: whether other threads may use the device in the meantime.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in rng.generators.values():
        graph.register_generator_state(generator)
    torch.cuda.synchronize(rng.device)
    make_room(rng.device)
    # torch.cuda.graph would collect garbage each time, which adds up over many seeds. None is collected meanwhile: the
    # graph of a run that has ended may be in it, and to destroy a graph while another is recorded makes this one fail.
    with garbage_kept():
        graph.capture_begin(capture_error_mode="thread_local" if other_threads else "global")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError), catch_warnings(action="ignore"):  # they only say that the recording failed
                graph.capture_end()
            raise
        graph.capture_end()
    return graph


def make_room(device: torch.device) -> None:
    """Give back the memory that the allocator keeps for later, if little else is free. When memory runs out it does so
    by itself, except in a recording, which would fail."""
    free, total = torch.cuda.mem_get_info(device)
    if free < ROOM * total:
        torch.cuda.empty_cache()
