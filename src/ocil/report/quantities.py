"""What tables may show of a run: its measures and costs, each with a heading and a way to write it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ocil.errors import OcilError, suggest
from ocil.evaluation.measures import MEASURES, Estimate, Measure, estimate
from ocil.report.cells import FinishedRun, MeasuredCell
from ocil.report.cost import bytes_kept
from ocil.report.formatting import duration, measured, spread_text
from ocil.report.papers import ACCURACY
from ocil.text import bytes_text, kilo, number_text


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
    is_measure: bool = False
    """Whether it is a measure, which the summary of a cell holds already if every run has a value."""

    def by_seed(self, cell: MeasuredCell) -> dict[int, float]:
        """Its value for each run that has one."""
        seeds = [run.result.config.seed for run in cell.runs]
        if summarised := self._summarised(cell):
            return dict(zip(seeds, summarised.values, strict=True))
        values = map(self.of, cell.runs)
        return {seed: value for seed, value in zip(seeds, values, strict=True) if value is not None}

    def estimate(self, cell: MeasuredCell) -> Estimate | None:
        """The mean over seeds with its interval; None unless every run has a value."""
        if summarised := self._summarised(cell):
            return summarised
        values = list(self.by_seed(cell).values())
        return estimate(values) if values and len(values) == len(cell.runs) else None

    def _summarised(self, cell: MeasuredCell) -> Estimate | None:
        return cell.summary.measures.get(self.name) if self.is_measure else None

    def text(self, value: Estimate | None) -> str:
        """``42.3 ± 0.4``, in its own unit; see ``measured``."""
        if value is None:
            return "-"
        plain: dict[str, Callable[[float], str]] = {
            "bytes": bytes_text,
            "images": kilo,
            "seconds": duration,
        }
        return plain[self.form](value.mean) if self.form in plain else measured(value, self.form)

    def difference(self, value: Estimate | None, plus: str = "+") -> str:
        """``+7.5 ± 0.4``, of two seeds ``+7.5 (+7.2 to +7.8)``: percent as points; other units as they are. ``plus``:
        what stands before a number that is not negative."""
        if value is None:
            return ""
        scale, form = (100.0, ".1f") if self.form == "percent" else (1.0, ".4g")
        if self.form not in ("percent", "bytes", "images", "seconds"):
            form = self.form

        def signed(number: float) -> str:
            sign = plus if number * scale >= 0 and not form.startswith("+") else ""
            return f"{sign}{number_text(number * scale, form)}"

        return f"{signed(value.mean)} {spread_text(value, signed)}".strip()


def _of(measure: Measure) -> Quantity:
    """A measure of the registry, ours or of a plugin. Units of ours are written for people."""
    title, form = measure.title, measure.format
    if measure.is_ours and measure.name in OUR_UNITS:
        title, form = OUR_UNITS[measure.name]
    higher = measure.higher_is_better
    return Quantity(measure.name, title, lambda run: measure.of(run.result), higher, form, is_measure=True)


OUR_UNITS = {
    "wall_seconds": ("time / run", "seconds"),
    "images_passed": ("images passed", "images"),
    "memory_bytes": ("samples kept", "bytes"),
    "state_bytes": ("all else kept", "bytes"),
}
ACCURACY_QUANTITY = _of(MEASURES[ACCURACY])
KEPT = Quantity("bytes_kept", "kept", bytes_kept, higher_is_better=False, form="bytes")


def all_quantities() -> dict[str, Quantity]:
    """Every quantity by name: ours, and those of plugins."""
    return {name: _of(measure) for name, measure in MEASURES.items()} | {KEPT.name: KEPT}


def find_quantity(name: str) -> Quantity:
    """The quantity of that name, or with that head in tables: ``accuracy``, ``forgetting``, ``WC-ACC``.

    ``OcilError`` if there is none.
    """
    found = all_quantities()
    heads = {_spelled(each.title): key for key, each in reversed(found.items())}
    name = name if name in found else heads.get(_spelled(name), name.replace("-", "_"))
    if _spelled(name).endswith("intransigence"):
        raise OcilError(
            "intransigence compares with other runs: ocil show has it for one cell, ocil report in tables/cells."
        )
    if name not in found:
        raise OcilError(f"'{name}' is no measure of a result.{suggest(name, list(found))}")
    return found[name]


def not_recorded(quantity: Quantity) -> str:
    """What to say where no run has it."""
    needed = MEASURES[quantity.name].needs if quantity.is_measure else ""
    reason = f": it needs runs with the setting {needed}" if needed else ""
    return f"none of these runs has {quantity.title.removesuffix(' %')}{reason}."


def _spelled(head: str) -> str:
    """A head without what people leave out of it."""
    return head.removesuffix("%").strip().lower().replace("_", " ").replace("-", " ")


def recorded(cells: Iterable[MeasuredCell]) -> list[Quantity]:
    """The quantities that at least one of the cells has."""
    listed = list(cells)
    return [each for each in all_quantities().values() if each != KEPT and any(each.by_seed(cell) for cell in listed)]
