"""GDumb: its sampler against one written with lists, and its training at task ends."""

import copy
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ocil
from ocil.errors import OcilError
from ocil.learning.sgd import SGD
from ocil.methods.gdumb import BalancedMemory, GDumb
from ocil.networks import to_float
from tests.networks_to_try import TINY
from tests.reference.datasets import noise, patterned

pytestmark = pytest.mark.usefixtures("quick_convolution")

CLASSES = 6
BATCH = 5
NOISE = noise(classes=CLASSES)


def empty(size: int, seed: int = 0) -> BalancedMemory:
    return BalancedMemory(size, (1, 1, 2), CLASSES, torch.Generator().manual_seed(seed))


def numbered(labels: list[int], first: int = 0) -> tuple[Tensor, Tensor]:
    """Images that can be told from each other by their two pixels."""
    number = torch.arange(first, first + len(labels))
    x = torch.stack([number % 256, number // 256], 1).to(torch.uint8).view(-1, 1, 1, 2)
    return x, torch.tensor(labels, dtype=torch.int64)


def held(memory: BalancedMemory) -> list[tuple[int, int]]:
    """Number and label of what is stored, by slot."""
    count = len(memory)
    low, high = memory.images[:count].long().view(-1, 2).unbind(1)
    return list(zip((low + 256 * high).tolist(), memory.labels[:count].tolist(), strict=True))


class SlowSampler:
    """A dict of lists, its keys in the order in which the classes came. It is told which sample was thrown out."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.store: dict[int, list[int]] = {}

    def offer(self, number: int, label: int, now: list[tuple[int, int]]) -> None:
        share = self.size // max(1, len(self.store))
        if label in self.store and len(self.store[label]) >= share:
            return
        if sum(map(len, self.store.values())) == self.size:
            largest = max(self.store, key=lambda c: len(self.store[c]))  # the first of several
            (gone,) = set(self.store[largest]) - {n for n, _ in now}
            self.store[largest].remove(gone)
            if not self.store[largest]:
                del self.store[largest]
        self.store.setdefault(label, []).append(number)

    def samples(self) -> list[tuple[int, int]]:
        return sorted((number, label) for label, numbers in self.store.items() for number in numbers)


streams = st.lists(st.integers(0, CLASSES - 1), max_size=40)


@example([0, 1, 1, 0, 2], 4, 0)  # of two largest classes the one that came first gives, not the one that waited longest
@given(streams, st.integers(1, 10), st.integers(0, 2**31))
def test_the_sampler_against_lists(labels: list[int], size: int, seed: int) -> None:
    memory, slow = empty(size, seed), SlowSampler(size)
    for number, label in enumerate(labels):
        memory.add(*numbered([label], number))
        slow.offer(number, label, held(memory))
        assert sorted(held(memory)) == slow.samples()
        assert memory.counts.tolist() == [len(slow.store.get(c, ())) for c in range(CLASSES)]


@given(streams, st.integers(1, 10), st.integers(1, 7))
def test_what_always_holds(labels: list[int], size: int, batch: int) -> None:
    """Never more than fits, only what was offered and nothing twice; never emptier than before; counts are right."""
    memory = empty(size)
    filled = 0
    for first in range(0, len(labels), batch):
        part = labels[first : first + batch]
        slots = memory.add(*numbered(part, first))
        assert slots.shape == (len(part),)
        assert int(slots.max()) <= size
        stored = held(memory)
        assert filled <= len(stored) <= size
        assert len(set(stored)) == len(stored)
        assert set(stored) <= set(enumerate(labels[: first + batch]))
        assert memory.counts.tolist() == [Counter(c for _, c in stored)[c] for c in range(CLASSES)]
        filled = len(stored)
    assert memory.images[size].sum() == memory.labels[size] == 0


@settings(max_examples=40)
@given(streams, st.integers(CLASSES, 12), st.integers(1, 7))
def test_classes_are_balanced_once_each_was_offered_enough(labels: list[int], size: int, batch: int) -> None:
    """Each has its share, and only what is left over by the division is anywhere else."""
    enough = labels + sorted(set(labels)) * size
    memory = empty(size)
    for first in range(0, len(enough), batch):
        memory.add(*numbered(enough[first : first + batch], first))
    classes = len(set(labels))
    for label in set(labels):
        assert size // classes <= int(memory.counts[label]) <= size // classes + size % classes


@given(streams, st.integers(2, 8), st.integers(0, 2**31))
def test_batches_are_taken_one_sample_after_the_other(labels: list[int], size: int, seed: int) -> None:
    together, apart = empty(size, seed), empty(size, seed)
    keys = torch.rand(len(labels), size, generator=torch.Generator().manual_seed(seed))
    together.add(*numbered(labels)) if labels else None
    for number, (label, key) in enumerate(zip(labels, keys, strict=True)):
        apart._add_one(*numbered([label], number), key)
    assert held(together) == held(apart)


def test_a_class_that_was_lost_comes_back() -> None:
    memory = empty(2)
    for number, label in enumerate([0, 1, 2, 0]):  # 2 takes the place of 0, then 0 that of 1
        memory.add(*numbered([label], number))
    assert sorted(held(memory)) == [(2, 2), (3, 0)]


def test_the_sample_that_goes_is_drawn_evenly() -> None:
    gone: Counter[int] = Counter()
    full = empty(4)
    full.add(*numbered([0, 0, 0, 1]))
    for seed in range(300):
        memory = empty(4, seed)
        memory.load_state_dict(full.state_dict())
        memory.add(*numbered([2], 4))
        (lost,) = {0, 1, 2, 3} - {number for number, _ in held(memory)}
        gone[lost] += 1
    assert set(gone) == {0, 1, 2}
    assert all(70 < count < 130 for count in gone.values())


# The learner


def make(**given_settings: Any) -> GDumb:
    data = given_settings.pop("data", NOISE)
    network = {} if "width" in given_settings else {"network": TINY}
    sizes = network | {"batch_size": BATCH, "memory": 12, "memory_batch": BATCH}
    rehearsal = {"rehearsal_epochs": 2, "rehearsal_batch": 5}
    learner = ocil.make_learner("gdumb", data, **sizes | rehearsal | given_settings)
    assert isinstance(learner, GDumb)
    return learner


def fill(learner: GDumb, steps: int = 4) -> None:
    for number in range(steps):
        index = torch.arange(number * BATCH, (number + 1) * BATCH)
        learner.learn(torch.from_numpy(NOISE.train_x)[index], torch.from_numpy(NOISE.train_y)[index])


def rehearse(learner: GDumb) -> list[list[int]]:
    learner.task_ended()
    visited = []
    for slots in learner.task_end_batches():
        learner.task_end_step(slots)
        visited.append(slots.tolist())
    return visited


def weights(learner: GDumb) -> list[Tensor]:
    return [value.clone() for value in learner.network.state_dict().values()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(map(torch.equal, first, second))


def test_learning_only_stores() -> None:
    learner = make()
    before = weights(learner)
    fill(learner)
    assert same(before, weights(learner))
    assert int(learner.steps) == 4
    assert len(learner.memory) == 12
    assert learner.shapes_are_static()


def test_a_task_end_begins_anew_in_place() -> None:
    learner = make(momentum=0.9)
    assert isinstance(learner.optimizer, SGD)
    fill(learner)
    places = [value.data_ptr() for value in learner.network.state_dict().values()]
    start = weights(learner)
    starts = []
    for _ in range(2):
        learner.task_ended()
        starts.append(weights(learner))
        assert all(not velocity.any() for velocity in learner.optimizer.velocity.values())
        for slots in learner.task_end_batches():
            learner.task_end_step(slots)
        assert all(velocity.any() for velocity in learner.optimizer.velocity.values())
        trained = learner.network.state_dict().values()
        assert not any(torch.equal(old, new) for old, new in zip(starts[-1], trained, strict=True))
    assert [value.data_ptr() for value in learner.network.state_dict().values()] == places
    assert not same(start, starts[0])
    assert not same(starts[0], starts[1])
    for module in learner.network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert int(module.num_batches_tracked or 0) == 4  # two passes of two batches since the last start

    other = make(momentum=0.9)
    fill(other)
    other.task_ended()
    assert same(weights(other), starts[0])  # by the seed and the number of the task alone
    different = make(momentum=0.9, seed=1)
    different.task_ended()
    assert not same(weights(different), starts[0])


@pytest.mark.parametrize(("size", "expected"), [(5, [5, 5]), (12, [12]), (7, [7]), (30, [12])])
def test_a_rehearsal_is_passes_over_the_memory(size: int, expected: list[int]) -> None:
    learner = make(rehearsal_batch=size, rehearsal_epochs=3)
    fill(learner)
    visited = rehearse(learner)
    assert [len(slots) for slots in visited] == expected * 3
    for one in range(3):
        once = [slot for slots in visited[one * len(expected) : (one + 1) * len(expected)] for slot in slots]
        assert len(set(once)) == len(once)
        assert set(once) <= set(range(12))
    assert visited[0] != visited[len(expected)]
    assert int(learner.steps) == 4 + len(visited)


def test_a_rehearsal_of_nothing() -> None:
    assert rehearse(make()) == []
    alone = make(memory=5, rehearsal_batch=1, width=2)  # in a ResNet, one tiny image has no batch statistics
    fill(alone)
    assert rehearse(alone) == []


@pytest.mark.parametrize("clip", [0.05, 1000.0, 0.0])
def test_a_rehearsal_step_by_hand(clip: float) -> None:
    learner = make(lr=0.2, weight_decay=0.01, clip=clip)
    fill(learner)
    learner.task_ended()
    twin = copy.deepcopy(learner.network)
    slots = torch.tensor([3, 0, 7, 5])
    learner.task_end_step(slots)
    loss = F.cross_entropy(twin(to_float(learner.memory.images[slots])), learner.memory.labels[slots])
    slopes = torch.autograd.grad(loss, list(twin.parameters()))
    length = sum(float(slope.double().square().sum()) for slope in slopes) ** 0.5
    assert 0.05 < length < 1000
    scale = min(1.0, clip / length) if clip else 1.0
    for old, slope, new in zip(twin.parameters(), slopes, learner.network.parameters(), strict=True):
        torch.testing.assert_close(new, old - 0.2 * (scale * slope + 0.01 * old), rtol=1e-4, atol=1e-5)
    assert float(learner.last_loss) == pytest.approx(float(loss.detach()), rel=1e-5)


@pytest.mark.slow
def test_tasks_are_remembered() -> None:
    """Two tasks of two easy classes, the second twice as long: the memory is balanced and all four are known."""
    data = patterned(per_class=40)
    learner = make(data=data, width=4, memory=40, rehearsal_epochs=10)
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    train_x, train_y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    for task, length in ((0, 20), (2, 40)):
        here = (train_y // 2 == task // 2).nonzero().flatten()[: 2 * length]
        for index in here.split(BATCH):
            learner.learn(train_x[index], train_y[index])
        untrained = learner.scores(x).argmax(1) == y
        rehearse(learner)
    assert Counter(learner.memory.labels[:40].tolist()) == {0: 10, 1: 10, 2: 10, 3: 10}
    assert (learner.scores(x).argmax(1) == y).double().mean() > 0.9
    assert untrained[y >= 2].double().mean() == 0  # new classes wait for the task's end


def test_a_review_after_a_rehearsal() -> None:
    learner = make(review=True)
    fill(learner)
    rehearse(learner)
    before = weights(learner)
    learner.review()
    assert not same(before, weights(learner))


@pytest.mark.parametrize("wrong", [{"rehearsal_epochs": -1}, {"rehearsal_batch": 0}, {"clip": -1.0}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OcilError, match=next(iter(wrong))):
        make(**wrong)


def test_settings() -> None:
    config = ocil.resolve("gdumb", "cifar100", memory=5000).learner
    assert (config.lr, config.momentum, config.weight_decay, config.review) == (0.1, 0, 1e-6, False)
    assert (config.rehearsal_epochs, config.rehearsal_batch, config.clip) == (30, 16, 10)  # type: ignore[attr-defined]
