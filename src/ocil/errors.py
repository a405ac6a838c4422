"""What went wrong, said to a person in one line."""

import difflib
from collections.abc import Iterable
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
