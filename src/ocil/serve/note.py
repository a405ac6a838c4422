"""What the service keeps with its model: a place in the log, counts, and the keys of requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    def from_json(cls, content: Any, classes: int) -> "Note":
        """Of a model with so many classes. A ``ValueError`` says what is wrong."""
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
        position, keys = content.get("position", 0), content.get("keys", {})
        if type(position) is not int or not 0 <= position < MOST_SAMPLES:
            raise ValueError("position is not a number of samples")
        if not isinstance(keys, dict) or not all(map(_is_entry, keys.values())):
            raise ValueError("keys are not requests with a first number, a count and a digest")
        counts = Counts.from_json(content["counts"], classes) if "counts" in content else Counts()
        return cls(position, counts, {key: (first, count, digest) for key, (first, count, digest) in keys.items()})


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and [type(part) for part in entry] == [int, int, str]
        and 0 < entry[0] < MOST_SAMPLES
        and 0 < entry[1] < MOST_SAMPLES
    )
