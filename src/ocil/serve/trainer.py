"""The thread that learns."""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError, WriteError
from ocil.methods.base import Learner
from ocil.online.labels import ClassLabel
from ocil.online.model import Model
from ocil.serve.checkpoints import Checkpoints
from ocil.serve.futures import ServiceThread, Waiters, answer
from ocil.serve.log import Log
from ocil.serve.metrics import Metrics
from ocil.serve.records import Cut, SampleRecord
from ocil.serve.snapshot import Snapshots
from ocil.serve.statistics import UNKNOWN, Counts, Statistics
from ocil.threads import set_threads

EXPENSIVE_EVERY = 10  # batches between two snapshots that are expensive to make, while more batches wait
PROBE = 2  # inputs of a batch that a new snapshot must have finite scores of
RETRY_SECONDS = 1.0  # after the disk was full

T = TypeVar("T")

logger = logging.getLogger("ocil.serve")


class NumberedSample(NamedTuple):
    """One labelled input of the log."""

    number: int
    label: ClassLabel
    inputs: NDArray[Any]

    @classmethod
    def of(cls, record: SampleRecord) -> "Iterator[NumberedSample]":
        return map(cls, range(record.first, record.last + 1), record.labels, record.inputs)


class Trainer(ServiceThread):
    """Learns what is in the log: first what the model on disk has not learned, then what the writer adds.

    It takes what waits, up to a batch, writes down in the log where the batch ends, predicts the batch, learns it, and
    publishes a snapshot. So a model loaded from a checkpoint that replays the rest of the log takes the steps that were
    taken, or would have been. The model belongs to this thread; others see ``snapshots`` and ``statistics``.
    """

    def __init__(
        self, model: Model, log: Log, position: int, counts: Counts, checkpoints: Checkpoints, metrics: Metrics
    ) -> None:
        """``position``: the number of the last sample that the model has learned. ``counts``: those saved with it."""
        super().__init__("ocil-learn")
        self.model, self.log, self.counts = model, log, counts
        self.checkpoints, self.metrics = checkpoints, metrics
        self.snapshots = Snapshots(model)
        self.statistics = Statistics.of(model, position, counts)
        """The model after the last step, in numbers."""
        self.failed: str | None = None
        """Why learning has stopped for good."""
        self.trouble: str | None = None
        """What keeps learning from going on for now."""
        self.step_seconds = 1.0
        """How long a step takes, averaged over the last ones."""
        self._ready: deque[NumberedSample] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self.waiters = Waiters(position)
        self._replaying = True
        self._stale = False  # the newest snapshot is older than the model
        self._expensive = type(model.learner).scorer is not Learner.scorer  # it has class means to compute
        self._stop_at = float("inf")

    @property
    def position(self) -> int:
        """The number of the last sample that is learned."""
        return self.statistics.position

    def finish(self, stop_at: float) -> None:
        """Learn what waits until ``stop_at`` on the monotonic clock, save, and stop."""
        self._stop_at = stop_at
        self.close()

    def add(self, samples: Iterable[NumberedSample]) -> None:
        """Add samples that are in the log and follow those added before."""
        with self._changed:
            self._ready.extend(samples)
            self._changed.notify_all()

    def between_steps(self, function: Callable[[], T]) -> "Future[T]":
        """Call ``function`` in the learning thread, when no step is under way. It may read the model."""
        found: Future[T] = Future()

        def call() -> None:
            try:
                answer(found, function())
            except Exception as error:
                answer(found, error)

        with self._changed:
            self._refuse_if_stopping()
            self._calls.append(call)
            self._changed.notify_all()
        return found

    def _run(self) -> None:
        """The learning thread."""
        set_threads(self.model.threads_used)
        if sys.platform == "linux":  # there a thread has a priority of its own: predictions come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        batches = self._batches()
        while self._wait_for_work():
            self._run_calls()
            if self.failed:
                continue
            with self._stops_on_error():
                if batch := next(batches):
                    self._step(batch)
                elif self._stale:
                    form = self.model.input_format
                    self._publish(np.zeros((1, *form.network_shape), form.dtype))
                if self.checkpoints.due(self.position):
                    self.checkpoints.save(self.position, self.counts)
        if not self.failed and self.position > self.checkpoints.position:
            with self._stops_on_error():
                self.checkpoints.save(self.position, self.counts)
        self.waiters.close()
        self._run_calls()

    def _wait_for_work(self) -> bool:
        """Return when there is something to learn, to call or to save; False when it is time to stop."""

        def work() -> bool:
            return bool(self._calls or ((self._replaying or self._ready) and not self.failed))

        with self._changed:
            self._changed.wait_for(lambda: work() or self._stopping, timeout=self.checkpoints.seconds)
            if not self._stopping:
                return True
            return work() and not self.failed and time.monotonic() < self._stop_at

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    @contextmanager
    def _stops_on_error(self) -> Iterator[None]:
        """An error inside stops learning for good."""
        try:
            yield
        except OcilError as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("learning has stopped")
            self._fail(f"{type(error).__name__} while learning.")

    def _fail(self, reason: str) -> None:
        """Learn no more. Predictions go on with the last good snapshot, and nothing of this is saved."""
        logger.error("learning has stopped: %s", reason)
        self.failed = reason
        self.waiters.close()

    def _batches(self) -> Iterator[list[NumberedSample]]:
        """One batch after the other, without an end; an empty one if nothing waits."""
        yield from self._replayed()
        self._replaying = False
        while True:
            yield self._next_batch()

    def _replayed(self) -> Iterator[list[NumberedSample]]:
        """Batches of the log that the model on disk has not learned, as they were cut; the rest gets ready."""
        pending: list[NumberedSample] = []
        for record in self.log.replay():
            if isinstance(record, SampleRecord):
                pending += NumberedSample.of(record)
                continue
            batch = [sample for sample in pending if sample.number <= record.last]
            pending = pending[len(batch) :]
            if batch:
                yield batch
        with self._changed:
            self._ready.extendleft(reversed(pending))

    def _next_batch(self) -> list[NumberedSample]:
        """Up to a batch of the samples that are ready; none if the disk is too full to write down where it ends."""
        with self._changed:
            size = min(len(self._ready), self.model.recipe.batch_size)
            batch = [self._ready[number] for number in range(size)]
        if not batch:
            return []
        try:  # not synced: a cut that is lost with the machine was not learned either
            self.log.append([Cut(batch[-1].number)], sync=False)
        except WriteError as error:
            self.trouble = f"learning waits: {error}"
            if self.log.broken:
                raise
            time.sleep(RETRY_SECONDS)
            return []
        self.trouble = None
        with self._changed:
            for _ in batch:
                self._ready.popleft()
        return batch

    def _step(self, batch: list[NumberedSample]) -> None:
        """Predict, learn, publish."""
        started = time.monotonic()
        inputs, labels = np.stack([sample.inputs for sample in batch]), [sample.label for sample in batch]
        known = len(self.model.labels)
        guesses = self.snapshots.newest.probabilities(inputs).argmax(1).tolist() if known else [UNKNOWN] * len(batch)
        self.model.learn(inputs, labels)
        self.model.check_loss()
        self._stale = True
        first = not self.snapshots.newest.labels  # until there is one, nothing can be predicted
        more = self._replaying or self._ready
        if first or not self._expensive or not more or self.model.batches % EXPENSIVE_EVERY == 0:
            self._publish(inputs[:PROBE])
        self.counts.add([self.model.numbers[label] for label in labels], guesses, known)
        self.statistics = Statistics.of(self.model, batch[-1].number, self.counts)
        seconds = time.monotonic() - started
        self.step_seconds = 0.8 * self.step_seconds + 0.2 * seconds
        self.metrics.step_seconds.observe(seconds)
        self.waiters.advance(self.position)

    def _publish(self, probe: NDArray[Any]) -> None:
        self.snapshots.publish(probe)
        self._stale = False
