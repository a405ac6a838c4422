"""A long-tailed run ends with the same bits if a signal stopped it, and if a worker process carried it out."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ocil.engines import execute
from ocil.engines.job import Job, Observer
from ocil.longtail.config import resolve
from ocil.longtail.results import LongTailResult
from ocil.longtail.runs import LongTailRun
from ocil.longtail.runs import run as run_alone
from ocil.runs.protocol import Progress
from tests.conftest import Call, left_over
from tests.forking import Forked
from tests.reference.datasets import patterned

pytestmark = [pytest.mark.usefixtures("usual_convolution"), pytest.mark.slow]
SETTINGS = ("imbalance=8", "validation=8", "width=2", "batch_size=8", "epochs1=12", "epochs2=12")

Start = Callable[..., Forked]


def command(data: Path, out: Path) -> tuple[object, ...]:
    words = ("longtail", "run", "oltr-rfld", "--dataset", data, "--out", out, "--seeds", 1, "--json")
    return (*words, "--device", "cpu", "--set", *SETTINGS)


def begin(start: Start, data: Path, out: Path) -> Forked:
    return start("-m", "ocil", *command(data, out))


def wait_for(process: Forked, out: Path, pattern: str) -> None:
    """Return when there is such a file, or the process has ended well."""
    until = time.monotonic() + 600
    while not list(out.glob(pattern)) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.005)
    assert process.poll() in (None, 0), process.communicate()


def killed_and_stopped(start: Start, data: Path, root: Path) -> Path | None:
    """The folder of a run that was killed in its first stage and stopped in its second one.

    None if it had ended before the signal came, on a machine that is busy with other things.
    """
    killed = begin(start, data, root)
    wait_for(killed, root, "*-stage1-*/seed-0/checkpoint.safetensors")
    killed.kill()
    killed.communicate(timeout=600)
    if list(root.rglob("result.json")):
        return None

    stopped = begin(start, data, root)
    wait_for(stopped, root, "*-oltr-rfld-*/seed-0/checkpoint.safetensors")
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate(timeout=600)
    if stopped.returncode == 0:
        return None
    assert stopped.returncode == 130, err
    assert "the same command goes on" in err
    return root


def test_killed_and_stopped_then_the_same_end(fork_python: Start, ocil_command: Call, tmp_path: Path) -> None:
    data = tmp_path / "made.npz"
    patterned(per_class=24, classes=4).save(data)
    straight = ocil_command(*command(data, tmp_path / "straight"))
    assert straight.code == 0, straight.err

    stopped = (killed_and_stopped(fork_python, data, tmp_path / f"stopped-{attempt}") for attempt in range(10))
    root = next(root for root in stopped if root is not None)

    last = ocil_command(*command(data, root))
    assert last.code == 0, last.err
    one, other = (
        json.loads(Path(json.loads(said.out)["cells"][0]["runs"][0], "result.json").read_text())
        for said in (straight, last)
    )
    for name in ("digest", "measures", "history", "mu", "split"):
        assert one[name] == other[name], name
    assert one["stage1"]["digest"] == other["stage1"]["digest"]
    assert not left_over(root)


@pytest.mark.usefixtures("quick_workers")
def test_worker_processes_find_the_same_bits(tmp_path: Path) -> None:
    data = tmp_path / "made.npz"
    patterned(per_class=24, classes=4).save(data)
    settings = {"imbalance": 8, "validation": 8, "width": 2, "batch_size": 8, "epochs1": 2, "epochs2": 2}
    runs = [LongTailRun(resolve("oltr-rfld", str(data), seed=seed, settings=settings)) for seed in (0, 1)]
    heard: list[tuple[str, object]] = []
    observer = Observer(lambda run, event: heard.append((run.name, event)))
    side_by_side = execute(runs, Job(tmp_path / "workers", "cpu", workers=2), observer)
    for run in runs:
        one, other = side_by_side[run.key], run_alone(run.config, tmp_path / "alone", device="cpu")
        assert isinstance(one, LongTailResult)
        assert (one.digest, one.measures, one.history) == (other.digest, other.measures, other.history)
        assert one.stage1["digest"] == other.stage1["digest"]
    assert {name for name, event in heard if isinstance(event, Progress)} == {
        f"{label} seed {seed}" for label in ("stage1", "oltr-rfld") for seed in (0, 1)
    }
    assert not left_over(tmp_path)
    assert not list(tmp_path.rglob("checkpoint.safetensors"))
