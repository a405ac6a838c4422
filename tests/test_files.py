"""Files that are whole or not there, with the permissions a user's other files have."""

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from ocil.errors import WriteError
from ocil.files import atomic_write, write_bytes
from tests.conftest import left_over


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
