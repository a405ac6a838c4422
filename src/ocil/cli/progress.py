"""Live progress of many runs: bars or a table on a terminal, one line per finished run elsewhere."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ocil.cli import console
from ocil.data.derived import short_name
from ocil.engines.job import Event
from ocil.evaluation.measures import average_accuracy, mean_of
from ocil.experiments.estimate import Forecast, roughly
from ocil.experiments.files import Cell
from ocil.report.terminal_table import literal
from ocil.runs.config import RunConfig
from ocil.runs.protocol import Interrupted, Progress, Run, RunKey
from ocil.runs.results import Result
from ocil.runs.stream_run import StreamRun
from ocil.text import number_text

NARROW = 80
"""On a terminal with fewer columns than this, a run has no bar: its share and the time left would be cut off."""
LINE_SECONDS = 10.0
"""Without a terminal, runs that go on are named at this interval."""
SETTLING_SECONDS = 5.0
"""A pace that was measured for so long counts as much as the forecast: the first steps of a process are slow."""
REFERENCES = (
    "(reference): fine-tuning on the same stream, which intransigence is measured against. It is run only once."
)


class Display:
    """Shows the events of runs on standard error."""

    def __init__(self) -> None:
        self.console = console.stderr()
        self.live: Bars | Live
        self.finished = 0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def on_event(self, run: Run, event: Event) -> None:
        raise NotImplementedError


def _outcome(event: Event) -> str:
    if isinstance(event, Progress | Exception):
        return "stopped" if isinstance(event, Interrupted) else "failed"
    return f"{event.headline}   {event.wall_seconds:.1f} s"


def _state(progress: Progress) -> str:
    loss = "" if progress.loss is None else f"loss {progress.loss:.2f}"
    return loss + ("" if progress.accuracy is None else f"  acc {100 * progress.accuracy:.1f} %")


class RunBars(Display):
    """One bar per run under way. ``references``: runs that others are only compared with.

    Runs that are not among ``runs`` are required by them: their bars are shown, but their outcomes are not.
    """

    def __init__(self, runs: Sequence[Run], references: Collection[RunKey] = ()) -> None:
        super().__init__()
        self.names = {run.key: run.name + (" (reference)" if run.key in references else "") for run in runs}
        self.references = bool(references)
        self.said = time.monotonic()
        share = TextColumn("{task.percentage:>3.0f} %")
        left = TimeRemainingColumn(compact=True, elapsed_when_finished=True)
        bar, state = BarColumn(bar_width=12), TextColumn("{task.fields[state]:<24}")
        wide = (TextColumn("{task.description:<28}"), bar, share, state, left)
        narrow = (TextColumn("{task.description}"), share, left)
        self.live = self.bars = Bars(*(narrow if self.console.width < NARROW else wide), console=self.console)
        self.tasks: dict[RunKey, TaskID] = {}
        self.begun: set[RunKey] = set()
        self.all = self.bars.add_task("all runs", total=len(self.names), state="")

    def __enter__(self) -> Self:
        if self.references:
            self.console.print(REFERENCES, markup=False, highlight=False, soft_wrap=True)
        return super().__enter__()

    def on_event(self, run: Run, event: Event) -> None:
        name = self.names.get(run.key, run.name)
        if isinstance(event, Progress):
            self.begun.add(run.key)
            if self.console.is_terminal:
                self.show(run.key, name, event)
            elif time.monotonic() - self.said >= LINE_SECONDS:
                self.said = time.monotonic()
                share = 100 * event.done / max(1, event.total)
                self.console.print(f"{name}: {share:.0f} %   {_state(event)}".rstrip(), markup=False, soft_wrap=True)
            return
        if run.key in self.tasks:
            self.bars.remove_task(self.tasks.pop(run.key))
        if run.key not in self.names:
            return
        self.finished += 1
        before = "" if run.key in self.begun or isinstance(event, Exception) else ", finished before"
        self.console.print(f"[{self.finished}/{len(self.names)}] {name:<28} {_outcome(event)}{before}", markup=False)
        self.said = time.monotonic()
        self.bars.update(self.all, completed=self.finished)

    def show(self, key: RunKey, name: str, progress: Progress) -> None:
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(name, total=progress.total, state="")
        self.bars.update(self.tasks[key], completed=progress.done, state=_state(progress))


class CellTable(Display):
    """One row per cell. ``seconds`` is how long each run is expected to take, ``expected`` how long all of them.

    The time left follows from the forecast at first, and then from how fast the expected work is done. ``known``: runs
    that are finished already.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        runs: Sequence[Run],
        seconds: Sequence[float],
        expected: float,
        known: Collection[RunKey] = (),
    ) -> None:
        super().__init__()
        self.seconds = {run.key: each for run, each in zip(runs, seconds, strict=True)}
        self.rows = [_CellRow(cell.label, _data_label(cell.config), len(cell.configs)) for cell in cells]
        keys = [[StreamRun(config).key for config in cell.configs] for cell in cells]
        self.row_of = {key: row for of_cell, row in zip(keys, self.rows, strict=True) for key in of_cell}
        self.references = _CellRow("references", "", sum(run.key not in self.row_of for run in runs))
        self.known = set(known)
        self.total = len(runs) - len(self.known)
        self.parts = {run.key: 0.0 for run in runs if run.key not in self.known}
        self.before: dict[RunKey, float] = {}  # share of a run that was done at its first event
        self.stopped = False
        self.started = self.said = time.monotonic()
        self.working_since: float | None = None  # processes load PyTorch first, for seconds in which no run goes on
        self.forecast_pace = expected / (sum(self.seconds[key] for key in self.parts) or 1.0)
        self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=2, transient=True)

    @classmethod
    def of(cls, forecast: Forecast, runs: Sequence[StreamRun] | None = None) -> Self:
        """The table of a plan, or of some of its runs: then of their cells."""
        plan = forecast.plan
        chosen = plan.runs if runs is None else runs
        configs = {run.config for run in chosen}
        parts = [replace(c, configs=tuple(one for one in c.configs if one in configs)) for c in plan.cells]
        seconds = dict(zip(plan.configs, forecast.each, strict=True))
        known = {run.key for run in chosen if run.config in plan.state.finished}
        each = [seconds[run.config] for run in chosen]
        return cls([c for c in parts if c.configs], chosen, each, forecast.seconds([*configs]), known)

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        if self.known:
            are = "1 run is" if len(self.known) == 1 else f"{len(self.known)} runs are"
            self.console.print(f"{are} finished already.", markup=False, highlight=False)
        return super().__enter__()

    def on_event(self, run: Run, event: Event) -> None:
        key, row = run.key, self.row_of.get(run.key, self.references)
        if isinstance(event, Progress):
            if self.working_since is None:
                self.working_since = time.monotonic()
            row.running.add(key)
            share = event.done / max(1, event.total)
            self.before.setdefault(key, share)
            self.parts[key] = share
            if not self.console.is_terminal and time.monotonic() - self.said >= 6 * LINE_SECONDS:
                self.say(f"{len(self.begun_now)} running   {self.time_left()}")
            return
        row.running.discard(key)
        if isinstance(event, Result):
            row.accuracies.append(average_accuracy(event.matrix))
        else:
            row.failed += not isinstance(event, Interrupted)
        if key in self.known:
            return
        self.finished += 1
        if isinstance(event, Result):
            self.parts[key] = 1.0
            if self.working_since is None:  # nobody has seen it go on
                self.working_since = self.started
        else:  # the run counts neither as work done nor as work to come
            self.parts.pop(key, None)
            self.stopped = self.stopped or isinstance(event, Interrupted)
        if not self.console.is_terminal:
            what = f"reference {short_name(run.dataset)}" if row is self.references else f"{row.label} {row.data}"
            self.say(f"{what} seed {run.seed}   {_outcome(event)}   {self.time_left()}")

    @property
    def begun_now(self) -> set[RunKey]:
        return set[RunKey]().union(*(row.running for row in (*self.rows, self.references)))

    def say(self, text: str) -> None:
        """One line on standard error, where there is no terminal for a live table."""
        self.said = time.monotonic()
        line = f"[{self.finished}/{self.total}] {text}".rstrip()
        self.console.print(literal(line), highlight=False, soft_wrap=True)

    def time_left(self) -> str:
        """Estimated from the pace so far and from the forecast, which counts less and less."""
        parts = list(self.parts.items())
        gone = sum(self.seconds[key] * (part - self.before.get(key, 0.0)) for key, part in parts)
        to_come = sum(self.seconds[key] * (1.0 - part) for key, part in parts)
        if self.stopped or not to_come:
            return "" if self.stopped else "done"
        return f"about {roughly(to_come * self.pace(gone))} left"

    def pace(self, gone: float) -> float:
        """Seconds per second of expected work, of which ``gone`` is done."""
        elapsed = time.monotonic() - (self.started if self.working_since is None else self.working_since)
        if gone <= 0 or elapsed <= 0 or self.forecast_pace <= 0:
            return self.forecast_pace
        trust = elapsed / (elapsed + SETTLING_SECONDS)
        return float(self.forecast_pace ** (1 - trust) * (elapsed / gone) ** trust)

    def table(self) -> Group:
        """The cells that are running or have failures, then those that ended last; as many rows as fit."""
        rows = [*self.rows, *([self.references] if self.references.runs else [])]
        busy = [row for row in rows if row.is_busy]
        ended = [row for row in rows if row.done and not row.is_busy]
        table = Table("row", "", "done", "running", "failed", "accuracy %", box=None, padding=(0, 2, 0, 0))
        for row in (busy + ended[::-1])[: max(1, self.console.height - 4)]:
            table.add_row(*row.texts)
        states = [
            f"{sum(row.done == row.runs for row in self.rows)} cells done",
            f"{sum(bool(row.running) for row in self.rows)} running",
            f"{sum(bool(row.failed) for row in self.rows)} with failures",
            f"{sum(row.done < row.runs and not row.is_busy for row in self.rows)} waiting",
        ]
        parts = (", ".join(states), f"runs {self.finished}/{self.total}", self.time_left())
        return Group(table, Text("; ".join(filter(None, parts))))


class _CellRow:
    def __init__(self, label: str, data: str, runs: int) -> None:
        self.label, self.data, self.runs = label, data, runs
        self.running: set[RunKey] = set()
        self.failed = 0
        self.accuracies: list[float] = []

    @property
    def done(self) -> int:
        return len(self.accuracies)

    @property
    def is_busy(self) -> bool:
        """Whether some of its runs go on or have failed."""
        return bool(self.running or self.failed)

    @property
    def texts(self) -> tuple[Text | str, ...]:
        """What the table shows of it, by column."""
        mean = number_text(mean_of(self.accuracies), "percent") if self.done else ""
        counts = (f"{self.done}/{self.runs}", str(len(self.running) or ""), str(self.failed or ""))
        return literal(self.label), literal(self.data), *counts, mean


def _data_label(config: RunConfig) -> str:
    """``cifar100 m5000``"""
    memory = f" m{config.learner.memory}" if config.learner.memory else ""
    return f"{short_name(config.dataset)}{memory}"
