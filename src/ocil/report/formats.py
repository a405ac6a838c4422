"""Tables as Markdown, CSV and LaTeX. Names come from files, so each format escapes them its own way."""

import csv
import hashlib
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ocil.metrics import Estimate
from ocil.report.collect import Cell, memory_of, title_of, written
from ocil.report.comparison import (
    MEASURE_NAMES,
    Column,
    Entry,
    Part,
    Row,
    Table,
    counterpart,
    difference,
    overlap,
)
from ocil.report.published import Published
from ocil.report.tables import count, duration, percent
from ocil.text import escaped

TABLE1_COLUMNS = (
    "dataset", "memory", "method", "review", "seeds", "mean", "interval", "published", "published_interval",
    "difference", "wall_seconds", "device",
)  # fmt: skip
ENTRY_COLUMNS = (
    "dataset", "memory", "row", "measure", "seeds", "mean", "interval", "published", "published_interval",
    "difference", "overlap", "wall_seconds", "device",
)  # fmt: skip
CELL_COLUMNS = (
    "cell", "dataset", "memory", "method", "review", "settings", "seeds", "mean", "interval", "published",
    "published_interval", "difference", "overlap", "forgetting", "forgetting_interval", "intransigence",
    "intransigence_interval", "wall_seconds", "device", "command",
)  # fmt: skip
SURROUNDINGS = ("device", "versions", "finished")


def anchor(name: str) -> str:
    """Of a cell: safe in an address, whatever the dataset is called."""
    return f"cell-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def surroundings(environment: Mapping[str, Any]) -> tuple[str, str, str]:
    """What a run was measured with, and when: the columns ``SURROUNDINGS``."""
    versions = [f"{name} {environment[name]}" for name in ("ocil", "torch", "python") if name in environment]
    return str(environment.get("device", "unknown")), ", ".join(versions), str(environment.get("finished", "–"))


def beside(paper: Published | None) -> str:
    return "-" if paper is None else f"{paper.mean:.1f} ± {paper.interval:.1f}"


def gap(value: float | None) -> str:
    """A difference in points. Never ``-0.0``."""
    return "-" if value is None else f"{value:+z.1f}"


def verdict(value: bool | None) -> str:
    return {True: "overlap", False: "apart", None: ""}[value]


def precisions(part: Part) -> str:
    """What was computed in which precision, in a line."""
    rows: dict[str, dict[str, None]] = {}
    for row in (*part.bounds, *part.rows):
        for entry in row.entries:
            if entry.cell is not None:
                rows.setdefault(entry.cell.config.learner.precision, {})[row.name] = None
    first, *others = sorted(rows, key=lambda name: (-len(rows[name]), name))
    return "; ".join([f"Precision {first}", *(f"{name}: {', '.join(rows[name])}" for name in others)]) + "."


def seeds(part: Part) -> str:
    """Over how many seeds the numbers are, in a line: most of them, then the others by name."""
    others: dict[int, list[str]] = {}
    for row in (*part.bounds, *part.rows):
        places: dict[int, list[str]] = {}
        for heading, entry in zip(part.headings, row.entries, strict=False):
            places.setdefault(entry.seeds, []).append(heading)
        places.pop(0, None)
        for number, headings in places.items():
            name = row.name if len(places) == 1 else f"{row.name} ({', '.join(headings)})"
            others.setdefault(number, []).append(name)
    others.pop(part.usual_seeds, None)
    words = [f"{count(number, 'seed')}: {', '.join(others[number])}" for number in sorted(others, reverse=True)]
    return "; ".join([count(part.usual_seeds, "seed"), *words]) + "."


# Markdown


