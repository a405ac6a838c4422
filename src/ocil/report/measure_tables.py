"""Everything that was measured of each method: a table per dataset, stream and memory size."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ocil.evaluation.measures import Estimate
from ocil.report.cells import MeasuredCell, MeasuredColumn
from ocil.report.formatting import range_note
from ocil.report.quantities import Quantity, recorded
from ocil.report.ranking import top_two
from ocil.report.result_tables import anchor, record_table
from ocil.report.standings import Standings
from ocil.report.table import About, Column, Document, Row, Table, Value

EVERY_RUN = {
    *("average_accuracy", "average_incremental_accuracy", "average_forgetting", "average_forgetting_common"),
    *("backward_transfer", "wall_seconds"),
}
"""What follows from every accuracy matrix: if nothing else was recorded, there is no table of it."""
RECORD = ("dataset", "stream", "memory", "method", "measure", "seeds", "mean", "interval")
CAPTION = "Mean over seeds ± half of the 95 % interval.{ranges} Best in bold, second underlined. A dash: not recorded."


def measures_document(standings: Standings) -> Document | None:
    """A table per column of the standings; None if nothing was recorded but what every result has."""
    tables: list[Table] = []
    records: list[dict[str, Any]] = []
    for column in standings.entries.columns:
        cells = {entry.name: entry.cells[column] for entry in standings.ordered if column in entry.cells}
        quantities = recorded(cells.values())
        if {quantity.name for quantity in quantities} - EVERY_RUN:
            tables.append(
                _table(column, cells, quantities, {entry.name for entry in standings.entries.all if entry.bound})
            )
            records += _records(column, cells, quantities)
    if not tables:
        return None
    shown = (cell.summary.average_accuracy for entry in standings.ordered for cell in entry.cells.values())
    caption = CAPTION.format(ranges=range_note(shown))
    return Document("measures", "All measures", tuple(tables), record_table(RECORD, records), caption)


def _table(
    column: MeasuredColumn, cells: Mapping[str, MeasuredCell], quantities: Sequence[Quantity], bounds: Iterable[str]
) -> Table:
    values = {each.name: {name: each.estimate(cell) for name, cell in cells.items()} for each in quantities}
    ranks = {
        each.name: _ranks({name: value for name, value in values[each.name].items() if name not in bounds}, each)
        for each in quantities
    }
    heads = (Column(each.title, "paired", not each.higher_is_better) for each in quantities)
    rows = (
        Row.of(
            Value(name, anchor=anchor(cell.name)),
            *(_value(each, values[each.name][name], ranks[each.name].get(name, 0)) for each in quantities),
            bound=name in bounds,
            about=About(method=name),
        )
        for name, cell in cells.items()
    )
    about = About(column.dataset, str(column.memory))
    return Table(column.title, (Column("method"), *heads), tuple(rows), about=about)


def _value(quantity: Quantity, value: Estimate | None, rank: int) -> Value:
    return Value(quantity.text(value), "" if value is None else f"{value.mean:.6g}", rank)


def _ranks(values: Mapping[str, Estimate | None], quantity: Quantity) -> dict[str, int]:
    means = {name: value.mean for name, value in values.items() if value is not None}
    order = sorted(means, key=means.__getitem__, reverse=quantity.higher_is_better)
    return top_two({name: quantity.text(Estimate(means[name], None, ())) for name in order})


def _records(
    column: MeasuredColumn, cells: Mapping[str, MeasuredCell], quantities: Sequence[Quantity]
) -> Iterable[dict[str, Any]]:
    for name, cell in cells.items():
        for quantity in quantities:
            if (value := quantity.estimate(cell)) is not None:
                yield {
                    "dataset": column.dataset,
                    "stream": column.stream,
                    "memory": column.memory,
                    "method": name,
                    "measure": quantity.name,
                    "seeds": len(value.values),
                    "mean": f"{value.mean:.6g}",
                    "interval": "" if value.interval is None else f"{value.interval:.6g}",
                }
