"""One HTML page with everything in it: it opens from a disk, needs no network and can be read without scripts."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from ocil.config import typed
from ocil.metrics import average_accuracy, average_forgetting
from ocil.report import longtail
from ocil.report.collect import Cell, Collection, Run, memory_of, title_of, written
from ocil.report.comparison import ACCURACY, Entry, Part, Row, Table, counterpart, difference, one_a_place, overlap
from ocil.report.drawings import inline
from ocil.report.formats import SURROUNDINGS, anchor, beside, gap, surroundings, verdict
from ocil.report.gallery import Drawing
from ocil.report.tables import count, duration, percent

MINUS = "−"
RUN_HEADS = ("seed", "accuracy %", f"forgetting %, T {MINUS} 1 tasks", "wall time", *SURROUNDINGS, "file")


def page(collection: Collection, tables: Sequence[Table], drawings: Sequence[Drawing]) -> str:
    """The page. Everything from a file is escaped by the template; only our own style, script and figures are not."""
    import jinja2
    from markupsafe import Markup

    folder = files("ocil.report") / "templates"
    template, style, script = ((folder / f"page.{kind}").read_text() for kind in ("html", "css", "js"))
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(
        title="Online class-incremental learning, measured",
        lead=lead(collection),
        agreement=agreement(collection.cells),
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        tables=[_table(table) for table in tables],
        drawings=[
            asdict(drawing) | {"svg": Markup(inline(drawing.svg, drawing.name, drawing.title))}  # noqa: S704
            for drawing in drawings
        ],
        places=_places(collection, drawings),
        longtail=longtail.page_section(collection.longtail),
        cells=[_cell(cell) for cell in collection.cells],
        warnings=collection.warnings,
    )


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


def _places(collection: Collection, drawings: Sequence[Drawing]) -> list[dict[str, Any]]:
    """What to choose figures by. The one with most cells is chosen first; where there is one alone, none is needed."""
    about = dict.fromkeys(drawing.place for drawing in drawings if drawing.place)
    sized = {place.dataset for place in about if place.memory}
    places = [place for place in about if place.memory or place.dataset not in sized]
    if len(places) < 2:
        return []
    largest = max(places, key=lambda place: len(collection.of(place.dataset, place.memory)))
    return [
        {"dataset": place.dataset, "memory": place.memory, "title": place.title, "first": place == largest}
        for place in places
    ]


def agreement(cells: Sequence[Cell]) -> str:
    """With how many published accuracies those measured agree. Each counts once, in however many precisions."""
    verdicts = [overlap(cell.summary.average_accuracy, counterpart(cell)) for cell in one_a_place(cells)]
    known = [v for v in verdicts if v is not None]
    if not known:
        return ""
    return (
        f"Measured with more than one seed: {len(known)} of the published accuracies. With {sum(known)} of them the "
        "measured and the published interval overlap."
    )


def _typeset(text: str) -> str:
    return text.replace("-", MINUS)


def _table(table: Table) -> dict[str, Any]:
    return {
        "name": table.name, "title": table.title, "caption": table.caption, "row_name": table.row_name,
        "parts": [_part(part) for part in table.parts],
    }  # fmt: skip


def _part(part: Part) -> dict[str, Any]:
    return {
        "title": part.title,
        "measured": part.measured,
        "headings": part.headings,
        "lower": [column.measure != ACCURACY for column in part.columns] or [False],
        "rows": [_row(row, part) for row in part.rows],
        "bounds": [_row(row, part) for row in part.bounds],
        "seeds": f"{count(part.usual_seeds, 'seed')} where nothing else is said.",
    }


def _row(row: Row, part: Part) -> dict[str, Any]:
    return {"name": row.name, "entries": [_entry(entry, part.usual_seeds) for entry in row.entries]}


def _entry(entry: Entry, usual_seeds: int) -> dict[str, Any]:
    value, cell = entry.value, entry.cell
    found: dict[str, Any] = {
        "measured": "", "sort": "", "anchor": "", "note": "", "rank": entry.rank,
        "paper": _typeset(beside(entry.paper)) if entry.paper else "",
        "gap": "" if entry.difference is None else _typeset(gap(entry.difference)),
        "verdict": verdict(entry.overlap),
    }  # fmt: skip
    if value is None or cell is None:
        return found
    notes = [str(cell.changed["precision"])] if "precision" in cell.changed else []
    if entry.seeds not in (1, usual_seeds):  # one seed is said with the number
        notes.append(f"{entry.seeds} seeds")
    return found | {
        "measured": _typeset(percent(value)),
        "sort": f"{100 * value.mean:.4f}",
        "anchor": anchor(cell.name),
        "note": ", ".join(notes),
    }


@dataclass(frozen=True)
class Field:
    """A field of the list of cells. ``sort`` is what it is sorted by, where that is not its text."""

    text: str
    sort: str | None = None
    kind: str = ""


def _cell(cell: Cell) -> dict[str, Any]:
    config, summary = cell.config, cell.summary
    accuracy, paper = summary.average_accuracy, counterpart(cell)
    apart, points = overlap(accuracy, paper), difference(accuracy, paper)
    memory = memory_of(config)

    def estimate(name: str) -> Field:
        value = getattr(summary, name)
        return Field(_typeset(percent(value)), "" if value is None else f"{100 * value.mean:.4f}")

    columns = [
        Field(title_of(config.dataset), kind="dataset"),
        Field(str(memory or "–"), str(memory)),
        Field(written(cell.changed) or "–", written(cell.changed), "settings"),
        Field(str(len(cell.runs)), str(len(cell.runs))),
        estimate("average_accuracy"),
        Field(beside(paper) if paper else "–", "" if paper is None else str(paper.mean)),
        Field(
            "–" if points is None else f"{_typeset(gap(points))} {verdict(apart)}".strip(),
            "" if points is None else f"{points:.4f}", "apart" if apart is False else "",
        ),
        estimate("average_forgetting"),
        estimate("average_intransigence"),
        Field(duration(summary.wall_seconds.mean), f"{summary.wall_seconds.mean:.3f}"),
    ]  # fmt: skip
    review = {} if config.label == config.method else {"review": config.learner.review}
    changed = review | cell.changed
    place = title_of(config.dataset) + (f", memory {memory}" if memory else "")
    named = f" ({written(cell.changed)})" if cell.changed else ""
    measures = (
        ("accuracy", "average_accuracy"),
        (f"forgetting over the first T {MINUS} 1 tasks", "average_forgetting"),
        ("forgetting over all T tasks", "average_forgetting_common"),
        ("intransigence", "average_intransigence"),
    )
    words = [f"{name} {estimate(field).text} %" for name, field in measures if getattr(summary, field) is not None]
    if paper:
        words.append(f"published accuracy {beside(paper)} %")
    return {
        "anchor": anchor(cell.name),
        "label": config.label,
        "title": f"{config.label}{named} on {place}",
        "numbers": "; ".join(words),
        "command": cell.command,
        "changed": [(name, typed(value)) for name, value in changed.items()],
        "settings": [(name, typed(value)) for name, value in _settings(cell).items()],
        "columns": [asdict(column) for column in columns],
        "run_heads": RUN_HEADS,
        "runs": [_run(run) for run in cell.runs],
    }


def _settings(cell: Cell) -> dict[str, Any]:
    content = cell.config.to_json()
    top = {name: value for name, value in content.items() if name not in ("stream", "learner", "seed")}
    settings: dict[str, Any] = {**top, **content["stream"], **content["learner"]}
    return settings


def _run(run: Run) -> list[str]:
    result = run.result
    forgetting = average_forgetting(result.matrix)
    return [
        str(result.config.seed), f"{100 * average_accuracy(result.matrix):.2f}",
        "–" if forgetting is None else _typeset(f"{100 * forgetting:.2f}"), duration(result.wall_seconds),
        *surroundings(result.environment), str(run.path),
    ]  # fmt: skip
