"""Prequential accuracy: each stream batch is classified before it is learned ("test, then train")."""

import math

import torch
from torch import Tensor

from ocil.errors import OcilError
from ocil.evaluation.evaluator import scorer_of
from ocil.evaluation.record_types import PrequentialRecord
from ocil.methods.base import Learner
from ocil.networks import NOT_MET
from ocil.streams import Stream

MOST_WINDOWS = 100_000  # of a result


class Prequential:
    """Counts stream samples that are classified correctly, in windows of ``stream.config.prequential`` batches; not at
    all if that is 0. The counts stay on the device and are part of a checkpoint (``state``).
    """

    def __init__(self, stream: Stream) -> None:
        self.stream, self.every = stream, stream.config.prequential
        self.classes = stream.data.num_classes
        windows = math.ceil(len(stream) / self.every) if self.every else 0
        if windows > MOST_WINDOWS:
            raise OcilError(
                f"prequential = {self.every} makes {windows:,} windows, more than a result holds: "
                f"give at least {math.ceil(len(stream) / MOST_WINDOWS)}."
            )
        self.correct = torch.zeros(windows, dtype=torch.int64, device=stream.device)
        self.window = torch.zeros(1, dtype=torch.int64, device=stream.device)
        self._window = 0  # the host's copy

    def begin(self, number: int) -> None:
        """The next batch to be counted is that of this number."""
        if (window := number // self.every) != self._window:
            self.window.fill_(window)
            self._window = window

    def count(self, learner: Learner, x: Tensor, y: Tensor) -> None:
        """Classify a batch and count what is right. The learner does not change. Reads nothing back to the host, unless
        the method's scorer does."""
        best, predicted = scorer_of(learner, self.classes)(x).max(1)
        # A learner that has met no class rules all of them out: it predicts nothing, not the first class.
        right = (predicted == y) & (best != NOT_MET) & (best > -torch.inf)
        self.correct.index_add_(0, self.window, right.sum()[None])

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {"prequential": self.correct} if self.every else {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        if self.every:
            self.correct.copy_(state["prequential"])

    def record(self) -> PrequentialRecord:
        """What a result holds: samples and correct samples by window. Waits for the device."""
        if not self.every:
            return {}
        sizes = [last - first for first, last in self.stream.bounds]
        seen = [sum(sizes[first : first + self.every]) for first in range(0, len(sizes), self.every)]
        return {"every": self.every, "seen": seen, "correct": self.correct.tolist()}
