"""Files that are whole or not there, with the permissions a user's other files have."""

import errno
import fcntl
import os
import pickle
import resource
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import filelock
import pytest

from ocil import files
from ocil.errors import InUseError, OcilError, WriteError
from ocil.files import atomic_write, is_locked, locked, read_regular, write_bytes
from tests.conftest import left_over


def lock(folder: Path) -> AbstractContextManager[None]:
    return locked(folder, "Choose another folder.", "It is in use.")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_the_users_choice(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_bytes(tmp_path / "file", b"new")
        write_bytes(tmp_path / "file", b"newer")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert (tmp_path / "file").read_bytes() == b"newer"


def test_what_fails_in_between_leaves_the_old_file(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", b"old")
    with suppress(ZeroDivisionError), atomic_write(tmp_path / "file") as file:
        file.write(b"new")
        raise ZeroDivisionError
    with pytest.raises(WriteError, match=r"cannot write .*its folder is a file"):
        write_bytes(tmp_path / "file" / "deeper", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert not left_over(tmp_path)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "Free some space or choose another folder."),
        (errno.EDQUOT, "Free some space or choose another folder."),
        (errno.EIO, "Choose another place."),
        (errno.EROFS, "Choose another place."),
        (errno.EISDIR, "Choose another place."),
        (errno.ENAMETOOLONG, "Choose a shorter name."),
    ],
)
def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, code: int, advice: str
) -> None:
    path = tmp_path / "result.json"
    write_bytes(path, b"old")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[failing], fail)
        with pytest.raises(WriteError) as error:
            write_bytes(path, b"new")
    assert str(error.value) == f"cannot write {path}: {os.strerror(code)}. {advice}"
    assert path.read_bytes() == b"old"
    assert not left_over(tmp_path)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_file_that_may_not_grow_leaves_the_old_one(tmp_path: Path, flushed: bool) -> None:
    """The error comes in the block, from the file itself, or when the block has ended."""
    path = tmp_path / "file"
    write_bytes(path, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"more than fits")
            if flushed:
                file.flush()
                pytest.fail("it was written")

    try:
        with pytest.raises(WriteError, match=r"cannot write .*: File too large"):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old"
    assert not left_over(tmp_path)


def test_what_the_block_raises_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "file") as file:
        file.write((tmp_path / "nowhere").read_bytes())
    assert not names(tmp_path)


def test_a_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"File name too long\. Choose a shorter name\."):
        write_bytes(tmp_path / ("x" * 300), b"")
    with pytest.raises(WriteError, match=r"File name too long\. Choose another folder\."), lock(tmp_path / ("x" * 300)):
        pass


def test_more_than_a_file_may_hold_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    os.truncate(path, 1 << 42)  # it takes no room on the disk
    for most in (5, None):
        with pytest.raises(OSError, match=r"it is too large \(4398046511104 bytes\)"):
            read_regular(path, most)


# The lock


@pytest.mark.parametrize("kind", ["link", "broken link", "loop", "fifo", "folder"])
def test_a_lock_that_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / ".lock"
    make: dict[str, Callable[[], None]] = {
        "link": lambda: path.symlink_to(precious),
        "broken link": lambda: path.symlink_to(tmp_path / "nowhere"),
        "loop": lambda: path.symlink_to(path),
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }
    make[kind]()
    with pytest.raises(WriteError, match=r"cannot write to .*\.lock: .*\. Choose another folder\.$"), lock(folder):
        pass
    assert precious.read_bytes() == b"precious"
    assert names(tmp_path) == {"precious", "run"}
    assert path.is_symlink() or path.exists()
    assert not is_locked(folder)


def test_a_lock_that_shares_its_content_with_a_file_leaves_that_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").hardlink_to(precious)
    with lock(tmp_path / "run"), pytest.raises(InUseError), lock(tmp_path / "run"):
        pass
    assert precious.read_bytes() == b"precious"


