"""Saves the model together with its place in the log, counts, and the keys of requests."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ocil.errors import WriteError
from ocil.files import sync_folder
from ocil.online.header import entry, whole
from ocil.online.model import Model
from ocil.serve.catalogue import Catalogue
from ocil.serve.corrections import numbers_of
from ocil.serve.idempotency import KeyedRequest, Keys
from ocil.serve.log import Log
from ocil.serve.metrics import Metrics
from ocil.serve.segment import DamagedError
from ocil.serve.statistics import Counts, Scored
from ocil.serve.versions import Versions

NOTE = "serve"  # the service's entry in the note of a model
MOST_BATCHES = 1000  # between two checkpoints
MOST_SAMPLES = 2**63

logger = logging.getLogger("ocil.serve")


@dataclass(frozen=True)
class Note:
    """What the service keeps with its model."""

    position: int = 0
    """The number of the last sample of the log that the model has learned."""
    counts: Counts = field(default_factory=Counts)
    keys: Mapping[str, KeyedRequest] = field(default_factory=dict)
    changes: int = 0
    """The number of the last change that was made."""
    change_keys: Mapping[str, KeyedRequest] = field(default_factory=dict)
    numbers: Sequence[int] = ()
    """Of the samples in the memory's slots; 0: not known. Fewer than slots: the others are not known."""
    learned: int = 0
    """Samples that the model had learned in its life. If it has learned more since, by other means, ``numbers`` are of
    another memory."""
    pinned: int = 0
    """The version that predictions come from; 0: the model itself."""
    scored: Scored = field(default_factory=Scored)
    """In the service's life. A version that is restored does not bring back its own."""
    newest_is_named: bool = False
    """Whether the version of ocil that saved it names the newest file of the log, see ``ocil.serve.newest``."""

    def to_json(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "counts": self.counts.to_json(),
            "keys": {key: list(request) for key, request in self.keys.items()},
            "changes": self.changes,
            "change_keys": {key: list(request) for key, request in self.change_keys.items()},
            "numbers": list(self.numbers),
            "learned": self.learned,
            "pinned": self.pinned,
            "scored": list(self.scored),
            "newest_is_named": self.newest_is_named,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any], classes: int) -> "Note":
        """A note from a model file, checked against the number of classes. Call it inside ``reading_note``."""
        content = cls().to_json() | content
        position, changes, learned = (whole(content, name) for name in ("position", "changes", "learned"))
        if max(position, changes, learned) >= MOST_SAMPLES:
            raise ValueError("its entries 'position', 'changes' and 'learned' are not numbers of samples and changes")
        numbers = entry(content, "numbers", list)
        if not all(type(number) is int and 0 <= number < MOST_SAMPLES for number in numbers):
            raise ValueError("its entry 'numbers' is not made of numbers of samples")
        counts = Counts.from_json(entry(content, "counts", dict), classes)
        keys, change_keys = (_requests(content, name) for name in ("keys", "change_keys"))
        scored = entry(content, "scored", list)
        if [type(number) for number in scored] != [int, int] or not 0 <= scored[1] <= scored[0]:
            raise ValueError("its entry 'scored' is not made of two counts")
        return cls(
            position=position,
            counts=counts,
            keys=keys,
            changes=changes,
            change_keys=change_keys,
            numbers=numbers,
            learned=learned,
            pinned=whole(content, "pinned"),
            scored=Scored(*scored),
            newest_is_named=entry(content, "newest_is_named", bool),
        )

    def number_memory(self, model: Model) -> None:
        """Let the model's memory know the numbers of its samples, as far as they are known, and keep count."""
        of_slot = numbers_of(model).of_slot
        if self.learned == model.samples and len(self.numbers) < len(of_slot):
            of_slot[: len(self.numbers)] = torch.tensor(self.numbers, dtype=torch.int64)


