"""Measures as pure functions of what a run has recorded, and the table of all of them, ours and those of plugins.

Measures of the accuracy matrix are in ``matrices``, of accuracy over time in ``over_time``, means over seeds in
``estimates``; all can be imported from here. docs/measures.md has the definitions.

Examples:
    Row i, column j of a matrix is the accuracy on group j after group i.

    >>> matrix = [[0.9, 0.0], [0.5, 0.8]]
    >>> round(ocil.metrics.average_accuracy(matrix), 2), round(ocil.metrics.average_forgetting(matrix), 2)
    (0.65, 0.4)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ocil.errors import OcilError
from ocil.evaluation.estimates import Estimate, estimate, estimate_json, mean_of, t_quantile
from ocil.evaluation.matrices import (
    accuracy_curve,
    average_accuracy,
    average_forgetting,
    average_forgetting_common,
    average_incremental_accuracy,
    average_intransigence,
    backward_transfer,
    forward_transfer,
)
from ocil.evaluation.over_time import (
    area_under_accuracy,
    average_anytime_accuracy,
    lowest_anytime_accuracy,
    minimum_accuracy,
    stability_gap,
    worst_case_accuracy,
)
from ocil.evaluation.record_types import AnytimeRecord, CalibrationRecord, PrequentialRecord, ProbeRecord
from ocil.plugins import OURS, Registry, warn_once

__all__ = [
    "MEASURES",
    "Estimate",
    "Measure",
    "accuracy_curve",
    "accuracy_per_class",
    "area_under_accuracy",
    "average_accuracy",
    "average_anytime_accuracy",
    "average_forgetting",
    "average_forgetting_common",
    "average_incremental_accuracy",
    "average_intransigence",
    "backward_transfer",
    "estimate",
    "estimate_json",
    "expected_calibration_error",
    "forward_transfer",
    "lowest_anytime_accuracy",
    "mean_of",
    "minimum_accuracy",
    "prequential_accuracy",
    "shown",
    "stability_gap",
    "t_quantile",
    "worst_case_accuracy",
]


def accuracy_per_class(correct: Sequence[int], tested: Sequence[int]) -> list[float | None]:
    """The accuracy on each class; None for a class without test images."""
    return [right / count if count else None for right, count in zip(correct, tested, strict=True)]


def expected_calibration_error(calibration: CalibrationRecord) -> float | None:
    """ECE: the gap between accuracy and mean confidence in each bin of confidence, weighted by the images in it."""
    count, correct, confidence = (np.array(calibration.get(name, ())) for name in ("count", "correct", "confidence"))
    return float(np.abs(correct - confidence).sum() / count.sum()) if count.sum() else None


def prequential_accuracy(prequential: PrequentialRecord) -> float | None:
    """The share of stream samples that were classified correctly just before they were learned."""
    seen = sum(prequential.get("seen", ()))
    return sum(prequential["correct"]) / seen if seen else None


class RecordedResult(Protocol):
    """What a finished run has recorded: the part of ``ocil.Result`` that a measure may use. docs/measures.md describes
    each of them. What was not recorded is empty."""

    @property
    def matrix(self) -> list[list[float]]: ...

    @property
    def evaluations(self) -> list[dict[str, Any]]: ...

    @property
    def anytime(self) -> AnytimeRecord: ...

    @property
    def wall_seconds(self) -> float: ...

    @property
    def groups(self) -> list[list[int]]: ...

    @property
    def tested(self) -> list[int]: ...

    @property
    def tested_by_domain(self) -> list[list[int]]: ...

    @property
    def confusion(self) -> list[list[int]]: ...

    @property
    def calibration(self) -> CalibrationRecord: ...

    @property
    def prequential(self) -> PrequentialRecord: ...

    @property
    def probe(self) -> ProbeRecord: ...

    @property
    def cost(self) -> dict[str, int]: ...


TAKEN = frozenset(
    {
        *("accuracy", "forgetting", "forgetting_interval", "intransigence", "intransigence_interval", "time"),
        *("cell", "dataset", "memory", "method", "review", "settings", "seeds", "mean", "interval", "published"),
        *("published_interval", "difference", "overlap", "device", "command"),
    }
)
"""Columns that tables of results have anyway. A measure of that name would be taken for one of them, or the other way
round."""


@dataclass(frozen=True)
class Measure:
    """A measure, ours or one of your own. Every table of results has a column of yours, with mean and interval over
    seeds.

    Raises:
        OcilError: ``format`` is not a format of Python, or tables have a column of this name.

    Examples:
        >>> def last_task(result):
        ...     return result.matrix[-1][-1]
        >>> ocil.register(ocil.Measure("last-task", last_task, formula="accuracy on the last group at the end"))
    """

    name: str
    function: Callable[[RecordedResult], float | None]
    """Of the result of one run. None: it is not defined for this run."""
    higher_is_better: bool = True
    format: str = "percent"
    """``percent`` for a share of 1, else a format of Python such as ``.3f``."""
    heading: str = ""
    """The heading of its column, without the unit; by default its name."""
    formula: str = ""
    bounds: tuple[float, float] | None = None
    """The smallest and the largest value; None: not known."""
    paper: str = ""
    """Which paper defines or uses it."""
    needs: str = ""
    """The setting that records what it needs; empty if every run does."""
    column: bool = True
    """Whether tables have a column of it where a result has a value."""

    def __post_init__(self) -> None:
        if self.name in TAKEN:
            raise OcilError(
                f"a measure cannot be called '{self.name}': tables have such a column. Choose another name."
            )
        try:
            self.format == "percent" or format(1.0, self.format)
        except ValueError:
            raise OcilError(
                f"measure '{self.name}': format = {self.format!r} is not 'percent' or like '.3f'."
            ) from None

    @property
    def title(self) -> str:
        """The heading of its column."""
        words = self.heading or self.name.replace("-", " ").replace("_", " ")
        return words + (" %" if self.format == "percent" else "")

    @property
    def is_ours(self) -> bool:
        """Whether it comes with ocil."""
        return MEASURES.origin(self.name) == OURS

    def of(self, result: RecordedResult) -> float | None:
        """Its value for a run. If it fails, it says so on standard error, once, and has no value.

        A measure that is not ours gets a copy: what it sorts or removes there changes no other number.
        """
        given = result if self.is_ours else deepcopy(result)
        try:
            found = self.function(given)
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


def _forward_transfer(result: RecordedResult) -> float | None:
    return forward_transfer(result.matrix, 1 / len(result.tested)) if result.tested else None


def _images_passed(result: RecordedResult) -> float | None:
    """Every image counts as one, whether a backward pass follows or not."""
    return result.cost["images"] + result.cost["forward"] if result.cost else None


SHARE, DIFFERENCE, COUNT = (0.0, 1.0), (-1.0, 1.0), (0.0, math.inf)
EVERY = "evaluate_every"
LOPEZ_PAZ, DE_LANGE = "Lopez-Paz and Ranzato 2017 (GEM)", "De Lange et al. 2023"
KOH, SURVEY = "Koh et al. 2022 (i-Blurry)", "Soutif-Cormerais et al. 2023"
NUMBER = ",.0f"


def _ours(
    name: str,
    heading: str,
    function: Callable[[RecordedResult], float | None],
    formula: str,
    bounds: tuple[float, float],
    paper: str,
    needs: str = "",
    *,
    higher_is_better: bool = True,
    form: str = "percent",
    column: bool = False,
) -> Measure:
    return Measure(name, function, higher_is_better, form, heading, formula, bounds, paper, needs, column)


def _bytes(name: str, heading: str) -> Measure:
    """One of the numbers of bytes in the record of cost."""
    return _ours(name, heading, lambda r: r.cost.get(name), "", COUNT, "", higher_is_better=False, form=NUMBER)


OUR_MEASURES = (
    _ours("average_accuracy", "accuracy", lambda r: average_accuracy(r.matrix), "1/T sum_j a[T,j]", SHARE, "all"),
    _ours(
        "average_incremental_accuracy",
        "incremental accuracy",
        lambda r: average_incremental_accuracy(r.matrix),
        "1/T sum_i 1/i sum_(j<=i) a[i,j]",
        SHARE,
        "Rebuffi et al. 2017 (iCaRL)",
    ),
    _ours(
        "average_forgetting",
        "forgetting",
        lambda r: average_forgetting(r.matrix),
        "1/(T-1) sum_(j<T) (max_(i<T) a[i,j] - a[T,j])",
        DIFFERENCE,
        "Chaudhry et al. 2018, AFS",
        higher_is_better=False,
    ),
    _ours(
        "average_forgetting_common",
        "forgetting over T tasks",
        lambda r: average_forgetting_common(r.matrix),
        "1/T sum_j (max_i a[i,j] - a[T,j])",
        SHARE,
        "code of RaptorMai and its descendants",
        higher_is_better=False,
    ),
    _ours(
        "backward_transfer",
        "BWT",
        lambda r: backward_transfer(r.matrix),
        "1/(T-1) sum_(j<T) (a[T,j] - a[j,j])",
        DIFFERENCE,
        LOPEZ_PAZ,
    ),
    _ours("forward_transfer", "FWT", _forward_transfer, "1/(T-1) sum_(j>1) (a[j-1,j] - 1/C)", DIFFERENCE, LOPEZ_PAZ),
    _ours(
        "area_under_accuracy",
        "A_AUC",
        lambda r: area_under_accuracy(r.anytime),
        "1/n_P sum_p (n_p - n_(p-1)) A_p",
        SHARE,
        KOH,
        EVERY,
        column=True,
    ),
    _ours(
        "average_anytime_accuracy",
        "AAA",
        lambda r: average_anytime_accuracy(r.anytime, r.groups),
        "1/P sum_p mean_(tasks begun) a[p,j]",
        SHARE,
        SURVEY,
        EVERY,
    ),
    _ours(
        "lowest_anytime_accuracy",
        "lowest accuracy",
        lambda r: lowest_anytime_accuracy(r.anytime),
        "min_p A_p",
        SHARE,
        "none",
        EVERY,
    ),
    _ours(
        "minimum_accuracy",
        "min-ACC",
        lambda r: minimum_accuracy(r.anytime, r.groups),
        "1/(T-1) sum_(j<T) min_(p after j) a[p,j]",
        SHARE,
        DE_LANGE,
        EVERY,
    ),
    _ours(
        "worst_case_accuracy",
        "WC-ACC",
        lambda r: worst_case_accuracy(r.anytime, r.groups),
        "1/T a[P,T] + (1 - 1/T) min-ACC",
        SHARE,
        DE_LANGE,
        EVERY,
        column=True,
    ),
    _ours(
        "stability_gap",
        "stability gap",
        lambda r: stability_gap(r.anytime),
        "mean over task ends of (A at the end - lowest A in the next task), on what was known at the end",
        DIFFERENCE,
        f"after {DE_LANGE}",
        EVERY,
        higher_is_better=False,
    ),
    _ours(
        "expected_calibration_error",
        "ECE",
        lambda r: expected_calibration_error(r.calibration),
        "sum_b n_b/n |accuracy_b - confidence_b|, 15 bins",
        SHARE,
        "Guo et al. 2017",
        higher_is_better=False,
    ),
    _ours(
        "prequential_accuracy",
        "prequential",
        lambda r: prequential_accuracy(r.prequential),
        "correct before learned / learned",
        SHARE,
        "Gama et al. 2013; Cai et al. 2021",
        "prequential",
        column=True,
    ),
    _ours(
        "probe_accuracy",
        "linear probe",
        lambda r: r.probe.get("accuracy"),
        "accuracy of ridge regression on the final features",
        SHARE,
        "Davari et al. 2022",
        "probe",
        column=True,
    ),
    _ours("wall_seconds", "seconds", lambda r: r.wall_seconds, "", COUNT, "", higher_is_better=False, form=".1f"),
    _ours("images_passed", "images passed", _images_passed, "", COUNT, "", higher_is_better=False, form=NUMBER),
    _bytes("memory_bytes", "bytes of samples"),
    _bytes("state_bytes", "bytes of all else"),
)

MEASURES: Registry[Measure] = Registry("measure", "ocil.measures", OUR_MEASURES, _read)
"""All measures by name: ours and those from outside."""


def shown(values: Sequence[Mapping[str, Estimate | None]]) -> list[Measure]:
    """The measures that a table has columns for, given the values of its rows by name: those from outside, and those of
    ours that are not in every table already, where a row has a value."""
    return [
        measure
        for name, measure in MEASURES.items()
        if measure.column and (not measure.is_ours or any(row.get(name) is not None for row in values))
    ]
