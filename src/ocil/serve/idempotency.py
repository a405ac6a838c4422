"""A request that is sent again under the same Idempotency-Key is learned once."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocil.online.labels import ClassLabel
from ocil.serve.records import Change, SampleRecord


class KeyedRequest(NamedTuple):
    """An acknowledged request that had a key."""

    first: int
    """The number of its first sample; of a change, its number among the changes."""
    samples: int
    """How many samples it has; 1 for a change."""
    digest: str
    """A hash of what it asks for, such as labels and inputs: a key must not stand for two requests."""

    @property
    def last(self) -> int:
        return self.first + self.samples - 1

    @classmethod
    def of(cls, record: SampleRecord | Change) -> "KeyedRequest":
        """The request that is in the log as this record."""
        if isinstance(record, Change):
            return cls(record.number, 1, record.digest)
        return cls(record.first, len(record.labels), record.digest)


def digest(inputs: NDArray[Any], labels: Sequence[ClassLabel]) -> str:
    """A short hash of a request: two requests with the same one are taken to be the same."""
    sha = hashlib.sha256(repr(list(labels)).encode())
    sha.update(np.ascontiguousarray(inputs).tobytes())
    return sha.hexdigest()[:16]


class Keys:
    """The newest ``most`` keys of acknowledged requests. Safe to use from any thread."""

    def __init__(self, most: int, requests: Mapping[str, KeyedRequest] | None = None) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._requests: OrderedDict[str, KeyedRequest] = OrderedDict()
        for key, request in (requests or {}).items():
            self.add(key, request)

    def add(self, key: str, request: KeyedRequest) -> None:
        with self._lock:
            self._requests[key] = request
            while len(self._requests) > self.most:
                self._requests.popitem(last=False)

    def get(self, key: str) -> KeyedRequest | None:
        with self._lock:
            return self._requests.get(key)

    def copy(self) -> dict[str, KeyedRequest]:
        with self._lock:
            return dict(self._requests)


def restored(
    saved: Mapping[str, KeyedRequest], position: int, logged: Mapping[str, KeyedRequest]
) -> dict[str, KeyedRequest]:
    """The keys that a checkpoint at ``position`` and the log hold together.

    A request that is neither learned nor in the log was lost with damage that the user gave up: its key is forgotten,
    so that the client may send it again.
    """
    kept = {key: request for key, request in saved.items() if request.last <= position or key in logged}
    return kept | dict(logged)