def _requests(content: dict[str, Any], name: str) -> dict[str, KeyedRequest]:
    keys = entry(content, name, dict)
    if not all(map(_is_request, keys.values())):
        raise ValueError(f"its entry '{name}' is not made of requests with a first number, a count and a digest")
    return {key: KeyedRequest(*parts) for key, parts in keys.items()}


def _is_request(parts: Any) -> bool:
    """Whether a list has the parts of a ``KeyedRequest``."""
    kinds = [type(part) for part in parts] if isinstance(parts, list) else []
    return kinds == [int, int, str] and all(0 < number < MOST_SAMPLES for number in parts[:2])


class Checkpoints:
    """The learning thread asks whether a checkpoint is due, and makes it. Others only read the attributes."""

    def __init__(
        self,
        model: Model,
        folder: Path,
        saved: Note,
        *,
        log: Log,
        catalogue: Catalogue,
        keys: Keys,
        change_keys: Keys,
        versions: Versions,
        metrics: Metrics,
        seconds: float,
        keep_log: bool,
    ) -> None:
        """``saved``: what was saved with the model. ``seconds``: between two checkpoints."""
        self.model, self.folder, self.log, self.catalogue, self.metrics = model, folder, log, catalogue, metrics
        self.keys, self.change_keys, self.versions = keys, change_keys, versions
        self.pinned = saved.pinned
        self.seconds, self.keep_log = min(seconds, threading.TIMEOUT_MAX), keep_log
        self.position, self.changes = saved.position, saved.changes
        """The numbers of the last sample and of the last change in the saved model."""
        self.trouble: str | None = None
        """Why the last attempt failed."""
        self._tried_at, self._tried_batches = time.monotonic(), model.batches

    def behind(self, position: int, changes: int) -> bool:
        """Whether the saved model lacks samples or changes up to these."""
        return (position, changes) != (self.position, self.changes)

    def due(self, position: int, changes: int) -> bool:
        if not (self.trouble or self.behind(position, changes)):
            return False
        late = time.monotonic() - self._tried_at >= self.seconds
        return late or self.model.batches - self._tried_batches >= MOST_BATCHES

    def note(self, position: int, counts: Counts, changes: int, scored: Scored) -> Note:
        """What is to be known of the model beside it, after these samples and changes."""
        return Note(
            position=position,
            counts=counts,
            keys=self.keys.copy(),
            changes=changes,
            change_keys=self.change_keys.copy(),
            numbers=numbers_of(self.model).of_slot[: len(self.model.learner.memory)].tolist(),
            learned=self.model.samples,
            pinned=self.pinned,
            scored=scored,
            newest_is_named=True,
        )

    def _commit_list(self) -> None:
        if self.catalogue.broken:
            self.catalogue.mend(self.log.records())
        self.catalogue.commit()

    def save(self, note: Note) -> None:
        """Save the model with this note, and delete the log that it covers and that no version needs.

        If a file cannot be written, the log is still there, and the next attempt follows later.
        """
        started, failed = time.monotonic(), "the model could not be saved"
        self._tried_at, self._tried_batches = started, self.model.batches
        try:
            self.log.sync()  # or a log that is kept could miss a cut that the checkpoint has
            self._commit_list()  # before the model: a start reads only what follows it in the log
            self.model.note[NOTE] = note.to_json()
            self.model.save(self.folder)
            sync_folder(self.folder)
            self.position, self.changes = note.position, note.changes
            failed = "the log of what the saved model has learned could not be deleted"
            self.log.forget_newest_if_saved(note.position, note.changes)
            if not self.keep_log:
                needed, later = self.versions.needed_from, self.versions.changes_needed_from
                position = note.position if needed is None else min(note.position, needed - 1)
                kept = note.changes if later is None else min(note.changes, later)
                self.log.delete_covered_segments(position, note.changes, kept)
            self.trouble = None
        except (WriteError, DamagedError, OSError, MemoryError) as error:
            self.trouble = f"{failed}: {str(error) or type(error).__name__}"
            logger.error(self.trouble)
        self.metrics.checkpoint_seconds.observe(time.monotonic() - started)
