"""Runs that another process works on: they are carried out last, once that process has let them go."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ocil.engines.job import Event, Job, Observer, Outcomes, RunAll
from ocil.errors import InUseError
from ocil.files import is_locked
from ocil.runs.protocol import Interrupted, Run, RunKey

LOCK_POLL_SECONDS = 1.0  # between two looks at whether another process still holds a run

log = logging.getLogger(__name__)


def with_waiting(run_all: RunAll, runs: Sequence[Run], job: Job, observer: Observer) -> Outcomes:
    """Carry out runs. One that another process holds has not failed: once it is free, its result is there, or it goes
    on here.
    """

    def on_event(run: Run, event: Event) -> None:
        if _held_in(event) is None:
            observer.on_event(run, event)

    outcomes: Outcomes = {}
    held: dict[RunKey, Path] = {}
    now, announced = list(runs), False
    while now:
        outcomes |= run_all(now, job, replace(observer, on_event=on_event))
        held |= {run.key: folder for run in now if (folder := _held_in(outcomes[run.key])) is not None}
        if held and not announced and not observer.should_stop():
            log.warning("Another process works on %d of the runs: waiting for it. Ctrl-C stops.", len(held))
            announced = True
        free = _wait_for_some(held, observer.should_stop)
        now = [run for run in runs if run.key in free]
        held = {key: folder for key, folder in held.items() if key not in free}
    for run in runs:
        if run.key in held:
            outcomes[run.key] = Interrupted(f"another process works on {held[run.key]}")
            observer.on_event(run, outcomes[run.key])
    return outcomes


def _held_in(event: Event) -> Path | None:
    """The folder that another process works in, if that is why a run ended."""
    return event.folder if isinstance(event, InUseError) else None


def _wait_for_some(held: Mapping[RunKey, Path], should_stop: Callable[[], bool]) -> set[RunKey]:
    """Wait until some runs are free, and return them. Returns none if none are held or it is to stop."""

    def look() -> set[RunKey]:  # again and again, at many runs perhaps
        return {key for key, folder in held.items() if not is_locked(folder, tries=1)}

    while held and not should_stop():
        free = look()
        if 0 < len(free) < len(held):  # a process that stops gives up its runs one by one, moments apart
            time.sleep(LOCK_POLL_SECONDS)
            free = look()  # a third process may have taken them meanwhile
        if free:
            return free
        time.sleep(LOCK_POLL_SECONDS)
    return set()
