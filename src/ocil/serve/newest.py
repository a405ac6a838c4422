"""What the log must hold, kept in a file beside its folder, so that a start notices if its end is gone.

Samples are numbered without gaps, so the segments themselves show if something is missing before their end, but not
if the end is: a copy that stopped too early looks like a log whose last record was never written. The file has the name
of the newest segment with requests that the saved model may lack, and the numbers of the last sample and of the last
change that were acknowledged:

- It is written when the segment is on the disk, and before the first request is written to the segment. So after a
  crash at any moment the segment that it names is there, and no acknowledged request is in a later one.
- Its numbers are written in place once requests are synced to the disk, and before they are acknowledged. They are not
  synced themselves, which would double the time that a request waits: after a power failure they may be older ones, and
  the log then has more than they say, never less.
- It is removed once the saved model has all requests of the log, and so before the segment is deleted.

A log without such a file, as earlier versions wrote it, is not checked for this. Nor is one whose model an earlier
version saved: it does not know the file, and may have deleted the segment once it had learned it.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ocil.files import open_regular, read_regular, sync_folder, write_bytes
from ocil.serve.segment import NAME, DamagedError

ENDING = ".newest"
MOST_BYTES = 1000
CONTENT = re.compile(rf"({NAME.pattern})( (?P<sample>\d{{20}}) (?P<change>\d{{20}}))?")
"""Of equal length for all numbers, which are written over others. A file of an earlier version has none."""


@dataclass(frozen=True)
class Newest:
    """What must be in the log."""

    segment: Path
    sample: int = 0
    """The number of the last sample that was acknowledged, or an earlier one; 0: not known."""
    change: int = 0
    """The same of changes."""

    def to_bytes(self) -> bytes:
        return f"{self.segment.name} {self.sample:020d} {self.change:020d}\n".encode("ascii")


def newest_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{ENDING}")


def read_newest(folder: Path) -> Newest | None:
    """What must be in the log's folder; None if nothing must. ``DamagedError`` if the file does not say it."""
    file = newest_file(folder)
    try:
        content = read_regular(file, MOST_BYTES).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if not (found := CONTENT.fullmatch(content)):
        raise DamagedError(
            f"{file}, which names the newest file of the log, is damaged. Restore it from a copy, or start with "
            "--set-aside-damage to go on without it."
        )
    return Newest(folder / found[1], int(found["sample"] or 0), int(found["change"] or 0))


def write_newest(folder: Path, newest: Newest | None) -> None:
    """Ask for this segment, which must be on the disk; None: nothing has to be there. Synced to the disk."""
    file = newest_file(folder)
    if newest is None:
        file.unlink(missing_ok=True)
    else:
        write_bytes(file, newest.to_bytes())
    sync_folder(file.parent)


def open_newest(folder: Path) -> int:
    """A descriptor of the file, which must be there, to write later numbers to."""
    return open_regular(newest_file(folder), os.O_WRONLY)


def update_newest(file: int, newest: Newest) -> None:
    """Write later numbers to the file, which is open and names this segment. Not synced to the disk."""
    os.write(file, newest.to_bytes())
