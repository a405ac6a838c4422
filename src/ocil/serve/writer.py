"""The thread that writes the log and then acknowledges requests."""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.errors import WriteError
from ocil.online.labels import ClassLabel
from ocil.serve.catalogue import Catalogue
from ocil.serve.futures import ServiceThread, answer
from ocil.serve.idempotency import KeyedRequest, Keys
from ocil.serve.labels import KnownLabels
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.log import Log
from ocil.serve.metrics import Metrics
from ocil.serve.records import Change, SampleRecord
from ocil.serve.trainer import Trainer

GROUP = 256  # samples that one sync may take

logger = logging.getLogger("ocil.serve")


@dataclass(frozen=True)
class Receipt:
    """The numbers that the samples of a request have in the log, where they are synced to the disk.

    Of a change, ``first`` is its number among the changes.
    """

    first: int
    count: int
    repeated: bool = False
    """The request came before under the same key; nothing was written now."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1


@dataclass
class _QueuedRequest:
    """A request on its way to the log: samples, or a change."""

    labels: tuple[ClassLabel, ...]
    inputs: NDArray[Any] | None
    key: str | None
    digest: str
    change: Change | None = None
    """Its number is given when it is written."""
    receipt: "Future[Receipt]" = field(default_factory=Future)

    def record(self, number: int, change: int) -> SampleRecord | Change:
        """The record with these numbers of the next sample and the next change."""
        now = round(time.time(), 6)  # as exact as answers are
        if self.change is not None:
            return replace(self.change, number=change, time=now)
        inputs = np.empty(0) if self.inputs is None else self.inputs
        return SampleRecord(number, self.labels, inputs, self.key, self.digest, now)


class Writer(ServiceThread):
    """Puts requests into the log, all that wait with one sync, acknowledges them, and passes them on to the trainer.

    Each request is either in the log, synced, before its receipt, or it is refused and none of it is in the log.
    """

    def __init__(
        self,
        log: Log,
        labels: Iterable[ClassLabel],
        *,
        keys: Keys,
        change_keys: Keys,
        catalogue: Catalogue,
        trainer: Trainer,
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        """``labels``: of all classes that the model or the log knows."""
        super().__init__("ocil-write")
        self.log, self.keys, self.change_keys, self.catalogue = log, keys, change_keys, catalogue
        self.trainer, self.limits, self.metrics = trainer, limits, metrics
        self.acknowledged = log.last
        """The number of the last sample that is acknowledged."""
        self._queue: deque[_QueuedRequest] = deque()
        self._group: list[_QueuedRequest] = []  # those on their way to the disk
        self._unwritten = 0  # samples of requests in the queue or on their way to the disk
        self._unwritten_changes = 0
        self._failing = False  # the last requests could not be written; the log says so once
        self._by_key: dict[str, _QueuedRequest] = {}  # these requests, as far as they have a key
        self._logged_labels: dict[ClassLabel, None] = dict.fromkeys(labels)
        self._labels = KnownLabels(self._logged_labels)

    @property
    def backlog(self) -> int:
        """Samples that are accepted and not learned yet."""
        return self._unwritten + self.acknowledged - self.trainer.position

    def submit(
        self, inputs: NDArray[Any], labels: Sequence[ClassLabel], key: str | None = None, digest: str = ""
    ) -> "Future[Receipt]":
        """Accept inputs, as the learner takes them, as samples of the classes that the labels mean.

        The receipt comes once they are synced to the disk. ``key`` and ``digest``: the request's Idempotency-Key and
        what distinguishes it from others. Raises ``RefusedError``, as may the future.
        """
        with self._changed:
            if key is not None and (known := self._repeated(key, digest, self.keys)) is not None:
                return known
            request = _QueuedRequest(self._labels.meant(labels), inputs, key, digest)
            self._refuse(request.labels, len(labels))
            self._unwritten += len(labels)
            return self._enqueue(request)

    def change(self, change: Change, check: Callable[[Change], None] = lambda change: None) -> "Future[Receipt]":
        """Accept a change, whose number does not count. A label means the class that it means for ``submit``.

        ``check`` may refuse a change that is not the repetition of an earlier one. The receipt comes once the change is
        synced to the disk; it is made before any later batch. Raises ``RefusedError``, as may the future.
        """
        refusal = None
        try:
            check(change)  # now: it may wait for the disk, for which those who only submit samples must not
        except RefusedError as error:
            refusal = error
        with self._changed:
            if change.action == "correct":
                change = replace(change, label=self._labels.meant([change.label])[0])
            if change.key is not None and (known := self._repeated(change.key, change.digest, self.change_keys)):
                return known
            labels = (change.label,) if change.action == "correct" else ()
            if self.trainer.failed and change.action == "forget" and change.sample > self.trainer.position:
                change = replace(change, unlearned=True)
            self._refuse(labels, 0, though_stopped=change.unlearned)
            if self._unwritten_changes + self.trainer.waiting_changes >= self.limits.queue:
                raise RefusedError(429, f"{self.limits.queue} changes wait to be made, which is the most.", 1)
            if refusal is not None:
                raise refusal
            self._unwritten_changes += 1
            return self._enqueue(_QueuedRequest(labels, None, change.key, change.digest, change))

    def meant(self, label: ClassLabel) -> ClassLabel:
        """The label of the known class that this label means."""
        with self._changed:
            return self._labels.meant([label])[0]

    def _enqueue(self, request: _QueuedRequest) -> "Future[Receipt]":
        self._labels.update(request.labels)
        self._queue.append(request)
        if request.key is not None:
            self._by_key[request.key] = request
        self._changed.notify_all()
        return request.receipt

    def _repeated(self, key: str, digest: str, keys: Keys) -> "Future[Receipt] | None":
        """The receipt of the request that came before under this key; None if there was none. ``keys``: of its kind."""
        again: Future[Receipt] = Future()
        other = self.change_keys if keys is self.keys else self.keys
        if (waiting := self._by_key.get(key)) is not None:
            same = waiting.digest == digest
            waiting.receipt.add_done_callback(lambda done: _copy_receipt(done, again))
        elif other.get(key) is not None:
            same = False
        elif (known := keys.get(key)) is not None:
            same = known.digest == digest
            again.set_result(Receipt(known.first, known.samples, repeated=True))
        else:
            return None
        if not same:
            raise RefusedError(409, "this Idempotency-Key came before with another request: use a new one.")
        return again

    def _refuse(self, labels: tuple[ClassLabel, ...], samples: int, though_stopped: bool = False) -> None:
        """Raise if so many samples of these labels, or a change to one of them, cannot be accepted now.
        ``though_stopped``: it may be what lets learning go on."""
        self.refuse_if_stopping()
        if stopped := self.log.broken or (None if though_stopped else self.trainer.failed):
            raise RefusedError(503, f"learning has stopped: {stopped}")
        if samples and self.backlog + samples > self.limits.queue:
            message = f"{self.backlog} samples wait to be learned, the most there may be is {self.limits.queue}."
            raise RefusedError(429, message, max(1, min(60, round(self.trainer.step_seconds))))
        new = self._labels.new(labels)  # a model may have more classes than a lower limit allows; it keeps them
        if new and len(self._labels) + len(new) > self.limits.classes:
            message = f"the model would have more than {self.limits.classes} classes, which is the limit here."
            raise RefusedError(422, message)

    def _run(self) -> None:
        """The writing thread. It ends once it is asked to stop and nothing waits."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return
                group = self._group = self._take_group()
            number, change = self.log.last + 1, self.log.last_change + 1
            records: list[SampleRecord | Change] = []
            for one in group:
                records.append(record := one.record(number, change))
                if isinstance(record, Change):
                    change += 1
                else:
                    number = record.last + 1
            try:
                started = time.monotonic()
                self.log.append(records)
                self.metrics.log_write_seconds.observe(time.monotonic() - started)
            except Exception as error:
                self._refuse_unwritten(group, error)
            else:
                self._acknowledge(group, records)

    def _refuse_waiting(self, refusal: RefusedError) -> None:
        for one in (*self._group, *self._queue):
            answer(one.receipt, refusal)

    def _take_group(self) -> list[_QueuedRequest]:
        group, size = [self._queue.popleft()], 0
        while self._queue and size + len(group[-1].labels) < GROUP:
            size += max(1, len(group[-1].labels))
            group.append(self._queue.popleft())
        return group

    def _acknowledge(self, group: list[_QueuedRequest], records: list[SampleRecord | Change]) -> None:
        """Answer these requests, whose records are synced to the disk, and pass them on to the trainer."""
        self._failing = False
        self.catalogue.add(records)
        receipts = []
        with self._changed:
            for one, record in zip(group, records, strict=True):
                keyed = KeyedRequest.of(record)
                if isinstance(record, SampleRecord):
                    self.acknowledged = record.last
                if one.key is not None:
                    (self.change_keys if isinstance(record, Change) else self.keys).add(one.key, keyed)
                receipts.append(Receipt(keyed.first, keyed.samples))
                self._logged_labels.update(dict.fromkeys(one.labels))
            self._forget(group)
        # Only now: a checkpoint that has learned these samples must know their keys.
        self.trainer.add(records)
        for one, receipt in zip(group, receipts, strict=True):
            answer(one.receipt, receipt)
        self.metrics.acknowledged.inc(sum(len(one.labels) for one in group if one.change is None))

    def _refuse_unwritten(self, group: list[_QueuedRequest], error: Exception) -> None:
        """Refuse these requests. Their labels name no class, and their keys may be used again."""
        if not isinstance(error, WriteError):
            logger.exception("the log could not be written")
        elif not self._failing:
            logger.error("requests are refused: %s", error)
        self._failing = True
        with self._changed:
            self._forget(group)
            waiting = itertools.chain.from_iterable(one.labels for one in self._queue)
            self._labels = KnownLabels((*self._logged_labels, *waiting))
        for one in group:
            answer(one.receipt, RefusedError(503, f"nothing was learned or changed: {error}", 10))

    def _forget(self, group: list[_QueuedRequest]) -> None:
        """These requests do not wait any more."""
        for one in group:
            if one.change is None:
                self._unwritten -= len(one.labels)
            else:
                self._unwritten_changes -= 1
            if one.key is not None:
                self._by_key.pop(one.key)


def _copy_receipt(done: "Future[Receipt]", again: "Future[Receipt]") -> None:
    error = done.exception()
    if error is None:
        answer(again, Receipt(done.result().first, done.result().count, repeated=True))
    elif isinstance(error, Exception):
        answer(again, error)
