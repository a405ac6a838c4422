"""Carries out runs for a command: live progress, Ctrl-C, and messages for runs that fail."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ocil.cli import console
from ocil.errors import OcilError, WriteError

if TYPE_CHECKING:
    from ocil.cli.options import Execution
    from ocil.cli.progress import Display
    from ocil.engines.job import Event, Job, Outcomes
    from ocil.runs.protocol import Run

R = TypeVar("R", bound="Run")
STOPPED = "Stopped: the same command goes on from what was last saved."
ECHO_SECONDS = 0.5  # a signal that comes sooner after the first one is the same request


def execute(
    runs: "Sequence[R]",
    job: "Job",
    display: "Display",
    execution: "Execution",
    describe: "Callable[[R, Exception], str]" = lambda run, error: str(error),
) -> "tuple[Outcomes, list[str]]":
    """Carry out runs with live progress. Returns their outcomes by key, and one message per failure.

    All stop if a folder cannot be written to. After Ctrl-C the runs under way are saved first.
    """
    from ocil import engines
    from ocil.cli.features import compute_for
    from ocil.engines.job import Observer, WarningsOfRuns
    from ocil.runs.protocol import Interrupted
    from ocil.runs.trackers import tracking

    unwritable, heard = False, WarningsOfRuns(console.warning)
    with stop_when_asked() as stopped:
        try:
            compute_for(runs, job, stopped)
        except Interrupted:
            console.info(STOPPED)
            raise KeyboardInterrupt from None
    with stop_when_asked() as stopped, tracking(execution.trackers, job.root, console.warning) as track, display:

        def on_event(run: "Run", event: "Event") -> None:
            nonlocal unwritable
            unwritable = unwritable or isinstance(event, WriteError)
            display.on_event(run, event)
            heard.on_event(run, event)
            track(run, event)

        outcomes = engines.execute(runs, job, Observer(on_event, lambda: unwritable or stopped()))
    errors: dict[int, str] = {}  # if a run that others require fails, they share its error, which is printed once
    for run in runs:
        outcome = outcomes[run.key]
        if isinstance(outcome, WriteError):
            raise outcome
        if isinstance(outcome, OcilError):
            errors.setdefault(id(outcome), describe(run, outcome))
    _warn_of_changed_code(outcomes, job)
    for message in errors.values():
        console.error(message)
    if any(isinstance(outcome, Interrupted) for outcome in outcomes.values()):
        console.info(STOPPED)
        raise KeyboardInterrupt
    return outcomes, list(errors.values())


def _warn_of_changed_code(outcomes: "Outcomes", job: "Job") -> None:
    """Name the cells that were finished before by a method or network whose code has changed since, each one once."""
    from ocil.runs.program_code import changed_code
    from ocil.runs.results import Result

    results = [outcome for outcome in outcomes.values() if isinstance(outcome, Result)]
    former = {result.config.cell: changed for result in results if (changed := changed_code(result))}
    for cell, changed in former.items():
        console.warning(
            f"the code of {changed} has changed since runs in {job.root / cell} were finished: their results are the "
            "former ones. Delete that folder, or give another --out, to run them again."
        )


@contextmanager
def stop_when_asked() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C, or SIGTERM as a scheduler sends it, asks runs to save and stop; a second one stops at once.

    ``timeout`` and schedulers signal a process and then its group, so the first one may come twice in a moment.
    """
    asked_at: float | None = None
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def ask(number: int, _: Any) -> None:
        nonlocal asked_at
        if asked_at is None:
            asked_at = time.monotonic()
            os.write(2, b"Saving; once more stops at once.\n")  # not print: that may be in the middle of a line
        elif time.monotonic() - asked_at > ECHO_SECONDS:
            signal.signal(number, usual[signal.Signals(number)])
            signal.raise_signal(number)

    before = {number: signal.signal(number, ask) for number in usual}
    try:
        yield lambda: asked_at is not None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
