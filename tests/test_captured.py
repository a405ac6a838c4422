"""How steps are recorded, with stand-ins for what only a GPU has."""

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ocil.data import Dataset
from ocil.processes import garbage_kept
from ocil.rng import Rng
from ocil.runs import captured
from ocil.runs.build import build
from ocil.runs.captured import CapturedStepper, record
from ocil.runs.config import resolve
from ocil.streams import DeviceData, Stream

CPU = torch.device("cpu")


class FakeDevice:
    """A device of 100 bytes. ``emptied`` has how many were free each time the allocator gave back what it kept."""

    def __init__(self) -> None:
        self.free, self.capturing, self.failed, self.empty = 100, False, False, False
        self.emptied: list[int] = []

    def memory(self, device: torch.device) -> tuple[int, int]:
        return self.free, 100

    def empty_cache(self) -> None:
        assert not self.capturing
        self.emptied.append(self.free)

    def graph(self) -> "FakeGraph":
        return FakeGraph(self)


class FakeGraph:
    """As a CUDA graph: if anything fails while it is recorded, then the end of the recording fails or warns."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def register_generator_state(self, generator: torch.Generator) -> None: ...

    def capture_begin(self, capture_error_mode: str) -> None:
        self.device.capturing = True

    def capture_end(self) -> None:
        self.device.capturing = False
        if self.device.empty:
            warnings.warn("The CUDA Graph is empty.", stacklevel=1)
        if self.device.failed:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    made = FakeDevice()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", made.graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", made.memory)
    monkeypatch.setattr(torch.cuda, "empty_cache", made.empty_cache)
    return made


class Randomness:
    """What a recording needs of a learner's generators."""

    device, generators = CPU, {"memory": torch.Generator()}


def recorded(work: Callable[[], None]) -> Any:
    return record(work, Randomness())  # type: ignore[arg-type]


def test_no_garbage_is_collected_while_a_step_is_recorded(device: FakeDevice) -> None:
    """It could hold the graph of a run that has ended; to destroy that one would make the recording fail."""
    seen: list[tuple[bool, bool]] = []
    assert gc.isenabled()
    recorded(lambda: seen.append((device.capturing, gc.isenabled())))
    assert seen == [(True, False)]
    assert gc.isenabled()


def test_collection_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with garbage_kept():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("first", [False, True], ids=["later", "before anything is recorded"])
def test_a_failed_recording_says_why(device: FakeDevice, first: bool) -> None:
    """Not that it failed: an engine makes room where memory is short."""

    def work() -> None:
        device.failed, device.empty = not first, first
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        recorded(work)
    assert not device.capturing
    assert gc.isenabled()


def test_kept_memory_is_given_back_before_a_recording_where_it_is_short(device: FakeDevice) -> None:
    for free in (100, 30, 20, 90, 1):
        device.free = free
        recorded(lambda: None)
    assert device.emptied == [20, 1]


def test_a_stepper_goes_with_its_run() -> None:
    """Not with the next collection of garbage: the memory of its graphs is wanted by the next run."""
    x, y = np.zeros((20, 8, 8, 1), np.uint8), np.arange(20) % 2
    data = Dataset("two", x, y, x, y, ("a", "b"))
    config = resolve("er", "two", memory=10, settings={"width": 1, "tasks": 1}, classes=2)
    stream = Stream(data, config.stream, 0, resident=DeviceData(data, CPU))
    gc.collect()
    gc.disable()
    try:
        stepper = CapturedStepper(build(config, data, CPU), stream)
        stepper.learn(0)
        known = weakref.ref(stepper), weakref.ref(stepper.learner)
        del stepper
        assert [ref() for ref in known] == [None, None]
    finally:
        gc.enable()


class Owner:
    """Knows itself, so that it and its graph go only when garbage is collected."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self.graph, self.owner = graph, self


@pytest.mark.gpu
def test_a_graph_among_the_garbage_does_not_disturb_a_recording() -> None:
    rng, values = Rng(0, torch.device("cuda")), torch.zeros(4, device="cuda")

    def work() -> None:
        for _ in range(100):
            _ = [[], []]  # enough new objects for a collection, which begins at any of them
        values.add_(1)

    before = gc.get_threshold()
    torch.cuda.synchronize()  # another stream does not wait for the zeros
    with torch.cuda.stream(torch.cuda.Stream()):
        work()
        Owner(record(work, rng))
        gc.set_threshold(1, 1, 1)
        try:
            graph = record(work, rng)
        finally:
            gc.set_threshold(*before)
        graph.replay()
    torch.cuda.synchronize()
    assert values.tolist() == [2.0] * 4


@pytest.mark.gpu
def test_memory_that_the_allocator_keeps_is_there_for_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike other work, a recording cannot take it: it has memory of its own."""
    rng, total = Rng(0, torch.device("cuda")), torch.cuda.get_device_properties(0).total_memory
    size = total // 100
    found = torch.zeros(1, device="cuda")

    def work() -> None:
        found.add_(torch.ones(size, dtype=torch.uint8, device="cuda")[:1])

    torch.cuda.synchronize()  # another stream does not wait for the zero
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved() / total
    torch.cuda.set_per_process_memory_fraction(min(1.0, reserved + 0.025))
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            kept = torch.empty(2 * size, dtype=torch.uint8, device="cuda")
            del kept
            monkeypatch.setattr(captured, "ROOM", 0.0)
            with pytest.raises(torch.OutOfMemoryError):
                record(work, rng)
            monkeypatch.setattr(captured, "ROOM", 1.0)
            record(work, rng).replay()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.synchronize()
    assert found.item() == 1
