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
from ocil.serve.records import Cut, SampleRecord
from ocil.serve.segment import read
from ocil.serve.service import Service

RECIPE = Recipe("er", memory=20, width=1, batch_size=4)
FORM = ImageFormat((12, 12, 1))


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
        service.start()
        try:
            yield service
        finally:
            service.close()


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


def relearned(folder: Path, recipe: Recipe = RECIPE, form: InputFormat = FORM) -> Model:
    """A model that learned the same batches and was never served, stopped or loaded."""
    model = Model(recipe, form)
    for batch in batches_of(folder):
        model.learn(np.stack([pixels for _, _, pixels in batch]), [label for _, label, _ in batch])
    return model
