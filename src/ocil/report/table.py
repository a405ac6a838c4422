"""One model of a table, and one writer each for Markdown, CSV and LaTeX; those for HTML and a terminal have own files.

A table holds plain text. Names in it may come from anywhere, so each writer escapes them in its own way.
"""

import csv as csv_module
import html as html_module
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from ocil.text import escaped

T = TypeVar("T")
MINUS = "−"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class About:
    """What a table, a column or a row is about, so that the page can be filtered. Empty: nothing in particular."""

    dataset: str = ""
    memory: str = ""
    method: str = ""


NOTHING = About()


@dataclass(frozen=True)
class Column:
    """The head of a column, and how its values are written."""

    title: str
    kind: str = "text"
    """``text``, ``number``, ``compared`` (measured with what was published), ``paired`` (measured, with the difference
    to another row), ``code``, ``settings``, ``dataset`` or ``path``. A spreadsheet gets no formula from a column that
    is not of numbers."""
    lower_is_better: bool = False
    about: About = NOTHING


def columns(*titles: str, text: Iterable[str] = ()) -> tuple[Column, ...]:
    """Columns of numbers, except those whose titles are in ``text``."""
    return tuple(Column(title, "text" if title in text else "number") for title in titles)


@dataclass(frozen=True)
class Value:
    """One value of a table. An empty text means that there is none, or that nothing was measured."""

    text: str
    sort: str | None = None
    """What to sort by, where that is not the text."""
    rank: int = 0
    """1 for the best of a column, 2 for the second, 0 for the others."""
    published: str = ""
    difference: str = ""
    overlap: bool | None = None
    """Whether the measured and the published interval overlap; None where that is not known."""
    note: str = ""
    """A remark after the number in HTML; elsewhere ``with_remarks`` puts it beside the paired difference."""
    anchor: str = ""
    """What the text links to on the same page, in HTML only."""
    paired: str = ""
    """The difference to another row, over the seeds that both have."""


@dataclass(frozen=True)
class Row:
    """The values of a row, from left to right."""

    values: tuple[Value, ...]
    """One per column, or a name and a single value that holds for all other columns."""
    bound: bool = False
    """Whether the row is a bound of the others: it is set apart above them and is not sorted."""
    about: About = NOTHING

    @classmethod
    def of(cls, *values: object, bound: bool = False, about: About = NOTHING) -> "Row":
        return cls(tuple(v if isinstance(v, Value) else Value(str(v)) for v in values), bound, about)


