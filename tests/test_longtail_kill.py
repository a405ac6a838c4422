"""A long-tailed run stopped by a signal goes on from its last epoch to the same end, bit for bit."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import left_over
from tests.reference.datasets import patterned

pytestmark = pytest.mark.slow
SETTINGS = ("imbalance=8", "validation=8", "width=4", "batch_size=8", "epochs1=20", "epochs2=20")

Start = Callable[..., "subprocess.Popen[str]"]


def begin(start: Start, data: Path, out: Path) -> "subprocess.Popen[str]":
    words = ("-m", "ocil", "longtail", "run", "oltr-rfld", "--dataset", data, "--out", out, "--seeds", 1, "--json")
    return start(*words, "--device", "cpu", "--set", *SETTINGS)


def wait_for(process: "subprocess.Popen[str]", out: Path, pattern: str) -> None:
    until = time.monotonic() + 60
    while not list(out.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


def test_killed_and_stopped_then_the_same_end(start_python: Start, tmp_path: Path) -> None:
    data = tmp_path / "made.npz"
    patterned(per_class=24, classes=4).save(data)
    straight = begin(start_python, data, tmp_path / "straight")
    out, err = straight.communicate(timeout=120)
    assert straight.returncode == 0, err
    (cell,) = json.loads(out)["cells"]

    root = tmp_path / "stopped"
    killed = begin(start_python, data, root)
    wait_for(killed, root, "*-stage1-*/seed-0/checkpoint.safetensors")
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=60)
    assert not list(root.rglob("result.json"))

    stopped = begin(start_python, data, root)
    wait_for(stopped, root, "*-oltr-rfld-*/seed-0/checkpoint.safetensors")
    os.kill(stopped.pid, signal.SIGINT)
    _, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, err
    assert "the same command goes on" in err

    last = begin(start_python, data, root)
    out, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    one, other = (
        json.loads(Path(json.loads(text)["cells"][0]["runs"][0], "result.json").read_text())
        for text in (json.dumps({"cells": [cell]}), out)
    )
    for name in ("digest", "measures", "history", "mu", "split"):
        assert one[name] == other[name], name
    assert one["stage1"]["digest"] == other["stage1"]["digest"]
    assert not left_over(root)
