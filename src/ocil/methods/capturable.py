"""What an engine must know of a learner to capture its steps as CUDA graphs.

A captured step is recorded once and replayed without Python, so that many runs share a GPU. This is correct only while
the step stays the same: the same operations on tensors of the same shapes, nothing read back to the host, all
randomness from the learner's generators. ``shapes_are_static`` and ``step_variant`` say when this holds. Work on the
memory is cut into steps, each on a batch of memory slots (``review_batches`` and ``review_step`` of a learner,
``task_end_batches`` and ``task_end_step`` here): an engine can capture these too, and other runs get their turns.
"""

from collections.abc import Iterator

from torch import Tensor

from ocil.learning.memory import Memory
from ocil.methods.config import LearnerConfig


class Capturable:
    """What an engine may ask about a learner's steps. Every learner answers, also one that cannot be captured, which
    ``MethodInfo.capturable`` says: its steps at a task's end are taken by the same names.

    The defaults are those of a method that replays ``memory_batch`` images and does nothing at a task's end.
    """

    config: LearnerConfig
    memory: Memory

    def shapes_are_static(self) -> bool:
        """Whether the shapes in ``learn`` stay the same from now on. In the first steps the memory holds too little.

        Reads from the device. A method that draws more than ``memory_batch`` images from its memory overrides this.
        """
        return self.memory.holds_more_than(self.config.memory_batch)

    def step_variant(self) -> int:
        """A number that changes when ``learn`` begins to do something else, for example after the first task.

        The step is then captured again. Does not read from the device. By default that is after each task for a
        learner whose class extends ``task_ended``, and never for others.
        """
        return 0

    def task_end_batches(self) -> Iterator[Tensor]:
        """The memory slots of the batches that the method learns from at each task's end; for most methods none."""
        return iter(())

    def task_end_step(self, slots: Tensor) -> None:
        """Learn from one batch of ``task_end_batches``."""
        raise NotImplementedError

    @property
    def has_task_end_steps(self) -> bool:
        """Whether the method learns from batches of the memory at task ends."""
        return type(self).task_end_batches is not Capturable.task_end_batches
