"""An append-only log of labelled images: what is acknowledged is in it, synced to disk.

The log is a folder of segments. A segment begins with a magic word and a random salt and goes on with records:

    mark (4 bytes), length, CRC-32 (4 bytes each), then so many bytes:
    number (8 bytes), kind (1 byte), length of the JSON (4 bytes), JSON, pixels

*Samples*: one request; ``number`` is that of its first sample, counted from 1. The pixels are decoded, in the model's
format, so that a replay depends on no decoder. *Cut*: the samples up to ``number`` that no earlier cut took were one
batch. Samples are written when they arrive and cuts when a batch begins, so an answer never waits for a step, and a
replay takes the same steps. The CRC begins with the salt: no image can be made to look like a record.
"""

import errno
import json
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError, WriteError
from ocil.networks import ImageShape
from ocil.online.model import Label, decoded, encoded

MAGIC = b"ocil log 1\n"
SALT = 16
MARK = b"\xf1rec"
HEAD = struct.Struct("<4sII")
BODY = struct.Struct("<QBI")
SAMPLES, CUT = 1, 2
SEGMENT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Samples:
    """What one request brought: labelled images with consecutive numbers."""

    first: int
    labels: tuple[Label, ...]
    pixels: NDArray[np.uint8]
    """[N, H, W, C], as the network takes them."""
    key: str | None = None
    """What the client calls the request, to be able to repeat it."""
    digest: str = ""
    """Of labels and pixels: a key must not stand for two requests."""

    @property
    def last(self) -> int:
        return self.first + len(self.labels) - 1

    def body(self) -> bytes:
        told = {"labels": [encoded(label) for label in self.labels], "shape": self.pixels.shape[1:]}
        if self.key is not None:
            told |= {"key": self.key, "digest": self.digest}
        header = json.dumps(told).encode()
        return BODY.pack(self.first, SAMPLES, len(header)) + header + np.ascontiguousarray(self.pixels).tobytes()


@dataclass(frozen=True)
class Cut:
    """A batch ends with this sample."""

    last: int

    def body(self) -> bytes:
        return BODY.pack(self.last, CUT, 0)


Record = Samples | Cut


class DamagedError(OcilError):
    """A record that should be whole is not, or a file is where none should be."""


@dataclass(frozen=True)
class Segment:
    path: Path
    first: int
    """The number that the next sample had when it was begun."""

    @classmethod
    def of(cls, path: Path) -> "Segment":
        if not re.fullmatch(r"\d{20}-\d{4,}", path.stem):
            raise DamagedError(f"{path} does not belong to the log: take it out of the folder.")
        return cls(path, int(path.stem.partition("-")[0]))


