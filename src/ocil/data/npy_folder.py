"""Datasets that are folders of .npy arrays."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data.doors import DomainOptions, from_arrays
from ocil.data.mapped import mapped
from ocil.data.npy import read_header
from ocil.data.samples import Note, Samples
from ocil.errors import OcilError
from ocil.files import open_regular, read_regular
from ocil.text import lines_of

MAX_NAMES_BYTES = 64 * 2**20


def samples_in_npy_folder(
    name: str, folder: Path, test_share: float | None = None, note: Note | None = None
) -> Samples:
    """The samples of a folder with train_x.npy, train_y.npy and, if they are there, test_x.npy, test_y.npy and
    classes.txt with one name per line. train_domain.npy and test_domain.npy have the domains of the samples. Arrays are
    mapped, so they may be larger than memory."""
    train_x, train_y = map_npy(folder / "train_x.npy"), map_npy(folder / "train_y.npy")
    test_x = test_y = None
    if (folder / "test_x.npy").is_file():
        test_x, test_y = map_npy(folder / "test_x.npy"), map_npy(folder / "test_y.npy")
    classes = None
    if (listed := folder / "classes.txt").is_file():
        try:
            classes = lines_of(read_regular(listed, MAX_NAMES_BYTES).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise OcilError(f"cannot read {listed}: it is not a text file of class names.") from error
    options: DomainOptions = {"name": name, "classes": classes, "test_share": test_share, "note": note}
    if (folder / "train_domain.npy").is_file():
        options["train_domain"] = map_npy(folder / "train_domain.npy")
    if (folder / "test_domain.npy").is_file():
        options["test_domain"] = map_npy(folder / "test_domain.npy")
    return from_arrays(train_x, train_y, test_x, test_y, **options)


def map_npy(path: Path) -> NDArray[Any]:
    """The array of an .npy file, mapped. Pickled content is refused, never run."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            shape, dtype, start, columns_first = read_header(file)
            size = os.fstat(file.fileno()).st_size
        if dtype.hasobject or columns_first or any(side < 0 for side in shape):
            raise ValueError("it holds Python objects or stores columns first, which is not supported")
        if int(np.prod(shape, dtype=object)) * dtype.itemsize != size - start:
            raise ValueError(f"its content does not fit its shape {list(shape)}")
        return mapped(path, dtype, shape, start)
    except OSError as error:
        raise OcilError(f"cannot read {path}: {error.strerror}.") from error
    except Exception as error:  # a broken header can fail in any way, down to the parsing of Python source
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise OcilError(f"cannot read {path}: {reason}.") from error
