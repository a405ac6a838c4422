"""Files that are written whole or not at all, and folders that one process at a time works in."""

import errno
import io
import os
import re
import secrets
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import sleep, time
from typing import IO, Any

from filelock import FileLock, Timeout, lock_descriptor

from ocil.errors import InUseError, OcilError, WriteError

LOCK = ".lock"
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp", re.DOTALL)  # the names of atomic_write's temporary files
PICTURES = (".png", ".svg", ".pdf")  # what a figure can be saved as
NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)  # errors of a path at which no file can be
AS_BYTES = getattr(os, "O_BINARY", 0)  # without it Windows would change line ends
OPEN_FILES_STAY = sys.platform == "win32"  # whether an open file can be neither replaced nor removed
RENAMES, RENAME_SECONDS = 40, 0.05
LOCK_TRIES, LOCK_SECONDS = 10, 0.01  # who asks whether a lock is free holds it for a moment
TRIES = 100  # to take a lock that other processes remove at the same time, with the folder they made for it


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file in the folder of ``path``. If the block succeeds it is synced and takes that name.

    Raises ``WriteError`` if the file cannot be written. Other errors of the block are passed on.
    """
    with _temporary_for(path) as temporary:
        with _synced(temporary, path) as file:
            yield file
        with _writing(path):
            _rename(temporary, path)


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files, or none: the first one takes its name once all of them are complete on the disk.

    ``WriteError`` if one cannot be written. They take their names one by one, in the order given.
    """
    with ExitStack() as stack:
        temporaries = {path: stack.enter_context(_temporary_for(path)) for path in contents}
        for path, temporary in temporaries.items():
            with _synced(temporary, path) as file:
                file.write(contents[path])
        for path, temporary in temporaries.items():
            with _writing(path):
                _rename(temporary, path)


