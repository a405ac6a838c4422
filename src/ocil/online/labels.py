"""Class labels, and their form in JSON."""

import math
from typing import Any

import numpy as np

from ocil.online.inputs import InputError

ClassLabel = Any
"""Anything hashable. To be saved it must be text, a number, a bool, None, or a tuple of these."""


def refuse_odd_label(label: ClassLabel) -> None:
    """Raise an ``InputError`` for what cannot name a class: a number that is not finite, or what has no hash."""
    for part in label if isinstance(label, tuple) else ():
        refuse_odd_label(part)
    if isinstance(label, float | np.floating) and not math.isfinite(label):
        raise InputError(f"{label} is no label: use text or a finite number.")
    try:
        hash(label)
    except TypeError as error:
        raise InputError(f"{label!r} is no label: {error}. Use text, a number or a tuple of them.") from None


def encoded(label: ClassLabel) -> Any:
    """A label in the form that JSON allows. ``InputError`` for one that cannot be saved."""
    if isinstance(label, tuple):
        return [encoded(part) for part in label]
    if label is None or type(label) in (str, int, float, bool):
        refuse_odd_label(label)
        return label
    wanted = "text, numbers, true or false, or tuples of them"
    raise InputError(f"a label of type {type(label).__name__} cannot be saved: use {wanted}.")


def decoded(label: Any) -> ClassLabel:
    """A label from JSON, whose lists are tuples here."""
    return tuple(decoded(part) for part in label) if isinstance(label, list) else label
