"""What all engines share: the job (where runs are carried out), the observer of the runs, and their outcomes."""

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ocil.engines.names import Engine
from ocil.errors import OcilError
from ocil.runs.protocol import Event as Event
from ocil.runs.protocol import Interrupted, Progress, Run, RunKey, Workspace
from ocil.runs.protocol import Outcome as Outcome


@dataclass(frozen=True)
class Job:
    """Where runs are carried out: folder, device, workers."""

    root: Path
    device: str
    data_dir: Path | None = None
    workers: int = 0
    """How many runs go on at a time; with 0 the engine chooses."""
    threads: int = 1
    """CPU threads per run. Results depend on it in the last digits."""
    checkpoint_seconds: float = 30.0
    engine: Engine = "local"
    address: str | None = None
    """HOST:PORT of a Ray cluster; by default the one that this machine belongs to."""
    gpu_share: float = 1.0
    """The share of a GPU that each worker on a cluster takes: below 1, several workers share one."""

    def workspace(self, interleaved: bool = False) -> Workspace:
        device = torch.device(self.device)
        return Workspace(self.root, device, self.data_dir, self.threads, self.checkpoint_seconds, interleaved)


@dataclass(frozen=True)
class Observer:
    """Who watches the runs of a job, and may stop them."""

    on_event: Callable[[Run, Event], None] = lambda run, event: None
    """Called with each progress and once with the outcome of a run, also for the runs that others require."""
    should_stop: Callable[[], bool] = lambda: False
    """Once it returns True, the runs under way save and raise ``Interrupted``, and no other is begun."""


class WarningsOfRuns:
    """Keeps what runs warn of, each text once. ``on_first`` is called with a text as soon as it is there."""

    def __init__(self, on_first: Callable[[str], None] = lambda text: None) -> None:
        self.on_first = on_first
        self.texts: list[str] = []

    def on_event(self, run: Run, event: Event) -> None:
        if isinstance(event, Progress) and event.warning and event.warning not in self.texts:
            self.texts.append(event.warning)
            self.on_first(event.warning)


Outcomes = dict[RunKey, Outcome]
RunAll = Callable[[Sequence[Run], Job, Observer], Outcomes]
"""Carries out runs that are not finished and require nothing. If one fails, its outcome is the exception; the others go
on."""


def not_started(runs: Iterable[Run]) -> Outcomes:
    return {run.key: Interrupted("not started") for run in runs}


class RunQueue:
    """Runs that wait for an engine, and the outcomes of all of them so far."""

    def __init__(self, runs: Sequence[Run], observer: Observer) -> None:
        self.observer, self.waiting = observer, deque(runs)
        self.outcomes = not_started(runs)

    def settle(self, run: Run, outcome: Outcome) -> None:
        self.outcomes[run.key] = outcome
        self.observer.on_event(run, outcome)


def without_locals(error: Exception) -> Exception:
    """The error without the local variables of its traceback, which would keep a network, its memory and its images
    alive as long as the outcome is kept."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:  # an error may be its own cause: raise error from error
        seen.add(id(cause))
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    return error


def look_up(runs: Iterable[Run], job: Job, observer: Observer) -> Outcomes:
    """The outcomes of the runs that are finished or whose result cannot be read: there is nothing to start."""
    known: Outcomes = {}
    for run in runs:
        try:
            outcome: Outcome | None = run.result(job.root)
        except OcilError as error:
            outcome = error
        if outcome is not None:
            known[run.key] = outcome
            observer.on_event(run, outcome)
    return known


def in_order(run_all: RunAll, runs: Sequence[Run], job: Job, observer: Observer) -> Outcomes:
    """Look up what is finished, carry out what the others require, then the others.

    If a run fails, so do those that require it. If it was stopped, they have not begun.
    """
    outcomes = look_up(runs, job, observer)
    rest = [run for run in runs if run.key not in outcomes]
    required: dict[RunKey, Run] = {}
    for run in rest:
        for needed in run.requires():
            required.setdefault(needed.key, needed)  # the first that requires it gives its name to messages
    if required:
        found = in_order(run_all, list(required.values()), job, observer)
        for run in rest.copy():
            failed = [error for needed in run.requires() if isinstance(error := found[needed.key], Exception)]
            if failed:
                outcomes[run.key] = failed[0]
                if not isinstance(failed[0], Interrupted):
                    observer.on_event(run, failed[0])
                rest.remove(run)
    return outcomes | run_all(rest, job, observer) if rest else outcomes
