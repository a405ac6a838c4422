"""Datasets by name: the embedded one, those of the catalog and those that the user imported."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Literal

from ocil.data import catalog
from ocil.data.catalog import CATALOG, DEFAULT, SOURCES, DatasetInfo, DatasetSource
from ocil.data.dataset import Dataset, load_npz, peek_npz
from ocil.errors import OcilError, suggest

State = Literal["ready", "missing", "broken"]


@dataclass(frozen=True)
class Entry:
    """One line of a listing. Sizes are None if the file cannot be read."""

    name: str
    title: str
    classes: int | None
    image_shape: tuple[int, ...] | None
    tasks: int | None
    train: int | None
    test: int | None
    state: State
    how: str
    path: Path | None

    @property
    def ready(self) -> bool:
        return self.state == "ready"


def load(name: str | Path = DEFAULT, data_dir: Path | None = None) -> Dataset:
    """A dataset by name, or from the path of an .npz file."""
    if (source := SOURCES.find(str(name))) is not None:
        return _made(source)
    with _file_of(name, data_dir) as path:
        return load_npz(path, path.stem)


def load_once(name: str | Path = DEFAULT, data_dir: Path | None = None) -> Dataset:
    """``load``, except that the file this process read last is read and hashed again only if it has changed."""
    if (source := SOURCES.find(str(name))) is not None:
        return _make_once(source)
    with _file_of(name, data_dir) as path:
        try:
            state = path.stat()
        except OSError:
            return load_npz(path, path.stem)  # raises the right error
        return _load_state(path.resolve(), path.stem, state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1)  # a dataset may be large, and runs come sorted by dataset
def _load_state(path: Path, name: str, *state: int) -> Dataset:
    """``state`` serves the cache alone: it changes when the file does."""
    return load_npz(path, name)


def _made(source: DatasetSource) -> Dataset:
    """The dataset that the function of a plugin returns, under its registered name."""
    try:
        found: object = source.make()
    except OcilError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OcilError(
            f"the dataset '{source.name}' of {SOURCES.origin(source.name)} cannot be made: {what}"
        ) from error
    if not isinstance(found, Dataset):
        kind = type(found).__name__
        raise OcilError(
            f"the dataset '{source.name}' is made by a function that returns a {kind}, not an ocil.Dataset."
        )
    return replace(found, name=source.name)


_make_once = lru_cache(maxsize=1)(_made)


def _file_of(name: str | Path, data_dir: Path | None) -> AbstractContextManager[Path]:
    if _is_path(name):
        return nullcontext(Path(name).expanduser())
    info = catalog.find(str(name))
    if info is not None and info.name == DEFAULT:
        return resources.as_file(resources.files("ocil.data") / "embedded" / f"{DEFAULT}.npz")
    return nullcontext(locate(str(name), data_dir))


def locate(name: str, data_dir: Path | None = None) -> Path:
    """The file of a catalog or imported dataset. If it is missing, the ``OcilError`` explains how to get it."""
    folder = _folder(data_dir)
    info = catalog.find(name)
    if info is not None:
        path = folder / f"{info.name}.npz"
        if not path.is_file():
            raise OcilError(f"{info.title} is not in {folder}. To get it: {info.how}")
        return path
    imported = _imported(folder)
    if name in imported:
        return imported[name]
    for other, path in imported.items():
        if catalog.same_name(other) == catalog.same_name(name):
            return path
    raise OcilError(f"there is no dataset '{name}' in {folder}.{suggest(name, {*CATALOG, *SOURCES, *imported})}")


def available(data_dir: Path | None = None) -> list[Entry]:
    """The catalog in its order, then what the user imported, each ready, missing or broken."""
    folder = _folder(data_dir)
    imported = [_user_entry(name, path) for name, path in _imported(folder).items()]
    made = [
        Entry(name, "made by a plugin", None, None, None, None, None, "ready", str(SOURCES.origin(name)), None)
        for name in SOURCES
    ]
    return [_catalog_entry(info, folder) for info in CATALOG.values()] + made + imported


def _folder(data_dir: Path | None) -> Path:
    folder = catalog.data_dir(data_dir)
    if folder.exists() and not folder.is_dir():
        raise OcilError(f"{folder} is a file, not the folder of the datasets. Name one with --data-dir or OCIL_DATA.")
    return folder


def _is_path(name: str | Path) -> bool:
    text = str(name)
    return isinstance(name, Path) or text.lower().endswith(".npz") or "/" in text or "\\" in text


def _imported(folder: Path) -> dict[str, Path]:
    paths = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    return {path.stem: path for path in paths if catalog.find(path.stem) is None and not path.name.startswith(".")}


def _catalog_entry(info: DatasetInfo, folder: Path) -> Entry:
    path = folder / f"{info.name}.npz"
    stored = path if info.name != DEFAULT and path.is_file() else None
    state: State = "ready" if stored or info.name == DEFAULT else "missing"
    sizes = (info.classes, info.image_shape, info.tasks, info.train, info.test)
    return Entry(info.name, info.title, *sizes, state, info.how, stored)


def _user_entry(name: str, path: Path) -> Entry:
    try:
        classes, image_shape, train, test = peek_npz(path)
    except OcilError:
        again = f"ocil data import {name} PATH"
        return Entry(name, "imported", None, None, None, None, None, "broken", again, path)
    return Entry(name, "imported", classes, image_shape, None, train, test, "ready", "imported", path)
