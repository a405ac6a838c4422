"""What others see of the model: how much it has learned, how well it predicted, and what its memory holds."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocil.online.header import entry
from ocil.online.images import ImageFormat
from ocil.online.labels import ClassLabel
from ocil.online.model import Model
from ocil.serve.answers import BiasState

WINDOW = 500
NOTHING = np.empty((0, 1, 1, 1), np.uint8)
UNKNOWN = -1  # in the place of a class number: a class that was not met yet, or no prediction


class Scored(NamedTuple):
    """Samples that were predicted before they were learned, and how many of them correctly."""

    samples: int = 0
    correct: int = 0

    def plus(self, samples: int, correct: int) -> "Scored":
        return Scored(self.samples + samples, self.correct + correct)


@dataclass
class Counts:
    """Samples learned and predicted correctly, by class number. A sample of a new class counts as wrong."""

    learned: list[int] = field(default_factory=list)
    correct: list[int] = field(default_factory=list)
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Class and prediction of the last samples; a class that was new at the time is ``UNKNOWN``."""

    def add(self, truth: Sequence[int], predicted: Sequence[int], known: int) -> None:
        """Add a batch of these class numbers and predictions. ``known``: classes that had been met before it."""
        for one, guess in zip(truth, predicted, strict=True):
            missing = one + 1 - len(self.learned)
            self.learned += [0] * missing
            self.correct += [0] * missing
            self.learned[one] += 1
            self.correct[one] += one == guess
            self.recent.append((one if one < known else UNKNOWN, guess))

    @property
    def accuracy(self) -> float | None:
        return sum(self.correct) / total if (total := sum(self.learned)) else None

    @property
    def recent_accuracy(self) -> float | None:
        if not self.recent:
            return None
        return sum(truth == guess != UNKNOWN for truth, guess in self.recent) / len(self.recent)

    def bias(self, classes: int) -> BiasState | None:
        """Whether predictions favour new classes; None for fewer than two classes, or no samples of a known one."""
        known = [(truth, guess) for truth, guess in self.recent if truth != UNKNOWN]
        if classes < 2 or not known:
            return None
        first_new = classes - classes // 2
        old = [truth == guess for truth, guess in known if truth < first_new]
        new = [truth == guess for truth, guess in known if truth >= first_new]
        return BiasState(
            scored=len(known),
            new_classes=classes // 2,
            occur=len(new) / len(known),
            predicted=sum(guess >= first_new for _, guess in known) / len(known),
            accuracy_old=sum(old) / len(old) if old else None,
            accuracy_new=sum(new) / len(new) if new else None,
        )

    def copy(self) -> "Counts":
        return Counts(list(self.learned), list(self.correct), deque(self.recent, WINDOW))

    def to_json(self) -> dict[str, Any]:
        return {"learned": self.learned, "correct": self.correct, "recent": [list(pair) for pair in self.recent]}

    @classmethod
    def from_json(cls, content: dict[str, Any], classes: int) -> "Counts":
        """Counts from a model file, checked against the number of classes. Call it inside ``reading_note``."""
        learned, correct, recent = (entry(content, name, list) for name in ("learned", "correct", "recent"))
        if not _are_whole(learned, 0) or not _are_whole(correct, 0):
            raise ValueError("counts.learned and counts.correct are not lists of counts")
        if not len(learned) == len(correct) <= classes:
            raise ValueError(f"counts.learned and counts.correct do not fit a model of {classes} classes")
        if any(right > all_of_them for right, all_of_them in zip(correct, learned, strict=True)):
            raise ValueError("counts.correct exceeds counts.learned")
        if not all(_is_pair(pair, classes) for pair in recent):
            raise ValueError("counts.recent is not a list of pairs of class numbers")
        return cls(learned, correct, deque(((truth, guess) for truth, guess in recent), WINDOW))


def _are_whole(values: Any, least: int) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= least for value in values)


def _is_pair(pair: Any, classes: int) -> bool:
    return _are_whole(pair, UNKNOWN) and len(pair) == 2 and max(pair) < classes


@dataclass(frozen=True)
class Statistics:
    """A model after a step, in numbers. Nothing in it changes."""

    position: int
    """The number of the last sample of the log that the model has learned."""
    samples: int
    """Samples that the model has learned in its life."""
    batches: int
    labels: tuple[ClassLabel, ...]
    counts: Counts
    stored: tuple[int, ...]
    """Inputs in the memory, per class."""

    @classmethod
    def of(cls, model: Model, position: int, counts: Counts) -> "Statistics":
        memory = model.learner.memory
        held = memory.labels[: len(memory)].cpu().numpy()
        stored = np.bincount(held, minlength=len(model.labels)).tolist()
        return cls(position, model.samples, model.batches, tuple(model.labels), counts.copy(), tuple(stored))


@dataclass(frozen=True)
class StoredImages:
    """Some of the memory's images."""

    samples: int
    """Samples that the model had learned."""
    classes: tuple[tuple[ClassLabel, int, NDArray[np.uint8]], ...]
    """Per class: its label, how many images are stored, and some of them."""

    @classmethod
    def of(
        cls, model: Model, statistics: Statistics, per_class: int, first: int, count: int, most: int
    ) -> "StoredImages":
        """Copies of at most ``most`` images, ``per_class`` of each of ``count`` classes from number ``first`` on.

        Call it between two steps. Each class gets one image before any class gets two. Of a memory of vectors there is
        nothing to show but how many each class has.
        """
        memory, form = model.learner.memory, model.input_format
        factor = form.factor if isinstance(form, ImageFormat) else None
        held = memory.labels[: len(memory)].cpu()
        numbers = range(first, min(first + count, len(statistics.labels)))
        share = min(per_class, max(1, most // max(1, len(numbers))))
        found = []
        for number in numbers:
            slots = (held == number).nonzero().flatten()
            shown = slots[: min(share, most) if factor else 0].to(memory.images.device)
            most -= len(shown)
            images = memory.images[shown][:, ::factor, ::factor].cpu().numpy() if factor else NOTHING
            found.append((statistics.labels[number], len(slots), images.copy()))
        return cls(statistics.samples, tuple(found))
