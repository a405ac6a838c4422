"""One seed, and seeds of many purposes that are derived from it."""

import hashlib

from ocil.errors import OcilError

MAX_SEED = 2**64 - 1


def check_seed(seed: int) -> None:
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise OcilError(f"seed = {seed!r} is not a whole number.")
    if not 0 <= seed <= MAX_SEED:
        raise OcilError(f"seed = {seed} must be from 0 to {MAX_SEED}.")


def derive(seed: int, name: str) -> int:
    """A 63-bit seed for one purpose. A new purpose does not change the random numbers of the others."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
