"""Learns labelled samples on disk in the order given. After a kill, learning goes on where the model was last saved."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ocil.errors import OcilError
from ocil.online.header import entry, reading_note, whole
from ocil.online.model import Model
from ocil.online.sources import LabelledSource
from ocil.runs.protocol import SaveTimes


class _Stopped(Exception):  # noqa: N818 # it is no error
    """Learning was asked to stop inside a batch. Nothing of that batch is saved."""


class Feed:
    """Feeds a list to a model. Batches end at the same places however often the process was stopped.

    A model that has learned the first part of the list goes on behind it. One that has learned another list is refused,
    unless ``append`` asks for this list to be learned from its beginning too.
    """

    def __init__(self, model: Model, source: LabelledSource, append: bool = False) -> None:
        self.model, self.source = model, source
        at = _noted(model)
        self.position: int = at["position"]
        self.scored: int = at["scored"]
        """Samples that were predicted before they were learned, in all lists."""
        self.correct: int = at["correct"]
        """How many of them were predicted correctly."""
        self.skipped: int = at["skipped"]
        """Samples that could not be read."""
        self.reviewed: bool = at["reviewed"] and len(source) == self.position
        """Whether the review at the end of the list is done."""
        self.problems: list[str] = []
        """Why this process skipped samples, one message each."""
        self.digest = hashlib.sha256()
        """The digest of all samples up to the position."""
        self._add_to_digest(0, min(self.position, len(source)))
        if self.position and (len(source) < self.position or self.digest.hexdigest() != at["digest"]):
            if not append:
                raise OcilError(
                    f"this list is not the one that the model has learned {self.position} samples of: names, labels or "
                    "their order differ. Give the same list, or --append to learn this one from its beginning too."
                )
            self.position, self.digest, self.reviewed = 0, hashlib.sha256(), False

    @property
    def accuracy(self) -> float | None:
        """The share of samples that were predicted correctly before they were learned."""
        return self.correct / self.scored if self.scored else None

    def step(self, after_batch: Callable[[], None] = lambda: None) -> None:
        """Predict and then learn the next batch. Samples that cannot be read are left out.

        ``after_batch`` is called after each batch of a review, if one follows. If it raises, the position stays.
        """
        end = min(self.position + self.model.recipe.batch_size, len(self.source))
        x, labels, problems = self.source.batch(self.position, end, self.model.input_format)
        if labels:
            correct = 0
            if self.model.labels:
                best = self.model.probabilities(x).argmax(1)
                correct = sum(self.model.labels[b] == label for b, label in zip(best, labels, strict=True))
            self.model.learn(x, labels, after_batch)
            self.correct += correct
            self.scored += len(labels)
        self.skipped += len(problems)
        self.problems += problems
        self._add_to_digest(self.position, end)
        self.position = end

    def _add_to_digest(self, first: int, last: int) -> None:
        for identity in self.source.identities(first, last):
            self.digest.update(identity)

    def run(
        self,
        folder: Path,
        save_seconds: float = 30.0,
        on_step: "Callable[[Feed], None]" = lambda feed: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Learn to the end of the list, saving from time to time; then review or end a task, if the model does that.

        ``on_step`` is called and ``should_stop`` asked after each batch; ``should_stop`` also inside reviews, which can
        take minutes on a CPU. Returns False if it was asked to stop; then all that the position counts is saved.
        """
        saves, stop = SaveTimes(save_seconds), False
        saved: int | None = None  # the position up to which this process has saved all

        def save() -> None:
            nonlocal saved
            self.save(folder)
            saved = self.position
            saves.note()

        def save_before_review() -> None:
            if self.model.samples and self.model.device.type == "cpu" and saved != self.position:
                save()

        def stop_inside() -> None:
            """Inside a review there is nothing to save: stop only if the model from before the batch is saved."""
            if saved == self.position and should_stop():
                raise _Stopped

        try:
            while self.position < len(self.source) and not stop:
                if self.model.review_or_task_end_next:
                    save_before_review()
                self.step(stop_inside)
                on_step(self)
                stop = should_stop()
                if self.model.samples and saves.due():
                    save()
            if not self.model.samples:
                why = f", the first because {self.problems[0]}" if self.problems else "."
                raise OcilError(f"not one of {self.position} images could be read{why}")
            if not stop and not self.reviewed and self.model.review_every:
                save_before_review()
                self.model.review_or_end_task(stop_inside)
                self.reviewed = True
        except _Stopped:
            return False
        self.save(folder)
        return not stop

    def save(self, folder: Path) -> None:
        counts = {"position": self.position, "scored": self.scored, "correct": self.correct, "skipped": self.skipped}
        self.model.note["feed"] = counts | {"reviewed": self.reviewed, "digest": self.digest.hexdigest()}
        self.model.save(folder)


def _noted(model: Model) -> dict[str, Any]:
    """Where a model was in its list, as it was saved."""
    at = {"position": 0, "scored": 0, "correct": 0, "skipped": 0, "reviewed": False, "digest": ""}
    with reading_note("its list"):
        at |= model.note.get("feed", {})
        for name in ("position", "scored", "correct", "skipped"):
            whole(at, name)
        entry(at, "reviewed", bool)
        entry(at, "digest", str)
    return at
