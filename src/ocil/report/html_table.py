"""A table as HTML. Names in it may come from anywhere, so all text is escaped."""

import html as html_module
import re

from ocil.report.table import MINUS, NOT_MEASURED, About, Column, Row, Table, Value, verdict


def html(table: Table, label: str, kind: str = "list", scroll: str = "scroll") -> str:
    """A table that scrolls inside its own place. ``label`` names it for those who cannot see it; ``kind`` and
    ``scroll`` are classes of the page's style, and a ``sortable`` one is sorted by the page's script."""
    heads = "".join(
        f'<th scope="col"{_attribute("data-kind", "number" if _is_number(column) else "")}'
        f"{_attribute('data-first', 'ascending' if column.lower_is_better else '')}{about_html(column.about)}>"
        f"{_html_text(column.title)}</th>"
        for column in table.columns
    )
    bodies = []
    for bound in (True, False):
        rows = [_html_row(row, table) for row in table.rows if row.bound == bound]
        if rows or not bound:
            bodies += ['<tbody class="fixed">' if bound else "<tbody>", *rows, "</tbody>"]
    place = f'<div class="{scroll}" role="region" tabindex="0"{_attribute("aria-label", label)}>'
    head = f'<table class="{kind}">\n<thead><tr>{heads}</tr></thead>'
    return "\n".join([place, head, *bodies, "</table>", "</div>"])


def about_html(about: About) -> str:
    """Attributes that the page's filter reads."""
    return "".join(_attribute(f"data-{name}", getattr(about, name)) for name in ("dataset", "memory", "method"))


def _html_row(row: Row, table: Table) -> str:
    name, *values = row.values
    span = len(table.columns) - 1 if len(values) < len(table.columns) - 1 else 1
    columns = table.columns[1:] if span == 1 else table.columns[1:2]
    sort = _attribute("data-sort", name.sort or name.text)
    words = [f'<th scope="row"{sort}>{_linked(name, table.columns[0])}</th>']
    for value, column in zip(values, columns, strict=True):
        attributes = f' colspan="{span}"' if span > 1 else ""
        if _is_number(column) or value.sort is not None:
            sort = value.text if value.sort is None else value.sort
            attributes += f' data-sort="{_html_text(sort)}"'
        kinds = [column.kind] if column.kind not in ("text", "compared", "paired") else []
        if column.kind in ("compared", "paired"):
            kinds += [] if value.text else ["none"]
            content = _html_compared(value, column)
        else:
            kinds += ["apart"] if value.overlap is False else []
            content = _linked(value, column)
        words.append(f"<td{attributes}{_attribute('class', ' '.join(kinds))}>{content}</td>")
    return f"<tr{about_html(row.about)}>{''.join(words)}</tr>"


def _html_compared(value: Value, column: Column) -> str:
    if value.text:
        classes = {1: "value best", 2: "value second"}.get(value.rank, "value")
        text = _linked(value, column, classes)
        text += f' <span class="note">{_html_text(value.note)}</span>' if value.note else ""
    else:
        text = f'<span class="value">{NOT_MEASURED}</span>'
    if value.paired:
        text += f'<span class="paper">{_html_text(value.paired.replace("-", MINUS))}</span>'
    if not value.published:
        return text
    kind = verdict(value.overlap)
    words = f"{value.difference.replace('-', MINUS)} {kind}".strip()
    change = f' <span class="difference {kind}">{words}</span>' if value.difference else ""
    published = _html_text(value.published.replace("-", MINUS))
    return f'{text}<span class="paper">paper {published}{change}</span>'


def _linked(value: Value, column: Column, classes: str = "") -> str:
    text = "–" if value.text == "-" else value.text
    text = _html_text(text.replace("-", MINUS)) if _is_number(column) else _breakable(text)
    if not value.anchor:
        return f'<span class="{classes}">{text}</span>' if classes else text
    return f'<a{_attribute("class", classes)} href="#{value.anchor}" data-cell="{value.anchor}">{text}</a>'


def _is_number(column: Column) -> bool:
    return column.kind in ("number", "compared", "paired")


def _attribute(name: str, value: str) -> str:
    return f' {name}="{_html_text(value)}"' if value else ""


def _breakable(text: str) -> str:
    """A narrow column breaks long settings behind ``_`` and ``=``, not inside a word."""
    return re.sub("([_=])(?=[^ ])", r"\1<wbr>", _html_text(text))


def _html_text(text: str) -> str:
    return html_module.escape(text)
