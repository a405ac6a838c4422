"""Saves the model together with its place in the log, counts, and the keys of requests."""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocil.errors import WriteError
from ocil.files import sync_folder
from ocil.online.header import entry, whole
from ocil.online.model import Model
from ocil.serve.idempotency import KeyedRequest, Keys
from ocil.serve.log import Log
from ocil.serve.metrics import Metrics
from ocil.serve.statistics import Counts

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

    def to_json(self) -> dict[str, Any]:
        keys = {key: list(request) for key, request in self.keys.items()}
        return {"position": self.position, "counts": self.counts.to_json(), "keys": keys}

    @classmethod
    def from_json(cls, content: dict[str, Any], classes: int) -> "Note":
        """A note from a model file, checked against the number of classes. Call it inside ``reading_note``."""
        content = cls().to_json() | content
        if (position := whole(content, "position")) >= MOST_SAMPLES:
            raise ValueError("its entry 'position' is not a number of samples")
        keys = entry(content, "keys", dict)
        if not all(map(_is_request, keys.values())):
            raise ValueError("its entry 'keys' is not made of requests with a first number, a count and a digest")
        counts = Counts.from_json(entry(content, "counts", dict), classes)
        return cls(position, counts, {key: KeyedRequest(*parts) for key, parts in keys.items()})


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
        position: int,
        log: Log,
        keys: Keys,
        metrics: Metrics,
        seconds: float,
        keep_log: bool,
    ) -> None:
        """``position``: the last sample that the model has learned. ``seconds``: between two checkpoints."""
        self.model, self.folder, self.log, self.keys, self.metrics = model, folder, log, keys, metrics
        self.seconds, self.keep_log = min(seconds, threading.TIMEOUT_MAX), keep_log
        self.position = position
        """The number of the last sample in the saved model."""
        self.trouble: str | None = None
        """Why the last attempt failed."""
        self._tried_at, self._batches = time.monotonic(), model.batches

    def due(self, position: int) -> bool:
        if position == self.position:
            return False
        late = time.monotonic() - self._tried_at >= self.seconds
        return late or self.model.batches - self._batches >= MOST_BATCHES

    def save(self, position: int, counts: Counts) -> None:
        """Save the model, which has learned all samples up to ``position``, and delete the log that it covers.

        If a file cannot be written, the log is still there, and the next attempt follows later.
        """
        started = self._tried_at = time.monotonic()
        try:
            self.log.sync()  # or a log that is kept could miss a cut that the checkpoint has
            self.model.note[NOTE] = Note(position, counts, self.keys.copy()).to_json()
            self.model.save(self.folder)
            sync_folder(self.folder)
            self.position, self._batches = position, self.model.batches
            if not self.keep_log:
                self.log.covered(position)
            self.trouble = None
        except (WriteError, OSError) as error:
            self.trouble = f"the model could not be saved: {error}"
            logger.error(self.trouble)
        self.metrics.checkpoint_seconds.observe(time.monotonic() - started)
