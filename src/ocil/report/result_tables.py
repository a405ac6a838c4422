"""Tables of results: comparisons with a paper, every cell, and the few cells of one command."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ocil.data.derived import short_name
from ocil.evaluation import measures
from ocil.evaluation.measures import MEASURES, Estimate, Measure
from ocil.report.cells import MeasuredCell, names_apart, settings_text, title_of
from ocil.report.comparison import (
    ComparedNumber,
    ComparedRow,
    ComparedTable,
    Grid,
    difference,
    overlap,
    published_accuracy,
)
from ocil.report.formatting import (
    count,
    duration,
    measured,
    percent,
    points,
    published_percent,
)
from ocil.report.papers import ACCURACY, MEASURE_HEADINGS, ColumnKey, Paper
from ocil.report.table import About, Column, Document, Row, Table, Value, columns, verdict
from ocil.runs.results import Summary
from ocil.text import escaped

TEXT = {
    *("source", "cell", "dataset", "stream", "against", "not_run_on", "variant", "method", "row", "measure"),
    *("settings", "device", "command"),
}
_NUMBERS = ("seeds", "mean", "interval", "published", "published_interval", "difference")
ALL_METHODS_RECORD = ("dataset", "memory", "method", "review", *_NUMBERS, "wall_seconds", "device")
COMPARED_RECORD = ("dataset", "memory", "row", "measure", *_NUMBERS, "overlap", "wall_seconds", "device")
CELL_RECORD = (
    *("cell", "dataset", "memory", "method", "review", "settings", *_NUMBERS, "overlap"),
    *("forgetting", "forgetting_interval", "intransigence", "intransigence_interval"),
    *("wall_seconds", "device", "command"),
)
IN_RECORD = ("average_accuracy", "average_forgetting", "wall_seconds")  # measures that ``CELL_RECORD`` has already
ANYTIME = "A_AUC and WC-ACC"  # columns that evaluate_on concerns
MEANINGS = {
    "area_under_accuracy": "the mean accuracy over the whole stream, on the classes that have arrived",
    "worst_case_accuracy": "the accuracy on the last task, and the lowest on each earlier one since it was learned",
}
"""Of measures in columns, where their formula is no plain sentence."""
LEGEND = "Best in bold, second underlined."
PUBLISHED_LEGEND = " In brackets: published, difference, whether the intervals overlap."


def summary_table(summaries: Sequence[Summary]) -> Table:
    """A row per cell, as ``ocil run`` and ``ocil compare`` print it."""
    seeds = max(len(summary.average_accuracy.values) for summary in summaries)
    spreads = {1: "one seed, so no interval", 2: "2 seeds (mean, lowest and highest)"}
    spread = spreads.get(seeds, f"{seeds} seeds (mean ± 95 % interval)")
    parts = sorted({summary.config.stream.evaluate_on for summary in summaries} - {0})
    part = f"; {ANYTIME} on {' or '.join(f'{count:,}' for count in parts)} test images" if parts else ""
    configs = [summary.config for summary in summaries]
    names = dict(zip(configs, names_apart(configs, without="memory"), strict=True))
    return Table.of(
        summaries,
        (Column("method"), lambda summary: names[summary.config]),
        (Column("memory", "number"), lambda summary: summary.config.learner.memory or "-"),
        (Column("accuracy %", "number"), lambda summary: percent(summary.average_accuracy)),
        (Column("forgetting %", "number"), lambda summary: percent(summary.average_forgetting)),
        (Column("intransigence %", "number"), lambda summary: percent(summary.average_intransigence)),
        *measure_columns(summaries),
        (Column("time / run", "number"), lambda summary: duration(summary.wall_seconds.mean)),
        title=f"{escaped(short_name(summaries[0].config.dataset))}, {spread}{part}",
    )


def legend(summaries: Sequence[Summary]) -> list[str]:
    """What the columns of ``summary_table`` mean and what is better, in sentences for the terminal."""
    seeds = max(len(summary.average_accuracy.values) for summary in summaries)
    lines = [
        "accuracy: mean over the tasks at the end of the stream; higher is better.",
        "forgetting: how much accuracy on earlier tasks was lost since they were learned; lower is better.",
    ]
    if any(summary.average_intransigence is not None for summary in summaries):
        lines.append(
            "intransigence: how much less accurate a task is right after it was learned than with plain fine-tuning; "
            "lower is better."
        )
    for each in measures.shown([summary.measures for summary in summaries]):
        if meaning := MEANINGS.get(each.name, each.formula):
            better = "higher" if each.higher_is_better else "lower"
            lines.append(f"{each.heading or each.name}: {meaning}; {better} is better.")
    if seeds > 2:
        few = f" It is wide because {seeds} seeds are few: --seeds 10 is usual." if seeds < 5 else ""
        lines.append(f"±: the mean of many more seeds would lie in this range with 95 % confidence.{few}")
    elif seeds == 2:
        lines.append("Two seeds say little about the spread: with three or more there is an interval.")
    return lines


def measure_columns(summaries: Sequence[Summary]) -> list[tuple[Column, Callable[[Summary], Value]]]:
    """A column per measure of a plugin, and per measure of accuracy over time and the like that was recorded, with the
    function that gives its value."""

    def value_of(measure: Measure, summary: Summary) -> Value:
        value = summary.measures.get(measure.name)
        return Value(measured(value, measure.format), "" if value is None else f"{value.mean:.6g}")

    return [
        (Column(each.title, "number", not each.higher_is_better), partial(value_of, each))
        for each in measures.shown([summary.measures for summary in summaries])
    ]


def compared_document(compared: ComparedTable) -> Document:
    """A table per dataset; as CSV a line per number."""
    spec = compared.table
    rows = [(row, number) for grid in compared.grids for row in grid.all_rows for number in row.numbers]
    if spec.all_methods:
        named = ((_all_methods_record(row) | _numbers(number)) for row, number in rows)
        records = record_table(ALL_METHODS_RECORD, named)
    else:
        records = record_table(COMPARED_RECORD, ({"row": row.name} | _numbers(number) for row, number in rows))
    tables = tuple(_grid_table(grid, spec.heading) for grid in compared.grids)
    legend = LEGEND + (PUBLISHED_LEGEND if any(number.published for _, number in rows) else "")
    return Document(spec.name, spec.title, tables, records, spec.caption, legend)


def _grid_table(grid: Grid, heading: str) -> Table:
    kinds = [column.measure for column in grid.columns] or [ACCURACY]
    sizes = [About(memory=str(column.memory)) for column in grid.columns] or [About()]
    heads = (
        Column(head, "compared", kind != ACCURACY, size)
        for head, kind, size in zip(grid.headings, kinds, sizes, strict=True)
    )
    return Table(
        grid.title,
        (Column(heading), *heads),
        tuple(
            Row.of(
                row.name,
                *(_value(number, grid.common_seeds) for number in row.numbers),
                bound=bound,
                about=About(method=row.name if row.name.startswith(row.method) else row.method),
            )
            for bound, rows in ((True, grid.bounds), (False, grid.rows))
            for row in rows
        ),
        f"{_precisions(grid)} {_seeds(grid)}" if grid.measured else "Nothing measured.",
        about=About(grid.all_rows[0].numbers[0].column.dataset if grid.all_rows else ""),
    )


def _value(number: ComparedNumber, common_seeds: int) -> Value:
    published = published_percent(number.published) if number.published else ""
    if number.value is None or number.cell is None:
        return Value("", "", published=published)
    notes = [str(number.cell.changed["precision"])] if "precision" in number.cell.changed else []
    if number.seeds not in (1, common_seeds):  # one seed is named with the number itself
        notes.append(f"{number.seeds} seeds")
    return Value(
        percent(number.value),
        f"{100 * number.value.mean:.4f}",
        number.rank,
        published,
        "" if number.difference is None else points(number.difference),
        number.overlap,
        ", ".join(notes),
        anchor(number.cell.name),
    )


def _precisions(grid: Grid) -> str:
    """One sentence on what was computed in which precision."""
    rows: dict[str, dict[str, None]] = {}
    for row in grid.all_rows:
        for number in row.numbers:
            if number.cell is not None:
                rows.setdefault(number.cell.config.learner.precision, {})[row.name] = None
    first, *others = sorted(rows, key=lambda name: (-len(rows[name]), name))
    return "; ".join([f"Precision {first}", *(f"{name}: {', '.join(rows[name])}" for name in others)]) + "."


def _seeds(grid: Grid) -> str:
    """One sentence on how many seeds the numbers are over: that of most, then the others by name."""
    others: dict[int, list[str]] = {}
    for row in grid.all_rows:
        by_seeds: dict[int, list[str]] = {}
        for heading, number in zip(grid.headings, row.numbers, strict=False):
            by_seeds.setdefault(number.seeds, []).append(heading)
        by_seeds.pop(0, None)
        for seeds, headings in by_seeds.items():
            name = row.name if len(by_seeds) == 1 else f"{row.name} ({', '.join(headings)})"
            others.setdefault(seeds, []).append(name)
    others.pop(grid.common_seeds, None)
    words = [f"{count(seeds, 'seed')}: {', '.join(others[seeds])}" for seeds in sorted(others, reverse=True)]
    return "; ".join([count(grid.common_seeds, "seed"), *words]) + "."


def cells_document(cells: Sequence[MeasuredCell], paper: Paper) -> Document:
    """Every cell that was found."""
    found = {name for cell in cells for name, value in cell.summary.measures.items() if value is not None}
    known = [
        name for name, measure in MEASURES.items() if name not in IN_RECORD and (name in found or not measure.is_ours)
    ]
    names = [name for measure in known for name in (measure, f"{measure}_interval")]
    records = record_table((*CELL_RECORD, *names), (_cell_record(cell, paper) for cell in cells))
    return Document("cells", "Every cell", (cells_table(cells, paper),), records, formats=("md", "csv"))


def cells_table(cells: Iterable[MeasuredCell], paper: Paper) -> Table:
    cells = list(cells)
    measured_columns = measure_columns([cell.summary for cell in cells])
    heads = (
        *(Column("dataset", "dataset"), Column("memory", "number"), Column("method"), Column("settings", "settings")),
        *columns("seeds", "accuracy %", "published %", "difference"),
        *(Column(f"{name} %", "number", lower_is_better=True) for name in ("forgetting", "intransigence")),
        *(column for column, _ in measured_columns),
        *(Column("time / run", "number", lower_is_better=True), Column("device"), Column("command")),
    )
    values = [value for _, value in measured_columns]
    rows = (_cell_row(cell, paper, [value(cell.summary) for value in values]) for cell in cells)
    return Table("", heads, tuple(rows))


def _cell_row(cell: MeasuredCell, paper: Paper, measured_values: Sequence[Value]) -> Row:
    summary, published = cell.summary, published_accuracy(cell, paper)
    change, meets = difference(summary.average_accuracy, published), overlap(summary.average_accuracy, published)
    settings, memory, seconds = settings_text(cell.changed), cell.column.memory, summary.wall_seconds.mean
    return Row.of(
        title_of(cell.config.dataset),
        Value(str(memory or "-"), str(memory)),
        Value(cell.label, anchor=anchor(cell.name)),
        Value(settings or "-", settings),
        len(cell.runs),
        estimate_value(summary.average_accuracy),
        Value(published_percent(published), str(published.mean) if published else ""),
        Value(f"{points(change)} {verdict(meets)}".strip(), "" if change is None else f"{change:.4f}", overlap=meets),
        estimate_value(summary.average_forgetting),
        estimate_value(summary.average_intransigence),
        *measured_values,
        Value(duration(seconds), f"{seconds:.3f}"),
        cell.devices,
        cell.command,
        about=About(cell.config.dataset, str(memory), f"{cell.label} {settings}".strip()),
    )


def estimate_value(value: Estimate | None) -> Value:
    return Value(percent(value), "" if value is None else f"{100 * value.mean:.4f}")


def anchor(cell: str) -> str:
    """The address of a cell on the page, safe whatever the dataset is called."""
    return f"cell-{hashlib.sha256(cell.encode()).hexdigest()[:12]}"


def record_table(titles: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
    """A table for CSV: a line per row, empty where a row has nothing."""
    return Table(
        "", columns(*titles, text=TEXT), tuple(Row.of(*(row.get(title, "") for title in titles)) for row in rows)
    )


def _all_methods_record(row: ComparedRow) -> dict[str, str]:
    return {"method": row.method, "review": str(row.review).lower()}


def _cell_record(cell: MeasuredCell, paper: Paper) -> dict[str, Any]:
    config = cell.config
    column = ColumnKey(config.dataset, cell.column.memory)
    found = _numbers(ComparedNumber(column, cell, published_accuracy(cell, paper)))
    for name in ("forgetting", "intransigence"):
        value: Estimate | None = getattr(cell.summary, f"average_{name}")
        found |= {name: exact(value), f"{name}_interval": exact_interval(value)}
    for name, value in cell.summary.measures.items():
        interval = None if value is None else value.interval
        found |= {name: "" if value is None else f"{value.mean:.6g}"}
        found |= {f"{name}_interval": "" if interval is None else f"{interval:.6g}"}
    return found | {
        "cell": cell.name,
        "method": config.method,
        "review": str(config.learner.review).lower(),
        "settings": settings_text(cell.changed),
        "command": cell.command,
    }


def _numbers(number: ComparedNumber) -> dict[str, Any]:
    cell = number.cell if number.value is not None else None
    published = number.published
    return {
        "dataset": number.column.dataset,
        "memory": number.column.memory,
        "measure": MEASURE_HEADINGS[number.column.measure],
        "seeds": number.seeds,
        "mean": exact(number.value),
        "interval": exact_interval(number.value),
        "published": published.mean if published else "",
        "published_interval": published.interval if published and published.interval is not None else "",
        "difference": "" if number.difference is None else f"{number.difference:z.3f}",
        "overlap": "" if number.overlap is None else str(number.overlap).lower(),
        "wall_seconds": f"{cell.summary.wall_seconds.mean:.3f}" if cell else "",
        "device": cell.devices if cell else "",
    }


def exact(value: Estimate | None) -> str:
    """The mean in percent with three digits, for programs."""
    return "" if value is None else f"{100 * value.mean:z.3f}"


def exact_interval(value: Estimate | None) -> str:
    return "" if value is None or value.interval is None else f"{100 * value.interval:.3f}"
