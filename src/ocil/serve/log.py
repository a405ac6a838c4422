"""An append-only log of labelled images: what is acknowledged is in it, synced to disk.

The log is a folder of segments, files that are written one after the other; ``ocil.serve.segment`` has their format and
``ocil.serve.records`` what is in them.
"""

import errno
import logging
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import NoReturn

from ocil.errors import OcilError, WriteError
from ocil.files import open_regular, read_regular, write_bytes
from ocil.networks import ImageShape
from ocil.online.model import Label
from ocil.serve.missing import is_known, read_missing, write_missing
from ocil.serve.records import Cut, Record, Samples
from ocil.serve.segment import SALT, Condition, DamagedError, examine, framed, header, read

SEGMENT_BYTES = 64 * 2**20

warn = logging.getLogger("ocil.serve").warning


@dataclass(frozen=True, order=True)
class Segment:
    first: int
    """The number that the next sample had when it was begun, or a later one if the end of the log was set aside."""
    turn: int
    """Among the segments that were begun before the same sample."""
    path: Path

    @classmethod
    def of(cls, path: Path) -> "Segment":
        if not (name := re.fullmatch(r"(\d{20})-(\d{4,})", path.stem)):
            raise DamagedError(f"{path} does not belong to the log: take it out of the folder.")
        if not stat.S_ISREG(path.lstat().st_mode):
            raise DamagedError(f"{path} is not a regular file: take it out of the folder.")
        return cls(int(name[1]), int(name[2]), path)


