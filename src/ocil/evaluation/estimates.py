"""Means over seeds with their 95 % confidence intervals."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

CONFIDENCE = 0.975  # one-sided: a 95 % interval


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. ``interval`` is half the width of its 95 % confidence interval; one value has none.

    >>> estimate([0.41, 0.43]).shown_range
    (0.41, 0.43)
    """

    mean: float
    interval: float | None
    values: tuple[float, ...]

    @property
    def shown_range(self) -> tuple[float, float] | None:
        """The lowest and highest of two values. All tables and figures show them instead of the interval, which would
        be 12.7 standard errors to each side; None for any other number of values."""
        return (min(self.values), max(self.values)) if len(self.values) == 2 else None

    @property
    def shown_interval(self) -> float | None:
        """``interval`` where tables and figures show it, and verdicts are drawn from it: for three values and more."""
        return self.interval if self.shown_range is None else None

    @property
    def spread(self) -> float | None:
        """How far a figure reaches to each side of the mean: ``interval``, or half of the range; None of one value."""
        return self.interval if self.shown_range is None else (self.shown_range[1] - self.shown_range[0]) / 2


def estimate_json(value: Estimate | None) -> dict[str, Any] | None:
    """An estimate as commands print it with ``--json``."""
    return None if value is None else {"mean": value.mean, "interval": value.interval, "values": list(value.values)}


def mean_of(values: Iterable[float]) -> float:
    """The mean, to the last bit the same in whatever order the values come."""
    return float(np.mean(sorted(values)))


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and ``t(0.975, n-1) · standard error``. Neither depends on the order of the values."""
    n, ordered = len(values), sorted(values)
    mean = mean_of(ordered)
    if n < 2:
        return Estimate(mean, None, tuple(values))
    error = float(np.std(ordered, ddof=1)) / math.sqrt(n)
    return Estimate(mean, t_quantile(n - 1) * error, tuple(values))


@cache
def t_quantile(degrees: int, probability: float = CONFIDENCE) -> float:
    """Quantile of Student's t for a whole number of degrees of freedom, by bisection of its distribution function."""
    low, high = 0.0, 1e4
    while high - low > 1e-12 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, degrees: int) -> float:
    """Abramowitz and Stegun 26.7.3 and 26.7.4: a finite sum for whole degrees of freedom, t >= 0."""
    angle = math.atan(t / math.sqrt(degrees))
    cos2 = math.cos(angle) ** 2
    term, total = 1.0, 0.0
    for k in range(1 + degrees % 2, degrees, 2):
        total += term
        term *= cos2 * k / (k + 1)
    if degrees % 2:
        between = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        between = math.sin(angle) * total
    return 0.5 + between / 2
