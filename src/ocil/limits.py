"""Limits that several packages share. Importing this loads nothing, so the command line can check them first."""

from operator import index

from ocil.errors import OcilError

MAX_THREADS = 1024
"""The largest number of threads or worker processes."""
MAX_SIDE = 1024
"""The largest side of an image, in pixels."""


def check_threads(threads: int | None) -> None:
    if threads is None:
        return
    try:
        index(threads)
    except TypeError:
        raise OcilError(f"threads = {threads!r} must be a whole number.") from None
    if not 1 <= threads <= MAX_THREADS:
        raise OcilError(f"threads = {threads} must be at least 1 and at most {MAX_THREADS}.")