def test_the_lock_sweeps_up_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("checkpoint.safetensors", ".notes.tmp", ".a.abc.tmp", ".a.0123456789AB.tmp", ".0123456789ab.tmp"):
        (folder / name).write_bytes(b"kept")
    (folder / ".link.0123456789ab.tmp").symlink_to(precious)
    (folder / ".folder.0123456789ab.tmp").mkdir()
    kept = names(folder)
    (folder / ".checkpoint.safetensors.0123456789ab.tmp").write_bytes(b"half")
    with lock(folder):
        assert names(folder) == kept | {".lock"}
    assert precious.read_bytes() == b"precious"


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_is_none_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(WriteError, match=r"its file system has no locks \(.*\)\. Choose another folder\."),
        lock(tmp_path),
    ):
        pass
    assert not is_locked(tmp_path)


def test_a_folder_in_use_is_named(tmp_path: Path) -> None:
    with lock(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
        with pytest.raises(InUseError, match=r"^It is in use\.$") as error, lock(tmp_path / "run"):
            pass
    assert error.value.folder == tmp_path / "run"
    assert pickle.loads(pickle.dumps(error.value)).folder == tmp_path / "run"  # it comes from worker processes too
    assert not is_locked(tmp_path / "run")


@pytest.mark.parametrize("asked", ["locked", "is_locked"])
def test_a_look_at_a_lock_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """Another process looks whether the folder is in use, just as this one asks for it."""
    (tmp_path / ".lock").touch()
    (tmp_path / "file").touch()
    looking = [os.open(tmp_path / ".lock", os.O_RDWR)]
    assert filelock.lock_descriptor(looking[0], blocking=False)

    def seen(descriptor: int, blocking: bool) -> bool:
        found = filelock.lock_descriptor(descriptor, blocking=blocking)
        if looking:
            os.close(looking.pop())
        return found

    monkeypatch.setattr(files, "lock_descriptor", seen)
    if asked == "is_locked":
        assert not is_locked(tmp_path)
    else:
        with lock(tmp_path):
            pass
    assert not looking


def test_a_folder_that_nothing_was_written_to_is_left_as_it_was(tmp_path: Path) -> None:
    with suppress(OcilError), lock(tmp_path / "a" / "b" / "c"):
        raise OcilError("refused")
    assert not names(tmp_path)
    (tmp_path / "mine").mkdir()
    with lock(tmp_path / "mine"):
        pass
    assert names(tmp_path) == {"mine"}
    assert not names(tmp_path / "mine")
    with lock(tmp_path / "run"):
        write_bytes(tmp_path / "run" / "file", b"")
    assert names(tmp_path / "run") == {".lock", "file"}


def test_a_folder_that_cannot_be_locked_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files, "open_regular", refuse)
    with pytest.raises(WriteError, match="Permission denied"), lock(tmp_path / "a" / "b"):
        pass
    assert not names(tmp_path)


@pytest.mark.parametrize("again", [False, True])
def test_a_lock_that_was_removed_before_it_was_held_keeps_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Another process ends between the opening and the locking, removes the lock and perhaps the folder."""
    folder, left = tmp_path / "run", [1]

    def removed(descriptor: int, blocking: bool) -> bool:
        if left:
            left.pop()
            (folder / ".lock").unlink()
            folder.rmdir()
            if again:  # a third one has made it anew
                folder.mkdir()
                (folder / ".lock").touch()
        return filelock.lock_descriptor(descriptor, blocking=blocking)

    monkeypatch.setattr(files, "lock_descriptor", removed)
    with lock(folder), pytest.raises(InUseError), lock(folder):
        pass


@pytest.mark.parametrize("error", [AttributeError, ValueError, OSError])
def test_a_system_that_does_not_tell_how_much_memory_it_has(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> int:
        raise error(name)

    monkeypatch.setattr("os.sysconf", unknown)
    assert files.machine_memory() == sys.maxsize
