"""Names of folders that hold runs: readable words, then a digest of what distinguishes a run.

The digest covers the settings that differ from the defaults of their class: a new setting renames nothing. The words
come from each kind of configuration.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from typing import Any

from ocil.data.derived import short_name
from ocil.errors import OcilError

LONGEST = 48  # characters; with four bytes each, the whole name still fits into the 255 bytes of a file system
RESERVED = frozenset('<>:"/\\|?*')
ADDED_SINCE = frozenset(
    {
        "growing",
        "optimizer",
        "network",
        "pretrained",
        "freeze",
        "features",
        "order",
        "order_digest",
        "average",
        "average_restarts",
        "test_flip",
        "evaluate_every",
        "evaluate_on",
        "prequential",
        "probe",
        "scenario",
        "arrival_order",
        "task_sizes",
        "first_task",
        "task_ends",
        "disjoint_share",
        "return_share",
        "imbalance_factor",
        "imbalance_order",
        "class_counts",
        "label_noise",
        "noise_among",
        "anchor_margin",
        "updates",
        "seen_only",
    }
)
"""Settings that the digests of former names did not cover at their default. A new setting must be added here too, so
that folders with former names are still found."""


class NameCache:
    """Names that were computed before. It begins anew when it holds ``most`` of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._names: dict[Hashable, str] = {}

    def get(self, key: Hashable, make: Callable[[], str]) -> str:
        """The name that ``make`` gives, computed once for all who ask with the same key."""
        if key not in self._names:
            if len(self._names) >= self.most:
                self._names.clear()
            self._names[key] = make()
        return self._names[key]


def cell_name(dataset: str, words: str, identity: Mapping[str, Any]) -> str:
    """The folder that the runs of all seeds share: dataset, words, digest.

    ``words`` begins with what separates it from the dataset. ``identity`` is what sets a run apart; the seed is not in
    the digest.
    """
    return f"{readable(short_name(dataset))}{words}-{short_digest({**identity, 'seed': None})}"


def seed_folder(seed: int) -> str:
    """The folder of one run, inside that of its cell."""
    return f"seed-{seed}"


def distinct(config: Any) -> dict[str, Any]:
    """The settings of a dataclass that differ from the defaults of its class, as ``plain`` writes them.

    Raises ``OcilError`` for a setting that JSON cannot hold.
    """
    values: dict[str, tuple[Any, Any]] = {}
    for each in fields(config):
        try:
            values[each.name] = plain(getattr(config, each.name)), _default(each)
        except TypeError as error:
            raise OcilError(
                f"the setting {each.name} holds {error}, which a result cannot: let it hold a number, a text, or a "
                "list of these."
            ) from error
    return {name: value for name, (value, default) in values.items() if value != default}


def plain(value: Any) -> Any:
    """A value as JSON, with one form for equal values: 1, 1.0 and True, or a tuple and a list. Raises ``TypeError`` if
    JSON cannot hold it."""
    if is_dataclass(value) and not isinstance(value, type):
        return distinct(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    if not isinstance(value, str | float | None):
        raise TypeError(f"a {type(value).__name__}")
    return value


def short_digest(content: Any) -> str:
    """The digest at the end of a folder's name, of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def readable(text: str) -> str:
    """Text as part of a folder's name that every file system accepts: short, printable, not hidden."""
    safe = "".join(letter if letter.isprintable() and letter not in RESERVED else "_" for letter in text)
    return safe[:LONGEST].lstrip(".-") or "_"


def as_formerly(config: Any) -> dict[str, Any]:
    """The settings that the digests of former names covered: all that there were, also those at their default."""
    different = distinct(config)
    return {name: value for name, value in asdict(config).items() if name not in ADDED_SINCE or name in different}


def _default(setting: "Field[Any]") -> Any:
    """A setting's default as ``plain`` writes it; ``MISSING`` if it has none."""
    return plain(setting.default if setting.default_factory is MISSING else setting.default_factory())
