"""A model that learns and predicts at the same time."""

import logging
import time
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from ocil.errors import OcilError, WriteError
from ocil.online.header import reading_note
from ocil.online.labels import ClassLabel
from ocil.online.model import FILE, Model, has_model
from ocil.online.vectors import VectorFormat
from ocil.precision import numerics
from ocil.serve.catalogue import FILE as CATALOGUE
from ocil.serve.catalogue import Catalogue, SampleState
from ocil.serve.checkpoints import MOST_SAMPLES, NOTE, Checkpoints, Note
from ocil.serve.corrections import numbers_of
from ocil.serve.held_out import HeldOut
from ocil.serve.idempotency import Keys, restored
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.log import Log
from ocil.serve.metrics import Metrics
from ocil.serve.predictor import Predictor
from ocil.serve.records import Change
from ocil.serve.segment import read
from ocil.serve.statistics import Statistics, StoredImages
from ocil.serve.trainer import Trainer
from ocil.serve.versions import Version, Versions, checked_name
from ocil.serve.writer import Receipt, Writer

LOG = "log"

logger = logging.getLogger("ocil.serve")


class Part(Protocol):
    """Something that begins and ends with a service."""

    @property
    def broken(self) -> str | None:
        """Why it does nothing any more."""

    def start(self) -> None: ...
    def close(self) -> None: ...


