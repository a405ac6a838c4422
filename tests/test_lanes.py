"""Work that takes turns: what fails leaves the others alone, and nothing is held longer than it must be."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from ocil.engine.lanes import take_turns

CPU = torch.device("cpu")


class Work:
    """Two steps. ``trouble`` says at which place it fails."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble

    def steps(self) -> Iterator[None]:
        yield
        if self.trouble == "step":
            raise ValueError("step")
        yield

    def finish(self) -> str:
        if self.trouble == "finish":
            raise ValueError("finish")
        return "done"


def turns(
    works: list[str], side_by_side: int, held_now: set[int], settle: Callable[[int, Any], None] = lambda *_: None
) -> dict[int, Any]:
    """What came of each. ``held_now`` is whose lock is held."""
    outcomes: dict[int, Any] = {}

    def begin(number: int, held: ExitStack) -> tuple[Iterator[None], Callable[[], Any]]:
        held_now.add(number)
        held.callback(held_now.discard, number)
        if works[number] == "begin":
            raise ValueError("begin")
        work = Work(works[number])
        return work.steps(), work.finish

    def note(number: int, outcome: Any) -> None:
        assert number not in held_now
        outcomes[number] = outcome
        settle(number, outcome)

    take_turns(range(len(works)), side_by_side, CPU, begin, note, lambda _, error: str(error))
    return outcomes


@pytest.mark.parametrize("side_by_side", [1, 2, 5])
def test_what_fails_leaves_the_others_alone(side_by_side: int) -> None:
    held: set[int] = set()
    outcomes = turns(["", "begin", "step", "finish", ""], side_by_side, held)
    assert not held
    assert outcomes == {0: "done", 1: "begin", 2: "step", 3: "finish", 4: "done"}


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

    def begin(number: int, held: ExitStack) -> tuple[Iterator[None], Callable[[], Any]]:
        alive.append(sum(ref() is not None for ref in known))
        work = Work("step" if number == 1 else "")
        known.append(weakref.ref(work))
        return work.steps(), work.finish

    kept: dict[int, Any] = {}
    take_turns(range(4), 1, CPU, begin, kept.__setitem__, lambda _, error: error)
    assert alive == [0, 0, 0, 0]
    assert isinstance(kept[1], ValueError)
