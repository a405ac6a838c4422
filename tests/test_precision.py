"""PyTorch's switches for what a GPU computes: set inside a block, afterwards what they were."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
import torch

from ocil.precision import Precision, numerics, repeatable

Switches = tuple[bool, bool, bool]
ALL_OFF = (False, False, False)


def switches() -> Switches:
    """Whether cuDNN may round to tf32, finds the fastest way by trying, and takes only repeatable ways."""
    cudnn = torch.backends.cudnn
    return cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic


@pytest.fixture(autouse=True)
def all_off() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = switches()
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = ALL_OFF
    yield
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


def fail_inside(block: AbstractContextManager[None], expected: Switches) -> None:
    """Leave a block by an error: the switches go back then too."""
    with block:
        assert switches() == expected
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("precision", "inside"),
    [("fp32", (False, False, True)), ("tf32", (True, True, False)), ("bf16", (True, True, False))],
)
def test_switches_of_a_precision(precision: Precision, inside: Switches) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_inside(numerics(precision), inside)
    assert switches() == ALL_OFF


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_repeatable_ways_in_any_precision(precision: Precision) -> None:
    with numerics(precision):
        before = switches()
        inside = (before[0], False, True)
        with repeatable():
            with pytest.raises(ZeroDivisionError):
                fail_inside(repeatable(), inside)
            assert switches() == inside
        assert switches() == before


def test_blocks_of_several_threads_overlap() -> None:
    """The first to enter leaves first: the switches go back when the last leaves."""
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with repeatable():
            entered.set()
            leave.wait(10)

    with numerics("bf16"):
        before = switches()
        thread = threading.Thread(target=first)
        thread.start()
        assert entered.wait(10)
        with repeatable():
            leave.set()
            thread.join(10)
            assert switches() == (True, False, True)
        assert switches() == before
