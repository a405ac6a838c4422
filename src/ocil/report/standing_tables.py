"""Standings as tables: ranks and costs, the numbers of all entries, the best of each column."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ocil.evaluation.measures import Estimate, mean_of
from ocil.report.cells import MeasuredCell, MeasuredColumn, memory_of
from ocil.report.cost import images_per_batch
from ocil.report.entries import Entry
from ocil.report.formatting import count, duration, range_note, sizes
from ocil.report.quantities import KEPT, Quantity
from ocil.report.ranking import seeds_text
from ocil.report.result_tables import anchor, record_table
from ocil.report.standings import Lead, Number, Standings
from ocil.report.table import About, Column, Document, Row, Table, Value, with_remarks
from ocil.text import kilo

LESS_IS_BETTER = partial(Column, kind="number", lower_is_better=True)
FEW = 6  # methods side by side in one table
MOST_REMARKS = 20
NO_SHARED_SEED = "no shared seed"
LONGEST = 16  # characters of a name in a heading
RECORD = (
    *("dataset", "stream", "memory", "method", "seeds", "mean", "interval", "against", "difference"),
    *("difference_interval", "shared_seeds", "images_per_batch", "wall_seconds", "device", "column_memory"),
)


STANDINGS_RECORD = (
    *("method", "mean_rank", "columns", "mean", "against", "difference", "difference_interval", "shared_seeds"),
    *("images_per_batch", "wall_seconds", "not_run_on"),
)


def methods_document(standings: Standings) -> Document:
    """A table per dataset and stream, a column per memory size; as CSV a line per number."""
    return Document(
        "methods",
        "All methods",
        tuple(methods_tables(standings)),
        record_table(RECORD, _records(standings)),
        _caption(standings),
        "Best in bold, second underlined. In brackets: the paired difference.",
    )


def standings_document(standings: Standings) -> Document:
    tables = standings_table(standings), leads_table(standings)
    records = record_table(STANDINGS_RECORD, _standings_records(standings))
    return Document("standings", "Standings", tables, records, formats=("md", "csv"))


def _caption(standings: Standings) -> str:
    quantity = standings.quantity
    title, unit = quantity.title.removesuffix(" %"), "the same unit"
    if quantity.form == "percent":
        title, unit = f"{title} in percent", "points"
    numbers = [number for found in standings.numbers.values() for number in found.values()]
    ranges = range_note(value for number in numbers for value in (number.value, number.difference))
    shared = f" For all methods: {standings.entries.shared}." if standings.entries.shared else ""
    to = f" Differences are to {reference_text(standings)}, over the seeds that both have, in {unit}."
    to += _without_reference(standings, standings.entries.columns)
    without = not standings.chosen and all(number.difference is None for number in numbers)
    text = f"{title[:1].upper()}{title[1:]}, mean over seeds ± half of the 95 % interval.{ranges}"
    return f"{text}{'' if without else to}{shared}"


def _without_reference(standings: Standings, columns: Sequence[MeasuredColumn]) -> str:
    """A sentence that names the columns in which the reference that the user chose has no number; empty if none."""
    if not standings.chosen:
        return ""
    name = standings.entries.named(standings.chosen).name
    missing = [column for column in columns if column not in standings.by_seed[name]]
    return f" {name} was not run on {_columns_text(missing)}: no differences there." if missing else ""


def reference_text(standings: Standings) -> str:
    """What the entries are compared with, in words."""
    if standings.chosen:
        return standings.entries.named(standings.chosen).name
    if standings.leader is None:
        return "the best of the column"
    everywhere = all(standings.reference(column) == standings.leader for column in standings.entries.columns)
    return standings.leader.name + ("" if everywhere else ", or to the best of a column without it")


def methods_tables(standings: Standings) -> list[Table]:
    by_stream: dict[tuple[str, str], list[MeasuredColumn]] = {}
    for column in standings.entries.columns:
        by_stream.setdefault((column.dataset, column.stream), []).append(column)
    return [_stream_table(standings, columns) for columns in by_stream.values()]


def _stream_table(standings: Standings, columns: Sequence[MeasuredColumn]) -> Table:
    """The methods on one dataset and stream, a column per memory size."""
    lower = not standings.quantity.higher_is_better
    heads = (Column(_memory(column), "paired", lower, About(memory=str(column.memory))) for column in columns)
    common = _common_seeds(standings, columns)
    rows = []
    for entry in standings.ordered:
        found = standings.numbers[entry.name]
        if any(column in found for column in columns):
            values = [_value(standings, entry, column, common) for column in columns]
            if entry.bound and len(columns) > 1 and not any(memory_of(cell.config) for cell in entry.cells.values()):
                values = [replace(values[0], paired="")]  # one number for all sizes, which each have their reference
            rows.append(Row.of(entry.name, *values, bound=entry.bound, about=About(method=entry.name)))
    note = f"{count(common, 'seed')} unless noted otherwise."
    if any(value.paired == NO_SHARED_SEED for row in rows for value in row.values):
        rows = [replace(row, values=tuple(map(_without_shared_seed, row.values))) for row in rows]
        note += " A number without a difference shares no seed with the one that it would be compared with."
    title = columns[0].title_without_memory
    return Table(title, (Column("method"), *heads), tuple(rows), note, about=About(columns[0].dataset))


def _without_shared_seed(value: Value) -> Value:
    """Not said of every number: a note below the table says it once."""
    return replace(value, paired="") if value.paired == NO_SHARED_SEED else value


def _memory(column: MeasuredColumn) -> str:
    return f"memory {column.memory}" if column.memory else "no memory"


def _common_seeds(standings: Standings, columns: Iterable[MeasuredColumn]) -> int:
    counts = [
        len(number.seeds) for column in columns for found in standings.numbers.values() if (number := found.get(column))
    ]
    return max(set(counts), key=lambda each: (counts.count(each), each), default=0)


def _value(standings: Standings, entry: Entry, column: MeasuredColumn, common: int = 0) -> Value:
    number = standings.numbers[entry.name].get(column)
    if number is None:
        return Value("-", "")
    notes: list[str] = [] if entry.cells[column].common_precision else [entry.cells[column].config.learner.precision]
    notes += [f"{len(number.seeds)} seeds"] if len(number.seeds) not in (1, common) and common else []
    return Value(
        standings.quantity.text(number.value),
        f"{number.value.mean:.6g}",
        number.rank,
        note=", ".join(notes),
        anchor=anchor(entry.cells[column].name),
        paired=paired_text(standings, entry, column),
    )


def paired_text(standings: Standings, entry: Entry, column: MeasuredColumn) -> str:
    """The difference to the reference in words; empty for the reference itself."""
    reference, number = standings.reference(column), standings.numbers[entry.name].get(column)
    if number is None or reference is None or reference == entry:
        return ""
    if number.difference is None:
        return NO_SHARED_SEED
    return standings.quantity.difference(number.difference)


def standings_table(standings: Standings) -> Table:
    """A row per method, best first: mean rank, mean, difference to the reference, cost, and what is missing.

    Methods that miss more than half of the columns are left to a remark.
    """
    over, quantity = standings.ranking.columns, standings.quantity
    mean, lower = "" if len(over) == 1 else "mean ", not quantity.higher_is_better
    known = {each.name: each for each in standings.ranking.standings if 2 * len(each.missing) <= len(over)}
    shown = [entry for entry in standings.ordered if entry.name in known]
    columns: list[tuple[Column, Callable[[Entry], object]]] = [
        (Column("method"), lambda entry: Value(entry.name, anchor=_first_anchor(entry))),
        (LESS_IS_BETTER(f"{mean}rank"), lambda entry: _rank(known[entry.name].mean_rank)),
        (Column(f"{mean}{quantity.title}", "number", lower), lambda entry: _mean_value(standings, entry)),
        (
            Column(_against(standings), "number", lower),
            lambda entry: _difference_value(quantity, standings.mean_difference(entry)),
        ),
        (LESS_IS_BETTER("images / batch"), lambda entry: _images(standings, entry)),
    ]
    if any(KEPT.by_seed(cell) for entry in standings.entries.ranked for cell in entry.cells.values()):
        columns.append((LESS_IS_BETTER("kept"), lambda entry: _kept(standings.cells_of(entry))))
    columns.append((LESS_IS_BETTER("time / run"), lambda entry: _time(standings.cells_of(entry))))
    if any(standing.missing for standing in known.values()):
        columns.append((Column("not run on"), lambda entry: _columns_text(known[entry.name].missing)))
    rest = len(standings.entries.ranked) - len(shown)
    are = "is" if rest == 1 else "are"
    left_out = f" {count(rest, 'row')} with less than half of these columns {are} in the tables of all methods."
    more = left_out if rest else ""
    return replace(Table.of(shown, *columns), note=ranking_text(standings) + more)


def _first_anchor(entry: Entry) -> str:
    return anchor(next(iter(entry.cells.values())).name) if entry.cells else ""


def _rank(mean: float | None) -> Value:
    return Value("-" if mean is None else f"{mean:.3g}", _sort(mean))


def _images(standings: Standings, entry: Entry) -> Value:
    images = standings.images(entry)
    return Value(images_text(standings, entry), _sort(images and images[1]))


def _time(cells: Sequence[MeasuredCell]) -> Value:
    seconds = mean_of(cell.summary.wall_seconds.mean for cell in cells)
    return Value(duration(seconds), f"{seconds:.3f}")


def images_text(standings: Standings, entry: Entry) -> str:
    """Images per stream batch, as a range where columns differ."""
    images = standings.images(entry)
    return "-" if images is None else _range(*images)


def _against(standings: Standings) -> str:
    """The heading of differences, which is short; the note below the table names the reference in full."""
    name = _short_reference(standings)
    return f"against {name}" if len(name) <= LONGEST else "difference"


def _short_reference(standings: Standings) -> str:
    if standings.chosen:
        return standings.entries.named(standings.chosen).name
    return standings.leader.name if standings.leader else "the best"


def _mean_value(standings: Standings, entry: Entry) -> Value:
    if (mean := standings.mean_value(entry)) is None:
        return Value("-", "")
    if len(standings.ranking.columns) == 1:
        number = standings.numbers[entry.name][standings.ranking.columns[0]]
        return Value(standings.quantity.text(number.value), f"{mean:.6g}", number.rank)
    return Value(standings.quantity.text(Estimate(mean, None, ())).removesuffix(" (one seed)"), f"{mean:.6g}")


def _difference_value(quantity: Quantity, difference: Estimate | None) -> Value:
    return Value(quantity.difference(difference) or "-", "" if difference is None else f"{difference.mean:.6g}")


def _kept(cells: Iterable[MeasuredCell]) -> Value:
    values = [value for cell in cells if (value := KEPT.estimate(cell))]
    if not values:
        return Value("-", "")
    low, high = min(value.mean for value in values), max(value.mean for value in values)
    return Value(sizes(low, high), f"{high:.6g}")


def ranking_text(standings: Standings) -> str:
    """What the ranks are over, and what is left out."""
    over, columns = standings.ranking.columns, standings.entries.columns
    complete = sum(standing.mean_rank is not None for standing in standings.ranking.standings)
    if not over:
        bounds = ", ".join(entry.name for entry in standings.entries.all if entry.bound)
        other = f" other than the bounds ({bounds})" if bounds else ""
        return f"No column has two methods{other}, so there are no ranks."
    to = "" if len(_short_reference(standings)) <= LONGEST else f" Differences are to {_short_reference(standings)}."
    text = f"Ranks are among the {complete} methods that were run on all of: {_columns_text(over)}."
    if rest := len(columns) - len(over):
        text += f" {count(rest, 'column')} with fewer of them {'is' if rest == 1 else 'are'} left out."
    return text + _numbers_of_seeds(standings) + to + _without_reference(standings, over)


def _numbers_of_seeds(standings: Standings) -> str:
    """A sentence for means over different seeds: their difference is not the paired one beside them."""
    numbers = [standings.numbers[entry.name] for entry in standings.entries.ranked]
    found = {each[column].seeds for each in numbers for column in standings.ranking.columns if column in each}
    counts = sorted(map(len, found))
    if len(found) < 2:
        return ""
    how_many = f"{counts[0]} to {counts[-1]} seeds" if counts[0] < counts[-1] else "different seeds"
    return f" Means are over {how_many}, differences over those that both have."


def leads_table(standings: Standings) -> Table:
    """The best of each column, the second, and the paired difference between them."""
    quantity = standings.quantity
    return Table.of(
        standings.leads,
        (Column("column"), lambda lead: lead.column.title),
        (Column("best"), lambda lead: Value(lead.best.name, anchor=anchor(lead.best.cells[lead.column].name))),
        (Column(quantity.title, "number", not quantity.higher_is_better), lambda lead: _lead_number(standings, lead)),
        (Column("second"), lambda lead: lead.second.name if lead.second else "-"),
        (Column("ahead by", "number"), lambda lead: _ahead_by(quantity, lead)),
        (LESS_IS_BETTER("images / batch"), lambda lead: _images_of(lead.best.cells[lead.column])),
        title="Best of each column",
    )


def _lead_number(standings: Standings, lead: Lead) -> Value:
    value = standings.numbers[lead.best.name][lead.column].value
    return Value(standings.quantity.text(value), f"{value.mean:.6g}")


def _ahead_by(quantity: Quantity, lead: Lead) -> Value:
    if lead.by is None:
        return Value(NO_SHARED_SEED if lead.second else "-", "")
    return Value(quantity.difference(lead.by, plus=""), _sort(lead.by.mean))


def _images_of(cell: MeasuredCell) -> Value:
    images = images_per_batch(cell)
    return Value("-" if images is None else kilo(images), _sort(images))


def shown(standings: Standings) -> list[Table]:
    """For a terminal: a column per method if they are few, else a table per dataset with a row per method."""
    if len(standings.entries.all) <= FEW:
        return [with_remarks(side_by_side(standings))]
    first, *others = map(with_remarks, methods_tables(standings))
    return [replace(first, note=f"{_caption(standings)} {first.note}"), *others]


def side_by_side(standings: Standings) -> Table:
    """A row per column of the standings and a column per method: its number, and in brackets the difference."""
    heads = (Column("column"), *(Column(entry.name, "paired") for entry in standings.entries.all))
    rows = (
        Row.of(column.title, *(_value(standings, entry, column) for entry in standings.entries.all))
        for column in standings.entries.columns
    )
    common, others = _other_seeds(standings)
    return Table("", heads, tuple(rows), f"{_caption(standings)} Seeds {common}.", others)


def _other_seeds(standings: Standings) -> tuple[str, tuple[str, ...]]:
    """The seeds of most numbers, and a remark for each method with others."""
    found = {
        (entry.name, column): seeds_text(number.seeds)
        for entry in standings.entries.all
        for column, number in standings.numbers[entry.name].items()
    }
    common = Counter(found.values()).most_common(1)[0][0] if found else ""
    groups: dict[tuple[str, str], list[MeasuredColumn]] = {}
    for (name, column), seeds in found.items():
        if seeds != common:
            groups.setdefault((name, seeds), []).append(column)
    others = [f"{name}, seeds {seeds}: {_columns_text(columns)}" for (name, seeds), columns in groups.items()]
    more = [f"and {len(others) - MOST_REMARKS} more"] if len(others) > MOST_REMARKS else []
    return common, (*others[:MOST_REMARKS], *more)


def _records(standings: Standings) -> Iterable[dict[str, Any]]:
    for entry in standings.ordered:
        for column, number in standings.numbers[entry.name].items():
            cell, reference, images = (
                entry.cells[column],
                standings.reference(column),
                images_per_batch(entry.cells[column]),
            )
            yield {
                "dataset": column.dataset,
                "stream": column.stream,
                "memory": memory_of(cell.config),
                "method": entry.name,
                "seeds": len(number.seeds),
                "mean": _exact(standings, number.value.mean),
                "interval": _exact(standings, number.value.interval),
                "against": reference.name if reference else "",
                **_difference_record(standings, number),
                "images_per_batch": "" if images is None else f"{images:.6g}",
                "wall_seconds": f"{cell.summary.wall_seconds.mean:.3f}",
                "device": cell.devices,
                "column_memory": column.memory,
            }


def _difference_record(standings: Standings, number: Number) -> dict[str, Any]:
    found = number.difference
    if found is None:
        return {}
    return {
        "difference": _exact(standings, found.mean),
        "difference_interval": _exact(standings, found.interval),
        "shared_seeds": len(found.values),
    }


def _exact(standings: Standings, value: float | None) -> str:
    """In percent with three digits, or as it is, for programs."""
    if value is None:
        return ""
    return f"{100 * value:z.3f}" if standings.quantity.form == "percent" else f"{value:.6g}"


def _standings_records(standings: Standings) -> Iterable[dict[str, Any]]:
    for standing in standings.ranking.standings:
        entry = next(entry for entry in standings.entries.ranked if entry.name == standing.name)
        difference, images = standings.mean_difference(entry), standings.images(entry)
        yield {
            "method": entry.name,
            "mean_rank": _sort(standing.mean_rank),
            "columns": len(standings.ranking.columns) - len(standing.missing),
            "mean": _exact(standings, standings.mean_value(entry)),
            "against": _short_reference(standings),
            "difference": _exact(standings, difference.mean if difference else None),
            "difference_interval": _exact(standings, difference.interval if difference else None),
            "shared_seeds": len(difference.values) if difference else "",
            "images_per_batch": _sort(images[1] if images else None),
            "wall_seconds": _time(standings.cells_of(entry)).sort,
            "not_run_on": _columns_text(standing.missing),
        }


def _columns_text(columns: Sequence[MeasuredColumn]) -> str:
    """``CIFAR-100, memory 1000, 5000; CIFAR-10, memory 200``: the sizes of a dataset and stream together."""
    sizes: dict[str, list[str]] = {}
    for column in columns:
        sizes.setdefault(column.title_without_memory, []).extend([str(column.memory)] if column.memory else [])
    return "; ".join(f"{name}, memory {', '.join(found)}" if found else name for name, found in sizes.items())


def _range(low: float, high: float) -> str:
    return kilo(high) if kilo(low) == kilo(high) else f"{kilo(low)} to {kilo(high)}"


def _sort(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
