"""How good the predictions were that were made before learning, and whether they lean to the classes that came last."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ocil.online.header import entry

WINDOW = 500
UNKNOWN = -1  # in the place of a class number: a class that was not met yet, or no prediction


@dataclass(frozen=True)
class Bias:
    """Of the last samples whose class was known: do predictions lean to the classes that came last?

    New classes are the half that was met last. Without a lean they are predicted as often as they occur.
    """

    scored: int
    new_classes: int
    occur: float
    """Share of samples that belong to a new class."""
    predicted: float
    """Share of samples that were taken for a new class."""
    accuracy_old: float | None
    accuracy_new: float | None


@dataclass
class Counts:
    """By class number. Samples are predicted before they are learned; one of an unknown class counts as wrong."""

    learned: list[int] = field(default_factory=list)
    correct: list[int] = field(default_factory=list)
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Class and prediction of the last samples; a class that was new at the time is ``UNKNOWN``."""

    def add(self, truth: Sequence[int], predicted: Sequence[int], known: int) -> None:
        """A batch whose classes had the numbers ``truth``; ``known`` classes had been met before it."""
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

    def bias(self, classes: int) -> Bias | None:
        """None while there are not two classes, or nothing to judge by."""
        known = [(truth, guess) for truth, guess in self.recent if truth != UNKNOWN]
        if classes < 2 or not known:
            return None
        first_new = classes - classes // 2
        old = [truth == guess for truth, guess in known if truth < first_new]
        new = [truth == guess for truth, guess in known if truth >= first_new]
        return Bias(
            len(known), classes // 2, len(new) / len(known), sum(guess >= first_new for _, guess in known) / len(known),
            sum(old) / len(old) if old else None, sum(new) / len(new) if new else None,
        )  # fmt: skip

    def copy(self) -> "Counts":
        return Counts(list(self.learned), list(self.correct), deque(self.recent, WINDOW))

    def to_json(self) -> dict[str, Any]:
        return {"learned": self.learned, "correct": self.correct, "recent": [list(pair) for pair in self.recent]}

    @classmethod
    def from_json(cls, content: dict[str, Any], classes: int) -> "Counts":
        """Of a model with so many classes. To be read inside ``reading_note``."""
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
