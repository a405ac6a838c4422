"""The GPU engine's logic on a CPU: the same loop without streams, the same stepper with a stand-in for a graph."""

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ocil.data import Dataset
from ocil.engines import execute, gpu, lanes
from ocil.engines.job import Job, Observer, Outcome
from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.runs.captured import CapturedStepper
from ocil.runs.config import RunConfig, resolve
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Finished, Interrupted, Run
from ocil.runs.results import Result
from ocil.runs.stepper import Stepper
from ocil.runs.stream_run import ActiveStreamRun, StreamRun, run
from ocil.streams import DeviceData
from tests.networks_to_try import TINY
from tests.reference.datasets import patterned

SETTINGS = {"tasks": 2, "width": 2, "batch_size": 5}
REPLAY = {"memory": 20, "memory_batch": 6, "review_batch": 5}


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    data = patterned(per_class=16)
    data.save(tmp_path / "tiny.npz")
    return data


def configs(tmp_path: Path, name: str, seeds: int, **settings: object) -> list[RunConfig]:
    chosen = SETTINGS | (REPLAY if name != "fine-tune" else {}) | settings
    if "network" in settings:
        del chosen["width"]  # it belongs to the default network
    return [resolve(name, str(tmp_path / "tiny.npz"), seed=seed, settings=chosen) for seed in range(seeds)]


def together(plan: list[RunConfig], job: Job, side_by_side: int = 10) -> list[Outcome]:
    """The outcomes in the order of the configurations."""
    runs = [StreamRun(config) for config in plan]
    outcomes = gpu.run_together(runs, job.workspace(interleaved=True), side_by_side, Observer())
    return [outcomes[run.key] for run in runs]


def run_all(plan: list[RunConfig], job: Job, observer: Observer | None = None) -> list[Outcome]:
    runs = [StreamRun(config) for config in plan]
    outcomes = gpu.run_all(runs, job, observer or Observer())
    return [outcomes[run.key] for run in runs]


