"""Digests of files, computed once per machine: a record in the cache folder keeps them while a file stays the same."""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ocil.data.places import cache_dir
from ocil.errors import OcilError
from ocil.files import alone_at, read_regular, write_bytes

WAIT_SECONDS = 600.0  # for another process that computes the same digest
SETTLED_SECONDS = 2.0  # a file that was changed so recently may change again without a new time
MAX_BYTES = 2**16


def remembered(path: Path, compute: Callable[[], str]) -> str:
    """The digest that ``compute`` finds for a file, or that it found before for the file as it is now.

    Processes that ask at the same time wait for the first. Where nothing can be written, each one computes.
    """
    path = path.resolve()
    record = cache_dir() / "digests" / f"{hashlib.sha256(str(path).encode(errors='replace')).hexdigest()[:32]}.json"
    state = _state(path)
    if (known := _known(record, state)) is not None:
        return known
    with alone_at(record, WAIT_SECONDS):
        if (known := _known(record, state)) is not None:
            return known
        digest = compute()
        settled = time.time_ns() - state["mtime_ns"] > SETTLED_SECONDS * 1e9
        if settled and _state(path) == state:
            with suppress(OcilError):
                write_bytes(record, json.dumps({"path": str(path), **state, "digest": digest}).encode())
        return digest


def _state(path: Path) -> dict[str, int]:
    """What changes when a file does."""
    found = path.stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino, "device": found.st_dev}


def _known(record: Path, state: dict[str, int]) -> str | None:
    try:
        content = json.loads(read_regular(record, MAX_BYTES))
        same = all(content[name] == value for name, value in state.items())
        return str(content["digest"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
