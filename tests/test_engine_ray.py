"""Runs on a Ray cluster: two real nodes on this machine, workers, a node and a driver that are killed.

What needs no cluster is tested without one.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ocil.cli.options import Execution
from ocil.engines import execute, pool, ray, ray_worker, scheduler
from ocil.engines.job import Job, Observer, Outcome
from ocil.engines.nodes import Facts, examiner, pickled_questions, place_marker, unfit
from ocil.engines.ray_worker import Worker, WorkerSpec
from ocil.engines.scheduler import Node, Scheduler, WorkerHandle
from ocil.errors import InUseError, OcilError
from ocil.runs.config import resolve
from ocil.runs.protocol import Interrupted, Progress, Run, RunKey
from ocil.runs.results import Result
from ocil.runs.stream_run import StreamRun
from tests.conftest import Call, left_over, one_error
from tests.forking import Forked
from tests.reference.datasets import patterned
from tests.test_engine_local import told

pytestmark = [pytest.mark.usefixtures("usual_convolution"), pytest.mark.slow]
BATCHES = 40  # of a run: enough to be stopped in the middle
SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_log_monitor": False}  # a node


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = patterned(per_class=10 * BATCHES // 4)
    assert data.num_classes == 4
    path = tmp_path_factory.mktemp("data") / "long.npz"
    data.save(path)
    return path


@pytest.fixture(scope="module")
def runs(npz: Path) -> list[StreamRun]:
    memory = {"memory": 20, "memory_batch": 5}
    names: list[tuple[str, dict[str, Any]]] = [("er", memory), ("fine-tune", {}), ("fine-tune", {}), ("fine-tune", {})]
    return [
        StreamRun(resolve(name, str(npz), seed=seed, settings={"width": 2, "tasks": 4} | settings))
        for seed, (name, settings) in enumerate(names)
    ]


def job(root: Path, **changes: Any) -> Job:
    return replace(Job(root, "cpu", checkpoint_seconds=0.05, workers=1), **changes)


def on_ray(runs: list[StreamRun], root: Path, cluster: Any, observer: Observer | None = None) -> list[Outcome]:
    """The outcomes in the order of the runs."""
    outcomes = execute(runs, job(root, workers=0, engine="ray", address=cluster.address), observer)
    return [outcomes[run.key] for run in runs]


@pytest.fixture(scope="module")
def expected(runs: list[StreamRun], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return told(pool.run_all(runs, job(tmp_path_factory.mktemp("local")), Observer()).values())


# With a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, of one CPU each. The second says that it has a GPU."""
    pytest.importorskip("ray", reason="needs the package ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # workers that nobody asked for take their time to start
        patch.setenv("RAY_worker_niceness", "0")  # at Ray's 15 they wait for whatever else the machine does
        without = {"include_dashboard": False, "no_monitor": True}  # processes that no run needs
        found = Cluster(initialize_head=True, head_node_args=SMALL | without)
        try:
            found.add_node(**SMALL, num_gpus=1)
            yield found
        finally:
            found.shutdown()


class Ear:
    """Hears of everything that happens to the runs."""

    def __init__(self) -> None:
        self.events: dict[Run, list[Any]] = {}

    def __call__(self, run: Run, event: Any) -> None:
        self.events.setdefault(run, []).append(event)

    def has_begun(self) -> bool:
        return any(isinstance(event, Progress) and event.done for events in self.events.values() for event in events)

    def running(self) -> list[Run]:
        """Those in the middle: they have learned a task, and have some way to go."""
        last = {run: events[-1] for run, events in self.events.items()}
        return [run for run, event in last.items() if isinstance(event, Progress) and 1 <= 4 * event.done / BATCHES < 3]


def holder(root: Path, run: Run) -> int | None:
    """The worker process that is at a run: it has the folder's lock open."""
    lock = str((run.folder(root).path / ".lock").resolve())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(b"ray::") and any(
                str(link.readlink()) == lock for link in (process / "fd").iterdir()
            ):
                return int(process.name)
        except OSError:  # it has ended
            continue
    return None


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_stopped_then_gone_on_with_though_a_worker_and_a_node_die(
    cluster: Any, runs: list[StreamRun], expected: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """They die in the middle of a run each: another worker goes on with it, from its checkpoint. One test, since every
    process of a cluster takes seconds to start."""
    pool.run_all(runs[1:2], job(tmp_path), Observer())
    ear = Ear()
    first = on_ray(runs, tmp_path, cluster, Observer(ear, ear.has_begun))
    assert [type(outcome) for outcome in first] == [Interrupted, Result, Interrupted, Interrupted]
    assert len(ear.events[runs[1]]) == 1  # finished before: nothing was started for it

    third = cluster.add_node(**SMALL)
    raylet = third.all_processes["raylet"][0].process.pid
    ear = Ear()
    killed: dict[str, tuple[Run, int]] = {}  # what -> (run, how much was heard of it before)

    def listen(run: Run, event: Any) -> None:
        ear(run, event)
        for running in ear.running():
            pid = holder(tmp_path, running)
            what = "node" if pid and parent(pid) == raylet else "worker"
            if pid and what not in killed and running not in [run for run, _ in killed.values()]:
                killed[what] = running, len(ear.events[running])
                if what == "node":
                    cluster.remove_node(third, allow_graceful=False)
                else:
                    os.kill(pid, signal.SIGKILL)

    assert told(on_ray(runs, tmp_path, cluster, Observer(listen))) == expected
    assert any(ear.events[runs[number]][0].done > 0 for number in (0, 2))
    assert all(isinstance(events[-1], Result) for events in ear.events.values())
    assert killed.keys() == {"node", "worker"}
    for run, before in killed.values():
        assert all(event.done > 0 for event in ear.events[run][before:-1])
    assert not left_over(tmp_path)


def test_a_driver_that_is_killed(
    cluster: Any,
    runs: list[StreamRun],
    npz: Path,
    expected: list[tuple[Any, ...]],
    fork_python: Callable[..., Forked],
    ocil_command: Call,
    tmp_path: Path,
) -> None:
    """Its workers end with it, and the same command does the rest."""
    words = ["-m", "ocil", "run", "fine-tune", "--dataset", npz, "--seeds", 3, "--out", tmp_path, "--device", "cpu"]
    words += ["--engine", "ray", "--address", cluster.address, "--json", "--set", "width=2", "tasks=4"]
    fingerprint = patterned(BATCHES * 10 // 4).fingerprint
    plan = [StreamRun(replace(runs[1].config, seed=seed, fingerprint=fingerprint)) for seed in range(3)]
    folders = [run.folder(tmp_path) for run in plan]
    process, end = fork_python(*words), time.monotonic() + 600
    try:
        working: list[int] = []
        while not working:
            assert time.monotonic() < end
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
            if any(folder.result() for folder in folders):  # to look at all processes takes longer
                working = [pid for run in plan if (pid := holder(tmp_path, run))]
    finally:
        process.kill()
        process.communicate()
    finished = {folder: (folder.path / "result.json").stat().st_mtime for folder in folders if folder.result()}
    assert len(finished) < 3
    while any(Path(f"/proc/{pid}/fd").exists() for pid in working):
        assert time.monotonic() < end
        time.sleep(0.05)

    again = ocil_command(*words[2:], "--workers", 1)  # each takes seconds to start
    assert again.code == 0, again.err
    assert len(json.loads(again.out)["runs"]) == 3
    for folder, written in finished.items():
        assert (folder.path / "result.json").stat().st_mtime == written
    digests = [result.digest for folder in folders if (result := folder.result())]
    assert digests[1:3] == [expected[1][1], expected[2][1]]


def test_runs_packed_on_a_share_of_a_gpu(
    cluster: Any, runs: list[StreamRun], expected: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """The second node's GPU is only said to be one, so the runs are packed on a CPU, as tests of the GPU engine do."""
    before = signal.getsignal(signal.SIGTERM)
    with ray.connected(cluster.address) as package:
        assert signal.getsignal(signal.SIGTERM) is before  # Ray's own would end the driver before its runs are saved
        driver = Scheduler(package, runs[1:3], job(tmp_path.resolve()), WorkerSpec(0.5, 0.5, 2, interleaved=True))
        assert told(driver.execute().values()) == expected[1:3]
        assert [node.room for node in driver.nodes.values()] == [2]


def test_a_gpu_that_is_none(
    cluster: Any,
    runs: list[StreamRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(scheduler, "NO_NODE_TIMEOUT", 0.0)
    anywhere = job(tmp_path, device="auto", engine="ray", address=cluster.address, workers=0)
    with caplog.at_level(logging.WARNING):
        outcomes = execute(runs[:2], anywhere)
    for outcome in outcomes.values():
        assert "no node of the Ray cluster is left to work (node" in str(outcome)
        assert "device 'cuda' is not there" in str(outcome)
    assert "It is left out." in caplog.text


# Without a cluster


def test_what_a_node_has_room_for() -> None:
    assert WorkerSpec(2, 0, 1).room({"CPU": 7.0}) == 3
    assert WorkerSpec(1, 0, 1).room({"GPU": 7.0}) == 0
    assert WorkerSpec(0.1, 0.1, 10).room({"CPU": 64.0, "GPU": 1.0}) == 10
    assert WorkerSpec(1, 1, 10).room({"CPU": 2.0, "GPU": 8.0}) == 2


def test_the_device_is_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray._device("auto", {"CPU": 4.0, "GPU": 1.0}) == "cuda"
    assert ray._device("auto", {"CPU": 4.0}) == "cpu"
    assert ray._device("cpu", {"CPU": 4.0, "GPU": 1.0}) == "cpu"
    with pytest.raises(OcilError, match="no node of the Ray cluster has a GPU"):
        ray._device("cuda", {"CPU": 4.0})
    with pytest.raises(OcilError, match="use auto, cpu or cuda"):
        ray._device("cuda:1", {"GPU": 4.0})
    assert Execution(device="cuda", engine="ray").job(Path("runs"), None).device == "cuda"
    assert Execution(device="cpu").job(Path("runs"), None).device == "cpu"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--address", "localhost:1"), "no Ray cluster at localhost:1: [Errno 111] Connection refused. Start one with"),
        (("--address", "here"), "address = here is not HOST:PORT"),
        (("--address", "ray://here:1"), "is not HOST:PORT"),
        (("--gpu-share", "1.5"), "--gpu-share 1.5 must be more than 0 and at most 1"),
    ],
)
def test_mistakes_are_said_in_a_line(run_tiny: Call, words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the package ray")
    assert message in one_error(run_tiny("er", "--engine", "ray", *words))
    assert not (tmp_path / "runs").exists()


def test_without_the_package(run_tiny: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert one_error(run_tiny("er", "--engine", "ray")) == (
        "the engine ray needs a package, and ray is not installed: pip install 'ocil[ray]'"
    )
    assert one_error(run_tiny("er", "--address", "here:1")) == "--address is for a Ray cluster: add --engine ray."


def test_nothing_to_do_needs_no_cluster(runs: list[StreamRun], tmp_path: Path) -> None:
    nowhere = job(tmp_path, address="localhost:1")
    assert ray.run_all([], nowhere, Observer()) == {}
    (outcome,) = ray.run_all(runs[:1], nowhere, Observer(should_stop=lambda: True)).values()
    assert isinstance(outcome, Interrupted)


def test_a_node_that_is_not_fit(npz: Path, tmp_path: Path) -> None:
    examine = examiner()
    questions = pickled_questions([StreamRun(resolve("er", str(npz)))])
    mine = examine(None, questions, None)
    marker = place_marker(tmp_path)
    fit = examine(str(marker), questions, None)
    assert not marker.exists()

    def why(theirs: Facts, torch_version: str | None = None) -> str | None:
        return unfit(theirs, mine, tmp_path, torch_version)

    assert why(fit) is None
    assert why(fit, str(fit["torch"])) is None
    assert "install the same on all" in str(why(fit, "1.0"))
    assert "all nodes must share it" in str(why(examine(str(marker), pickled_questions([]), None)))
    owls = pickled_questions([StreamRun(resolve("er", "owls"))])
    assert "lacks a dataset: there is no dataset 'owls'" in str(why(examine(None, owls, str(tmp_path))))
    assert "lacks a dataset: " in str(why(examine(None, b"of another version", None)))
    assert "install it there" in str(why({"import": "No module named 'ocil'"}))
    assert "has another ocil (0.0.1)" in str(why(fit | {"ocil": "0.0.1"}))
    assert "has other images under the name" in str(why(fit | {"images": {str(npz): "another"}}))


def test_a_node_is_examined_without_pytorch(npz: Path, start_python: Callable[..., "subprocess.Popen[str]"]) -> None:
    """To load it takes seconds, and workers are other processes."""
    sent = pytest.importorskip("ray.cloudpickle").dumps(examiner())
    questions = pickled_questions([StreamRun(resolve("er", str(npz)))])
    lines = (
        "import json, pickle, sys",
        f"facts = pickle.loads({sent!r})(None, {questions!r}, None)",
        "print(json.dumps([facts, 'torch' in sys.modules]))",
    )
    said, wrong = start_python("-c", "\n".join(lines)).communicate(timeout=600)
    assert said, wrong
    assert json.loads(said) == [examiner()(None, questions, None), False]


def drain(worker: Worker, until: Callable[[list[Any]], bool], stop: bool = False) -> list[Any]:
    events: list[Any] = []
    end = time.monotonic() + 600
    while not until(events):
        assert time.monotonic() < end
        events += worker.events(stop)
    return events


def ended(events: list[Any]) -> bool:
    return any(not isinstance(event, Progress) for _, event in events)


def test_a_worker_that_hears_nothing_saves_and_stops(
    runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(job(tmp_path), WorkerSpec(1, 0, 1))
    worker.start(runs[:1])
    drain(worker, lambda events: any(event.done for _, event in events))
    monkeypatch.setattr(ray_worker, "DRIVER_TIMEOUT", 0.0)
    key, outcome = drain(worker, ended)[-1]
    assert key == runs[0].key
    assert isinstance(outcome, Interrupted)
    assert runs[0].folder(tmp_path).checkpoint.exists()


def test_a_worker_waits_for_a_folder_that_is_held(
    runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(job(tmp_path), WorkerSpec(1, 0, 1))
    with runs[1].folder(tmp_path).lock():
        worker.start([runs[1]])
        assert worker.events(stop=False) == []
    assert isinstance(drain(worker, ended)[-1][1], Result)
    with runs[2].folder(tmp_path).lock():
        monkeypatch.setattr(ray_worker, "LOCK_TIMEOUT", 0.0)
        worker.start([runs[2]])
        assert isinstance(drain(worker, ended)[-1][1], InUseError)


def test_what_keeps_a_worker_from_any_run_fails_all_of_them(runs: list[StreamRun], tmp_path: Path) -> None:
    worker = Worker(job(tmp_path), WorkerSpec(1, 0, 2, interleaved=True))
    gone = [StreamRun(replace(run.config, dataset=str(tmp_path / "gone.npz"))) for run in runs[:2]]
    worker.start(gone)
    events = drain(worker, lambda events: len(events) == 2)
    assert all("gone.npz" in str(outcome) for _, outcome in events)


@pytest.fixture
def six(runs: list[StreamRun]) -> list[StreamRun]:
    """Four of one precision and two of another."""
    config = runs[0].config
    others = [replace(config, learner=replace(config.learner, precision="fp32"), seed=seed) for seed in (0, 1)]
    return [*runs, *map(StreamRun, others)]


@pytest.fixture
def driver(six: list[StreamRun], tmp_path: Path) -> Scheduler:
    """One whose cluster is not there."""
    package = SimpleNamespace(
        remote=lambda thing: thing, kill=lambda actor: None, exceptions=SimpleNamespace(RayError=OSError)
    )
    made = Scheduler(package, six, job(tmp_path), WorkerSpec(1, 1, 3, interleaved=True))
    made.nodes = {"a": Node("a", "a", 1)}
    return made


def test_runs_of_a_kind_go_together(driver: Scheduler, six: list[StreamRun]) -> None:
    assert [driver.next_runs(), driver.next_runs(), driver.next_runs()] == [six[:3], six[3:4], six[4:]]


def test_every_worker_gets_some(driver: Scheduler, six: list[StreamRun]) -> None:
    driver.nodes["b"] = Node("b", "b", 2)
    assert driver.next_runs() == six[:2]
    assert driver.next_runs() == six[2:4]


def with_next(driver: Scheduler) -> WorkerHandle:
    """A worker that has just got its runs."""
    worker = WorkerHandle(None, driver.nodes["a"], {run.key: run for run in driver.next_runs()})
    driver.workers.append(worker)
    return worker


def test_a_run_that_takes_its_workers_down_fails_alone(driver: Scheduler, six: list[StreamRun]) -> None:
    units: list[list[RunKey]] = []
    key = [run.key for run in six]
    while driver.waiting:
        worker = with_next(driver)
        units.append(list(worker.runs))
        if key[1] in worker.runs:
            driver.worker_died(worker)
        else:
            for run in list(worker.runs.values()):
                driver.on_event(worker, run, OcilError("done"))
    expected = [key[:3], [key[3], key[0], key[1]], key[1:2], key[1:2]]
    assert [unit for unit in units if key[1] in unit] == expected
    assert "its worker died 4 times, the last time on node a" in str(driver.outcomes[key[1]])
    assert all(str(driver.outcomes[key[number]]) == "done" for number in (0, 2, 3, 4, 5))


def test_a_worker_that_stopped_by_itself_costs_no_retry(driver: Scheduler, six: list[StreamRun]) -> None:
    worker = with_next(driver)
    driver.on_event(worker, six[0], Interrupted("silence"))
    assert driver.waiting[-1] == six[0]
    assert not driver.deaths
    driver.stopping = True
    driver.on_event(worker, six[1], Interrupted("asked to"))
    assert isinstance(driver.outcomes[six[1].key], Interrupted)
