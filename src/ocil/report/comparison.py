"""The paper's tables, filled with what was measured: numbers side by side, ranked, not yet text."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ocil.methods import method
from ocil.metrics import Estimate
from ocil.report import published as paper
from ocil.report.collect import BOUNDS, LABEL_FREE, Cell, Collection, memory_of, pick, title_of, written
from ocil.report.published import Published

ACCURACY, FORGETTING, INTRANSIGENCE = paper.MEASURES
MEASURE_NAMES = {ACCURACY: "accuracy", FORGETTING: "forgetting", INTRANSIGENCE: "intransigence"}

# The rows of Table II beside ER-RV: a name and what differs from AFS. The last is the control that the paper left out.
ABLATION: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline": ("Baseline", {"loss": "ce", "regulariser": "none"}),
    "fl": ("Baseline + FL", {"loss": "focal", "regulariser": "none"}),
    "rfl": ("Baseline + RFL", {"regulariser": "none"}),
    "lsr": ("Baseline + LSR", {"loss": "ce", "regulariser": "lsr"}),
    "vkd": ("Baseline + VKD", {"loss": "ce"}),
    "fl+lsr": ("Baseline + FL + LSR", {"loss": "focal", "regulariser": "lsr"}),
    "fl+vkd": ("Baseline + FL + VKD", {"loss": "focal"}),
    "rfl+lsr": ("Baseline + RFL + LSR", {"regulariser": "lsr"}),
    "rfl+vkd": ("Baseline + RFL + VKD (AFS)", {}),
    "ce/4": ("Baseline, CE × 0.25", {"loss": "ce", "regulariser": "none", "ce_scale": 0.25}),
}
SAMPLE_VALUES = {
    "smu": "SMU",
    "gini": "Gini index",
    "entropy": "entropy",
    "gen": "GEN",
    "p_t": "true-class score (AFS)",
}


@dataclass(frozen=True)
class Column:
    dataset: str
    memory: int
    """0 for methods that keep none."""
    measure: str = ACCURACY


@dataclass(frozen=True)
class Entry:
    """One number of a table: what was measured, if it was, beside what was published, if it was."""

    column: Column
    cell: Cell | None
    paper: Published | None
    rank: int = 0
    """1: the best of its column among those measured, 2: the second; else 0."""

    @property
    def value(self) -> Estimate | None:
        found: Estimate | None = None if self.cell is None else getattr(self.cell.summary, self.column.measure)
        return found

    @property
    def seeds(self) -> int:
        """How many the number is over; 0 where there is none."""
        return 0 if self.value is None else len(self.value.values)

    @property
    def difference(self) -> float | None:
        """Measured less published, in points."""
        return difference(self.value, self.paper)

    @property
    def overlap(self) -> bool | None:
        return overlap(self.value, self.paper)


@dataclass(frozen=True)
class Row:
    name: str
    method: str
    review: bool
    entries: tuple[Entry, ...]
    """One a column. A bound has a single one, for all columns."""
    settings: str = ""
    """What tells it from other rows of the same method, where something must."""


@dataclass(frozen=True)
class Part:
    """What a table has on one dataset."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    bounds: tuple[Row, ...] = ()
    by_memory: bool = True
    """Whether the columns are memory sizes, else they are measures."""

    @property
    def headings(self) -> list[str]:
        if self.by_memory:
            return [f"memory {column.memory}" for column in self.columns] or ["no memory"]
        return [MEASURE_NAMES[column.measure] for column in self.columns]

    @property
    def measured(self) -> int:
        return sum(self._seeds.values())

    @property
    def usual_seeds(self) -> int:
        """How many seeds most of its numbers have; the larger count, where two are as frequent."""
        return max(self._seeds, key=lambda count: (self._seeds[count], count), default=0)

    @property
    def _seeds(self) -> Counter[int]:
        rows = (*self.bounds, *self.rows)
        return Counter(entry.seeds for row in rows for entry in row.entries if entry.seeds)


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    caption: str
    row_name: str
    parts: tuple[Part, ...]


def difference(value: Estimate | None, beside: Published | None) -> float | None:
    return None if value is None or beside is None else 100 * value.mean - beside.mean


def overlap(value: Estimate | None, beside: Published | None) -> bool | None:
    """Whether the two intervals meet. One seed has no interval, so nothing can be said."""
    gap = difference(value, beside)
    if value is None or beside is None or gap is None or value.interval is None:
        return None
    return abs(gap) <= 100 * value.interval + beside.interval


def counterpart(cell: Cell) -> Published | None:
    """The average accuracy that the paper has for the settings of a cell."""
    config, dataset, memory = cell.config, cell.config.dataset, memory_of(cell.config)
    changed = _meant(cell)
    if not changed:
        return paper.published(config.label, dataset, memory)
    if config.label != "afs":
        return None
    if paper.ABLATION_MEMORY.get(dataset) == memory:
        for key, (_, settings) in ABLATION.items():
            if settings == changed:
                return paper.ABLATION.get((key, dataset, ACCURACY))
    name, value = next(iter(changed.items()))
    if len(changed) > 1:
        return None
    if name == "sample_value":
        return paper.SAMPLE_VALUE.get((value, dataset, memory))
    study = {"alpha": paper.ALPHA, "sigma": paper.SIGMA}.get(name, {}) if (dataset, memory) == paper.STUDY else {}
    return study.get(value)


