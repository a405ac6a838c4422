"""Files of SQLite: how they are opened, what their errors mean, and how a label stands in them."""

import json
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from ocil.errors import OcilError, WriteError
from ocil.files import is_link
from ocil.online.labels import ClassLabel, decoded, encoded

DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")  # the last one: it has other tables than it should have


@contextmanager
def opening(path: Path, advice: str) -> Iterator[None]:
    """An error of SQLite inside the block becomes an ``OcilError``. ``advice``: what to do if the file is damaged."""
    try:
        yield
    except sqlite3.Error as error:
        if _is_damage(error):
            raise OcilError(f"{path} cannot be used: {error}. {advice}") from error
        room = "Free some space, and see that this user may write there."
        raise WriteError(f"cannot write {path}: {error}. {room}") from error


def open_database(path: Path, tables: str, version: int) -> sqlite3.Connection:
    """A database for any thread, without transactions of its own. Call it inside ``opening``.

    ``tables``: makes those that are missing. ``version``: of the format; a file of a later one is refused.
    """
    if is_link(path) or (path.exists() and not stat.S_ISREG(path.lstat().st_mode)):
        raise OcilError(f"{path} is a symbolic link, or not a regular file: put the file itself there.")
    with ExitStack() as opened:
        base = opened.enter_context(closing(sqlite3.connect(path, check_same_thread=False, isolation_level=None)))
        for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            base.execute(f"PRAGMA {setting}")
        (found,) = base.execute("PRAGMA user_version").fetchone()
        if found > version:
            raise OcilError(f"{path} was written by a later version of ocil: update it.")
        base.executescript(f"BEGIN; {tables} PRAGMA user_version = {version}; COMMIT;")
        opened.pop_all()  # it stays open
    return base


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is to blame, and not the disk that it lies on, which may be full or read-only."""
    name: str | None = getattr(error, "sqlite_errorname", None)
    return name is None or name.startswith(DAMAGE)


def label_to_text(label: ClassLabel) -> str:
    return json.dumps(encoded(label))


def label_from_text(text: str | None) -> ClassLabel | None:
    return None if text is None else decoded(json.loads(text))
