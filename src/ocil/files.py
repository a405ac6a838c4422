"""Files that are either whole or not there."""

import errno
import fcntl
import os
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ocil.errors import InUseError, OcilError, WriteError


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside ``path``; it takes that name, synced to disk, only if the block succeeds."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        name = str(path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp")
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # less the user's umask
        temporary = name
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        reason = "its folder is a file" if isinstance(error, FileExistsError) else error.strerror or error
        raise WriteError(f"cannot write {path}: {reason}. Free some space or choose another folder.") from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """A descriptor of a regular file, opened with the flags of ``os.open``.

    Folders come from strangers: a symbolic link in the place of a file would lead elsewhere, and a FIFO or a device
    would wait for ever. Both are an ``OSError`` here, and nothing has been changed by then: ``O_TRUNC`` is refused.
    """
    if flags & os.O_TRUNC:
        raise ValueError("open_regular does not truncate: what it opens may not be what was meant")
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags | careful, mode)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if path.is_symlink():  # where the system has no O_NOFOLLOW
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path) -> bytes:
    """The content of a regular file; an ``OSError`` for a link, a FIFO, a device or a folder."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def must_be_free(path: Path) -> None:
    """Raise if something stands where a file is to be written: a folder, or a file in the place of its folder."""
    try:
        if path.is_dir():
            raise WriteError(f"cannot write {path}: it is a folder. Choose another place.")
        if not (there := first_existing(path.parent)).is_dir():
            raise WriteError(f"cannot write {path}: {there} is not a folder. Choose another place.")
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}. Choose another place.") from error


def first_existing(path: Path) -> Path:
    """The path, or what is there of the folders above it."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def read_toml(path: Path, hint: Callable[[], str] = str) -> dict[str, Any]:
    """``hint`` says, of a file that cannot be read, which one may be meant."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise OcilError(f"cannot read {path}: {error.strerror}.{hint()}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not text, or a number or a nesting beyond measure
        raise OcilError(f"{path} is not a TOML file: {error}.") from None


@contextmanager
def locked(folder: Path, elsewhere: str, taken: str) -> Iterator[None]:
    """One process at a time works in a folder. The lock goes with the process, however that ends.

    ``elsewhere`` ends the message for a folder that cannot be written to; ``taken`` is the one for a folder in use.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        if folder.is_file():  # the folders beside it may be all right
            raise OcilError(f"cannot write to {folder}: it is a file. {elsewhere}") from error
        raise WriteError(f"cannot write to {folder}: {error.strerror}. {elsewhere}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUseError(taken) from None
        for left_over in folder.glob(".*.tmp"):  # of a process that was killed while it wrote
            left_over.unlink(missing_ok=True)
        yield
