"""Arrays from .npz files that are not trusted: nothing is unpickled, and every header is checked."""

import math
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ocil.data.mapped import mapped
from ocil.data.npy import ArrayHeader, read_header
from ocil.errors import OcilError
from ocil.files import is_there, machine_memory
from ocil.text import bytes_text

T = TypeVar("T")
LOCAL_HEADER = 30  # bytes before the name of a member of a zip file
ENCRYPTED = 0x1


class _AbsentError(Exception):
    """There is no file."""


class _RefusedError(Exception):
    """An archive that cannot be used; its message is written for the user."""


def read_arrays(
    path: Path, keys: Sequence[str], optional: Sequence[str], advice: str, map_from: int | None = None
) -> dict[str, NDArray[Any]]:
    """Arrays by name; an optional one may be missing. ``advice`` ends the message of an ``OcilError``.

    Arrays of ``map_from`` bytes and more that are not compressed are mapped and not read, so their check sums are not
    compared: see ``check_sums``.
    """

    def read(archive: zipfile.ZipFile) -> dict[str, NDArray[Any]]:
        wanted = [*keys, *(key for key in optional if f"{key}.npy" in archive.namelist())]
        sizes = {key: _member(archive, key, keys).file_size for key in wanted}
        large = [key for key in wanted if map_from is not None and sizes[key] >= map_from]
        found = {key: array for key in large if (array := _mapped(path, archive, key)) is not None}
        _refuse_what_cannot_fit(sum(size for key, size in sizes.items() if key not in found))
        return found | {key: _array(archive, key) for key in wanted if key not in found}

    return _read(path, read, advice)


def check_sums(path: Path, advice: str) -> None:
    """Read the whole archive and compare the check sums of all arrays."""

    def read(archive: zipfile.ZipFile) -> None:
        if (broken := archive.testzip()) is not None:
            raise _RefusedError(f"{broken} is damaged: its check sum is wrong")

    _read(path, read, advice)


def read_shapes(path: Path, keys: Sequence[str], advice: str) -> dict[str, tuple[int, ...]]:
    """The shapes of arrays by name, from their headers alone, which is fast."""
    return _read(path, lambda archive: {key: _header(archive, _member(archive, key, keys))[0] for key in keys}, advice)


def read_headers(path: Path, advice: str) -> dict[str, ArrayHeader]:
    """The headers of all arrays by name, in the order of the file."""

    def read(archive: zipfile.ZipFile) -> dict[str, ArrayHeader]:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        return {member.filename.removesuffix(".npy"): _header(archive, member) for member in members}

    return _read(path, read, advice)


def names_in(array: NDArray[Any], path: Path, advice: str) -> tuple[str, ...]:
    """Class names from an array of text."""
    try:
        if array.dtype.kind == "U" and array.ndim == 1:
            return tuple(array.tolist())
    except (ValueError, SystemError):  # code points outside Unicode
        raise OcilError(f"cannot read {path}: its class names are not text. {advice}") from None
    raise OcilError(f"{path}: classes must be a list of names, but it is {array.dtype} {list(array.shape)}.")


def _read(path: Path, read: Callable[[zipfile.ZipFile], T], advice: str) -> T:
    try:
        if not (is_there(path) and path.is_file()):
            raise _AbsentError
        if not zipfile.is_zipfile(path):  # numpy would take a bare array or a pickle as well
            raise _RefusedError("it is cut short or not an .npz file")
        with zipfile.ZipFile(path) as archive:
            return read(archive)
    except _AbsentError:
        raise OcilError(f"cannot read {path}: there is no such file. Check its name and folder.") from None
    except Exception as error:  # a broken archive can fail in any way, down to numpy's parsing of Python source
        raise OcilError(f"cannot read {path}: {_reason(error)}. {advice}") from error


def _member(archive: zipfile.ZipFile, key: str, keys: Sequence[str]) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(f"{key}.npy")
    except KeyError:
        raise _RefusedError(f"an array is missing (it needs {', '.join(keys)})") from None


def _refuse_what_cannot_fit(needed: int) -> None:
    """Raise if the arrays would not fit into memory. A small file can unpack to more than the machine has, and the
    process would be killed without a message.
    """
    if needed > (there := machine_memory()):
        raise _RefusedError(f"it needs {bytes_text(needed)} of memory, and there are {bytes_text(there)}")


def _array(archive: zipfile.ZipFile, key: str) -> NDArray[Any]:
    member = archive.getinfo(f"{key}.npy")
    shape, dtype, start, _ = _header(archive, member)
    if dtype.hasobject:
        raise _RefusedError("it holds pickled objects, which are not loaded")
    if math.prod(shape) * dtype.itemsize != member.file_size - start:
        raise _RefusedError(f"the content of {key} does not fit its shape {list(shape)}")
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _mapped(path: Path, archive: zipfile.ZipFile, key: str) -> NDArray[Any] | None:
    """An array mapped where it lies in the archive; None if it is compressed or not aligned, and must be read."""
    member = archive.getinfo(f"{key}.npy")
    shape, dtype, start, columns_first = _header(archive, member)
    with path.open("rb") as file:
        place = content_offset(file, member) + start
    if not is_stored(member) or columns_first or dtype.hasobject or place % dtype.alignment:
        return None
    if math.prod(shape) * dtype.itemsize != member.file_size - start or member.compress_size != member.file_size:
        raise _RefusedError(f"the content of {key} does not fit its shape {list(shape)}")
    if place + member.file_size - start > path.stat().st_size:
        raise _RefusedError("it is cut short")
    return mapped(path, dtype, shape, place)


def is_stored(member: zipfile.ZipInfo) -> bool:
    """Whether the content of a member lies in the archive as it is, neither compressed nor encrypted."""
    return member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & ENCRYPTED


def content_offset(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Where a member's content begins: behind its local header, whose name and extra field vary in length.

    ``zipfile.BadZipFile`` if there is no such header.
    """
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER)
    if len(header) != LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("it is damaged: a member has no header")
    name, extra = struct.unpack("<HH", header[26:30])
    return member.header_offset + LOCAL_HEADER + int(name) + int(extra)


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArrayHeader:
    with archive.open(member) as file:
        header = read_header(file)
    if any(side < 0 for side in header.shape):
        raise _RefusedError(f"an array has the shape {list(header.shape)}")
    return header


def _reason(error: Exception) -> str:
    if isinstance(error, _RefusedError | OSError | zipfile.BadZipFile):
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return " ".join(text.split()).rstrip(".") or type(error).__name__
    if isinstance(error, MemoryError):
        return "it does not fit in memory"
    return f"it is damaged or not an .npz file ({type(error).__name__})"
