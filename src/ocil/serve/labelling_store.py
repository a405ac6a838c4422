"""Images that wait for a label, and those that got one, in a database in the model's folder."""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from ocil.online.labels import ClassLabel, decoded, encoded
from ocil.serve.databases import label_from_text, label_to_text, open_database, opening
from ocil.serve.limits import RefusedError

FILE = "labelling.sqlite"
RECENT = 50  # labels that the recent accuracy is over

TABLES = """
CREATE TABLE IF NOT EXISTS images (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE,
    bytes INTEGER NOT NULL,
    skips INTEGER NOT NULL DEFAULT 0,
    turn INTEGER NOT NULL DEFAULT 0,
    label TEXT,
    sample INTEGER,
    correct INTEGER,
    change TEXT
);
CREATE TABLE IF NOT EXISTS contents (
    number INTEGER PRIMARY KEY REFERENCES images (number) ON DELETE CASCADE,
    pixels BLOB NOT NULL,
    preview BLOB NOT NULL,
    thumbnail BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS annotations (
    name TEXT PRIMARY KEY,
    address TEXT NOT NULL,
    wanted TEXT,
    label TEXT,
    sample INTEGER,
    turn INTEGER NOT NULL DEFAULT 0
);
"""
VERSION = 1


class LabelChange(NamedTuple):
    """What is to be done with an image. It is on the disk before it is done, so that a restart can finish it."""

    verb: Literal["learn", "correct", "forget"]
    label: ClassLabel = None


class Content(NamedTuple):
    """An image as it is kept: for the model, for the page, and for a grid of many."""

    name: str
    digest: bytes
    """Of the file as it was sent: the same file is kept once."""
    pixels: bytes
    preview: bytes
    thumbnail: bytes

    @property
    def size(self) -> int:
        return len(self.pixels) + len(self.preview) + len(self.thumbnail)


@dataclass
class QueuedImage:
    """One image. It waits for a label, or has one."""

    number: int
    name: str
    bytes: int
    """What its content takes on the disk; 0 once that was dropped to make room."""
    skips: int = 0
    """How often a person put it off."""
    turn: int = 0
    """How often it was given to the model: a part of the key under which that is done once."""
    label: ClassLabel | None = None
    sample: int | None = None
    """Its number in the log; None while it has no label."""
    correct: bool | None = None
    """Whether the class that was shown first was the right one; None if none was shown."""
    change: LabelChange | None = None
    """What is being done with it."""
    certainty: float | None = None
    """Without a label, the margin between the two likeliest classes; with one, the probability of that."""
    scored: int = -1
    """Samples that the model had learned when this was computed."""
    likeliest: ClassLabel | None = None
    """The class that was shown first. ``shown`` says whether there was one."""
    shown: bool = False

    @property
    def waits(self) -> bool:
        return self.sample is None


class Totals(NamedTuple):
    """How many labels were given, and how well they were foreseen."""

    labelled: int
    accuracy: float | None
    recent_accuracy: float | None
    recent: int


