"""A consistent copy of a model that learns: all files of its folder, as they are at one moment, in a tar archive.

Between two steps the model is saved, unless learning has stopped, and its files are opened. Then learning goes on while
they are read: a model file or a version is only ever replaced as a whole, so an open one stays as it was, and a segment
of the log only grows, so its length at that moment marks its end. A record that is cut in two there counts as never
written, as after a crash.
"""

import io
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ocil.files import open_regular
from ocil.online.model import FILE
from ocil.serve import audit, held_out, versions
from ocil.serve.limits import RefusedError
from ocil.serve.newest import newest_file

if TYPE_CHECKING:
    from ocil.serve.service import Service

CHUNK = 2**20


@dataclass(frozen=True)
class _Member:
    name: str
    file: IO[bytes]
    size: int


def backup(service: "Service") -> Iterator[bytes]:
    """The archive in chunks. ``RefusedError`` if the model cannot be saved now. Close it if it is not read to its end.

    To restore it, unpack it into an empty folder and serve that.
    """
    held = ExitStack()
    try:
        members = service.trainer.between_steps(lambda: _open_files(service, held)).result()
    except BaseException:
        held.close()
        raise
    return _archive(members, held)


def _open_files(service: "Service", held: ExitStack) -> list[_Member]:
    """In the learning thread: save the model unless learning has stopped, and open its files as they are now."""
    trainer, folder = service.trainer, service.folder
    if trainer.sound:  # else the last checkpoint and the log have all that a start would use
        trainer.save()
        if trainer.checkpoints.behind(trainer.position, trainer.changed):
            raise RefusedError(503, trainer.checkpoints.trouble or "the model could not be saved.", 10)
    found = [_member(folder, path, held) for path in _whole_files(folder)]
    bases = [(path.name, held.enter_context(_base(path))) for path in sorted(folder.glob("*.sqlite"))]
    found += [_Member(name, copied, copied.seek(0, os.SEEK_END)) for name, copied in bases]
    found += [_member(folder, path, held) for path in folder.glob(audit.FILE)]  # it only grows, as the log does
    with service.log.standing_still():
        found += [_member(folder, segment.path, held) for segment in service.log.segments()]
        newest = newest_file(service.log.folder)
        if newest.exists():  # read now, because later samples change it in place
            content = newest.read_bytes()
            # First in the archive: without its end, the log would else look as if nothing were missing.
            found.insert(0, _Member(newest.name, io.BytesIO(content), len(content)))
    return found


def _whole_files(folder: Path) -> list[Path]:
    """Files that are only ever replaced as a whole."""
    names = [FILE, held_out.FILE, "log/missing.safetensors"]
    names += [f"{versions.FOLDER}/*/{name}" for name in (FILE, versions.DESCRIPTION)]
    return [path for name in names for path in sorted(folder.glob(name))]


def _member(folder: Path, path: Path, held: ExitStack) -> _Member:
    file = held.enter_context(os.fdopen(open_regular(path), "rb"))
    return _Member(path.relative_to(folder).as_posix(), file, os.fstat(file.fileno()).st_size)


def _base(path: Path) -> IO[bytes]:
    """A copy of what is committed in a file of SQLite."""
    try:
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / path.name
            with closing(sqlite3.connect(path)) as base, closing(sqlite3.connect(copy)) as other:
                base.backup(other)
            return copy.open("rb")  # it stays readable when its name is gone
    except (sqlite3.Error, OSError) as error:
        where = tempfile.gettempdir()
        raise RefusedError(
            503, f"{path.name} cannot be copied to {where}: {error}. See that there is room.", 10
        ) from error


def _archive(members: list[_Member], held: ExitStack) -> Iterator[bytes]:
    with held:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.size, info.mtime, info.mode = member.size, int(time.time()), 0o600
            yield info.tobuf()
            left = member.size
            member.file.seek(0)
            while left:
                chunk = member.file.read(min(CHUNK, left)) or b"\0" * min(CHUNK, left)  # a segment that was cut off
                left -= len(chunk)
                yield chunk
            yield b"\0" * (-member.size % tarfile.BLOCKSIZE)
        yield b"\0" * 2 * tarfile.BLOCKSIZE
