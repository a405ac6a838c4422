"""The curves of a run, for any tool: which numbers an event has, and which of them are new."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, Protocol

from ocil.runs.protocol import Event, Interrupted, Progress, Run, RunKey
from ocil.runs.results import BY_GROUP, CURVES, evaluation_curves

Ending = Literal["finished", "stopped", "failed"]
"""How a tool shows that a run has ended."""
Axis = Literal["batch", "group"]
"""What the steps of a curve count: stream batches (epochs of a long tail), or the groups shown."""


class CurvePoint(NamedTuple):
    """One number of a curve. ``tag`` is the name of the curve; ``time``: in seconds since 1970, if it is not now."""

    tag: str
    step: int
    value: float
    time: float | None = None


class RunLog(Protocol):
    """One run in a tool."""

    resumed: bool
    """Whether the tool has curves of this run already."""

    def log(self, axis: Axis, step: int, values: dict[str, float]) -> None: ...

    def end(self, ending: Ending) -> None: ...


class RunLogs:
    """A tracker that opens a ``RunLog`` for each run that is carried out. Runs that were finished before are left out.

    What a killed process logged after its last checkpoint is logged a second time by the one that goes on.
    """

    def __init__(self, start: Callable[[Run], RunLog]) -> None:
        self.start = start
        self.open: dict[RunKey, tuple[RunLog, NewPoints]] = {}

    def on_event(self, run: Run, event: Event) -> None:
        if isinstance(event, Progress):
            if run.key not in self.open:
                log = self.start(run)
                self.open[run.key] = log, NewPoints(event.done, len(event.evaluations) if log.resumed else 0)
            log, points = self.open[run.key]
            _write(log, points.of_progress(event))
        elif run.key in self.open:
            log, points = self.open.pop(run.key)
            if isinstance(event, Exception):
                log.end("stopped" if isinstance(event, Interrupted) else "failed")
                return
            _write(log, points.new(event.curves))
            log.end("finished")

    def close(self) -> None:
        for log, _ in self.open.values():
            log.end("stopped")
        self.open.clear()


def _write(log: RunLog, points: Iterable[CurvePoint]) -> None:
    together: dict[tuple[Axis, int], dict[str, float]] = {}
    for point in points:
        axis: Axis = "group" if counts_groups(point.tag) else "batch"
        together.setdefault((axis, point.step), {})[point.tag] = point.value
    for (axis, step), values in together.items():
        log.log(axis, step, values)


class NewPoints:
    """Picks the points that come after the last one of their curve."""

    def __init__(self, done: int, evaluations: int) -> None:
        """``done``: batches or epochs of the run so far. ``evaluations``: groups that are logged already."""
        self.begun, self.evaluations, self.last = done, evaluations, dict[str, int]()

    def new(self, points: Iterable[tuple[str, int, float]]) -> Iterator[CurvePoint]:
        for tag, step, value in points:
            if step > self.last.get(tag, self.evaluations if counts_groups(tag) else 0):
                self.last[tag] = step
                yield CurvePoint(tag, step, value)

    def of_progress(self, event: Progress) -> Iterator[CurvePoint]:
        if event.done > self.begun:
            yield from self.new((tag, event.done, value) for tag, value in by_batch(event))
        yield from self.new(evaluation_curves([evaluation.to_json() for evaluation in event.evaluations]))


def by_batch(event: Progress) -> Iterator[tuple[str, float]]:
    """The scalars whose steps are batches or epochs: accuracy, losses, and the terms of losses."""
    if event.accuracy is not None:
        yield "progress/accuracy", event.accuracy
    losses = {} if event.loss is None else {"stream": event.loss}
    for name, value in {**losses, **event.losses}.items():
        phase, _, part = name.partition("/")
        loss = "loss" if phase == "stream" else f"{phase} loss"
        yield (f"{loss}/{part}" if part else f"progress/{loss}"), value


def counts_groups(tag: str) -> bool:
    """Whether a scalar's steps are groups, not batches."""
    return tag in CURVES.values() or tag.startswith(BY_GROUP)


def identifier(run: Run) -> str:
    """The same for all processes that carry out this run; letters, digits, ``-``, ``_`` and ``.`` only."""
    return re.sub(r"[^\w.-]", "-", f"{run.cell}-seed-{run.seed}", flags=re.ASCII)[-120:]


def settings_of(run: Run) -> dict[str, Any]:
    """Every setting of a run, by name; those of its stream and its method as ``stream.tasks`` and ``learner.lr``."""
    found: dict[str, Any] = {}
    for name, value in run.config.to_json().items():
        parts = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        found |= parts
    return found
