"""Runs in TensorBoard: a line a run, written by the process that watches, from what it hears anyway."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ocil.cli.common import must_be_a_folder
from ocil.config import RunConfig
from ocil.errors import optional
from ocil.results import Result, RunFolder
from ocil.runner import Progress

TAGS = {  # a field of an evaluation and where it is shown
    "mean_logit_old": "logits/old classes",
    "mean_logit_new": "logits/new classes",
    "mean_weight_old": "weights/old classes",
    "mean_weight_new": "weights/new classes",
    "hard": "samples/hard",
    "ambiguous": "samples/ambiguous",
    "easy": "samples/easy",
}

BY_GROUP = "accuracy by group/"

Event = Progress | Result | Exception


class Listener(Protocol):
    def hear(self, number: int, event: Any) -> None: ...


def logged(
    board: AbstractContextManager[Listener], folder: Path | None, configs: Sequence[RunConfig]
) -> AbstractContextManager[Listener]:
    """The board as it is, or one that also writes what it hears to ``folder``."""
    if folder is None:
        return board
    with optional("--tensorboard needs a package", "tensorboard", "tensorboard", "torch.utils.tensorboard"):
        writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
    must_be_a_folder(folder)
    return _both(board, Scalars(folder, configs, writer))


@contextmanager
def _both(board: AbstractContextManager[Listener], scalars: "Scalars") -> Iterator[Listener]:
    with board as shown:
        scalars.shown = shown
        try:
            yield scalars
        finally:
            scalars.close()


class Point(NamedTuple):
    tag: str
    step: int
    value: float
    time: float


def _points(event: Progress) -> Iterator[tuple[str, float]]:
    """What is shown by batches: accuracy, losses, and the parts of losses."""
    if event.accuracy is not None:
        yield "progress/accuracy", event.accuracy
    losses = {} if event.loss is None else {"stream": event.loss}
    for name, value in {**losses, **event.losses}.items():
        phase, _, part = name.partition("/")
        loss = "loss" if phase == "stream" else f"{phase} loss"
        yield (f"{loss}/{part}" if part else f"progress/{loss}"), value


def _by_batch(tag: str) -> bool:
    """Whether a scalar's steps are batches; those of an evaluation are groups."""
    return tag not in TAGS.values() and not tag.startswith(BY_GROUP)


class Scalars:
    """Hears of every run and writes it under ``folder``, one folder a run, named as the run's own.

    While it learns, by stream batches: the accuracy so far, the last losses of stream, review and rehearsal, each on
    its own, and the parts of each. After each group: accuracy by group, mean
    weights and logits of old and new classes and the sample types, by the number of groups shown.
    """

    def __init__(self, folder: Path, configs: Sequence[RunConfig], writer: Any) -> None:
        self.folder, self.configs, self.writer = folder, configs, writer
        self.shown: Listener | None = None
        self.writers: dict[int, Any] = {}
        self.begun: dict[int, int] = {}  # batches of a run when it was first heard of
        self.written: dict[int, int] = {}  # evaluations of a run

    def hear(self, number: int, event: Event) -> None:
        if self.shown is not None:
            self.shown.hear(number, event)
        if isinstance(event, Progress):
            writer = self.open(number, event.done, len(event.evaluations))
            if event.done > self.begun[number]:
                for tag, value in _points(event):
                    writer.add_scalar(tag, value, event.done)
            self.evaluations(number, [evaluation.to_json() for evaluation in event.evaluations])
        elif isinstance(event, Result):
            if number not in self.writers and not self.has_events(number):  # finished before, and not yet shown
                self.open(number, 0, 0)
            if number in self.writers:
                self.evaluations(number, event.evaluations)
        if not isinstance(event, Progress) and number in self.writers:
            self.writers.pop(number).close()

    def path(self, number: int) -> Path:
        return RunFolder.of(self.folder, self.configs[number]).path

    def has_events(self, number: int) -> bool:
        return any(self.path(number).glob("events.*"))

    def open(self, number: int, done: int, evaluations: int) -> Any:
        """The run's writer. What an earlier process wrote beyond the checkpoint it goes on from is taken back.

        TensorBoard can drop only what lies behind a step, which does not do: some scalars count batches and others
        groups. So it drops all, and what holds is written again.
        """
        if number not in self.writers:
            kept = self.kept(number, done, evaluations) if self.has_events(number) else []
            writer = self.writers[number] = self.writer(self.path(number), purge_step=0)
            for point in kept:
                writer.add_scalar(point.tag, point.value, point.step, point.time)
            self.begun[number] = done
            self.written[number] = max((point.step for point in kept if not _by_batch(point.tag)), default=0)
        return self.writers[number]

    def kept(self, number: int, done: int, evaluations: int) -> list["Point"]:
        """What was written of a run's first ``done`` batches and ``evaluations`` groups."""
        reading = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
        events: Any = reading.EventAccumulator(str(self.path(number)), {reading.SCALARS: 0})  # 0: all of them
        events.Reload()
        found = [
            Point(tag, event.step, event.value, event.wall_time)
            for tag in events.Tags()[reading.SCALARS]
            for event in events.Scalars(tag)
        ]
        return [point for point in found if point.step <= (done if _by_batch(point.tag) else evaluations)]

    def evaluations(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        writer = self.writers[number]
        for shown, row in enumerate(rows[self.written[number] :], self.written[number] + 1):
            for group, accuracy in enumerate(row["accuracy"], 1):
                writer.add_scalar(f"{BY_GROUP}{group:02}", accuracy, shown)
            for name, tag in TAGS.items():
                if row[name] is not None:
                    writer.add_scalar(tag, row[name], shown)
        self.written[number] = len(rows)

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()
