"""The table of long-tailed recognition: measured rows, the paper's rows of another dataset, and what of it holds."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocil.config import typed
from ocil.data import CATALOG
from ocil.longtail.config import LongTailConfig, changed
from ocil.longtail.metrics import MEASURES
from ocil.longtail.results import LongTailCell, LongTailResult
from ocil.metrics import Estimate, estimate
from ocil.report.formats import SURROUNDINGS, anchor, harmless, md, surroundings, tex
from ocil.report.tables import duration, percent
from ocil.text import escaped

NAMES = {
    "ce": "plain CE (stage 1)", "oltr": "OLTR", "oltr-fl": "OLTR + FL", "oltr-rfl": "OLTR + RFL",
    "oltr-rfld": "OLTR + RFL^d",
}  # fmt: skip
HEADINGS = {
    "many": "many", "medium": "medium", "few": "few", "overall": "overall", "open_many": "open: many",
    "open_medium": "open: medium", "open_few": "open: few", "f_measure": "F-measure",
}  # fmt: skip
PUBLISHED: dict[str, tuple[float, ...]] = {  # ImageNet-LT, percent, in the order of MEASURES
    "OLTR (its authors)": (46.0, 36.9, 18.4, 37.8, 44.2, 35.2, 17.5, 44.6),
    "OLTR (rerun)": (46.3, 37.9, 19.0, 38.4, 44.8, 36.5, 18.0, 45.4),
    "OLTR + FL": (48.9, 36.1, 14.5, 37.9, 47.2, 34.6, 13.7, 45.0),
    "OLTR + RFL": (48.1, 37.8, 17.1, 38.8, 46.6, 36.5, 16.2, 45.9),
    "OLTR + RFL^d": (49.8, 36.8, 17.0, 39.0, 48.2, 35.6, 16.3, 46.1),
}
TITLE = "Open long-tailed recognition"
CAPTION = (
    "Top-1 accuracy in percent, mean over seeds ± half of the 95 % interval. Many: 100 training images or more; few: "
    "20 or fewer. Closed set, then open set: an image whose largest probability is below a threshold counts as unknown."
)
ELSEWHERE = "Published, ImageNet-LT: another dataset, so compare directions, not numbers"

CLAIMS: tuple[tuple[str, str, str, str, int], ...] = (
    ("RFL^d is better than OLTR overall", "oltr-rfld", "oltr", "overall", 1),
    ("RFL^d is better than OLTR in F-measure", "oltr-rfld", "oltr", "f_measure", 1),
    ("RFL^d is better than RFL overall", "oltr-rfld", "oltr-rfl", "overall", 1),
    ("RFL is better than OLTR overall", "oltr-rfl", "oltr", "overall", 1),
    ("FL is better than OLTR on many-shot classes", "oltr-fl", "oltr", "many", 1),
    ("FL is worse than OLTR on few-shot classes", "oltr-fl", "oltr", "few", -1),
    ("FL is worse than OLTR overall", "oltr-fl", "oltr", "overall", -1),
)  # fmt: skip
"""What the paper's table says: a variant, the one it is compared with, the measure, and the sign of the difference."""


@dataclass(frozen=True)
class Row:
    name: str
    seeds: int
    values: tuple[str, ...]
    """As text, in the order of ``MEASURES``."""
    time: str
    cell: LongTailCell


@dataclass(frozen=True)
class Claim:
    """A direction of the paper's table, and what was measured: the difference of runs of the same seed, in points."""

    text: str
    difference: Estimate
    verdict: str


@dataclass(frozen=True)
class Part:
    title: str
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]


def parts(cells: Sequence[LongTailCell]) -> list[Part]:
    """One a dataset with its imbalance, share of open classes and precision."""
    groups: dict[tuple[Any, ...], list[LongTailCell]] = {}
    for cell in cells:
        groups.setdefault(_place(cell.config), []).append(cell)
    return [
        Part(_title(group[0].config), tuple(_row(cell, group) for cell in group), tuple(_claims(group)))
        for group in groups.values()
    ]


