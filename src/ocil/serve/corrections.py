"""What corrections, removals and reviews of samples do to the model, in the learning thread."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.learning.memory import SlotNumbers
from ocil.online.model import Model
from ocil.serve.records import Change, NumberedSample


@dataclass(frozen=True)
class ChangeOutcome:
    """What became of a change."""

    learned: bool = False
    """Whether the sample had been learned before: the network keeps what it learned of it."""
    stored: bool | None = None
    """Whether the memory held the sample, which was corrected or removed there. None: it holds samples of unknown
    number, from before the service kept count, and this may be one of them."""
    refused: str | None = None
    """Why nothing was changed."""


class Corrections:
    """Makes the changes that concern samples. It belongs to the learning thread.

    What it does depends on the model, the samples that wait, and the change alone: so a replay does the same.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def make(self, change: Change, waiting: bool, after_batch: Callable[[], None]) -> ChangeOutcome:
        """``waiting``: whether the sample was still to be learned; then it is changed there, and here is nothing to do.
        ``after_batch``: called after each batch of a review or task end. If it raises, the model is of no more use.
        """
        if change.action == "review":
            self.model.review_or_end_task(after_batch)
            self.model.check_loss()
            return ChangeOutcome()
        if waiting:
            return ChangeOutcome(learned=False, stored=False)
        numbers = numbers_of(self.model)
        slots = numbers.slots_of(change.sample)
        if change.action == "correct":
            self.model.relabel(slots, change.label)
        else:
            self.model.forget(slots)
        unknown = bool((numbers.of_slot[: len(self.model.learner.memory)] == 0).any())
        return ChangeOutcome(learned=True, stored=True if slots else None if unknown else False)


def numbers_of(model: Model) -> SlotNumbers:
    """Which samples the memory holds. From the first call on the memory keeps count of them."""
    memory = model.learner.memory
    if memory.numbers is None:
        memory.numbers = SlotNumbers(memory, model.recipe.batch_size)
    return memory.numbers


def stacked_inputs(batch: Sequence[NumberedSample]) -> NDArray[Any]:
    """The inputs of samples, none of which was forgotten."""
    return np.stack([sample.inputs for sample in batch if sample.inputs is not None])


def learn_numbered(model: Model, batch: Sequence[NumberedSample], inputs: NDArray[Any]) -> None:
    """Have a model learn samples, whose numbers its memory keeps. ``inputs``: their ``stacked_inputs``."""
    numbers_of(model).announce([sample.number for sample in batch])
    model.learn(inputs, [sample.label for sample in batch])
