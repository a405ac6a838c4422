"""Compares what was measured with what was published: ranked numbers in rows and columns, not yet text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ocil.evaluation.measures import Estimate
from ocil.methods import METHODS, method
from ocil.methods.review_label import Label
from ocil.report.cells import Collection, MeasuredCell, pick, settings_text, title_of
from ocil.report.papers import ACCURACY, MEASURE_HEADINGS, ColumnKey, Paper, PaperRow, PaperTable, Published
from ocil.report.ranking import top_two
from ocil.runs.settings import as_argument
from ocil.streams import StreamConfig
from ocil.text import number_text


@dataclass(frozen=True)
class ComparedNumber:
    """One number of a table: what was measured and what was published, each if there is one."""

    column: ColumnKey
    cell: MeasuredCell | None
    published: Published | None
    rank: int = 0
    """1 for the best of its column among those measured, 2 for the second, else 0."""

    @property
    def value(self) -> Estimate | None:
        found: Estimate | None = None if self.cell is None else getattr(self.cell.summary, self.column.measure)
        return found

    @property
    def seeds(self) -> int:
        """How many seeds the number is over; 0 where there is none."""
        return 0 if self.value is None else len(self.value.values)

    @property
    def difference(self) -> float | None:
        return difference(self.value, self.published)

    @property
    def overlap(self) -> bool | None:
        return overlap(self.value, self.published)


@dataclass(frozen=True)
class ComparedRow:
    """A row of a paper's table with what was measured for it."""

    name: str
    method: str
    review: bool
    numbers: tuple[ComparedNumber, ...]
    """One per column. A bound has a single one, for all columns."""


@dataclass(frozen=True)
class Grid:
    """Rows and columns of one dataset."""

    title: str
    columns: tuple[ColumnKey, ...]
    rows: tuple[ComparedRow, ...]
    bounds: tuple[ComparedRow, ...] = ()
    by_memory: bool = True
    """Whether the columns are memory sizes, else they are measures."""

    @property
    def all_rows(self) -> tuple[ComparedRow, ...]:
        return (*self.bounds, *self.rows)

    @property
    def headings(self) -> list[str]:
        if self.by_memory:
            return [f"memory {column.memory}" for column in self.columns] or ["no memory"]
        several = len({column.memory for column in self.columns}) > 1
        return [(f"memory {c.memory}, " if several else "") + MEASURE_HEADINGS[c.measure] for c in self.columns]

    @property
    def measured(self) -> int:
        """How many of its numbers were measured."""
        return sum(self._seeds.values())

    @property
    def common_seeds(self) -> int:
        """How many seeds most of its numbers have; the larger count, where two are as frequent."""
        return max(self._seeds, key=lambda count: (self._seeds[count], count), default=0)

    @property
    def _seeds(self) -> Counter[int]:
        return Counter(number.seeds for row in self.all_rows for number in row.numbers if number.seeds)


@dataclass(frozen=True)
class ComparedTable:
    """A table of a paper, filled with what was measured: a grid per dataset."""

    table: PaperTable
    grids: tuple[Grid, ...]


def difference(value: Estimate | None, published: Published | None) -> float | None:
    """Measured less published, in points."""
    return None if value is None or published is None else 100 * value.mean - published.mean


def overlap(value: Estimate | None, published: Published | None) -> bool | None:
    """Whether the two intervals meet; None where one of them is not known, as for one seed or two."""
    if value is None or published is None or value.shown_interval is None or published.interval is None:
        return None
    return abs(100 * value.mean - published.mean) <= 100 * value.shown_interval + published.interval


def published_accuracy(cell: MeasuredCell, paper: Paper) -> Published | None:
    """The average accuracy that the paper has for the settings of a cell."""
    return paper.published(cell.label, cell.row_settings, ColumnKey(cell.config.dataset, cell.column.memory))


def one_per_column(cells: Iterable[MeasuredCell]) -> list[MeasuredCell]:
    """The cells that tables show: one of those that differ by their precision alone."""
    groups: dict[tuple[Any, ...], list[MeasuredCell]] = {}
    for cell in cells:
        groups.setdefault((cell.label, cell.column, settings_text(cell.row_settings)), []).append(cell)
    return [picked for alike in groups.values() if (picked := pick(alike))]


def concerned(paper: Paper, collection: Collection) -> Paper:
    """The part of a paper that concerns the results: its tables if a cell belongs to one of their rows (bounds do not
    count), and its long-tailed table if there are long-tailed runs.
    """
    used = any(
        paper.has_row(cell.label, cell.row_settings, cell.config.dataset, cell.column.memory)
        for cell in collection.cells
    )
    if used:
        return paper
    return Paper(paper.citation if collection.longtail else "", longtail=paper.longtail)


def compared_tables(collection: Collection, paper: Paper) -> list[ComparedTable]:
    """The paper's table of all methods first, then those that have runs of their own."""
    main = next((table for table in paper.tables if table.all_methods), None)
    found = [_all_methods(collection, main)] if main else []
    known = [(row.label, row.settings) for row in main.rows] if main else []
    others = (table for table in paper.tables if table is not main)
    return found + [filled for table in others if (filled := _filled(collection, table, known))]


def _all_methods(collection: Collection, table: PaperTable) -> ComparedTable:
    """The paper's datasets with its rows and columns, and whatever else was measured there with default settings."""
    return ComparedTable(table, tuple(_paper_dataset(dataset, collection.cells, table) for dataset in table.memory))


