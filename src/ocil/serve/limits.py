"""What a client may ask for, and how it is refused."""

from dataclasses import dataclass

from ocil.errors import OcilError

MOST = 2**40  # the highest that a limit may be: more would be no limit


@dataclass(frozen=True)
class Limits:
    """What a client may ask for. A request beyond a limit is refused with a message that names it."""

    body_bytes: int = 16 * 2**20
    """Bytes of one request's body."""
    bodies_bytes: int = 256 * 2**20
    """Bytes of all bodies being read or decoded, and of all answers to ``/predict`` being made or sent."""
    body_seconds: float = 30.0
    """Seconds that a client may take to send a request."""
    pixels: int = 16_000_000
    """Pixels of one image as it is sent, whatever size it is resized to."""
    batch: int = 64
    """Images of one request."""
    label: int = 100
    """Characters of a label."""
    classes: int = 1000
    """Classes of the model."""
    queue: int = 1000
    """Samples that are accepted and not learned yet."""
    predictions: int = 256
    """Images that wait for a prediction."""
    memory_images: int = 600
    """Images in one answer about the memory."""
    memory_bytes: int = 8 * 2**20
    """Bytes that the pixels of these images take."""
    memories_bytes: int = 128 * 2**20
    """Bytes of all answers about the memory that are being made or sent."""
    wait_seconds: float = 30.0
    """Seconds that a request with ``wait=true`` waits."""
    keys: int = 10_000
    """Idempotency keys that are remembered."""
    label_images: int = 10_000
    """Images that are kept for labelling, with and without a label."""
    label_bytes: int = 2 * 2**30
    """Bytes of these images on the disk."""
    versions: int = 16
    """Versions of the model that are kept."""
    versions_bytes: int = 8 * 2**30
    """Bytes that they take."""
    held_out: int = 2000
    """Inputs of the held-out set that versions are compared on."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value <= MOST:
                raise OcilError(f"the limit {name} = {value} must be more than 0 and at most {MOST}.")
        for name in ("queue", "predictions"):
            if getattr(self, name) < self.batch:
                raise OcilError(f"the limit {name} = {getattr(self, name)} must not be below batch = {self.batch}.")


class RefusedError(OcilError):
    """A request that cannot be served, with the HTTP status of the answer."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