@contextmanager
def _temporary_for(path: Path) -> Iterator[Path]:
    """A name for the temporary file that will become ``path``. What is there at the end of the block is removed."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def _synced(temporary: Path, path: Path) -> Iterator[IO[bytes]]:
    """Open the temporary file that will become ``path``. If the block succeeds, what it wrote is on the disk."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | AS_BYTES
        descriptor = os.open(temporary, flags, 0o666)  # less the user's umask
    with io.BufferedWriter(_Target(descriptor, path)) as file:
        yield file
        with _writing(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()


def _rename(temporary: Path, path: Path) -> None:
    """Give the temporary file its name. On Windows that fails while another program has the former file open, to read
    it or to search it for viruses: wait for a moment then.
    """
    for _ in range(RENAMES):
        try:
            temporary.replace(path)
            return
        except PermissionError:
            if not OPEN_FILES_STAY:
                raise
            sleep(RENAME_SECONDS)
    temporary.replace(path)


class _Target(io.FileIO):
    """The temporary file that will become ``path``. Writing to it raises ``WriteError`` if that fails."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, "wb")
        self.path = path

    def write(self, content: Any, /) -> int:
        with _writing(self.path):
            return super().write(content)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        misplaced = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "its folder is a file" if misplaced else error.strerror or error
        raise WriteError(f"cannot write {path}: {reason}. {_advice(error)}") from error


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):  # Windows has no quota of that name
        return "Free some space or choose another folder."
    return "Choose a shorter name." if error.errno == errno.ENAMETOOLONG else "Choose another place."


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all. ``WriteError`` if that fails."""
    with atomic_write(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Make the names of a folder's files durable: a new or renamed file can be lost with the machine before that."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows: a folder cannot be opened, and its names are written in order
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """A descriptor of a regular file, opened with the flags of ``os.open``.

    A folder may come from anywhere: a symbolic link in the place of a file would lead elsewhere, and opening a FIFO or
    a device could wait for ever. Both raise an ``OSError`` before anything is changed. ``O_TRUNC`` is refused.
    """
    if flags & os.O_TRUNC:
        raise ValueError("open_regular does not truncate: what it opens may not be what was meant")
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | AS_BYTES
    if path.is_symlink():
        raise OSError(errno.EINVAL, "it is a symbolic link", str(path))
    descriptor = os.open(path, flags | careful, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_regular(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file; an ``OSError`` for anything else, and for more bytes than ``most`` or memory."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > (machine_memory() if most is None else most):
            raise OSError(errno.EFBIG, f"it is too large ({size} bytes)", str(path))
        return file.read()


def machine_memory() -> int:
    """Bytes of this machine's memory; a very large number where it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, and not every other system these names
        return sys.maxsize


def is_link(path: Path) -> bool:
    """Whether a path is a symbolic link; False for a path that the file system does not allow."""
    try:
        return path.is_symlink()
    except OSError:
        return False


def must_be_free(path: Path) -> None:
    """Raise ``WriteError`` if a folder is at ``path``, or if a file is where one of its folders should be."""
    try:
        if is_there(path) and path.is_dir():
            raise WriteError(f"cannot write {path}: it is a folder. Choose another place.")
        if not (there := first_existing(path.parent)).is_dir():
            raise WriteError(f"cannot write {path}: {there} is not a folder. Choose another place.")
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}. Choose another place.") from error


def folder_path(name: str, given: object) -> Path:
    """The path of a folder, which may be given as text. Raises if it is neither. ``name``: of the argument."""
    if not isinstance(given, str | os.PathLike) or "\0" in os.fspath(given):
        raise OcilError(f"{name} = {given!r} must be the path of a folder.")
    return Path(given)


def path_or_none(given: Path | str | None, name: str = "data_dir") -> Path | None:
    """The path of a folder that need not be given. ``name``: of the argument."""
    return None if given is None else folder_path(name, given)


def is_there(path: Path) -> bool:
    """Whether something is at the path. Raises ``OSError`` if nothing can be: the name is too long, or the folder above
    may not be read. ``Path.exists`` has said no in these cases since Python 3.14."""
    try:
        path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    return True


def first_existing(path: Path) -> Path:
    """The path itself if it exists, else the nearest of the folders above it that does."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if is_there(place))


def read_toml(path: Path, hint: Callable[[], str] = str) -> dict[str, Any]:
    """The content of a TOML file. ``hint`` makes the end of the message if the file cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OcilError(f"cannot read {path}: {error.strerror}.{hint()}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not text, or a number or nesting too large
        raise OcilError(f"{path} is not a TOML file: {error}.") from None


@contextmanager
def locked(folder: Path, elsewhere: str, taken: str) -> Iterator[None]:
    """Hold the lock of a folder inside the block. The lock ends with the process, however that ends.

    If nothing was written to the folder, it is left as it was: without the lock, and removed if it was made here.
    ``elsewhere``: the end of the message if the folder cannot be written to (``WriteError`` or ``OcilError``).
    ``taken``: the message if another process holds the lock (``InUseError``).
    """
    made: list[Path] = []
    try:
        made = [place for place in (folder, *folder.parents) if not place.exists()]
        descriptor = _lock(folder)
    except OSError as error:
        _remove_empty(made)
        misplaced = isinstance(error, FileExistsError)
        if misplaced and folder.is_file():  # other folders of the same place may be all right
            raise OcilError(f"cannot write to {folder}: it is a file. {elsewhere}") from error
        place = folder / LOCK if str(error.filename) == str(folder / LOCK) else folder
        reason = "a file or a broken link is in its place" if misplaced else error.strerror
        raise WriteError(f"cannot write to {place}: {reason}. {elsewhere}") from error
    if descriptor is None:
        raise InUseError(taken, folder)
    try:
        sweep(folder)
        yield
    finally:
        with suppress(OSError):
            if [path.name for path in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()  # while it is held: a process that waits for it will see that it is gone
                _remove_empty(made)
        os.close(descriptor)


@contextmanager
def alone_at(path: Path, seconds: float) -> Iterator[None]:
    """Keep other processes that work at the same file out of the block: wait for them, but no longer than ``seconds``.

    Where locks do not work the block is entered all the same.
    """
    lock = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=seconds)
    except (OSError, NotImplementedError, Timeout):
        pass
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path, tries: int = LOCK_TRIES) -> bool:
    """Whether a process works in a folder. False also if that cannot be found out: ``locked`` then raises.

    With one of ``tries`` it may be a process that only looks too; each other one takes a moment.
    """
    try:
        with os.fdopen(open_regular(folder / LOCK, os.O_RDWR), "rb") as file:
            return not _try_lock(file.fileno(), tries)
    except OSError:
        return False


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed; None if another one holds it."""
    path = folder / LOCK
    for _ in range(TRIES):
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                is_new = not os.path.lexists(path)
                descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # another process has just removed the folder that it had made
                continue
            stack.callback(os.close, descriptor)
            try:
                if not _try_lock(descriptor):
                    return None
            except OSError:
                if is_new:
                    path.unlink(missing_ok=True)
                raise
            if _is_at(path, descriptor):  # else it was removed before we held it, and locks nothing
                stack.pop_all()
                return descriptor
    raise OSError(errno.ENOLCK, "its file system does not keep locks")


def _try_lock(descriptor: int, tries: int = LOCK_TRIES) -> bool:
    """Take a lock, unless another process keeps it for longer than a look at it takes."""
    try:
        for number in range(tries):
            if number:
                sleep(LOCK_SECONDS)
            if lock_descriptor(descriptor, blocking=False):
                return True
        return False
    except OSError as error:
        raise OSError(error.errno, f"its file system has no locks ({error.strerror})") from error


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def sweep(folder: Path, seconds: float = 0) -> None:
    """Remove the temporary files of processes that were killed while they wrote, ``seconds`` ago or earlier. Who does
    not hold the folder's lock gives a time in which any other process has finished its file."""
    latest = time() - seconds
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    if not seconds or entry.stat(follow_symlinks=False).st_mtime < latest:
                        Path(entry.path).unlink()


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders in this order, from the inside out, up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()