class Log:
    """The log of one model. ``position`` is the number of the last sample that the model on disk has learned.

    Opening it cuts off a record that was provably not finished when the process or the machine stopped; such a record
    was acknowledged to nobody. Anything else that cannot be read is an error, and nothing is changed, unless
    ``set_aside`` asks to go on without it. Which samples are missing then is written down, so that the next opening
    needs no such permission for them.
    """

    def __init__(
        self,
        folder: Path,
        position: int,
        shape: ImageShape | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        set_aside: bool = False,
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
        self._missing: tuple[range, ...] = ()
        """Gaps among the samples that were accepted."""
        self._next: int | None = None
        self._left: list[tuple[Segment, int]] = []
        """What a replay has to read: segments, and where they ended when the log was opened."""
        self._open(set_aside)

    def _open(self, set_aside: bool) -> None:
        """All segments are read before any is changed: an error leaves them as they were."""
        try:
            listed = self._listed(set_aside)
            needed = self._needed(self.position)
            found = {segment: self._examined(segment, segment is needed[-1], set_aside) for segment in needed}
            for segment, condition in found.items():
                if condition.end:
                    self._take_stock(segment, condition.end, set_aside)
                    self._left.append((segment, condition.end))
            # Numbers behind the last sample are given to new ones.
            self._list_missing([gap for gap in self._missing if gap.stop <= self.last], listed)
            for segment, condition in found.items():
                if condition.unfinished:
                    _cut_off(segment.path, condition)
        except OSError as error:
            raise WriteError(f"cannot open the log {self.folder}: {error.strerror or error}.") from error

    def _listed(self, set_aside: bool) -> tuple[range, ...] | None:
        """The gaps that the disk knows of; None if the list is damaged and may be written anew."""
        try:
            self._missing = read_missing(self.folder)
        except DamagedError:
            if not set_aside:
                raise
            return None
        return self._missing

    def _list_missing(self, gaps: Sequence[range], listed: tuple[range, ...] | None) -> None:
        """Write down the gaps unless they are ``listed`` already."""
        self._missing = tuple(gaps)
        if self._missing != listed:
            write_missing(self.folder, self._missing)
            sync_folder(self.folder)

    def _examined(self, segment: Segment, last: bool, set_aside: bool) -> Condition:
        condition = examine(segment.path)
        if condition.unfinished and not last:  # it was cut off before the next segment was begun
            condition = replace(condition, damaged=(*condition.damaged, range(condition.end, condition.size)))
        if not condition.damaged:
            return condition
        if not set_aside:
            at = condition.damaged[0].start
            what = f"is damaged at byte {at}" if at else "does not begin like a log of this version of ocil"
            raise DamagedError(
                f"{segment.path} {what}, and acknowledged samples may be there. Restore it from a copy, or start with "
                "--set-aside-damage to go on without them."
            )
        return _set_aside(segment.path, condition)

    def _take_stock(self, segment: Segment, end: int, set_aside: bool) -> None:
        """``set_aside``: samples may be missing that are not known to be."""
        for record in read(segment.path, end):
            if isinstance(record, Cut):
                continue
            expected = self.position + 1 if self._next is None else self._next
            gap = range(expected, record.first)
            if set_aside:
                self._add_missing(range(min(expected, segment.first), record.first) if self._next is None else gap)
            if (gap and not is_known(gap, self._missing)) or (self._next is not None and record.first < expected):
                raise DamagedError(
                    f"{segment.path} goes on with sample {record.first} where {expected} should be. Restore the whole "
                    "folder from one and the same copy, or start with --set-aside-damage to go on with what is there."
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

    def _add_missing(self, gap: range) -> None:
        """A gap takes the place of those within it."""
        if gap and not is_known(gap, self._missing):
            self._missing = (*(one for one in self._missing if not is_known(one, [gap])), gap)

    def segments(self) -> list[Segment]:
        return sorted(Segment.of(path) for path in self.folder.glob("*-*.log"))

    def _needed(self, position: int) -> list[Segment]:
        """Those that may hold a sample behind ``position``, and the last one: where the next one begins tells."""
        segments = self.segments()
        before_last = [one for one, later in pairwise(segments) if later.first > position + 1]
        return before_last + segments[-1:]

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
        """Under a name behind all others: after a segment of cuts alone the next one begins at the same sample.

        Where the end of the log was set aside, a segment of cuts may even be behind the samples that come next.
        """
        try:
            self._close()
            segments = self.segments()
            first = max([self.last + 1, *(segment.first for segment in segments)])
            taken = [segment.turn for segment in segments if segment.first == first]
            path = self.folder / f"{first:020d}-{max(taken, default=-1) + 1:04d}.log"
            salt = os.urandom(SALT)
            start = header(salt)
            file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                _write_all(file, start)
                os.fsync(file)
                sync_folder(self.folder)
            except OSError:
                os.close(file)
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise WriteError(f"cannot write to {self.folder.name}: {error.strerror}. Free some space.") from error
        self._file, self._salt, self._end, self._has_samples = file, salt, len(start), False
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
            all_of_it = self._file is None and self.last <= position
            needed = set() if all_of_it else set(self._needed(position))
            for segment in self.segments():
                if segment not in needed:
                    segment.path.unlink(missing_ok=True)
            self._list_missing([gap for gap in self._missing if gap.stop > position + 1], self._missing)

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


def _cut_off(path: Path, condition: Condition) -> None:
    """Take away what was never finished; a segment that has not even begun goes."""
    if condition.end == 0:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
        return
    file = open_regular(path, os.O_WRONLY)
    try:
        os.ftruncate(file, condition.end)
        os.fsync(file)
    finally:
        os.close(file)


def _set_aside(path: Path, condition: Condition) -> Condition:
    """Keep the segment as it is under another name, and only what can be read of it under its own."""
    content = read_regular(path)
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    copy = next(name for name in names if not os.path.lexists(name))
    write_bytes(copy, content)
    sync_folder(path.parent)
    if condition.damaged[0].start == 0:  # without its header no record can be read
        path.unlink()
    else:
        edges = [0, *(edge for span in condition.damaged for edge in (span.start, span.stop)), condition.end]
        write_bytes(path, b"".join(content[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)))
    sync_folder(path.parent)
    lost = sum(map(len, condition.damaged))
    warn("%s: %d bytes cannot be read. The file as it was is kept as %s.", path, lost, copy.name)
    return examine(path) if path.exists() else Condition(0, 0)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _make_folder(folder: Path) -> None:
    """It must be a folder itself: what a link leads to may belong to somebody else, and segments are deleted."""
    try:
        if not os.path.lexists(folder):
            folder.mkdir(parents=True)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise OcilError(f"{folder} is a symbolic link or a file: the log needs a folder of its own there.")
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
