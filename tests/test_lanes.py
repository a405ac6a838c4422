"""Work that takes turns: what fails leaves the others alone, and nothing is held longer than it must be."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ocil.engines.job import Observer
from ocil.engines.lanes import take_turns
from ocil.runs.config import resolve
from ocil.runs.protocol import RunKey, Workspace
from ocil.runs.stream_run import StreamRun

CPU = Workspace(Path(), torch.device("cpu"))


class Work:
    """Two steps. ``trouble`` says at which place it fails."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble

    def steps(self, *_: Any) -> Iterator[None]:
        yield
        if self.trouble == "step":
            raise ValueError("step")
        if self.trouble == "exit":
            raise SystemExit("exit")
        yield

    def finish(self) -> str:
        if self.trouble == "finish":
            raise ValueError("finish")
        return "done"


class FakeRun:
    """``trouble`` says at which place it fails. ``held`` is whose lock is held."""

    def __init__(self, number: int, trouble: str, held: set[int]) -> None:
        self.key, self.trouble, self.held = RunKey("cell", number), trouble, held
        self.name = f"seed {number}"

    def open(self, workspace: Workspace, held: ExitStack) -> Work:
        self.held.add(self.key.seed)
        held.callback(self.held.discard, self.key.seed)
        if self.trouble == "open":
            raise ValueError("open")
        return Work(self.trouble)

    def failed(self, error: Exception | SystemExit) -> Exception:
        return ValueError(f"it calls {error}") if isinstance(error, SystemExit) else error


def turns(
    works: list[str], side_by_side: int, held: set[int], settle: Callable[[int, Any], None] = lambda *_: None
) -> dict[int, str]:
    """What came of each."""

    def note(run: Any, outcome: Any) -> None:
        assert run.key.seed not in held
        settle(run.key.seed, outcome)

    runs: list[Any] = [FakeRun(number, trouble, held) for number, trouble in enumerate(works)]
    outcomes = take_turns(runs, CPU, side_by_side, Observer(note))
    return {key.seed: str(outcome) for key, outcome in outcomes.items()}


@pytest.mark.parametrize("side_by_side", [1, 2, 5])
def test_what_fails_leaves_the_others_alone(side_by_side: int) -> None:
    held: set[int] = set()
    outcomes = turns(["", "open", "step", "exit", "finish", ""], side_by_side, held)
    assert not held
    assert outcomes == {0: "done", 1: "open", 2: "step", 3: "it calls exit", 4: "finish", 5: "done"}


def test_locks_go_whatever_ends_it() -> None:
    held: set[int] = set()

    def settle(number: int, outcome: Any) -> None:
        assert (number, outcome, held) == (0, "done", {1})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns(["", "", ""], 2, held, settle)
    assert not held


def test_ended_work_is_gone_before_the_next_begins() -> None:
    known: list[weakref.ref[Work]] = []
    alive: list[int] = []

    class Counted(FakeRun):
        def open(self, workspace: Workspace, held: ExitStack) -> Work:
            alive.append(sum(ref() is not None for ref in known))
            work = super().open(workspace, held)
            known.append(weakref.ref(work))
            return work

    runs: list[Any] = [Counted(number, "step" if number == 1 else "", set()) for number in range(4)]
    outcomes = take_turns(runs, CPU, 1, Observer())
    assert alive == [0, 0, 0, 0]
    assert isinstance(outcomes[runs[1].key], ValueError)


class Device:
    """Has room for so many works at a time."""

    def __init__(self, room: int) -> None:
        self.room, self.taken, self.most = room, 0, 0
        self.begun: list[int] = []

    def take(self) -> None:
        if self.taken == self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        self.taken += 1
        self.most = max(self.most, self.taken)

    def free(self) -> None:
        self.taken -= 1


class Large:
    """Takes room when it is opened or in its second step, and holds it to its end."""

    def __init__(self, device: Device, held: ExitStack, at_once: bool) -> None:
        self.device, self.held, self.at_once = device, held, at_once
        if at_once:
            self.take()

    def take(self) -> None:
        self.device.take()
        self.held.callback(self.device.free)

    def steps(self, *_: Any) -> Iterator[None]:
        yield
        if not self.at_once:
            self.take()
        yield from [None] * 5

    def finish(self) -> str:
        return "done"


class LargeRun(FakeRun):
    def __init__(self, number: int, device: Device, at_once: bool) -> None:
        super().__init__(number, "", set())
        self.device, self.at_once = device, at_once

    def open(self, workspace: Workspace, held: ExitStack) -> Any:
        self.device.begun.append(self.key.seed)
        return Large(self.device, held, self.at_once)

    def failed(self, error: Exception | SystemExit) -> Exception:
        return ValueError("does not fit")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("room", [1, 2, 4, 9])
def test_a_run_without_memory_waits_for_one_that_has_it(
    room: int, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(room)
    runs: list[Any] = [LargeRun(number, device, at_once) for number in range(7)]
    outcomes = take_turns(runs, CPU, 5, Observer())
    assert [str(outcome) for outcome in outcomes.values()] == ["done"] * 7
    assert (device.most, device.taken) == (min(room, 5), 0)
    # One that cannot be opened keeps the next from trying; those under way meet the limit one after the other.
    waited = range(room, 5)[: 1 if at_once else None]
    assert len(device.begun) == len(runs) + len(waited)
    said = [record.message.partition(" beside ")[0] for record in caplog.records]
    assert said == [f"seed {number} does not fit" for number in waited]


def test_a_run_that_finds_no_memory_alone_fails() -> None:
    runs: list[Any] = [LargeRun(number, Device(0), at_once) for number, at_once in enumerate((True, False, True))]
    outcomes = take_turns(runs, CPU, 2, Observer())
    assert [str(outcome) for outcome in outcomes.values()] == ["does not fit"] * 3


def test_an_error_of_many_lines_is_said_in_one() -> None:
    """Those of CUDA go on with advice for who debugs them."""
    try:
        raise RuntimeError("\nCUDA error: an illegal memory access was encountered\nFor debugging consider passing")
    except RuntimeError as error:
        said = str(StreamRun(resolve("er")).failed(error))
    assert said.startswith(
        "er seed 0: RuntimeError: CUDA error: an illegal memory access was encountered (test_lanes.py"
    )
