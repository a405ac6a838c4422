"""Errors that are reported to the user in one line."""

import difflib
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class OcilError(Exception):
    """An error that the user can fix: the message has what is wrong and what to do. The command line exits with 2.

    Examples:
        >>> try:
        ...     ocil.resolve("ef")
        ... except ocil.OcilError as error:
        ...     print(error)
        unknown method 'ef'. Did you mean 'er'? Known: ...
    """


class WriteError(OcilError):
    """A file or folder cannot be written. Other runs that write to the same place would fail as well."""


class LaterVersionError(OcilError, ValueError):
    """A file that a later version of ocil has written: nothing is wrong with it, but this version cannot read it."""


class InUseError(OcilError):
    """Another process works in ``folder``. Other folders of the same place may be free."""

    def __init__(self, message: str, folder: Path | None = None) -> None:
        super().__init__(message)
        self.folder = folder


class UnknownNameError(OcilError):
    """Nothing has this name. ``brief`` is the message without the names that there are."""

    def __init__(self, brief: str, word: str, known: Iterable[str]) -> None:
        super().__init__(brief, word, tuple(known))  # pickle gives these to a new one, in another process
        self.brief = brief

    def __str__(self) -> str:
        _, word, known = self.args
        return f"{self.brief}{suggest(word, known)}"


def suggest(word: str, known: Iterable[str]) -> str:
    """``" Did you mean 'er'? Known: afs, er."`` for a name that is not among the known ones."""
    names = sorted(known)
    return f"{close_to(word, names)} Known: {', '.join(names)}."


def close_to(word: str, known: Iterable[str]) -> str:
    """The first part of ``suggest``, where the known names may be too many to list; empty if none is close.

    A name of the same letters in another order is closer than any other: a slip of the keyboard, or parts that are
    swapped. Then come names that begin with the word.

    >>> close_to("ace-er", ["aser", "er-ace"]), close_to("re", ["er", "stride"])
    (" Did you mean 'er-ace'?", " Did you mean 'er'?")
    >>> close_to("my", ["may", "my-replay"])
    " Did you mean 'my-replay'?"
    """
    word, lower = word.lower(), {name.lower(): name for name in known}
    same_letters = [name for name in lower if sorted(name) == sorted(word)]
    longer = [name for name in lower if len(word) > 1 and name.startswith(word)]
    likely = same_letters or longer
    close = difflib.get_close_matches(word, likely or lower, n=1, cutoff=0.0 if likely else 0.5)
    return f" Did you mean '{lower[close[0]]}'?" if close else ""


@contextmanager
def optional(what: str, extra: str, *modules: str) -> Iterator[None]:
    """Import optional modules inside this block.

    ``OcilError`` with the extra to install if one of ``modules`` is not installed, or with the reason if it is
    installed but cannot be imported. ``what``: the beginning of the message.
    """
    hint = f"pip install 'ocil[{extra}]'"
    try:
        yield
    except OcilError:
        raise
    except Exception as error:  # a package that does not fit the others may raise anything while it is imported
        if absent := [name for name in modules if not _is_there(name)]:
            raise OcilError(f"{what}, and {absent[0]} is not installed: {hint}") from None
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise OcilError(f"{what}, which cannot be imported ({reason}): {hint} --force-reinstall") from error


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # not even the package that it is a part of
        return False
