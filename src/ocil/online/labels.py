"""Class labels, and their form in JSON."""

import math
from typing import Any

from ocil.online.inputs import InputError

ClassLabel = Any
"""Anything hashable. To be saved it must be text, a number, a bool, None, or a tuple of these."""


def encoded(label: ClassLabel) -> Any:
    """A label in the form that JSON allows. ``InputError`` for one that cannot be saved."""
    if isinstance(label, tuple):
        return [encoded(part) for part in label]
    if type(label) is float and not math.isfinite(label):
        raise InputError(f"{label} is no label: use text or a finite number.")
    if label is None or type(label) in (str, int, float, bool):
        return label
    wanted = "text, numbers, true or false, or tuples of them"
    raise InputError(f"a label of type {type(label).__name__} cannot be saved: use {wanted}.")


def decoded(label: Any) -> ClassLabel:
    """A label from JSON, whose lists are tuples here."""
    return tuple(decoded(part) for part in label) if isinstance(label, list) else label
