"""What the service keeps with its model: a place in the log, counts, and the keys of requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ocil.online.header import entry, whole
from ocil.serve.counts import Counts

Entry = tuple[int, int, str]
"""First number, count and digest of a request."""
MOST_SAMPLES = 2**63


@dataclass(frozen=True)
class Note:
    position: int = 0
    """The number of the last sample of the log that the model has learned."""
    counts: Counts = field(default_factory=Counts)
    keys: Mapping[str, Entry] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        keys = {key: list(entry) for key, entry in self.keys.items()}
        return {"position": self.position, "counts": self.counts.to_json(), "keys": keys}

    @classmethod
    def from_json(cls, content: dict[str, Any], classes: int) -> "Note":
        """Of a model with so many classes. To be read inside ``reading_note``."""
        content = cls().to_json() | content
        if (position := whole(content, "position")) >= MOST_SAMPLES:
            raise ValueError("its entry 'position' is not a number of samples")
        keys = entry(content, "keys", dict)
        if not all(map(_is_entry, keys.values())):
            raise ValueError("its entry 'keys' is not made of requests with a first number, a count and a digest")
        counts = Counts.from_json(entry(content, "counts", dict), classes)
        return cls(position, counts, {key: (first, count, digest) for key, (first, count, digest) in keys.items()})


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and [type(part) for part in entry] == [int, int, str]
        and 0 < entry[0] < MOST_SAMPLES
        and 0 < entry[1] < MOST_SAMPLES
    )