@dataclass(frozen=True)
class Table:
    """Columns and rows of text, for any writer."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    """Text above the table in Markdown, in its caption in LaTeX."""
    remarks: tuple[str, ...] = ()
    """A list below the table, except in LaTeX."""
    about: About = NOTHING

    @classmethod
    def of(cls, items: Iterable[T], *columns: tuple[Column, Callable[[T], object]], title: str = "") -> "Table":
        """A row per item. Each column comes with the function that gives its value for an item."""
        rows = (Row.of(*(value(item) for _, value in columns)) for item in items)
        return cls(title, tuple(column for column, _ in columns), tuple(rows))

    @property
    def empty(self) -> bool:
        return not any(value.text for row in self.rows for value in row.values[1:])

    def select(self, *titles: str) -> "Table":
        """The columns with these titles, in this order."""
        places = [[column.title for column in self.columns].index(title) for title in titles]
        rows = (replace(row, values=tuple(row.values[place] for place in places)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[place] for place in places), rows=tuple(rows))

    def transposed(self) -> "Table":
        """A row per column, for a narrow terminal."""
        first, *others = self.columns
        names = (Column(row.values[0].text) for row in self.rows)
        rows = [all_values(row, self) for row in self.rows]
        turned = (Row.of(column.title, *(row[n] for row in rows)) for n, column in enumerate(others, 1))
        return replace(self, columns=(first, *names), rows=tuple(turned))


@dataclass(frozen=True)
class Document:
    """Tables that share a file per format: ``NAME.md``, ``NAME.tex``, and with a line per number ``NAME.csv``."""

    name: str
    title: str
    tables: tuple[Table, ...]
    records: Table
    caption: str = ""
    legend: str = ""
    """How to read the tables, in Markdown only."""
    formats: tuple[str, ...] = ("md", "csv", "tex")

    def files(self) -> dict[str, str]:
        """File names and contents."""
        writers = {"md": lambda: markdown(self), "csv": lambda: csv(self.records), "tex": lambda: latex(self)}
        return {f"{self.name}.{ending}": writers[ending]() for ending in self.formats}


def verdict(overlap: bool | None) -> str:
    """Whether two intervals overlap, in a word; empty where one of them is not known."""
    return {True: "overlap", False: "apart", None: ""}[overlap]


def all_values(row: Row, table: Table) -> tuple[Value, ...]:
    """One per column: a single value is repeated."""
    name, *values = row.values
    return (name, *(values * (len(table.columns) - 1) if len(values) == 1 else values))


def with_remarks(table: Table) -> Table:
    """The table with the remark on each paired number, such as another count of seeds, beside its difference."""
    rows = []
    for row in table.rows:
        pairs = zip(row.values, table.columns, strict=False)
        rows.append(replace(row, values=tuple(_with_remark(value, column) for value, column in pairs)))
    return replace(table, rows=tuple(rows))


def _with_remark(value: Value, column: Column) -> Value:
    if column.kind != "paired":
        return value
    return replace(value, paired=", ".join(filter(None, (value.paired, value.note))))


# Markdown


def markdown(document: Document) -> str:
    texts = (f"# {document.title}", document.caption, document.legend)
    parts = [markdown_text(text) for text in texts if text]
    return "\n\n".join([*parts, *(markdown_table(with_remarks(table)) for table in document.tables)]) + "\n"


def markdown_table(table: Table, level: int = 2) -> str:
    """The table below its title, a heading of this level; 0 makes it a paragraph. It does not end in a newline."""
    heads = [markdown_text(column.title) for column in table.columns]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in table.rows:
        values = zip(all_values(row, table), table.columns, strict=True)
        lines.append("| " + " | ".join(_markdown_value(value, column) for value, column in values) + " |")
    title = f"{'#' * level} {markdown_text(table.title)}".strip() if table.title else ""
    remarks = "\n".join(f"- {markdown_text(remark)}" for remark in table.remarks)
    return "\n\n".join(filter(None, (title, markdown_text(table.note), "\n".join(lines), remarks)))


def _markdown_value(value: Value, column: Column) -> str:
    text = f"`{value.text}`" if column.kind == "code" else markdown_text(value.text)
    if column.kind not in ("compared", "paired"):
        return text
    text = {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(value.rank, text) or NOT_MEASURED
    more = ", ".join(filter(None, (value.published, value.difference, verdict(value.overlap), value.paired)))
    return f"{text} ({more})" if more else text


def markdown_text(text: str) -> str:
    text = html_module.escape(escaped(" ".join(text.split())), quote=False)
    return re.sub(r"([\\|`*\[\]])", r"\\\1", text)


# CSV


def csv(table: Table) -> str:
    file = io.StringIO()
    writer = csv_module.writer(file, lineterminator="\n")
    writer.writerow(column.title for column in table.columns)
    for row in table.rows:
        pairs = zip(row.values, table.columns, strict=True)
        writer.writerow(v.text if column.kind == "number" else csv_text(v.text) for v, column in pairs)
    return file.getvalue()


def csv_text(text: str) -> str:
    """Escape what a spreadsheet would take for a formula, with or without blanks before it."""
    formula = text.lstrip().startswith(("=", "+", "-", "@")) or text.startswith(("\t", "\r", "\n"))
    return f"'{escaped(text)}" if formula else escaped(text)


# LaTeX


def latex(document: Document) -> str:
    """A float per table, for a document that loads booktabs and adjustbox.

    A table with more than four columns spans both columns of a two-column page. What is wider than its place even in
    small print is scaled down to it.
    """
    tables = [latex_table(table, document) for table in document.tables if not table.empty]
    return "\n".join(["% \\usepackage{booktabs,adjustbox}", *tables])


def latex_table(table: Table, document: Document) -> str:
    """One of the document's tables."""
    table = with_remarks(table)
    published = any(value.published for row in table.rows for value in row.values)
    compared = [published and column.kind == "compared" for column in table.columns]
    forms = {"compared": "rrr" if published else "r", "paired": "r", "number": "r"}
    form = "".join(forms.get(column.kind, "l") for column in table.columns)
    kind = "table*" if len(form) > 4 else "table"
    lines = [
        rf"\begin{{{kind}}}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_latex_caption(table, document, published)}}}",
        r"\begin{adjustbox}{max width=\linewidth}",
        rf"\begin{{tabular}}{{{form}}}",
        r"\toprule",
        *_latex_heads(table, compared),
        r"\midrule",
    ]
    for row, before in zip(table.rows, (None, *table.rows), strict=False):
        if before and before.bound and not row.bound:
            lines.append(r"\midrule")
        values = zip(all_values(row, table), compared, strict=True)
        lines.append(" & ".join(word for value, each in values for word in _latex_value(value, each)) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}", rf"\end{{{kind}}}", ""]
    return "\n".join(lines)


