"""Writes a dataset larger than memory, piece by piece. It is there whole, or not at all."""

import glob
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocil.data.dataset import all_finite
from ocil.data.raw import (
    DATA_FOLDER,
    DOMAIN_LABELS,
    INPUTS,
    LABELS,
    MANIFEST,
    PART_BYTES,
    Manifest,
    StoredArray,
    is_store,
    open_store,
)
from ocil.errors import OcilError, WriteError
from ocil.files import LOCK, is_locked, locked, sync_folder, write_bytes

Split = Literal["train", "test"]
ABANDONED_SECONDS = 3600.0  # a writer that holds no lock for so long has been killed


class StoreWriter:
    """Writes a dataset to a folder; ``add`` takes samples in any number of pieces, of which none is kept in memory.

    with StoreWriter(Path("photos"), ("cat", "dog")) as writer:
        writer.add("train", images, labels)
        writer.add("test", images, labels)

    Everything goes to a temporary folder beside, which takes the name at the end of the block. If the block raises, it
    is removed. ``classes`` and ``domains`` may be set until the end of the block.

    A dataset of the same name is replaced: the temporary folder moves into its folder, and a new manifest takes the
    place of the former in one step. A process or a machine that stops at any moment leaves the former dataset or this
    one.
    """

    def __init__(
        self, path: Path | str, classes: Sequence[str] = (), unseen: int = 0, domains: Sequence[str] = ()
    ) -> None:
        path = Path(path)
        self.path, self.classes, self.unseen, self.domains = path, tuple(classes), unseen, tuple(domains)
        if path.exists() and not is_store(path) and not _is_left_over(path):
            raise WriteError(f"{path} is there and is not a dataset. Choose another name.")
        self.temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
        self._arrays: dict[str, _ArrayWriter] = {}
        self._held = ExitStack()

    def __enter__(self) -> "StoreWriter":
        _remove_abandoned(self.path)
        taken = f"another process writes to {self.temporary}."
        self._held.enter_context(locked(self.temporary, "Choose another folder.", taken))
        return self

    def add(self, split: Split, x: NDArray[Any], y: ArrayLike, domain: ArrayLike | None = None) -> None:
        """Append samples: images uint8 ``[N, H, W, C]`` or vectors ``[N, D]``, and labels that count from 0.

        ``domain``: the numbers of their domains, for all samples or for none.
        """
        labels = np.asarray(y, dtype=np.int64)
        if len(x) != len(labels):
            raise OcilError(f"{len(x)} samples came with {len(labels)} labels. There must be one label per sample.")
        if domain is not None:
            self._array(f"{split}_domain").append(np.asarray(domain, dtype=np.int64))
        if not all_finite(x):
            raise OcilError("a vector has numbers that are not finite. Leave it out or replace it.")
        self._array(f"{split}_x").append(x)
        self._array(f"{split}_y").append(labels)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for array in self._arrays.values():
                array.file.close()
            self._held.close()
            shutil.rmtree(self.temporary, ignore_errors=True)

    def _array(self, key: str) -> "_ArrayWriter":
        if key not in self._arrays:
            self._arrays[key] = _ArrayWriter(self.temporary / f"{key}.raw")
        return self._arrays[key]

    def _finish(self) -> None:
        if missing := [key for key in (*INPUTS, *LABELS) if key not in self._arrays]:
            raise OcilError(f"{self.path.name} has no {missing[0].partition('_')[0]} samples. Add at least one.")
        if any(key in self._arrays for key in DOMAIN_LABELS) != bool(self.domains):
            raise OcilError(f"{self.path.name} has domains without names, or names without domains. Give both.")
        described = {key: array.finish() for key, array in self._arrays.items()}
        manifest = Manifest(self.classes, described, self.unseen, domains=self.domains)
        write_bytes(self.temporary / MANIFEST, manifest.to_bytes())
        open_store(self.temporary, self.path.name, verify=False)  # raises what is wrong with it
        self._held.close()
        (self.temporary / LOCK).unlink(missing_ok=True)
        try:
            sync_folder(self.temporary)
            if is_store(self.path):
                self._replace(manifest)
            else:
                if self.path.exists():
                    _remove_former(self.path, "")
                self.temporary.rename(self.path)  # an empty folder may be in its place
                sync_folder(self.path.parent)
        except OSError as error:
            raise WriteError(f"cannot write {self.path}: {error.strerror}. Choose another place.") from error

    def _replace(self, manifest: Manifest) -> None:
        """Put the arrays into the folder of the former dataset. They are used from the moment its manifest is new."""
        data = f"data-{secrets.token_hex(6)}"
        with locked(self.path, "Choose another name.", f"another process replaces {self.path}."):
            (self.temporary / MANIFEST).unlink()
            self.temporary.rename(self.path / data)
            sync_folder(self.path)
            try:
                write_bytes(self.path / MANIFEST, replace(manifest, data=data).to_bytes())
            except BaseException:
                shutil.rmtree(self.path / data, ignore_errors=True)
                raise
            sync_folder(self.path)
            _remove_former(self.path, data)
            with suppress(OSError):
                (self.path / LOCK).unlink()


