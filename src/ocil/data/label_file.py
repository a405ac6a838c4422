"""Label files: CSV lists of images with their labels, and the paths that lists of images name.

A list may come from a stranger: what it names must lie below its folder, also behind symbolic links.
"""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Literal, NamedTuple

from ocil.errors import OcilError
from ocil.files import read_regular
from ocil.text import lines_of

MAX_LIST_BYTES = 2**30
LONGEST_LINE = 10_000  # of column names, in bytes
TRAIN, TEST, VALIDATION = ("train", "training"), ("test", "testing"), ("val", "valid", "validation")
PATH_COLUMNS = ("path", "filename")
FIRST_LINE = "its first line must name the columns path and label"

SplitName = Literal["train", "test", "val"]


class LabelledFile(NamedTuple):
    """An image file and its class: a line of a label file, or a file in the folder of its class."""

    name: str
    """The path in the list, relative to the folder of the list or of all classes."""
    path: Path
    label: str
    split: SplitName = "train"
    domain: str = ""
    """Empty if the file has no column ``domain``."""


def read_label_file(file: Path) -> list[LabelledFile]:
    """The images of a CSV with the columns ``path`` (or ``filename``) and ``label``, in its order.

    A column ``split`` may say train, test or val; without one, all images are for training. A column ``domain`` may
    name the domain of each image. Raises ``OcilError`` in one line that names the file, the line and what is wrong with
    it.
    """
    content = text(file.resolve())
    if not content.strip():
        raise OcilError(f"{file} is empty: {FIRST_LINE}.")
    if (columns := columns_of(file)) is None:
        raise OcilError(f"{file} is not a label file: {FIRST_LINE}, or columns of numbers, with commas between them.")
    where = next(name for name in PATH_COLUMNS if name in columns)
    rows = csv.DictReader(io.StringIO(content, newline=""), restval="")
    rows.fieldnames = names = [name.strip().lower() for name in rows.fieldnames or ()]
    if again := sorted({name for name in (where, "label", "split", "domain") if names.count(name) > 1}):
        raise OcilError(f"{file} has several columns with the name {again[0]}. Leave one of them.")
    found, folder, once = [], ImageFolder(file.parent), OneLabel(file)
    try:
        for row in rows:
            line, name, label = f"{file}, line {rows.line_num}", row[where].strip(), row["label"].strip()
            if not label:
                raise OcilError(f"{line} has no label.")
            path, split = folder.inside(name, line), split_name(row.get("split", "").strip().lower(), line)
            if "domain" in names and not row["domain"].strip():
                raise OcilError(f"{line} has no domain.")
            once.add(path, label)
            found.append(LabelledFile(name, path, label, split, row.get("domain", "").strip()))
    except csv.Error as error:
        raise OcilError(f"{file} is not a CSV file: {error}.") from error
    if not found:
        raise OcilError(f"{file} names no images: it has no lines below the first.")
    return found


def columns_of(file: Path) -> set[str] | None:
    """The columns of a label file; None if it is not one."""
    try:
        with file.open("rb") as opened:
            first = opened.readline(LONGEST_LINE).decode("utf-8-sig")
        columns = {name.strip().lower() for name in next(csv.reader([first]), [])}
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    return columns if "label" in columns and columns & set(PATH_COLUMNS) else None


def split_name(name: str, line: str) -> SplitName:
    """What a word in the column ``split`` means. ``line`` begins the message of an ``OcilError``."""
    known: tuple[tuple[SplitName, tuple[str, ...]], ...] = (
        ("train", ("", *TRAIN)),
        ("test", TEST),
        ("val", VALIDATION),
    )
    for split, spellings in known:
        if name in spellings:
            return split
    raise OcilError(f"{line}: the split is {name[:40]!r}, which is neither train nor test nor val.")


class OneLabel:
    """Notices an image that a list names twice with different labels."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._labels: dict[Path, str] = {}

    def add(self, path: Path, label: str) -> None:
        if (known := self._labels.setdefault(path, label)) != label:
            both = f"{known[:40]!r} and {label[:40]!r}"
            raise OcilError(f"{self.file} gives {path} two labels, {both}. Leave one of them.")


class ImageFolder:
    """The folder below which all images of a list must lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._absolute, self._real = folder.absolute(), os.path.realpath(folder)
        self._real_parents: dict[Path, str] = {}
        """Where the folders of images really are: a list of a million images has few of them."""

    def inside(self, where: str, line: str) -> Path:
        """The image that a line of a list names. ``line`` begins the message of an ``OcilError``."""
        named = self._relative(where)
        out = named.is_absolute() or ".." in named.parts or bool(PureWindowsPath(named).drive) or "\0" in where
        if out:
            how = f"Images must lie in {self.folder} or below: move the list of images to a folder above them."
            raise OcilError(f"{line} leads out of the folder of the images: {where[:80]!r}. {how}")
        if not named.parts:
            raise OcilError(f"{line} names no image: {where[:80]!r}.")
        path = self.folder / named
        if not self._is_really_inside(path):
            raise OcilError(f"{line} leads out of the folder of the images by a symbolic link: {where[:80]!r}.")
        return path

    def _relative(self, where: str) -> PurePosixPath:
        """The path as the list names it, relative to the folder if it is an absolute one that leads into it."""
        given = Path(where)
        for folder in (self._absolute, self._real):
            if given.is_absolute() and given.is_relative_to(folder):
                where = given.relative_to(folder).as_posix()
        return PurePosixPath(where.replace("\\", "/"))

    def _is_really_inside(self, path: Path) -> bool:
        if (real := self._real_parents.get(path.parent)) is None:
            real = self._real_parents[path.parent] = os.path.realpath(path.parent)
        if path.is_symlink():
            real = os.path.realpath(path)
        return Path(real).is_relative_to(self._real)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not empty, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(lines_of(text(path)), 1) if line.strip())


def text(path: Path) -> str:
    """The content of a text file. ``OcilError`` if it cannot be read."""
    try:
        return read_regular(path, MAX_LIST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OcilError(f"{path} is not text: {error.reason}. Save it as UTF-8.") from error
    except OSError as error:
        raise OcilError(f"cannot read {path}: {error.strerror}.") from error
