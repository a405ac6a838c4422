"""The memory: what it may hold, how likely, and that it can be put away and taken up again."""

import copy
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ocil.errors import OcilError
from ocil.learning import memory as memory_module
from ocil.learning.memory import Memory, refuse_what_cannot_fit
from tests.reference.memory import reservoir

quick = settings(max_examples=50, deadline=None, derandomize=True, database=None)
PIXEL = (1, 1, 1)
sizes = st.integers(1, 12)
batch_lists = st.lists(st.integers(0, 9), max_size=8)


def make(size: int, seed: int = 0) -> Memory:
    return Memory(size, PIXEL, torch.Generator().manual_seed(seed))


def items(first: int, count: int) -> tuple[Tensor, Tensor]:
    """Stream items numbered from ``first``: the pixel is the number, the label is derived from it."""
    number = torch.arange(first, first + count)
    return (number % 256).to(torch.uint8).view(-1, 1, 1, 1), label_of(number)


def label_of(number: Tensor) -> Tensor:
    return 1000 + 3 * number


def feed(memory: Memory, batches: list[int]) -> int:
    seen = 0
    for count in batches:
        memory.add(*items(seen, count))
        seen += count
    return seen


def stored(memory: Memory) -> list[int]:
    """Numbers of the items in slot order; checks that each has its own label."""
    filled = len(memory)
    number = memory.images[:filled].flatten().long()
    assert torch.equal(memory.labels[:filled], label_of(number))
    return number.tolist()


# What it holds


@given(sizes, batch_lists, st.integers(0, 5))
@quick
def test_holds_distinct_items_that_were_seen_with_their_labels(size: int, batches: list[int], seed: int) -> None:
    memory = make(size, seed)
    seen = feed(memory, batches)
    held = stored(memory)
    assert len(memory) == len(held) == min(size, seen)
    assert len(set(held)) == len(held)
    assert set(held) <= set(range(seen))
    assert int(memory.seen) == seen
    if seen <= size:
        assert held == list(range(seen))


@given(sizes, batch_lists, st.integers(0, 5))
@quick
def test_add_says_where_each_item_went(size: int, batches: list[int], seed: int) -> None:
    memory = make(size, seed)
    seen = 0
    for count in batches:
        before = stored(memory)
        slots = memory.add(*items(seen, count)).tolist()
        kept = {slot: seen + i for i, slot in enumerate(slots) if slot < size}
        assert all(0 <= slot <= size for slot in slots)
        assert len(kept) == sum(slot < size for slot in slots), "two items of a batch in one slot"
        after = stored(memory)
        for slot, item in enumerate(after):
            assert item == kept.get(slot, before[slot] if slot < len(before) else None)
        seen += count


@given(sizes, batch_lists, st.integers(0, 5))
@quick
def test_a_batch_is_the_same_as_its_items_one_by_one(size: int, batches: list[int], seed: int) -> None:
    """With the same draws, however the stream is cut: so a later item of a batch wins over an earlier one."""
    memory, generator = make(size, seed), torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(2**62, (1,), generator=generator)) % n

    seen = feed(memory, batches)
    assert stored(memory) == reservoir(range(seen), size, below)


def test_no_slots_keep_nothing() -> None:
    memory = make(0)
    feed(memory, [3, 4])
    assert len(memory) == 0
    assert memory.retrieve(5) is None
    assert len(memory.epoch()) == 0


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(OcilError, match=r"memory = 10{12} images need 9 TB, and there are [\d.]+ [GT]B: .*smaller"):
        make(10**12)