class Log:
    """The log of one model. ``position`` is the number of the last sample that the model on disk has learned.

    Opening it cuts off a record that was not finished when the process or the machine stopped; such a record was
    acknowledged to nobody. Damage anywhere else is an error.
    """

    def __init__(
        self, folder: Path, position: int, shape: ImageShape | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """``shape``: what images the model takes, if they are to be checked."""
        self.folder, self.position, self.shape, self.segment_bytes = folder, position, shape, segment_bytes
        self.broken: str | None = None
        """Why nothing can be written any more."""
        self._lock = threading.Lock()
        self._file: int | None = None  # a descriptor: a buffer would hide when something is written
        self._salt, self._end, self._has_samples = b"", 0, False
        _make_folder(folder)
        self.last = position
        """The number of the last sample written."""
        self.keys: dict[str, tuple[int, int, str]] = {}
        """First number, count and digest of each request with a key, as far as records are still there."""
        self.labels: set[Label] = set()
        """Those of samples that the model on disk has not learned."""
        self._next: int | None = None
        self._left: list[tuple[Segment, int]] = []
        """What a replay has to read: segments, and where they ended when the log was opened."""
        self._open()

    def _open(self) -> None:
        needed = [segment for segment in self.segments() if not self._is_covered(segment, self.position)]
        for segment in needed:
            end = _good_end(segment.path, last=segment is needed[-1])
            if end == 0:  # not even its first line was finished
                segment.path.unlink()
                sync_folder(self.folder)
                continue
            if end < segment.path.stat().st_size:
                with segment.path.open("r+b") as file:
                    file.truncate(end)
                    os.fsync(file.fileno())
            self._take_stock(segment, end)
            self._left.append((segment, end))

    def _take_stock(self, segment: Segment, end: int) -> None:
        for record in read(segment.path, end):
            if isinstance(record, Cut):
                continue
            expected = self.position + 1 if self._next is None else self._next
            if record.first > expected or (self._next is not None and record.first < expected):
                raise DamagedError(
                    f"{segment.path} goes on with sample {record.first} where {expected} should be. "
                    "Restore the whole folder from one and the same copy."
                )
            if self.shape is not None and record.last > self.position and record.pixels.shape[1:] != self.shape:
                has, wants = (" x ".join(map(str, shape)) for shape in (record.pixels.shape[1:], self.shape))
                raise DamagedError(f"{segment.path} holds images of {has} pixels, but the model takes {wants}.")
            self._next = record.last + 1
            self.last = max(self.last, record.last)
            if record.key is not None:
                self.keys[record.key] = (record.first, len(record.labels), record.digest)
            if record.last > self.position:
                self.labels.update(record.labels)

    def segments(self) -> list[Segment]:
        return [Segment.of(path) for path in sorted(self.folder.glob("*-*.log"))]

    def _is_covered(self, segment: Segment, position: int) -> bool:
        """Whether it holds no sample behind ``position``: a later segment tells."""
        return any(segment.path < later.path and later.first <= position + 1 for later in self.segments())

    def replay(self) -> Iterator[Record]:
        """What the model on disk has not learned, in order. Samples that it has are left out of their record."""
        for segment, end in self._left:
            for record in read(segment.path, end):
                if record.last <= self.position:
                    continue
                if isinstance(record, Samples) and record.first <= self.position:
                    known = self.position + 1 - record.first
                    record = Samples(self.position + 1, record.labels[known:], record.pixels[known:])
                yield record

    def append(self, records: Sequence[Record], sync: bool = True) -> None:
        """All of them, or an error and none. With ``sync`` they are on the disk when this returns."""
        with self._lock:
            if self.broken:
                raise WriteError(self.broken)
            file = self._file
            if file is None or (self._has_samples and self._end >= self.segment_bytes):
                file = self._begin_segment()
            content = b"".join(framed(record.body(), self._salt) for record in records)
            try:
                _write_all(file, content)
            except OSError as error:
                self._take_back(file, error, well=error.errno in (errno.ENOSPC, errno.EDQUOT))
            try:
                if sync:
                    os.fsync(file)
            except OSError as error:  # also of a full disk: cuts that were not synced yet may be gone
                self._take_back(file, error, well=False)
            self._end += len(content)
            for record in records:
                if isinstance(record, Samples):
                    self.last, self._has_samples = record.last, True

    def _take_back(self, file: int, error: OSError, well: bool) -> NoReturn:
        """Remove what was written of a failed append. Raises in any case. ``well``: the disk is, but full."""
        message = f"cannot write to {self.folder.name}: {error.strerror or error}"
        try:
            os.ftruncate(file, self._end)
            os.lseek(file, self._end, os.SEEK_SET)
        except OSError:
            well = False
        if well:
            raise WriteError(f"{message}. Free some space.") from error
        self._break(error)

    def _break(self, error: OSError) -> NoReturn:
        """After a failed sync nobody knows what is on the disk: only reading it anew tells."""
        reason = error.strerror or error
        self.broken = f"cannot write to {self.folder.name}: {reason}. Restart the service once the disk is well."
        raise WriteError(self.broken) from error

    def _begin_segment(self) -> int:
        """Under a name that was never used: after a segment of cuts alone the next one begins at the same sample."""
        try:
            self._close()
            taken = [int(s.path.stem.partition("-")[2]) for s in self.segments() if s.first == self.last + 1]
            path = self.folder / f"{self.last + 1:020d}-{max(taken, default=-1) + 1:04d}.log"
            file, salt = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), os.urandom(SALT)
            try:
                _write_all(file, MAGIC + salt)
                os.fsync(file)
                sync_folder(self.folder)
            except OSError:
                os.close(file)
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise WriteError(f"cannot write to {self.folder.name}: {error.strerror}. Free some space.") from error
        self._file, self._salt, self._end, self._has_samples = file, salt, len(MAGIC) + SALT, False
        return file

    def sync(self) -> None:
        """Everything written so far is on the disk when this returns."""
        with self._lock:
            if self._file is not None:
                try:
                    os.fsync(self._file)
                except OSError as error:
                    self._break(error)

    def covered(self, position: int) -> None:
        """The model on disk has learned all samples up to ``position``: delete what it needs no more."""
        with self._lock:
            if self._has_samples:
                self._close()  # so that this segment can go with a later checkpoint
            for segment in self.segments():
                all_of_it = self._file is None and self.last <= position
                if all_of_it or self._is_covered(segment, position):
                    segment.path.unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file, self._has_samples = self._file, None, False
            try:
                os.fsync(file)
            except OSError as error:
                self._break(error)
            finally:
                os.close(file)


