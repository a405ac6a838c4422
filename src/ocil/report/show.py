"""One cell, or one run of it, on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ocil.evaluation import measures
from ocil.evaluation.measures import MEASURES, estimate_json
from ocil.report.cells import MeasuredCell, settings_text
from ocil.report.comparison import difference, overlap, published_accuracy
from ocil.report.formatting import duration, measured, percent, points, published_percent, versions
from ocil.report.papers import Paper
from ocil.report.records import shared_points
from ocil.report.table import Row, Table, columns, verdict
from ocil.report.terminal_table import terminal
from ocil.runs.results import measures_json
from ocil.text import escaped, number_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # dark to light, evenly
WIDEST = 50  # blocks of a curve in one line
BLOCKS = "▁▂▃▄▅▆▇█"
ABOVE = ("average_accuracy", "average_forgetting", "average_forgetting_common", "wall_seconds")
"""Measures that have lines of their own."""
BIAS = ("mean_weight_old", "mean_weight_new", "mean_logit_old", "mean_logit_new", "hard", "ambiguous", "easy")


def summary_json(cell: MeasuredCell, paper: Paper) -> dict[str, Any]:
    """All that ``ocil show`` prints, with more digits."""
    config, summary, published = cell.config, cell.summary, published_accuracy(cell, paper)
    names = ("average_accuracy", "average_forgetting", "average_forgetting_common", "average_intransigence")
    interval = published.interval / 100 if published and published.interval is not None else None
    return {
        "cell": cell.name,
        "method": config.label,
        "dataset": config.dataset,
        "memory": cell.column.memory,
        "command": cell.command,
        "changed": cell.changed,
        "config": {name: value for name, value in config.to_json().items() if name != "seed"},
        "published": published and {"mean": published.mean / 100, "interval": interval},
        "overlap": overlap(summary.average_accuracy, published),
        **{name: estimate_json(getattr(summary, name)) for name in (*names, "wall_seconds")},
        "accuracy_curve": [estimate_json(point) for point in summary.accuracy_curve],
        **measures_json(summary),
        "matrix": mean_matrix(cell).tolist(),
        "runs": [run.result.to_json() | {"path": str(run.path)} for run in cell.runs],
    }


def mean_matrix(cell: MeasuredCell) -> NDArray[np.float64]:
    return np.asarray(np.mean([run.result.matrix for run in cell.runs], axis=0))


def renderables(cell: MeasuredCell, paper: Paper) -> list["RenderableType"]:
    """What to print, top to bottom; the command comes after it. Names from files are ``Text``, never markup."""
    from rich.text import Text

    seeds = [run.result.config.seed for run in cell.runs]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    parts: list[RenderableType] = [
        Text(escaped(f"{cell.label} on {cell.column.title}, {which}"), style="bold"),
        _facts(cell, paper),
        Text(),
        Text("accuracy % by task (columns) after each task (rows), and the mean so far", style="bold"),
        *triangle(mean_matrix(cell)),
        Text(),
        Text(f"curve  {sparkline([point.mean for point in cell.summary.accuracy_curve])}"),
        *_anytime(cell),
        Text(),
        *_bias(cell),
    ]
    if len(seeds) > 1:
        parts += [_seeds(cell), Text()]
    return [*parts, Text("settings", style="bold"), *_settings(cell), Text(), Text("command", style="bold")]


def _facts(cell: MeasuredCell, paper: Paper) -> "RenderableType":
    from rich.table import Table as TerminalTable
    from rich.text import Text

    summary, published = cell.summary, published_accuracy(cell, paper)
    accuracy = summary.average_accuracy
    first = cell.runs[0].result
    facts = {"accuracy %": percent(accuracy)}
    if published is not None:
        change = f"{points(difference(accuracy, published))} {verdict(overlap(accuracy, published))}".strip()
        facts["published %"] = f"{published_percent(published)}, difference {change}"
    common, intransigence = percent(summary.average_forgetting_common), summary.average_intransigence
    facts["forgetting %"] = f"{percent(summary.average_forgetting)} (over T tasks: {common})"
    facts["intransigence %"] = percent(intransigence) if intransigence else "- (no fine-tuned run next to it)"
    on = cell.config.stream.evaluate_on
    for name, found in summary.measures.items():
        if name not in ABOVE and (found is not None or not MEASURES[name].is_ours):
            part = f" on {on:,} test images" if on and MEASURES[name].needs == "evaluate_every" else ""
            facts[MEASURES[name].title] = measured(found, MEASURES[name].format) + part
    facts["time / run"] = duration(summary.wall_seconds.mean)
    facts["device"] = cell.devices
    facts["versions"] = versions(first.environment) or "-"
    peak = [f"{name} {size / 2**20:.0f} MiB" for name, size in first.peak_memory.items() if isinstance(size, int)]
    facts["peak memory"] = ", ".join(peak) or "-"
    if len(cell.runs) == 1:
        facts["digest"] = first.digest or "-"
    table = TerminalTable.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(escaped(value)))
    return table


def triangle(matrix: NDArray[np.float64]) -> list["Text"]:
    """Accuracies in percent; classes that were not shown yet are dots. A mixed stream has one row, without dots."""
    from rich.text import Text

    rows, columns = matrix.shape
    curve = measures.accuracy_curve(matrix)
    lines = [Text("      " + "".join(f"{number + 1:>4}" for number in range(columns)) + "   mean", style="dim")]
    for number, row in enumerate(matrix):
        line = Text(f"{number + 1:>5} ", style="dim")
        for group, value in enumerate(row):
            shown = group <= number or rows != columns
            line.append(f"{100 * value:>4.0f}" if shown else "   ·", style=colour(value) if shown else "dim")
        line.append(f"  {100 * curve[number]:>5.1f}", style="bold")
        lines.append(line)
    return lines


def colour(value: float) -> str:
    """A background from dark (0) to light (1), and letters that can be read on it."""
    place = min(max(value, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    r, g, b = (round(a + (place - low) * (c - a)) for a, c in zip(RAMP[low], RAMP[low + 1], strict=True))
    light = 0.2126 * (r / 255) ** 2.2 + 0.7152 * (g / 255) ** 2.2 + 0.0722 * (b / 255) ** 2.2
    letters = "black" if light > 0.18 else "white"  # where both have the same contrast
    return f"{letters} on rgb({r},{g},{b})"


def sparkline(values: Sequence[float]) -> str:
    """``▇▅▄▄  70.1 → 42.0 %``, from zero to the largest value."""
    top = max(values) or 1.0
    bars = "".join(BLOCKS[round((len(BLOCKS) - 1) * value / top)] for value in values)
    return f"{bars}  {number_text(values[0], 'percent')} → {number_text(values[-1], 'percent')} %"


def _anytime(cell: MeasuredCell) -> list["Text"]:
    """Accuracy every so many batches, on the classes that have arrived: the mean over seeds."""
    from rich.text import Text

    if not (found := shared_points(cell.anytime)):
        return []
    means, record = np.mean(list(found.values()), axis=1), cell.runs[0].result.anytime
    few = means[np.linspace(0, len(means) - 1, min(len(means), WIDEST)).round().astype(int)]
    lowest = percent(cell.summary.measures.get("lowest_anytime_accuracy")).removesuffix(" (one seed)")
    subset = record.get("subset")
    on = f" on {subset:,} of the test images" if subset else ""
    every = f"every {record['every']} batches{on}"
    return [Text(f"{every}  {sparkline(few.tolist())}, lowest {lowest} %")]


def _bias(cell: MeasuredCell) -> list["RenderableType"]:
    from rich.text import Text

    evaluations = [run.result.evaluations for run in cell.runs]
    known = any(each.get(name) is not None for each in evaluations[0] for name in BIAS)
    if not known or len(set(map(len, evaluations))) > 1:
        return []
    heads = columns("after", "weight old", "new", "logit old", "new", "hard", "ambiguous", "easy")
    formats = ("z.3f",) * 4 + (".0f",) * 3
    rows = (
        Row.of(number, *(format(v, form).replace("nan", "-") for v, form in zip(values, formats, strict=True)))
        for number, values in enumerate(zip(*map(cell.over_seeds, BIAS), strict=True), 1)
    )
    title = Text("old and new classes, training samples of the new ones", style="bold")
    return [title, terminal(Table("", heads, tuple(rows))), Text()]


def _seeds(cell: MeasuredCell) -> "RenderableType":
    rows = []
    for run in cell.runs:
        result = run.result
        forgetting = measures.average_forgetting(result.matrix)
        rows.append(
            Row.of(
                result.config.seed,
                number_text(100 * measures.average_accuracy(result.matrix), ".2f"),
                "-" if forgetting is None else number_text(100 * forgetting, ".2f"),
                duration(result.wall_seconds),
                run.device,
                result.digest[:12],
            )
        )
    return terminal(Table("", columns("seed", "accuracy %", "forgetting %", "time", "device", "digest"), tuple(rows)))


def _settings(cell: MeasuredCell) -> list["Text"]:
    from rich.text import Text

    content = cell.config.to_json()
    rest = {k: v for k, v in (content["stream"] | content["learner"]).items() if k not in cell.changed}
    return [
        Text(escaped(f"changed: {settings_text(cell.changed) or 'none'}")),
        Text(escaped(f"as usual: {settings_text(rest)}"), style="dim"),
    ]
