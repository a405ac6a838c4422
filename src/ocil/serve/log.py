"""An append-only log of labelled samples: what is acknowledged is in it, synced to disk.

The log is a folder of segments, files that are written one after the other; ``ocil.serve.segment`` has their format and
``ocil.serve.records`` what is in them.
"""

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ocil.errors import WriteError
from ocil.files import open_regular, sync_folder
from ocil.online.formats import InputFormat
from ocil.serve.newest import Newest, open_newest, update_newest, write_newest
from ocil.serve.records import Change, Cut, Record, SampleRecord
from ocil.serve.recovery import recover, write_missing
from ocil.serve.segment import SALT, Segment, framed, header, needed_segments, read, segments_of

SEGMENT_BYTES = 64 * 2**20


class Log:
    """The log of one model. ``position`` is the number of the last sample that the model on disk has learned.

    Opening it cuts off a record that was provably not finished when the process or the machine stopped; such a record
    was never acknowledged. Anything else that cannot be read is an error, and nothing is changed, unless
    ``set_aside`` asks to go on without it. Which samples and changes are missing then is written down, so that the
    next opening needs no such permission for them.
    """

    def __init__(
        self,
        folder: Path,
        position: int,
        input_format: InputFormat | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        set_aside: bool = False,
        changes: int = 0,
        newest_is_named: bool = True,
    ) -> None:
        """``input_format``: what the model takes, if the log is to be checked for it. ``changes``: the number of the
        last change that was made to the model on disk. ``newest_is_named``: False if an earlier version saved that
        model, see ``ocil.serve.newest``.
        """
        self.folder, self.position, self.segment_bytes, self.changes = folder, position, segment_bytes, changes
        self.broken: str | None = None
        """Why nothing can be written any more."""
        self._lock = threading.Lock()
        self._file: int | None = None  # a descriptor: a buffer would hide when something is written
        self._path, self._salt, self._end, self._has_requests = folder, b"", 0, False
        self.recovered = recover(folder, position, input_format, set_aside, changes, newest_is_named)
        self.last = self.recovered.last
        """The number of the last sample written."""
        self.last_change = self.recovered.last_change
        """The number of the last change written."""

    def segments(self) -> list[Segment]:
        return segments_of(self.folder)

    def records(self) -> Iterator[Record]:
        """All that is left of the log, in order. ``DamagedError`` at what cannot be read: a start looks no further back
        than the model needs."""
        segments = self.segments()
        for segment in segments:
            yield from read(segment.path, complete=segment != segments[-1])

    def replay(self) -> Iterator[Record]:
        """What the model on disk has not learned, in order. Samples that it has are left out of their record.

        A change that was made to a sample in the queue is there as long as its sample is, for the queue is not saved.
        """
        for segment, end in self.recovered.segments:
            for record in read(segment.path, end):
                if isinstance(record, Change):
                    if record.number > self.changes or record.sample > self.position:
                        yield record
                    continue
                if record.last <= self.position:
                    continue
                if isinstance(record, SampleRecord) and record.first <= self.position:
                    known = self.position + 1 - record.first
                    part: dict[str, Any] = {"first": self.position + 1, "labels": record.labels[known:]}
                    record = replace(record, **part, inputs=record.inputs[known:], key=None, digest="")
                yield record

    def append(self, records: Sequence[Record], sync: bool = True) -> None:
        """Write all of them, or none and raise. With ``sync`` they are on the disk when this returns."""
        with self._lock:
            if self.broken:
                raise WriteError(self.broken)
            file = self._file
            if file is None or (self._has_requests and self._end >= self.segment_bytes):
                file = self._begin_segment()
            newest = self._newest_with(records)
            requests = any(not isinstance(record, Cut) for record in records)
            if requests and self.recovered.newest != self._path:
                self._name_newest()
            content = b"".join(framed(record.body(), self._salt) for record in records)
            with self._opened_newest(sync and requests) as newest_file:
                try:
                    _write_all(file, content)
                except OSError as error:
                    self._take_back(file, error, full=error.errno in (errno.ENOSPC, errno.EDQUOT))
                try:
                    if sync:
                        os.fsync(file)
                    if newest_file is not None:
                        update_newest(newest_file, newest)
                except OSError as error:  # also of a full disk: cuts that were not synced yet may be gone
                    self._take_back(file, error, full=False)
            self._end += len(content)
            self.last, self.last_change = newest.sample, newest.change
            self._has_requests |= requests

    def _newest_with(self, records: Sequence[Record]) -> Newest:
        """The segment that is written, and the numbers of the last sample and change once these records are in it."""
        samples = [record.last for record in records if isinstance(record, SampleRecord)]
        changes = [record.number for record in records if isinstance(record, Change)]
        return Newest(self._path, max([self.last, *samples]), max([self.last_change, *changes]))

    def _name_newest(self) -> None:
        """Requests will follow in the segment that is written: from now on it must be there."""
        try:
            write_newest(self.folder, Newest(self._path, self.last, self.last_change))
        except OSError as error:
            raise WriteError(f"cannot write to {self.folder.parent.name}: {error.strerror or error}.") from error
        self.recovered.newest = self._path

    @contextmanager
    def _opened_newest(self, needed: bool) -> Iterator[int | None]:
        """The file with the numbers of the newest requests, opened before they are written: too many open files, which
        pass, must not look like a disk that fails."""
        try:
            file = open_newest(self.folder) if needed else None
        except OSError as error:
            raise WriteError(f"cannot write to {self.folder.parent.name}: {error.strerror or error}.") from error
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)

    def _take_back(self, file: int, error: OSError, full: bool) -> NoReturn:
        """Remove what was written of a failed append. Raises always. ``full``: the disk is full, but works."""
        message = f"cannot write to {self.folder.name}: {error.strerror or error}"
        try:
            os.ftruncate(file, self._end)
            os.lseek(file, self._end, os.SEEK_SET)
        except OSError:
            full = False
        if full:
            raise WriteError(f"{message}. Free some space.") from error
        self._break(error)

    def _break(self, error: OSError) -> NoReturn:
        """Write no more: after a failed sync, only reading the disk anew shows what is on it."""
        reason = error.strerror or error
        self.broken = f"cannot write to {self.folder.name}: {reason}. Restart the service once the disk works again."
        raise WriteError(self.broken) from error

    def _begin_segment(self) -> int:
        """Open a new segment whose name sorts after all others.

        After a segment of cuts alone the next one begins at the same sample. Where the end of the log was set aside,
        the number of a segment of cuts may even be higher than that of the next sample.
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
        self._file, self._path, self._salt, self._end, self._has_requests = file, path, salt, len(start), False
        return file

    def sync(self) -> None:
        """Everything written so far is on the disk when this returns."""
        with self._lock:
            if self._file is not None:
                try:
                    os.fsync(self._file)
                except OSError as error:
                    self._break(error)

    def forget_newest_if_saved(self, position: int, changes: int) -> None:
        """Forget that the newest segment must be there, if the log has nothing behind these numbers.

        ``position`` and ``changes``: the last sample and the last change that the model on disk has.
        """
        with self._lock:
            if self.recovered.newest is not None and self.last <= position and self.last_change <= changes:
                self._forget_newest()

    def _forget_newest(self) -> None:
        write_newest(self.folder, None)
        self.recovered.newest = None

    def delete_covered_segments(self, position: int, changes: int | None = None, gaps_after: int | None = None) -> None:
        """Delete the segments that the model on disk, which has learned all samples up to ``position``, needs no more.

        ``changes``: those that were made to it; None: all. A change that was not came after all of these samples: it
        waits only while a step is under way. ``gaps_after``: gaps among the changes are remembered from this one on;
        None: from ``changes`` on.
        """
        changes = self.last_change if changes is None else changes
        with self._lock:
            if self._has_requests:
                self._close()  # so that this segment can go with a later checkpoint
            all_made = self.last_change <= changes
            all_of_it = self._file is None and self.last <= position and all_made
            needed = set() if all_of_it else set(needed_segments(self.folder, position if all_made else position - 1))
            unneeded = [segment.path for segment in self.segments() if segment not in needed]
            if self.recovered.newest in unneeded:
                self._forget_newest()  # before the segment goes
            for path in unneeded:
                path.unlink(missing_ok=True)
            self._forget_missing(position, changes if gaps_after is None else gaps_after)

    def _forget_missing(self, position: int, changes: int) -> None:
        """Keep the gaps behind these numbers alone."""
        found = self.recovered
        samples = tuple(gap for gap in found.missing if gap.stop > position + 1)
        later = tuple(gap for gap in found.missing_changes if gap.stop > changes + 1)
        if (samples, later) != (found.missing, found.missing_changes):
            write_missing(self.folder, samples, later)
            found.missing, found.missing_changes = samples, later

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Nothing is written or deleted inside the block."""
        with self._lock:
            yield

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file, self._has_requests = self._file, None, False
            try:
                os.fsync(file)
            except OSError as error:
                self._break(error)
            finally:
                os.close(file)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