class Store:
    """The database. Every change is synced to the disk before its method returns. Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        with opening(path, "Move it away to begin with an empty queue."):
            self._base = open_database(path, TABLES, VERSION)

    def close(self) -> None:
        with self._lock:
            self._base.close()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is on the disk at the end of the block, or nothing."""
        with self._lock:
            try:
                self._base.execute("BEGIN IMMEDIATE")
                try:
                    yield self._base
                except BaseException:
                    self._base.execute("ROLLBACK")
                    raise
                self._base.execute("COMMIT")
            except sqlite3.Error as error:
                raise RefusedError(503, f"the queue of images cannot be used: {error}.", 10) from error

    def entries(self) -> list[QueuedImage]:
        """All images whose content is kept, and those with a change that is not done."""
        with self._using() as base:
            rows = base.execute(
                "SELECT number, name, bytes, skips, turn, label, sample, correct, change FROM images "
                "WHERE bytes > 0 OR change IS NOT NULL ORDER BY number"
            ).fetchall()
        return [_queued_image(*row) for row in rows]

    def unknown(self, contents: Iterable[Content]) -> list[Content]:
        """Those that are not there and never were, each once."""
        found: dict[bytes, Content] = {}
        with self._using() as base:
            for one in contents:
                if not base.execute("SELECT 1 FROM images WHERE digest = ?", (one.digest,)).fetchall():
                    found.setdefault(one.digest, one)
        return list(found.values())

    def add(self, contents: Iterable[Content]) -> list[QueuedImage]:
        """Keep images, which must be ``unknown``."""
        added = []
        with self._using() as base:
            for one in contents:
                row = (one.name, one.digest, one.size)
                number = base.execute("INSERT INTO images (name, digest, bytes) VALUES (?, ?, ?)", row).lastrowid or 0
                blobs = (number, one.pixels, one.preview, one.thumbnail)
                base.execute("INSERT INTO contents VALUES (?, ?, ?, ?)", blobs)
                added.append(QueuedImage(number, one.name, one.size))
        return added

    def save(self, *entries: QueuedImage) -> None:
        """Write down what changed about these images. The content of one without bytes is dropped."""
        with self._using() as base:
            for one in entries:
                change = None if one.change is None else json.dumps([one.change.verb, encoded(one.change.label)])
                label = None if one.sample is None else label_to_text(one.label)
                base.execute(
                    "UPDATE images SET bytes = ?, skips = ?, turn = ?, label = ?, sample = ?, correct = ?, change = ? "
                    "WHERE number = ?",
                    (one.bytes, one.skips, one.turn, label, one.sample, one.correct, change, one.number),
                )
                if not one.bytes:
                    base.execute("DELETE FROM contents WHERE number = ?", (one.number,))

    def remove(self, number: int) -> None:
        with self._using() as base:
            base.execute("DELETE FROM images WHERE number = ?", (number,))

    def content(self, number: int, column: Literal["pixels", "preview", "thumbnail"]) -> bytes | None:
        with self._using() as base:
            found = base.execute(f"SELECT {column} FROM contents WHERE number = ?", (number,)).fetchone()  # noqa: S608
        return None if found is None else found[0]

    def totals(self) -> Totals:
        with self._using() as base:
            labelled, scored, right = base.execute(
                "SELECT COUNT(*), COUNT(correct), SUM(correct) FROM images WHERE sample IS NOT NULL"
            ).fetchone()
            recent = base.execute(
                "SELECT correct FROM images WHERE correct IS NOT NULL AND sample IS NOT NULL "
                "ORDER BY sample DESC LIMIT ?",
                (RECENT,),
            ).fetchall()
        last = sum(one for (one,) in recent) / len(recent) if recent else None
        return Totals(labelled, right / scored if scored else None, last, len(recent))

    def labels(self) -> list[tuple[str, ClassLabel, int]]:
        """Name, label and sample of every image that was labelled here, in this order."""
        with self._using() as base:
            rows = base.execute(
                "SELECT name, label, sample FROM images WHERE sample IS NOT NULL ORDER BY sample"
            ).fetchall()
        return [(name, label_from_text(label), sample) for name, label, sample in rows]

    def want_annotation(self, name: str, address: str | None, label: ClassLabel | None) -> bool:
        """Write down which label an annotation of another tool has now; None if it has none any more.

        ``address``: of its image; None leaves the one that is known. False if nothing changes.
        """
        wanted = None if label is None else label_to_text(label)
        with self._using() as base:
            had = base.execute("SELECT wanted FROM annotations WHERE name = ?", (name,)).fetchone()
            if had == (wanted,) or (had is None and (wanted is None or address is None)):
                return False
            if had is None:
                base.execute(
                    "INSERT INTO annotations (name, address, wanted) VALUES (?, ?, ?)", (name, address, wanted)
                )
            else:
                new = "UPDATE annotations SET wanted = ?, address = COALESCE(?, address) WHERE name = ?"
                base.execute(new, (wanted, address, name))
        return True

    def unsettled(self) -> list["Annotation"]:
        """Annotations whose label the model has not been given yet."""
        with self._using() as base:
            rows = base.execute("SELECT * FROM annotations WHERE wanted IS NOT label ORDER BY rowid").fetchall()
        return [
            Annotation(name, address, label_from_text(wanted), label_from_text(label), sample, turn)
            for name, address, wanted, label, sample, turn in rows
        ]

    def settle(self, one: "Annotation") -> None:
        """Write down what the model was given. What is wanted may have changed meanwhile."""
        label = None if one.label is None else label_to_text(one.label)
        with self._using() as base:
            new = "UPDATE annotations SET label = ?, sample = ?, turn = ? WHERE name = ?"
            base.execute(new, (label, one.sample, one.turn, one.name))


class Annotation(NamedTuple):
    """A label that a person gave in another tool."""

    name: str
    address: str
    """Of its image."""
    wanted: ClassLabel | None
    """The label that it has there; None: it was taken back."""
    label: ClassLabel | None
    """The label that the model was given; "" while that is under way."""
    sample: int | None
    turn: int
    """How often the model was given its image and told to forget it."""


def _queued_image(
    number: int,
    name: str,
    size: int,
    skips: int,
    turn: int,
    label: str | None,
    sample: int | None,
    correct: int | None,
    change: str | None,
) -> QueuedImage:
    """An image from a row of its table."""
    found = QueuedImage(number, name, size, skips, turn, label_from_text(label), sample)
    found.correct = None if correct is None else bool(correct)
    if change is not None:
        verb, new = json.loads(change)
        found.change = LabelChange(verb, decoded(new))
    return found
