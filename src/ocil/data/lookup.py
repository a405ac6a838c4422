"""Datasets by name: the embedded one, those of the catalog and those that the user imported."""

import errno
import shlex
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Literal

from ocil.data import catalog, derived
from ocil.data.catalog import CATALOG, DEFAULT, SOURCES, DatasetInfo, DatasetSource
from ocil.data.dataset import Dataset, load_npz, peek_npz, renamed
from ocil.data.places import data_dirs
from ocil.data.raw import MANIFEST, is_store, open_store, read_manifest
from ocil.errors import OcilError, suggest
from ocil.files import path_or_none

Readiness = Literal["ready", "missing", "broken"]


@dataclass(frozen=True)
class ListedDataset:
    """One line of a listing. Sizes are None if the file cannot be read."""

    name: str
    title: str
    classes: int | None
    image_shape: tuple[int, ...] | None
    tasks: int | None
    train: int | None
    test: int | None
    state: Readiness
    how: str
    path: Path | None

    @property
    def ready(self) -> bool:
        return self.state == "ready"


def load(name: str | Path = DEFAULT, data_dir: Path | str | None = None, verify: bool = True) -> Dataset:
    """A dataset by name, or from the path of an .npz file or of the folder of a large one.

    A name may join or change datasets, see ``ocil.data.derived``: ``cifar10+cifar100``, ``cifar100:noise``.

    Args:
        name: A name from ``ocil datasets``, one that was imported or registered, or a path.
        data_dir: The data folder; by default ``$OCIL_DATA``, else the user's.
        verify: Compare the digests of a folder that this machine has not read before.

    Raises:
        OcilError: There is no such dataset, it has to be downloaded first, or its file is damaged.

    Examples:
        >>> data = ocil.load_dataset()
        >>> data.name, data.image_shape, data.num_classes
        ('fashion-mini', (14, 14, 1), 10)
    """
    data_dir = path_or_none(data_dir)
    if not isinstance(name, str | PathLike):
        raise OcilError(f"a dataset is loaded by its name or path, not by a {type(name).__name__}.")
    if (source := SOURCES.find(str(name))) is not None:
        return _made(source)
    if derived.is_derived(str(name)):
        return derived.make(str(name), lambda base: load(base, data_dir, verify))
    with dataset_path(name, data_dir) as path:
        return _open(path, verify)


def load_once(name: str | Path = DEFAULT, data_dir: Path | None = None) -> Dataset:
    """``load``, except that what this process opened last is opened again only if it has changed."""
    if (source := SOURCES.find(str(name))) is not None:
        return _make_once(source)
    if derived.is_derived(str(name)):
        return _derive_state(str(name), data_dir, tuple(_state(base, data_dir) for base in derived.bases_of(str(name))))
    with dataset_path(name, data_dir) as path:
        state = _state_of(path)
        return _open(path) if state is None else _load_state(*state)  # the former raises the right error


def fingerprint(name: str | Path, data_dir: Path | None = None) -> str:
    """Digest of the images and labels of a dataset."""
    return load_once(name, data_dir).fingerprint


FileState = tuple[Path, int, int, int]


def _state_of(path: Path) -> FileState | None:
    """What changes when a file or folder does; None if there is none."""
    try:
        state = (path / MANIFEST if is_store(path) else path).stat()
    except OSError:
        return None
    return path.resolve(), state.st_ino, state.st_size, state.st_mtime_ns


def _state(name: str, data_dir: Path | None) -> FileState | None:
    if SOURCES.find(name) is not None:
        return None
    with dataset_path(name, data_dir) as path:
        return _state_of(path)


@lru_cache(maxsize=1)
def _derive_state(name: str, data_dir: Path | None, state: tuple[FileState | None, ...]) -> Dataset:
    """``state`` is only a part of the cache's key, as in ``_load_state``."""
    return load(name, data_dir)


@lru_cache(maxsize=1)  # a dataset may be large, and runs come sorted by dataset
def _load_state(path: Path, *state: int) -> Dataset:
    """``state`` is only a part of the cache's key: it changes when the file does."""
    return _open(path)


def _made(source: DatasetSource) -> Dataset:
    """The dataset that the function of a plugin returns, under its registered name."""
    try:
        found: object = source.make()
    except OcilError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OcilError(
            f"the dataset '{source.name}' of {SOURCES.origin(source.name)} cannot be made: {what}"
        ) from error
    if not isinstance(found, Dataset):
        kind = type(found).__name__
        raise OcilError(
            f"the dataset '{source.name}' is made by a function that returns a {kind}, not an ocil.Dataset."
        )
    return renamed(found, source.name)


_make_once = lru_cache(maxsize=1)(_made)


def _open(path: Path, verify: bool = True) -> Dataset:
    return open_store(path, path.name, verify) if is_store(path) else load_npz(path, path.stem)


def dataset_path(name: str | Path, data_dir: Path | None = None) -> AbstractContextManager[Path]:
    """The file or folder of a dataset, for as long as the block lasts."""
    if _is_path(name):
        path = _real_path(name)
        _refuse_raw(path)
        return nullcontext(path)
    info = catalog.find(str(name))
    if info is not None and info.name == DEFAULT:
        return resources.as_file(resources.files("ocil.data") / "embedded" / f"{DEFAULT}.npz")
    return nullcontext(locate(str(name), data_dir))