def test_what_cannot_fit_counts_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are larger than short vectors."""
    monkeypatch.setattr(memory_module, "machine_memory", lambda: 1000)
    refuse_what_cannot_fit(100, (1,), [torch.device("cpu")], torch.float16)
    with pytest.raises(OcilError, match=r"memory = 101 vectors need 1\.01 kB, and there are 1 kB"):
        refuse_what_cannot_fit(101, (1,), [torch.device("cpu")], torch.float16)


def test_items_are_copied_not_shared() -> None:
    memory = make(4)
    x, y = items(0, 4)
    memory.add(x, y)
    x.zero_()
    y.zero_()
    assert stored(memory) == [0, 1, 2, 3]
    images, labels = memory.retrieve(4) or pytest.fail("nothing there")
    images.zero_()
    labels.zero_()
    assert stored(memory) == [0, 1, 2, 3]


# How likely


def kept_table(size: int, total: int, batch: int, trials: int) -> np.ndarray:
    """One row a simulated stream: which items it kept."""
    batches = [batch] * (total // batch) + ([total % batch] if total % batch else [])
    table = np.zeros((trials, total))
    generator = torch.Generator().manual_seed(batch)
    for trial in range(trials):
        memory = Memory(size, PIXEL, generator)  # one generator goes on through all trials
        feed(memory, batches)
        table[trial, stored(memory)] = 1
    return table


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, 5, 12])
def test_every_item_and_every_pair_is_kept_equally_often(batch: int) -> None:
    """Batch 5 and 12 are larger than the memory of 4; batch 3 meets the moment it is full."""
    size, total, trials = 4, 12, 500
    table = kept_table(size, total, batch, trials)
    assert (table.sum(1) == size).all()
    p = size / total
    # Counts of a draw without replacement: this is chi-square with total - 1 degrees, mean 11, deviation 4.7.
    statistic = ((table.sum(0) - trials * p) ** 2).sum() / (trials * p * (1 - p)) * (total - 1) / total
    assert 1.5 < statistic < 11 + 5 * 4.7
    pairs = (table.T @ table)[np.triu_indices(total, 1)]
    pair_p = p * (size - 1) / (total - 1)
    z = (pairs - trials * pair_p) / np.sqrt(trials * pair_p * (1 - pair_p))
    assert np.abs(z).max() < 4.5
    assert z.std() < 1.4


def test_slots_are_filled_as_by_the_slow_version() -> None:
    """Which item ends in which slot, against twenty times as many streams of the textbook's version."""
    size, total, trials, more = 3, 7, 600, 12_000
    rng = random.Random(0)
    slow = np.zeros((size, total))
    for _ in range(more):
        for slot, item in enumerate(reservoir(range(total), size, rng.randrange)):
            slow[slot, item] += 1
    fast = np.zeros((size, total))
    generator = torch.Generator().manual_seed(1)
    for _ in range(trials):
        memory = Memory(size, PIXEL, generator)
        feed(memory, [total])
        for slot, item in enumerate(stored(memory)):
            fast[slot, item] += 1
    p = slow / more
    assert (fast[p == 0] == 0).all()
    assert (p > 0).sum() == size * (total - size) + size  # its own first item, or any that came later
    z = (fast - trials * p)[p > 0] / np.sqrt(trials * p * (1 - p))[p > 0]
    assert np.abs(z).max() < 4.5


# Retrieval


@given(sizes, batch_lists, st.integers(1, 12), st.integers(0, 5))
@quick
def test_retrieves_distinct_stored_items(size: int, batches: list[int], count: int, seed: int) -> None:
    memory = make(size, seed)
    feed(memory, batches)
    held = stored(memory)
    found = memory.retrieve(count)
    if not held:
        assert found is None
        return
    images, labels = found or pytest.fail("nothing there")
    got = images.flatten().long()
    assert torch.equal(labels, label_of(got))
    assert images.dtype == torch.uint8
    assert images.shape == (min(count, len(held)), *PIXEL)
    if len(held) <= count:
        assert got.tolist() == held  # all of it, in slot order
    else:
        assert len(set(got.tolist())) == count
        assert set(got.tolist()) <= set(held)


@pytest.mark.parametrize(("size", "filled"), [(10, 10), (25, 10)])
def test_retrieval_is_uniform(size: int, filled: int) -> None:
    """Full, and while empty slots must never be drawn."""
    memory = make(size)
    feed(memory, [filled])
    trials, count = 1000, 4
    table = np.zeros((trials, filled))
    for trial in range(trials):
        index = memory.draw(count)
        assert index is not None
        table[trial, index.numpy()] = 1
    p = count / filled
    statistic = ((table.sum(0) - trials * p) ** 2).sum() / (trials * p * (1 - p)) * (filled - 1) / filled
    assert 1 < statistic < 9 + 5 * 4.25
    pairs = (table.T @ table)[np.triu_indices(filled, 1)]
    pair_p = p * (count - 1) / (filled - 1)
    assert np.abs((pairs - trials * pair_p) / np.sqrt(trials * pair_p * (1 - pair_p))).max() < 4.5


