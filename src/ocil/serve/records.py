"""What the log holds: labelled images or vectors, and where batches end.

The body of a record is its number (8 bytes), its kind (1 byte), the length of its JSON (4 bytes), the JSON, and inputs.

*SampleRecord*: one request; ``number`` is that of its first sample, counted from 1. The inputs are decoded, in the
model's format, so that a replay depends on no decoder. *Cut*: the samples up to ``number`` that no earlier cut took
were one batch. Samples are written when they arrive and cuts when a batch begins, so an answer never waits for a step,
and a replay takes the same steps.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.online.labels import ClassLabel, decoded, encoded

BODY = struct.Struct("<QBI")
SAMPLES, CUT = 1, 2
TYPES = {"uint8": "u1", "float16": "<f2", "float32": "<f4"}
"""Types of inputs, and their form on disk. A record that names none holds uint8, as all did once."""


@dataclass(frozen=True)
class SampleRecord:
    """What one request brought: labelled inputs with consecutive numbers."""

    first: int
    labels: tuple[ClassLabel, ...]
    inputs: NDArray[Any]
    """uint8 [N, H, W, C], or float [N, D], as the learner takes them."""
    key: str | None = None
    """The Idempotency-Key of the request."""
    digest: str = ""
    """A hash of labels and inputs: a key must not stand for two requests."""

    @property
    def last(self) -> int:
        return self.first + len(self.labels) - 1

    def body(self) -> bytes:
        content: dict[str, Any] = {"labels": [encoded(label) for label in self.labels], "shape": self.inputs.shape[1:]}
        if (kind := self.inputs.dtype.name) != "uint8":
            content["type"] = kind
        if self.key is not None:
            content |= {"key": self.key, "digest": self.digest}
        header = json.dumps(content).encode()
        return (
            BODY.pack(self.first, SAMPLES, len(header))
            + header
            + np.ascontiguousarray(self.inputs, TYPES[kind]).tobytes()
        )


@dataclass(frozen=True)
class Cut:
    """A batch ends with this sample."""

    last: int

    def body(self) -> bytes:
        return BODY.pack(self.last, CUT, 0)


Record = SampleRecord | Cut


def parsed(body: bytes) -> Record:
    """The record that a body holds. ``ValueError`` if this version does not know such a record."""
    try:
        number, kind, length = BODY.unpack_from(body)
        if kind == CUT:
            return Cut(number)
        if kind != SAMPLES:
            raise ValueError(f"kind {kind}")
        header = json.loads(body[BODY.size : BODY.size + length])
        labels = tuple(decoded(label) for label in header["labels"])
        numbers = np.frombuffer(body, TYPES[header.get("type", "uint8")], offset=BODY.size + length)
        inputs = numbers.reshape(len(labels), *header["shape"])
        key, digest = header.get("key"), header.get("digest", "")
        hash((labels, key, digest))  # raises for labels and keys that no dictionary could hold
        return SampleRecord(number, labels, inputs, key, digest)
    except (struct.error, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
