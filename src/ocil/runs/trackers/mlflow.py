"""Runs in MLflow: one of its runs for each of ours, in one experiment.

Without a server (``MLFLOW_TRACKING_URI``) they go to ``mlflow.db`` in the folder of the runs. To see them:
``mlflow ui --backend-store-uri sqlite:///runs/mlflow.db``.
"""

import importlib
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from ocil.errors import optional
from ocil.runs.folder import make_folder
from ocil.runs.protocol import Run
from ocil.runs.trackers.curves import Axis, Ending, RunLogs, identifier, settings_of

STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
TAG = "ocil.run"
LONGEST = 250
"""Characters of a setting. MLflow refuses long ones."""


def open_tracker(where: str, root: Path) -> RunLogs:
    """``where``: the experiment, by default ``ocil``."""
    with optional("--track mlflow needs a package", "mlflow", "mlflow"):
        mlflow = importlib.import_module("mlflow")
        entities = importlib.import_module("mlflow.entities")
    make_folder(root)
    address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"
    client: Any = mlflow.MlflowClient(tracking_uri=address)
    name = where or "ocil"
    found = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if found is None else found.experiment_id
    return RunLogs(partial(MlflowRun, client, entities, experiment))


class MlflowRun:
    def __init__(self, client: Any, entities: Any, experiment: str, run: Run) -> None:
        self.client, self.entities, own = client, entities, identifier(run)
        found = client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{own}'", max_results=1)
        self.resumed = bool(found)
        if found:
            self.id = found[0].info.run_id
            client.update_run(self.id, status="RUNNING")
            return
        self.id = client.create_run(experiment, run_name=run.name, tags={TAG: own, "ocil.cell": run.cell}).info.run_id
        settings = [entities.Param(name, str(value)[:LONGEST]) for name, value in settings_of(run).items()]
        client.log_batch(self.id, params=settings[:100])  # the most that one call takes

    def log(self, axis: Axis, step: int, values: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(tag, value, now, step) for tag, value in values.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def end(self, ending: Ending) -> None:
        self.client.set_terminated(self.id, status=STATUS[ending])
