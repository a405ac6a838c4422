"""Logs a small run with every tracker that is installed, offline, and reads back what the tool has kept.

    pip install 'ocil[track]'
    python tools/try_trackers.py

`make test` uses stand-ins for these tools: tests/test_trackers.py.
"""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "TRACKIO_TELEMETRY": "0", "HF_HUB_OFFLINE": "1"}
SETTINGS = ("width=2", "tasks=2", "memory_batch=5")


def main() -> int:
    failed = 0
    for name, check in (("tensorboard", events), ("wandb", offline_files), ("mlflow", metrics), ("trackio", database)):
        if find_spec(name) is None:
            print(f"{name}: not installed")
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            try:
                print(f"{name}: {check(folder, logged(name, folder))}")
            except Exception as error:
                failed += 1
                print(f"{name}: FAILED: {error}")
    return 1 if failed else 0


def logged(name: str, folder: Path) -> float:
    """Run ER with this tracker. Returns the accuracy that the run found."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (80, 8, 8, 3), dtype=np.uint8), np.repeat(np.arange(4), 20)
    np.savez(folder / "tiny.npz", train_x=x, train_y=y, test_x=x, test_y=y, classes=np.array(list("abcd")))
    words = ("run", "er", "--dataset", folder / "tiny.npz", "--memory", 20, "--seeds", 2, "--no-reference", "--json")
    more = ("--out", folder / "runs", "--device", "cpu", "--set", *SETTINGS, "--track", name)
    environment = os.environ | OFFLINE | {"TRACKIO_DIR": str(folder / "trackio")}
    command = (sys.executable, "-m", "ocil", *map(str, words), *map(str, more))
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or "gets no more curves" in done.stderr:
        raise RuntimeError(done.stderr[-1500:])
    if done.stdout.count("\n") != 1:
        raise RuntimeError(f"more than the result on standard output: {done.stdout[-800:]}")
    return float(json.loads(done.stdout)["average_accuracy"]["mean"])


def events(folder: Path, accuracy: float) -> str:
    files = list((folder / "runs/tensorboard").rglob("events.*"))
    if len(files) != 2:
        raise RuntimeError(f"{len(files)} files of events")
    return "two files of events"


def offline_files(folder: Path, accuracy: float) -> str:
    files = list((folder / "runs/wandb").glob("offline-run-*/*.wandb"))
    if len(files) != 2 or not all(b"progress/accuracy" in file.read_bytes() for file in files):
        raise RuntimeError(f"{len(files)} offline runs, or without accuracy")
    return "two offline runs with their accuracy"


def metrics(folder: Path, accuracy: float) -> str:
    import mlflow  # type: ignore[import-not-found,unused-ignore]

    client = mlflow.MlflowClient(f"sqlite:///{folder / 'runs/mlflow.db'}")
    experiment = client.get_experiment_by_name("ocil").experiment_id
    runs = client.search_runs([experiment])
    found = sum(run.data.metrics["progress/accuracy"] for run in runs) / len(runs)
    if {run.info.status for run in runs} != {"FINISHED"} or abs(found - accuracy) > 1e-6:
        raise RuntimeError(f"accuracy {found}, not {accuracy}")
    return f"{len(runs)} finished runs, {len(runs[0].data.params)} settings, mean accuracy {found:.3f} as measured"


def database(folder: Path, accuracy: float) -> str:
    (path,) = (folder / "trackio").glob("ocil*.db")
    with sqlite3.connect(path) as found:
        rows = found.execute("select run_name, metrics from metrics").fetchall()
    logged = [(name, json.loads(text)) for name, text in rows]  # text, or bytes since trackio 0.3
    last = {name: found["progress/accuracy"] for name, found in logged if "progress/accuracy" in found}
    mean = sum(last.values()) / len(last)
    if abs(mean - accuracy) > 1e-6:
        raise RuntimeError(f"accuracy {mean}, not {accuracy}")
    return f"{len(last)} runs, {len(rows)} rows, mean accuracy {mean:.3f} as measured"


if __name__ == "__main__":
    sys.exit(main())
