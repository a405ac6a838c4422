"""Imports a dataset into the data folder, from any form that is supported."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from ocil.data import catalog
from ocil.data.catalog import DEFAULT, DatasetInfo
from ocil.data.check import differences
from ocil.data.cifar import read_cifar
from ocil.data.dataset import Dataset, load_npz
from ocil.data.folder import ImageFiles
from ocil.data.mini_imagenet import read_mini_imagenet
from ocil.data.npy_folder import samples_in_npy_folder
from ocil.data.npz_arrays import is_prepared, samples_in_npz
from ocil.data.number_table import NumberTable, is_number_table
from ocil.data.places import data_dir as folder_of
from ocil.data.raw import MANIFEST, is_store, open_store
from ocil.data.raw_writer import StoreWriter
from ocil.data.samples import OnProgress, Samples
from ocil.data.split import split_again
from ocil.data.table_samples import samples_in_table
from ocil.errors import OcilError, WriteError
from ocil.files import first_existing
from ocil.text import bytes_text

READERS: dict[str | None, Callable[[Path, DatasetInfo], Dataset]] = {
    "cifar": read_cifar,
    "mini_imagenet": read_mini_imagenet,
}
"""By ``DatasetInfo.reader``."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
NPZ_BYTES = 2**30
"""A dataset whose images take more than this is stored as a folder of raw arrays, else as one .npz file."""

Form = Literal["auto", "npz", "folder"]


def import_dataset(
    name: str,
    source: Path,
    data_dir: Path | None = None,
    size: int | None = None,
    *,
    test_share: float | None = None,
    random_split: int | None = None,
    strict: bool = False,
    form: Form = "auto",
    note: Callable[[str], None] = lambda _: None,
    progress: OnProgress = lambda _done, _total: None,
    expect: DatasetInfo | None = None,
) -> Path:
    """Read ``source``, check it, and store it as DATA_DIR/NAME.npz or, if it is large, as the folder DATA_DIR/NAME.

    Returns that path. Under a catalog name, ``source`` must be what the catalog describes. Under any other name it is a
    folder of images or a label file (see ``ImageFiles`` for ``size``, ``test_share``, ``strict`` and ``note``), a
    folder of .npy arrays, a CSV of numbers, an .npz file, or a folder that was imported before. ``random_split`` is
    the seed by which the samples of a prepared .npz are split again, see ``split_again``. ``form`` decides whether a
    dataset of one's own becomes a file or a folder, instead of its size. ``expect`` replaces the catalog entry, for
    tests with a few images.
    """
    source, info = source.expanduser(), expect or catalog.find(name)
    _refuse_impossible(name, source, info, form, random_split)
    target = folder_of(data_dir) / (info.name if info else name)
    with _reading(source):
        if info is None and _holds_pictures(source):
            images = ImageFiles(source, size, test_share=test_share, strict=strict, note=note)
            return _store_images(images, target, form, progress)
        is_unknown = info is None and not _holds_numbers(source)  # which is refused below
        if not is_unknown and (size is not None or (test_share is not None and not _has_no_split(source))):
            raise OcilError("--size and --test-share are for images; what you import has its own. Leave them out.")
        samples = _read(target.name, source, info, test_share, note)
        if random_split is not None:
            samples = Samples.of(split_again(samples.to_dataset(), random_split))
        if info is None and _as_folder(form, samples.nbytes):
            samples.write(target, progress)
            return _only_form(target)
        dataset = samples.to_dataset()
    if info is not None and (wrong := differences(dataset, info)):
        raise OcilError(f"{source} is not {info.title}: {'; '.join(wrong)}. Import it under a name of its own.")
    return _save_npz(dataset, target)


