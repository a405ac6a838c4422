import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ocil import files
from ocil.data import Dataset, lookup
from ocil.data.dataset import load_npz
from ocil.engines import execute, pool
from ocil.engines.job import Job, Observer, Outcome, Outcomes, without_locals
from ocil.engines.pool import run_all
from ocil.engines.waiting import with_waiting
from ocil.errors import OcilError
from ocil.methods.fine_tune import FineTune
from ocil.runs.config import resolve
from ocil.runs.protocol import Interrupted, Progress, Run, RunKey
from ocil.runs.results import Result
from ocil.runs.stream_run import StreamRun
from tests.conftest import left_over
from tests.forking import Forked

pytestmark = pytest.mark.usefixtures("usual_convolution")


@pytest.fixture(scope="module")
def runs(tiny_npz: Path) -> list[StreamRun]:
    memory = {"memory": 20, "memory_batch": 5}
    names: list[tuple[str, dict[str, Any]]] = [("fine-tune", {}), ("er", memory), ("fine-tune", {"boundary": "blurry"})]
    return [
        StreamRun(resolve(name, str(tiny_npz), seed=seed, settings={"width": 2, "tasks": 2} | settings))
        for seed, (name, settings) in enumerate(names)
    ]


def job(root: Path, workers: int = 1) -> Job:
    return Job(root, "cpu", workers=workers)


def carry_out(runs: Sequence[Run], job: Job, observer: Observer | None = None) -> list[Outcome]:
    """The outcomes in the order of the runs."""
    outcomes = run_all(runs, job, observer or Observer())
    return [outcomes[run.key] for run in runs]


def told(outcomes: Iterable[Outcome]) -> list[tuple[Any, ...]]:
    outcomes = list(outcomes)
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    assert len(results) == len(outcomes), outcomes
    return [(result.config, result.digest, result.matrix, result.evaluations) for result in results]


