"""PyTorch's switches for what a GPU computes: set inside a block, afterwards what they were."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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


@contextmanager
def open_elsewhere(block: AbstractContextManager[None]) -> Iterator[Callable[[], None]]:
    """Another thread is inside a block, until what this gives is called."""
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with block:
            entered.set()
            leave.wait(10)

    def end() -> None:
        leave.set()
        thread.join(10)

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert entered.wait(10)
        yield end
    finally:
        end()


def test_blocks_of_several_threads_overlap() -> None:
    """The first to enter leaves first: the switches go back when the last leaves."""
    with numerics("bf16"):
        before = switches()
        with open_elsewhere(repeatable()) as end, repeatable():
            end()
            assert switches() == (True, False, True)
        assert switches() == before


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_precisions_of_several_threads_overlap(precision: Precision) -> None:
    """The thread that is left computes in the precision that it asked for, and then nothing remains of either."""
    with open_elsewhere(numerics(precision)) as end:
        with numerics(precision):
            inside = switches()
            end()
            assert switches() == inside
        assert switches() == ALL_OFF


def test_ways_stay_repeatable_while_another_thread_sets_its_precision() -> None:
    with numerics("tf32"), repeatable():
        with open_elsewhere(numerics("tf32")):
            assert switches() == (True, False, True)
        assert switches() == (True, False, True)
    assert switches() == ALL_OFF


def test_the_latest_precision_wins_and_then_the_one_before() -> None:
    with numerics("bf16"):
        with numerics("fp32"):
            assert switches() == (False, False, True)
        assert switches() == (True, True, False)
