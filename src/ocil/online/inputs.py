"""What formats of inputs share: the error for inputs that cannot be used, and arrays of finite numbers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError


class InputError(OcilError, ValueError):
    """Inputs or labels that cannot be used. Also a ``ValueError``, as scikit-learn's callers expect."""


def numbers(given: Any, what: str) -> NDArray[Any]:
    """An array of finite numbers. ``what`` names one input in errors. NaN is refused: it would become a number without
    a warning.
    """
    try:
        array = np.asarray(given)
        if array.dtype == object:
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}s must be arrays of numbers: {error}.") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{what}s must be arrays of numbers, not of {array.dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{what} {first_not_finite(array)} has numbers that are NaN or infinite: replace it.")
    return array


def first_not_finite(array: NDArray[Any]) -> int:
    """The number, from 0, of the first row that has a number that is NaN or infinite."""
    rows = np.isfinite(array.reshape(len(array), -1)).all(1) if array.ndim else np.array([False])
    return int(rows.argmin())
