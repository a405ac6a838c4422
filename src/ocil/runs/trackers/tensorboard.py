"""Runs in TensorBoard: one set of curves per run, written by the observer's process from the events of the runs."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocil.errors import optional
from ocil.runs.folder import make_folder
from ocil.runs.protocol import Event, Progress, Run, RunKey
from ocil.runs.results import evaluation_curves
from ocil.runs.trackers.curves import CurvePoint, by_batch, counts_groups


def open_tracker(where: str, root: Path) -> "Scalars":
    """``where``: the folder, by default ``tensorboard`` in the folder of the runs."""
    with optional("--track tensorboard needs a package", "tensorboard", "tensorboard", "torch.utils.tensorboard"):
        writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    folder = Path(where).expanduser() if where else root / "tensorboard"
    make_folder(folder)
    return Scalars(folder, writer)


class Scalars:
    """Writes events under ``folder``, in one folder per run, named as the run's own.

    While a run learns, by stream batches or epochs: the accuracy so far, the last losses of stream, review and
    rehearsal, each on its own, and the parts of each. After each group: accuracy by group, mean weights and logits of
    old and new classes and the sample types, by the number of groups shown.
    """

    def __init__(self, folder: Path, writer: Any) -> None:
        self.folder, self.writer = folder, writer
        self.open: dict[RunKey, Curves] = {}

    def on_event(self, run: Run, event: Event) -> None:
        path = run.folder(self.folder).path
        if isinstance(event, Progress):
            if run.key not in self.open:
                self.open[run.key] = Curves(path, self.writer, event.done, len(event.evaluations))
            self.open[run.key].add_progress(event)
            return
        curves = self.open.pop(run.key, None)
        if not isinstance(event, Exception):
            if curves is None and not has_events(path):  # finished before, and not yet shown
                curves = Curves(path, self.writer)
            if curves is not None:
                curves.add(event.curves)
        if curves is not None:
            curves.writer.close()

    def close(self) -> None:
        for curves in self.open.values():
            curves.writer.close()
        self.open.clear()


class Curves:
    """The scalars of one run. Those that an earlier process wrote after the checkpoint it goes on from are removed.

    TensorBoard can only remove what comes after a step, but some scalars count batches and others groups. So all are
    removed, and those that remain valid are written again.
    """

    def __init__(self, path: Path, writer: Any, done: int = 0, evaluations: int = 0) -> None:
        """``done``: batches or epochs of the run. ``evaluations``: groups that were evaluated."""
        kept = written(path) if has_events(path) else []
        self.begun, self.last = done, dict[str, int]()
        self.writer = writer(path, purge_step=0)
        for point in kept:
            if point.step <= (evaluations if counts_groups(point.tag) else done):
                self.write(point)

    def write(self, point: CurvePoint) -> None:
        self.writer.add_scalar(point.tag, point.value, point.step, point.time)
        self.last[point.tag] = point.step

    def add(self, points: Iterator[tuple[str, int, float]]) -> None:
        """Write the points that come after the last one of their curve."""
        for tag, step, value in points:
            if step > self.last.get(tag, 0):
                self.write(CurvePoint(tag, step, value))

    def add_progress(self, event: Progress) -> None:
        if event.done > self.begun:
            self.add((tag, event.done, value) for tag, value in by_batch(event))
        self.add(evaluation_curves([evaluation.to_json() for evaluation in event.evaluations]))


def has_events(path: Path) -> bool:
    return any(path.glob("events.*"))


def written(path: Path) -> list[CurvePoint]:
    """Every scalar in a run's folder."""
    reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events: Any = reading.EventAccumulator(str(path), {reading.SCALARS: 0})  # 0: all of them
    events.Reload()
    return [
        CurvePoint(tag, event.step, event.value, event.wall_time)
        for tag in events.Tags()[reading.SCALARS]
        for event in events.Scalars(tag)
    ]
