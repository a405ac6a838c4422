"""Brings a dataset into the data folder, whatever form it comes in."""

import re
from collections.abc import Callable
from pathlib import Path

from ocil.data import catalog
from ocil.data.catalog import DEFAULT, DatasetInfo
from ocil.data.check import differences
from ocil.data.cifar import LAYOUTS, read_cifar
from ocil.data.dataset import Dataset, load_npz
from ocil.data.folder import read_folder
from ocil.data.mini_imagenet import read_mini_imagenet
from ocil.errors import OcilError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def import_dataset(
    name: str,
    source: Path,
    data_dir: Path | None = None,
    size: int | None = None,
    *,
    test_share: float | None = None,
    strict: bool = False,
    note: Callable[[str], None] | None = None,
    expect: DatasetInfo | None = None,
) -> Path:
    """Read ``source``, check it, and store it as DATA_DIR/NAME.npz; returns that path.

    A catalog name takes what the catalog describes and nothing else. Any other name takes an image folder or a prepared
    .npz; an image folder without test or val has ``test_share`` of each class held out, a sixth by default. Images that
    cannot be read are left out, unless ``strict``. ``note`` gets a line about either.
    ``expect`` replaces the catalog entry, for tests with a few images.
    """
    source = source.expanduser()
    info = expect or catalog.find(name)
    if info is not None and info.name == DEFAULT:
        raise OcilError(f"'{DEFAULT}' comes with ocil and cannot be replaced. Choose another name.")
    if info is None and not NAME.fullmatch(name):
        raise OcilError(
            f"'{name}' cannot be a dataset name. Use small letters, digits, - and _, for example 'my-birds'."
        )
    if not source.exists():
        raise OcilError(f"{source} does not exist. Give the archive, folder or .npz file to import.")
    stored = info.name if info else name
    try:
        if info is None and source.is_dir():
            told = note or (lambda _: None)
            dataset = read_folder(stored, source, size, test_share=test_share, strict=strict, note=told)
        elif size is not None or test_share is not None:
            raise OcilError(
                "--size and --test-share are for an image folder; what you import has its own. Leave them out."
            )
        else:
            dataset = _read(stored, source, info)
    except OSError as error:
        raise OcilError(f"cannot read {source}: {error.strerror or error}. Check its permissions.") from error
    except MemoryError as error:
        raise OcilError(f"{source} does not fit in memory. Import fewer or smaller images.") from error
    if info is not None and (wrong := differences(dataset, info)):
        raise OcilError(f"{source} is not {info.title}: {'; '.join(wrong)}. Import it under a name of its own.")
    path = catalog.data_dir(data_dir) / f"{stored}.npz"
    dataset.save(path)
    return path


def _read(name: str, source: Path, info: DatasetInfo | None) -> Dataset:
    if source.suffix.lower() == ".npz":
        return load_npz(source, name)
    if name in LAYOUTS:
        return read_cifar(name, source)
    if info is not None:
        return read_mini_imagenet(source, info)
    raise OcilError(f"{source} is neither an image folder nor an .npz file. Give one of these.")