@pytest.fixture(scope="module")
def in_a_row(runs: list[StreamRun], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    return told(carry_out(runs, job(tmp_path_factory.mktemp("in a row"))))


@pytest.mark.slow
def test_alone_is_as_in_a_row(runs: list[StreamRun], in_a_row: list[tuple[Any, ...]], tmp_path: Path) -> None:
    assert told(carry_out(runs[1:2], job(tmp_path))) == in_a_row[1:2]


def test_finished_runs_start_no_worker(runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out(runs[:2], job(tmp_path))
    monkeypatch.setattr(pool, "WorkerPool", None)
    monkeypatch.setattr(pool, "perform", None)
    outcomes = execute(runs[:2], job(tmp_path, 2))
    assert len(outcomes) == 2
    assert all(isinstance(outcome, Result) for outcome in outcomes.values())


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.slow
def test_side_by_side_with_a_worker_that_dies(
    runs: list[StreamRun], in_a_row: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    """Its run fails, the others go on and are as in a row, and so is the failed one when it is run again."""
    heard: dict[RunKey, list[Any]] = {run.key: [] for run in runs}

    def kill_the_second(run: Run, event: Any) -> None:
        if run == runs[1] and not heard[run.key]:
            # The worker that was started last; the first may have ended by now, with all other runs.
            os.kill(max(child.pid or 0 for child in multiprocessing.active_children()), signal.SIGKILL)
        heard[run.key].append(event)

    outcomes = carry_out(runs, job(tmp_path, 2), Observer(kill_the_second))
    assert isinstance(outcomes[1], OcilError)
    assert f"{runs[1].cell} seed 1: its process ended with code -9. Given again, it goes on" in str(outcomes[1])
    assert told([outcomes[0], outcomes[2]]) == [in_a_row[0], in_a_row[2]]
    for run, outcome in zip(runs, outcomes, strict=True):
        assert isinstance(heard[run.key][0], Progress)
        assert heard[run.key][-1] is outcome
    assert told(carry_out(runs, job(tmp_path))) == in_a_row
    assert not left_over(tmp_path)


def test_a_second_ctrl_c_ends_the_workers(runs: list[StreamRun], tmp_path: Path) -> None:
    def stop_at_once() -> bool:
        if len(multiprocessing.active_children()) == 2:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run_all(runs, job(tmp_path, 2), Observer(should_stop=stop_at_once))
    end = time.monotonic() + 600
    while multiprocessing.active_children() and time.monotonic() < end:
        time.sleep(0.01)
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see who is alive")
def test_workers_end_when_their_parent_is_killed(
    fork_python: Callable[..., Forked], tiny_npz: Path, tmp_path: Path
) -> None:
    """In the middle of a rehearsal, too, which sends nothing for as long as it takes."""
    script = f"""
import multiprocessing, pathlib
from ocil.runs.config import resolve
from ocil.engines.job import Job, Observer
from ocil.engines.pool import run_all
from ocil.runs.stream_run import StreamRun

def tell(run, event):
    if event.done:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)

if __name__ == "__main__":
    settings = dict(memory=20, width=2, tasks=2, batch_size=5, rehearsal_epochs=10**6)
    runs = [StreamRun(resolve("gdumb", {str(tiny_npz)!r}, seed=seed, settings=settings)) for seed in range(2)]
    run_all(runs, Job(pathlib.Path({str(tmp_path / "runs")!r}), "cpu", workers=2), Observer(tell))
"""
    path = tmp_path / "driver.py"  # spawned workers import it
    path.write_text(script)
    with fork_python(path) as driver:
        workers = [int(word) for word in driver.stdout.readline().split()]
        driver.kill()
    try:
        assert len(workers) == 2
        end = time.monotonic() + 600
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
    runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first is free at once; another process gives up the others one by one."""
    begun: list[list[Run]] = []
    held = [ExitStack(), ExitStack()]
    for stack, run in zip(held, runs[1:], strict=True):
        stack.enter_context(run.folder(tmp_path).lock())
    monkeypatch.setattr(time, "sleep", lambda seconds: held.pop(0).close())
    outcomes = with_waiting(taking(begun), runs, job(tmp_path), Observer())
    assert begun == [runs, runs[1:]]
    assert all(outcomes[run.key] is DONE for run in runs)
    assert caplog.text.count("Another process works on 2 of the runs") == 1


DONE = Exception("done")


def taking(begun: list[list[Run]]) -> Callable[[Sequence[Run], Job, Observer], Outcomes]:
    """Runs that do nothing in their folders. What was begun together is noted."""

    def attempt(runs: Sequence[Run], job: Job, _: Observer) -> Outcomes:
        begun.append(list(runs))
        outcomes: Outcomes = {}
        for run in runs:
            try:
                with run.folder(job.root).lock():
                    outcomes[run.key] = DONE
            except OcilError as error:
                outcomes[run.key] = error
        return outcomes

    return attempt


def test_a_third_process_may_take_what_came_free(
    runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process holds two runs. It gives up the first, a third process takes that, and then both come free."""
    first, second = (run.folder(tmp_path) for run in runs[:2])
    ours, theirs, other = ExitStack(), ExitStack(), ExitStack()
    ours.enter_context(first.lock())
    other.enter_context(second.lock())
    happens: Iterator[Callable[[], Any]] = iter(
        [ours.close, lambda: theirs.enter_context(first.lock()), lambda: None, theirs.close, other.close]
    )
    monkeypatch.setattr(time, "sleep", lambda seconds: next(happens)())
    begun: list[list[Run]] = []
    outcomes = with_waiting(taking(begun), runs[:2], job(tmp_path), Observer())
    assert all(outcomes[run.key] is DONE for run in runs[:2])
    assert begun == [runs[:2], runs[:2]]


def test_what_is_held_until_the_end_is_stopped_and_not_failed(
    runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[Run, Any]] = []
    slept: list[float] = []
    tries: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(files, "sleep", tries.append)
    observer = Observer(lambda *event: heard.append(event), lambda: len(slept) == 2)
    with runs[1].folder(tmp_path).lock():
        outcomes = with_waiting(taking([]), runs[:2], job(tmp_path), observer)
    assert outcomes[runs[0].key] is DONE
    assert isinstance(outcomes[runs[1].key], Interrupted)
    assert heard == [(runs[1], outcomes[runs[1].key])]
    assert len(tries) == files.LOCK_TRIES - 1  # to take the run; a look at one that is held waits for nothing


def test_a_failing_run_leaves_the_others_alone(
    runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = FineTune.learn

    def failing(self: FineTune, x: torch.Tensor, y: torch.Tensor) -> None:
        if self.rng.seed == 0:
            raise ValueError("a mistake\nin a method")
        learn(self, x, y)

    monkeypatch.setattr(FineTune, "learn", failing)
    outcomes = carry_out([runs[0], runs[2]], job(tmp_path))
    assert isinstance(outcomes[0], OcilError)
    assert "fine-tune seed 0: ValueError: a mistake" in str(outcomes[0])
    assert "test_engine_local.py, line" in str(outcomes[0])
    assert isinstance(outcomes[1], Result)


def test_a_run_that_ends_the_program_fails_alone(
    runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(self: FineTune, x: torch.Tensor, y: torch.Tensor) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(FineTune, "learn", learn)
    failed, fine = carry_out(runs[:2], job(tmp_path))
    assert "its code ends the program (test_engine_local.py, line" in str(failed)
    assert isinstance(fine, Result)


def test_a_run_that_cannot_be_sent_fails_alone(runs: list[StreamRun], tmp_path: Path) -> None:
    class Inside(StreamRun):
        """Of a class that only this function has, as a class of settings may be."""

    inside = Inside(runs[0].config)
    workers = pool.WorkerPool([inside, runs[1]], job(tmp_path), 2, Observer())
    ours, theirs = multiprocessing.Pipe()
    workers.assign(ours, multiprocessing.get_context("spawn").Process())
    assert theirs.recv() == runs[1]
    assert workers.busy[ours][1] is runs[1]
    assert "define and register it above that line, or in a plugin file" in str(workers.outcomes[inside.key])
    assert "Inside" in str(workers.outcomes[inside.key])


class OwnError(OcilError):
    def __init__(self, name: str, place: str) -> None:
        super().__init__(f"{name} is missing in {place}")  # pickle would make another one with this text alone


class HeldError(OcilError):
    def __init__(self) -> None:
        super().__init__("the lock is held")
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OwnError("a file", "a folder"), "a file is missing in a folder"),
        (HeldError(), "the lock is held"),
        (OcilError(lambda: 0), "<function"),
    ],
)
def test_an_error_that_cannot_be_sent_fails_its_run_only(
    runs: list[StreamRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OcilError, message: str
) -> None:
    """What a worker sends must be readable for the process that started it, and the worker goes on."""

    def learn(self: FineTune, x: torch.Tensor, y: torch.Tensor) -> None:
        raise error

    monkeypatch.setattr(FineTune, "learn", learn)
    ours, theirs = multiprocessing.Pipe()
    for task in (runs[0], runs[2], None):
        ours.send(task)
    pool._work(theirs, job(tmp_path), (), multiprocessing.get_context("spawn").Event())
    events = []
    while ours.poll():
        events.append(ours.recv())
    found = [event for event in events if not isinstance(event, Progress)]
    assert [type(outcome) for outcome in found] == [OcilError] * 2
    assert all(message in str(outcome) for outcome in found)


def test_an_error_that_is_its_own_cause_has_an_end() -> None:
    """``raise error from error`` is allowed, and whoever follows the causes comes back to where they began."""
    error = ValueError("again")
    error.__cause__ = error
    assert without_locals(error) is error


def test_a_corrupt_result_fails_its_run_only(runs: list[StreamRun], tmp_path: Path) -> None:
    folder = runs[0].folder(tmp_path)
    folder.path.mkdir(parents=True)
    (folder.path / "result.json").write_text("{")
    outcomes = carry_out([runs[0], runs[2]], job(tmp_path))
    assert isinstance(outcomes[0], OcilError)
    assert isinstance(outcomes[1], Result)


def test_asked_to_stop_before_the_start(runs: list[StreamRun], tmp_path: Path) -> None:
    outcomes = carry_out(runs, job(tmp_path), Observer(should_stop=lambda: True))
    assert all(isinstance(outcome, Interrupted) for outcome in outcomes)
    assert not list(tmp_path.rglob("*"))


def test_stopped_while_workers_start(runs: list[StreamRun], tmp_path: Path) -> None:
    """They load PyTorch for seconds and have nothing to save, so nobody waits for them."""
    workers: list[Any] = []

    def stop_when_started() -> bool:
        workers[:] = workers or multiprocessing.active_children()
        return True

    events: list[Any] = []
    watch = Observer(lambda run, event: events.append(event), stop_when_started)
    outcomes = carry_out(runs, job(tmp_path, 2), watch)
    assert all(isinstance(outcome, Interrupted) for outcome in outcomes)
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * 2
    assert len(events) == 2
    assert not list(tmp_path.rglob("*"))


def test_a_worker_ends_without_a_search_for_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(True))
    ours, theirs = multiprocessing.Pipe()
    ours.send(None)  # no run is left
    pool._work(theirs, job(tmp_path), (), multiprocessing.get_context("spawn").Event())
    assert frozen


def test_a_worker_does_not_repeat_what_its_parent_has_said(tmp_path: Path) -> None:
    """A dataset that a function makes is made by each process."""
    ours, theirs = multiprocessing.Pipe()
    ours.send(None)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pool._work(theirs, job(tmp_path), (), multiprocessing.get_context("spawn").Event())
        Dataset.from_arrays(np.eye(4), [0, 1, 0, 1])
        warnings.warn("another one", stacklevel=1)
    assert [str(each.message) for each in heard] == ["another one"]


def test_threads_are_put_back(runs: list[StreamRun], tmp_path: Path) -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    work = replace(job(tmp_path), threads=before + 1)
    carry_out(runs[:1], work, Observer(lambda run, event: seen.append(torch.get_num_threads())))
    assert seen[0] == before + 1
    assert torch.get_num_threads() == before


def test_a_dataset_is_read_once_until_its_file_changes(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path, name: str) -> Dataset:
        read.append(path)
        return load_npz(path, name)

    monkeypatch.setattr(lookup, "load_npz", counted)
    path = tmp_path / "own.npz"
    tiny.save(path)
    settings = {"width": 2, "tasks": 2}
    runs = [StreamRun(resolve("fine-tune", str(path), seed=seed, settings=settings)) for seed in range(3)]
    assert all(isinstance(found, Result) for found in carry_out(runs[:2], job(tmp_path / "a")))
    assert len(read) == 1
    replace(tiny, classes=("other", "names", "of", "classes")).save(path)
    (found,) = carry_out(runs[2:], job(tmp_path / "a"))
    assert len(read) == 2
    assert isinstance(found, Result)
    assert found.images != tiny.fingerprint


def test_nothing_to_do(tmp_path: Path) -> None:
    assert execute([], job(tmp_path)) == {}