def markdown(cells: Sequence[LongTailCell]) -> str:
    lines = [f"# {TITLE}", "", CAPTION, ""]
    head = ["method", "seeds", *HEADINGS.values(), "time / run"]
    for part in parts(cells):
        lines += [f"## {md(part.title)}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for row in part.rows:
            lines.append("| " + " | ".join([md(row.name), str(row.seeds), *row.values, row.time]) + " |")
        lines.append("")
        for claim in part.claims:
            lines.append(f"- {claim.text}: {claim.verdict} ({points(claim.difference)} points)")
        lines.append("")
    lines += [f"## {ELSEWHERE}", "", "| method | " + " | ".join(HEADINGS.values()) + " |", "|---" * 9 + "|"]
    lines += [f"| {name} | " + " | ".join(f"{v:.1f}" for v in values) + " |" for name, values in PUBLISHED.items()]
    return "\n".join(lines) + "\n"


def as_csv(cells: Sequence[LongTailCell]) -> str:
    spread = [name for measure in MEASURES for name in (measure, f"{measure}_interval")]
    columns = ["source", "dataset", "imbalance", "open_share", "variant", "cell", "seeds", *spread, "wall_seconds",
               "device"]  # fmt: skip
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        config, numbers = cell.config, {}
        for measure in MEASURES:
            value = cell.value(measure)
            numbers[measure] = "" if value is None else f"{100 * value.mean:.3f}"
            no_spread = value is None or value.interval is None
            numbers[f"{measure}_interval"] = "" if no_spread else f"{100 * value.interval:.3f}"  # type: ignore[operator,union-attr]
        writer.writerow({
            "source": "measured", "dataset": harmless(config.dataset), "imbalance": f"{config.imbalance:g}",
            "open_share": f"{config.open_share:g}", "variant": config.variant, "cell": harmless(config.cell),
            "seeds": len(cell.results), **numbers, "wall_seconds": f"{cell.wall_seconds:.3f}",
            "device": harmless(cell.device),
        })  # fmt: skip
    for name, values in PUBLISHED.items():
        row = dict(zip(MEASURES, (f"{value:.1f}" for value in values), strict=True))
        writer.writerow({"source": "published", "dataset": "imagenet-lt", "variant": name, **row})
    return file.getvalue()


def latex(cells: Sequence[LongTailCell]) -> str:
    """For a document that loads booktabs: measured parts, then the published rows."""
    lines = [
        r"% \usepackage{booktabs}", r"\begin{table*}", r"\centering", rf"\caption{{{tex(TITLE)}. {tex(CAPTION)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(MEASURES)}}}", r"\toprule",
        " & ".join(["method", *map(tex, HEADINGS.values())]) + r" \\",
    ]  # fmt: skip
    wide = rf"\multicolumn{{{len(MEASURES) + 1}}}{{l}}"
    for part in parts(cells):
        lines += [r"\midrule", rf"{wide}{{{tex(part.title)}}} \\"]
        lines += [" & ".join(map(tex, (row.name, *row.values))) + r" \\" for row in part.rows]
    lines += [r"\midrule", rf"{wide}{{{tex(ELSEWHERE)}}} \\"]
    lines += [" & ".join([tex(n), *(f"{v:.1f}" for v in values)]) + r" \\" for n, values in PUBLISHED.items()]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""])


FORMATS: dict[str, Callable[[Sequence[LongTailCell]], str]] = {"md": markdown, "csv": as_csv, "tex": latex}


def files(cells: Sequence[LongTailCell]) -> dict[str, str]:
    """File name to content; nothing where there is no long-tailed run."""
    return {f"longtail.{ending}": write(cells) for ending, write in FORMATS.items()} if cells else {}


def page_section(cells: Sequence[LongTailCell]) -> dict[str, Any] | None:
    """What the page shows; plain text, which the template escapes."""
    if not cells:
        return None
    found = parts(cells)
    return {
        "title": TITLE, "caption": CAPTION, "headings": list(HEADINGS.values()), "elsewhere": ELSEWHERE,
        "parts": [
            {
                "title": part.title,
                "rows": [_shown(row) for row in part.rows],
                "claims": [f"{c.text}: {c.verdict} ({points(c.difference)} points)" for c in part.claims],
            }
            for part in found
        ],
        "details": [_detail(row, part) for part in found for row in part.rows],
        "published": [(name, [f"{v:.1f}" for v in values]) for name, values in PUBLISHED.items()],
    }  # fmt: skip


