"""Measured and published numbers as text."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ocil.evaluation.measures import Estimate
from ocil.text import bytes_text, number_text

if TYPE_CHECKING:
    from ocil.report.papers import Published

LONGEST = 1e9  # seconds, written in hours and minutes


def percent(value: Estimate | None) -> str:
    """``42.3 ± 0.4``; of two seeds ``42.3 (42.0 to 42.6)``."""
    return measured(value, "percent")


def measured(value: Estimate | None, form: str) -> str:
    """A measure with its interval; of two seeds with the lowest and highest value. ``form`` is ``percent`` or a format
    of Python."""
    if value is None:
        return "-"
    spread = spread_text(value, lambda number: number_text(number, form))
    return f"{number_text(value.mean, form)} {spread or '(one seed)'}"


def spread_text(value: Estimate, write: Callable[[float], str]) -> str:
    """What stands behind a mean: ``± 0.4``, of two seeds ``(42.0 to 42.6)``, of one nothing. ``write`` may put a plus
    before a number; an interval has none."""
    if value.shown_range is not None:
        return f"({' to '.join(map(write, value.shown_range))})"
    return "" if value.interval is None else f"± {write(value.interval).lstrip('+ ')}"


def range_note(values: Iterable[Estimate | None]) -> str:
    """The end of a caption that speaks of intervals: nothing, unless ``spread_text`` shows a range of one of these."""
    two = any(value is not None and value.shown_range is not None for value in values)
    return " Of two seeds the lowest and the highest value are shown instead." if two else ""


def published_percent(number: "Published | None") -> str:
    if number is None:
        return "-"
    return f"{number.mean:.1f}" if number.interval is None else f"{number.mean:.1f} ± {number.interval:.1f}"


def points(difference: float | None) -> str:
    """A difference in points, with its sign."""
    return "-" if difference is None else number_text(difference, "+.1f")


def versions(environment: Mapping[str, Any]) -> str:
    """The versions that a run was measured with."""
    return ", ".join(f"{name} {environment[name]}" for name in ("ocil", "torch", "python") if name in environment)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    if not abs(seconds) < LONGEST:  # a file may hold any number
        return f"{seconds:.1e} s"
    if seconds < 59.95:
        return f"{number_text(seconds, '.1f')} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def sizes(low: float, high: float) -> str:
    """Bytes from ... to: ``5.01 to 19.8 MB``, ``980 kB to 5.01 MB``, or one size if both are the same."""
    (first, unit), (last, other) = bytes_text(low).split(), bytes_text(high).split()
    if unit != other:
        return f"{first} {unit} to {last} {other}"
    return f"{last} {other}" if first == last else f"{first} to {last} {other}"
