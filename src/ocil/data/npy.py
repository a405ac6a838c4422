"""The header of an array in numpy's .npy format, from files that are not trusted."""

from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy


class ArrayHeader(NamedTuple):
    """What a header says. That the content fits it is for the caller to check."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    """Where the content begins, counted from where the header began to be read."""
    columns_first: bool


def read_header(file: IO[bytes]) -> ArrayHeader:
    """Read a header; then the file is at the content. ``ValueError`` and others if it is none."""
    begin = file.tell()
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"it has version {version[0]}.{version[1]} of numpy's format")
    # 3.0 differs from 2.0 only in the encoding of field names.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, columns_first, dtype = read(file)
    return ArrayHeader(shape, dtype, file.tell() - begin, columns_first)