def framed(body: bytes, salt: bytes) -> bytes:
    return HEAD.pack(MARK, len(body), zlib.crc32(body, zlib.crc32(salt))) + body


def read(path: Path, end: int | None = None) -> Iterator[Record]:
    """The records of a segment up to ``end``, or to the first one that is not whole."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        salt = _salt(file)
        if salt is None:
            return
        while end is None or file.tell() < end:
            body = _whole_body(file, salt, size)
            if body is None:
                return
            yield _record(body, path)


def _record(body: bytes, path: Path) -> Record:
    try:
        number, kind, length = BODY.unpack_from(body)
        if kind == CUT:
            return Cut(number)
        header = json.loads(body[BODY.size : BODY.size + length])
        labels = tuple(decoded(label) for label in header["labels"])
        pixels = np.frombuffer(body, np.uint8, offset=BODY.size + length).reshape(len(labels), *header["shape"])
        return Samples(number, labels, pixels, header.get("key"), header.get("digest", ""))
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path} holds a record that this version of ocil does not know: {error}.") from error


def _salt(file: BinaryIO) -> bytes | None:
    start = file.read(len(MAGIC) + SALT)
    return start[len(MAGIC) :] if len(start) == len(MAGIC) + SALT and start.startswith(MAGIC) else None


def _whole_body(file: BinaryIO, salt: bytes, size: int) -> bytes | None:
    """The body of the record here; None, and the file where it was, if it is not whole."""
    start = file.tell()
    head = file.read(HEAD.size)
    if len(head) == HEAD.size:
        mark, length, crc = HEAD.unpack(head)
        if mark == MARK and BODY.size <= length <= size - file.tell():
            body = file.read(length)
            if zlib.crc32(body, zlib.crc32(salt)) == crc:
                return body
    file.seek(start)
    return None


def _good_end(path: Path, last: bool) -> int:
    """Where the last whole record ends; 0 for a segment that has not even begun.

    Whatever follows is a torn tail if this is the last segment and no whole record comes behind it.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            salt = _salt(file)
            if salt is None:
                if last and size <= len(MAGIC) + SALT:
                    return 0
                raise DamagedError(f"{path} does not begin like a log of ocil. Restore it from a copy.")
            while _whole_body(file, salt, size) is not None:
                pass
            end = file.tell()
            if end < size and (not last or _any_whole(file, salt, size)):
                raise DamagedError(
                    f"{path} is damaged at byte {end}, and there are whole records behind it. Restore it from a copy."
                )
            return end
    except OSError as error:
        raise OcilError(f"{path} cannot be read: {error.strerror}.") from error


def _any_whole(file: BinaryIO, salt: bytes, size: int) -> bool:
    start = file.tell()
    rest = file.read()
    found = rest.find(MARK, 1)
    while found >= 0:
        file.seek(start + found)
        if _whole_body(file, salt, size) is not None:
            return True
        found = rest.find(MARK, found + 1)
    return False


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
    except OSError as error:
        raise WriteError(f"cannot write to {folder}: {error.strerror}. Choose another folder.") from error


def sync_folder(folder: Path) -> None:
    """A file's name is on the disk only once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
