"""The names of classes: their order, and how messages list them."""

from collections.abc import Iterable, Sequence

NAMED = 5  # how many names a message lists


def in_order(names: Iterable[str]) -> list[str]:
    """The names in ascending order: as numbers if all of them are whole numbers (2 comes before 10), else as text."""
    found = list(names)
    if all(name.isascii() and name.isdecimal() for name in found):
        return sorted(found, key=_as_number)
    return sorted(found)


def _as_number(name: str) -> tuple[int, str, str]:
    """A key that sorts whole numbers: their length, then their digits. ``int`` refuses very long ones."""
    digits = name.lstrip("0")
    return len(digits), digits, name


def some(names: Sequence[str]) -> str:
    """The names in quotes, as a message lists them: the first few, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(f"'{name}'" for name in names[:NAMED]) + more


def without_training(labels: Sequence[int], classes: Sequence[str]) -> str:
    """What is wrong with a dataset in which classes of these numbers have no training image, and what to do."""
    if len(labels) == 1:
        return f"class {labels[0]} ('{classes[labels[0]]}') has no training image; add some or drop the class"
    names = some([classes[label] for label in labels])
    return f"{len(labels)} classes have no training image; add some or drop these classes: {names}"
