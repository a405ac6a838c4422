"""Labelled images on disk, learned in the order given. A process that is killed goes on where its model was saved."""

import csv
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocil.data.folder import class_folders, list_images, training_folder
from ocil.errors import OcilError
from ocil.online.header import entry, reading_note, whole
from ocil.online.images import ImageFormat, InputError
from ocil.online.model import FILE, Model
from ocil.runner import SaveTimes


class Sample(NamedTuple):
    name: str
    """As the list writes it: relative to the folder or to the CSV's folder."""
    path: Path
    label: str


def read_list(source: Path, shuffle: int | None = None) -> list[Sample]:
    """The rows of a CSV with columns ``path`` and ``label`` in their order, or the images of a folder CLASS/IMAGE,
    sorted by class and name; of a folder with a split, those of train/CLASS. ``shuffle``: seed of a random order."""
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
    """Raise if not one of the images can be read; as a rule the first can, and no other is looked at."""
    first: InputError | None = None
    for sample in samples:
        try:
            images.read([sample.path])
        except InputError as error:
            first = first or error
        else:
            return
    raise OcilError(f"not one of {len(samples)} images could be read, the first because {first}")


class Digest:
    """SHA-256 of names and labels in their order; not of what is in the files."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()

    def add(self, samples: Sequence[Sample]) -> str:
        """The digest of all that was added."""
        for sample in samples:
            self.sha.update(f"{sample.name}\0{sample.label}\0".encode())
        return self.sha.hexdigest()


class Feed:
    """A model, and how far in a list it is. Batches end at the same places however often the process was stopped.

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
        """How many of them rightly."""
        self.skipped: int = at["skipped"]
        """Images that could not be read."""
        self.reviewed: bool = at["reviewed"] and len(samples) == self.position
        """Whether the review at the end of the list is done."""
        self.problems: list[str] = []
        """What was wrong with those that this process skipped."""
        self.digest = Digest()
        known = self.digest.add(samples[: self.position])
        if self.position and (len(samples) < self.position or known != at["digest"]):
            if not append:
                raise OcilError(
                    f"this list is not the one that the model has learned {self.position} samples of: names, labels or "
                    "their order differ. Give the same list, or --append to learn this one from its beginning too."
                )
            self.position, self.digest, self.reviewed = 0, Digest(), False

    @property
    def accuracy(self) -> float | None:
        """The share of samples that were predicted rightly before they were learned."""
        return self.correct / self.scored if self.scored else None

    def step(self) -> None:
        """Predict and then learn the next batch. Images that cannot be read are left out."""
        end = min(self.position + self.model.recipe.batch_size, len(self.samples))
        images: list[NDArray[np.uint8]] = []
        labels: list[str] = []
        for sample in self.samples[self.position : end]:
            try:
                images.append(self.model.images.read([sample.path])[0])
                labels.append(sample.label)
            except InputError as error:
                self.skipped += 1
                self.problems.append(str(error))
        if labels:
            x = np.stack(images)
            if self.model.labels:
                best = self.model.probabilities(x).argmax(1)
                self.correct += sum(self.model.labels[b] == label for b, label in zip(best, labels, strict=True))
            self.scored += len(labels)
            self.model.learn(x, labels)
        self.digest.add(self.samples[self.position : end])
        self.position = end

    def run(
        self,
        folder: Path,
        save_seconds: float = 30.0,
        on_step: "Callable[[Feed], None]" = lambda feed: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Learn to the end of the list, saving from time to time, and end with a review if the method has reviews.

        False: it was asked to stop, and has saved.
        """
        saves, stop = SaveTimes(save_seconds), False
        while self.position < len(self.samples) and not stop:
            self.step()
            on_step(self)
            stop = should_stop()
            if self.model.samples and saves.due():
                self.save(folder)
                saves.note()
        if not self.model.samples:
            why = f", the first because {self.problems[0]}" if self.problems else "."
            raise OcilError(f"not one of {self.position} images could be read{why}")
        if not stop and not self.reviewed and self.model.review_every:
            self.model.review()
            self.reviewed = True
        self.save(folder)
        return not stop

    def save(self, folder: Path) -> None:
        counts = {"position": self.position, "scored": self.scored, "correct": self.correct, "skipped": self.skipped}
        self.model.note["feed"] = counts | {"reviewed": self.reviewed, "digest": self.digest.add([])}
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


def has_model(folder: Path) -> bool:
    """Whether something stands in a model's place. ``Model.load`` refuses what is none."""
    return os.path.lexists(folder / FILE)
