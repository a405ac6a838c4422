"""Accuracy at any time: evaluations between the ends of tasks, every so many stream batches.

What is recorded is raw: how many test images of each class are classified correctly at each point, and when each class
first arrived. Every measure of accuracy over time follows from it.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ocil.evaluation.evaluator import batch_for, places, scorer_of, scores_of_parts
from ocil.methods.base import Learner
from ocil.streams import Stream


@dataclass(frozen=True)
class AnytimePoint:
    """An evaluation after a number of stream batches, on the test images of the classes that have arrived by then."""

    batch: int
    """Stream batches learned."""
    accuracy: float
    """Over all these test images."""
    correct: list[int]
    """Per class: test images classified correctly; 0 for a class that has not arrived."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class AnytimeEvaluator:
    """Evaluates a learner every ``stream.config.evaluate_every`` batches, if it is not 0."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.every = stream, stream.config.evaluate_every
        if not self.every:
            return
        data = stream.data
        self.arrived = first_batches(stream)
        self.tested = np.bincount(data.test_y, minlength=data.num_classes)
        order = np.argsort(self.arrived[data.test_y], kind="stable")  # images of the classes that came first, first
        known = np.cumsum(np.bincount(self.arrived[data.test_y], minlength=len(stream) + 1))
        self.sizes = known.tolist()
        """By number of batches: test images of the classes that have arrived."""
        # Uploaded now: an upload in the middle of a run would wait for the device.
        self.index = torch.from_numpy(order).to(stream.resident.index_device)
        self.labels = torch.from_numpy(data.test_y[order]).to(stream.device)

    def is_due(self, batches: int) -> bool:
        """Whether the learner is evaluated after so many batches."""
        return bool(self.every) and batches % self.every == 0 and bool(self.sizes[batches])

    def start(
        self, learner: Learner, batches: int, after_batch: Callable[[], None] = lambda: None
    ) -> Callable[[], AnytimePoint]:
        """Start an evaluation on the device; the function returned waits for it. See ``Evaluator.start``."""
        stream, count = self.stream, self.sizes[batches]
        classes, labels = stream.data.num_classes, self.labels[:count]
        size = batch_for(stream.device.type, places(stream.data.input_shape))
        parts = stream.resident.parts("test", size, self.index[:count])
        hits = (scores_of_parts(scorer_of(learner, classes), parts, after_batch).argmax(1) == labels).long()
        correct: Tensor = torch.zeros(classes, dtype=torch.int64, device=hits.device).index_add_(0, labels, hits)

        def read() -> AnytimePoint:
            found = correct.tolist()
            return AnytimePoint(batches, sum(found) / count, found)

        return read

    def record(self, points: list[AnytimePoint]) -> dict[str, Any]:
        """What a result holds: the points, test images per class, and the batches after which each class is known."""
        if not self.every:
            return {}
        facts = {"tested": self.tested.tolist(), "arrived": self.arrived.tolist()}
        return {"every": self.every, **facts, "points": [point.to_json() for point in points]}


def first_batches(stream: Stream) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """By class: after how many batches its first sample has arrived; one more than there are batches if none does."""
    found = np.full(stream.data.num_classes, len(stream) + 1, dtype=np.int64)
    labels = stream.data.train_y[stream.arrivals.samples]
    for number, (first, last) in reversed(list(enumerate(stream.bounds))):
        found[labels[first:last]] = number + 1
    return found
