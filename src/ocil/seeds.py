"""One seed, and seeds of many purposes that are derived from it."""

import hashlib
from operator import index

from ocil.errors import OcilError

MAX_SEED = 2**64 - 1


def check_seed(seed: int) -> int:
    """The seed as a whole number of Python. Raises if it is none, or out of bounds."""
    try:
        number = None if isinstance(seed, bool) else index(seed)
    except TypeError:
        number = None
    if number is None:
        raise OcilError(f"seed = {seed!r} is not a whole number.")
    if not 0 <= number <= MAX_SEED:
        raise OcilError(f"seed = {number} must be from 0 to {MAX_SEED}.")
    return number


def derive(seed: int, name: str) -> int:
    """A 63-bit seed for one purpose. A new purpose does not change the random numbers of the others."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
