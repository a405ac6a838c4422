"""Batches that are read ahead of time: their order, errors, and the end of the thread."""

import gc
import threading
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import ocil
from ocil import Dataset, OcilError, Stream, StreamConfig
from ocil.data.lookup import load
from ocil.data.samples import Samples
from ocil.evaluation.evaluator import Evaluator
from ocil.runs.captured import CapturedStepper
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted, Workspace
from ocil.runs.stepper import Stepper
from ocil.runs.stream_run import ActiveStreamRun, StreamRun
from ocil.streams import DeviceData, device
from ocil.streams.prefetch import CudaBatchLoader, HostBatches, Prefetcher
from tests.test_engine_gpu import FakeCapture


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ocil-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    yield
    gc.collect()
    for thread in readers():
        thread.join(10)
    assert not readers()


def test_items_come_once_and_in_order_from_anywhere() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return 10 * number

    items = Prefetcher(make, 20, ahead=3)
    assert [items.take(number) for number in range(6)] == [0, 10, 20, 30, 40, 50]
    assert [items.take(number) for number in range(15, 20)] == [150, 160, 170, 180, 190]
    assert items.take(0) == 0
    items.close()
    assert made[:6] == list(range(6))
    assert made.index(15) <= 9  # three ahead of the sixth, not more
    assert items.take(7) == 70  # it starts again
    items.close()
    with pytest.raises(IndexError):
        items.take(20)


def test_no_more_than_ahead_are_made() -> None:
    made = threading.Semaphore(0)
    items = Prefetcher(lambda number: made.release() or number, 100, ahead=3)
    items.take(0)
    for _ in range(4):
        assert made.acquire(timeout=10)
    assert not made.acquire(timeout=0.05)
    items.close()