class Service:
    """Owns a model and its folder, which must be locked. ``start`` it, and ``close`` it.

    ``writer.submit`` queues samples; the writer puts all that wait into the log with one sync and then acknowledges
    them. The trainer learns what is in the log, in its order, and publishes snapshots, by which the predictor answers
    ``predictor.ask``. Each of the three is a thread. Their methods and those here may be called from any thread.
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
        """``threads``: CPU threads that learning uses, as in ``Model``. Predictions use one."""
        self.model, self.folder, self.limits = model, folder, limits or Limits()
        model.threads = threads or model.threads_used
        self.metrics = Metrics()
        self.draining = False
        """The service is about to stop: it answers, but new requests should go elsewhere."""
        with reading_note("its service"):
            note = Note.from_json(model.note.get(NOTE, {}), len(model.labels))
            note.number_memory(model)
        self.log = log = Log(
            folder / LOG,
            note.position,
            model.input_format,
            set_aside=set_aside_damage,
            changes=note.changes,
            newest_is_named=note.newest_is_named,
        )
        with ExitStack() as opened:  # what is open is closed again if a later part cannot be made
            catalogue = Catalogue(folder / CATALOGUE, log.last, log.last_change, set_aside_damage)
            self.catalogue = opened.enter_context(closing(catalogue))
            self._fill_catalogue()
            opened.enter_context(numerics(model.config.precision))  # once: threads must not switch it to and fro
            keys = Keys(self.limits.keys, restored(note.keys, note.position, log.recovered.keys))
            change_keys = Keys(self.limits.keys, restored(note.change_keys, note.changes, log.recovered.change_keys))
            self.saved_versions = Versions(folder, set_aside_damage)
            self.checkpoints = Checkpoints(
                model,
                folder,
                note,
                log=log,
                catalogue=self.catalogue,
                keys=keys,
                change_keys=change_keys,
                versions=self.saved_versions,
                metrics=self.metrics,
                seconds=save_seconds,
                keep_log=keep_log,
            )
            self.trainer = Trainer(model, log, note, self.checkpoints, self.saved_versions, self.metrics)
            self.held_out = HeldOut(self)
            labels = (*model.labels, *sorted(log.recovered.labels, key=repr))
            self.writer = Writer(
                log,
                labels,
                keys=keys,
                change_keys=change_keys,
                catalogue=self.catalogue,
                trainer=self.trainer,
                limits=self.limits,
                metrics=self.metrics,
            )
            self.predictor = Predictor(self.trainer.snapshots, self.limits, self.metrics)
            self._opened = opened.pop_all()
        self.metrics.add_gauges(self.gauges)
        self.attached: list[Part] = []
        """Parts that others added."""
        self._started = False
        self._set_aside_damage = set_aside_damage

    def attach(self, part: Part) -> None:
        """A further part: it starts after the others, or now if these have started, and closes before them."""
        self.attached.append(part)
        if self._started:
            part.start()

    def start(self) -> None:
        """Begin to learn what the log holds and the model does not, and to take requests.

        ``WriteError`` if a new model cannot be written: without it, a later start could not learn what the log holds.
        ``OcilError`` if the version that predictions are pinned to cannot be used. Then ``close`` it.
        """
        if self.checkpoints.pinned:
            self._pin_again(self.checkpoints.pinned)
        if not has_model(self.folder):
            # The recipe must be on the disk before any sample.
            self.trainer.save()
            if self.checkpoints.trouble:
                raise WriteError(self.checkpoints.trouble)
        for part in (self.writer, self.trainer, self.predictor, *self.attached):
            part.start()
        self._started = True

    def close(self, finish_seconds: float = 5.0) -> None:
        """Refuse new requests, learn for at most so long, and save. The log keeps the rest for the next start."""
        stop_at = time.monotonic() + finish_seconds
        for part in reversed(self.attached):
            part.close()
        self.writer.close()  # before the trainer, which then gets all that was acknowledged
        self.trainer.finish(stop_at)
        self.predictor.close()
        self.log.close()
        self._opened.close()

    def _pin_again(self, number: int) -> None:
        """Predict by the version that predictions are pinned to."""
        try:
            version = self.saved_versions.find(number)
            if version is None:
                raise OcilError("it is missing")
            self.trainer.version_changes.pin(version)
        except OcilError as error:
            place, reason = self.saved_versions.path(number), str(error.__cause__ or error).rstrip(".")
            message = f"predictions are pinned to the version in {place}, which cannot be used: {reason}."
            if not self._set_aside_damage:
                raise OcilError(
                    f"{message} Restore its folder from a copy, or start with --set-aside-damage to predict by the "
                    "model that learns."
                ) from error
            logger.warning("%s Predictions now come from the model that learns.", message)
            self.trainer.version_changes.pin(None)
            self.trainer.save()  # the next start does not need the option

    def correct(self, number: int, label: ClassLabel, key: str | None = None) -> "Future[Receipt]":
        """Give a sample another label: in the log, in the list, in the memory, and in the queue if it still waits.

        The receipt has the number of the change, for ``wait_for_change``. ``RefusedError``: 404 for a sample that is
        not known, 409 for one that was forgotten.
        """
        return self.writer.change(Change(0, "correct", sample=number, label=label, key=key), self._check_correctable)

    def forget(self, number: int, key: str | None = None) -> "Future[Receipt]":
        """Remove a sample from the memory, or from the queue. Otherwise as ``correct``; to forget again is no error."""
        return self.writer.change(Change(0, "forget", sample=number, key=key), self._check_known)

    def review(self, key: str | None = None) -> "Future[Receipt]":
        """Relearn from the memory: a pass over all of it or, with a method that needs task ends, a task end."""
        return self.writer.change(Change(0, "review", key=key))

    def save_version(self, name: str, key: str | None = None) -> "Future[Receipt]":
        """Save the model as it is before the next batch under a name, from which it can be restored."""
        return self.writer.change(Change(0, "save", name=checked_name(name), key=key), self._check_room)

    def restore_version(self, name: str, relearn: bool = False, key: str | None = None) -> "Future[Receipt]":
        """Go back to a version; with ``relearn``, learn what came after it again, with the labels as they are now."""
        return self._change_version(name, Change(0, "restore", relearn=relearn, key=key))

    def drop_version(self, name: str, key: str | None = None) -> "Future[Receipt]":
        """Delete a version."""
        return self._change_version(name, Change(0, "drop", key=key))

    def pin_version(self, name: str | None, key: str | None = None) -> "Future[Receipt]":
        """Predict by a version while learning goes on; None: by the model that learns."""
        return self._change_version(name, Change(0, "pin", key=key))

    def _change_version(self, name: str | None, change: Change) -> "Future[Receipt]":
        """``RefusedError``: 404 if there is no version of this name, unless the request is a repetition."""
        version = next((one.number for one in self.versions if one.name == name), 0)

        def check(_: Change) -> None:
            if name is not None and not version:
                raise RefusedError(404, "there is no version of this name.")

        return self.writer.change(replace(change, name=name or "", version=version), check)

    @property
    def versions(self) -> tuple[Version, ...]:
        """All versions, from the oldest to the newest."""
        return self.saved_versions.all

    @property
    def pinned(self) -> Version | None:
        """The version that predictions come from; None: they come from the model that learns."""
        return self.saved_versions.find(self.checkpoints.pinned)

    def wait_for_change(self, change: int) -> "Future[bool]":
        """True once this change is made; False if the service stops before."""
        return self.trainer.change_waiters.wait_for(change)

    def sample(self, number: int) -> SampleState:
        """What is known of a sample. ``RefusedError`` with 404 if that is nothing."""
        found = self.catalogue.sample(number) if 0 < number < MOST_SAMPLES else None
        if found is None:
            before = "came before the service kept a list, or was lost with a part of the log"
            why = before if 0 < number <= self.writer.acknowledged else "never came"
            raise RefusedError(404, f"there is no sample {number} here: it {why}.")
        return found

    def samples(
        self,
        label: ClassLabel | None = None,
        since: float | None = None,
        until: float | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[SampleState]:
        """Samples that are not forgotten, by their numbers; see ``Catalogue.search``."""
        meant = label if label is None else self.writer.meant(label)
        return self.catalogue.search(meant, since, until, after, limit)

    def stored_input(self, number: int) -> "Future[NDArray[Any] | None]":
        """The input of a sample, as the learner takes it, if the memory still holds it; copied between two steps."""

        def find() -> NDArray[Any] | None:
            slots = numbers_of(self.model).slots_of(number)
            return self.model.learner.memory.images[slots[0]].cpu().numpy().copy() if slots else None

        return self.trainer.between_steps(find)

    def _check_known(self, change: Change) -> None:
        self.sample(change.sample)

    def _check_correctable(self, change: Change) -> None:
        if self.sample(change.sample).forgotten:
            raise RefusedError(409, f"sample {change.sample} was forgotten: send it anew.")

    def _check_room(self, change: Change) -> None:
        versions, limits = self.saved_versions, self.limits
        if any(one.name == change.name for one in versions.all):
            raise RefusedError(409, "there is a version of this name: choose another one, or delete it first.")
        if len(versions.all) >= limits.versions:
            raise RefusedError(409, f"there are {limits.versions} versions, which is the limit here: delete one.")
        if versions.bytes + (self.folder / FILE).stat().st_size > limits.versions_bytes:
            most = f"{limits.versions_bytes} bytes, which is the limit here"
            raise RefusedError(409, f"the versions would take more than {most}: delete one.")

    def _fill_catalogue(self) -> None:
        """Add what the log has: all of it to a list that is new, else what may have been lost in a crash."""
        if self.catalogue.empty:
            self.catalogue.add(self.log.records())
        else:
            for segment, end in self.log.recovered.segments:
                self.catalogue.add(read(segment.path, end))

    def stored(self, per_class: int, first: int, count: int, most: int) -> "Future[StoredImages]":
        """Some images of the memory, copied between two steps; see ``StoredImages.of``."""
        return self.trainer.between_steps(
            lambda: StoredImages.of(self.model, self.statistics, per_class, first, count, most)
        )

    @property
    def vectors(self) -> int | None:
        """Numbers of a vector; None if the model takes images."""
        form = self.model.input_format
        return form.size if isinstance(form, VectorFormat) else None

    @property
    def statistics(self) -> Statistics:
        """The model after the last step, in numbers."""
        return self.trainer.statistics

    @property
    def backlog(self) -> int:
        """Samples that are accepted and not learned yet."""
        return self.writer.backlog

    @property
    def failed(self) -> str | None:
        """Why learning has stopped for good."""
        return self.trainer.failed

    @property
    def stopped(self) -> str | None:
        """Why nothing is learned before a restart: learning has failed, or the log can no longer be written."""
        return self.failed or self.log.broken or self.writer.broken

    @property
    def problem(self) -> str | None:
        """What keeps the service from learning or saving, or one of its other threads from its work."""
        unsaved, unlisted = self.checkpoints.trouble or "", self.catalogue.broken or ""
        for_now = (self.trainer.trouble, unsaved, unlisted if unlisted not in unsaved else "")
        broken = (part.broken for part in (self.predictor, *self.attached))
        return self.stopped or "; ".join(filter(None, (*for_now, *broken))) or None

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, explanation and value of the numbers that Prometheus reads as they are now."""
        now, counts = self.statistics, self.statistics.counts
        unsaved = now.position - self.checkpoints.position
        return [
            ("ocil_model_samples", "Samples the model has learned in its life.", now.samples),
            ("ocil_model_batches", "Batches the model has learned in its life.", now.batches),
            ("ocil_samples_learned", "Samples of the log that are learned.", now.position),
            ("ocil_classes", "Classes met.", len(now.labels)),
            ("ocil_queue_samples", "Samples accepted and not learned yet.", self.backlog),
            ("ocil_predict_queue_images", "Images that wait for a prediction.", self.predictor.waiting),
            ("ocil_memory_images", "Images in the memory.", sum(now.stored)),
            ("ocil_samples_scored", "Samples predicted before they were learned.", sum(counts.learned)),
            ("ocil_samples_correct", "How many of them were predicted correctly.", sum(counts.correct)),
            ("ocil_learning_failed", "1 if learning has stopped for good.", self.stopped is not None),
            ("ocil_unsaved_samples", "Samples not in a checkpoint yet.", unsaved),
        ]
