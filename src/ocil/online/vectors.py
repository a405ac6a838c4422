"""Turns a caller's rows of numbers, such as embeddings, into the vectors that learners take."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ocil.networks import InputShape
from ocil.online.inputs import InputError, first_not_finite, numbers

LONGEST = 2**20
"""Numbers of a vector: more are a mistake, such as a table that lies on its side."""


@dataclass(frozen=True)
class VectorFormat:
    """The format of a model's vectors: their length, and how many bits each number has."""

    size: int
    """Numbers of a vector."""
    precision: Literal["float16", "float32"] = "float32"

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 1 <= self.size <= LONGEST:
            raise InputError(f"a vector must have from 1 to {LONGEST:,} numbers, not {self.size}.")
        if self.precision not in ("float16", "float32"):
            raise InputError(f"vectors are kept as float16 or float32, not as {self.precision}.")

    @property
    def shape(self) -> InputShape:
        return (self.size,)

    @property
    def network_shape(self) -> InputShape:
        return self.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        return np.dtype(self.precision)

    def __str__(self) -> str:
        return f"vectors of {self.size} numbers"

    @classmethod
    def of(cls, given: Any) -> "VectorFormat":
        """The format of the first vectors that a model sees, which it keeps for good.

        float16 and float32 are kept as given; other numbers become float32.
        """
        array = np.asarray(given)
        return cls(array.shape[1], "float16" if array.dtype == np.float16 else "float32")

    def read(self, given: Any) -> NDArray[Any]:
        """[N, size] of the model's precision. ``InputError`` for other shapes and for numbers that do not fit."""
        array = numbers(given, "vector")
        if array.ndim != 2 or array.shape[1] != self.size:
            size = "x".join(map(str, array.shape[1:])) or "nothing"
            raise InputError(f"the model takes {self}, but inputs of {size} were given.")
        with np.errstate(over="ignore"):
            found = array.astype(self.dtype, copy=False)
        if not np.isfinite(found).all():
            raise InputError(f"vector {first_not_finite(found)} has a number that is too large for {self.precision}.")
        return found
