"""CIFAR-10 and CIFAR-100 from the published Python archive or its unpacked folder."""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data.catalog import DatasetInfo
from ocil.data.dataset import Dataset
from ocil.data.unpickle import load_pickle, text_of
from ocil.errors import OcilError

MAX_UNPACKED_BYTES = 512 * 2**20  # the published archives have 186 MB; a small one can unpack to terabytes
ROW = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    label_names: str

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.meta)


LAYOUTS = {
    "cifar10": _Layout(
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test="test_batch",
        meta="batches.meta",
        labels="labels",
        label_names="label_names",
    ),
    "cifar100": _Layout(
        folder="cifar-100-python",
        train=("train",),
        test="test",
        meta="meta",
        labels="fine_labels",
        label_names="fine_label_names",
    ),
}


def read_cifar(source: Path, info: DatasetInfo) -> Dataset:
    """``source`` is the .tar.gz (unpacked in memory, never to disk), its folder or that folder's parent."""
    name, layout = info.name, LAYOUTS[info.name]
    contents = _from_folder(source, layout) if source.is_dir() else _from_archive(source, layout)
    for file in layout.files:
        if file not in contents:
            raise OcilError(f"{source} has no file '{file}', so it is not {name} or it is cut short. Get it again.")
    batches = {file: _unpickle(source, file, contents.pop(file)) for file in layout.files}
    train = [_images_and_labels(f"{source}: {file}", batches[file], layout) for file in layout.train]
    train_x, train_y = np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])
    test_x, test_y = _images_and_labels(f"{source}: {layout.test}", batches[layout.test], layout)
    names = _class_names(f"{source}: {layout.meta}", batches[layout.meta], layout)
    return Dataset(name, train_x, train_y, test_x, test_y, names)


def _from_archive(source: Path, layout: _Layout) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    unpacked = 0
    try:
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                unpacked += member.size
                if unpacked > MAX_UNPACKED_BYTES:  # checked before its content is read or skipped
                    raise OcilError(f"{source} is far larger than it should be. Get the archive again.")
                file = PurePosixPath(member.name).name
                if file not in layout.files or file in contents or not member.isfile():
                    continue
                opened = archive.extractfile(member)
                contents[file] = opened.read() if opened else b""
                if len(contents[file]) != member.size:
                    raise EOFError
    except OcilError:
        raise
    except Exception as error:  # a broken archive can fail in any way
        raise OcilError(f"{source} is cut short or not a .tar.gz archive. Get it again.") from error
    return contents


def _from_folder(source: Path, layout: _Layout) -> dict[str, bytes]:
    inner = source / layout.folder
    folder = inner if inner.is_dir() else source
    try:
        return {file: (folder / file).read_bytes() for file in layout.files if (folder / file).is_file()}
    except OSError as error:
        raise OcilError(f"cannot read {folder}: {error.strerror or error}. Check its permissions.") from error


def _unpickle(source: Path, file: str, content: bytes) -> dict[str, Any]:
    loaded = load_pickle(io.BytesIO(content), f"{source}: '{file}'")
    if not isinstance(loaded, dict):
        raise OcilError(f"{source}: '{file}' does not hold what CIFAR files hold. Get it again.")
    return {text_of(key): value for key, value in loaded.items()}


def _images_and_labels(
    label: str, batch: dict[str, Any], layout: _Layout
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        data, labels = np.asarray(batch["data"]), np.asarray(batch[layout.labels])
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        message = f"{label} lacks 'data' or '{layout.labels}', so it is another dataset. Get it again."
        raise OcilError(message) from error
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != ROW:
        raise OcilError(f"{label} must hold uint8 rows of {ROW} values, but has {data.dtype} {list(data.shape)}.")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise OcilError(f"{label} must hold whole numbers as labels, but has {labels.dtype} {list(labels.shape)}.")
    # A row holds the red, the green and the blue plane.
    images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.astype(np.int64)


def _class_names(label: str, meta: dict[str, Any], layout: _Layout) -> tuple[str, ...]:
    names = meta.get(layout.label_names)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise OcilError(f"{label} has no list '{layout.label_names}', so it is another dataset. Get it again.")
    return tuple(text_of(name) for name in names)
