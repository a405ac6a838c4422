"""A file of the log: a header, then records, each in a frame of checksums.

Format 2, the one that is written:

    header: magic word (11 bytes), salt (16), CRC-32 of both (4)
    record: mark (4), length of the body (4), CRC-32 of these two (4); body; CRC-32 of the body (4), end mark (4)

The checksums of a record begin with the salt, so blocks of another file, which a file system may show after a crash, do
not pass for records.

A record is acknowledged once all of it is on the disk. It was **never finished**, and was never acknowledged, if
the file ends before the record does: its head has a checksum of its own, so the length is right. Zero bytes at the end
of the file count as not written: some file systems leave them after a crash, and a finished record ends with its end
mark. Whatever else cannot be read is **damaged**: it may have been acknowledged, so only the user may give it up.

Format 1, which is only read, has no checksum of the header, none of a record's head, and no end mark: a flipped bit in
a length looks like a record that was not finished. There, only an end that is too short for a head is unfinished.
"""

import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from ocil.errors import OcilError
from ocil.files import open_regular
from ocil.serve.records import Record, parsed

MAGIC, OLD_MAGIC = b"ocil log 2\n", b"ocil log 1\n"
SALT = 16
HEADER = struct.Struct(f"<{len(MAGIC)}s{SALT}sI")
OLD_HEADER = struct.Struct(f"<{len(OLD_MAGIC)}s{SALT}s")
MARK = b"\xf1rec"
END = b"end\xf1"
"""Its last byte has several bits set: no flipped bit makes the end of a record look as if it had not been written."""
HEAD = struct.Struct("<4sII")
"""Format 2: mark, length of the body, CRC-32 of both. Format 1: mark, length of the body, CRC-32 of the body."""
TAIL = struct.Struct("<I4s")
BLOCK = 2**16
NAME = re.compile(r"(\d{20})-(\d{4,})\.log")
"""Of a segment: see the fields of ``Segment``."""


class DamagedError(OcilError):
    """A record that should be whole is not, or a file is where none should be."""


class Kind(Enum):
    WHOLE = "whole"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"


@dataclass(frozen=True, order=True)
class Segment:
    """The name of a file of the log. Segments sort in the order in which they were begun."""

    first: int
    """The number that the next sample had when it was begun, or a later one if the end of the log was set aside."""
    turn: int
    """Its place among the segments that were begun before the same sample."""
    path: Path

    @classmethod
    def of(cls, path: Path) -> "Segment":
        if not (name := NAME.fullmatch(path.name)):
            raise DamagedError(f"{path} does not belong to the log: take it out of the folder.")
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path} is not a regular file: take it out of the folder.")
        return cls(int(name[1]), int(name[2]), path)


def segments_of(folder: Path) -> list[Segment]:
    return sorted(Segment.of(path) for path in folder.glob("*-*.log"))


def needed_segments(folder: Path, position: int) -> list[Segment]:
    """The segments that may hold a sample after ``position``, as the start of the next one shows, and the last one."""
    segments = segments_of(folder)
    before_last = [one for one, later in pairwise(segments) if later.first > position + 1]
    return before_last + segments[-1:]


@dataclass(frozen=True)
class Span:
    """A stretch of a segment: one record, or all the rest where no record can be recognised."""

    kind: Kind
    start: int
    end: int
    body: bytes = b""


@dataclass(frozen=True)
class Condition:
    """What a segment is made of."""

    end: int
    """Where a record begins that was never finished, else the size; 0 if not even the header was finished."""
    size: int
    damaged: tuple[range, ...] = ()

    @property
    def unfinished(self) -> bool:
        return self.end < self.size or self.end == 0


def header(salt: bytes) -> bytes:
    return HEADER.pack(MAGIC, salt, crc32(MAGIC + salt))


def framed(body: bytes, salt: bytes) -> bytes:
    seed = crc32(salt)
    head = MARK + len(body).to_bytes(4, "little")
    return head + crc32(head, seed).to_bytes(4, "little") + body + TAIL.pack(crc32(body, seed), END)


def damage(path: Path, start: int) -> DamagedError:
    """The error of a segment that cannot be read from a byte on."""
    what = f"is damaged at byte {start}" if start else "does not begin like a log of this version of ocil"
    return DamagedError(
        f"{path} {what}, and acknowledged samples may be there. Restore it from a copy, or start with "
        "--set-aside-damage to go on without them."
    )


