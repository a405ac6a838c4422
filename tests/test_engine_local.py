import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ocil.config import RunConfig, resolve
from ocil.data import Dataset, store
from ocil.data.dataset import load_npz
from ocil.engine import local
from ocil.engine.local import Job, Outcome, run_all
from ocil.engine.patience import patiently
from ocil.errors import OcilError
from ocil.methods.fine_tune import FineTune
from ocil.results import Result, RunFolder
from ocil.runner import Interrupted, Progress
from tests.conftest import left_over


@pytest.fixture(scope="module")
def configs(tiny_npz: Path) -> list[RunConfig]:
    memory = {"memory": 20, "memory_batch": 5}
    names: list[tuple[str, dict[str, Any]]] = [("fine-tune", {}), ("er", memory), ("fine-tune", {"boundary": "blurry"})]
    return [
        resolve(name, str(tiny_npz), seed=seed, settings={"width": 2, "tasks": 2} | settings)
        for seed, (name, settings) in enumerate(names)
    ]


def job(root: Path) -> Job:
    return Job(root, "cpu", None)


def told(outcomes: list[Outcome]) -> list[tuple[Any, ...]]:
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    assert len(results) == len(outcomes), outcomes
    return [(result.config, result.digest, result.matrix, result.evaluations) for result in results]


