"""Arrays of one's own in an .npz file, in any of the forms that ``Dataset.from_arrays`` takes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data.archive import check_sums, names_in, read_arrays, read_headers
from ocil.data.dataset import ARRAYS, DOMAINS, MAP_FROM, VECTOR_TYPES
from ocil.data.doors import DomainOptions, from_arrays
from ocil.data.mapped import is_mapped
from ocil.data.npy import ArrayHeader
from ocil.data.samples import Note, Samples
from ocil.errors import OcilError

SAVE_AGAIN = "Save it again with numpy.savez."
PLAIN_NAMES = {"x": "train_x", "y": "train_y"}
"""What arrays may be called in a file without test samples, and what they are then."""


def is_prepared(path: Path) -> bool:
    """Whether a file has all arrays of a dataset, in the form in which ``Dataset.save`` writes them."""
    headers = read_headers(path, SAVE_AGAIN)
    if not all(key in headers for key in ARRAYS):
        return False
    labels = (headers[key].dtype for key in ("train_y", "test_y"))
    return all(dtype == np.int64 for dtype in labels) and all(_is_stored(headers[key]) for key in ("train_x", "test_x"))


def samples_in_npz(name: str, path: Path, test_share: float | None = None, note: Note | None = None) -> Samples:
    """The samples of a file with train_x and train_y, or x and y, and, if they are there, test_x and test_y, classes,
    train_domain and test_domain."""
    headers = read_headers(path, SAVE_AGAIN)
    _refuse_unusable(path, headers)
    wanted = [key for key in (*ARRAYS, *DOMAINS, *PLAIN_NAMES) if key in headers]
    found = read_arrays(path, wanted, (), SAVE_AGAIN, MAP_FROM)
    if any(map(is_mapped, found.values())):
        check_sums(path, SAVE_AGAIN)
    arrays: dict[str, Any] = {PLAIN_NAMES.get(key, key): array for key, array in found.items()}
    classes = names_in(arrays["classes"], path, SAVE_AGAIN) if "classes" in arrays else None
    options: DomainOptions = {"name": name, "classes": classes, "test_share": test_share, "note": note}
    if "train_domain" in arrays:
        options["train_domain"] = _named_domains(arrays, "train_domain", path)
        options["test_domain"] = _named_domains(arrays, "test_domain", path) if "test_domain" in arrays else None
    return from_arrays(arrays["train_x"], arrays["train_y"], arrays.get("test_x"), arrays.get("test_y"), **options)


def _is_stored(header: ArrayHeader) -> bool:
    """Whether inputs are uint8 images, channels last, or vectors of floats."""
    images = header.dtype == np.uint8 and len(header.shape) == 4 and header.shape[3] in (1, 3)
    return images or (header.dtype in VECTOR_TYPES and len(header.shape) == 2)


def _refuse_unusable(path: Path, headers: Mapping[str, ArrayHeader]) -> None:
    """Raise an ``OcilError`` if the samples or their labels are not there, or stand there twice, or are pickled."""
    for plain, key in PLAIN_NAMES.items():
        if (plain in headers) == (key in headers):
            there = ", ".join(list(headers)[:8]) or "none"
            how = "Save them as train_x and train_y, or as x and y."
            raise OcilError(f"{path} must have one array {key} or {plain}; its arrays are: {there}. {how}")
    for key in (*ARRAYS, *DOMAINS, *PLAIN_NAMES):
        if key in headers and headers[key].dtype.hasobject:
            how = f"Save text or numbers, for example {key}.astype(str)."
            raise OcilError(f"{path}: {key} holds Python objects, which are not loaded. {how}")


def _named_domains(arrays: Mapping[str, NDArray[Any]], key: str, path: Path) -> NDArray[Any]:
    """The domain of each sample, by its name if the file has an array of names."""
    numbers = arrays[key]
    if "domains" not in arrays:
        return numbers
    names = np.array(names_in(arrays["domains"], path, SAVE_AGAIN))
    if numbers.dtype.kind not in "iu" or not numbers.size or not 0 <= numbers.min() <= numbers.max() < len(names):
        raise OcilError(f"{path}: {key} must number the names in domains, from 0 to {len(names) - 1}.")
    return np.asarray(names[numbers])
