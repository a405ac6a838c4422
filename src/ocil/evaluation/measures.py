"""Measures of an accuracy matrix, as pure functions.

``matrix[i][j]`` is the accuracy, 0 to 1, on the test samples of class group j after the stream has shown group i.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ocil.errors import OcilError
from ocil.plugins import Registry, warn_once

CONFIDENCE = 0.975  # one-sided: a 95 % interval


def average_accuracy(matrix: ArrayLike) -> float:
    """Mean accuracy over all groups at the end."""
    return float(np.asarray(matrix)[-1].mean())


def average_forgetting(matrix: ArrayLike) -> float | None:
    """As in the paper: best earlier accuracy less the final one, averaged over the first T-1 groups; may be < 0."""
    a = _square(matrix)
    if a is None or len(a) < 2:
        return None
    return float((a[:-1, :-1].max(axis=0) - a[-1, :-1]).mean())


def average_forgetting_common(matrix: ArrayLike) -> float | None:
    """As most code computes it: the best includes the final row, and the mean is over all T groups."""
    a = _square(matrix)
    return None if a is None else float((a.max(axis=0) - a[-1]).mean())


def average_intransigence(matrix: ArrayLike, reference: ArrayLike) -> float | None:
    """Accuracy of a fine-tuned reference on a group just learned, less that of this learner, averaged over groups."""
    a, r = _square(matrix), _square(reference)
    if a is None or r is None or a.shape != r.shape:
        return None
    return float((np.diagonal(r) - np.diagonal(a)).mean())


def accuracy_curve(matrix: ArrayLike) -> list[float]:
    """Mean accuracy over the groups shown so far, after each group."""
    a = np.asarray(matrix)
    if _square(a) is None:
        return [average_accuracy(a)]
    return [float(row[: i + 1].mean()) for i, row in enumerate(a)]


def average_anytime_accuracy(anytime: Mapping[str, Any]) -> float | None:
    """Mean over the points of a record of accuracy at any time (see ``evaluation.anytime``), each on the classes that
    have arrived; None if there is no point."""
    points = anytime.get("points", ())
    return float(np.mean([point["accuracy"] for point in points])) if points else None


def lowest_anytime_accuracy(anytime: Mapping[str, Any]) -> float | None:
    """The smallest accuracy of a record of accuracy at any time."""
    return min((float(point["accuracy"]) for point in anytime.get("points", ())), default=None)


class RecordedResult(Protocol):
    """What a finished run has recorded: the part of ``ocil.Result`` that a measure may use."""

    @property
    def matrix(self) -> list[list[float]]: ...

    @property
    def evaluations(self) -> list[dict[str, Any]]: ...

    @property
    def anytime(self) -> dict[str, Any]: ...

    @property
    def wall_seconds(self) -> float: ...


@dataclass(frozen=True)
class Measure:
    """A measure of your own. Every table of results has a column of it, with mean and interval over seeds."""

    name: str
    function: Callable[[RecordedResult], float | None]
    """Of the result of one run. None: it is not defined for this run."""
    higher_is_better: bool = True
    format: str = "percent"
    """``percent`` for a share of 1, else a format of Python such as ``.3f``."""

    def __post_init__(self) -> None:
        try:
            self.format == "percent" or format(1.0, self.format)
        except ValueError:
            raise OcilError(
                f"measure '{self.name}': format = {self.format!r} is not 'percent' or like '.3f'."
            ) from None

    @property
    def title(self) -> str:
        """The heading of its column."""
        return self.name.replace("-", " ").replace("_", " ") + (" %" if self.format == "percent" else "")

    def of(self, result: RecordedResult) -> float | None:
        """Its value for a run. If it fails, it says so on standard error, once, and has no value."""
        try:
            found = self.function(result)
            value = None if found is None else float(found)
        except (Exception, SystemExit) as error:
            warn_once(f"the measure '{self.name}' of {MEASURES.origin(self.name)}: {type(error).__name__}: {error}")
            return None
        return value if value is not None and math.isfinite(value) else None


def _read(name: str, found: Any) -> list[Measure]:
    """The measure of an entry point: a ``Measure``, or a function of a result that gives a share, more is better."""
    if not isinstance(found, Measure) and not callable(found):
        raise TypeError(f"{found!r} is neither a Measure nor a function of a result")
    return [found if isinstance(found, Measure) else Measure(name, found)]


MEASURES: Registry[Measure] = Registry("measure", "ocil.measures", (), _read)
"""Measures from outside; those above belong to every result."""


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. ``interval`` is half the width of its 95 % confidence interval; one value has none."""

    mean: float
    interval: float | None
    values: tuple[float, ...]


def estimate_json(value: Estimate | None) -> dict[str, Any] | None:
    """As commands print it with ``--json``."""
    return None if value is None else {"mean": value.mean, "interval": value.interval, "values": list(value.values)}


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and ``t(0.975, n-1) · standard error``."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return Estimate(mean, None, tuple(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(mean, t_quantile(n - 1) * error, tuple(values))


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


def _square(matrix: ArrayLike) -> NDArray[np.float64] | None:
    a = np.asarray(matrix, dtype=float)
    return a if a.shape[0] == a.shape[1] else None
