"""Live progress of many runs: bars on a terminal, a line a finished run elsewhere."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ocil.config import RunConfig
from ocil.metrics import accuracy_curve
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
            if self.live:
                self.show(number, event)
            return
        self.finished += 1
        if isinstance(event, Result):
            seconds = f"{event.wall_seconds:.1f} s"
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
