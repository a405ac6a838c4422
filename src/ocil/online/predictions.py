"""The classes of images and vectors on disk."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data.images import is_image_name
from ocil.data.layouts import counted_pictures
from ocil.errors import OcilError
from ocil.online.arrays import Names, is_array_file, open_rows
from ocil.online.images import ImageFormat
from ocil.online.inputs import InputError
from ocil.online.labels import encoded
from ocil.online.model import SCORED_TOGETHER, Model


def predictions(
    model: Model,
    paths: Sequence[Path],
    top: int,
    names: Names | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, Any]]:
    """For each image or row, in order: ``path``, ``row``, ``label``, ``probability`` and the best ``top`` classes; or
    ``error``.

    They are read and classified some at a time. ``names``: the arrays or columns of files of rows. ``note`` is told
    what is left out of folders.
    """
    takes_images = isinstance(model.input_format, ImageFormat)
    for path in paths:
        if is_array_file(path) == takes_images:
            what = "rows of numbers" if takes_images else "no .npy, .npz, .parquet or .csv file of numbers"
            raise OcilError(f"the model takes {model.input_format}, and {path} is {what}.")
    if takes_images:
        return _of_images(model, image_files(paths, note), top)
    return chain.from_iterable(_of_rows(model, path, top, names or Names()) for path in paths)


def image_files(paths: Sequence[Path], note: Callable[[str], None]) -> list[Path]:
    """The paths, with the sorted images of a folder in the place of the folder. ``note`` is told what is left out."""
    found: list[Path] = []
    for path in paths:
        inside = [path]
        if path.is_dir():
            files = list(path.rglob("*"))
            inside = sorted(filter(is_image_name, files))
            if left_out := counted_pictures(files):
                note(f"{path}: left out: {left_out}")
        if not inside:
            raise OcilError(f"there are no images in {path}.")
        found += inside
    return found


def _of_images(model: Model, paths: Sequence[Path], top: int) -> Iterator[dict[str, Any]]:
    for first in range(0, len(paths), SCORED_TOGETHER):
        read: list[Any] = []
        for path in paths[first : first + SCORED_TOGETHER]:
            try:
                read.append(model.input_format.read([path])[0])
            except InputError as error:
                read.append(error)
        whole = [image for image in read if not isinstance(image, InputError)]
        found = iter(list(model.probabilities(np.stack(whole))) if whole else [])
        for path, image in zip(paths[first : first + SCORED_TOGETHER], read, strict=True):
            if isinstance(image, InputError):
                yield {"path": str(path), "error": str(image)}
            else:
                yield {"path": str(path)} | _best(model, next(found), top)


def _of_rows(model: Model, path: Path, top: int, names: Names) -> Iterator[dict[str, Any]]:
    rows = open_rows(path, names)
    if (rows.size,) != model.input_format.shape:
        raise OcilError(f"the model takes {model.input_format}, and {path} has rows of {rows.size} numbers.")
    for first in range(0, len(rows), SCORED_TOGETHER):
        part = rows.read(first, min(first + SCORED_TOGETHER, len(rows)))
        for number, row in enumerate(_readable(model, part), first):
            place = {"path": str(path), "row": number}
            yield place | (
                {"error": f"row {number} of {path} {row}"} if isinstance(row, str) else _best(model, row, top)
            )


def _readable(model: Model, part: NDArray[Any]) -> list[Any]:
    """The probabilities of each row, or why it cannot be used."""
    try:
        return list(model.probabilities(model.input_format.read(part)))
    except InputError:  # then one by one, to find out which
        found: list[Any] = []
    for row in part:
        try:
            found.append(model.probabilities(model.input_format.read(row[None]))[0])
        except InputError as error:
            found.append(str(error).removeprefix("vector 0 "))
    return found


def _best(model: Model, p: NDArray[np.float64], top: int) -> dict[str, Any]:
    best = [
        {"label": encoded(model.labels[number]), "probability": round(float(p[number]), 6)}
        for number in np.argsort(-p, kind="stable")[:top]
    ]
    return best[0] | {"top": best}