def _shown(row: Row) -> dict[str, Any]:
    """Its fields are seeds, measures and time, each as it is shown and as it is sorted."""
    means = [row.cell.value(measure) for measure in MEASURES]
    measures = zip(row.values, ("" if mean is None else f"{100 * mean.mean:.4f}" for mean in means), strict=True)
    fields = [(str(row.seeds), str(row.seeds)), *measures, (row.time, f"{row.cell.wall_seconds:.3f}")]
    return {"name": row.name, "anchor": anchor(row.cell.config.cell), "fields": fields}


def _detail(row: Row, part: Part) -> dict[str, Any]:
    """What the page says of a cell: its command, settings and runs."""
    config = row.cell.config
    settings = {name: value for name, value in config.to_json().items() if name != "seed"}
    return {
        "anchor": anchor(config.cell),
        "title": f"{row.name} on {part.title}",
        "numbers": "; ".join(
            f"{heading} {value} %" for heading, value in zip(HEADINGS.values(), row.values, strict=True)
        ),
        "command": row.cell.command,
        "changed": [(name, typed(value)) for name, value in changed(config).items()],
        "settings": [(name, typed(value)) for name, value in settings.items()],
        "run_heads": ("seed", "overall %", "F-measure %", "wall time", *SURROUNDINGS, "folder"),
        "runs": [_run(result) for result in row.cell.results],
    }


def _run(result: LongTailResult) -> list[str]:
    measures = (
        "–" if (value := result.measures[name]) is None else f"{100 * value:.2f}" for name in ("overall", "f_measure")
    )
    return [
        str(result.config.seed), *measures, duration(result.wall_seconds), *surroundings(result.environment),
        f"{result.config.cell}/seed-{result.config.seed}",
    ]  # fmt: skip


def points(difference: Estimate) -> str:
    spread = "" if difference.interval is None else f" ± {100 * difference.interval:.1f}"
    return f"{100 * difference.mean:+z.1f}{spread}"


def _place(config: LongTailConfig) -> tuple[Any, ...]:
    return config.dataset, config.imbalance, config.open_share, config.precision, config.stage1_cell


def _title(config: LongTailConfig) -> str:
    known = CATALOG.get(config.dataset)
    name = known.title if known else escaped(Path(config.dataset).stem)
    how = (
        f"imbalance {config.imbalance:g}, {100 * config.open_share:g} % of the classes open"
        if config.imbalance
        else "as listed"
    )
    return f"{name}, long-tailed: {how}, {config.precision}"


def _row(cell: LongTailCell, group: Sequence[LongTailCell]) -> Row:
    name = NAMES[cell.config.variant]
    if sum(other.config.variant == cell.config.variant for other in group) > 1:  # they differ by some setting
        name += f" ({cell.config.cell.rsplit('-', 1)[1]})"
    values = tuple(percent(cell.value(measure)) for measure in MEASURES)
    return Row(name, len(cell.results), values, duration(cell.wall_seconds), cell)


def _claims(group: Sequence[LongTailCell]) -> list[Claim]:
    """Only where each variant is there once: otherwise it is not known which to compare."""
    found = []
    for text, variant, other, measure, sign in CLAIMS:
        mine, theirs = ([c for c in group if c.config.variant == name] for name in (variant, other))
        if len(mine) == len(theirs) == 1 and (value := _difference(mine[0], theirs[0], measure)) is not None:
            found.append(Claim(text, value, _verdict(value, sign)))
    return found


def _difference(mine: LongTailCell, theirs: LongTailCell, measure: str) -> Estimate | None:
    """Over the seeds that both have: they share classes, images and stage 1."""
    beside = {result.config.seed: result.measures[measure] for result in theirs.results}
    pairs = [(result.measures[measure], beside.get(result.config.seed)) for result in mine.results]
    values = [a - b for a, b in pairs if a is not None and b is not None]
    return estimate(values) if values else None


def _verdict(value: Estimate, sign: int) -> str:
    if value.interval is None:
        return "one seed, so not known"
    if abs(value.mean) <= value.interval:
        return "not settled, the interval holds 0"
    return "holds" if value.mean * sign > 0 else "does not hold"
