"""What a client may ask for, and how it is refused."""

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TypeVar

from ocil.errors import OcilError

T = TypeVar("T")
MOST = 2**40  # of any limit: more is none


@dataclass(frozen=True)
class Limits:
    """What a client may ask for. Beyond them it is refused, with a message that names the limit."""

    body_bytes: int = 16 * 2**20
    """Of one request."""
    bodies_bytes: int = 256 * 2**20
    """Of all requests being read or decoded."""
    body_seconds: float = 30.0
    """To send a request."""
    pixels: int = 16_000_000
    """Of one image, whatever it is resized to."""
    batch: int = 64
    """Images of one request."""
    label: int = 100
    """Characters of a label."""
    classes: int = 1000
    queue: int = 1000
    """Samples that are accepted and not learned yet."""
    predictions: int = 256
    """Images that wait for a prediction."""
    memory_images: int = 600
    """Of one answer about the memory."""
    memory_bytes: int = 8 * 2**20
    """Pixels of these images."""
    memories_bytes: int = 128 * 2**20
    """Of all answers about the memory that are being made or sent."""
    wait_seconds: float = 30.0
    """How long ``wait=true`` waits."""
    keys: int = 10_000
    """Idempotency keys that are remembered."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value <= MOST:
                raise OcilError(f"the limit {name} = {value} must be more than 0 and at most {MOST}.")
        for name in ("queue", "predictions"):
            if getattr(self, name) < self.batch:
                raise OcilError(f"the limit {name} = {getattr(self, name)} must not be below batch = {self.batch}.")


class RefusedError(OcilError):
    """A request that cannot be served, and the HTTP status that says so."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


def answer(future: "Future[T]", found: T | Exception) -> None:
    """Unless nobody waits any more."""
    try:
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)
    except InvalidStateError:
        pass
