"""Learns labelled images on disk in the order given. After a kill, learning goes on where the model was last saved."""

import csv
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocil.data.layouts import class_folders, list_images, training_folder
from ocil.errors import OcilError
from ocil.online.header import entry, reading_note, whole
from ocil.online.images import ImageFormat, InputError
from ocil.online.model import Model
from ocil.runs.protocol import SaveTimes


class Sample(NamedTuple):
    """An image file and its class."""

    name: str
    """The path in the list, relative to the folder or to that of the CSV."""
    path: Path
    label: str


def read_list(source: Path, shuffle: int | None = None) -> list[Sample]:
    """The labelled images of a list: a CSV with columns ``path`` and ``label``, or a folder CLASS/IMAGE.

    The rows of a CSV keep their order; the images of a folder are sorted by class and name. Of a folder with a split,
    only train/CLASS is read. ``shuffle``: the seed of a random order.
    """
    if source.is_dir():
        samples = _read_folder(source)
    elif source.suffix.lower() == ".csv" and source.is_file():
        samples = _read_csv(source)
    else:
        raise OcilError(f"{source} is neither a folder CLASS/IMAGE nor a .csv file with columns path and label.")
    if shuffle is not None:
        if not 0 <= shuffle < 2**32:
            raise OcilError(f"the seed {shuffle} of the random order must be from 0 to {2**32 - 1}.")
        order = np.random.RandomState(shuffle).permutation(len(samples))  # the same in every version of numpy
        samples = [samples[number] for number in order]
    return samples


def _read_folder(source: Path) -> list[Sample]:
    root = training_folder(source)
    files = [
        Sample(f"{path.parent.name}/{path.name}", path, path.parent.name)
        for path, _ in list_images(root, class_folders(root))
    ]
    if not files:
        raise OcilError(f"{root} holds no images. Lay them out as {source.name}/CLASS/IMAGE.png.")
    return files


def _read_csv(source: Path) -> list[Sample]:
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if missing := {"path", "label"} - set(reader.fieldnames or ()):
                raise OcilError(f"{source} has no column '{max(missing)}': its first line must name path and label.")
            rows = [(reader.line_num, row["path"], row["label"]) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise OcilError(f"{source} cannot be read: {error}.") from None
    for line, path, label in rows:
        if not path or not label:
            raise OcilError(f"{source}, line {line}: a path or a label is missing.")
    if not rows:
        raise OcilError(f"{source} has no rows below its first line.")
    return [Sample(path, source.parent / path, label) for _, path, label in rows]


def must_be_readable(samples: Sequence[Sample], images: ImageFormat) -> None:
    """Raise ``OcilError`` if not one of the images can be read. It stops at the first that can."""
    first: InputError | None = None
    for sample in samples:
        try:
            images.read([sample.path])
        except InputError as error:
            first = first or error
        else:
            return
    raise OcilError(f"not one of {len(samples)} images could be read, the first because {first}")


def _update(digest: "hashlib._Hash", samples: Sequence[Sample]) -> None:
    """Add names and labels in their order, not what is in the files."""
    for sample in samples:
        digest.update(f"{sample.name}\0{sample.label}\0".encode())


class _Stopped(Exception):  # noqa: N818 # it is no error
    """Learning was asked to stop inside a batch. Nothing of that batch is saved."""


class Feed:
    """Feeds a list to a model. Batches end at the same places however often the process was stopped.

    A model that has learned the first part of the list goes on behind it. One that has learned another list is refused,
    unless ``append`` asks for this list to be learned from its beginning too.
    """

    def __init__(self, model: Model, samples: list[Sample], append: bool = False) -> None:
        self.model, self.samples = model, samples
        at = _noted(model)
        self.position: int = at["position"]
        self.scored: int = at["scored"]
        """Samples that were predicted before they were learned, in all lists."""
        self.correct: int = at["correct"]
        """How many of them were predicted correctly."""
        self.skipped: int = at["skipped"]
        """Images that could not be read."""
        self.reviewed: bool = at["reviewed"] and len(samples) == self.position
        """Whether the review at the end of the list is done."""
        self.problems: list[str] = []
        """Why this process skipped images, one message each."""
        self.digest = hashlib.sha256()
        """The digest of all samples up to the position."""
        _update(self.digest, samples[: self.position])
        if self.position and (len(samples) < self.position or self.digest.hexdigest() != at["digest"]):
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
        """Predict and then learn the next batch. Images that cannot be read are left out.

        ``after_batch`` is called after each batch of a review, if one follows. If it raises, the position stays.
        """
        end = min(self.position + self.model.recipe.batch_size, len(self.samples))
        images: list[NDArray[np.uint8]] = []
        labels: list[str] = []
        problems: list[str] = []
        for sample in self.samples[self.position : end]:
            try:
                images.append(self.model.images.read([sample.path])[0])
                labels.append(sample.label)
            except InputError as error:
                problems.append(str(error))
        if labels:
            x, correct = np.stack(images), 0
            if self.model.labels:
                best = self.model.probabilities(x).argmax(1)
                correct = sum(self.model.labels[b] == label for b, label in zip(best, labels, strict=True))
            self.model.learn(x, labels, after_batch)
            self.correct += correct
            self.scored += len(labels)
        self.skipped += len(problems)
        self.problems += problems
        _update(self.digest, self.samples[self.position : end])
        self.position = end

    def run(
        self,
        folder: Path,
        save_seconds: float = 30.0,
        on_step: "Callable[[Feed], None]" = lambda feed: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Learn to the end of the list, saving from time to time, and end with a review if the method has reviews.

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
            while self.position < len(self.samples) and not stop:
                if self.model.reviews_next:
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
                self.model.review(stop_inside)
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
