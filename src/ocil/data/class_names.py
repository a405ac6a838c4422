"""The order of classes that are known by name alone."""

from collections.abc import Iterable


def in_order(names: Iterable[str]) -> list[str]:
    """The names in ascending order: as numbers if all of them are whole numbers (2 comes before 10), else as text."""
    found = list(names)
    if all(name.isascii() and name.isdecimal() for name in found):
        return sorted(found, key=lambda name: (int(name), name))
    return sorted(found)
