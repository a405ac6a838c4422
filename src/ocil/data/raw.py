"""A dataset larger than memory: a folder of raw arrays that are mapped, never loaded.

    NAME/manifest.json, train_x.raw, train_y.raw, test_x.raw, test_y.raw
    and, if samples have domains, train_domain.raw, test_domain.raw

The manifest has the class names and, for each array, its type, its shape and a SHA-256 digest of each part of
``PART_BYTES`` bytes. It ends with a digest of itself. What it describes lies beside it, or in a folder ``data-...``
beside it that it names: a dataset is replaced by a new folder of arrays, then by a new manifest in one atomic step, so
that at any moment one whole dataset is there.

Opening a dataset compares sizes and the digest of the manifest. The arrays are read and compared with their digests
when they are opened for the first time on a machine or have changed since: reading 12 GB at every start would take too
long. ``damage`` reads everything.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ocil.data.dataset import Dataset, known_fingerprint
from ocil.data.digests import remembered
from ocil.data.mapped import RowReader, mapped
from ocil.errors import LaterVersionError, OcilError
from ocil.files import open_regular, read_regular

MANIFEST = "manifest.json"
VERSION = 2
"""1: the arrays lie beside the manifest. 2: in a folder that it names."""
DATA_FOLDER = re.compile(r"data-[0-9a-f]{12}")
PART_BYTES = 64 * 2**20
MAX_MANIFEST_BYTES = 256 * 2**20
INPUTS, LABELS = ("train_x", "test_x"), ("train_y", "test_y")
DOMAIN_LABELS = ("train_domain", "test_domain")
HASHED_TOGETHER = 2**20  # bytes
HASH_THREADS = min(os.cpu_count() or 1, 8)
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

    @property
    def digest(self) -> str:
        """Stands for the digests of all parts."""
        return hashlib.sha256("\n".join(self.parts).encode()).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """The description of a dataset in a folder."""

    classes: tuple[str, ...]
    arrays: dict[str, StoredArray]
    unseen: int = 0
    data: str = ""
    """The folder beside the manifest that has the arrays; empty if they lie beside the manifest themselves."""
    domains: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Short digest of all images, labels and class names, from the digests of their parts."""
        return _digest(self._content())[:12]

    def to_bytes(self) -> bytes:
        content = self._content() | ({"version": 2, "data": self.data} if self.data else {})
        return json.dumps(content | {"digest": _digest(content)}, indent=1).encode()

    def file(self, folder: Path, key: str) -> Path:
        """Where an array of the dataset in a folder lies."""
        return folder / self.data / f"{key}.raw"

    def _content(self) -> dict[str, Any]:
        """What the dataset is, wherever its arrays lie."""
        arrays = {name: asdict(array) for name, array in self.arrays.items()}
        return {
            "format": "ocil dataset",
            "version": 1,
            "part_bytes": PART_BYTES,
            "classes": list(self.classes),
            "unseen": self.unseen,
            "arrays": arrays,
            **({"domains": list(self.domains)} if self.domains else {}),
        }


def is_store(path: Path) -> bool:
    """Whether a folder holds a dataset of this form, as far as its name tells."""
    return (path / MANIFEST).is_file()


def open_store(folder: Path, name: str, verify: bool = True) -> Dataset:
    """The dataset in a folder. Its images are mapped, its labels are read.

    ``verify``: read arrays that this machine has not read before, or that have changed since, and raise ``OcilError``
    if one is not what was written.
    """
    manifest = read_manifest(folder)
    try:
        return _opened(folder, name, manifest, verify)
    except OcilError:
        if (now := read_manifest(folder)).data == manifest.data:
            raise
        return _opened(folder, name, now, verify)  # it has been replaced in this moment


