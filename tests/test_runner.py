from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ocil.data import Dataset
from ocil.devices import pick_device
from ocil.engines import gpu
from ocil.engines.job import Observer
from ocil.errors import OcilError
from ocil.evaluation.evaluator import BATCH
from ocil.methods.er import ER
from ocil.methods.fine_tune import FineTune
from ocil.runs.build import check, make_learner
from ocil.runs.config import RunConfig, resolve
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted, Progress, SaveTimes, Workspace
from ocil.runs.results import Result
from ocil.runs.stream_run import StreamRun, run
from ocil.streams import Stream
from ocil.streams.kinds import draw
from tests.conftest import CLASSES, TEST, left_over
from tests.networks_to_try import TINY

BATCHES = 8  # of the tiny stream


def tiny_config(name: str, **settings: Any) -> RunConfig:
    memory = {} if name == "fine-tune" else {"memory": 20, "memory_batch": 5}
    width = {} if "network" in settings else {"width": 2}
    return resolve(name, "tiny", settings=width | {"tasks": 2} | memory | settings)


def told(result: Result) -> tuple[Any, ...]:
    """All of a result that must not depend on how it came about."""
    return result.config, result.digest, result.matrix, result.evaluations


def stop_at(*batches: int) -> Any:
    """Says yes after these batches, counted from the start of a call."""
    counter: Iterator[int] = iter(range(1, 10**6))
    return lambda: next(counter) in batches


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"name": "afs"},
        {"name": "er", "review": True, "momentum": 0.9},
        {"name": "er", "boundary": "none", "review": True, "review_every": 4},
        {"name": "fine-tune", "class_order": "seeded", "boundary": "blurry"},
        {"name": "fine-tune", "boundary": "iid", "epochs": 2, "drop_last": False, "batch_size": 50},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_a_run_stopped_twice_ends_bit_identical(tiny: Dataset, tmp_path: Path, settings: dict[str, Any]) -> None:
    config = tiny_config(**settings)
    undisturbed = run(config, tmp_path / "a", dataset=tiny, device="cpu")
    for batch in (1, 3):
        with pytest.raises(Interrupted):
            run(config, tmp_path / "b", dataset=tiny, device="cpu", should_stop=stop_at(batch))
    resumed = run(config, tmp_path / "b", dataset=tiny, device="cpu")
    assert told(resumed) == told(undisturbed)
    assert not left_over(tmp_path)


def test_a_finished_run_is_left_alone(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("fine-tune")
    first = run(config, tmp_path, dataset=tiny, device="cpu")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}

    def learn(*_: Any) -> None:
        raise AssertionError("nothing is to be learned")

    monkeypatch.setattr(FineTune, "learn", learn)
    assert run(config, str(tmp_path), dataset=tiny, device="cpu") == first
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    assert before == after
    assert {path.name for path in before} == {".lock", "config.json", "result.json", "checkpoint.safetensors"}


