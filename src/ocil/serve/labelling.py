"""Labelling images one after the other, the least certain first. The model learns each label at once."""

import heapq
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocil.online.images import ImageFormat
from ocil.online.labels import ClassLabel
from ocil.serve.futures import ServiceThread
from ocil.serve.idempotency import digest
from ocil.serve.labelling_store import FILE, Content, LabelChange, QueuedImage, Store, Totals
from ocil.serve.labels import reading
from ocil.serve.limits import RefusedError
from ocil.serve.predictor import TOGETHER, Prediction
from ocil.serve.service import Service

KEYS = 9  # classes that are shown with an image, each with a key
FRONT = 64  # images at the head of the queue whose order is kept up to date first
LEASE_SECONDS = 120.0  # for which an image that is shown to one person is not shown to another one
IDLE_SECONDS = 0.5
AFTER_DEFECT_SECONDS = 30.0
NEVER = 2.0  # in place of a margin that is not known: after all others

logger = logging.getLogger("ocil.serve")


class Shown(NamedTuple):
    """An image with its likeliest classes."""

    entry: QueuedImage
    classes: list[tuple[ClassLabel, float]]


class Added(NamedTuple):
    added: int
    known: int


class Labelling:
    """The queue of one service. Its methods may wait for the disk or for a prediction: do not call them in the loop.

    A change of an image is written down before it is done and again after that; the ranking thread finishes those that
    a crash left. To learn has a key, and to correct or to forget twice is as good as once, so nothing is done twice.
    """

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.limits
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._entries: dict[int, QueuedImage] = {}
        self._leases: dict[int, tuple[str, float]] = {}
        self._wanted: str | None = None
        self._ranker = Ranker(self)
        if (service.folder / FILE).exists():
            self.open()
        service.attach(self)

    @classmethod
    def of(cls, service: Service) -> "Labelling":
        """The one queue of a service."""
        return next((part for part in service.attached if isinstance(part, cls)), None) or cls(service)

    def start(self) -> None:
        """Finish what a crash left undone, and keep the order of the queue up to date from now on."""
        self._ranker.start()

    @property
    def broken(self) -> str | None:
        return self._ranker.broken

    def open(self) -> Store:
        """The database, made with the first image."""
        with self._lock:
            if self._store is None:
                if not isinstance(self.service.model.input_format, ImageFormat):
                    raise RefusedError(400, "this model takes vectors: there are no images to label.")
                self._store = Store(self.service.folder / FILE)
                self._entries = {one.number: one for one in self._store.entries()}
            return self._store

    def close(self) -> None:
        self._ranker.close()
        if self._store is not None:
            self._store.close()

    # What a person does.

    def add(self, contents: Sequence[Content]) -> Added:
        """Keep images for labelling. If there is no room, those labelled longest ago give way; waiting ones never."""
        store = self.open()
        with self._lock:
            new = store.unknown(contents)
            self._make_room(len(new), sum(one.size for one in new))
            added = store.add(new)
            self._entries |= {one.number: one for one in added}
        self._wake()
        return Added(len(added), len(contents) - len(added))

    def next(self, person: str, count: int, first: int | None = None) -> list[Shown]:
        """The images that this person should label next, with the classes that the model finds likeliest now.

        ``first``: the number of an image to begin with, as after an undo.
        """
        self.open()
        with self._lock:
            found = self._lease(person, count, first)
        if not found:
            return []
        prediction = self.service.predictor.ask(self._pixels(found)).result()
        return [_show(one, prediction, row) for one, row in zip(found, prediction.probabilities, strict=True)]

    def label(self, number: int, label: ClassLabel, again: bool = False) -> QueuedImage:
        """Give an image a label, which the model learns; or, ``again``, another one, which corrects the sample."""

        def change(one: QueuedImage) -> LabelChange:
            if one.waits == again:
                had = "no label yet" if one.waits else f"a label already: {reading(one.label)}"
                raise RefusedError(409, f"this image has {had}.")
            return LabelChange("correct" if again else "learn", label)

        return self._change(number, change)

    def unlabel(self, number: int) -> QueuedImage:
        """Put an image back into the queue. The model forgets the sample."""

        def change(one: QueuedImage) -> LabelChange:
            if one.waits:
                raise RefusedError(409, "this image has no label.")
            return LabelChange("forget")

        return self._change(number, change)

    def skip(self, number: int, skips: int) -> None:
        """Put an image off, behind all that were put off less often. -1 takes that back."""
        with self._lock:
            one = self._waiting(number)
            skips = max(0, one.skips + skips)
            self.open().save(replace(one, skips=skips))
            one.skips = skips
            self._leases.pop(number, None)

    def remove(self, number: int) -> None:
        """Take an image out of the queue for good."""
        with self._lock:
            self._waiting(number)
            self.open().remove(number)
            del self._entries[number]

    # What the page shows.

    def of_class(self, label: ClassLabel, first: int, count: int) -> tuple[int, list[QueuedImage]]:
        """How many images have this label, and some of them, the doubtful first."""
        self.open()
        name = reading(label)
        with self._lock:
            found = [one for one in self._entries.values() if not one.waits and reading(one.label) == name]
            found.sort(key=lambda one: (NEVER if one.certainty is None else one.certainty, one.number))
            self._wanted = name
        self._wake()
        return len(found), found[first : first + count]

    def image(self, number: int, thumbnail: bool) -> bytes:
        found = self.open().content(number, "thumbnail" if thumbnail else "preview")
        if found is None:
            raise RefusedError(404, f"there is no image {number}.")
        return found

    def counts(self) -> tuple[int, int, dict[str, int]]:
        """Images that wait, those that were put off among them, and labelled images per class, by how it reads."""
        self.open()
        with self._lock:
            waiting = [one for one in self._entries.values() if one.waits]
            classes = Counter(reading(one.label) for one in self._entries.values() if not one.waits)
        return len(waiting), sum(one.skips > 0 for one in waiting), dict(classes)

    def totals(self) -> Totals:
        return self.open().totals()

    # How it is done.

    def _lease(self, person: str, count: int, first: int | None) -> list[QueuedImage]:
        """The next images for a person, which others are not shown for a while, unless there are no others."""
        now = time.monotonic()
        self._leases = {number: one for number, one in self._leases.items() if one[1] > now}
        taken = {number for number, (who, _) in self._leases.items() if who != person}
        waiting = [one for one in self._entries.values() if one.waits and not one.change]
        free = [one for one in waiting if one.number not in taken] or waiting
        begin = [one for one in waiting if one.number == first]
        then = [one for one in heapq.nsmallest(count, free, _order) if one.number != first]
        found = (begin + then)[:count]
        self._leases |= {one.number: (person, now + LEASE_SECONDS) for one in found}
        return found

    def _make_room(self, count: int, size: int) -> None:
        entries = [one for one in self._entries.values() if one.bytes]
        old = sorted((one for one in entries if not one.waits and not one.change), key=lambda one: one.sample or 0)
        over = len(entries) + count - self.limits.label_images
        heavy = sum(one.bytes for one in entries) + size - self.limits.label_bytes
        dropped = []
        for one in old:
            if over <= 0 and heavy <= 0:
                break
            over, heavy = over - 1, heavy - one.bytes
            dropped.append(one)
        if over > 0 or heavy > 0:
            most = f"{self.limits.label_images} images and {self.limits.label_bytes / 2**20:g} MiB"
            raise RefusedError(413, f"the queue is full: it takes {most}. Label some of its images first.")
        if dropped:
            self.open().save(*(replace(one, bytes=0) for one in dropped))
        for one in dropped:
            one.bytes = 0
            del self._entries[one.number]

    def _entry(self, number: int) -> QueuedImage:
        self.open()
        one = self._entries.get(number)
        if one is None or not one.bytes:
            raise RefusedError(404, f"there is no image {number}.")
        if one.change is not None:
            raise RefusedError(409, "this image is being labelled already.", 1)
        return one

    def _waiting(self, number: int) -> QueuedImage:
        one = self._entry(number)
        if not one.waits:
            raise RefusedError(409, f"this image has a label already: {reading(one.label)}.")
        return one

    def _change(self, number: int, change: Callable[[QueuedImage], LabelChange]) -> QueuedImage:
        with self._lock:
            one = self._entry(number)
            wanted = change(one)
            noted = replace(one, change=wanted)
            if wanted.verb == "learn":
                noted.turn += 1
                while self.service.writer.keys.get(_key(noted)) is not None:  # of another database, which was lost
                    noted.turn += 1
            self.open().save(noted)  # before anything else: if the disk is full, the image stays as it was
            one.change, one.turn = wanted, noted.turn
        self._carry_out(one, wanted)
        return one

    def _carry_out(self, one: QueuedImage, change: LabelChange) -> None:
        """Do what was written down. A refusal leaves the image as it was."""
        try:
            if change.verb == "learn":
                inputs = self._pixels([one])
                sent = self.service.writer.submit(inputs, [change.label], _key(one), digest(inputs, [change.label]))
                sample: int | None = sent.result().first
            elif change.verb == "correct":
                self.service.correct(one.sample or 0, change.label).result()
                sample = one.sample
            else:
                forget_if_known(self.service, one.sample or 0)
                sample = None
        except Exception:
            with self._lock:
                one.change = None
                self.open().save(one)
            raise
        with self._lock:
            if change.verb == "learn":
                one.correct = reading(one.likeliest) == reading(change.label) if one.shown else None
                one.skips = 0
            elif change.verb == "forget":
                one.correct = None
            one.sample, one.label = sample, change.label
            one.certainty, one.scored, one.shown, one.change = None, -1, False, None
            self.open().save(one)
        self._wake()

    def _pixels(self, entries: Sequence[QueuedImage]) -> NDArray[Any]:
        form, store = self.service.model.input_format, self.open()
        found = [store.content(one.number, "pixels") for one in entries]
        images = [np.frombuffer(one, form.dtype) for one in found if one is not None]
        size = int(np.prod(form.network_shape))
        if len(images) != len(entries) or any(len(one) != size for one in images):
            raise RefusedError(409, "an image of the queue is gone, or was kept for a model of another size.")
        return np.stack([one.reshape(form.network_shape) for one in images])

    def _wake(self) -> None:
        self._ranker.wake()

    # What the ranking thread does.

    def finish_changes(self) -> None:
        """Do what a crash left undone."""
        with self._lock:
            left = [(one, one.change) for one in self._entries.values() if one.change is not None]
        for one, change in left:
            try:
                self._carry_out(one, change)
            except RefusedError:
                continue

    def rank_some(self) -> bool:
        """Predict some images again whose predictions are of another model. False if there are none."""
        with self._lock:
            chosen = self._stale()
        if not chosen:
            return False
        found = self.service.predictor.ask(self._pixels(chosen)).result()
        columns = {reading(label): number for number, label in enumerate(found.labels)}
        with self._lock:
            for one, row in zip(chosen, found.probabilities, strict=True):
                if one.waits:
                    one.certainty = margin(row)
                else:
                    column = columns.get(reading(one.label))
                    one.certainty = 0.0 if column is None else float(row[column])
                one.scored = found.samples
        return True

    def _stale(self) -> list[QueuedImage]:
        """Up to a pass of images: new ones, those at the head of the queue, those of the class that is looked at."""
        current = self.service.predictor.snapshots.current  # not the model, if predictions are pinned to a version
        if not current.labels:
            return []
        stale = [one for one in self._entries.values() if one.scored != current.samples and one.bytes]
        if not stale:
            return []
        front = {one.number for one in heapq.nsmallest(FRONT, (o for o in self._entries.values() if o.waits), _order)}

        def urgency(one: QueuedImage) -> tuple[int, int]:
            if one.waits:
                rank = 0 if one.certainty is None else 1 if one.number in front else 3
            else:
                rank = 2 if reading(one.label) == self._wanted else 4
            return rank, one.scored

        return heapq.nsmallest(TOGETHER, stale, urgency)


