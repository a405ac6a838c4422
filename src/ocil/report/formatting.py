"""Measured and published numbers as text."""

from collections.abc import Mapping
from typing import Any

from ocil.evaluation.measures import Estimate
from ocil.report.papers import Published

LONGEST = 1e9  # seconds, written in hours and minutes


def percent(value: Estimate | None) -> str:
    """``42.3 ± 0.4``; without an interval where there is one seed."""
    if value is None:
        return "-"
    if value.interval is None:
        return f"{100 * value.mean:z.1f} (one seed)"
    return f"{100 * value.mean:z.1f} ± {100 * value.interval:.1f}"


def percent_or_range(value: Estimate | None) -> str:
    """``percent``; of two seeds the lowest and highest value. Their interval would be 12.7 times its standard error."""
    if value is None or len(value.values) != 2:
        return percent(value)
    low, high = sorted(value.values)
    return f"{100 * value.mean:z.1f} ({100 * low:z.1f} to {100 * high:z.1f})"


def measured(value: Estimate | None, form: str) -> str:
    """A measure of a plugin with its interval. ``form`` is ``percent`` or a format of Python."""
    if form == "percent":
        return percent(value)
    if value is None:
        return "-"
    spread = " (one seed)" if value.interval is None else f" ± {value.interval:{form}}"
    return f"{value.mean:{form}}{spread}"


def measured_or_range(value: Estimate | None, form: str) -> str:
    """``measured``; of two seeds the lowest and highest value, as in ``percent_or_range``."""
    if form == "percent":
        return percent_or_range(value)
    if value is None or len(value.values) != 2:
        return measured(value, form)
    low, high = sorted(value.values)
    return f"{value.mean:{form}} ({low:{form}} to {high:{form}})"


def published_percent(number: Published | None) -> str:
    if number is None:
        return "-"
    return f"{number.mean:.1f}" if number.interval is None else f"{number.mean:.1f} ± {number.interval:.1f}"


def points(difference: float | None) -> str:
    """A difference in points, with its sign. Never ``-0.0``."""
    return "-" if difference is None else f"{difference:+z.1f}"


def versions(environment: Mapping[str, Any]) -> str:
    """The versions that a run was measured with."""
    return ", ".join(f"{name} {environment[name]}" for name in ("ocil", "torch", "python") if name in environment)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    if not abs(seconds) < LONGEST:  # a file may hold any number
        return f"{seconds:.1e} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def kilo(number: float) -> str:
    """A count with three digits and a prefix: ``220``, ``1.2 k``, ``3.4 M``."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g}" + (f" {prefix}" if prefix else "")
        number /= 1000
    return f"{1000 * number:.3g} T"
