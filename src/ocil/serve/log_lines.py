"""What the service logs on standard error, as text or as JSON lines. (``ocil.serve.log`` is the log of samples.)"""

import json
import logging

from ocil.serve.audit import timestamp

REQUESTS = "ocil.serve.requests"
"""The logger of one line per request."""
TEXT, JSON = "text", "json"


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and what the call gave as ``extra={"fields": {...}}``."""

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content | getattr(record, "fields", {}), ensure_ascii=False)


def set_up(form: str = TEXT, requests: bool = False) -> None:
    """Log to standard error. ``requests``: also one line per request."""
    logging.basicConfig(level=logging.WARNING, format="ocil: %(message)s")
    if form == JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())
    logging.getLogger(REQUESTS).setLevel(logging.INFO if requests else logging.WARNING)
