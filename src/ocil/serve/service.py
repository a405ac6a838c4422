"""A model that learns and predicts at once. One thread writes the log, one learns, one predicts."""

import heapq
import itertools
import logging
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError, WriteError
from ocil.methods.base import Learner
from ocil.online.feed import has_model
from ocil.online.header import reading_note
from ocil.online.model import Label, Model
from ocil.precision import numerics
from ocil.serve.counts import UNKNOWN, Counts
from ocil.serve.labels import KnownLabels
from ocil.serve.limits import Limits, RefusedError, answer
from ocil.serve.log import Log, sync_folder
from ocil.serve.metrics import Gauge, Metrics
from ocil.serve.note import Entry, Note
from ocil.serve.predictor import Prediction, Predictor
from ocil.serve.records import Cut, Samples
from ocil.serve.snapshot import Snapshots
from ocil.threads import set_threads

NOTE = "serve"
LOG = "log"
GROUP = 256  # samples that one sync may take
CHECKPOINT_BATCHES = 1000
DEAR_EVERY = 10  # batches between two snapshots that are dear to make, while more wait
PROBE = 2  # images of a batch that a new snapshot must have finite scores of
RETRY_SECONDS = 1.0  # after the disk was full

say = logging.getLogger("ocil.serve")


@dataclass(frozen=True)
class Receipt:
    """The numbers that the samples of a request have in the log. It is on the disk."""

    first: int
    count: int
    repeated: bool = False
    """The request had come before; nothing was written now."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1


@dataclass(frozen=True)
class View:
    """The state after a step, for those who look on. Nothing in it changes."""

    position: int
    samples: int
    batches: int
    labels: tuple[Label, ...]
    counts: Counts
    stored: tuple[int, ...]
    """Images in the memory, by class."""


@dataclass(frozen=True)
class Stored:
    """Some of the memory's images."""

    samples: int
    """That the model had learned."""
    classes: tuple[tuple[Label, int, NDArray[np.uint8]], ...]
    """Label, how many are stored, and some of them."""


class Sample(NamedTuple):
    number: int
    label: Label
    pixels: NDArray[np.uint8]


@dataclass
class _Waiting:
    """A request on its way to the log."""

    labels: tuple[Label, ...]
    pixels: NDArray[np.uint8]
    key: str | None
    digest: str
    answer: "Future[Receipt]" = field(default_factory=Future)