class Replayed:
    """What a graph does, without a GPU: replaying runs the recorded work again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class FakeCapture(CapturedStepper):
    def record(self, work: Callable[[], None]) -> Replayed:
        return Replayed(work)


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
@pytest.mark.parametrize("name", ["afs", "fine-tune"])
def test_a_run_among_others_equals_the_run_alone(tmp_path: Path, name: str) -> None:
    plan = configs(tmp_path, name, 2, **({} if name == "fine-tune" else {"review": True}))
    outcomes = together(plan, Job(tmp_path / "together", "cpu", tmp_path))
    for config, outcome in zip(plan, outcomes, strict=True):
        assert isinstance(outcome, Result)
        alone = run(config, tmp_path / "alone", device="cpu")
        assert (outcome.digest, outcome.matrix) == (alone.digest, alone.matrix)


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
def test_a_result_says_that_runs_of_other_cells_shared_the_device(tmp_path: Path) -> None:
    """Their times say little of a method."""
    job, seeds = Job(tmp_path / "out", "cpu", tmp_path), configs(tmp_path, "fine-tune", 2)
    for plan, side_by_side, said in (
        (seeds, 2, None),
        (configs(tmp_path, "er", 1) + configs(tmp_path, "afs", 1), 3, 2),
    ):
        for outcome in together(plan, job, side_by_side):
            assert isinstance(outcome, Result)
            assert outcome.environment.get("side_by_side") == said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keep_last"),
    [*((name, True) for name, info in METHODS.items() if info.capturable and info.memory), ("afs", False)],
)
def test_captured_steps_are_the_written_steps(tmp_path: Path, dataset: Dataset, name: str, keep_last: bool) -> None:
    """Also with batches that are not full and a review that ends on an incomplete batch."""
    settings = {
        "review": True,
        "review_keep_last": keep_last,
        "drop_last": not keep_last,
        "memory": 22,
        "network": TINY,
    }
    (config,) = configs(tmp_path, name, 1, **settings)
    digests = []
    for stepper in (Stepper, FakeCapture):
        work = ActiveStreamRun(
            config, RunFolder(tmp_path / stepper.__name__), dataset, DeviceData(dataset, "cpu"), stepper
        )
        for _ in work.steps():
            pass
        digests.append(work.finish().digest)
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_capture_begins_where_a_resumed_run_goes_on(tmp_path: Path, dataset: Dataset) -> None:
    (config,) = configs(tmp_path, "er", 1)
    resident = DeviceData(dataset, "cpu")
    whole = ActiveStreamRun(config, RunFolder(tmp_path / "whole"), dataset, resident, FakeCapture)
    list(whole.steps())
    first = ActiveStreamRun(config, RunFolder(tmp_path / "parts"), dataset, resident, FakeCapture)
    steps = first.steps()
    while first.cursor < 9:
        next(steps)
    first.save()
    second = ActiveStreamRun(config, RunFolder(tmp_path / "parts"), dataset, resident, FakeCapture)
    assert second.cursor == 9
    list(second.steps())
    assert whole.finish().digest == second.finish().digest


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
def test_one_failure_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = configs(tmp_path, "er", 3)
    check = ActiveStreamRun.check_loss

    def fail_one(self: ActiveStreamRun) -> None:
        if self.config.seed == 1:
            raise ZeroDivisionError("made to fail")
        check(self)

    monkeypatch.setattr(ActiveStreamRun, "check_loss", fail_one)
    heard: list[int] = []
    observer = Observer(lambda run, event: heard.append(run.seed))
    outcomes = run_all(plan, Job(tmp_path / "out", "cpu", tmp_path, workers=2), observer)
    assert [isinstance(outcome, Result) for outcome in outcomes] == [True, False, True]
    assert "made to fail" in str(outcomes[1])
    assert set(heard) == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
def test_runs_are_grouped_by_precision_and_kept_in_order(tmp_path: Path) -> None:
    plan = [*configs(tmp_path, "er", 1, precision="fp32"), *configs(tmp_path, "fine-tune", 2)]
    outcomes = run_all(plan, Job(tmp_path / "out", "cpu", tmp_path))
    assert [outcome.config for outcome in outcomes if isinstance(outcome, Result)] == plan
    again = execute([StreamRun(config) for config in plan], Job(tmp_path / "out", "cpu", tmp_path))
    assert list(again.values()) == outcomes


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
def test_the_next_run_begins_when_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than asked for, and all of them; a run that is short does not wait for a long one beside it."""
    plan = [*configs(tmp_path, "er", 2), *configs(tmp_path, "fine-tune", 3)]
    live: set[str] = set()
    most = 0
    begin, finish = ActiveStreamRun.__init__, ActiveStreamRun.finish

    def begun(self: ActiveStreamRun, *args: Any, **kwargs: Any) -> None:
        nonlocal most
        begin(self, *args, **kwargs)
        live.add(f"{self.config.cell} {self.config.seed}")
        most = max(most, len(live))

    def finished(self: ActiveStreamRun) -> Result:
        live.discard(f"{self.config.cell} {self.config.seed}")
        return finish(self)

    monkeypatch.setattr(ActiveStreamRun, "__init__", begun)
    monkeypatch.setattr(ActiveStreamRun, "finish", finished)
    outcomes = run_all(plan, Job(tmp_path / "out", "cpu", tmp_path, workers=2))
    assert [outcome.config for outcome in outcomes if isinstance(outcome, Result)] == plan
    assert most == 2


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
def test_stopping_leaves_what_has_not_begun(tmp_path: Path) -> None:
    plan = configs(tmp_path, "er", 3)
    asked = itertools.count()
    observer = Observer(should_stop=lambda: next(asked) > 12)
    outcomes = run_all(plan, Job(tmp_path / "out", "cpu", tmp_path, workers=1), observer)
    assert all(isinstance(outcome, Interrupted) for outcome in outcomes)
    assert RunFolder.of(tmp_path / "out", plan[0]).load_checkpoint() is not None
    assert not RunFolder.of(tmp_path / "out", plan[2]).path.exists()
    again = run_all(plan, Job(tmp_path / "out", "cpu", tmp_path, workers=2))
    assert all(isinstance(outcome, Result) for outcome in again)


def test_once_it_is_to_stop_no_other_dataset_is_loaded(tmp_path: Path, dataset: Dataset) -> None:
    (first,), there = configs(tmp_path, "fine-tune", 1), False
    other = resolve("fine-tune", str(tmp_path / "damaged.npz"), settings=SETTINGS)
    Path(other.dataset).write_text("Loading this is an error.")

    def settled(run: Run, event: object) -> None:
        nonlocal there
        there = there or isinstance(event, Result)

    job, observer = Job(tmp_path / "out", "cpu", tmp_path), Observer(settled, lambda: there)
    outcomes = run_all([first, other], job, observer)
    assert isinstance(outcomes[0], Result)
    assert isinstance(outcomes[1], Interrupted)