@pytest.mark.parametrize("engine", ["alone", "together"])
def test_a_run_that_another_process_ended_meanwhile(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Whoever comes second to the lock finds the result, and leaves it as it is."""
    config = tiny_config("fine-tune").identified(tiny)
    lock, written = RunFolder.lock, []
    path = RunFolder.of(tmp_path, config).path / "result.json"

    def slow_lock(folder: RunFolder) -> Any:
        monkeypatch.setattr(RunFolder, "lock", lock)
        run(config, tmp_path, dataset=tiny, device="cpu")  # the other one
        written.append((path.stat().st_mtime_ns, path.read_bytes()))
        return lock(folder)

    monkeypatch.setattr(RunFolder, "lock", slow_lock)
    if engine == "alone":
        outcome: Any = run(config, tmp_path, dataset=tiny, device="cpu")
    else:
        workspace = Workspace(tmp_path, torch.device("cpu"), interleaved=True, dataset=tiny)
        (outcome,) = gpu.run_together([StreamRun(config)], workspace, 1, Observer()).values()
    assert outcome == RunFolder.of(tmp_path, config).result()
    assert written == [(path.stat().st_mtime_ns, path.read_bytes())]


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "er", "review": True, "review_batch": 10},
        {"name": "er", "boundary": "none", "review": True, "review_every": 3, "review_batch": 10},
        {"name": "gdumb", "rehearsal_epochs": 1, "rehearsal_batch": 10},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
@pytest.mark.usefixtures("quick_convolution")
def test_stopped_at_every_point_it_ends_bit_identical(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Also inside a review, an evaluation and a rehearsal. Every question whether to stop is answered with yes once."""
    monkeypatch.setitem(BATCH, "cpu", 20)  # so that an evaluation has several batches
    config = tiny_config(**settings, network=TINY)
    asked: list[int] = []
    undisturbed = run(config, tmp_path / "a", dataset=tiny, device="cpu", should_stop=lambda: bool(asked.append(1)))
    assert len(asked) > BATCHES + 2 * 2 * (TEST * CLASSES // 20)
    for number in range(1, len(asked) + 1):
        root = tmp_path / str(number)
        with pytest.raises(Interrupted):
            run(config, root, dataset=tiny, device="cpu", should_stop=stop_at(number))
        assert told(run(config, root, dataset=tiny, device="cpu")) == told(undisturbed), f"stopped at {number}"


def test_a_stop_inside_a_review_waits_for_no_further_batch(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was learned before is not learned again."""
    config = tiny_config("er", review=True, review_batch=5)
    reviewed: list[int] = []
    step = ER.review_step

    def watched(self: ER, slots: Tensor) -> None:
        reviewed.append(1)
        step(self, slots)

    monkeypatch.setattr(ER, "review_step", watched)
    with pytest.raises(Interrupted):
        run(config, tmp_path, dataset=tiny, device="cpu", should_stop=lambda: bool(reviewed))
    assert len(reviewed) == 1
    found = RunFolder.of(tmp_path, config.identified(tiny)).load_checkpoint()
    assert found is not None
    assert found[1]["cursor"] == BATCHES // 2 - 1  # the batch before the review is taken again, and no other


def test_the_first_saves_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("ocil.runs.protocol.time.monotonic", lambda: now)
    saves = {seconds: SaveTimes(seconds) for seconds in (0.0, 30.0, 1e9)}
    found: dict[float, list[float]] = {seconds: [] for seconds in saves}
    while now < 120:
        now += 1
        for seconds, times in saves.items():
            if times.due():
                times.note()
                found[seconds].append(now)
    assert len(found[0]) == 120
    assert found[30] == [3, 9, 27, 57, 87, 117]
    assert found[1e9] == [3, 9, 27, 81]


def test_the_time_spent_adds_up(tiny: Dataset, tmp_path: Path) -> None:
    config = tiny_config("fine-tune")
    with pytest.raises(Interrupted):
        run(config, tmp_path, dataset=tiny, device="cpu", should_stop=stop_at(6))
    found = RunFolder.of(tmp_path, config.identified(tiny)).load_checkpoint()
    assert found is not None
    assert run(config, tmp_path, dataset=tiny, device="cpu").wall_seconds > found[1]["seconds"] > 0


def test_progress_goes_to_the_end(tiny: Dataset, tmp_path: Path) -> None:
    seen: list[Progress] = []
    result = run(tiny_config("er"), tmp_path, dataset=tiny, device="cpu", on_progress=seen.append)
    assert [seen[0].done, seen[-1].done] == [0, BATCHES]
    assert {progress.total for progress in seen} == {BATCHES}
    assert seen[0].accuracy is None
    assert seen[-1].accuracy == pytest.approx(sum(result.matrix[-1]) / 2)
    assert seen[-1].loss is not None


@pytest.fixture
def loss_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tuning whose loss is not a number from its third step on, with seed 1."""
    learn = FineTune.learn

    def failing(self: FineTune, x: Tensor, y: Tensor) -> None:
        learn(self, x, y)
        if self.rng.seed == 1 and int(self.steps) == 3:
            self.steps -= 1
            self.record_loss(torch.tensor(float("nan")))

    monkeypatch.setattr(FineTune, "learn", failing)


@pytest.mark.usefixtures("loss_that_fails")
@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1e9])
def test_a_loss_that_is_not_finite(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint_seconds: float
) -> None:
    monkeypatch.setattr("ocil.runs.stream_run.FIRST_SAVE", 1e9)
    config = resolve("fine-tune", "tiny", seed=1, settings={"width": 2, "tasks": 2})
    with pytest.raises(OcilError, match=r"not finite at training step 2 .*\(--set lr=0\.01\)") as e:
        run(config, tmp_path, dataset=tiny, device="cpu", checkpoint_seconds=checkpoint_seconds)
    assert "fine-tune seed 1" in str(e.value)
    folder = RunFolder.of(tmp_path, config.identified(tiny))
    assert folder.result() is None
    found = folder.load_checkpoint()
    assert (found is not None) == (checkpoint_seconds == 0)
    if found:
        assert int(found[0]["failed_at"]) == -1  # what is saved is sound


def test_a_first_loss_that_is_not_finite_is_no_matter_of_the_learning_rate_alone(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FineTune, "learn", lambda self, x, y: self.record_loss(torch.tensor(torch.nan)))
    with pytest.raises(OcilError, match=r"at training step 0 .*look at the network and the loss before you lower the"):
        run(tiny_config("fine-tune"), tmp_path, dataset=tiny, device="cpu")


def test_too_high_a_learning_rate_really_fails(tiny: Dataset, tmp_path: Path) -> None:
    with pytest.raises(
        OcilError, match=r"not finite at training step \d+ \(stream batch \d+ of 8\).*\(--set lr=0.1\)\.$"
    ):
        run(tiny_config("er", lr=1e6), tmp_path, dataset=tiny, device="cpu")


def test_out_of_host_memory_is_said(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(*_: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: 8 bytes")

    monkeypatch.setattr(FineTune, "learn", learn)
    with pytest.raises(OcilError, match="does not fit on the device: use a smaller memory or width"):
        run(tiny_config("fine-tune"), tmp_path, dataset=tiny, device="cpu")


def test_other_exceptions_are_not_hidden(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(*_: Any) -> None:
        raise RuntimeError("a mistake in a method")

    monkeypatch.setattr(FineTune, "learn", learn)
    with pytest.raises(RuntimeError, match="a mistake in a method"):
        run(tiny_config("fine-tune"), tmp_path, dataset=tiny, device="cpu")


@pytest.mark.parametrize("name", ["tpu", "", "meta", "cuda:99", "gpu", "cpu:cpu"])
def test_a_device_that_is_not_there(name: str) -> None:
    there = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu"
    with pytest.raises(OcilError, match=rf"is not there: use {there}\."):
        pick_device(name)


def test_devices() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device().type in ("cpu", "cuda")


def test_make_learner(tiny: Dataset) -> None:
    learner = make_learner("afs", tiny, memory=20, width=2, memory_batch=5)
    x, y = torch.from_numpy(tiny.train_x[:10]), torch.from_numpy(tiny.train_y[:10])
    before = learner.scores(x)
    learner.learn(x, y)
    assert learner.scores(x).shape == (10, 4)
    assert not torch.equal(before, learner.scores(x))
    with pytest.raises(OcilError, match="Did you mean 'width'"):
        make_learner("afs", tiny, widht=2)


def test_reviews_that_would_never_come_are_refused(tiny: Dataset) -> None:
    settings = {"boundary": "none", "tasks": 2, "memory_batch": 5, "review_every": 500}
    config = resolve("er", "tiny", memory=20, review=True, settings=settings)
    with pytest.raises(OcilError, match=r"review_every = 500 is more than the 8 batches of the stream"):
        check(config, tiny)
    config = resolve("er", "tiny", memory=20, review=True, settings={"tasks": 2, "memory_batch": 5, "review_batch": 50})
    with pytest.raises(
        OcilError, match=r"review_batch = 50 is more than memory = 20.* Give a smaller one \(--set review_batch=20\)"
    ):
        check(config, tiny)
    settings = {"tasks": 2, "memory_batch": 5, "review_batch": 50, "review_keep_last": True}
    check(resolve("er", "tiny", memory=20, review=True, settings=settings), tiny)


@pytest.mark.parametrize("known", [False, True])
def test_a_short_stream_without_tasks_is_reviewed_as_often_as_it_has_tasks(
    tiny: Dataset, tmp_path: Path, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented default, 500 or the length of a task, whether the length is known when the settings are filled in
    or only at the run."""
    reviews: list[int] = []
    monkeypatch.setattr(ER, "review_batches", lambda self: reviews.append(len(self.memory)) or [])
    settings = {"boundary": "none", "tasks": 2, "memory_batch": 5, "width": 2}
    train = len(tiny.train_y) if known else None
    config = resolve("er", "tiny", memory=20, review=True, settings=settings, classes=4, train=train)
    assert config.learner.review_every == (4 if known else 0)
    check(config, tiny)
    run(config, tmp_path, dataset=tiny, device="cpu")
    assert len(reviews) == 2


@pytest.mark.parametrize(
    ("train", "classes", "settings", "memory"),
    [
        (181, 10, {}, 18),
        (181, 30, {}, 30),
        (40, 2, {}, 10),
        (40, 2, {"batch_size": 15}, 15),
        (3000, 10, {}, 300),
        (10**6, 10, {}, 5000),
        (10**6, 10, {"memory": 70}, 70),
    ],
)
def test_own_data_gets_a_memory_that_fits(train: int, classes: int, settings: dict[str, int], memory: int) -> None:
    assert resolve("er", "mine", settings=settings, classes=classes, train=train).learner.memory == memory
    assert resolve("er", "cifar10", classes=classes, train=train).learner.memory == 1000
    assert resolve("afs", "mine", classes=classes, train=181).learner.memory >= 100  # what a step draws


def test_a_learner_for_own_data_gets_a_memory_that_fits(tiny: Dataset) -> None:
    assert make_learner("er", replace(tiny, name="mine"), width=2).config.memory == 10


def test_a_batch_of_one_tiny_image_is_refused_and_a_review_leaves_it_out(tiny: Dataset, tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="a batch of one image of tiny has no batch statistics"):
        check(tiny_config("fine-tune", batch_size=3, drop_last=False), tiny)
    config = tiny_config("afs", memory=11)
    assert run(config, tmp_path, dataset=tiny, device="cpu").matrix


def test_a_run_begun_with_other_threads_is_not_mixed(tiny: Dataset, tmp_path: Path) -> None:
    config = tiny_config("er")
    with pytest.raises(Interrupted):
        run(config, tmp_path, dataset=tiny, device="cpu", should_stop=lambda: True)
    with pytest.raises(OcilError, match="was begun with 1 threads: go on with as many \\(--threads 1\\)"):
        run(config, tmp_path, dataset=tiny, device="cpu", threads=2)
    assert run(config, tmp_path, dataset=tiny, device="cpu").matrix


def test_runs_of_other_images_of_one_name_are_not_mixed(tiny: Dataset, tmp_path: Path) -> None:
    config = tiny_config("er")
    with pytest.raises(Interrupted):
        run(config, tmp_path, dataset=tiny, device="cpu", should_stop=lambda: True)
    train_x = tiny.train_x.copy()
    train_x[0, 0, 0, 0] ^= 1
    other = replace(tiny, train_x=train_x)
    results = [run(config, tmp_path, dataset=data, device="cpu") for data in (other, tiny, other)]
    assert [result.images for result in results] == [other.fingerprint, tiny.fingerprint, other.fingerprint]
    assert results[0] == results[2]
    assert len({result.config.cell for result in results}) == len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OcilError, match=r"an ocil\.Dataset is needed, not a str"):
        run(config, tmp_path, dataset="tiny", device="cpu")  # type: ignore[arg-type]


def test_a_result_of_a_file_that_has_changed_is_not_taken_for_one_of_it(tiny: Dataset, tmp_path: Path) -> None:
    """Whoever calls ``run`` with the name of a file has not seen what is in it now."""
    file = tmp_path / "mine.npz"
    tiny.save(file)
    config = resolve("er", file, settings={"width": 1, "memory_batch": 5})
    first = run(config, tmp_path, device="cpu")
    assert run(config, tmp_path, device="cpu") == first
    other = replace(tiny, train_x=255 - tiny.train_x)
    file.unlink()
    assert run(config, tmp_path, device="cpu") == first  # there are no others of this name
    other.save(file)
    second = run(config, tmp_path, device="cpu")
    assert second.images == other.fingerprint != first.images
    file.unlink()
    with pytest.raises(OcilError, match="there is no such file"):
        run(config, tmp_path, device="cpu")


def test_a_run_begun_in_another_order_of_arrival_is_not_mixed(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("er")
    with pytest.raises(Interrupted):
        run(config, tmp_path, dataset=tiny, device="cpu", should_stop=lambda: True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with monkeypatch.context() as later:
        later.setattr("ocil.streams.stream.draw", lambda data, config, seed: draw(data, config, seed + 1))
        with pytest.raises(OcilError, match=r"was begun with another order of arrival.*finish it with that version"):
            run(config, tmp_path, dataset=tiny, device="cpu")
    assert {path: path.read_bytes() for path in before} == before
    finished = run(config, tmp_path, dataset=tiny, device="cpu")
    assert finished.order == Stream(tiny, config.stream, config.seed).arrivals.digest


@pytest.mark.parametrize(("settings", "goes_on"), [({}, True), ({"task_ends": "hidden"}, False)])
def test_a_checkpoint_from_before_it_kept_the_order(
    tiny: Dataset, tmp_path: Path, settings: dict[str, str], goes_on: bool
) -> None:
    config = tiny_config("er", **settings)
    with pytest.raises(Interrupted):
        run(config, tmp_path, dataset=tiny, device="cpu", should_stop=lambda: True)
    folder = RunFolder.of(tmp_path, config.identified(tiny))
    found = folder.load_checkpoint()
    assert found is not None
    tensors, progress = found
    del progress["order"]
    folder.save_checkpoint(tensors, progress)
    if goes_on:
        assert run(config, tmp_path, dataset=tiny, device="cpu").matrix
    else:
        with pytest.raises(OcilError, match="may have been begun with another order of arrival"):
            run(config, tmp_path, dataset=tiny, device="cpu")


def test_images_that_changed_after_planning_are_refused(tiny: Dataset, tmp_path: Path) -> None:
    config = replace(tiny_config("er"), fingerprint="another")
    with pytest.raises(OcilError, match="tiny has changed since this was planned: plan it again"):
        run(config, tmp_path, dataset=tiny, device="cpu")
    assert not list(tmp_path.rglob("*.json"))


def test_a_task_end_reviews_where_the_settings_have_it_there(tiny: Dataset) -> None:
    for every, reviews in ((0, 1), (300, 0)):
        learner = make_learner("er", tiny, memory=20, review=True, review_every=every, width=2, memory_batch=5)
        seen: list[int] = []
        learner.review = lambda seen=seen: seen.append(1)  # type: ignore[misc]
        learner.end_task()
        assert len(seen) == reviews


def test_make_learner_refuses_what_is_not_the_methods(tiny: Dataset) -> None:
    with pytest.raises(OcilError, match="unknown setting 'tasks' for er"):
        make_learner("er", tiny, tasks=2)
