"""Names of folders that hold runs: words that people can read, then a digest of what sets a run apart.

The digest covers the settings that differ from the defaults of their class: a setting that is added renames nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from typing import Any

LONGEST = 48  # characters; with four bytes each, the whole name still fits into the 255 bytes of a file system
RESERVED = frozenset('<>:"/\\|?*')
ADDED_SINCE = frozenset({"growing"})
"""Settings that the digests of former names did not cover at their default. Whoever adds a setting adds it here too, so
that folders with former names are still found."""


def distinct(config: Any) -> dict[str, Any]:
    """The settings of a dataclass that differ from the defaults of its class, in one form for equal values."""
    values = {f.name: (plain(getattr(config, f.name)), _default(f)) for f in fields(config)}
    return {name: value for name, (value, default) in values.items() if value != default}


def plain(value: Any) -> Any:
    """The same JSON for values that mean the same: 1, 1.0 and True, or a tuple and a list."""
    if is_dataclass(value) and not isinstance(value, type):
        return distinct(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def short_digest(content: Any) -> str:
    """Of anything JSON can hold; part of a folder's name."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def readable(text: str) -> str:
    """The words of a folder's name, as every file system takes them: no more than it holds, and no hidden folder."""
    safe = "".join(letter if letter.isprintable() and letter not in RESERVED else "_" for letter in text)
    return safe[:LONGEST].lstrip(".-") or "_"


def as_formerly(config: Any) -> dict[str, Any]:
    """The settings that the digests of former names covered: all that there were, whatever their values."""
    different = distinct(config)
    return {name: value for name, value in asdict(config).items() if name not in ADDED_SINCE or name in different}


def _default(setting: "Field[Any]") -> Any:
    """A setting's default as ``plain`` gives it; ``MISSING`` if it has none."""
    value = setting.default if setting.default_factory is MISSING else setting.default_factory()
    return plain(value)
