"""What an error of SQLite means."""

import sqlite3

DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")  # the last one: it has other tables than it should have
ADVICE = "Free some space, and see that this user may write there."


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is to blame, and not the disk that it lies on, which may be full or read-only."""
    name: str | None = getattr(error, "sqlite_errorname", None)
    return name is None or name.startswith(DAMAGE)