def _opened(folder: Path, name: str, manifest: Manifest, verify: bool) -> Dataset:
    arrays: dict[str, Any] = {}
    for key, array in manifest.arrays.items():
        path = manifest.file(folder, key)
        try:
            if verify:
                _verify(path, array)
            arrays[key] = mapped(path, np.dtype(array.dtype).newbyteorder("<"), array.shape)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, OcilError):
                raise
            raise OcilError(f"cannot read {path}: {_reason(error)}. {AGAIN}") from error
    labels = [key for key in (*LABELS, *DOMAIN_LABELS) if key in arrays]
    arrays |= {key: RowReader(arrays[key]).part(0, len(arrays[key])) for key in labels}
    dataset = Dataset(name, classes=manifest.classes, unseen=manifest.unseen, domains=manifest.domains, **arrays)
    return known_fingerprint(dataset, manifest.fingerprint)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder whose files have the sizes that it gives. ``OcilError`` if anything is wrong with it."""
    path = folder / MANIFEST
    try:
        content = json.loads(read_regular(path, MAX_MANIFEST_BYTES))
        manifest = _parsed(content)
        if manifest.data and (folder / manifest.data).is_symlink():
            raise ValueError(f"{manifest.data} is a symbolic link")
        for key, array in manifest.arrays.items():
            _check_size(manifest.file(folder, key), array.size)
    except LaterVersionError as error:
        raise OcilError(f"cannot read {path}: {error}. Update ocil.") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise OcilError(f"cannot read {path}: {_reason(error)}. {AGAIN}") from error
    return manifest


def damage(folder: Path) -> Iterator[str]:
    """Read every part and name those that are not what was written."""
    manifest = read_manifest(folder)
    for key, array in manifest.arrays.items():
        for number in _damaged_parts(manifest.file(folder, key), array):
            yield f"part {number} of {key}.raw is damaged"


def _verify(path: Path, array: StoredArray) -> None:
    """Raise an ``OcilError`` if a file is not what was written. It is read once, as long as it stays the same."""

    def read() -> str:
        if (number := next(_damaged_parts(path, array), None)) is not None:
            raise OcilError(f"{path} is damaged: its part {number} is not what was written. {AGAIN}")
        return array.digest

    if remembered(path, read) != array.digest:  # it was compared with another manifest
        read()


def _damaged_parts(path: Path, array: StoredArray) -> Iterator[int]:
    """The numbers of the parts whose digests are wrong. Several threads read the file."""
    pool = ThreadPoolExecutor(HASH_THREADS)
    try:
        found = pool.map(lambda number: _part_digest(path, number), range(len(array.parts)))
        for number, (digest, expected) in enumerate(zip(found, array.parts, strict=True)):
            if digest != expected:
                yield number
    finally:
        pool.shutdown(cancel_futures=True)  # whoever asks may want the first one only


def _part_digest(path: Path, number: int) -> str:
    sha, left = hashlib.sha256(), PART_BYTES
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        file.seek(number * PART_BYTES)
        while left and (piece := file.read(min(left, HASHED_TOGETHER))):
            sha.update(piece)
            left -= len(piece)
    return sha.hexdigest()


def _parsed(content: Any) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != "ocil dataset":
        raise ValueError("it is not the manifest of a dataset")
    if isinstance(version := content["version"], int) and version > VERSION:
        raise LaterVersionError("a later version of ocil has written it")
    if (digest := content.pop("digest")) != _digest(content):
        raise ValueError("it is damaged: its digest is wrong")
    classes, unseen, domains = content["classes"], content["unseen"], content.get("domains", [])
    for what, names in (("classes", classes), ("domains", domains)):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"its {what} are not a list of names")
    keys = (*INPUTS, *LABELS, *(DOMAIN_LABELS if domains else ()))
    arrays = {key: _parsed_array(key, content["arrays"][key]) for key in keys}
    data = content["data"] if version == 2 else ""
    if version == 2 and not (isinstance(data, str) and DATA_FOLDER.fullmatch(data)):
        raise ValueError(f"it names the folder {str(data)[:60]!r}")
    manifest = Manifest(tuple(classes), arrays, unseen, data, tuple(domains))
    if type(unseen) is not int or json.loads(manifest.to_bytes()) != content | {"digest": digest}:
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