class Ranker(ServiceThread):
    """Keeps the order of the queue up to date while the model learns. It takes at most half of a predictor's time."""

    def __init__(self, labelling: Labelling) -> None:
        super().__init__("ocil-rank")
        self.labelling = labelling

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        self.labelling.finish_changes()
        while not self._stopping:
            started = time.monotonic()
            try:
                pause = time.monotonic() - started if self.labelling.rank_some() else IDLE_SECONDS
            except RefusedError:  # too many predictions wait, or the model cannot predict for now
                pause = IDLE_SECONDS
            except Exception:  # such as too little memory for once
                logger.exception("the images could not be put in order")
                pause = AFTER_DEFECT_SECONDS
            with self._changed:
                if not self._stopping:
                    self._changed.wait(pause)


def margin(probabilities: NDArray[np.float64]) -> float:
    """The likeliest class's probability less the second one's: 0 where the model cannot tell them apart."""
    if len(probabilities) < 2:
        return 1.0
    second, first = np.partition(probabilities, -2)[-2:]
    return float(first - second)


def forget_if_known(service: Service, sample: int) -> None:
    """Have the model forget a sample. One that is not known any more is as good as forgotten."""
    try:
        service.forget(sample).result()
    except RefusedError as error:
        if error.status != 404:
            raise


def _key(one: QueuedImage) -> str:
    """The Idempotency-Key under which the model is given an image this time."""
    return f"label-{one.number}-{one.turn}"


def _order(one: QueuedImage) -> tuple[int, float, int]:
    return one.skips, NEVER if one.certainty is None else one.certainty, one.number


def _show(one: QueuedImage, found: Prediction, row: NDArray[np.float64]) -> Shown:
    likeliest = np.argsort(-row, kind="stable")[:KEYS]
    classes = [(found.labels[n], min(1.0, float(row[n]))) for n in likeliest]
    one.shown = bool(classes)
    one.likeliest = classes[0][0] if classes else None
    return Shown(one, classes)
