"""Samples of the log that the user gave up with ``--set-aside-damage``.

The numbers of a log's samples follow one another, so a gap among them means that acknowledged samples were lost. The
gaps that the user has accepted are listed in a file beside the segments. A later start goes on without these samples,
and still refuses a log in which others are missing.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from ocil import tensorfile
from ocil.serve.segment import DamagedError
from ocil.tensorfile import DamagedFileError

FILE = "missing.safetensors"
NAME = "missing"


def read_missing(folder: Path) -> tuple[range, ...]:
    """The gaps that are listed; none without a file. ``DamagedError`` if the list cannot be trusted."""
    path = folder / FILE
    try:
        found = tensorfile.read(path)[0].get(NAME)
        if found is None or found.dtype != torch.int64 or found.dim() != 2 or found.shape[1] != 2:
            raise DamagedFileError("it does not list first and last samples")
        return tuple(range(first, last + 1) for first, last in found.tolist())
    except FileNotFoundError:
        return ()
    except DamagedFileError as error:
        raise DamagedError(
            f"{path}, the list of samples that were given up, cannot be used: {error}. Restore it from a copy, or "
            "start with --set-aside-damage to list them anew."
        ) from error


def write_missing(folder: Path, gaps: Sequence[range]) -> None:
    """List these gaps and no others. An empty list has no file. The caller syncs the folder."""
    path = folder / FILE
    if gaps:
        ends = torch.tensor([(gap.start, gap.stop - 1) for gap in gaps], dtype=torch.int64)
        tensorfile.write(path, {NAME: ends}, {})
    else:
        path.unlink(missing_ok=True)


def is_known(gap: range, known: Sequence[range]) -> bool:
    """Whether one of the known gaps has all of these samples."""
    return any(one.start <= gap.start and gap.stop <= one.stop for one in known)
