"""Reservoir sampling one item at a time, as in the textbook (Vitter's algorithm R)."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def reservoir(items: Iterable[Item], size: int, below: Callable[[int], int]) -> list[Item]:
    """What ``size`` slots hold in the end. ``below(n)`` draws a whole number from 0 to n - 1, one for each item."""
    slots: list[Item] = []
    for seen, item in enumerate(items):
        draw = below(seen + 1)
        if seen < size:
            slots.append(item)
        elif draw < size:
            slots[draw] = item
    return slots