def _latex_caption(table: Table, document: Document, published: bool) -> str:
    """``published``: whether there are published values to compare with."""
    kinds = {column.kind for column in table.columns}
    values = [value for row in table.rows for value in row.values]
    ranked = "paired" in kinds and any(value.rank for value in values)
    said = not document.legend  # then the document's caption says what is bold
    paired = any(value.paired for value in values)
    words = [
        f"{latex_text(document.title)}. {latex_text(table.title)}.",
        latex_text(document.caption),
        latex_text(table.note),
        "Best in bold, second underlined; --: not measured." if "compared" in kinds else "",
        "Best in bold, second underlined." if ranked and not said else "",
        "In brackets, with a sign: the paired difference." if paired else "",
        r"$^{*}$: the intervals do not overlap." if published else "",
    ]
    return " ".join(filter(None, words))


def _latex_heads(table: Table, compared: list[bool]) -> list[str]:
    titles = [latex_text(column.title) for column in table.columns]
    if not any(compared):
        return [" & ".join(titles) + r" \\"]
    groups, rules, below, place = [], [], [], 1
    for title, each in zip(titles, compared, strict=True):
        groups.append(rf"\multicolumn{{3}}{{c}}{{{title}}}" if each else title)
        below += ["measured", "published", r"$\Delta$"] if each else [""]
        rules += [rf"\cmidrule(lr){{{place}-{place + 2}}}"] if each else []
        place += 3 if each else 1
    return [" & ".join(groups) + r" \\", "".join(rules), " & ".join(below) + r" \\"]


def _latex_value(value: Value, compared: bool) -> list[str]:
    style = {1: "textbf", 2: "underline"}.get(value.rank)
    text = _latex_number(value.text) or "--"
    text = rf"\{style}{{{text}}}" if style else text
    text += f" ({_latex_number(value.paired)})" if value.paired else ""
    star = "^{*}" if value.overlap is False else ""
    change = f"${value.difference}{star}$" if value.difference else ""
    return [text, _latex_number(value.published), change] if compared else [text]


def _latex_number(text: str) -> str:
    """The text with a minus sign in place of a hyphen before a number: the first one, and those of a range."""
    return re.sub(r"(^|\(| to )-(?=\d)", r"\1$-$", latex_text(text))


_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "“": "``",
    "”": "''",
    "’": "'",
    **{letter: f"\\{letter}" for letter in "{}$&#_%"},
}


def latex_text(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()) if letter.isprintable())