def test_an_error_is_raised_where_its_item_is_asked_for() -> None:
    def make(number: int) -> int:
        if number == 3:
            raise OcilError("cut short")
        return number

    items = Prefetcher(make, 10)
    assert [items.take(number) for number in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(OcilError, match="cut short"):
            items.take(3)
    assert items.take(4) == 4


def test_a_prefetcher_that_nobody_needs_ends_its_thread() -> None:
    items = Prefetcher(lambda number: number, 1000)
    items.take(0)
    (thread,) = readers()
    del items
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def mapped_tiny(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The tiny dataset in a folder, read as if it were large."""
    Samples.of(tiny).write(tmp_path / "tiny")
    monkeypatch.setattr(device, "MAPPED_BYTES", 0)
    return load(tmp_path / "tiny")


def test_a_stream_of_a_large_dataset_is_the_same_stream(tiny: Dataset, mapped_tiny: Dataset) -> None:
    config = StreamConfig(tasks=2, batch_size=7, drop_last=False)
    there, away = Stream(tiny, config, 3), Stream(mapped_tiny, config, 3)
    assert there.device_data.resident
    assert not away.device_data.resident
    for start in (0, 5, 2):
        for one, other in zip(there.batches(start), away.batches(start), strict=True):
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)
            assert one.number == other.number
    kept = [batch.x for batch in away]
    assert all(torch.equal(x, there.fetch(number)[0]) for number, x in enumerate(kept))
    away.close()


def test_an_evaluation_is_the_same(tiny: Dataset, mapped_tiny: Dataset) -> None:
    config = StreamConfig(tasks=2, batch_size=5)
    found = []
    for data in (tiny, mapped_tiny):
        stream = Stream(data, config, 0)
        learner = ocil.make_learner("er", data, memory=10, memory_batch=5, batch_size=5, width=1)
        for batch in stream:
            learner.learn(batch.x, batch.y)
        found.append(Evaluator(stream)(learner, 1))
    assert found[0] == found[1]


def test_a_run_on_a_large_dataset_has_the_same_bits_and_goes_on_at_any_batch(
    tiny: Dataset, mapped_tiny: Dataset, tmp_path: Path
) -> None:
    settings = {"memory": 10, "memory_batch": 5, "batch_size": 5, "width": 1, "tasks": 2}
    config = ocil.resolve("er", "tiny", settings=settings)
    expected = ocil.run(config, tmp_path / "there", dataset=tiny, device="cpu")
    steps = 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return steps % 4 == 0

    for _ in range(40):
        try:
            found = ocil.run(config, tmp_path / "away", dataset=mapped_tiny, device="cpu", should_stop=stop)
        except Interrupted:
            continue
        break
    assert found.digest == expected.digest
    assert found.matrix == expected.matrix


@pytest.mark.parametrize("name", ["er", "afs"])
def test_captured_steps_read_what_was_brought_before_each_replay(name: str, tiny: Dataset, tmp_path: Path) -> None:
    settings = {"memory": 12, "memory_batch": 5, "batch_size": 5, "width": 1, "tasks": 2, "drop_last": False}
    config = ocil.resolve(name, "tiny", settings=settings | {"review_batch": 5})
    digests = []
    for kept in (True, False):
        place, resident = RunFolder(tmp_path / str(kept)), DeviceData(tiny, "cpu", resident=kept)
        work = ActiveStreamRun(config, place, tiny, resident, FakeCapture)
        steps = cast("Generator[None, None, None]", work.steps())
        while work.cursor < 6:
            next(steps)
        work.save()
        steps.close()
        again = ActiveStreamRun(config, place, tiny, resident, FakeCapture)
        assert again.cursor == 6
        list(again.steps())
        digests.append(again.finish().digest)
        work.stream.close()
        again.stream.close()
    assert digests[0] == digests[1]


@pytest.mark.gpu
def test_on_a_gpu_batches_from_the_host_give_the_same_learner(tiny: Dataset, tmp_path: Path) -> None:
    config = ocil.resolve(
        "er",
        "tiny",
        settings={"memory": 12, "memory_batch": 5, "batch_size": 5, "width": 2, "tasks": 2, "precision": "fp32"},
    )
    digests = []
    for kept in (True, False):
        for stepper in (Stepper, CapturedStepper):
            with torch.cuda.stream(torch.cuda.Stream()):
                resident = DeviceData(tiny, "cuda", resident=kept)
                place = RunFolder(tmp_path / f"{kept}-{stepper.__name__}")
                work = ActiveStreamRun(config, place, tiny, resident, stepper)
                list(work.steps())
                digests.append(work.finish().digest)
                work.stream.close()
    assert digests[0] == digests[2]
    assert digests[1] == digests[3]


def test_a_run_that_is_kept_has_ended_its_thread(mapped_tiny: Dataset, tmp_path: Path) -> None:
    config = ocil.resolve("fine-tune", mapped_tiny.name, settings={"width": 2, "tasks": 2}, classes=4)
    with ExitStack() as held:
        active = StreamRun(config).open(Workspace(tmp_path, torch.device("cpu"), dataset=mapped_tiny), held)
        steps = iter(active.steps(lambda _: None, lambda: False))  # kept, and the run with it
        next(steps)
        assert readers()
    assert not readers()


def test_an_error_while_reading_ends_the_run_in_one_line(mapped_tiny: Dataset, tmp_path: Path) -> None:
    stream = Stream(mapped_tiny, StreamConfig(tasks=2, batch_size=5))
    (tmp_path / "tiny" / "train_x.raw").write_bytes(b"")
    with pytest.raises(OcilError, match="has been cut short"):
        list(stream)


class _Copied:
    """Stands for an event of a GPU."""

    def __init__(self) -> None:
        self.waited = False

    def synchronize(self) -> None:
        self.waited = True


class _LoaderWithoutGpu(CudaBatchLoader):
    """The same bookkeeping, with copies on the host."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def copy_stream(self) -> Any:
        return None

    def copy(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, _Copied]:
        assert x.data_ptr() not in {self.buffers[buffer][0].data_ptr() for _, buffer in self.copying}
        return x.clone(), y.clone(), _Copied()


def test_buffers_go_round_and_no_batch_is_lost_or_doubled(tiny: Dataset) -> None:
    stream = Stream(tiny, StreamConfig(tasks=2, batch_size=3, drop_last=False))
    batches = HostBatches(tiny.train_x, tiny.train_y, stream.arrivals.samples, stream.bounds)
    loader = _LoaderWithoutGpu(batches, torch.device("cpu"), ahead=2)
    for start in (0, 9, 4):
        for number in range(start, len(stream)):
            x, y = loader.take(number)
            expected = stream.fetch(number)
            assert torch.equal(x, expected[0])
            assert torch.equal(y, expected[1])
    loader.close()
    assert torch.equal(loader.take(5)[1], stream.fetch(5)[1])
    loader.close()


def test_a_feed_that_nobody_needs_ends_its_thread(tiny: Dataset) -> None:
    stream = Stream(tiny, StreamConfig(tasks=2, batch_size=1))
    batches = HostBatches(tiny.train_x, tiny.train_y, stream.arrivals.samples, stream.bounds)
    loader = _LoaderWithoutGpu(batches, torch.device("cpu"), ahead=2)
    for _ in range(3):
        loader.free.get()  # one of four buffers is left, and the thread waits for another
    loader.take(0)
    (thread,) = readers()
    del loader
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_an_error_in_the_thread_of_a_gpu_feed_surfaces(tiny: Dataset) -> None:
    stream = Stream(tiny, StreamConfig(tasks=2, batch_size=5))
    samples = stream.arrivals.samples.copy()
    batches = HostBatches(tiny.train_x, tiny.train_y, samples, [*stream.bounds[:2], (0, 10**6)])
    loader = _LoaderWithoutGpu(batches, torch.device("cpu"))
    loader.take(0)
    loader.take(1)
    with pytest.raises(ValueError, match=r"shape|broadcast|match|argument"):
        loader.take(2)
    loader.close()


def test_what_does_not_fit_on_a_gpu_stays_on_the_host(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    size = tiny.train_x.nbytes + tiny.test_x.nbytes
    for free, expected in ((2 * size, True), (2 * size - 1, False)):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda device, free=free: (free, 10 * free))
        assert device.fits(tiny, torch.device("cuda")) is expected
    assert device.fits(tiny, torch.device("cpu"))
    assert not DeviceData(tiny, "cpu", resident=False).resident


def test_parts_of_a_dataset_on_the_host(tiny: Dataset) -> None:
    away, there = DeviceData(tiny, "cpu", resident=False), DeviceData(tiny, "cpu")
    index = torch.tensor([5, 3, 60, 2])
    for split in ("train", "test"):
        for chosen in (None, index % 40):
            one, other = (torch.cat(list(data.parts(split, 3, chosen))) for data in (away, there))
            assert torch.equal(one, other)
    with pytest.raises(RuntimeError, match="not on the device"):
        away.inputs(index)
    assert np.array_equal(away.train_y.numpy(), tiny.train_y)
