"""One cell, or one run of it, on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ocil import metrics
from ocil.metrics import Estimate
from ocil.report.collect import Cell, memory_of, title_of, written
from ocil.report.comparison import counterpart, difference, overlap
from ocil.report.formats import beside, gap, verdict
from ocil.report.tables import duration, percent
from ocil.text import escaped

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # dark to light, evenly
BLOCKS = "▁▂▃▄▅▆▇█"
BIAS = ("mean_weight_old", "mean_weight_new", "mean_logit_old", "mean_logit_new", "hard", "ambiguous", "easy")


def summary_json(cell: Cell) -> dict[str, Any]:
    """All that ``show`` says, and more digits of it."""

    def numbers(value: Estimate | None) -> dict[str, Any] | None:
        return None if value is None else {"mean": value.mean, "interval": value.interval, "values": list(value.values)}

    config, summary, paper = cell.config, cell.summary, counterpart(cell)
    names = ("average_accuracy", "average_forgetting", "average_forgetting_common", "average_intransigence")
    return {
        "cell": cell.name,
        "method": config.label,
        "dataset": config.dataset,
        "memory": memory_of(config),
        "command": cell.command,
        "changed": cell.changed,
        "config": {name: value for name, value in config.to_json().items() if name != "seed"},
        "published": None if paper is None else {"mean": paper.mean / 100, "interval": paper.interval / 100},
        "overlap": overlap(summary.average_accuracy, paper),
        **{name: numbers(getattr(summary, name)) for name in (*names, "wall_seconds")},
        "accuracy_curve": [numbers(point) for point in summary.accuracy_curve],
        "matrix": mean_matrix(cell).tolist(),
        "runs": [run.result.to_json() | {"path": str(run.path)} for run in cell.runs],
    }


def mean_matrix(cell: Cell) -> NDArray[np.float64]:
    return np.asarray(np.mean([run.result.matrix for run in cell.runs], axis=0))


def renderables(cell: Cell) -> list["RenderableType"]:
    """What to print, top to bottom; the command itself comes after it. Names from files are ``Text``, never markup."""
    from rich.text import Text

    seeds = [run.result.config.seed for run in cell.runs]
    memory = f", memory {memory_of(cell.config)}" if memory_of(cell.config) else ""
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    parts: list[RenderableType] = [
        Text(escaped(f"{cell.config.label} on {title_of(cell.config.dataset)}{memory}, {which}"), style="bold"),
        _facts(cell),
        Text(),
        Text("accuracy % by task (columns) after each task (rows), and the mean so far", style="bold"),
        *triangle(mean_matrix(cell)),
        Text(),
        Text(f"curve  {sparkline([point.mean for point in cell.summary.accuracy_curve])}"),
        Text(),
        *_bias(cell),
    ]
    if len(seeds) > 1:
        parts += [_seeds(cell), Text()]
    return [*parts, Text("settings", style="bold"), *_settings(cell), Text(), Text("command", style="bold")]


def _facts(cell: Cell) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    summary, paper = cell.summary, counterpart(cell)
    accuracy = summary.average_accuracy
    first = cell.runs[0].result
    facts = {"accuracy %": percent(accuracy)}
    if paper is not None:
        points = gap(difference(accuracy, paper))
        facts["published %"] = f"{beside(paper)}, difference {points} {verdict(overlap(accuracy, paper))}".strip()
    facts["forgetting %"] = (
        f"{percent(summary.average_forgetting)} (over T tasks: {percent(summary.average_forgetting_common)})"
    )
    facts["intransigence %"] = (
        percent(summary.average_intransigence) if summary.average_intransigence else "- (no fine-tuned run beside it)"
    )
    facts["time a run"] = duration(summary.wall_seconds.mean)
    facts["device"] = cell.devices
    versions = [f"{n} {first.environment[n]}" for n in ("ocil", "torch", "python") if n in first.environment]
    facts["versions"] = ", ".join(versions) or "-"
    peak = [f"{name} {size / 2**20:.0f} MiB" for name, size in first.peak_memory.items() if isinstance(size, int)]
    facts["peak memory"] = ", ".join(peak) or "-"
    if len(cell.runs) == 1:
        facts["digest"] = first.digest or "-"
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(escaped(value)))
    return table


def triangle(matrix: NDArray[np.float64]) -> list["Text"]:
    """Accuracies in percent; groups not shown yet are dots. What the stream mixes has one row, shown whole."""
    from rich.text import Text

    rows, columns = matrix.shape
    curve = metrics.accuracy_curve(matrix)
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
    return f"{bars}  {100 * values[0]:.1f} → {100 * values[-1]:.1f} %"


def _bias(cell: Cell) -> list["RenderableType"]:
    from rich.table import Table
    from rich.text import Text

    rows = [[e.get(name) for name in BIAS] for e in cell.runs[0].result.evaluations]
    if not any(value is not None for row in rows for value in row):
        return []
    if len(cell.runs) > 1:
        many = [[[_nan(e.get(n)) for n in BIAS] for e in run.result.evaluations] for run in cell.runs]
        if len({len(one) for one in many}) > 1:
            return []
        rows = np.mean(np.array(many, dtype=float), axis=0).tolist()
    heads = ("after", "weight old", "new", "logit old", "new", "hard", "ambiguous", "easy")
    table = Table(*heads, title=Text("old and new classes, training samples of the new ones"), title_justify="left")
    for number, row in enumerate(rows, 1):
        cells = [f"{_nan(v):z.3f}" for v in row[:4]] + [f"{_nan(v):.0f}" for v in row[4:]]
        table.add_row(str(number), *(text.replace("nan", "-") for text in cells))
    return [table, Text()]


def _nan(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _seeds(cell: Cell) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table("seed", "accuracy %", "forgetting %", "time", "device", "digest")
    for run in cell.runs:
        result = run.result
        forgetting = metrics.average_forgetting(result.matrix)
        table.add_row(
            str(result.config.seed), f"{100 * metrics.average_accuracy(result.matrix):.2f}",
            "-" if forgetting is None else f"{100 * forgetting:z.2f}", duration(result.wall_seconds),
            Text(escaped(run.device)), Text(escaped(result.digest[:12])),
        )  # fmt: skip
    return table


def _settings(cell: Cell) -> list["Text"]:
    from rich.text import Text

    content = cell.config.to_json()
    rest = {k: v for k, v in (content["stream"] | content["learner"]).items() if k not in cell.changed}
    return [
        Text(escaped(f"changed: {written(cell.changed) or 'none'}")),
        Text(escaped(f"as usual: {written(rest)}"), style="dim"),
    ]