def one_a_place(cells: Iterable[Cell]) -> list[Cell]:
    """Of cells that differ by their precision alone, the one that a table shows."""
    places: dict[tuple[str, str, int, str], list[Cell]] = {}
    for cell in cells:
        config = cell.config
        place = (config.label, config.dataset, memory_of(config), written(_meant(cell)))
        places.setdefault(place, []).append(cell)
    return [picked for alike in places.values() if (picked := pick(alike))]


def paper_tables(collection: Collection) -> list[Table]:
    """Table I always; the others where there are runs for them."""
    found = [table1(collection), table2(collection), table3(collection)]
    found += [study(collection, "alpha", paper.ALPHA), study(collection, "sigma", paper.SIGMA)]
    return [table for table in found if table is not None]


def table1(collection: Collection) -> Table:
    parts = [_comparison(dataset, collection.cells) for dataset in paper.MEMORY]
    others = dict.fromkeys(c.config.dataset for c in collection.cells if c.config.dataset not in paper.MEMORY)
    parts += [_other_dataset(dataset, collection.cells) for dataset in others]
    return Table(
        "table1",
        "Table I: all methods",
        "Average accuracy in percent at the end of the stream. “-rv” is with the review trick; AFS and SCR have it by "
        "definition. Bounds are not ranked.",
        "method",
        tuple(parts),
    )


def table2(collection: Collection) -> Table | None:
    """The ablation. ER-RV and AFS itself are of Table I too, so they alone do not make one."""
    parts, own = [], False
    for dataset, memory in paper.ABLATION_MEMORY.items():
        columns = tuple(Column(dataset, memory, measure) for measure in paper.MEASURES)
        rows = [_row("ER-RV", "er", True, columns, _matching(collection, "er-rv", {}), _ablation("er-rv"))]
        for key, (name, settings) in ABLATION.items():
            row = _row(name, "afs", True, columns, _matching(collection, "afs", settings), _ablation(key))
            measured = any(entry.cell for entry in row.entries)
            own = own or (measured and bool(settings))
            if measured or key != "ce/4":
                rows.append(row)
        parts.append(Part(f"{title_of(dataset)}, memory {memory}", columns, _ranked(rows), by_memory=False))
    return None if not own else Table(
        "table2",
        "Table II: what each part of AFS does",
        "Average accuracy (higher is better), forgetting and intransigence (lower is better), in percent. "
        "Forgetting as the published numbers have it, over all T tasks; elsewhere it is over the first T - 1. The "
        "baseline is AFS’s step with cross-entropy alone: larger replay batches, augmented, with review.",
        "loss",
        tuple(parts),
    )  # fmt: skip


def table3(collection: Collection) -> Table | None:
    parts, own = [], False
    for dataset, sizes in paper.MEMORY.items():
        columns = tuple(Column(dataset, size) for size in sizes)
        rows = []
        for key, name in SAMPLE_VALUES.items():
            settings = {} if key == "p_t" else {"sample_value": key}
            row = _row(name, "afs", True, columns, _matching(collection, "afs", settings), _sample_value(key))
            own = own or (key != "p_t" and any(entry.cell for entry in row.entries))
            rows.append(row)
        parts.append(Part(title_of(dataset), columns, _ranked(rows)))
    return None if not own else Table(
        "table3",
        "Table III: other measures of a sample’s value",
        "Average accuracy in percent of AFS when its loss weighs samples by another measure than the score of the true "
        "class.",
        "weighs by",
        tuple(parts),
    )  # fmt: skip


def study(collection: Collection, setting: str, known: Mapping[float, Published]) -> Table | None:
    """AFS by one number of its loss."""
    dataset, memory = paper.STUDY
    usual = method("afs").load().Config()
    values = {cell.changed[setting] for cell in collection.of(*paper.STUDY) if set(_meant(cell)) == {setting}}
    if not values:
        return None
    columns = (Column(dataset, memory),)
    rows = [
        _row(
            f"{value:g}", "afs", True, columns,
            _matching(collection, "afs", {} if value == getattr(usual, setting) else {setting: value}),
            _same(known.get(value)),
        )
        for value in sorted({*known, *values})
    ]  # fmt: skip
    return Table(
        setting,
        f"AFS by {setting}",
        f"Average accuracy in percent of AFS with other values of {setting} (default {getattr(usual, setting):g}).",
        setting,
        (Part(f"{title_of(dataset)}, memory {memory}", columns, _ranked(rows), by_memory=False),),
    )


def _meant(cell: Cell) -> dict[str, Any]:
    """The settings that make a cell what it is."""
    return {name: value for name, value in cell.changed.items() if name not in LABEL_FREE}