def read(path: Path, end: int | None = None, complete: bool = False) -> Iterator[Record]:
    """The records of a segment, up to ``end`` if it is given. ``DamagedError`` at what is not whole, but for a record
    at the end that was not finished: it may be written now, unless the segment is ``complete``, as all but the last
    one are."""
    for span in spans(path):
        if end is not None and span.start >= end:
            return
        if end is not None and span.kind is not Kind.WHOLE:
            raise DamagedError(f"{path} has changed at byte {span.start} since it was opened.")
        if span.kind is Kind.UNFINISHED and not complete:
            return
        if span.kind is not Kind.WHOLE:
            raise damage(path, span.start)
        try:
            yield parsed(span.body)
        except ValueError as error:
            raise DamagedError(f"{path} holds a record that this version of ocil does not know: {error}.") from error


def examine(path: Path) -> Condition:
    """Read all of a segment. The work grows with its size alone, whatever it holds."""
    end = size = path.lstat().st_size
    damaged = []
    for span in spans(path):
        if span.kind is Kind.DAMAGED:
            damaged.append(range(span.start, span.end))
        elif span.kind is Kind.UNFINISHED:
            end = span.start
    return Condition(end, size, tuple(damaged))


def spans(path: Path) -> Iterator[Span]:
    """All that follows the header, in order; of a header that is not whole, one span from byte 0."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(HEADER.size)
            if start.startswith(OLD_MAGIC) and size >= OLD_HEADER.size:
                file.seek(OLD_HEADER.size)
                yield from _old_spans(file, size, crc32(start[len(OLD_MAGIC) : OLD_HEADER.size]))
            elif len(start) == HEADER.size and start == header(start[len(MAGIC) : len(MAGIC) + SALT]):
                yield from _spans(file, size, crc32(start[len(MAGIC) : len(MAGIC) + SALT]))
            else:
                yield Span(Kind.UNFINISHED if _never_begun(start, size) else Kind.DAMAGED, 0, size)
    except OSError as error:
        raise OcilError(f"{path} cannot be read: {error.strerror or error}.") from error


def _never_begun(start: bytes, size: int) -> bool:
    """Whether a header was not finished. It is on the disk before the first record is written."""
    written = start.rstrip(b"\0")
    begun = any(magic.startswith(written[: len(magic)]) for magic in (MAGIC, OLD_MAGIC))
    return size <= HEADER.size and len(written) < HEADER.size and begun


def _spans(file: BinaryIO, size: int, seed: int) -> Iterator[Span]:
    start, written = file.tell(), _written(file, size)
    while start < size:
        if start + HEAD.size > written:
            yield Span(Kind.UNFINISHED, start, size)
            return
        head = file.read(HEAD.size)
        mark, length, check = HEAD.unpack(head)
        if mark != MARK or crc32(head[:8], seed) != check:
            yield Span(Kind.DAMAGED, start, size)
            return
        end = start + HEAD.size + length + TAIL.size
        if end > written:
            yield Span(Kind.UNFINISHED, start, size)
            return
        body = file.read(length)
        whole = file.read(TAIL.size) == TAIL.pack(crc32(body, seed), END)
        yield Span(Kind.WHOLE if whole else Kind.DAMAGED, start, end, body)
        start = end


def _written(file: BinaryIO, size: int) -> int:
    """The position after the last byte that is not zero. The file's own position stays."""
    here, end = file.tell(), size
    while end > here:
        first = max(here, end - BLOCK)
        file.seek(first)
        content = file.read(end - first).rstrip(b"\0")
        end = first + len(content)
        if content:
            break
    file.seek(here)
    return end


def _old_spans(file: BinaryIO, size: int, seed: int) -> Iterator[Span]:
    start = file.tell()
    while start < size:
        if start + HEAD.size > size:
            yield Span(Kind.UNFINISHED, start, size)
            return
        mark, length, check = HEAD.unpack(file.read(HEAD.size))
        end = start + HEAD.size + length
        body = file.read(length) if mark == MARK and end <= size else b""
        if mark != MARK or end > size or crc32(body, seed) != check:
            yield Span(Kind.DAMAGED, start, size)
            return
        yield Span(Kind.WHOLE, start, end, body)
        start = end
