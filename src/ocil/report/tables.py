"""Summaries as rows of text."""

from collections.abc import Sequence
from pathlib import Path

from ocil.metrics import Estimate
from ocil.results import Summary
from ocil.text import escaped

COLUMNS = ("method", "memory", "accuracy %", "forgetting %", "intransigence %", "time / run")


def percent(value: Estimate | None) -> str:
    """``42.3 ± 0.4``; without an interval where there is one seed."""
    if value is None:
        return "-"
    if value.interval is None:
        return f"{100 * value.mean:z.1f} (one seed)"
    return f"{100 * value.mean:z.1f} ± {100 * value.interval:.1f}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def heading(summaries: Sequence[Summary]) -> str:
    """``cifar100, 10 seeds (mean ± 95 % interval)``"""
    seeds = max(len(summary.average_accuracy.values) for summary in summaries)
    spread = f"{seeds} seeds (mean ± 95 % interval)" if seeds > 1 else "one seed, so no interval"
    return f"{escaped(Path(summaries[0].config.dataset).stem)}, {spread}"


def row(summary: Summary) -> tuple[str, ...]:
    config = summary.config
    return (
        config.label,
        str(config.learner.memory or "-"),
        percent(summary.average_accuracy),
        percent(summary.average_forgetting),
        percent(summary.average_intransigence),
        duration(summary.wall_seconds.mean),
    )


def markdown(summaries: Sequence[Summary]) -> str:
    lines = [heading(summaries), "", "| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += ["| " + " | ".join(row(summary)) + " |" for summary in summaries]
    return "\n".join(lines) + "\n"
