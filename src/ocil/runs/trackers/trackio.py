"""Runs in Trackio: one of its runs for each of ours, in one project. They stay on this machine: ``trackio show``."""

import importlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ocil.errors import optional
from ocil.runs.protocol import Run
from ocil.runs.trackers.curves import Axis, Ending, RunLogs, identifier, settings_of


def open_tracker(where: str, root: Path) -> RunLogs:
    """``where``: the project, by default ``ocil``."""
    with optional("--track trackio needs a package", "trackio", "trackio"):
        trackio = importlib.import_module("trackio")
    return TrackioRuns(trackio, where or "ocil")


class TrackioRuns(RunLogs):
    def __init__(self, trackio: Any, project: str) -> None:
        super().__init__(partial(TrackioRun, trackio, project))
        self.trackio = trackio

    def close(self) -> None:
        super().close()
        with suppress(RuntimeError):  # else it ends its last run at exit, with a line on standard output
            self.trackio.finish()


class TrackioRun:
    resumed = False  # it does not say

    def __init__(self, trackio: Any, project: str, run: Run) -> None:
        self.run = trackio.init(
            project=project,
            name=identifier(run),
            group=run.cell,
            config=settings_of(run),
            resume="allow",
            embed=False,  # no dashboard: `trackio show` opens one
        )

    def log(self, axis: Axis, step: int, values: dict[str, float]) -> None:
        self.run.log({**values, axis: step})

    def end(self, ending: Ending) -> None:
        self.run.finish()