@pytest.fixture(scope="module")
def in_a_row(configs: list[RunConfig], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return told(run_all(configs, job(tmp_path_factory.mktemp("in a row")), 1))


@pytest.mark.slow
def test_alone_is_as_in_a_row(configs: list[RunConfig], in_a_row: list[tuple[Any, ...]], tmp_path: Path) -> None:
    assert told(run_all(configs[1:2], job(tmp_path), 1)) == in_a_row[1:2]


def test_finished_runs_start_no_worker(
    configs: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all(configs[:2], job(tmp_path), 1)
    monkeypatch.setattr(local, "_Pool", None)
    monkeypatch.setattr(local, "run", None)
    outcomes = run_all(configs[:2], job(tmp_path), 2)
    assert all(isinstance(outcome, Result) for outcome in outcomes)


@pytest.mark.slow
def test_side_by_side_with_a_worker_that_dies(
    configs: list[RunConfig], in_a_row: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """Its run fails, the others go on and are as in a row, and so is the failed one when it is run again."""
    heard: dict[int, list[Any]] = {number: [] for number in range(len(configs))}

    def kill_the_second(number: int, event: Any) -> None:
        if number == 1 and not heard[1]:
            _, second = sorted(multiprocessing.active_children(), key=lambda child: child.pid or 0)
            os.kill(second.pid or 0, signal.SIGKILL)
        heard[number].append(event)

    outcomes = run_all(configs, job(tmp_path), 2, kill_the_second)
    assert isinstance(outcomes[1], OcilError)
    assert f"{configs[1].cell} seed 1: its process ended with code -9. The same command goes on" in str(outcomes[1])
    assert told([outcomes[0], outcomes[2]]) == [in_a_row[0], in_a_row[2]]
    for number, events in heard.items():
        assert isinstance(events[0], Progress)
        assert events[-1] is outcomes[number]
    assert told(run_all(configs, job(tmp_path), 1)) == in_a_row
    assert not left_over(tmp_path)


def test_a_second_ctrl_c_ends_the_workers(configs: list[RunConfig], tmp_path: Path) -> None:
    def stop_at_once() -> bool:
        if len(multiprocessing.active_children()) == 2:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run_all(configs, job(tmp_path), 2, should_stop=stop_at_once)
    end = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.01)
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see who is alive")
def test_workers_end_when_their_parent_is_killed(
    start_python: Callable[..., "subprocess.Popen[str]"], tiny_npz: Path, tmp_path: Path
) -> None:
    """In the middle of a rehearsal, too, which sends nothing for as long as it takes."""
    script = f"""
import multiprocessing, pathlib
from ocil.config import resolve
from ocil.engine.local import Job, run_all

def tell(number, event):
    if event.done:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)

if __name__ == "__main__":
    settings = dict(memory=20, width=2, tasks=2, batch_size=5, rehearsal_epochs=10**6)
    configs = [resolve("gdumb", {str(tiny_npz)!r}, seed=seed, settings=settings) for seed in range(2)]
    run_all(configs, Job(pathlib.Path({str(tmp_path / "runs")!r}), "cpu", None), 2, tell)
"""
    path = tmp_path / "driver.py"  # spawned workers import it
    path.write_text(script)
    with start_python(path) as driver:
        assert driver.stdout is not None
        workers = [int(word) for word in driver.stdout.readline().split()]
        driver.kill()
    try:
        assert len(workers) == 2
        end = time.monotonic() + 20
        while any(map(alive, workers)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(alive, workers))
    finally:
        for pid in filter(alive, workers):
            os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_runs_that_come_free_moments_apart_go_on_together(
    configs: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is free at once; another process gives up the others one by one."""
    begun: list[list[int]] = []
    held = [ExitStack(), ExitStack()]
    for stack, config in zip(held, configs[1:], strict=True):
        stack.enter_context(RunFolder.of(tmp_path, config).lock())
    monkeypatch.setattr(time, "sleep", lambda seconds: held.pop(0).close())
    outcomes = patiently(taking(configs, tmp_path, begun), 3, lambda number, event: None, lambda: False)
    assert begun == [[0, 1, 2], [1, 2]]
    assert outcomes == ["done"] * 3
    assert caplog.text.count("Another process works on 2 of the runs") == 1


def taking(configs: list[RunConfig], root: Path, begun: list[list[int]]) -> Callable[..., list[Any]]:
    """Runs that do nothing in their folders. What was begun together is noted."""

    def attempt(numbers: list[int], _: Any) -> list[Any]:
        begun.append(numbers)
        outcomes: list[Any] = []
        for number in numbers:
            try:
                with RunFolder.of(root, configs[number]).lock():
                    outcomes.append("done")
            except OcilError as error:
                outcomes.append(error)
        return outcomes

    return attempt


def test_a_third_process_may_take_what_came_free(
    configs: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process holds two runs. It gives up the first, a third process takes that, and then both come free."""
    first, second = (RunFolder.of(tmp_path, config) for config in configs[:2])
    ours, theirs, other = ExitStack(), ExitStack(), ExitStack()
    ours.enter_context(first.lock())
    other.enter_context(second.lock())
    happens = iter([
        ours.close,
        lambda: theirs.enter_context(first.lock()),
        lambda: None,
        theirs.close,
        other.close,
    ])  # fmt: skip
    monkeypatch.setattr(time, "sleep", lambda seconds: next(happens)())
    begun: list[list[int]] = []
    outcomes = patiently(taking(configs, tmp_path, begun), 2, lambda number, event: None, lambda: False)
    assert outcomes == ["done"] * 2
    assert begun == [[0, 1], [0, 1]]


def test_what_is_held_until_the_end_is_stopped_and_not_failed(
    configs: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[int, Any]] = []
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with RunFolder.of(tmp_path, configs[1]).lock():
        outcomes = patiently(
            taking(configs, tmp_path, []), 2, lambda *event: heard.append(event), lambda: len(slept) == 2
        )
    assert outcomes[0] == "done"
    assert isinstance(outcomes[1], Interrupted)
    assert heard == [(1, outcomes[1])]


def test_a_failing_run_leaves_the_others_alone(
    configs: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = FineTune.learn

    def failing(self: FineTune, x: torch.Tensor, y: torch.Tensor) -> None:
        if self.rng.seed == 0:
            raise ValueError("a mistake\nin a method")
        learn(self, x, y)

    monkeypatch.setattr(FineTune, "learn", failing)
    outcomes = run_all([configs[0], configs[2]], job(tmp_path), 1)
    assert isinstance(outcomes[0], OcilError)
    assert "fine-tune seed 0: ValueError: a mistake" in str(outcomes[0])
    assert "test_engine_local.py, line" in str(outcomes[0])
    assert isinstance(outcomes[1], Result)


def test_a_corrupt_result_fails_its_run_only(configs: list[RunConfig], tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path, configs[0])
    folder.path.mkdir(parents=True)
    (folder.path / "result.json").write_text("{")
    outcomes = run_all([configs[0], configs[2]], job(tmp_path), 1)
    assert isinstance(outcomes[0], OcilError)
    assert isinstance(outcomes[1], Result)


def test_asked_to_stop_before_the_start(configs: list[RunConfig], tmp_path: Path) -> None:
    outcomes = run_all(configs, job(tmp_path), 1, should_stop=lambda: True)
    assert all(isinstance(outcome, Interrupted) for outcome in outcomes)
    assert not list(tmp_path.rglob("*"))


def test_threads_are_put_back(configs: list[RunConfig], tmp_path: Path) -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    work = replace(job(tmp_path), threads=before + 1)
    run_all(configs[:1], work, 1, lambda number, event: seen.append(torch.get_num_threads()))
    assert seen[0] == before + 1
    assert torch.get_num_threads() == before


def test_a_dataset_is_read_once_until_its_file_changes(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path, name: str) -> Dataset:
        read.append(path)
        return load_npz(path, name)

    monkeypatch.setattr(store, "load_npz", counted)
    path = tmp_path / "own.npz"
    tiny.save(path)
    settings = {"width": 2, "tasks": 2}
    configs = [resolve("fine-tune", str(path), seed=seed, settings=settings) for seed in range(3)]
    assert all(isinstance(found, Result) for found in run_all(configs[:2], job(tmp_path / "a"), 1))
    assert len(read) == 1
    replace(tiny, classes=("other", "names", "of", "classes")).save(path)
    (found,) = run_all(configs[2:], job(tmp_path / "a"), 1)
    assert len(read) == 2
    assert isinstance(found, Result)
    assert found.images != tiny.fingerprint


def test_nothing_to_do(tmp_path: Path) -> None:
    assert run_all([], job(tmp_path)) == []
