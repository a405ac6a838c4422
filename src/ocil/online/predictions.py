"""The classes of images on disk."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ocil.data.images import SUFFIXES
from ocil.errors import OcilError
from ocil.online.images import InputError
from ocil.online.labels import encoded
from ocil.online.model import SCORED_TOGETHER, Model


def image_files(paths: Sequence[Path]) -> list[Path]:
    """The paths, with the sorted images of a folder in the place of the folder."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise OcilError(f"there are no images in {path}.")
        found += inside
    return found


def predictions(model: Model, paths: Sequence[Path], top: int) -> Iterator[dict[str, Any]]:
    """For each image, in order: ``path``, ``label``, ``probability`` and the best ``top`` classes; or ``error``.

    Images are read and classified some at a time.
    """
    for first in range(0, len(paths), SCORED_TOGETHER):
        read: list[Any] = []
        for path in paths[first : first + SCORED_TOGETHER]:
            try:
                read.append(model.images.read([path])[0])
            except InputError as error:
                read.append(error)
        whole = [image for image in read if not isinstance(image, InputError)]
        found = iter(list(model.probabilities(np.stack(whole))) if whole else [])
        for path, image in zip(paths[first : first + SCORED_TOGETHER], read, strict=True):
            if isinstance(image, InputError):
                yield {"path": str(path), "error": str(image)}
                continue
            p = next(found)
            best = [
                {"label": encoded(model.labels[n]), "probability": round(float(p[n]), 6)}
                for n in np.argsort(-p, kind="stable")[:top]
            ]
            yield {"path": str(path)} | best[0] | {"top": best}