@pytest.mark.parametrize("filled", [0, 3, 8, 20])
def test_many_draws_at_once_are_those_one_after_the_other(filled: int) -> None:
    """In a memory that is empty, that holds less than a draw, that fills, and that is full."""
    one, many = make(10), make(10)
    feed(one, [filled])
    feed(many, [filled])
    found = many.draws(3, 4)
    expected = [one.draw(4) for _ in range(3)]
    assert [each if each is None else each.tolist() for each in expected] == (
        [None] * 3 if found is None else found.tolist()
    )
    assert found is None or filled < 4 or len({tuple(sorted(row)) for row in found.tolist()}) > 1
    if filled > 4:  # by class, other numbers may be drawn on some processors than one after the other
        by_class = many.draws(50, 4, 2000)
        assert by_class is not None
        assert all(len(set(row)) == 4 and max(row) < min(filled, 10) for row in by_class.tolist())
        assert len({tuple(row) for row in by_class.tolist()}) > 20


def test_counts_may_change_from_call_to_call() -> None:
    memory = make(20)
    feed(memory, [6])
    assert [len(memory.retrieve(count)[1]) for count in (2, 9, 3, 6, 20)] == [2, 6, 3, 6, 6]  # type: ignore[index]


def test_retrieval_follows_a_memory_that_fills() -> None:
    memory = make(8)
    assert memory.retrieve(3) is None
    reached: set[int] = set()
    for first in range(0, 8, 2):
        memory.add(*items(first, 2))
        for _ in range(40):
            images, _ = memory.retrieve(3) or pytest.fail("nothing there")
            assert images.max() < first + 2
            reached |= set(images.flatten().tolist())
    assert reached == set(range(8))


@given(sizes, batch_lists, st.integers(1, 12))
@quick
def test_holds_more_than_says_when_shapes_are_final(size: int, batches: list[int], count: int) -> None:
    memory = make(size)
    seen = feed(memory, batches)
    steady = memory.holds_more_than(count)
    assert steady == (seen >= min(count + 1, size))
    if steady:
        now = memory.retrieve(count)
        memory.add(*items(seen, 5))
        later = memory.retrieve(count)
        assert now is not None
        assert later is not None
        assert now[1].shape == later[1].shape


def test_retrieval_and_epochs_change_no_content() -> None:
    memory = make(6)
    feed(memory, [9])
    before = stored(memory)
    memory.retrieve(3)
    memory.epoch()
    assert stored(memory) == before
    assert int(memory.seen) == 9


# Epochs


@given(sizes, batch_lists, st.integers(0, 5))
@quick
def test_an_epoch_meets_every_filled_slot_once(size: int, batches: list[int], seed: int) -> None:
    memory = make(size, seed)
    feed(memory, batches)
    assert sorted(memory.epoch().tolist()) == list(range(len(memory)))


def test_epochs_are_shuffled_anew() -> None:
    memory = make(30)
    feed(memory, [30])
    first, second = (memory.epoch().tolist() for _ in range(2))
    assert first != second
    assert first != list(range(30))


# State


def snapshot(memory: Memory) -> tuple[dict[str, Tensor], Tensor]:
    return copy.deepcopy(memory.state_dict()), memory.generator.get_state()


def restore(memory: Memory, state: tuple[dict[str, Tensor], Tensor]) -> None:
    memory.load_state_dict(state[0])
    memory.generator.set_state(state[1])
    memory.recount()


def behave(memory: Memory) -> list[list[int]]:
    """A few steps as a learner takes them."""
    seen, history = int(memory.seen), []
    for step in range(4):
        found = memory.retrieve(5)
        history.append([] if found is None else found[1].tolist())
        memory.add(*items(seen + 3 * step, 3))
        history.append(stored(memory))
    history.append(memory.epoch().tolist())
    return history


@given(sizes, batch_lists)
@quick
def test_a_fresh_memory_goes_on_from_a_state(size: int, batches: list[int]) -> None:
    memory = make(size)
    feed(memory, batches)
    state = snapshot(memory)
    other = make(size, seed=99)
    restore(other, state)
    assert behave(other) == behave(memory)


def test_a_used_memory_goes_back_to_a_state() -> None:
    memory = make(20)
    feed(memory, [2])
    state = snapshot(memory)
    first = behave(memory)
    restore(memory, state)
    assert behave(memory) == first