def markdown(table: Table) -> str:
    lines = [f"# {table.title}", "", table.caption, ""]
    lines += ["Best in bold, second underlined. In brackets: published, difference, whether the intervals overlap.", ""]
    for part in table.parts:
        lines += [f"## {md(part.title)}", ""]
        if not part.measured:
            lines += ["Nothing measured.", ""]
        else:
            lines += [md(f"{precisions(part)} {seeds(part)}"), ""]
        head = [table.row_name, *part.headings]
        lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for row in (*part.bounds, *part.rows):
            cells = [_md_entry(entry) for entry in across(row, part)]
            lines.append(f"| {md(row.name)} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def cells_markdown(cells: Sequence[Cell]) -> str:
    head = ("dataset", "memory", "method", "settings", "seeds", "accuracy %", "published %", "difference",
            "forgetting %", "intransigence %", "time / run", "device", "command")  # fmt: skip
    lines = ["# Every cell", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for cell in cells:
        summary, config, paper = cell.summary, cell.config, counterpart(cell)
        accuracy = summary.average_accuracy
        values = [
            title_of(config.dataset), str(memory_of(config) or "-"), config.label, written(cell.changed) or "-",
            str(len(cell.runs)), percent(accuracy), beside(paper),
            f"{gap(difference(accuracy, paper))} {verdict(overlap(accuracy, paper))}".strip(),
            percent(summary.average_forgetting), percent(summary.average_intransigence),
            duration(summary.wall_seconds.mean), cell.devices, cell.command,
        ]  # fmt: skip
        lines.append("| " + " | ".join(map(md, values)) + " |")
    return "\n".join(lines) + "\n"


def _md_entry(entry: Entry) -> str:
    text = "not measured"
    if entry.value is not None:
        text = percent(entry.value)
        text = {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(entry.rank, text)
    if entry.paper is None:
        return text
    more = [beside(entry.paper), *([gap(entry.difference)] if entry.difference is not None else [])]
    more += [verdict(entry.overlap)] if entry.overlap is not None else []
    return f"{text} ({', '.join(more)})"


def md(text: str) -> str:
    text = html.escape(escaped(" ".join(text.split())), quote=False)
    return re.sub(r"([\\|`*\[\]])", r"\\\1", text)


# CSV


def table1_csv(table: Table) -> str:
    return _csv(TABLE1_COLUMNS, (
        {
            "dataset": entry.column.dataset, "memory": entry.column.memory,
            "method": f"{row.method} {row.settings}".strip(), "review": str(row.review).lower(), **_numbers(entry),
        }
        for row, entry in entries(table)
    ))  # fmt: skip


def entries_csv(table: Table) -> str:
    return _csv(ENTRY_COLUMNS, (
        {
            "dataset": entry.column.dataset, "memory": entry.column.memory, "row": row.name,
            "measure": MEASURE_NAMES[entry.column.measure], "overlap": _flag(entry.overlap), **_numbers(entry),
        }
        for row, entry in entries(table)
    ))  # fmt: skip


def cells_csv(cells: Sequence[Cell]) -> str:
    def row(cell: Cell) -> dict[str, Any]:
        config, summary = cell.config, cell.summary
        entry = Entry(Column(config.dataset, memory_of(config)), cell, counterpart(cell))
        found = {
            "cell": cell.name, "dataset": config.dataset, "memory": memory_of(config), "method": config.method,
            "review": str(config.learner.review).lower(), "settings": written(cell.changed), **_numbers(entry),
            "overlap": _flag(entry.overlap), "command": cell.command,
        }  # fmt: skip
        for name in ("forgetting", "intransigence"):
            value: Estimate | None = getattr(summary, f"average_{name}")
            found |= {name: _percent(value), f"{name}_interval": _spread(value)}
        return found

    return _csv(CELL_COLUMNS, map(row, cells))


def across(row: Row, part: Part) -> tuple[Entry, ...]:
    """The entries of a row, a bound's one repeated in every column."""
    return row.entries if len(row.entries) == len(part.headings) else row.entries * len(part.headings)


def entries(table: Table) -> Iterator[tuple[Row, Entry]]:
    for part in table.parts:
        for row in (*part.bounds, *part.rows):
            for entry in row.entries:
                yield row, entry


def _numbers(entry: Entry) -> dict[str, Any]:
    cell = entry.cell if entry.value is not None else None
    return {
        "seeds": entry.seeds,
        "mean": _percent(entry.value),
        "interval": _spread(entry.value),
        "published": entry.paper.mean if entry.paper else "",
        "published_interval": entry.paper.interval if entry.paper else "",
        "difference": "" if entry.difference is None else f"{entry.difference:z.3f}",
        "wall_seconds": f"{cell.summary.wall_seconds.mean:.3f}" if cell else "",
        "device": cell.devices if cell else "",
    }


def _percent(value: Estimate | None) -> str:
    return "" if value is None else f"{100 * value.mean:z.3f}"


def _spread(value: Estimate | None) -> str:
    return "" if value is None or value.interval is None else f"{100 * value.interval:.3f}"


def _flag(value: bool | None) -> str:
    return "" if value is None else str(value).lower()


def _csv(columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    text = {"cell", "dataset", "method", "row", "settings", "device", "command"}
    for row in rows:
        writer.writerow({k: harmless(v) if k in text else v for k, v in row.items()})
    return file.getvalue()


def harmless(text: str) -> str:
    """A spreadsheet takes what begins like this for a formula, blanks before it or not."""
    formula = text.lstrip().startswith(("=", "+", "-", "@")) or text.startswith(("\t", "\r", "\n"))
    return f"'{escaped(text)}" if formula else escaped(text)


# LaTeX


def latex(table: Table) -> str:
    """One ``table*`` a dataset, for a document that loads booktabs. Measured, published and difference a column."""
    parts = [_latex_part(table, number) for number, part in enumerate(table.parts) if part.measured]
    return "% \\usepackage{booktabs}\n" + "\n".join(parts)


def _latex_part(table: Table, number: int) -> str:
    part = table.parts[number]
    columns = len(part.headings)
    row_name, dataset = tex(table.row_name), tex(part.title)
    groups = " & ".join(rf"\multicolumn{{3}}{{c}}{{{tex(title)}}}" for title in part.headings)
    rules = "".join(rf"\cmidrule(lr){{{2 + 3 * n}-{4 + 3 * n}}}" for n in range(columns))
    lines = [
        r"\begin{table*}",
        r"\centering",
        rf"\caption{{{tex(table.title)}. {dataset}. {tex(table.caption)} {tex(precisions(part))} {tex(seeds(part))} "
        r"Best in bold, second underlined; $^{*}$: the intervals do not overlap; --: not measured.}",
        rf"\begin{{tabular}}{{l{'rrr' * columns}}}",
        r"\toprule",
        rf"{row_name} & {groups} \\",
        rules,
        " & ".join(["", *["measured", "published", r"$\Delta$"] * columns]) + r" \\",
        r"\midrule",
    ]
    lines += [_latex_row(row, part) for row in part.bounds]
    if part.bounds and part.rows:
        lines.append(r"\midrule")
    lines += [_latex_row(row, part) for row in part.rows]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""]
    return "\n".join(lines)


def _latex_row(row: Row, part: Part) -> str:
    words = [tex(row.name)]
    for entry in across(row, part):
        measured = "--"
        if entry.value is not None:
            measured = _tex_number(percent(entry.value))
            style = {1: "textbf", 2: "underline"}.get(entry.rank)
            measured = rf"\{style}{{{measured}}}" if style else measured
        star = "$^{*}$" if entry.overlap is False else ""
        change = "" if entry.difference is None else f"${gap(entry.difference)}${star}"
        words += [measured, _tex_number(beside(entry.paper)) if entry.paper else "", change]
    return " & ".join(words) + r" \\"


def _tex_number(text: str) -> str:
    """With a minus sign where a hyphen stands for one."""
    return re.sub(r"^-", "$-$", tex(text))


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$", "×": r"$\times$", "“": "``", "”": "''",
    "’": "'", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in " ".join(text.split()) if letter.isprintable())


def files(tables: Sequence[Table], cells: Sequence[Cell]) -> dict[str, str]:
    """File name to content: every table in every format."""
    as_csv: dict[str, Callable[[Table], str]] = {"table1": table1_csv}
    found = {}
    for table in tables:
        found[f"{table.name}.md"] = markdown(table)
        found[f"{table.name}.csv"] = as_csv.get(table.name, entries_csv)(table)
        found[f"{table.name}.tex"] = latex(table)
    return found | {"cells.md": cells_markdown(cells), "cells.csv": cells_csv(cells)}
