"""One table in every format."""

import csv as csv_module
import io
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from ocil.report.html_table import html
from ocil.report.table import Column, Document, Row, Table, Value, columns, csv, latex, markdown
from ocil.report.table import markdown_table as md
from ocil.report.terminal_table import Lines, pairs, terminal
from tests.test_report_page import HOSTILE, Page, check_latex

COMPARED = (Column("method"), Column("memory 50", "compared"), Column("memory 90", "compared", lower_is_better=True))
BEST = Value("42.3 ± 0.4", "42.3", 1, "40.0 ± 0.1", "+2.3", overlap=False, note="bf16", anchor="cell-1")
SECOND = Value("-1.5 (one seed)", "-1.5", 2, "-2.0", "-0.5")
TABLE = Table(
    "birds_1",
    COMPARED,
    (
        Row.of("bound", Value("5.0 ± 0.1", published="4.0 ± 1.0", difference="+1.0", overlap=True), bound=True),
        Row.of("a", BEST, Value("", "")),
        Row.of("b", Value("", "", published="3.0 ± 0.2"), SECOND),
    ),
    "3 seeds.",
    ("a remark",),
)


def document(*tables: Table) -> Document:
    return Document("x", "Title", tables, tables[0], "A caption.", "A legend.")


def test_markdown() -> None:
    assert (
        markdown(document(TABLE))
        == """# Title

A caption.

A legend.

## birds_1

3 seeds.

| method | memory 50 | memory 90 |
|---|---|---|
| bound | 5.0 ± 0.1 (4.0 ± 1.0, +1.0, overlap) | 5.0 ± 0.1 (4.0 ± 1.0, +1.0, overlap) |
| a | **42.3 ± 0.4** (40.0 ± 0.1, +2.3, apart) | not measured |
| b | not measured (3.0 ± 0.2) | <u>-1.5 (one seed)</u> (-2.0, -0.5) |

- a remark
"""
    )
    assert md(TABLE, level=0).startswith("birds_1\n\n3 seeds.\n\n| method")
    code = Table("", (Column("command", "code"),), (Row.of("ocil run a_b --set x=[1]"),))
    assert md(code).splitlines()[-1] == "| `ocil run a_b --set x=[1]` |"


def test_latex_is_a_float_per_table_that_fits_its_place() -> None:
    narrow = Table("few", (Column("alpha"), Column("accuracy", "compared")), (Row.of("0.5", BEST),))
    numbers = Table("numbers", columns("a", "b", text=("a",)), (Row.of("x_y", "-1.0"),))
    text = latex(document(TABLE, narrow, numbers, Table("none", COMPARED, (Row.of("a", Value(""), Value("")),))))
    check_latex(text)
    wide, one, plain = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", text, re.DOTALL)  # not the empty one
    assert wide.startswith(r"\begin{table*}")  # 7 columns: across both columns of the page
    assert one.startswith(r"\begin{table}")
    for each in (wide, one, plain):
        assert r"\footnotesize" in each
        assert re.search(
            r"\\begin\{adjustbox\}\{max width=\\linewidth\}\n\\begin\{tabular\}.*\\end\{tabular\}\n"
            r"\\end\{adjustbox\}",
            each,
            re.DOTALL,
        )
        assert [each.count(rule) for rule in (r"\toprule", r"\bottomrule")] == [1, 1]
    assert text.startswith(r"% \usepackage{booktabs,adjustbox}")
    assert r"\caption{Title. birds\_1. A caption. 3 seeds. Best in bold" in wide
    assert r"a & \textbf{42.3 $\pm$ 0.4} & 40.0 $\pm$ 0.1 & $+2.3^{*}$ & -- &  &  \\" in wide
    assert r"b & -- & 3.0 $\pm$ 0.2 &  & \underline{$-$1.5 (one seed)} & $-$2.0 & $-0.5$ \\" in wide
    assert wide.count(r"\midrule") == 2  # below the heading and below the bounds
    assert r"\begin{tabular}{lr}" in plain
    assert r"x\_y & $-$1.0 \\" in plain
    assert "Best in bold" not in plain
    bare = replace(BEST, published="", difference="", overlap=None)
    text = latex(document(Table("x", COMPARED, (Row.of("a", bare, Value("")),))))
    assert r"a & \textbf{42.3 $\pm$ 0.4} & -- \\" in text  # no columns for numbers that nobody published
    assert "overlap" not in text


def test_csv_guards_text_and_leaves_numbers() -> None:
    table = Table("", columns("name", "mean", text=("name",)), (Row.of("=1+1", -1.5), Row.of('a,"b"\n', "")))
    assert list(csv_module.reader(io.StringIO(csv(table)))) == [["name", "mean"], ["'=1+1", "-1.5"], ['a,"b"\\n', ""]]


