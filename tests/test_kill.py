"""A run killed with SIGKILL at any moment goes on to the same end, bit for bit."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ocil.runs.config import RunConfig, resolve
from ocil.runs.folder import RunFolder
from ocil.runs.results import Result
from ocil.runs.stream_run import run
from tests.conftest import left_over
from tests.forking import START, Driver

# An order is {"config", "root", "die_at_sync"}.
pytestmark = [pytest.mark.usefixtures("usual_convolution"), pytest.mark.slow]
DRIVER = (
    START
    + """
import ocil
from ocil.runs.config import RunConfig

ocil.run
ready()
while line := sys.stdin.readline():
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        die_at_sync(order["die_at_sync"])
        ocil.run(RunConfig.from_json(order["config"]), order["root"], device="cpu", checkpoint_seconds=0.01)
        os._exit(0)
    print(pid, flush=True)
    wait_for(pid)
"""
)


class Runs(Driver):
    """Runs in processes of their own."""

    def start(self, config: RunConfig, root: Path, die_at_sync: int = 0) -> int:
        """Its process id."""
        order = {"config": config.to_json(), "root": str(root), "die_at_sync": die_at_sync}
        self.tell(json.dumps(order))
        pid = int(self.read())
        assert pid > 1
        return pid


@pytest.fixture(scope="module")
def undisturbed(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    memory = {"memory": 20, "memory_batch": 5, "review": True}
    configs = [
        resolve(name, str(tiny_npz), settings={"width": 2, "tasks": 2} | memory | settings)
        for name, settings in (("afs", {}), ("er", {"momentum": 0.9}))
    ]
    root = tmp_path_factory.mktemp("undisturbed")
    return {config.method: run(config, root, device="cpu") for config in configs}


@pytest.fixture(scope="module")
def runs(start_python: Callable[..., "subprocess.Popen[str]"]) -> Iterator[Runs]:
    process = start_python("-c", DRIVER)
    try:
        yield Runs(process)
    finally:
        process.kill()
        process.communicate()


def told(result: Result | None) -> tuple[Any, ...]:
    assert result is not None
    return result.config, result.digest, result.matrix, result.evaluations


@pytest.mark.parametrize(("name", "kills"), [("afs", 10), ("er", 10)])
def test_killed_at_random_moments(
    runs: Runs, undisturbed: dict[str, Result], tmp_path: Path, name: str, kills: int
) -> None:
    expected = undisturbed[name]
    moment = random.Random(7)
    done, attempt = 0, 0
    while done < kills:
        root = tmp_path / str(attempt)
        attempt += 1
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            pid = runs.start(expected.config, root)
            if done < kills:
                time.sleep(moment.uniform(0.0, 0.5 * expected.wall_seconds))
                os.kill(pid, signal.SIGKILL)
            code = runs.exit_code()
            done += code == -signal.SIGKILL
        assert code == 0
        assert told(RunFolder.of(root, expected.config).result()) == told(expected)
    assert not left_over(tmp_path)


def test_killed_in_the_middle_of_every_write(runs: Runs, undisturbed: dict[str, Result], tmp_path: Path) -> None:
    expected = undisturbed["er"]
    folder = RunFolder.of(tmp_path, expected.config)
    cursors: list[int] = []
    for die_at_sync in (1, 2, 3, 2, 5, 4):  # the first is config.json, the others are checkpoints
        before = folder.checkpoint.read_bytes() if folder.checkpoint.exists() else None
        runs.start(expected.config, tmp_path, die_at_sync)
        assert runs.exit_code() == -signal.SIGKILL
        assert len(left_over(tmp_path)) == 1  # of this process; earlier ones were swept up
        found = folder.load_checkpoint()
        cursors.append(0 if found is None else found[1]["cursor"])
        if die_at_sync <= 2:
            assert (folder.checkpoint.read_bytes() if folder.checkpoint.exists() else None) == before
    assert cursors == [0, 0, 1, 1, 4, 6]
    runs.start(expected.config, tmp_path)
    assert runs.exit_code() == 0
    assert told(folder.result()) == told(expected)
    assert not left_over(tmp_path)
