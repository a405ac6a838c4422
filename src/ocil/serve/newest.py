"""The name of the newest segment with requests that the saved model may lack, so that a start notices if it is gone.

Samples are numbered without gaps, so the segments themselves show if an earlier one is missing, but not if the last one
is. Its name is therefore kept in a file beside the log's folder:

- It is written when the segment is on the disk, and before the first request is written to the segment. So after a
  crash at any moment the segment that it names is there, and no acknowledged request is in a later one.
- It is removed once the saved model has all requests of the log, and so before the segment is deleted.

A log without such a file, as earlier versions wrote it, is not checked for this. Nor is one whose model an earlier
version saved: it does not know the file, and may have deleted the segment once it had learned it.
"""

from pathlib import Path

from ocil.files import read_regular, sync_folder, write_bytes
from ocil.serve.segment import NAME, DamagedError

ENDING = ".newest"
MOST_BYTES = 1000


def newest_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{ENDING}")


def read_newest(folder: Path) -> Path | None:
    """The segment that must be in the log's folder; None if none is named. ``DamagedError`` if the file has no name."""
    file = newest_file(folder)
    try:
        name = read_regular(file, MOST_BYTES).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if not NAME.fullmatch(name):
        raise DamagedError(
            f"{file}, which names the newest file of the log, is damaged. Restore it from a copy, or start with "
            "--set-aside-damage to go on without it."
        )
    return folder / name


def write_newest(folder: Path, segment: Path | None) -> None:
    """Name this segment, which must be on the disk; None: no segment has to be there. Synced to the disk."""
    file = newest_file(folder)
    if segment is None:
        file.unlink(missing_ok=True)
    else:
        write_bytes(file, f"{segment.name}\n".encode("ascii"))
    sync_folder(file.parent)