def _real_path(name: str | Path) -> Path:
    """The path of a dataset, which may not be there. Raises if nothing can ever be: it names a user who does not exist,
    has a character that no file name has, or is too long."""
    path = Path(name)
    try:
        path = path.expanduser()
        path.stat()
    except (RuntimeError, ValueError) as error:
        raise OcilError(f"{str(name)!r} cannot be the path of a dataset: {str(error).removesuffix('.')}.") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise OcilError(f"cannot read a dataset from such a path: {error.strerror}.") from None
    return path


def locate(name: str, data_dir: Path | None = None) -> Path:
    """Where a catalog or imported dataset lies. If it is missing, the ``OcilError`` explains how to get it."""
    folders = data_dirs(data_dir)
    info = catalog.find(name)
    if info is not None:
        if (path := _stored(info, folders)) is None:
            raise OcilError(f"{info.title} is not in {folders[0]}. To get it: {_how(info, data_dir)}")
        return path
    imported = _imported(folders)
    if name in imported:
        return imported[name]
    for other, path in imported.items():
        if catalog.same_name(other) == catalog.same_name(name):
            return path
    _refuse_raw(Path(name))
    raise OcilError(f"there is no dataset '{name}' in {folders[0]}.{suggest(name, {*CATALOG, *SOURCES, *imported})}")


def available(data_dir: Path | None = None) -> list[ListedDataset]:
    """The catalog in its order, then what the user imported, each ready, missing or broken."""
    folders = data_dirs(data_dir)
    imported = [_user_entry(name, path) for name, path in _imported(folders).items()]
    made = [
        ListedDataset(name, "made by a plugin", None, None, None, None, None, "ready", str(SOURCES.origin(name)), None)
        for name in SOURCES
    ]
    return [_catalog_entry(info, folders) for info in CATALOG.values()] + made + imported


def in_former_folder(entries: Iterable[ListedDataset], data_dir: Path | None = None) -> str | None:
    """A line that names the datasets which lie in the folder that was the default up to version 0.2."""
    present, *former = data_dirs(data_dir)
    names = [entry.name for entry in entries if entry.path is not None and entry.path.parent in former]
    if not names:
        return None
    return f"{', '.join(names)}: in {former[0]}, the former folder of datasets. You can move them to {present}."


def _is_path(name: str | Path) -> bool:
    text = str(name)
    return isinstance(name, Path) or text.lower().endswith(".npz") or "/" in text or "\\" in text


def _refuse_raw(path: Path) -> None:
    """Raise if a path leads to images or numbers as they are, which have to be imported first."""
    try:
        is_raw = not is_store(path) if path.is_dir() else path.is_file() and path.suffix.lower() not in ("", ".npz")
    except OSError:  # a name that is too long
        return
    if is_raw:
        command = f"ocil data import NAME {shlex.quote(str(path))}"
        raise OcilError(f"{path} is not a dataset yet. Import it, then give its name: {command}")


def _imported(folders: Sequence[Path]) -> dict[str, Path]:
    """What the user imported, by name. What lies in the first folder hides what lies in the next."""
    found: dict[str, Path] = {}
    for folder in reversed(folders):
        files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
        stores = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}")) if folder.is_dir() else []
        found |= {path.stem: path for path in files} | {path.name: path for path in stores}
    own = {name: path for name, path in found.items() if catalog.find(name) is None and not path.name.startswith(".")}
    return dict(sorted(own.items()))


def _stored(info: DatasetInfo, folders: Sequence[Path]) -> Path | None:
    paths = (folder / f"{info.name}.npz" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _how(info: DatasetInfo, data_dir: Path | None) -> str:
    """How to get it into the folder that was given, if one was."""
    given = data_dir is not None and info.how.startswith("ocil data ")
    return f"{info.how} --data-dir {shlex.quote(str(data_dir))}" if given else info.how


def _catalog_entry(info: DatasetInfo, folders: Sequence[Path]) -> ListedDataset:
    stored = _stored(info, folders) if info.name != DEFAULT else None
    state: Readiness = "ready" if stored or info.name == DEFAULT else "missing"
    sizes = (info.classes, info.image_shape, info.tasks, info.train, info.test)
    return ListedDataset(info.name, info.title, *sizes, state, info.how, stored)


def peek(path: Path) -> tuple[int, tuple[int, ...], int, int]:
    """Number of classes, shape of an input, number of training and test samples, without reading the samples."""
    if not is_store(path):
        return peek_npz(path)
    manifest = read_manifest(path)
    train, test = (manifest.arrays[key].shape for key in ("train_x", "test_x"))
    return len(manifest.classes), train[1:], train[0], test[0]


def _user_entry(name: str, path: Path) -> ListedDataset:
    try:
        classes, image_shape, train, test = peek(path)
    except OcilError:
        again = f"ocil data import {name} PATH"
        return ListedDataset(name, "imported", None, None, None, None, None, "broken", again, path)
    return ListedDataset(name, "imported", classes, image_shape, None, train, test, "ready", "imported", path)