def _refuse_impossible(name: str, source: Path, info: DatasetInfo | None, form: Form, random_split: int | None) -> None:
    """Raise an ``OcilError`` for what cannot be imported, before anything is read."""
    if info is not None and info.name == DEFAULT:
        raise OcilError(f"'{DEFAULT}' comes with ocil and cannot be replaced. Choose another name.")
    if info is None and not NAME.fullmatch(name):
        advice = "Use small letters, digits, - and _, for example 'my-birds'."
        raise OcilError(f"'{name}' cannot be a dataset name. {advice}")
    if info is not None and form == "folder":
        raise OcilError(f"{info.title} is stored as one file. Leave out --form.")
    if not source.exists():
        raise OcilError(f"{source} does not exist. Give the archive, folder or .npz file to import.")
    if random_split is not None and source.suffix.lower() != ".npz":
        raise OcilError(f"--random-split is for a prepared .npz file, which {source} is not. Leave it out.")


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    """What the system says about ``source`` inside the block becomes an ``OcilError``."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise OcilError(f"cannot read {source}: {error.strerror or error}. Check its permissions.") from error
    except MemoryError as error:
        raise OcilError(f"{source} does not fit in memory. Import fewer or smaller images.") from error


def _store_images(images: ImageFiles, target: Path, form: Form, progress: OnProgress) -> Path:
    """Decode images into a folder; of a few of them, make one file."""
    if images.nbytes > (left := free_bytes(target.parent)):
        sizes = f"these images need {bytes_text(images.nbytes)}, and {target.parent} has {bytes_text(left)} left"
        raise OcilError(f"{sizes}. Make them smaller with --size N, or choose another folder with --data-dir.")
    if _as_folder(form, images.nbytes):
        with StoreWriter(target) as writer:
            images.write(writer, progress)
        return _only_form(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place = TemporaryDirectory(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise WriteError(f"cannot write {target.parent}: {error.strerror}. Choose another folder.") from error
    with place as temporary:
        with StoreWriter(Path(temporary) / target.name) as writer:
            images.write(writer, progress)
        return _save_npz(open_store(writer.path, target.name, verify=False), target)


def free_bytes(folder: Path) -> int:
    """The free space of the disk that a folder, which may not be there yet, lies on."""
    return shutil.disk_usage(first_existing(folder)).free


def _as_folder(form: Form, size: int) -> bool:
    return form == "folder" or (form == "auto" and size > NPZ_BYTES)


def _save_npz(dataset: Dataset, target: Path) -> Path:
    path = target.with_name(f"{target.name}.npz")
    dataset.save(path)
    return _only_form(path)


def _only_form(path: Path) -> Path:
    """Remove the other form of a dataset that has just been stored at ``path``: a name stands for one dataset."""
    if path.suffix == ".npz":
        if is_store(other := path.with_suffix("")):
            with suppress(OSError):
                (other / MANIFEST).unlink()  # at first: a folder without it is no dataset
                shutil.rmtree(other, ignore_errors=True)
    else:
        with suppress(OSError):
            path.with_name(f"{path.name}.npz").unlink()
    return path


def _holds_pictures(source: Path) -> bool:
    """Whether a source is a folder or a list of image files, and not of arrays."""
    if source.is_dir():
        return not is_store(source) and not _is_npy_folder(source)
    return source.suffix.lower() == ".csv" and not is_number_table(source)


def _holds_numbers(source: Path) -> bool:
    """Whether a source has arrays or a table of numbers."""
    is_file = source.suffix.lower() == ".npz" or is_number_table(source)
    return is_file or is_store(source) or _is_npy_folder(source)


def _is_npy_folder(source: Path) -> bool:
    return (source / "train_x.npy").is_file()


def _has_no_split(source: Path) -> bool:
    """Whether samples may be held out of these vectors or images for a test."""
    if source.suffix.lower() == ".npz":
        return not is_prepared(source)
    return _is_npy_folder(source) or is_number_table(source)


def _read(
    name: str, source: Path, info: DatasetInfo | None, test_share: float | None, note: Callable[[str], None]
) -> Samples:
    if source.suffix.lower() == ".npz":
        if info is None and not is_prepared(source):
            return samples_in_npz(name, source, test_share, note)
        return Samples.of(load_npz(source, name))
    if info is None and is_store(source):
        return Samples.of(open_store(source, name))
    if info is None and _is_npy_folder(source):
        return samples_in_npy_folder(name, source, test_share, note)
    if info is None and is_number_table(source):
        return samples_in_table(name, NumberTable.read(source), test_share, note)
    if info is None:
        how = "Give a folder of images, a label file or table that ends in .csv, or arrays in an .npz file."
        raise OcilError(f"{source} is in none of the forms that can be imported. {how}")
    if info.reader not in READERS:
        raise OcilError(f"{info.title} can be imported as a prepared .npz file only, which {source} is not.")
    return Samples.of(READERS[info.reader](source, info))