def _matching(collection: Collection, label: str, settings: dict[str, Any]) -> Callable[[Column], Cell | None]:
    def find(column: Column) -> Cell | None:
        at = [c for c in collection.of(column.dataset, column.memory) if c.config.label == label]
        return pick(cell for cell in at if _meant(cell) == settings)

    return find


def _sample_value(key: str) -> Callable[[Column], Published | None]:
    return lambda column: paper.SAMPLE_VALUE.get((key, column.dataset, column.memory))


def _same(value: Published | None) -> Callable[[Column], Published | None]:
    return lambda column: value


def _ablation(key: str) -> Callable[[Column], Published | None]:
    return lambda column: paper.ABLATION.get((key, column.dataset, column.measure))


def _row(
    name: str,
    method_name: str,
    review: bool,
    columns: Sequence[Column],
    find: Callable[[Column], Cell | None],
    beside: Callable[[Column], Published | None],
) -> Row:
    return Row(name, method_name, review, tuple(Entry(column, find(column), beside(column)) for column in columns))


def _comparison(dataset: str, cells: Iterable[Cell]) -> Part:
    """The paper's rows and columns, and whatever else was measured with a method's own settings."""
    plain = [cell for cell in cells if cell.config.dataset == dataset and cell.plain]
    replay = [cell for cell in plain if cell.config.method not in BOUNDS]
    sizes = sorted({*paper.MEMORY[dataset], *(memory_of(cell.config) for cell in replay)})
    columns = tuple(Column(dataset, size) for size in sizes)

    def row(label: str, columns: Sequence[Column]) -> Row:
        def find(column: Column) -> Cell | None:
            return pick(c for c in plain if c.config.label == label and memory_of(c.config) == column.memory)

        name, review = split(label)
        return _row(label, name, review, columns, find, lambda c: paper.published(label, dataset, c.memory))

    labels = dict.fromkeys([*paper.METHODS, *(cell.config.label for cell in replay)])
    bounds = tuple(row(label, [Column(dataset, 0)]) for label in BOUNDS)
    return Part(title_of(dataset), columns, _ranked(row(label, columns) for label in labels), bounds)


def _other_dataset(dataset: str, cells: Iterable[Cell]) -> Part:
    """Every cell, for the paper has no settings for it. A row is one set of settings, at all memory sizes."""
    here = [cell for cell in cells if cell.config.dataset == dataset]
    rows: dict[tuple[str, str], list[Cell]] = {}
    for cell in here:
        rows.setdefault((cell.config.label, written(cell.changed)), []).append(cell)
    sizes = sorted({memory_of(cell.config) for cell in here} - {0})
    columns = tuple(Column(dataset, size) for size in sizes)

    def row(cells: list[Cell], beside: list[list[Cell]], columns: Sequence[Column]) -> Row:
        config, settings = cells[0].config, _distinct(cells[0], [others[0] for others in beside])

        def find(column: Column) -> Cell | None:
            return pick(cell for cell in cells if memory_of(cell.config) == column.memory)

        name = f"{config.label} {settings}".strip()
        made = _row(name, config.method, config.learner.review, columns, find, _same(None))
        return replace(made, settings=settings)

    replay = [group for group in rows.values() if memory_of(group[0].config)]
    bounds = [group for group in rows.values() if not memory_of(group[0].config)]
    return Part(
        title_of(dataset),
        columns,
        _ranked(row(group, replay, columns) for group in replay),
        tuple(row(group, bounds, [Column(dataset, 0)]) for group in bounds),
    )


def _distinct(cell: Cell, others: Iterable[Cell]) -> str:
    """The changed settings that another row has otherwise. A method that has no such setting does not count."""
    configs = [other.config for other in others]

    def differs(name: str, value: Any) -> bool:
        return any(getattr(c.stream, name, getattr(c.learner, name, value)) != value for c in configs)

    return written({name: value for name, value in cell.changed.items() if differs(name, value)})


def split(label: str) -> tuple[str, bool]:
    """``er-rv`` is ``er`` with the review trick."""
    for ending, review in (("-no-rv", False), ("-rv", True)):
        if label.endswith(ending):
            return label.removesuffix(ending), review
    return label, method(label).load().Config().review


def _ranked(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Mark the best and the second of each column; values that print alike share their rank. One alone has none."""
    rows = list(rows)
    width = len(rows[0].entries) if rows else 0
    ranks: list[dict[float, int]] = []
    for number in range(width):
        entries = [row.entries[number] for row in rows]
        values = [_shown(entry) for entry in entries if entry.value is not None]
        best = sorted(set(values), reverse=entries[0].column.measure == ACCURACY)[:2] if len(values) > 1 else []
        ranks.append({value: place for place, value in enumerate(best, 1)})
    return tuple(
        replace(row, entries=tuple(
            replace(entry, rank=ranks[number].get(_shown(entry), 0) if entry.value else 0)
            for number, entry in enumerate(row.entries)
        ))
        for row in rows
    )  # fmt: skip


def _shown(entry: Entry) -> float:
    return round(100 * entry.value.mean, 1) if entry.value else 0.0
