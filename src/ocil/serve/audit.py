"""One line per change of a model: when, who, what, and which samples."""

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ocil.files import open_regular

FILE = "audit.jsonl"

logger = logging.getLogger("ocil.serve")


class Audit:
    """Appends JSON lines to a file. It is opened for every line, so that it can be moved away at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._failing = False

    def write(self, what: Mapping[str, Any]) -> None:
        """Add a line. If that fails, the log of the service says so once; the change is made already."""
        line = json.dumps({"time": timestamp(time.time())} | dict(what), ensure_ascii=False) + "\n"
        try:
            file = open_regular(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, line.encode())  # one call: lines of several processes do not mix
            finally:
                os.close(file)
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.error("changes are not audited: %s cannot be written: %s", self.path, error.strerror or error)
            self._failing = True


def timestamp(seconds: float) -> str:
    """UTC, as in RFC 3339, with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"