class Service:
    """Owns a model and its folder, which must be locked. ``start`` it, and ``close`` it.

    A sample's way: ``submit`` puts it in line; the writer puts all that wait into the log with one sync and then
    acknowledges them; the learner takes what is in the log, up to a batch, writes down where the batch ends, predicts
    it, learns it, and publishes a snapshot. So the order of the log is the order of learning, and a model loaded from a
    checkpoint that replays the rest of the log takes the steps that were taken, or would have been.
    """

    def __init__(
        self,
        model: Model,
        folder: Path,
        limits: Limits | None = None,
        save_seconds: float = 30.0,
        keep_log: bool = False,
        threads: int | None = None,
        set_aside_damage: bool = False,
    ) -> None:
        """``threads``: that learning takes, as in ``Model``. Predictions take one."""
        self.model, self.folder, self.limits = model, folder, limits or Limits()
        self.save_seconds, self.keep_log = save_seconds, keep_log
        model.threads = threads or model.threads_used
        self.metrics = _metrics()
        note = self._noted()
        self.position = note.position
        self.log = Log(folder / LOG, self.position, model.images.network_shape, set_aside=set_aside_damage)
        self.counts = note.counts
        self.durable = self.log.last
        """The number of the last sample that is acknowledged."""
        self.failed: str | None = None
        """Why learning has stopped for good."""
        self.troubles: dict[str, str] = {}
        """What keeps learning or saving from going on for now."""
        self.saved_position, self.saved_at = self.position, time.monotonic()
        self.saved_batches = model.batches

        self._turn = threading.Condition()
        self._line: deque[_Waiting] = deque()
        self._unwritten = 0
        self._ready: deque[Sample] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._waiters: list[tuple[int, int, Future[bool]]] = []
        self._tickets = itertools.count()
        self._durable_labels: dict[Label, None] = dict.fromkeys((*model.labels, *sorted(self.log.labels, key=repr)))
        self._labels = KnownLabels(self._durable_labels)
        self._keys: OrderedDict[str, Entry] = OrderedDict()
        self._in_flight: dict[str, _Waiting] = {}
        for key, entry in {**self._kept_keys(note), **self.log.keys}.items():
            self._remember(key, entry)
        self._stopping = self._impatient = False
        self._stop_at = float("inf")

        self._context = ExitStack()
        self._context.enter_context(numerics(model.config.precision))  # once: threads must not switch it to and fro
        self.snapshots = Snapshots(model)
        self._stale = False
        self._dear = type(model.learner).scorer is not Learner.scorer  # it has class means to compute
        self.predictor = Predictor(self.snapshots, self.limits, self.metrics)
        self.view = self._viewed()
        self._threads = [
            threading.Thread(target=run, name=f"ocil-{run.__name__.strip('_')}", daemon=True)
            for run in (self._write, self._learn)
        ]

    def _noted(self) -> Note:
        with reading_note("its service"):
            return Note.from_json(self.model.note.get(NOTE, {}), len(self.model.labels))

    def _kept_keys(self, note: Note) -> dict[str, Entry]:
        """Without those of requests that are neither learned nor in the log: set aside, they may come again."""
        learned = {key for key, (first, count, _) in note.keys.items() if first + count - 1 <= note.position}
        return {key: entry for key, entry in note.keys.items() if key in learned or key in self.log.keys}

    def start(self) -> None:
        """Begin to learn what the log holds and the model does not, and to take requests."""
        if not has_model(self.folder):
            self._checkpoint()  # the recipe is on the disk before the first sample
        for thread in self._threads:
            thread.start()
        self.predictor.start()

    def close(self, finish_seconds: float = 5.0) -> None:
        """Take no more, learn what is in line for so long, save. The log holds what is left for the next start."""
        with self._turn:
            self._stopping, self._stop_at = True, time.monotonic() + finish_seconds
            self._turn.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self.predictor.close()
        self.log.close()
        self._context.close()

    # Learning requests

    def submit(
        self, pixels: NDArray[np.uint8], labels: Sequence[Label], key: str | None = None, digest: str = ""
    ) -> "Future[Receipt]":
        """Put samples in line, as samples of the classes that the labels mean. They are on the disk when it answers."""
        with self._turn:
            if key is not None and (known := self._known(key, digest)) is not None:
                return known
            waiting = _Waiting(self._labels.meant(labels), pixels, key, digest)
            self._admit(waiting.labels)
            self._labels.update(waiting.labels)
            self._unwritten += len(labels)
            self._line.append(waiting)
            if key is not None:
                self._in_flight[key] = waiting
            self._turn.notify_all()
        return waiting.answer

    def _known(self, key: str, digest: str) -> "Future[Receipt] | None":
        """The first answer to a request that comes again."""
        again: Future[Receipt] = Future()
        if key in self._in_flight:
            first = self._in_flight[key]
            same = first.digest == digest
            first.answer.add_done_callback(lambda done: _copy_answer(done, again))
        elif key in self._keys:
            number, count, known = self._keys[key]
            same = known == digest
            again.set_result(Receipt(number, count, repeated=True))
        else:
            return None
        if not same:
            raise RefusedError(409, "this Idempotency-Key came before with another request: use a new one.")
        return again

    def _admit(self, labels: tuple[Label, ...]) -> None:
        if self._stopping:
            raise RefusedError(503, "the service is stopping.", 5)
        if self.failed or self.log.broken:
            raise RefusedError(503, f"learning has stopped: {self.failed or self.log.broken}")
        if self.backlog + len(labels) > self.limits.queue:
            message = f"{self.backlog} samples wait to be learned, the most there may be is {self.limits.queue}."
            raise RefusedError(429, message, self.retry_after())
        new = self._labels.new(labels)  # a model may have more classes than a lower limit allows; it keeps them
        if new and len(self._labels) + len(new) > self.limits.classes:
            message = f"the model would have more than {self.limits.classes} classes, which is the limit here."
            raise RefusedError(422, message)

    @property
    def backlog(self) -> int:
        """Samples that are accepted and not learned yet."""
        return self._unwritten + self.durable - self.position

    def retry_after(self) -> int:
        """Seconds until there should be room for a batch."""
        return max(1, min(60, round(self._step_seconds)))

    def applied(self, number: int) -> "Future[bool]":
        """Done when the sample of this number is learned; False if it will not be for now."""
        waiter: Future[bool] = Future()
        with self._turn:
            if number <= self.position or self.failed or self._impatient or self._stopping:
                waiter.set_result(number <= self.position)
            else:
                heapq.heappush(self._waiters, (number, next(self._tickets), waiter))
        return waiter

    def stop_waiting(self) -> None:
        """Answer those who wait for samples to be learned, now and from now on. They are acknowledged all the same."""
        with self._turn:
            self._impatient = True
        self._release(lambda number: True)

    def _write(self) -> None:
        """The writing thread: what waits goes to the log with one sync, then it is acknowledged."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._line or self._stopping)
                if not self._line:
                    return
                group = self._take_group()
            number, records = self.log.last + 1, []
            for one in group:
                records.append(Samples(number, one.labels, one.pixels, one.key, one.digest))
                number = records[-1].last + 1
            try:
                started = time.monotonic()
                self.log.append(records)
                self.metrics.took("ocil_log_write_seconds", time.monotonic() - started)
            except Exception as error:
                self._not_written(group, error)
            else:
                self._written(group, records)

    def _take_group(self) -> list[_Waiting]:
        group, size = [self._line.popleft()], 0
        while self._line and size + len(group[-1].labels) < GROUP:
            size += len(group[-1].labels)
            group.append(self._line.popleft())
        return group

    def _written(self, group: list[_Waiting], records: list[Samples]) -> None:
        with self._turn:
            for one, record in zip(group, records, strict=True):
                self._unwritten -= len(one.labels)
                numbers = range(record.first, record.last + 1)
                self._ready.extend(map(Sample, numbers, record.labels, record.pixels))
                if one.key is not None:
                    self._in_flight.pop(one.key)
                    self._remember(one.key, (record.first, len(record.labels), record.digest))
                self._durable_labels.update(dict.fromkeys(record.labels))
            self.durable = records[-1].last
            self._turn.notify_all()
        for one, record in zip(group, records, strict=True):
            answer(one.answer, Receipt(record.first, len(record.labels)))
        self.metrics.add("ocil_samples_acknowledged_total", sum(len(one.labels) for one in group))

    def _not_written(self, group: list[_Waiting], error: Exception) -> None:
        """Nobody is told that it was."""
        if not isinstance(error, WriteError):
            say.exception("the log could not be written")
        with self._turn:
            for one in group:
                self._unwritten -= len(one.labels)
                if one.key is not None:
                    self._in_flight.pop(one.key)
            waiting = itertools.chain.from_iterable(one.labels for one in self._line)
            self._labels = KnownLabels((*self._durable_labels, *waiting))
        for one in group:
            answer(one.answer, RefusedError(503, f"nothing was learned: {error}", 10))

    def _remember(self, key: str, entry: Entry) -> None:
        self._keys[key] = entry
        while len(self._keys) > self.limits.keys:
            self._keys.popitem(last=False)

    # Learning

    _step_seconds = 1.0

    def _learn(self) -> None:
        """The learning thread. The model is its own."""
        set_threads(self.model.threads_used)
        if sys.platform == "linux":  # there a thread has a priority of its own: predictions come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        replayed = self._replayed()
        replay = True
        while self._wait_for_work(replay):
            while self._jobs:
                self._jobs.popleft()()
            if self.failed:
                continue
            try:
                batch = next(replayed, None) if replay else None
                if batch is None:
                    replay = False
                    batch = self._next_batch()
                    if batch and not self._cut(batch):
                        continue
                if batch:
                    self._step(batch, more=replay or bool(self._ready))
                elif self._stale:
                    self._publish(None)
                self._save_now_and_then()
            except OcilError as error:
                self._fail(str(error))
            except Exception as error:
                say.exception("learning has stopped")
                self._fail(f"{type(error).__name__} while learning.")
        if not self.failed and self.position > self.saved_position:
            self._checkpoint()
        self._release(lambda number: True)
        while self._jobs:
            self._jobs.popleft()()

    def _wait_for_work(self, replay: bool) -> bool:
        """False: it is time to stop."""

        def work() -> bool:
            return bool(self._jobs or ((replay or self._ready) and not self.failed))

        with self._turn:
            self._turn.wait_for(lambda: work() or self._stopping, timeout=min(self.save_seconds, threading.TIMEOUT_MAX))
            if not self._stopping:
                return True
            writing = self._unwritten > 0
            if writing and not work():
                self._turn.wait(0.05)
            return (work() or writing) and not self.failed and time.monotonic() < self._stop_at

    def _replayed(self) -> Iterator[list[Sample]]:
        """Batches of the log that the model on disk has not learned, as they were cut; the rest is put in line."""
        pending: list[Sample] = []
        for record in self.log.replay():
            if isinstance(record, Samples):
                pending += map(Sample, range(record.first, record.last + 1), record.labels, record.pixels)
                continue
            batch = [sample for sample in pending if sample.number <= record.last]
            pending = pending[len(batch) :]
            if batch:
                yield batch
        with self._turn:
            self._ready.extendleft(reversed(pending))

    def _next_batch(self) -> list[Sample]:
        with self._turn:
            size = min(len(self._ready), self.model.recipe.batch_size)
            return [self._ready[number] for number in range(size)]

    def _cut(self, batch: list[Sample]) -> bool:
        """Write down where the batch ends. Not synced: a cut that is lost with the machine was not learned either."""
        try:
            self.log.append([Cut(batch[-1].number)], sync=False)
        except WriteError as error:
            self.troubles["learning"] = f"learning waits: {error}"
            if self.log.broken:
                raise
            time.sleep(RETRY_SECONDS)
            return False
        self.troubles.pop("learning", None)
        with self._turn:
            for _ in batch:
                self._ready.popleft()
        return True

    def _step(self, batch: list[Sample], more: bool) -> None:
        """Predict, learn, publish. ``more``: another batch waits."""
        started = time.monotonic()
        pixels, labels = np.stack([sample.pixels for sample in batch]), [sample.label for sample in batch]
        known = len(self.model.labels)
        guesses = self.snapshots.newest.probabilities(pixels).argmax(1).tolist() if known else [UNKNOWN] * len(batch)
        self.model.learn(pixels, labels)
        self.model.check_loss()
        self._stale = True
        first = not self.snapshots.newest.labels  # until there is one, nothing can be predicted
        if first or not self._dear or not more or self.model.batches % DEAR_EVERY == 0:
            self._publish(pixels[:PROBE])
        self.counts.add([self.model.numbers[label] for label in labels], guesses, known)
        with self._turn:
            self.position = batch[-1].number
            self.view = self._viewed()
        seconds = time.monotonic() - started
        self._step_seconds = 0.8 * self._step_seconds + 0.2 * seconds
        self.metrics.took("ocil_step_seconds", seconds)
        self._release(lambda number: number <= self.position)

    def _publish(self, probe: NDArray[np.uint8] | None) -> None:
        self.snapshots.publish(np.zeros((1, *self.model.images.network_shape), np.uint8) if probe is None else probe)
        self._stale = False

    def _release(self, whose: Callable[[int], bool]) -> None:
        """Tell those who wait for samples that were learned, or will not be."""
        while True:
            with self._turn:
                if not self._waiters or not whose(self._waiters[0][0]):
                    return
                number, _, waiter = heapq.heappop(self._waiters)
            answer(waiter, number <= self.position)

    def _fail(self, reason: str) -> None:
        """Learn no more. Predictions go on with the last good snapshot, and nothing of this is saved."""
        say.error("learning has stopped: %s", reason)
        with self._turn:
            self.failed = reason
        self._release(lambda number: True)

    def _viewed(self) -> View:
        model, memory = self.model, self.model.learner.memory
        held = memory.labels[: len(memory)].cpu().numpy()
        stored = np.bincount(held, minlength=len(model.labels)).tolist()
        return View(
            self.position, model.samples, model.batches, tuple(model.labels), self.counts.copy(), tuple(stored)
        )  # fmt: skip

    def _save_now_and_then(self) -> None:
        if self.position == self.saved_position:
            return
        late = time.monotonic() - self.saved_at >= self.save_seconds
        if late or self.model.batches - self.saved_batches >= CHECKPOINT_BATCHES:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Save the model with its place in the log. If that fails, the log is still there; it is tried again later."""
        started = self.saved_at = time.monotonic()
        try:
            self.log.sync()  # or a log that is kept could miss a cut that the checkpoint has
            with self._turn:
                keys = dict(self._keys)
            self.model.note[NOTE] = Note(self.position, self.counts, keys).to_json()
            self.model.save(self.folder)
            sync_folder(self.folder)
            self.saved_position, self.saved_batches = self.position, self.model.batches
            if not self.keep_log:
                self.log.covered(self.position)
            self.troubles.pop("saving", None)
        except (WriteError, OSError) as error:
            self.troubles["saving"] = f"the model could not be saved: {error}"
            say.error(self.troubles["saving"])
        self.metrics.took("ocil_checkpoint_seconds", time.monotonic() - started)

    # Looking on

    def predict(self, pixels: NDArray[np.uint8]) -> "Future[Prediction]":
        """By the newest snapshot."""
        return self.predictor.ask(pixels)

    def stored(self, per_class: int, first: int, count: int, most: int) -> "Future[Stored]":
        """``most`` images of the memory, of ``count`` classes from ``first`` on, copied between two steps."""
        found: Future[Stored] = Future()

        def look() -> None:
            try:
                answer(found, self._look(per_class, first, count, most))
            except Exception as error:
                answer(found, error)

        with self._turn:
            if self._stopping:
                raise RefusedError(503, "the service is stopping.", 5)
            self._jobs.append(look)
            self._turn.notify_all()
        return found

    def _look(self, per_class: int, first: int, count: int, most: int) -> Stored:
        memory, factor = self.model.learner.memory, self.model.images.factor
        held = memory.labels[: len(memory)].cpu()
        numbers = range(first, min(first + count, len(self.view.labels)))
        share = min(per_class, max(1, most // max(1, len(numbers))))  # each class has one before one has more
        found = []
        for number in numbers:
            slots = (held == number).nonzero().flatten()
            shown = slots[: min(share, most)].to(memory.images.device)
            most -= len(shown)
            images = memory.images[shown][:, ::factor, ::factor].cpu().numpy()
            found.append((self.view.labels[number], len(slots), images.copy()))
        return Stored(self.view.samples, tuple(found))

    def gauges(self) -> list[Gauge]:
        """Numbers as they are now, for Prometheus."""
        view, counts = self.view, self.view.counts
        return [
            Gauge("ocil_model_samples", "Samples the model has learned in its life.", view.samples),
            Gauge("ocil_model_batches", "Batches the model has learned in its life.", view.batches),
            Gauge("ocil_samples_learned", "Samples of the log that are learned.", view.position),
            Gauge("ocil_classes", "Classes met.", len(view.labels)),
            Gauge("ocil_queue_samples", "Samples accepted and not learned yet.", self.backlog),
            Gauge("ocil_predict_queue_images", "Images that wait for a prediction.", self.predictor.waiting),
            Gauge("ocil_memory_images", "Images in the memory.", sum(view.stored)),
            Gauge("ocil_samples_scored", "Samples predicted before they were learned.", sum(counts.learned)),
            Gauge("ocil_samples_correct", "How many of them rightly.", sum(counts.correct)),
            Gauge("ocil_learning_failed", "1 if learning has stopped for good.", bool(self.failed)),
            Gauge("ocil_unsaved_samples", "Samples not in a checkpoint yet.", self.position - self.saved_position),
        ]  # fmt: skip


def _metrics() -> Metrics:
    metrics = Metrics()
    metrics.counter("ocil_samples_acknowledged_total", "Samples acknowledged since the start.")
    metrics.counter("ocil_images_predicted_total", "Images predicted since the start.")
    metrics.counter("ocil_requests_total", "Requests since the start.")
    metrics.duration("ocil_request_seconds", "Time to answer a request.")
    metrics.duration("ocil_step_seconds", "Time to predict and learn a batch.")
    metrics.duration("ocil_log_write_seconds", "Time to write to the log and sync it.")
    metrics.duration("ocil_checkpoint_seconds", "Time to save the model.")
    return metrics


def _copy_answer(done: "Future[Receipt]", again: "Future[Receipt]") -> None:
    error = done.exception()
    if error is None:
        answer(again, Receipt(done.result().first, done.result().count, repeated=True))
    elif isinstance(error, Exception):
        answer(again, error)
