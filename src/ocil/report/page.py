"""One HTML page with everything in it: it opens from a disk, needs no network and can be read without scripts."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from ocil.evaluation.measures import average_accuracy, average_forgetting
from ocil.longtail.config import changed as longtail_changed
from ocil.longtail.results import LongTailCell, LongTailResult
from ocil.report import longtail
from ocil.report.cells import Collection, FinishedRun, MeasuredCell, settings_text, title_of
from ocil.report.comparison import ComparedTable, one_per_column, overlap, published_accuracy
from ocil.report.cost_figure import cost_figure
from ocil.report.drawings import Drawing
from ocil.report.explore import choices, first_pair, numbers
from ocil.report.formatting import count, duration, percent, published_percent, versions
from ocil.report.headline import headline
from ocil.report.html_table import about_html, html
from ocil.report.papers import Paper
from ocil.report.result_tables import anchor, cells_table
from ocil.report.standing_tables import leads_table, standings_document, standings_table
from ocil.report.standings import Standings
from ocil.report.table import MINUS, Column, Document, Row, Table, columns, latex_table
from ocil.runs.settings import as_argument
from ocil.text import escaped, number_text

Settings = Mapping[str, Any]
SURROUNDINGS = (Column("device"), Column("versions"), Column("finished"))
MEASURED = columns("seed", "accuracy %", f"forgetting %, T {MINUS} 1 tasks", "wall time")
RUN_COLUMNS = (*MEASURED, *SURROUNDINGS, Column("file", "path"))
LONGTAIL_MEASURED = columns("seed", "overall %", "F-measure %", "wall time")
LONGTAIL_RUN_COLUMNS = (*LONGTAIL_MEASURED, *SURROUNDINGS, Column("folder", "path"))
LISTED = ("method", "dataset", "memory", "settings", "seeds", "accuracy %")
LISTED_PUBLISHED = ("published %", "difference")
LISTED_LAST = ("forgetting %", "intransigence %", "time / run")
FIRST_ROWS = 8  # of the standings: what the first screen has room for
MOST_LEADS = 12


def page(
    collection: Collection,
    standings: Standings,
    own: Sequence[Document],
    compared: Sequence[tuple[ComparedTable, Document]],
    drawings: Sequence[Drawing],
    paper: Paper,
) -> str:
    """The page. Tables are escaped by their writer and all other text by the template.

    ``own`` are tables of what was measured, whatever paper it belongs to; ``compared`` those of the paper.
    """
    import jinja2

    folder = files("ocil.report") / "templates"
    template, style, script = ((folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(
        title="Online class-incremental learning, measured",
        lead=lead(collection),
        standings=_standings(standings) if standings.entries.all else None,
        own=[_own(document) for document in own],
        agreement=agreement(collection.cells, paper),
        citation=paper.citation if paper.tables or collection.longtail else "",
        style=style,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        tables=[_compared(table, document) for table, document in compared],
        drawings=[(drawing, data_address(drawing.svg), _size(drawing.svg)) for drawing in drawings],
        figure_columns=_figure_columns(collection, drawings),
        choices=choices(collection, standings) if collection.cells else None,
        numbers=numbers(standings),
        pair=first_pair(standings),
        rows=[entry.name for entry in standings.ordered],
        longtail=_longtail(collection.longtail, paper) if collection.longtail else None,
        count=len(collection.cells),
        cells=html(_listed(collection.cells, paper), "Every cell", "sortable list wide", "scroll whole"),
        details=[_detail(cell, paper) for cell in collection.cells] + _longtail_details(collection.longtail),
        warnings=collection.warnings,
    )


def data_address(svg: str) -> str:
    """An image as an address, for a page that is one file: shorter than base64, and safe in quotes."""
    return "data:image/svg+xml," + quote(svg, safe=" :/<>=,;+!@*?|[]{}")


def _size(svg: str) -> tuple[int, int] | None:
    """Width and height, so that the page keeps the place of a figure free before it is loaded."""
    found = re.search(r'<svg[^>]*? viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return (round(float(found[1])), round(float(found[2]))) if found else None


def lead(collection: Collection) -> str:
    """What the page is made of, in two sentences."""
    cells, tailed = collection.cells, sum(len(cell.results) for cell in collection.longtail)
    if not cells:
        return f"{count(tailed, 'long-tailed run')}; no run on a stream."
    runs = [run for cell in cells for run in cell.runs]
    datasets = dict.fromkeys(title_of(cell.config.dataset) for cell in cells)
    devices = dict.fromkeys(run.device for run in runs)
    days = sorted({str(day)[:10] for run in runs if (day := run.result.environment.get("finished"))})
    when = f" Finished {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}." if days else ""
    also = f" And {count(tailed, 'long-tailed run')}." if tailed else ""
    return (
        f"{count(len(cells), 'cell')}, {count(len(runs), 'run')} on {', '.join(datasets)}, "
        f"measured on {', '.join(devices)}.{when}{also}"
    )


def _figure_columns(collection: Collection, drawings: Sequence[Drawing]) -> list[dict[str, Any]]:
    """The columns by which a reader chooses figures. The one with most cells is chosen at first. Empty if there is only
    one.
    """
    about = dict.fromkeys(drawing.column for drawing in drawings if drawing.column)
    sized = {(column.dataset, column.stream) for column in about if column.memory}
    found = [column for column in about if column.memory or (column.dataset, column.stream) not in sized]
    if len(found) < 2:
        return []
    largest = max(found, key=lambda column: len(collection.at(column)))
    return [{"column": column, "first": column == largest} for column in found]


def agreement(cells: Sequence[MeasuredCell], paper: Paper) -> str:
    """A sentence about how many published accuracies agree with those measured. Each counts once, in however many
    precisions it was measured. One seed or two have no interval, and do not count.
    """
    pairs = ((cell.summary.average_accuracy, published_accuracy(cell, paper)) for cell in one_per_column(cells))
    known = [verdict for value, published in pairs if (verdict := overlap(value, published)) is not None]
    if not known:
        return ""
    return (
        f"Measured with three seeds or more: {len(known)} of the published accuracies. With {sum(known)} of them the "
        "measured and the published interval overlap."
    )


def _listed(cells: Sequence[MeasuredCell], paper: Paper) -> Table:
    """Every cell, without columns of a paper that has nothing on any of them."""
    published = LISTED_PUBLISHED if any(published_accuracy(cell, paper) for cell in cells) else ()
    return cells_table(cells, paper).select(*LISTED, *published, *LISTED_LAST)


def _standings(standings: Standings) -> dict[str, Any]:
    """What the first screen shows: who is ahead, by how much, at what cost."""
    table = standings_table(standings)
    first, rest = (replace(table, rows=rows) for rows in (table.rows[:FIRST_ROWS], table.rows[FIRST_ROWS:]))
    if not any(row.values[-1].text for row in first.rows):  # nothing is missing here
        first = first.select(*(column.title for column in first.columns[:-1]))
    leads = leads_table(standings)
    return {
        "words": headline(standings),
        "figure": cost_figure(standings),
        "note": table.note,
        "latex": latex_table(table, standings_document(standings)),
        "first": html(first, "Standings", "sortable list"),
        "rest": html(rest, "Standings, continued", "sortable list") if rest.rows else "",
        "left": len(rest.rows),
        "leads": html(leads, leads.title, "sortable list") if len(leads.rows) > 1 else "",
        "many": len(leads.rows) > MOST_LEADS,
    }


def _own(document: Document) -> dict[str, Any]:
    parts = [
        {
            "title": table.title,
            "html": html(table, f"{document.title}, {table.title}", "numbers sortable"),
            "note": table.note,
            "about": about_html(table.about),
            "latex": latex_table(table, document),
        }
        for table in document.tables
    ]
    return {"name": document.name, "title": document.title, "caption": document.caption, "parts": parts}


def _compared(compared: ComparedTable, document: Document) -> dict[str, Any]:
    spec = compared.table
    parts = []
    for grid, table in zip(compared.grids, document.tables, strict=True):
        measured, rest = (
            replace(table, rows=tuple(row for row in table.rows if any(v.text for v in row.values[1:]) == known))
            for known in (True, False)
        )
        shown = table if table.empty else measured
        name = f"{spec.title}, {table.title}"
        parts.append(
            {
                "title": table.title,
                "about": about_html(table.about),
                "latex": "" if table.empty else latex_table(table, document),
                "empty": table.empty,
                "html": html(shown, name, "numbers sortable"),
                "rest": html(rest, f"{name}, not measured", "numbers") if rest.rows and not table.empty else "",
                "left": count(len(rest.rows), "row"),
                "seeds": f"{count(grid.common_seeds, 'seed')} unless noted otherwise.",
            }
        )
    return {"name": spec.name, "title": spec.title, "caption": spec.caption, "parts": parts}


def _longtail(cells: Sequence[LongTailCell], paper: Paper) -> dict[str, Any]:
    document = longtail.document(cells, paper)
    parts = [
        {
            "title": table.title,
            "html": html(table, table.title, "sortable list wide"),
            "note": table.note,
            "remarks": table.remarks,
            "latex": latex_table(table, document),
        }
        for table in longtail.measured_tables(cells, paper)
    ]
    if published := longtail.published_table(paper.longtail):
        shown = html(published, published.title)
        parts.append({"title": published.title, "html": shown, "note": "", "remarks": (), "latex": ""})
    return {"title": longtail.TITLE, "caption": longtail.caption(cells), "parts": parts}


def _detail(cell: MeasuredCell, paper: Paper) -> dict[str, Any]:
    """What the page has on a cell: its numbers, command, settings and runs."""
    config, summary, published = cell.config, cell.summary, published_accuracy(cell, paper)
    measures = {
        "accuracy": summary.average_accuracy,
        f"forgetting over the first T {MINUS} 1 tasks": summary.average_forgetting,
        "forgetting over all T tasks": summary.average_forgetting_common,
        "intransigence": summary.average_intransigence,
    }
    words = [f"{name} {percent(v).replace('-', MINUS)} %" for name, v in measures.items() if v is not None]
    words += [f"published accuracy {published_percent(published)} %"] if published else []
    content = config.to_json()
    settings = {name: value for name, value in content.items() if name not in ("stream", "learner", "seed")}
    named = f" ({settings_text(cell.changed)})" if cell.changed else ""
    review = {} if config.label == config.method else {"review": config.learner.review}
    return _described(
        f"{config.label}{named} on {cell.column.title}",
        cell.name,
        "; ".join(words),
        cell.command,
        review | cell.changed,
        settings | content["stream"] | content["learner"],
        Table("", RUN_COLUMNS, tuple(_run(run) for run in cell.runs)),
    )


def _longtail_details(cells: Sequence[LongTailCell]) -> list[dict[str, Any]]:
    found = []
    for group, table in zip(longtail.groups(cells), longtail.measured_tables(cells, Paper()), strict=True):
        for cell, row in zip(group, table.rows, strict=True):
            config = cell.config
            measures = zip((column.title for column in table.columns[2:-1]), row.values[2:-1], strict=True)
            found.append(
                _described(
                    f"{row.values[0].text} on {table.title}",
                    config.cell,
                    "; ".join(f"{heading} {value.text} %" for heading, value in measures),
                    cell.command,
                    longtail_changed(config),
                    {name: value for name, value in config.to_json().items() if name != "seed"},
                    Table("", LONGTAIL_RUN_COLUMNS, tuple(_longtail_run(result) for result in cell.results)),
                )
            )
    return found


def _described(
    title: str, cell: str, numbers: str, command: str, changed: Settings, settings: Settings, runs: Table
) -> dict[str, Any]:
    return {
        "title": title,
        "anchor": anchor(cell),
        "numbers": numbers,
        "command": command,
        "changed": [(name, as_argument(value)) for name, value in changed.items()],
        "settings": [(name, as_argument(value)) for name, value in settings.items()],
        "runs": html(runs, f"Runs of {title}", "list runs"),
    }


def _run(run: FinishedRun) -> Row:
    result = run.result
    forgetting = average_forgetting(result.matrix)
    return Row.of(
        result.config.seed,
        number_text(100 * average_accuracy(result.matrix), ".2f"),
        "-" if forgetting is None else number_text(100 * forgetting, ".2f"),
        duration(result.wall_seconds),
        *_surroundings(result.environment),
        escaped(str(run.path)),
    )


def _longtail_run(result: LongTailResult) -> Row:
    values = (result.measures[name] for name in ("overall", "f_measure"))
    return Row.of(
        result.config.seed,
        *("-" if value is None else number_text(100 * value, ".2f") for value in values),
        duration(result.wall_seconds),
        *_surroundings(result.environment),
        f"{result.config.cell}/seed-{result.config.seed}",
    )


def _surroundings(environment: Mapping[str, Any]) -> tuple[str, str, str]:
    """The device and the versions a run was measured with, and when it finished."""
    return str(environment.get("device", "unknown")), versions(environment), str(environment.get("finished", "–"))