@pytest.mark.usefixtures("dataset")
def test_a_full_device_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: ActiveStreamRun) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(ActiveStreamRun, "check_loss", full)
    (outcome,) = run_all(configs(tmp_path, "er", 1), Job(tmp_path / "out", "cpu", tmp_path))
    assert isinstance(outcome, OcilError)
    assert "does not fit on the device" in str(outcome)


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
def test_a_run_that_had_to_wait_for_memory_ends_as_if_it_had_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three find no room when they are tested for the first time, and begin anew one after the other."""
    plan, room, alone = configs(tmp_path, "er", 3), 1, ActiveStreamRun.check_loss
    holders: set[int] = set()

    def in_a_small_device(self: ActiveStreamRun) -> None:
        if self.cursor:
            holders.add(self.config.seed)
            if len(holders) > room:
                holders.discard(self.config.seed)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        alone(self)

    def leave(run: Run, event: object) -> None:
        if isinstance(event, Result):
            holders.discard(run.seed)

    monkeypatch.setattr(ActiveStreamRun, "check_loss", in_a_small_device)
    outcomes = run_all(plan, Job(tmp_path / "small", "cpu", tmp_path, workers=3), Observer(leave))
    monkeypatch.undo()
    for config, outcome in zip(plan, outcomes, strict=True):
        assert isinstance(outcome, Result)
        assert outcome.digest == run(config, tmp_path / "alone", device="cpu").digest


class Promised:
    """What an event does, without a GPU: done when the test says so."""

    done = False

    def query(self) -> bool:
        return self.done


def test_a_run_is_only_so_many_steps_ahead_of_the_gpu() -> None:
    """A slow run must not fill the queues that quick ones need too."""
    run, active = StreamRun(resolve("fine-tune")), Finished(Result(resolve("fine-tune"), [], [], 0.0, {}, "", {}))
    lane = lanes.Lane(run, iter(()), active.finish, None, ExitStack())
    events = [Promised() for _ in range(lanes.AHEAD)]
    for event in events:
        assert lane.has_room()
        lane.ahead.append(event)  # type: ignore[arg-type]
    assert not lane.has_room()
    events[1].done = True  # steps end in order: one that ended early says nothing
    assert not lane.has_room()
    events[0].done = True
    assert lane.has_room()
    assert list(lane.ahead) == events[2:]  # type: ignore[comparison-overlap]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {"review": True}) for name, info in METHODS.items() if info.capturable and info.memory),
        ("fine-tune", {}),
        ("er", {"network": "resnet18(width=2)"}),
        ("er", {"optimizer": "adam"}),
        ("afs", {"network": "resnet18(width=2)", "optimizer": "adamw", "review": True}),
        *((name, {"evaluate_every": 3, "prequential": 2, "probe": True}) for name in ("afs", "scr", "pcr")),
    ],
)
def test_graphs_on_a_gpu_give_the_bits_of_plain_steps(
    tmp_path: Path, dataset: Dataset, name: str, settings: dict[str, Any]
) -> None:
    same_bits_in_graphs(tmp_path, dataset, configs(tmp_path, name, 3, precision="fp32", **settings))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ncm", "slda", "er"])
def test_graphs_on_a_gpu_give_the_bits_of_plain_steps_on_vectors(tmp_path: Path, name: str) -> None:
    images = patterned(per_class=24)
    train, test = (x.reshape(len(x), -1).astype(np.float32) / 255 for x in (images.train_x, images.test_x))
    vectors = replace(images, train_x=train, test_x=test)
    vectors.save(tmp_path / "tiny.npz")
    chosen = {
        "network": "linear",
        "precision": "fp32",
        "tasks": 2,
        "batch_size": 5,
        **({"memory": 20, "memory_batch": 6} if name == "er" else {}),
    }
    plan = [resolve(name, str(tmp_path / "tiny.npz"), seed=seed, settings=chosen) for seed in range(2)]
    same_bits_in_graphs(tmp_path, vectors, plan)


def same_bits_in_graphs(tmp_path: Path, dataset: Dataset, plan: list[RunConfig]) -> None:
    outcomes = together(plan, Job(tmp_path / "together", "cuda", tmp_path))
    for config, outcome in zip(plan, outcomes, strict=True):
        alone = run(config, tmp_path / "alone", device="cuda", dataset=dataset)
        assert isinstance(outcome, Result)
        assert (outcome.digest, outcome.matrix) == (alone.digest, alone.matrix)
        assert (outcome.anytime, outcome.prequential) == (alone.anytime, alone.prequential)


def test_a_dataset_that_is_gone_leaves_the_others_alone(tmp_path: Path, dataset: Dataset) -> None:
    good, lost = configs(tmp_path, "er", 1)[0], resolve("er", str(tmp_path / "lost.npz"), settings=SETTINGS | REPLAY)
    heard: list[tuple[object, object]] = []
    job = Job(tmp_path / "runs", "cpu", tmp_path)
    outcomes = run_all([lost, good], job, Observer(lambda run, event: heard.append((run, event))))
    assert isinstance(outcomes[0], OcilError)
    assert isinstance(outcomes[1], Result)
    assert (StreamRun(lost), outcomes[0]) in heard


@pytest.mark.usefixtures("dataset")
def test_a_method_that_cannot_state_its_tensors_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [*configs(tmp_path, "agem", 1), *configs(tmp_path, "er", 1)]

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("no stages")

    monkeypatch.setattr(METHODS["agem"].learner_class, "extra_state", broken)
    failed, other = run_all(plan, Job(tmp_path / "runs", "cpu", tmp_path))
    assert isinstance(failed, OcilError)
    assert "ZeroDivisionError: no stages" in str(failed)
    assert isinstance(other, Result)
