"""What tables may show of a run: its measures and costs, each with a heading and a way to write it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ocil.errors import OcilError, suggest
from ocil.evaluation import measures
from ocil.evaluation.measures import MEASURES, Estimate, Measure, estimate
from ocil.report.cells import FinishedRun, MeasuredCell
from ocil.report.cost import bytes_kept, images_passed
from ocil.report.formatting import duration, kilo, measured
from ocil.report.papers import ACCURACY


@dataclass(frozen=True)
class Quantity:
    """A number of one run."""

    name: str
    title: str
    """The heading of its column."""
    of: Callable[[FinishedRun], float | None]
    """None: it was not recorded, or it is not defined for this run."""
    higher_is_better: bool = True
    form: str = "percent"
    """``percent`` for a share of 1, ``bytes``, ``images``, ``seconds``, or a format of Python."""

    def by_seed(self, cell: MeasuredCell) -> dict[int, float]:
        """Its value for each run that has one."""
        found = ((run.result.config.seed, self.of(run)) for run in cell.runs)
        return {seed: value for seed, value in found if value is not None}

    def estimate(self, cell: MeasuredCell) -> Estimate | None:
        """The mean over seeds with its interval; None unless every run has a value."""
        values = list(self.by_seed(cell).values())
        return estimate(values) if values and len(values) == len(cell.runs) else None

    def text(self, value: Estimate | None) -> str:
        """``42.3 ± 0.4``, in its own unit."""
        if value is None:
            return "-"
        plain: dict[str, Callable[[float], str]] = {
            "bytes": lambda number: f"{kilo(number)}B" if number >= 1000 else f"{number:.0f} B",
            "images": kilo,
            "seconds": duration,
        }
        return plain[self.form](value.mean) if self.form in plain else measured(value, self.form)

    def difference(self, value: Estimate | None) -> str:
        """``+7.5 ± 0.4``: percent as points; other units as they are."""
        if value is None:
            return ""
        scale, form = (100.0, "z.1f") if self.form == "percent" else (1.0, "z.4g")
        if self.form not in ("percent", "bytes", "images", "seconds"):
            form = self.form
        sign = "+" if value.mean * scale >= 0 and not form.startswith("+") else ""
        spread = "" if value.interval is None else f" ± {value.interval * scale:{form}}"
        return f"{sign}{value.mean * scale:{form}}{spread}"


def _of_matrix(function: Callable[[Any], float | None]) -> Callable[[FinishedRun], float | None]:
    return lambda run: function(run.result.matrix)


def _of_anytime(function: Callable[[Any], float | None]) -> Callable[[FinishedRun], float | None]:
    return lambda run: function(run.result.anytime) if run.result.anytime else None


def _of_plugin(measure: Measure) -> Callable[[FinishedRun], float | None]:
    return lambda run: measure.of(run.result)


ACCURACY_QUANTITY = Quantity(ACCURACY, "accuracy %", _of_matrix(measures.average_accuracy))
BUILT_IN = (
    ACCURACY_QUANTITY,
    Quantity("average_forgetting", "forgetting %", _of_matrix(measures.average_forgetting), higher_is_better=False),
    Quantity("average_anytime_accuracy", "average anytime accuracy %", _of_anytime(measures.average_anytime_accuracy)),
    Quantity("lowest_anytime_accuracy", "lowest anytime accuracy %", _of_anytime(measures.lowest_anytime_accuracy)),
)
COSTS = (
    Quantity("images", "images passed", images_passed, higher_is_better=False, form="images"),
    Quantity("bytes", "kept", bytes_kept, higher_is_better=False, form="bytes"),
    Quantity("wall_seconds", "time / run", lambda run: run.result.wall_seconds, higher_is_better=False, form="seconds"),
)


def known() -> dict[str, Quantity]:
    """Every quantity by name: ours, those of plugins, costs."""
    plugins = (
        Quantity(name, measure.title, _of_plugin(measure), measure.higher_is_better, measure.format)
        for name, measure in MEASURES.items()
    )
    return {quantity.name: quantity for quantity in (*BUILT_IN, *plugins, *COSTS)}


def named(name: str) -> Quantity:
    """The quantity of that name; ``accuracy`` is the average accuracy."""
    found = known()
    name = {"accuracy": ACCURACY}.get(name, name).replace("-", "_") if name not in found else name
    if name not in found:
        raise OcilError(f"'{name}' is no measure of a result.{suggest(name, list(found))}")
    return found[name]


def recorded(cells: Iterable[MeasuredCell]) -> list[Quantity]:
    """The quantities that at least one of the cells has."""
    listed = list(cells)
    return [each for each in known().values() if any(each.by_seed(cell) for cell in listed)]
