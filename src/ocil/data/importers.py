"""Imports a dataset into the data folder, from any form that is supported."""

import re
from collections.abc import Callable
from pathlib import Path

from ocil.data import catalog
from ocil.data.catalog import DEFAULT, DatasetInfo
from ocil.data.check import differences
from ocil.data.cifar import read_cifar
from ocil.data.dataset import Dataset, load_npz
from ocil.data.folder import read_folder
from ocil.data.mini_imagenet import read_mini_imagenet
from ocil.errors import OcilError

READERS: dict[str | None, Callable[[Path, DatasetInfo], Dataset]] = {
    "cifar": read_cifar,
    "mini_imagenet": read_mini_imagenet,
}
"""By ``DatasetInfo.reader``."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def import_dataset(
    name: str,
    source: Path,
    data_dir: Path | None = None,
    size: int | None = None,
    *,
    test_share: float | None = None,
    strict: bool = False,
    note: Callable[[str], None] = lambda _: None,
    expect: DatasetInfo | None = None,
) -> Path:
    """Read ``source``, check it, and store it as DATA_DIR/NAME.npz; returns that path.

    Under a catalog name, ``source`` must be what the catalog describes. Under any other name it is an image folder (see
    ``read_folder`` for ``size``, ``test_share``, ``strict`` and ``note``) or a prepared .npz. ``expect`` replaces the
    catalog entry, for tests with a few images.
    """
    source = source.expanduser()
    info = expect or catalog.find(name)
    if info is not None and info.name == DEFAULT:
        raise OcilError(f"'{DEFAULT}' comes with ocil and cannot be replaced. Choose another name.")
    if info is None and not NAME.fullmatch(name):
        advice = "Use small letters, digits, - and _, for example 'my-birds'."
        raise OcilError(f"'{name}' cannot be a dataset name. {advice}")
    if not source.exists():
        raise OcilError(f"{source} does not exist. Give the archive, folder or .npz file to import.")
    stored = info.name if info else name
    try:
        if info is None and source.is_dir():
            dataset = read_folder(stored, source, size, test_share=test_share, strict=strict, note=note)
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
    if info is None:
        raise OcilError(f"{source} is neither an image folder nor an .npz file. Give one of these.")
    if info.reader not in READERS:
        raise OcilError(f"{info.title} can be imported as a prepared .npz file only, which {source} is not.")
    return READERS[info.reader](source, info)
