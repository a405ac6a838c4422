"""Vectors that clients send, checked for the model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.online.vectors import VectorFormat
from ocil.serve.limits import Limits, RefusedError


def decode_vectors(given: Sequence[Sequence[float]], form: VectorFormat, limits: Limits) -> NDArray[Any]:
    """Vectors as an array [N, D] in the model's format."""
    if len(given) > limits.batch:
        raise RefusedError(422, f"there are {len(given)} vectors, the most in one request is {limits.batch}.")
    for number, vector in enumerate(given, 1):
        if len(vector) != form.size:
            raise RefusedError(422, f"vector {number} has {len(vector)} numbers, the model takes {form.size}.")
    array = np.array(given, np.float64)
    with np.errstate(over="ignore"):
        too_large = ~np.isfinite(array.astype(form.dtype)).all(1)
    if too_large.any():
        number = int(too_large.argmax()) + 1
        raise RefusedError(422, f"vector {number} has a number that is too large for {form.precision}.")
    return form.read(array)
