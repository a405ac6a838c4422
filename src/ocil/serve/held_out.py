"""A held-out set, and what each version of the model knows of it."""

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ocil import tensorfile
from ocil.errors import OcilError
from ocil.online.labels import ClassLabel, decoded, encoded
from ocil.online.model import Model
from ocil.serve.labels import reading
from ocil.serve.limits import RefusedError
from ocil.serve.snapshot import Snapshots
from ocil.serve.statistics import Scored
from ocil.serve.versions import Version

if TYPE_CHECKING:
    from ocil.serve.service import Service

FILE = "held-out.safetensors"
INPUTS, LABELS = "inputs", "labels"


@dataclass(frozen=True)
class Known:
    """What a version knows, or the model that learns (``version`` None)."""

    version: Version | None
    samples: int
    """Samples that it has learned."""
    tested: int
    """Inputs of the held-out set; 0: there is none."""
    correct: int
    """How many of them it classifies correctly."""
    scored: Scored
    """By the model that learns, since this version was saved; of that model itself: in all."""


class HeldOut:
    """The held-out set of one model. Its methods take long: do not call them in a thread that others wait for."""

    def __init__(self, service: "Service") -> None:
        self.service, self.path = service, service.folder / FILE
        self._lock = threading.Lock()
        self._known: dict[tuple[int, str], int] = {}  # correct inputs by version and digest of the set

    def put(self, inputs: NDArray[Any], labels: Sequence[ClassLabel]) -> None:
        """Make these inputs, as the learner takes them, the held-out set, in the place of an earlier one."""
        texts = {LABELS: json.dumps([encoded(label) for label in labels])}
        tensorfile.write(self.path, {INPUTS: torch.from_numpy(np.array(inputs))}, texts)

    def read(self) -> tuple[NDArray[Any], list[ClassLabel]] | None:
        """Inputs and labels; None: there is no set. ``OcilError`` if it is damaged or of another model."""
        if not os.path.lexists(self.path):
            return None
        form = self.service.model.input_format
        try:
            tensors, texts = tensorfile.read(self.path)
            inputs, labels = tensors[INPUTS].numpy(), [decoded(label) for label in json.loads(texts[LABELS])]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise OcilError(f"{self.path} cannot be used: {error}. Send the held-out set again.") from error
        if (inputs.shape[1:], inputs.dtype) != (form.network_shape, form.dtype) or len(labels) != len(inputs):
            raise OcilError(f"{self.path} is not of this model, which takes {form}: send the held-out set again.")
        return inputs, labels

    def compare(self) -> list[Known]:
        """All versions, and the model as it is between two steps. A version is tested once. One call at a time."""
        if not self._lock.acquire(blocking=False):
            raise RefusedError(429, "the versions are being compared already.", 5)
        try:
            torch.set_num_threads(1)  # counts for this thread: others learn and predict
            trainer, held = self.service.trainer, self.read()
            tested = len(held[1]) if held else 0
            now, scored = trainer.between_steps(
                lambda: (trainer.model.copy(trainer.model.device), trainer.scored)
            ).result()
            found: list[Known] = []
            for version in self.service.versions:
                correct = self._correct(version, held) if held else 0
                found.append(Known(version, version.samples, tested, correct, _since(version, scored)))
            trainer.refuse_if_stopping()
            return [*found, Known(None, now.samples, tested, _correct(now, *held) if held else 0, scored)]
        finally:
            self._lock.release()

    def _correct(self, version: Version, held: tuple[NDArray[Any], list[ClassLabel]]) -> int:
        digest = hashlib.sha256(held[0].tobytes() + repr(held[1]).encode()).hexdigest()
        key = version.number, digest
        if key not in self._known:
            self.service.trainer.refuse_if_stopping()  # the process must not wait for all versions
            model = self.service.saved_versions.load(version.number, self.service.model)
            self._known = {one: count for one, count in self._known.items() if one[1] == digest}
            self._known[key] = _correct(model, *held)
        return self._known[key]


def _correct(model: Model, inputs: NDArray[Any], labels: list[ClassLabel]) -> int:
    if not model.labels:
        return 0
    found = Snapshots(model).newest
    guesses = found.probabilities(inputs).argmax(1).tolist()
    return sum(reading(found.labels[guess]) == reading(label) for guess, label in zip(guesses, labels, strict=True))


def _since(version: Version, scored: Scored) -> Scored:
    """What was predicted since a version was saved. The counts begin anew if the model is lost."""
    more = max(0, scored.samples - version.scored)
    return Scored(more, min(more, max(0, scored.correct - version.correct)))
