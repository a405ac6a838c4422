"""Live progress of many runs: bars on a terminal, a line a finished run elsewhere."""

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ocil.cli.common import plain
from ocil.cli.estimate import roughly
from ocil.config import RunConfig
from ocil.experiments import Cell
from ocil.metrics import accuracy_curve, average_accuracy
from ocil.results import Result
from ocil.runner import Progress as Where


class Board:
    """Hears of every run (``hear``) and shows it on standard error."""

    def __init__(self, configs: Sequence[RunConfig], wanted: set[RunConfig]) -> None:
        self.names = [f"{c.label if c in wanted else 'reference'} seed {c.seed}" for c in configs]
        self.console = Console(stderr=True)
        self.live = self.console.is_terminal
        self.bars = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[state]:<24}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=self.console,
        )
        self.tasks: dict[int, TaskID] = {}
        self.begun: set[int] = set()
        self.finished = 0
        self.all: TaskID | None = None

    def __enter__(self) -> "Board":
        if self.live:
            self.bars.start()
            self.all = self.bars.add_task("all runs", total=len(self.names), state="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.bars.stop()

    def hear(self, number: int, event: Where | Result | Exception) -> None:
        if isinstance(event, Where):
            self.begun.add(number)
            if self.live:
                self.show(number, event)
            return
        self.finished += 1
        if isinstance(event, Result):
            seconds = f"{event.wall_seconds:.1f} s" + ("" if number in self.begun else ", finished before")
            outcome = f"accuracy {100 * accuracy_curve(event.matrix)[-1]:.1f} %   {seconds}"
        else:
            outcome = "stopped" if type(event).__name__ == "Interrupted" else "failed"
        if number in self.tasks:
            self.bars.remove_task(self.tasks.pop(number))
        self.console.print(f"[{self.finished}/{len(self.names)}] {self.names[number]:<20} {outcome}", markup=False)
        if self.all is not None:
            self.bars.update(self.all, completed=self.finished)

    def show(self, number: int, where: Where) -> None:
        if number not in self.tasks:
            self.tasks[number] = self.bars.add_task(self.names[number], total=where.total, state="")
        loss = "" if where.loss is None else f"loss {where.loss:.2f}"
        accuracy = "" if where.accuracy is None else f"  acc {100 * where.accuracy:.1f} %"
        self.bars.update(self.tasks[number], completed=where.done, state=loss + accuracy)


class CellBoard:
    """Shows many cells of several runs each: a live table on a terminal, a line a finished run elsewhere.

    ``seconds`` is what each run is expected to take; how long is left follows from how fast the expected work goes by.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        order: Sequence[RunConfig],
        seconds: Sequence[float],
        expected: float,
        known: Collection[RunConfig] = (),
    ) -> None:
        self.order, self.seconds, self.expected = order, seconds, expected
        self.rows = [_Row(cell.label, _place(cell.config), len(cell.configs)) for cell in cells]
        row_of = {config: row for cell, row in zip(cells, self.rows, strict=True) for config in cell.configs}
        self.references = _Row("references", "", sum(config not in row_of for config in order))
        self.row_of = [row_of.get(config, self.references) for config in order]
        self.known = {number for number, config in enumerate(order) if config in known}
        self.total = len(order) - len(self.known)
        self.parts = {number: 0.0 for number in range(len(order)) if number not in self.known}
        self.finished = 0
        self.stopped = False
        self.started = time.monotonic()
        self.before: dict[int, float] = {}  # share of a run that was done when we first heard of it
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=2, transient=True)

    def __enter__(self) -> "CellBoard":
        self.started = time.monotonic()
        if self.known:
            self.console.print(f"{len(self.known)} runs are finished already.", markup=False, highlight=False)
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def hear(self, number: int, event: Where | Result | Exception) -> None:
        row = self.row_of[number]
        if isinstance(event, Where):
            row.running.add(number)
            share = event.done / max(1, event.total)
            self.before.setdefault(number, share)
            self.parts[number] = share
            return
        row.running.discard(number)
        stopped = type(event).__name__ == "Interrupted"
        if isinstance(event, Result):
            accuracy = average_accuracy(event.matrix)
            row.accuracies.append(accuracy)
            outcome = f"accuracy {100 * accuracy:.1f} %   {event.wall_seconds:.1f} s"
        else:
            row.failed += not stopped
            outcome = "stopped" if stopped else "failed"
        if number in self.known:
            return
        self.finished += 1
        if isinstance(event, Result):
            self.parts[number] = 1.0
        else:  # neither work that was done nor work to come
            self.parts.pop(number, None)
            self.stopped = self.stopped or stopped
        if not self.console.is_terminal:
            name = f"{row.label} {row.place} seed {self.order[number].seed}".replace("  ", " ")
            line = f"[{self.finished}/{self.total}] {name}   {outcome}   {self.time_left()}".rstrip()
            self.console.print(plain(line), highlight=False, soft_wrap=True)

    def time_left(self) -> str:
        """From the pace so far, once there is one; from the estimate before that."""
        gone = sum(self.seconds[n] * (part - self.before.get(n, 0.0)) for n, part in list(self.parts.items()))
        to_come = sum(self.seconds[n] * (1.0 - part) for n, part in list(self.parts.items()))
        elapsed = time.monotonic() - self.started
        if self.stopped or not to_come:
            return "" if self.stopped else "done"
        left = self.expected - elapsed if gone <= 0 else to_come * elapsed / gone
        return f"about {roughly(left)} left"

    def table(self) -> Group:
        """What is running and what failed first, then what ended last; as many rows as fit."""
        rows = [*self.rows, *([self.references] if self.references.runs else [])]
        busy = [row for row in rows if row.running or row.failed]
        ended = [row for row in rows if row.done and row not in busy]
        table = Table("row", "", "done", "running", "failed", "accuracy %", box=None, padding=(0, 2, 0, 0))
        for row in (busy + ended[::-1])[: max(1, self.console.height - 4)]:
            mean = f"{100 * sum(row.accuracies) / len(row.accuracies):.1f}" if row.accuracies else ""
            counts = (f"{row.done}/{row.runs}", str(len(row.running) or ""), str(row.failed or ""))
            table.add_row(plain(row.label), plain(row.place), *counts, mean)
        idle = [row for row in self.rows if row.done < row.runs and not row.running and not row.failed]
        states = [
            f"{sum(row.done == row.runs for row in self.rows)} cells done",
            f"{sum(bool(row.running) for row in self.rows)} running",
            f"{sum(bool(row.failed) for row in self.rows)} with failures",
            f"{len(idle)} waiting",
        ]
        parts = (", ".join(states), f"runs {self.finished}/{self.total}", self.time_left())
        return Group(table, Text("; ".join(filter(None, parts))))


class _Row:
    def __init__(self, label: str, place: str, runs: int) -> None:
        self.label, self.place, self.runs = label, place, runs
        self.running: set[int] = set()
        self.failed = 0
        self.accuracies: list[float] = []

    @property
    def done(self) -> int:
        return len(self.accuracies)


def _place(config: RunConfig) -> str:
    """``cifar100 m5000``"""
    memory = f" m{config.learner.memory}" if config.learner.memory else ""
    return f"{Path(config.dataset).stem}{memory}"
