"""What went wrong, said to a person in one line."""

import difflib
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class OcilError(Exception):
    """A mistake the user can mend. The message says what is wrong and what to do; the command line exits with 2."""


class WriteError(OcilError):
    """A file or folder cannot be written: no other run to the same place will do better."""


class InUseError(OcilError):
    """Another process works in ``folder``. Others of the same place may still be free."""

    def __init__(self, message: str, folder: Path | None = None) -> None:
        super().__init__(message)
        self.folder = folder


def suggest(word: str, known: Iterable[str]) -> str:
    """``" Did you mean 'er'? Known: afs, er."`` for a name that is not among the known ones."""
    names = sorted(known)
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"{hint} Known: {', '.join(names)}."


@contextmanager
def optional(what: str, extra: str, *modules: str) -> Iterator[None]:
    """Optional modules are imported inside this block.

    The error for one that is not installed names the extra to install. One that is installed and yet cannot be
    imported is another matter, and the error says why.
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
