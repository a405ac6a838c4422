"""What the tests of ``ocil serve`` share: images, a small model, a service that is closed in the end."""

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ocil.online.formats import InputFormat
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe, has_model, locked
from ocil.runs.environment import digest
from ocil.serve.records import Change, Cut, SampleRecord
from ocil.serve.segment import read
from ocil.serve.service import Service

RECIPE = Recipe("er", memory=20, width=1, batch_size=4)
FORM = ImageFormat((12, 12, 1))
FORGOTTEN = object()
SECONDS = 300.0  # for what takes a moment, however busy the machine is


def picture(brightness: int, number: int = 0) -> np.ndarray:
    """12x12, gray, not two alike."""
    noise = np.random.default_rng(1000 * brightness + number).integers(0, 30, (12, 12))
    return (noise + brightness).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def as_json(*samples: tuple[bytes, Any]) -> dict[str, Any]:
    return {"samples": [{"image": base64.b64encode(image).decode(), "label": label} for image, label in samples]}


@contextmanager
def running(folder: Path, recipe: Recipe = RECIPE, form: InputFormat = FORM, **options: Any) -> Iterator[Service]:
    with locked(folder):
        model = Model.load(folder, "cpu") if has_model(folder) else Model(recipe, form)
        service = Service(model, folder, **({"keep_log": True} | options))
        try:
            service.start()
            yield service
        finally:
            service.close(SECONDS)


def batches_of(folder: Path) -> list[list[tuple[int, Any, np.ndarray]]]:
    """What a kept log says was learned together."""
    pending: list[tuple[int, Any, np.ndarray]] = []
    batches = []
    for segment in sorted((folder / "log").glob("*.log")):
        for record in read(segment):
            if isinstance(record, SampleRecord):
                numbers = range(record.first, record.last + 1)
                pending += list(zip(numbers, record.labels, record.inputs, strict=True))
            elif isinstance(record, Cut):
                batches.append([one for one in pending if one[0] <= record.last])
                pending = [one for one in pending if one[0] > record.last]
    assert not pending
    return [batch for batch in batches if batch]


def changes_of(folder: Path) -> dict[int, Change]:
    """The changes in a kept log, by their numbers."""
    records = [record for path in sorted((folder / "log").glob("*.log")) for record in read(path)]
    return {record.number: record for record in records if isinstance(record, Change)}


def relearned(
    folder: Path, recipe: Recipe = RECIPE, form: InputFormat = FORM, saved: dict[int, str] | None = None
) -> Model:
    """A model that learned the same batches and was never served, stopped or loaded.

    Changes are made as the log orders them. Which memory slot holds a sample is found by its content, so all samples of
    a test must differ: nothing here uses the numbers that the service keeps. ``saved`` gets the digests of versions.
    """
    model = Model(recipe, form)
    inputs: dict[int, np.ndarray] = {}
    waiting: dict[int, Any] = {}
    changes: list[Change] = []
    made: list[Change] = []
    versions: dict[int, tuple[Model, int, int]] = {}
    labels: dict[int, Any] = {}
    position = pinned = 0

    def forgotten() -> set[int]:
        return {change.sample for change in made if change.action == "forget"}

    def newest_label(number: int) -> Any:
        corrected = [change.label for change in made if (change.action, change.sample) == ("correct", number)]
        return [labels[number], *corrected][-1]

    def slots_of(number: int) -> list[int]:
        memory = model.learner.memory
        held = memory.images[: len(memory)].numpy()
        return [slot for slot, one in enumerate(held) if one.tobytes() == inputs[number].tobytes()]

    def make(change: Change) -> None:
        nonlocal model, pinned
        made.append(change)
        if change.action == "review":
            model.review_or_end_task()
        elif change.action == "save":
            versions[change.number] = model.copy("cpu"), position, len(made)
            if saved is not None:
                saved[change.number] = digest(model.learner)
        elif change.action == "pin":
            pinned = change.version if change.version in versions or not change.version else pinned
        elif change.action == "drop":
            if change.version != pinned:
                versions.pop(change.version, None)
        elif change.action == "restore" and change.version in versions:
            kept, since, changed = versions[change.version]
            model = kept.copy("cpu")
            for one in [one for one in made[changed:-1] if one.sample]:
                if one.action == "correct" and slots_of(one.sample):
                    model.relabel(slots_of(one.sample), one.label)
                elif one.action == "forget":
                    model.forget(slots_of(one.sample))
            if change.relearn:
                again = [n for n in range(since + 1, position + 1) if n not in forgotten()]
                for first in range(0, len(again), recipe.batch_size):
                    batch = again[first : first + recipe.batch_size]
                    model.learn(np.stack([inputs[n] for n in batch]), [newest_label(n) for n in batch])
        elif change.sample in waiting:
            if waiting[change.sample] is not FORGOTTEN:
                waiting[change.sample] = change.label if change.action == "correct" else FORGOTTEN
        elif change.action == "correct" and slots_of(change.sample):
            model.relabel(slots_of(change.sample), change.label)
        elif change.action == "forget":
            model.forget(slots_of(change.sample))

    for segment in sorted((folder / "log").glob("*.log")):
        for record in read(segment):
            if isinstance(record, SampleRecord):
                numbers = range(record.first, record.last + 1)
                inputs |= dict(zip(numbers, record.inputs, strict=True))
                waiting |= dict(zip(numbers, record.labels, strict=True))
                labels |= dict(zip(numbers, record.labels, strict=True))
            elif isinstance(record, Change):
                changes.append(record)
            else:
                while changes and changes[0].number <= record.changes:
                    make(changes.pop(0))
                batch = {number: waiting.pop(number) for number in list(waiting) if number <= record.last}
                if left := [number for number in batch if batch[number] is not FORGOTTEN]:
                    model.learn(np.stack([inputs[number] for number in left]), [batch[number] for number in left])
                position = max([position, *batch])
    for change in changes:
        make(change)
    return model
