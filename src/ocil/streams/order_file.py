"""The file of an order of arrival: an .npz of arrays, their digest, and the settings of a stream that they decide."""

import hashlib
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from ocil.data.archive import read_arrays
from ocil.errors import OcilError
from ocil.streams.choices import Boundary, Scenario, TaskEnds

NUMBERS = ("samples", "batch_ends", "points", "group_of")
TEXTS = ("boundary", "images")
MORE_NUMBERS, MORE_TEXTS = ("labels", "arrival"), ("scenario", "task_ends")
"""What a file has only if it is not as usual. ``arrival``: all classes by group, if they do not ascend in each."""
AGAIN = "Write it again with Stream.save_order."

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")


def settings_in(path: Path) -> dict[str, Any]:
    """The settings of a stream that an order file decides, and a digest of the file's content."""
    arrays = read_order(path)
    sizes = np.diff(arrays["batch_ends"], prepend=0)
    return {
        "tasks": int(arrays["group_of"].max(initial=0)) + 1,
        "batch_size": max(1, int(sizes.max(initial=1))),
        "boundary": boundary_of(arrays),
        "scenario": scenario_of(arrays),
        "task_ends": task_ends_of(arrays),
        "order_digest": digest_of(arrays),
    }


def digest_of(arrays: Arrays) -> str:
    """Short digest of what an order holds."""
    sha = hashlib.sha256()
    for key in sorted(arrays.keys() - {"arrival"}):  # files from before have none, and replay the same batches
        sha.update(f"{key} {arrays[key].shape}".encode())
        sha.update(np.ascontiguousarray(arrays[key]).tobytes())
    return sha.hexdigest()[:12]


def read_order(path: Path) -> Arrays:
    """The arrays of a file, each of the type that it must have. ``OcilError`` if one is not."""
    arrays = read_arrays(path, (*NUMBERS, *TEXTS), (*MORE_NUMBERS, *MORE_TEXTS), AGAIN)
    for key, array in arrays.items():
        numbers = key in (*NUMBERS, *MORE_NUMBERS)
        if array.ndim != numbers or (array.dtype != np.int64 if numbers else array.dtype.kind != "U"):
            raise OcilError(f"{path} is not an order: {key} is {array.dtype} {list(array.shape)}. {AGAIN}")
        if not numbers:
            _refuse_what_is_no_text(key, array, path)
    return arrays


def _refuse_what_is_no_text(key: str, array: NDArray[Any], path: Path) -> None:
    try:
        array.item().encode()
    except (ValueError, SystemError):  # code points outside Unicode, or half a pair
        raise OcilError(f"{path} is not an order: {key} is not text. {AGAIN}") from None


def boundary_of(arrays: Arrays) -> Boundary:
    return _choice(arrays, "boundary", get_args(Boundary))


def scenario_of(arrays: Arrays) -> Scenario:
    return _choice(arrays, "scenario", get_args(Scenario)) if "scenario" in arrays else "class"


def task_ends_of(arrays: Arrays) -> TaskEnds:
    return _choice(arrays, "task_ends", get_args(TaskEnds)) if "task_ends" in arrays else "usual"


def _choice(arrays: Arrays, key: str, known: tuple[T, ...]) -> T:
    for choice in known:
        if str(arrays[key]) == choice:
            return choice
    raise OcilError(f"an order has the {key} {str(arrays[key])[:20]!r}. {AGAIN}")
