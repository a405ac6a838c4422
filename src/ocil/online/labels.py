"""Class labels, and their form in JSON."""

import math
from typing import Any

import numpy as np

from ocil.online.inputs import InputError

ClassLabel = Any
"""Text, a number, a bool, None, or a tuple of these: what a model's file can keep."""
KINDS = (str, int, float, bool, type(None))


def plain_label(label: ClassLabel) -> ClassLabel:
    """The label with Python's own values in the place of numpy's. ``InputError`` for what cannot name a class."""
    if isinstance(label, tuple):
        return tuple(plain_label(part) for part in label)
    plain = label.item() if isinstance(label, np.generic) else label
    if type(plain) not in KINDS:
        advice = " Decode bytes: label.decode()." if isinstance(plain, bytes) else ""
        kind = type(plain).__name__
        raise InputError(f"a label of type {kind} cannot be saved: use text, numbers, bools or tuples of them.{advice}")
    if isinstance(plain, float) and not math.isfinite(plain):
        raise InputError(f"{plain} is no label: use text or a finite number.")
    return plain


def encoded(label: ClassLabel) -> Any:
    """A label in the form that JSON allows. ``InputError`` for what cannot name a class."""
    return [encoded(part) for part in label] if isinstance(label, tuple) else plain_label(label)


def decoded(label: Any) -> ClassLabel:
    """A label from JSON, whose lists are tuples here."""
    return tuple(decoded(part) for part in label) if isinstance(label, list) else label
