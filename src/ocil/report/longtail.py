"""The tables of long-tailed recognition: measured rows, a paper's rows of another dataset, and which claims hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ocil.evaluation.measures import Estimate, estimate
from ocil.longtail.config import changed
from ocil.longtail.metrics import LATER, MEASURES
from ocil.longtail.results import LongTailCell
from ocil.report.cells import title_of
from ocil.report.formatting import duration, range_note
from ocil.report.papers import Claim, Paper, PaperLongTail
from ocil.report.quantities import ACCURACY_QUANTITY
from ocil.report.result_tables import anchor, estimate_value, exact, exact_interval, record_table
from ocil.report.table import Column, Document, Row, Table, Value

NAMES = {
    "ce": "plain CE (stage 1)",
    "bs": "balanced softmax",
    "oltr": "OLTR",
    "oltr-fl": "OLTR + FL",
    "oltr-rfl": "OLTR + RFL",
    "oltr-rfld": "OLTR + RFL^d",
}
HEADINGS = {measure: measure.replace("open_", "open: ") for measure in MEASURES}
HEADINGS |= {"f_measure": "F-measure", "auroc": "AUROC", "fpr95": "FPR95"}
IN_TITLE = ("imbalance", "open_share", "precision")
TITLE = "Open long-tailed recognition"
CAPTION = (
    "Top-1 accuracy in percent, mean over seeds ± half of the 95 % interval.{ranges} Many: 100 training images or "
    "more; few: 20 or fewer. Closed set, then open set: an image whose largest probability is below a threshold counts "
    "as unknown."
)
BALANCED = (
    "Balanced softmax trains the plain network anew, with the logarithm of each class's share of the images added to "
    "its logit."
)
NO_THRESHOLD = (
    "AUROC and FPR95 need no threshold. AUROC: how often a known image has a larger probability than an unknown one; "
    "50 % is chance. FPR95: the share of unknown images that are kept where 95 % of the known ones are; smaller is "
    "better."
)
LONGTAIL_RECORD = (
    *("source", "dataset", "imbalance", "open_share", "variant", "cell", "seeds"),
    *(name for measure in MEASURES for name in (measure, f"{measure}_interval")),
    *("wall_seconds", "device"),
)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim of a paper and what was measured: the difference of runs of the same seed, in points."""

    text: str
    difference: Estimate
    verdict: str

    def __str__(self) -> str:
        return f"Published: {self.text}. Here: {self.verdict} ({ACCURACY_QUANTITY.difference(self.difference)} points)"


def document(cells: Sequence[LongTailCell], paper: Paper) -> Document:
    """A table per dataset, and that of the paper."""
    published = published_table(paper.longtail)
    tables = (*measured_tables(cells, paper), *([published] if published else []))
    return Document("longtail", TITLE, tables, _records(cells, paper.longtail), caption(cells))


def caption(cells: Sequence[LongTailCell]) -> str:
    return CAPTION.format(ranges=range_note(cell.value("overall") for cell in cells))


def measured_tables(cells: Sequence[LongTailCell], paper: Paper) -> list[Table]:
    """One table for each dataset with its imbalance, share of open classes and precision."""
    found = []
    for group in groups(cells):
        shown = [name for name in MEASURES if name not in LATER or any(cell.value(name) for cell in group)]
        heads = (Column("method"), Column("seeds", "number"), *_heads(shown), Column("time / run", "number", True))
        rows = tuple(_row(cell, group, shown) for cell in group)
        remarks = tuple(str(claim) for claim in judged(group, paper.longtail.claims))
        found.append(Table(_title(group), heads, rows, _note(group, shown), remarks))
    return found


def _note(group: Sequence[LongTailCell], measures: Sequence[str]) -> str:
    """Remarks about a variant and about measures that not every table has."""
    applies = {
        BALANCED: any(cell.config.variant == "bs" for cell in group),
        NO_THRESHOLD: not set(LATER).isdisjoint(measures),
    }
    return " ".join(text for text, here in applies.items() if here)


def published_table(paper: PaperLongTail) -> Table | None:
    """The paper's own numbers as a table; None if it has none."""
    shown = [name for name in MEASURES if name not in LATER or any(name in numbers for _, numbers in paper.rows)]
    rows = (
        Row.of(name, *("-" if (value := numbers.get(measure)) is None else f"{value:.1f}" for measure in shown))
        for name, numbers in paper.rows
    )
    return Table(paper.title, (Column("method"), *_heads(shown)), tuple(rows)) if paper.rows else None