def test_html() -> None:
    page = Page(html(TABLE, "A label", "numbers sortable"))
    tags: dict[str, list[dict[str, Any]]] = {}
    for tag, attributes in page.tags:
        tags.setdefault(tag, []).append(attributes)
    assert tags["div"] == [{"class": "scroll", "role": "region", "tabindex": "0", "aria-label": "A label"}]
    assert [body.get("class") for body in tags["tbody"]] == ["fixed", None]
    assert [cell.get("colspan") for cell in tags["td"]] == ["2", None, None, None, None]
    assert [cell["data-sort"] for cell in tags["td"]][1:] == ["42.3", "", "", "-1.5"]
    assert [head.get("data-first") for head in tags["th"][:3]] == [None, None, "ascending"]
    (link,) = tags["a"]
    assert (link["class"], link["href"]) == ("value best", "#cell-1")
    assert "42.3 ± 0.4 bf16paper 40.0 ± 0.1 +2.3 apart" in page.text
    assert "−1.5 (one seed)paper −2.0 −0.5" in page.text  # a minus sign
    assert "not measuredpaper 3.0 ± 0.2" in page.text


@pytest.mark.parametrize("kind", ["text", "number", "compared", "settings", "dataset", "path"])
def test_hostile_text_is_text(kind: str) -> None:
    table = Table(HOSTILE, (Column(HOSTILE), Column(HOSTILE, kind)), (Row.of(HOSTILE, Value(HOSTILE, HOSTILE)),))
    page = Page(html(table, HOSTILE))
    assert not {"script", "b"} & {tag for tag, _ in page.tags}
    assert HOSTILE.replace("-", "−") in page.text.replace("-", "−")
    check_latex(latex(document(table)))
    assert r"\input{" not in latex(document(table))
    assert "<script" not in markdown(document(table))
    (line,) = (line for line in md(table).splitlines() if line.startswith("|---"))
    assert all(len(re.findall(r"(?<!\\)\|", row)) == line.count("|") for row in md(table).splitlines()[2:])
    assert "alert(1)" in shown(table)


def shown(table: Table, width: int = 200, narrow: bool = False, lines: Lines = "all") -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(terminal(table, narrow, lines))
    return file.getvalue()


def test_terminal() -> None:
    text = shown(TABLE)
    for word in ("birds_1", "memory 90", "42.3 ± 0.4", "-1.5 (one seed)"):
        assert word in text
    assert text.count("5.0 ± 0.1") == 2
    assert "[bold]x\\x1b" in shown(Table("", (Column("a"),), (Row.of("[bold]x\x1b"),)))
    small = shown(TABLE.transposed(), 40, narrow=True)
    assert "one seed" not in small
    assert max(map(len, small.splitlines())) <= 40
    assert [row.values[0].text for row in TABLE.transposed().rows] == ["memory 50", "memory 90"]


def test_a_terminal_breaks_lines_between_words() -> None:
    names = ("er-ace-rv", "afs sample_value=entropy")
    rows = [Row.of(name, "-19.9 ± 102.9", "48.5 ± 0.5", "3 min 02 s") for name in names]
    table = Table("Who is ahead", columns("method", "against stride", "accuracy %", "time / run"), tuple(rows))
    kept = {word for row in rows for value in row.values for word in value.text.split()}
    for lines in ("all", "head", "none"):
        for width in (12, 30, 52, 60, 80):
            text = shown(table, width, lines=lines)
            assert max(map(len, text.splitlines())) <= width
            if width > 12:
                assert kept <= set(re.split(r"[\s│]+", text)), (lines, width)
                assert ("\nmethod er-ace-rv" in text) == (width == 30)  # a list of its values for every row
    path = "photos/" + "a" * 60 + ".jpg"  # a long word is broken, so that the other columns stay beside it
    assert max(map(len, shown(Table("", columns("input", "class"), (Row.of(path, "robin"),)), 50).splitlines())) <= 50


def test_names_and_explanations_on_a_narrow_terminal() -> None:
    def printed(width: int, text: str = "three methods, a table") -> str:
        file = io.StringIO()
        console = Console(file=file, width=width)
        console.print(*pairs([("ocil compare fine-tune er afs", text)], width), sep="")
        return file.getvalue()

    assert [line.rstrip() for line in printed(80).splitlines()] == [
        "  ocil compare fine-tune er afs  three methods, a table"
    ]
    assert [line.rstrip() for line in printed(40).splitlines()] == [
        "  ocil compare fine-tune er afs",
        "    three methods, a table",
    ]
    assert [line.rstrip() for line in printed(40, "46.0").splitlines()] == ["  ocil compare fine-tune er afs  46.0"]


def test_columns_are_chosen_by_their_titles() -> None:
    table = Table("", columns("a", "b", "c"), (Row.of(1, 2, 3),)).select("c", "a")
    assert [column.title for column in table.columns] == ["c", "a"]
    assert [value.text for value in table.rows[0].values] == ["3", "1"]


def test_the_model_needs_no_library_of_the_command_line(start_python: Callable[..., Any]) -> None:
    script = (
        "import sys, ocil.report.table\nprint(sorted({'rich', 'torch', 'matplotlib', 'jinja2'} & set(sys.modules)))"
    )
    out, err = start_python("-c", script).communicate(timeout=600)
    assert (out.strip(), err) == ("[]", "")
