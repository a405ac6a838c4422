"""The list of all samples: their numbers, labels and times, and what became of them.

The log is deleted once the model has learned it; this list stays, in a file of SQLite. It holds nothing that the log
did not hold first. What is added waits in a transaction that is committed, synced to the disk, before the model is
saved. So after a crash the log still has what the list has lost, and it is added again; adding a record twice
changes nothing.
"""

import sqlite3
import threading
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocil.errors import OcilError, WriteError
from ocil.online.labels import ClassLabel
from ocil.serve.databases import label_from_text, label_to_text, open_database, opening
from ocil.serve.records import Change, Record, SampleRecord

FILE = "samples.sqlite"
COLUMNS = "number, label, time, first_label, forgotten, changed"
TABLES = """
create table if not exists samples (
    number integer primary key, label text, time real, first_label text, forgotten integer not null default 0,
    changed integer not null default 0
) without rowid;
create index if not exists by_label on samples (label, number);
create index if not exists by_time on samples (time);
"""
NEWEST_FORMAT = 1
IF_DAMAGED = (
    "Restore it from a copy, or move it away: then the samples so far can no longer be listed, corrected or forgotten, "
    "and all else goes on."
)


@dataclass(frozen=True)
class SampleState:
    """A sample of the list."""

    number: int
    label: ClassLabel | None
    """None: it was forgotten."""
    time: float | None
    """When it came, in seconds since 1970; None: an earlier version did not write that down."""
    first_label: ClassLabel | None
    """What it was called when it came, if that was corrected."""
    forgotten: bool
    changed: int
    """The number of the change that corrected or forgot it; 0: none did."""


class Catalogue:
    """The list of samples in one file. Safe to use from any thread."""

    def __init__(self, path: Path, last: int, last_change: int, set_aside: bool = False) -> None:
        """``last`` and ``last_change``: the newest sample and change that are known. If the list has more, the end of
        the log was lost: ``OcilError``, or with ``set_aside`` the list is cut to them.
        """
        self.path = path
        self.broken: str | None = None
        """Why something could not be added, or was lost again. The log has it until the list is mended."""
        self._lock = threading.Lock()
        with opening(path, IF_DAMAGED), ExitStack() as opened:
            self._base = opened.enter_context(closing(open_database(path, TABLES, NEWEST_FORMAT)))
            (newest,) = self._base.execute("select coalesce(max(number), 0) from samples").fetchone()
            if newest > last and not set_aside:
                raise OcilError(
                    f"{path} lists sample {newest}, but the model and its log end with {last}: acknowledged samples "
                    "are missing. Restore the whole folder from one and the same copy, or start with "
                    "--set-aside-damage to go on with what is there."
                )
            self._base.execute("delete from samples where number > ?", (last,))
            self._base.execute("update samples set changed = ? where changed > ?", (last_change, last_change))
            self._base.execute("begin")
            opened.pop_all()  # it stays open

    def add(self, records: Iterable[Record]) -> None:
        """Add what records of the log say. An error of the list is kept in ``broken``; so is one of the log, which is
        raised too, and nothing of it stays in the list.
        """
        with self._lock:
            try:
                if not self._base.in_transaction:
                    self._base.execute("begin")
                for record in records:
                    self._add(record)
            except sqlite3.Error as error:
                self._break(error)
            except (OcilError, OSError) as error:
                self.broken = f"the list of samples cannot be mended: {error}"
                raise

    def mend(self, records: Iterable[Record]) -> None:
        """Try again to add what could not be added. ``records``: all that the log has."""
        self.broken = None
        with suppress(OcilError, OSError):  # the log cannot be read for now
            self.add(records)

    def _break(self, error: sqlite3.Error) -> None:
        self.broken = f"the list of samples cannot be written: {error}. It is tried again when the model is saved."

    def _add(self, record: Record) -> None:
        if isinstance(record, SampleRecord):
            rows = [(record.first + n, label_to_text(label), record.time) for n, label in enumerate(record.labels)]
            self._base.executemany("insert or ignore into samples (number, label, time) values (?, ?, ?)", rows)
        elif isinstance(record, Change) and record.action == "correct":
            self._base.execute(
                "update samples set first_label = coalesce(first_label, label), label = ?, changed = ? "
                "where number = ? and changed < ? and not forgotten",
                (label_to_text(record.label), record.number, record.sample, record.number),
            )
        elif isinstance(record, Change) and record.action == "forget":
            self._base.execute(
                "update samples set label = null, first_label = null, forgotten = 1, changed = ? "
                "where number = ? and changed < ?",
                (record.number, record.sample, record.number),
            )

    def commit(self) -> None:
        """All that was added is on the disk when this returns. ``WriteError`` if it could not be written."""
        with self._lock:
            if self.broken:
                raise WriteError(self.broken)
            try:
                if self._base.in_transaction:
                    self._base.execute("commit")
                self._base.execute("begin")
            except sqlite3.Error as error:  # SQLite may have taken back all that was to be committed
                self._break(error)
                raise WriteError(self.broken) from error

    def sample(self, number: int) -> SampleState | None:
        found = self._find("where number = ?", (number,))
        return found[0] if found else None

    def search(
        self, label: ClassLabel | None, since: float | None, until: float | None, after: int, limit: int
    ) -> list[SampleState]:
        """Samples that are not forgotten, by number from ``after`` on: of a class, and of a time (the end left out)."""
        parts: list[tuple[str, Any]] = [("number > ?", after)]
        parts += [("label = ?", label_to_text(label))] if label is not None else []
        parts += [("time >= ?", since)] if since is not None else []
        parts += [("time < ?", until)] if until is not None else []
        where = " and ".join(part for part, _ in parts)
        values = (*(value for _, value in parts), limit)
        return self._find(f"where not forgotten and {where} order by number limit ?", values)

    def _find(self, rest: str, values: tuple[Any, ...]) -> list[SampleState]:
        with self._lock:
            rows = self._base.execute(f"select {COLUMNS} from samples {rest}", values).fetchall()  # noqa: S608
        return [
            SampleState(number, label_from_text(label), time, label_from_text(first), bool(forgotten), changed)
            for number, label, time, first, forgotten, changed in rows
        ]

    @property
    def empty(self) -> bool:
        with self._lock:
            return not self._base.execute("select 1 from samples limit 1").fetchall()

    def close(self) -> None:
        with self._lock:
            try:
                if self._base.in_transaction:
                    self._base.execute("rollback" if self.broken else "commit")
            except sqlite3.Error:  # the log has what is lost with it
                pass
            finally:
                self._base.close()