def _filled(collection: Collection, table: PaperTable, known: list[tuple[str, Any]]) -> ComparedTable | None:
    """A table of the paper with what was measured; None if only rows of the table of all methods were measured."""
    table = replace(table, rows=_with_measured_values(collection, table))
    grids, own = [], False
    for dataset, sizes in table.memory.items():
        here = [cell for cell in collection.cells if cell.config.dataset == dataset]
        columns, rows = table.columns(dataset), []
        for spec in table.rows:
            alike = [c for c in here if c.label == spec.label and c.row_settings == spec.settings]
            row = _row(spec.name, spec.label, columns, alike, spec.published)
            measured = any(number.cell for number in row.numbers)
            own = own or (measured and (spec.label, spec.settings) not in known)
            if measured or not spec.optional:
                rows.append(row)
        title = title_of(dataset) + (f", memory {sizes[0]}" if not table.by_memory and len(sizes) == 1 else "")
        grids.append(Grid(title, columns, _ranked(rows), by_memory=table.by_memory))
    return ComparedTable(table, tuple(grids)) if own else None


def _with_measured_values(collection: Collection, table: PaperTable) -> tuple[PaperRow, ...]:
    """The rows of a table about one setting, with a row for every value that was measured, in order of the values."""
    setting = table.all_values
    if not setting:
        return table.rows
    of = METHODS.find(Label.parse(table.label).method)  # a paper may have a method that is not known here
    defaults = (of.learner_class.Config() if of else None, StreamConfig())
    usual = next((getattr(each, setting) for each in defaults if hasattr(each, setting)), None)

    def place_of(row: PaperRow) -> tuple[Any, ...]:
        return _by_size(row.settings.get(setting, usual))

    def is_about_it(row: PaperRow) -> bool:
        return row.label == table.label and row.settings.keys() <= {setting}

    others = [row for row in table.rows if not is_about_it(row)]
    rows = {place_of(row): row for row in table.rows if is_about_it(row)}
    for cell in collection.cells:
        here = cell.label == table.label and cell.column.memory in table.memory.get(cell.config.dataset, ())
        if here and set(cell.row_settings) == {setting}:
            row = PaperRow(as_argument(cell.row_settings[setting]), table.label, cell.row_settings)
            rows.setdefault(place_of(row), row)
    return tuple(sorted([*rows.values(), *others], key=place_of))


def _by_size(value: Any) -> tuple[Any, ...]:
    """Numbers by their size, and then all else, such as None and lists, by its text."""
    return (0, value, "") if isinstance(value, int | float) else (1, 0, as_argument(value))


def _row(
    name: str,
    label: str,
    columns: Sequence[ColumnKey],
    cells: Sequence[MeasuredCell],
    published: Mapping[ColumnKey, Published],
) -> ComparedRow:
    """Each column gets one of the cells with its memory size. A cell without a memory fits every column."""
    of, review = Label.parse(label)
    if review is None:  # a paper may have a method that is not known here
        review = of in METHODS and method(of).learner_class.Config().review
    fitting = (pick(cell for cell in cells if cell.column.memory in (column.memory, 0)) for column in columns)
    pairs = zip(columns, fitting, strict=True)
    return ComparedRow(name, of, review, tuple(ComparedNumber(c, cell, published.get(c)) for c, cell in pairs))


def _paper_dataset(dataset: str, cells: Iterable[MeasuredCell], table: PaperTable) -> Grid:
    """The paper's rows and columns, and whatever else was measured with a method's own settings. Bounds have a single
    column, without a memory."""
    plain = [cell for cell in cells if cell.config.dataset == dataset and not cell.row_settings]
    published = {row.label: row.published for row in table.rows}

    def rows(bound: bool, columns: Sequence[ColumnKey]) -> list[ComparedRow]:
        labels = [row.label for row in table.rows if row.bound == bound]
        labels += [cell.label for cell in plain if bool(cell.column.memory) != bound]
        alike = {label: [cell for cell in plain if cell.label == label] for label in labels}
        return [_row(label, label, columns, alike[label], published.get(label, {})) for label in alike]

    sizes = {*table.memory[dataset], *(cell.column.memory for cell in plain)} - {0}
    columns = tuple(ColumnKey(dataset, size) for size in sorted(sizes))
    bounds = tuple(rows(True, [ColumnKey(dataset, 0)]))
    return Grid(title_of(dataset), columns, _ranked(rows(False, columns)), bounds)


def _ranked(rows: Sequence[ComparedRow]) -> tuple[ComparedRow, ...]:
    """Mark the best and the second of each column. Values that print alike share a rank; a single one has none."""
    by_column = [_ranks(column) for column in zip(*(row.numbers for row in rows), strict=True)]
    by_row = zip(*by_column, strict=True) if by_column else ((),) * len(rows)
    return tuple(replace(row, numbers=ranked) for row, ranked in zip(rows, by_row, strict=True))


def _ranks(column: Sequence[ComparedNumber]) -> list[ComparedNumber]:
    means = {place: number.value.mean for place, number in enumerate(column) if number.value is not None}
    order = sorted(means, key=means.__getitem__, reverse=column[0].column.measure == ACCURACY)
    ranks = top_two({place: number_text(means[place], "percent") for place in order})
    return [replace(number, rank=ranks.get(place, 0)) for place, number in enumerate(column)]
