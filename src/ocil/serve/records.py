"""What the log holds: labelled images or vectors, where batches end, and changes that were asked for.

The body of a record is its number (8 bytes), its kind (1 byte), the length of its JSON (4 bytes), the JSON, and inputs.

*SampleRecord*: one request; ``number`` is that of its first sample, counted from 1. The inputs are decoded, in the
model's format, so that a replay depends on no decoder. *Change*: one request to correct or forget a sample, to review
the memory, or one about versions; changes are counted from 1, apart from samples. *Cut*: the samples up to ``number``
that no earlier cut took were one batch, and the changes up to ``Cut.changes`` had been made before it was learned.
Samples and changes are written when they arrive and cuts when a batch begins, so an answer never waits for a step, and
a replay takes the same steps.

A log in which nothing was ever changed has no records of the kinds 3 and 4. An earlier version of ocil refuses a log
that has: it names the kind it does not know.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ocil.online.labels import ClassLabel, decoded, encoded

BODY = struct.Struct("<QBI")
SAMPLES, CUT, CHANGE, CUT_AFTER = 1, 2, 3, 4
NUMBER = struct.Struct("<Q")
TYPES = {"uint8": "u1", "float16": "<f2", "float32": "<f4"}
"""Types of inputs, and their form on disk. A record that names none holds uint8, as all did once."""


class NumberedSample(NamedTuple):
    """One labelled input of the log."""

    number: int
    label: ClassLabel
    inputs: NDArray[Any] | None
    """None: the sample was forgotten before it was learned."""


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
    time: float | None = None
    """When it came, in seconds since 1970. Records of earlier versions do not say."""

    @property
    def last(self) -> int:
        return self.first + len(self.labels) - 1

    def samples(self) -> Iterator[NumberedSample]:
        return map(NumberedSample, range(self.first, self.last + 1), self.labels, self.inputs)

    def body(self) -> bytes:
        content: dict[str, Any] = {"labels": [encoded(label) for label in self.labels], "shape": self.inputs.shape[1:]}
        if (kind := self.inputs.dtype.name) != "uint8":
            content["type"] = kind
        if self.key is not None:
            content |= {"key": self.key, "digest": self.digest}
        if self.time is not None:
            content["time"] = self.time
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
    changes: int = 0
    """The number of the last change that was made before the batch was learned; 0: none ever was."""

    def body(self) -> bytes:
        if not self.changes:
            return BODY.pack(self.last, CUT, 0)
        return BODY.pack(self.last, CUT_AFTER, 0) + NUMBER.pack(self.changes)


Action = Literal["correct", "forget", "review", "save", "restore", "drop", "pin"]
"""``save``, ``restore``, ``drop`` and ``pin`` are about versions."""


@dataclass(frozen=True)
class Change:
    """What one request asked to change. What a field means to an action that does not use it is its default."""

    number: int
    action: Action
    sample: int = 0
    """The sample to correct or to forget."""
    label: ClassLabel = ""
    """Its new label."""
    version: int = 0
    """The version to restore, drop or pin, named by the number of the change that saved it; 0: pin none."""
    name: str = ""
    """What the user calls the version. Only ``save`` goes by it: later another one may have that name."""
    relearn: bool = False
    """Whether the samples that came after the version are learned again."""
    unlearned: bool = False
    """Of ``forget``: learning had stopped before this sample. No start learns it, so that learning can go on."""
    time: float = 0.0
    key: str | None = None
    """The Idempotency-Key of the request."""

    @property
    def digest(self) -> str:
        """What was asked for, in short: a key must not stand for two requests. A version is asked for by its name."""
        version = 0 if self.name else self.version
        asked = (self.action, self.sample, encoded(self.label), version, self.name, self.relearn)
        return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]

    def body(self) -> bytes:
        content = {name: value for name, value in vars(self).items() if name != "number" and value not in ("", 0, None)}
        content["label"] = encoded(self.label)
        header = json.dumps(content).encode()
        return BODY.pack(self.number, CHANGE, len(header)) + header

    @classmethod
    def parsed(cls, number: int, content: Mapping[str, Any]) -> "Change":
        """``ValueError`` for parts that this version does not know."""
        made = cls(number, **{**content, "label": decoded(content["label"])})
        kinds = [(made.sample, int), (made.version, int), (made.name, str), (made.action, str)]
        kinds += [(made.relearn, bool), (made.unlearned, bool)]
        if made.action not in get_args(Action) or any(type(value) is not kind for value, kind in kinds):
            raise ValueError(f"action {made.action!r}")
        hash((made.label, made.key, float(made.time)))
        return made


Record = SampleRecord | Cut | Change


def parsed(body: bytes) -> Record:
    """The record that a body holds. ``ValueError`` if this version does not know such a record."""
    try:
        number, kind, length = BODY.unpack_from(body)
        if kind == CUT:
            return Cut(number)
        if kind == CUT_AFTER:
            return Cut(number, *NUMBER.unpack_from(body, BODY.size))
        if kind not in (SAMPLES, CHANGE):
            raise ValueError(f"kind {kind}")
        header = json.loads(body[BODY.size : BODY.size + length])
        if kind == CHANGE:
            return Change.parsed(number, header)
        labels = tuple(decoded(label) for label in header["labels"])
        numbers = np.frombuffer(body, TYPES[header.get("type", "uint8")], offset=BODY.size + length)
        inputs = numbers.reshape(len(labels), *header["shape"])
        key, digest, time = header.get("key"), header.get("digest", ""), header.get("time")
        hash((labels, key, digest, time))  # raises for what no dictionary could hold
        return SampleRecord(number, labels, inputs, key, digest, time)
    except (struct.error, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
