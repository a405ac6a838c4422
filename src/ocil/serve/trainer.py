"""The thread that learns."""

import itertools
import logging
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError, WriteError
from ocil.methods.base import Learner
from ocil.online.model import Model
from ocil.serve.checkpoints import Checkpoints, Note
from ocil.serve.corrections import ChangeOutcome, Corrections, learn_numbered, stacked_inputs
from ocil.serve.futures import ServiceThread, Waiters, answer, stopping
from ocil.serve.limits import RefusedError
from ocil.serve.log import Log
from ocil.serve.metrics import Metrics
from ocil.serve.records import Change, Cut, NumberedSample, SampleRecord
from ocil.serve.snapshot import Snapshots
from ocil.serve.statistics import UNKNOWN, Statistics
from ocil.serve.version_changes import VersionChanges
from ocil.serve.versions import Versions
from ocil.threads import set_threads

EXPENSIVE_EVERY = 10  # batches between two snapshots that are expensive to make, while more batches wait
PROBE = 2  # inputs of a batch that a new snapshot must have finite scores of
RETRY_SECONDS = 1.0  # after the disk was full
NICER = 5  # the learning thread than the others
OUTCOMES = 1000  # of the last changes that are remembered

T = TypeVar("T")

logger = logging.getLogger("ocil.serve")


class _TooLateError(Exception):
    """The service must stop before a change is made."""


class Replay(NamedTuple):
    """How much of what the log held at the start, and the model did not, is learned and made by now."""

    samples: int
    all_samples: int
    changes: int
    all_changes: int

    @property
    def finished(self) -> bool:
        return self.samples >= self.all_samples and self.changes >= self.all_changes