def groups(cells: Sequence[LongTailCell]) -> list[list[LongTailCell]]:
    """Cells that a table can compare."""
    found: dict[tuple[Any, ...], list[LongTailCell]] = {}
    for cell in cells:
        config = cell.config
        place = config.dataset, config.imbalance, config.open_share, config.precision, config.stage1.cell
        found.setdefault(place, []).append(cell)
    return list(found.values())


def _heads(measures: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(HEADINGS[measure], "number") for measure in measures)


def _records(cells: Sequence[LongTailCell], paper: PaperLongTail) -> Table:
    """A table for CSV: a line per measured cell, then a line per row of the paper."""
    rows: list[dict[str, Any]] = []
    for cell in cells:
        config = cell.config
        values = {measure: cell.value(measure) for measure in MEASURES}
        rows.append(
            {"source": "measured", "dataset": config.dataset, "variant": config.variant, "cell": config.cell}
            | {"imbalance": f"{config.imbalance:g}", "open_share": f"{config.open_share:g}"}
            | {"seeds": len(cell.results), "wall_seconds": f"{cell.wall_seconds:.3f}", "device": cell.device}
            | {measure: exact(value) for measure, value in values.items()}
            | {f"{measure}_interval": exact_interval(value) for measure, value in values.items()}
        )
    for name, numbers in paper.rows:
        given = {measure: f"{value:.1f}" for measure, value in numbers.items()}
        rows.append({"source": "published", "dataset": paper.dataset, "variant": name} | given)
    return record_table(LONGTAIL_RECORD, rows)


def _title(group: Sequence[LongTailCell]) -> str:
    config, how = group[0].config, "as listed"
    if config.imbalance:
        how = f"imbalance {config.imbalance:g}, {100 * config.open_share:g} % of the classes open"
    shared = set.intersection(*(set(changed(cell.config).items()) for cell in group))
    others = [f"{name}={value}" for name, value in sorted(shared) if name not in IN_TITLE]
    return ", ".join([f"{title_of(config.dataset)}, long-tailed: {how}, {config.precision}", *others])


def row_name(cell: LongTailCell, group: Sequence[LongTailCell]) -> str:
    name = NAMES[cell.config.variant]
    if sum(other.config.variant == cell.config.variant for other in group) > 1:  # they differ by some setting
        name += f" ({cell.config.cell.rsplit('-', 1)[1]})"
    return name


def _row(cell: LongTailCell, group: Sequence[LongTailCell], measures: Sequence[str]) -> Row:
    return Row.of(
        Value(row_name(cell, group), anchor=anchor(cell.config.cell)),
        len(cell.results),
        *(estimate_value(cell.value(measure)) for measure in measures),
        Value(duration(cell.wall_seconds), f"{cell.wall_seconds:.3f}"),
    )


def judged(group: Sequence[LongTailCell], claims: Sequence[Claim]) -> list[JudgedClaim]:
    """The claims that were measured: those whose two variants are in the group once, so it is clear what to compare."""
    found = []
    for claim in claims:
        mine, theirs = ([c for c in group if c.config.variant == name] for name in (claim.variant, claim.than))
        if len(mine) == len(theirs) == 1 and (value := _difference(mine[0], theirs[0], claim.measure)) is not None:
            found.append(JudgedClaim(claim.text, value, _verdict(value, claim.direction)))
    return found


def _difference(mine: LongTailCell, theirs: LongTailCell, measure: str) -> Estimate | None:
    """The difference over the seeds that both have, whose runs share classes, images and stage 1."""
    others = {result.config.seed: result.measures.get(measure) for result in theirs.results}
    pairs = [(result.measures.get(measure), others.get(result.config.seed)) for result in mine.results]
    values = [a - b for a, b in pairs if a is not None and b is not None]
    return estimate(values) if values else None


def _verdict(value: Estimate, direction: int) -> str:
    if value.shown_interval is None:
        return f"{'one seed' if len(value.values) == 1 else 'two seeds'}, so not known"
    if abs(value.mean) <= value.shown_interval:
        return "not settled, the interval holds 0"
    return "holds" if value.mean * direction > 0 else "does not hold"