def _is_left_over(path: Path) -> bool:
    """Whether a folder is empty, or has nothing but arrays of a dataset whose removal was cut short."""
    names = {f"{key}.raw" for key in (*INPUTS, *LABELS, *DOMAIN_LABELS)} | {LOCK}
    return path.is_dir() and all(
        entry.name in names or DATA_FOLDER.fullmatch(entry.name) is not None for entry in path.iterdir()
    )


def _remove_former(path: Path, data: str) -> None:
    """Remove the arrays of a dataset's folder that its manifest does not name. Other files may be the user's."""
    names = [f"{key}.raw" for key in (*INPUTS, *LABELS, *DOMAIN_LABELS)]
    for name in names if data else [*names, LOCK]:
        with suppress(OSError):
            (path / name).unlink()
    for folder in path.iterdir():
        if DATA_FOLDER.fullmatch(folder.name) and folder.name != data:
            shutil.rmtree(folder, ignore_errors=True)


class _ArrayWriter:
    """Appends rows to a file and digests them part by part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows, self.row_shape, self.dtype = 0, (), np.dtype(np.uint8)
        self.parts: list[str] = []
        self._sha, self._room = hashlib.sha256(), PART_BYTES
        try:
            self.file: IO[bytes] = path.open("xb")
        except OSError as error:
            raise WriteError(f"cannot write {path}: {error.strerror}. Choose another folder.") from error

    def append(self, rows: NDArray[Any]) -> None:
        if not self.rows:
            self.row_shape, self.dtype = rows.shape[1:], rows.dtype
        if rows.shape[1:] != self.row_shape or rows.dtype != self.dtype:
            known = f"{self.dtype} {list(self.row_shape)}"
            raise OcilError(f"samples of {rows.dtype} {list(rows.shape[1:])} came after samples of {known}.")
        self.rows += len(rows)
        little = np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))
        left = little.reshape(-1).view(np.uint8).data
        while left:
            piece, left = left[: self._room], left[self._room :]
            try:
                self.file.write(piece)
            except OSError as error:
                message = f"cannot write {self.path.parent}: {error.strerror}."
                raise WriteError(f"{message} Free some space or choose another folder.") from error
            self._sha.update(piece)
            self._room -= len(piece)
            if not self._room:
                self._end_part()

    def finish(self) -> StoredArray:
        if self._room < PART_BYTES:
            self._end_part()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return StoredArray(self.dtype.name, (self.rows, *self.row_shape), tuple(self.parts))

    def _end_part(self) -> None:
        self.parts.append(self._sha.hexdigest())
        self._sha, self._room = hashlib.sha256(), PART_BYTES


def _remove_abandoned(path: Path) -> None:
    """Remove what a process left that was killed while it wrote the same dataset."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):
            old = time.time() - folder.stat().st_mtime > ABANDONED_SECONDS
            if folder.is_dir() and old and not is_locked(folder):
                shutil.rmtree(folder, ignore_errors=True)