class Trainer(ServiceThread):
    """Learns what is in the log: first what the model on disk has not learned, then what the writer adds.

    It makes the changes that wait; then it takes the samples that wait, up to a batch, writes down in the log where the
    batch ends and which changes were made before, predicts the batch, learns it, and publishes a snapshot. So a model
    loaded from a checkpoint that replays the rest of the log takes the steps that were taken, or would have been. The
    model belongs to this thread; others see ``snapshots`` and ``statistics``.
    """

    def __init__(
        self, model: Model, log: Log, saved: Note, checkpoints: Checkpoints, versions: Versions, metrics: Metrics
    ) -> None:
        """``saved``: what was saved with the model."""
        super().__init__("ocil-learn")
        self.model, self.log, self.counts = model, log, saved.counts
        self.scored = saved.scored
        """In the service's life."""
        self.changed = log.changes
        """The number of the last change that was made."""
        self.corrections = Corrections(model)
        self.version_changes = VersionChanges(self, versions)
        self.outcomes: OrderedDict[int, ChangeOutcome] = OrderedDict()
        """What became of the last changes, by their numbers."""
        self.checkpoints, self.metrics = checkpoints, metrics
        self.snapshots = Snapshots(model)
        self.statistics = Statistics.of(model, saved.position, saved.counts)
        """The model after the last step, in numbers."""
        self.failed: str | None = None
        """Why learning has stopped for good."""
        self.trouble: str | None = None
        """What keeps learning from going on for now."""
        self.step_seconds = 1.0
        """How long a step takes, averaged over the last ones."""
        self._ready: OrderedDict[int, NumberedSample] = OrderedDict()  # by number, in this order
        self._pending: OrderedDict[int, NumberedSample] = OrderedDict()  # of the replay: those read and not learned
        self._changes: deque[Change] = deque()
        self._calls: deque[Callable[..., None]] = deque()
        self.waiters = Waiters(saved.position)
        self.change_waiters = Waiters(self.changed)
        self._replaying = True
        self._stale = False  # the newest snapshot is older than the model
        self._expensive = type(model.learner).scorer is not Learner.scorer  # it has class means to compute
        self._stop_at = float("inf")
        self._abandoned = False  # a change was broken off: the model is of no more use

    @property
    def position(self) -> int:
        """The number of the last sample that is learned."""
        return self.statistics.position

    @property
    def replay(self) -> Replay:
        """How far the replay is. What the writer adds does not count: a service under load may always be behind."""
        log, end = self.log, self.log.recovered
        return Replay(
            min(self.position, end.last) - log.position,
            end.last - log.position,
            min(self.changed, end.last_change) - log.changes,
            end.last_change - log.changes,
        )

    @property
    def sound(self) -> bool:
        """Whether the model may be saved: no step and no change of it was broken off."""
        return not self.failed and not self._abandoned

    def finish(self, stop_at: float) -> None:
        """Learn what waits until ``stop_at`` on the monotonic clock, save, and stop."""
        self._stop_at = stop_at
        self.close()

    def add(self, records: Iterable[SampleRecord | Change]) -> None:
        """Add what is in the log and follows what was added before. All of it is seen at once."""
        with self._changed:
            for record in records:
                if isinstance(record, Change):
                    self._changes.append(record)
                else:
                    self._ready |= {sample.number: sample for sample in record.samples()}
            self._changed.notify_all()

    @property
    def waiting_changes(self) -> int:
        return len(self._changes)

    def between_steps(self, function: Callable[[], T]) -> "Future[T]":
        """Call ``function`` in the learning thread, when no step is under way. It may read the model.

        To cancel the future withdraws the call, unless it is being made.
        """
        found: Future[T] = Future()

        def call(refusal: RefusedError | None = None) -> None:
            if found.cancelled():
                return
            try:
                answer(found, function() if refusal is None else refusal)
            except Exception as error:
                answer(found, error)

        with self._changed:
            self.refuse_if_stopping()
            self._calls.append(call)
            self._changed.notify_all()
        return found

    def end_waiting(self) -> None:
        """Answer those who wait for samples or changes, as things are now. Learning itself goes on."""
        self.waiters.close()
        self.change_waiters.close()

    def refuse_calls(self, refusal: RefusedError | None = None) -> None:
        """Refuse the calls that wait for the end of a step, now and from now on: a restore may take hours.

        ``refusal``: why, if not because the service stops.
        """
        with self._changed:
            self._refusing = True
            calls, self._calls = self._calls, deque()
        for call in calls:
            call(refusal or stopping())

    def _refuse_waiting(self, refusal: RefusedError) -> None:
        self._fail(str(refusal))
        self.refuse_calls(refusal)

    def _run(self) -> None:
        """The learning thread."""
        set_threads(self.model.threads_used)
        if sys.platform == "linux":  # there a thread has a priority of its own: predictions come first
            this = threading.get_native_id()
            # Relative to what the process has: to raise a priority again is not allowed to everybody.
            with suppress(OSError):  # a sandbox may allow nobody to change it: then all threads are alike
                os.setpriority(os.PRIO_PROCESS, this, min(19, os.getpriority(os.PRIO_PROCESS, this) + NICER))
        work = self._work()
        while self._wait_for_work():
            self._run_calls()
            if self.failed:
                continue
            with self._stops_on_error():
                if isinstance(item := next(work), Change):
                    self._make(item)
                elif item:
                    self._step(item)
                elif self._stale:
                    self._publish(self._blank())
                if self.sound and self.checkpoints.due(self.position, self.changed):
                    self.save()
        if self.sound and self.checkpoints.behind(self.position, self.changed):
            with self._stops_on_error():
                self.save()
        self.end_waiting()
        self._run_calls()

    def save(self) -> None:
        """Make a checkpoint. Call it in the learning thread, between two steps."""
        self.checkpoints.save(self.note())

    def note(self) -> Note:
        """What is to be known of the model beside it."""
        return self.checkpoints.note(self.position, self.counts, self.changed, self.scored)

    def _wait_for_work(self) -> bool:
        """Return when there is something to learn, to call or to save; False when it is time to stop."""

        def work() -> bool:
            return bool(self._calls or ((self._replaying or self._ready or self._changes) and not self.failed))

        with self._changed:
            self._changed.wait_for(lambda: work() or self._stopping, timeout=self.checkpoints.seconds)
            if not self._stopping:
                return True
            return work() and self.sound and time.monotonic() < self._stop_at

    def _run_calls(self) -> None:
        """Make the calls that wait by now. Each is taken in its turn: those behind a long one can still be refused."""
        for _ in range(len(self._calls)):
            with self._changed:
                if not self._calls:  # they were refused meanwhile
                    return
                call = self._calls.popleft()
            call()

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
        self.end_waiting()

    def _work(self) -> Iterator[list[NumberedSample] | Change]:
        """One batch or change after the other, without an end; an empty batch if nothing waits."""
        yield from self._replay_log()
        self._replaying = False
        while True:
            yield self._next()

    def _replay_log(self) -> Iterator[list[NumberedSample] | Change]:
        """What the log has and the model on disk does not: changes and batches in their order; the rest gets ready."""
        changes: deque[Change] = deque()
        never = self.log.recovered.unlearned  # learning would stop at them again before it came to the change
        for record in self.log.replay():
            if isinstance(record, SampleRecord):
                self._pending |= {
                    one.number: one._replace(inputs=None) if one.number in never else one for one in record.samples()
                }
            elif isinstance(record, Change) and record.number <= self.log.changes:
                self._change_waiting(record)  # it was made, but its sample waits again
            elif isinstance(record, Change):
                changes.append(record)
            else:
                while changes and changes[0].number <= record.changes:
                    yield changes.popleft()
                batch = []
                while self._pending and next(iter(self._pending)) <= record.last:
                    batch.append(self._pending.popitem(last=False)[1])
                if batch:
                    yield batch
        with self._changed:
            self._ready = self._pending | self._ready
            self._changes.extendleft(reversed(changes))
            self._pending = OrderedDict()

    def _next(self) -> list[NumberedSample] | Change:
        """The next change that waits, else up to a batch of the samples that are ready; none if the disk is too full to
        write down where it ends.
        """
        with self._changed:
            if self._changes:
                return self._changes.popleft()
            batch = list(itertools.islice(self._ready.values(), self.model.recipe.batch_size))
        if not batch:
            return []
        try:  # not synced: a cut that is lost with the machine was not learned either
            self.log.append([Cut(batch[-1].number, self.changed)], sync=False)
        except WriteError as error:
            self.trouble = f"learning waits: {error}"
            if self.log.broken:
                raise
            time.sleep(RETRY_SECONDS)
            return []
        self.trouble = None
        with self._changed:
            for sample in batch:
                del self._ready[sample.number]
        return batch

    def _make(self, change: Change) -> None:
        """Make a change, and publish it unless more changes wait."""
        try:
            if change.action in ("correct", "forget", "review"):
                waiting = self._change_waiting(change) or change.unlearned
                outcome = self.corrections.make(change, waiting, self.stop_if_late)
            else:
                outcome = self.version_changes.make(change)
        except _TooLateError:  # the log has it: the next start makes it
            self._abandoned = True
            return
        self.changed = change.number
        self.outcomes[change.number] = outcome
        while len(self.outcomes) > OUTCOMES:
            self.outcomes.popitem(last=False)
        self._stale = True
        more = self._changes or change.number < self.log.recovered.last_change
        if self.model.labels and not more:
            self._publish(self._blank())
        self.statistics = Statistics.of(self.model, self.position, self.counts)
        self.change_waiters.advance(self.changed)

    def _change_waiting(self, change: Change) -> bool:
        """Correct or forget a sample that is still to be learned. Whether it was one."""
        if change.sample <= self.position:
            return False
        update = {"label": change.label} if change.action == "correct" else {"inputs": None}
        with self._changed:
            for samples in (self._pending, self._ready):
                if (sample := samples.get(change.sample)) is not None:
                    samples[change.sample] = sample._replace(**update)
                    return True
        return False

    def stop_if_late(self) -> None:
        """Called within a long change: it is broken off if the service must stop now."""
        if self._stopping and time.monotonic() > self._stop_at:
            raise _TooLateError

    def _blank(self) -> NDArray[Any]:
        """An input to try a snapshot on."""
        form = self.model.input_format
        return np.zeros((1, *form.network_shape), form.dtype)

    def _step(self, batch: list[NumberedSample]) -> None:
        """Predict, learn, publish."""
        started = time.monotonic()
        if kept := [sample for sample in batch if sample.inputs is not None]:
            try:
                self._learn(kept)
            except OcilError as error:
                first, last = kept[0].number, kept[-1].number
                numbers = f"sample {first}" if first == last else f"samples {first} to {last}"
                raise OcilError(
                    f"{error} The last batch had {numbers}: if the inputs of one are to blame, forget it now with "
                    "DELETE /samples/NUMBER and restart the service."
                ) from error
        self.statistics = Statistics.of(self.model, batch[-1].number, self.counts)
        seconds = time.monotonic() - started
        self.step_seconds = 0.8 * self.step_seconds + 0.2 * seconds
        self.metrics.step_seconds.observe(seconds)
        self.waiters.advance(self.position)

    def _learn(self, batch: list[NumberedSample]) -> None:
        inputs, known = stacked_inputs(batch), len(self.model.labels)
        guesses = self.snapshots.newest.probabilities(inputs).argmax(1).tolist() if known else [UNKNOWN] * len(batch)
        learn_numbered(self.model, batch, inputs)
        self.model.check_loss()
        self._stale = True
        if self._publishes_now():
            self._publish(inputs[:PROBE])
        self._count(batch, guesses, known)

    def _publishes_now(self) -> bool:
        """Whether a snapshot of the model as it is now is worth its time."""
        first = not self.snapshots.newest.labels  # until there is one, nothing can be predicted
        more = self._replaying or self._ready
        return bool(first or not self._expensive or not more or self.model.batches % EXPENSIVE_EVERY == 0)

    def _count(self, batch: list[NumberedSample], guesses: list[int], known: int) -> None:
        """Count how many of these samples were predicted correctly. ``known``: classes that the model then had."""
        truth = [self.model.numbers[sample.label] for sample in batch]
        self.counts.add(truth, guesses, known)
        right = sum(one == guess for one, guess in zip(truth, guesses, strict=True))
        self.scored = self.scored.plus(len(batch), right)

    def _publish(self, probe: NDArray[Any]) -> None:
        self.snapshots.publish(probe)
        self._stale = False
