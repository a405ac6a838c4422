"""Where the progress of runs is logged for other tools to show: TensorBoard, Weights & Biases, MLflow, Trackio.

``--track NAME`` names a tracker, ``--track NAME=WHERE`` also a folder, project or experiment. Other packages may offer
more of them as entry points of the group ``ocil.trackers``: a function that takes WHERE (empty if it was not given) and
the folder of the runs, and returns a ``Tracker``. Nothing of a tool is imported before it is asked for.

``curves``  which numbers are logged, for any tool
``tensorboard``, ``wandb``, ``mlflow``, ``trackio``  one tool each
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ocil.errors import OcilError
from ocil.plugins import Registry, spelling
from ocil.runs.protocol import Event, Run


class Tracker(Protocol):
    """Where the events of runs go."""

    def on_event(self, run: Run, event: Event) -> None:
        """Called with every event of a run: its progress, and at the end its result or what stopped it."""

    def close(self) -> None:
        """Called once, when all runs have ended or the command is stopped."""


Open = Callable[[str, Path], Tracker]


@dataclass(frozen=True)
class TrackerInfo:
    """The facts about a tracker that are known without importing its tool."""

    name: str
    target: str | Open
    """``module:function`` inside this package, or a function from anywhere."""

    def open(self, where: str, root: Path) -> Tracker:
        if not isinstance(self.target, str):
            return self.target(where, root)
        module, name = self.target.split(":")
        found: Open = getattr(import_module(f"ocil.runs.trackers.{module}"), name)
        return found(where, root)


def _read(name: str, found: Any) -> Iterable[TrackerInfo]:
    if not callable(found):
        raise TypeError("it is not a function that opens a tracker")
    return [TrackerInfo(spelling(name), found)]


_OURS = (
    TrackerInfo("tensorboard", "tensorboard:open_tracker"),
    TrackerInfo("wandb", "wandb:open_tracker"),
    TrackerInfo("mlflow", "mlflow:open_tracker"),
    TrackerInfo("trackio", "trackio:open_tracker"),
)
TRACKERS: Registry[TrackerInfo] = Registry("tracker", "ocil.trackers", _OURS, _read, spelling)


@contextmanager
def tracking(wanted: Sequence[str], root: Path, warn: Callable[[str], None]) -> Iterator[Callable[[Run, Event], None]]:
    """Gives the function to call with every event of a run.

    ``wanted``: words such as ``wandb`` or ``wandb=my-project``. ``root``: the folder of the runs. A tool that cannot be
    opened is an error. One that fails later, because a server does not answer, for example, is left out from then on:
    runs are worth more than their curves.
    """
    opened: dict[str, Tracker] = {}

    def attempt(name: str, call: Callable[[], None]) -> None:
        try:
            with redirect_stdout(sys.stderr):  # some tools greet; standard output has the result
                call()
        except Exception as error:
            opened.pop(name, None)
            why = f"{type(error).__name__}: {error}"
            warn(f"{name} gets no more curves, the runs go on: {why}")

    def on_event(run: Run, event: Event) -> None:
        for name, tracker in tuple(opened.items()):
            attempt(name, lambda tracker=tracker: tracker.on_event(run, event))  # type: ignore[misc]

    try:
        for word in wanted:
            name, _, where = word.partition("=")
            if (info := TRACKERS.find(name)) is None:
                raise TRACKERS.unknown(name)
            if info.name in opened:
                raise OcilError(f"--track {word}: {info.name} is given twice.")
            with redirect_stdout(sys.stderr):
                opened[info.name] = info.open(where.strip(), root)
        yield on_event
    finally:
        for name, tracker in tuple(opened.items()):
            attempt(name, tracker.close)
