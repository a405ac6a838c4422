"""Accuracy at any time: evaluations between the ends of tasks, every so many stream batches.

What is recorded is raw: how many test images of each class are classified correctly at each point, and when each class
first arrived. Every measure of accuracy over time follows from it (``over_time``).
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil.errors import OcilError
from ocil.evaluation.evaluator import batch_for, pixel_count, scorer_of, scores_of_parts
from ocil.evaluation.record_types import AnytimePoint, AnytimeRecord
from ocil.evaluation.subset import chosen_images, kinds_of
from ocil.methods.base import Learner
from ocil.streams import Stream

MOST_COUNTS = 4_000_000  # of a result: points times classes; about 12 MB of JSON


class AnytimeEvaluator:
    """Evaluates a learner every ``stream.config.evaluate_every`` batches, if it is not 0, on the test images of the
    classes (and domains) that have arrived, or on a fixed part of these with ``evaluate_on``.

    Counts stay on the device until the end of the run: reading them would make the host wait, and with it all runs
    that share the device. They are part of a checkpoint (``state``).
    """

    def __init__(self, stream: Stream) -> None:
        self.stream, self.every = stream, stream.config.evaluate_every
        data = stream.data
        images = chosen_images(data, stream.config.evaluate_on) if self.every else np.empty(0, dtype=np.int64)
        self.subset = len(images) if len(images) < len(data.test_y) else 0
        self.domains, kinds, labels = data.num_domains, kinds_of(data)[images], data.test_y[images]
        self.tested = np.bincount(kinds, minlength=max(1, self.domains) * data.num_classes)
        batches = range(len(stream)) if self.every else range(0)  # a long stream is not looked through for nothing
        self.arrived = first_batches(stream, stream.given_labels, data.num_classes, batches)
        self.domains_arrived = np.empty(0, dtype=np.int64)
        since = self.arrived[labels]
        if data.train_domain is not None and data.test_domain is not None:
            self.domains_arrived = first_batches(stream, data.train_domain, self.domains, batches)
            since = np.maximum(since, self.domains_arrived[data.test_domain[images]])
        order = np.argsort(since, kind="stable")  # images of what came first, first
        self.sizes: list[int] = np.cumsum(np.bincount(since, minlength=len(stream) + 1)).tolist()
        """By number of batches: test images of what has arrived."""
        planned = range(self.every, len(stream) + 1, self.every) if self.every else range(0)
        self.due = [number for number in planned if self.sizes[number]]
        """After how many batches it evaluates: where no image can be tested yet it does not."""
        self.rows = {number: row for row, number in enumerate(self.due)}
        if len(self.due) * len(self.tested) > MOST_COUNTS:
            least = self.every * len(self.due) * len(self.tested) // MOST_COUNTS + 1
            raise OcilError(
                f"evaluate_every = {self.every} makes {len(self.due):,} evaluations of {len(self.tested):,} classes, "
                f"more than a result holds: give at least {least}."
            )
        # Uploaded now: an upload in the middle of a run would wait for the device.
        self.index = torch.from_numpy(images[order]).to(stream.device_data.index_device)
        self.labels, self.kinds = (torch.from_numpy(each[order]).to(stream.device) for each in (labels, kinds))
        by_kind = self.arrived if not self.domains else np.maximum(self.arrived, self.domains_arrived[:, None])
        self.since = torch.from_numpy(by_kind.reshape(-1)).to(stream.device)
        self.counts = torch.zeros(len(self.due), len(self.tested), dtype=torch.int64, device=stream.device)
        """``[points, kinds]``: correct images by class, or by domain and class."""

    def is_due(self, batches: int) -> bool:
        """Whether the learner is evaluated after so many batches."""
        return batches in self.rows

    def count(
        self,
        learner: Learner,
        batches: int,
        after_batch: Callable[[], None] = lambda: None,
        known: Tensor | None = None,
    ) -> None:
        """Evaluate the learner after so many batches, at which it must be due: count what it classifies correctly, on
        the device. ``after_batch`` is called after each batch of images and may raise.

        ``known``: the counts of an evaluation of the same learner on all test images, which is then not repeated.
        """
        row = self.counts[self.rows[batches]]
        if known is not None and not self.subset:
            torch.mul(known, self.since <= batches, out=row)
            return
        stream, count = self.stream, self.sizes[batches]
        size = batch_for(stream.device.type, pixel_count(stream.data.input_shape))
        parts = stream.device_data.parts("test", size, self.index[:count])
        scores = scores_of_parts(scorer_of(learner, stream.data.num_classes), parts, after_batch)
        hits = (scores.argmax(1) == self.labels[:count]).long()
        row.zero_().index_add_(0, self.kinds[:count], hits)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        return {"anytime": self.counts} if self.every else {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        if self.every:
            self.counts.copy_(state["anytime"])

    def record(self, reviews: list[int], tasks: list[int]) -> AnytimeRecord:
        """What a result holds. ``reviews`` and ``tasks``: the numbers of batches after which
        reviews took place and tasks ended. Waits for the device."""
        if not self.every:
            return {}
        classes = self.stream.data.num_classes
        found: AnytimeRecord = {"every": self.every}
        if self.subset:
            found["subset"] = self.subset
        tested = self.tested.reshape(-1, classes)
        found["tested"], found["arrived"] = tested.sum(axis=0).tolist(), self.arrived.tolist()
        if self.domains:
            found["tested_by_domain"], found["domains_arrived"] = tested.tolist(), self.domains_arrived.tolist()
        if self.stream.arrivals.scenario == "domain":
            found["domain_groups"] = [list(map(int, group)) for group in self.stream.groups]
        found["reviews"], found["tasks"] = reviews, tasks
        samples = np.cumsum([last - first for first, last in self.stream.bounds])
        counts = self.counts.cpu().numpy()
        found["points"] = [self._point(n, int(samples[n - 1]), row) for n, row in zip(self.due, counts, strict=True)]
        return found

    def _point(self, batches: int, samples: int, counts: NDArray[np.int64]) -> AnytimePoint:
        """``counts``: correct images by kind after so many batches and samples."""
        by_domain = counts.reshape(-1, self.stream.data.num_classes)
        point: AnytimePoint = {
            "batch": batches,
            "samples": samples,
            "accuracy": int(counts.sum()) / self.sizes[batches],
            "correct": by_domain.sum(axis=0).tolist(),
        }
        if self.domains:
            point["correct_by_domain"] = by_domain.tolist()
        return point


def first_batches(stream: Stream, labels: NDArray[np.int64], count: int, batches: range) -> NDArray[np.int64]:
    """By label: after how many batches its first sample has arrived; one more than there are batches if none does.

    ``labels`` are those of the training samples, ``count`` is how many there may be, ``batches`` the numbers of the
    batches to look at.
    """
    found = np.full(count, len(stream) + 1, dtype=np.int64)
    for number in reversed(batches):
        first, last = stream.bounds[number]
        found[labels[stream.arrivals.samples[first:last]]] = number + 1
    return found
