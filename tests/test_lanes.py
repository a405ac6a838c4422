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
from ocil.runs.protocol import RunKey, Workspace

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
