"""A dataset larger than memory: a folder of raw arrays that are mapped, never loaded.

    NAME/manifest.json, train_x.raw, train_y.raw, test_x.raw, test_y.raw

The manifest has the class names and, for each array, its type, its shape and a SHA-256 digest of each part of
``PART_BYTES`` bytes. It ends with a digest of itself and names no files: what it describes lies beside it. Opening a
dataset compares sizes and the digest of the manifest; ``damage`` reads everything.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocil.data.dataset import Dataset, known_fingerprint
from ocil.data.mapped import Rows, mapped
from ocil.errors import LaterVersionError, OcilError
from ocil.files import open_regular, read_regular

MANIFEST = "manifest.json"
VERSION = 1
PART_BYTES = 64 * 2**20
MAX_MANIFEST_BYTES = 256 * 2**20
INPUTS, LABELS = ("train_x", "test_x"), ("train_y", "test_y")
INPUT_TYPES = ("uint8", "float16", "float32")
AGAIN = "Import the dataset again."


@dataclass(frozen=True)
class StoredArray:
    """What the manifest has about one array."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[str, ...]
    """The SHA-256 digest of each ``PART_BYTES`` bytes; the last part may be shorter."""

    @property
    def size(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Manifest:
    """The description of a dataset in a folder."""

    classes: tuple[str, ...]
    arrays: dict[str, StoredArray]
    unseen: int = 0

    @property
    def fingerprint(self) -> str:
        """Short digest of all images, labels and class names, from the digests of their parts."""
        return _digest(self._content())[:12]

    def to_bytes(self) -> bytes:
        content = self._content()
        return json.dumps(content | {"digest": _digest(content)}, indent=1).encode()

    def _content(self) -> dict[str, Any]:
        arrays = {name: asdict(array) for name, array in self.arrays.items()}
        return {
            "format": "ocil dataset",
            "version": VERSION,
            "part_bytes": PART_BYTES,
            "classes": list(self.classes),
            "unseen": self.unseen,
            "arrays": arrays,
        }


def is_store(path: Path) -> bool:
    """Whether a folder holds a dataset of this form, as far as its name tells."""
    return (path / MANIFEST).is_file()


def open_store(folder: Path, name: str) -> Dataset:
    """The dataset in a folder. Its images are mapped, its labels are read."""
    manifest = read_manifest(folder)
    arrays: dict[str, Any] = {}
    for key, array in manifest.arrays.items():
        path = folder / f"{key}.raw"
        try:
            arrays[key] = mapped(path, np.dtype(array.dtype).newbyteorder("<"), array.shape)
        except (OSError, ValueError, OverflowError) as error:
            raise OcilError(f"cannot read {path}: {_reason(error)}. {AGAIN}") from error
    arrays |= {key: Rows(arrays[key]).part(0, len(arrays[key])) for key in LABELS}
    dataset = Dataset(name, classes=manifest.classes, unseen=manifest.unseen, **arrays)
    return known_fingerprint(dataset, manifest.fingerprint)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder whose files have the sizes that it gives. ``OcilError`` if anything is wrong with it."""
    path = folder / MANIFEST
    try:
        content = json.loads(read_regular(path, MAX_MANIFEST_BYTES))
        manifest = _parsed(content)
        for key, array in manifest.arrays.items():
            _check_size(folder / f"{key}.raw", array.size)
    except LaterVersionError as error:
        raise OcilError(f"cannot read {path}: {error}. Update ocil.") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise OcilError(f"cannot read {path}: {_reason(error)}. {AGAIN}") from error
    return manifest


def damage(folder: Path) -> Iterator[str]:
    """Read every part and name those that are not what was written."""
    for key, array in read_manifest(folder).arrays.items():
        path = folder / f"{key}.raw"
        with os.fdopen(open_regular(path), "rb") as file:
            for number, digest in enumerate(array.parts):
                if hashlib.sha256(file.read(PART_BYTES)).hexdigest() != digest:
                    yield f"part {number} of {path.name} is damaged"


def _parsed(content: Any) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != "ocil dataset":
        raise ValueError("it is not the manifest of a dataset")
    if isinstance(content["version"], int) and content["version"] > VERSION:
        raise LaterVersionError("a later version of ocil has written it")
    if content.pop("digest") != _digest(content):
        raise ValueError("it is damaged: its digest is wrong")
    arrays = {key: _parsed_array(key, content["arrays"][key]) for key in (*INPUTS, *LABELS)}
    classes, unseen = content["classes"], content["unseen"]
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError("its classes are not a list of names")
    manifest = Manifest(tuple(classes), arrays, unseen)
    if type(unseen) is not int or _digest(manifest._content()) != _digest(content):
        raise ValueError("it has other entries than this version writes")
    return manifest


def _parsed_array(key: str, content: Mapping[str, Any]) -> StoredArray:
    array = StoredArray(content["dtype"], tuple(content["shape"]), tuple(content["parts"]))
    if array.dtype not in (INPUT_TYPES if key in INPUTS else ("int64",)):
        raise ValueError(f"the type of {key} is {str(array.dtype)[:20]!r}")
    if not all(type(side) is int and side >= 0 for side in array.shape):
        raise ValueError(f"{key} has the shape {str(list(array.shape))[:60]}")
    if len(array.parts) != -(-array.size // PART_BYTES) or not all(type(part) is str for part in array.parts):
        raise ValueError(f"{key} has {len(array.parts)} digests, which do not fit its shape")
    return array


def _check_size(path: Path, wanted: int) -> None:
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if size != wanted:
        raise ValueError(f"{path.name} has {size} bytes where the manifest has {wanted}")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | TypeError | RecursionError):
        return "it is damaged"
    return str(error)
