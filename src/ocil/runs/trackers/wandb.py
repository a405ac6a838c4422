"""Runs in Weights & Biases: one of its runs for each of ours, in one project, grouped by cell.

Without an account set ``WANDB_MODE=offline``: the files below the folder of the runs can be uploaded later.
"""

import importlib
from functools import partial
from pathlib import Path
from typing import Any

from ocil.errors import optional
from ocil.runs.folder import make_folder
from ocil.runs.protocol import Run
from ocil.runs.trackers.curves import Axis, Ending, RunLogs, identifier, settings_of


def open_tracker(where: str, root: Path) -> RunLogs:
    """``where``: the project, by default ``ocil``."""
    with optional("--track wandb needs a package", "wandb", "wandb"):
        wandb = importlib.import_module("wandb")
    make_folder(root)
    return RunLogs(partial(WandbRun, wandb, where or "ocil", root))


class WandbRun:
    def __init__(self, wandb: Any, project: str, root: Path, run: Run) -> None:
        self.run = wandb.init(
            project=project,
            name=run.name,
            id=identifier(run),
            group=run.cell,
            config=settings_of(run),
            dir=str(root),
            resume="allow",
            reinit="create_new",  # several runs are open side by side
            settings=wandb.Settings(console="off", silent=True),
        )
        self.resumed = bool(self.run.resumed)

    def log(self, axis: Axis, step: int, values: dict[str, float]) -> None:
        for tag in values:
            self.run.define_metric(tag, step_metric=axis)  # curves with different steps; a run that resumes goes back
        self.run.log({**values, axis: step})

    def end(self, ending: Ending) -> None:
        self.run.finish(exit_code=0 if ending == "finished" else 1)
