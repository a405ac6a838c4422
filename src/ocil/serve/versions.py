"""Named snapshots of a model, which can be compared, pinned for predictions, and restored.

A version is a folder ``versions/NUMBER`` with a model file and a short description, which is written last: without it
there is no version. NUMBER is that of the change that saved it, so no name from a request reaches the file system, and
a number is never given twice.
"""

import json
import logging
import os
import re
import shutil
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocil.errors import LaterVersionError, OcilError, WriteError
from ocil.files import read_regular, sync_folder, write_bytes
from ocil.online.header import entry, reading_note, whole
from ocil.online.model import FILE, Model
from ocil.runs.results import check_sealed, sealed
from ocil.serve.limits import RefusedError
from ocil.serve.records import Change
from ocil.serve.statistics import Scored

FOLDER, DESCRIPTION = "versions", "version.json"
SCHEMA = 2  # the first one was not written down, and had no checksum
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
RESERVED = ("pinned", "compare")  # they are paths beside the versions

logger = logging.getLogger("ocil.serve")


@dataclass(frozen=True)
class Version:
    """A saved model in numbers."""

    number: int
    """Of the change that saved it."""
    name: str
    time: float
    position: int
    """The number of the last sample that it has learned, or that an earlier one had learned when it was restored."""
    changes: int
    """The number of the last change that was made to it."""
    samples: int
    """Samples that it has learned in its life."""
    classes: int
    scored: int
    """Samples that the service had predicted before it learned them, in its life, when this version was saved."""
    correct: int
    """How many of them it had predicted correctly."""
    bytes: int = 0

    @classmethod
    def from_json(cls, content: Any) -> "Version":
        numbers = {
            name: whole(content, name)
            for name in ("number", "position", "changes", "samples", "classes", "scored", "correct", "bytes")
        }
        return cls(name=entry(content, "name", str), time=entry(content, "time", float), **numbers)


def checked_name(name: str) -> str:
    if not re.fullmatch(NAME, name, re.ASCII) or name in RESERVED:
        raise RefusedError(
            422,
            "a version's name has 1 to 64 English letters, digits, dots, dashes and underscores, begins with a letter "
            f"or a digit, and is not {' or '.join(RESERVED)}.",
        )
    return name


class Versions:
    """The versions of one model. The learning thread writes; others read."""

    def __init__(self, folder: Path, set_aside_damage: bool = False) -> None:
        """``folder``: of the model. ``set_aside_damage``: go on without a version whose description is damaged."""
        self.folder = folder / FOLDER
        self.all: tuple[Version, ...] = ()
        """From the oldest to the newest. Each change makes a new tuple."""
        if os.path.lexists(self.folder):
            if not stat.S_ISDIR(self.folder.lstat().st_mode):
                raise OcilError(f"{self.folder} is a symbolic link or a file: versions need a folder of their own.")
            places = [place for place in self.folder.iterdir() if re.fullmatch(r"\d{20}", place.name)]
            there = (place for place in sorted(places) if (place / DESCRIPTION).exists())
            described = (_described(place, set_aside_damage) for place in there)
            self.all = tuple(version for version in described if version)

    def path(self, number: int) -> Path:
        return self.folder / f"{number:020d}"

    def find(self, number: int) -> Version | None:
        return next((one for one in self.all if one.number == number), None)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.all)

    @property
    def needed_from(self) -> int | None:
        """The log is needed from this sample on, for versions to be restored; None: there are none."""
        return min((one.position for one in self.all), default=None)

    @property
    def changes_needed_from(self) -> int | None:
        """The same of changes."""
        return min((one.number for one in self.all), default=None)

    def save(self, change: Change, model: Model, position: int, scored: Scored) -> None:
        """Save the model, with its note as it is. ``WriteError`` if it cannot be written."""
        place = self.path(change.number)
        try:
            if not (place / DESCRIPTION).exists():
                shutil.rmtree(place, ignore_errors=True)  # what a process that was killed while it saved left there
            place.mkdir(parents=True, exist_ok=True)
            model.save(place)
            made = Version(
                number=change.number,
                name=change.name,
                time=change.time,
                position=position,
                changes=change.number - 1,
                samples=model.samples,
                classes=len(model.labels),
                scored=scored.samples,
                correct=scored.correct,
                bytes=(place / FILE).stat().st_size,
            )
            write_bytes(place / DESCRIPTION, json.dumps(sealed({"schema": SCHEMA, **asdict(made)})).encode())
            for written in (place, self.folder, self.folder.parent):
                sync_folder(written)
        except (OSError, WriteError) as error:
            shutil.rmtree(place, ignore_errors=True)
            reason = getattr(error, "strerror", None) or error
            raise WriteError(f"the version could not be saved: {reason}") from error
        self.all = (*self.all, made)

    def load(self, number: int, like: Model) -> Model:
        """The model of a version, on the device of another one. ``OcilError`` if its file is damaged."""
        model = Model.load(self.path(number), like.device, trust=like.config.network)
        model.threads = like.threads
        return model

    def drop(self, number: int) -> None:
        place = self.path(number)
        try:
            (place / DESCRIPTION).unlink(missing_ok=True)
            sync_folder(place)
            shutil.rmtree(place)
            sync_folder(self.folder)
        except OSError as error:
            raise WriteError(f"the version could not be deleted: {error.strerror or error}") from error
        finally:
            self.all = tuple(one for one in self.all if one.number != number)


def _described(place: Path, set_aside_damage: bool) -> Version | None:
    """The version in a folder; None if its description is damaged and damage is set aside."""
    path = place / DESCRIPTION
    try:
        with reading_note(f"the version in {place}"):
            content = {"schema": 1, **json.loads(read_regular(path))}
            check_sealed(content, SCHEMA)
            return Version.from_json(content)
    except OcilError as error:
        reason = str(error.__cause__).rstrip(".")
        if isinstance(error.__cause__, LaterVersionError):
            raise OcilError(f"{path} is of a later version of ocil: {reason}. Update ocil.") from error
        message = f"{path}, which describes a version, is damaged: {reason}."
        if not set_aside_damage:
            advice = "Restore it from a copy, or start with --set-aside-damage to go on without this version."
            raise OcilError(f"{message} {advice}") from error
        logger.warning("%s The service goes on without this version.", message)
        return None
