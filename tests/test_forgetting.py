"""Samples that are relabelled in, or removed from, the memory of a learner between two steps."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from ocil.learning.memory import Memory, SlotNumbers
from ocil.methods import METHODS, method
from ocil.methods.er_ace import kept_classes
from ocil.methods.gdumb import BalancedMemory
from ocil.networks import NOT_MET
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.runs.environment import digest
from tests.networks_to_try import TINY
from tests.test_methods import batch, make

SIDE, BATCH, SIZE = 12, 4, 6
WITH_MEMORY = sorted(name for name in METHODS if method(name).memory and not method(name).offline)


def image(number: int) -> np.ndarray:
    """Sample ``number``: no two are alike, and none is blank."""
    return np.random.default_rng(number).integers(1, 255, (SIDE, SIDE, 3)).astype(np.uint8)


def learn(model: Model, batches: int, first: int = 1) -> None:
    memory = model.learner.memory
    for start in range(first, first + batches * BATCH, BATCH):
        numbers = list(range(start, start + BATCH))
        if memory.numbers is not None:
            memory.numbers.announce(numbers)
        model.learn(np.stack([image(number) for number in numbers]), ["abc"[number % 3] for number in numbers])


def held(model: Model) -> list[int]:
    """The samples in the memory, found by what they look like."""
    memory = model.learner.memory
    known = {image(number).tobytes(): number for number in range(1, 100)}
    return [known[one.tobytes()] for one in memory.images[: len(memory)].numpy()]


@pytest.fixture(params=WITH_MEMORY)
def model(request: pytest.FixtureRequest, quick_convolution: None) -> Model:
    settings: dict[str, Any] = {"hybrid": True, "distil_from": "start"} if request.param == "pcr" else {}
    recipe = Recipe(request.param, SIZE, BATCH, review_every=3, settings=settings | {"network": TINY})
    made = Model(recipe, ImageFormat((SIDE, SIDE, 3)))
    made.learner.memory.numbers = SlotNumbers(made.learner.memory, BATCH)
    return made


def test_numbers_follow_samples_and_removal_leaves_no_trace(model: Model) -> None:
    """For every method: which sample is in which slot, and all of a removed one is gone, wherever it was kept."""
    learn(model, 3)
    memory, numbers = model.learner.memory, model.learner.memory.numbers
    assert numbers is not None
    assert numbers.of_slot[: len(memory)].tolist() == held(model)
    before = Counter(held(model))
    gone = held(model)[1]
    model.forget(numbers.slots_of(gone))
    after = Counter(held(model))
    assert gone not in after
    assert set(after) == set(before) - {gone}
    assert numbers.of_slot[: len(memory)].tolist() == held(model)
    pixels = torch.from_numpy(image(gone))
    for name, tensor in model.learner.state().items():
        if tensor.dtype == torch.uint8 and tensor.shape[1:] == pixels.shape:
            assert not (tensor == pixels).flatten(1).all(1).any(), name
    learn(model, 1, first=13)  # it goes on
    model.check_loss()
    assert numbers.of_slot[: len(memory)].tolist() == held(model)


def test_counting_changes_no_bit(quick_convolution: None) -> None:
    for name in ("er", "aser", "gdumb"):
        models = [Model(Recipe(name, SIZE, BATCH, width=1), ImageFormat((SIDE, SIDE, 3))) for _ in range(2)]
        models[0].learner.memory.numbers = SlotNumbers(models[0].learner.memory, BATCH)
        for one in models:
            learn(one, 5)
        assert digest(models[0].learner) == digest(models[1].learner)


def test_another_label(quick_convolution: None) -> None:
    model = Model(Recipe("gdumb", SIZE, BATCH, width=1), ImageFormat((SIDE, SIDE, 3)))
    learn(model, 3)
    memory = model.learner.memory
    assert isinstance(memory, BalancedMemory)
    slot = int((memory.labels[: len(memory)] == model.numbers["a"]).nonzero()[0])
    model.relabel([slot], "new")
    assert model.labels[-1] == "new"
    assert int(memory.labels[slot]) == model.numbers["new"]
    stored = torch.bincount(memory.labels[: len(memory)], minlength=len(memory.counts))
    assert memory.counts.tolist() == stored.tolist()
    assert int(memory.since[model.numbers["new"]]) == int(memory.since.max())
    learn(model, 2, first=13)
    stored = torch.bincount(memory.labels[: len(memory)], minlength=len(memory.counts))
    assert memory.counts.tolist() == stored.tolist()


@pytest.mark.parametrize("label", ["a", "new"])
def test_every_method_learns_the_label_of_a_correction(model: Model, label: str) -> None:
    """Also if it is a class of an earlier task, or one that the stream never had: no softmax leaves it out."""
    learner = model.learner
    learn(model, 1)
    model.review_or_end_task()
    for start in (5, 9, 13):
        model.learn(np.stack([image(number) for number in range(start, start + BATCH)]), ["b", "c"] * 2)
    model.relabel(list(range(len(learner.memory))), label)
    for start in (17, 21):
        model.learn(np.stack([image(number) for number in range(start, start + BATCH)]), ["b", "c"] * 2)
        assert float(learner.last_loss) < 1000  # a class left out of a softmax costs 10,000
    assert model.numbers[label] in learner.classes_met


def after_a_correction(name: str, **settings: Any) -> Any:
    """A learner that has learned class 0, and whose memory has two samples of class 2 by correction alone."""
    learner = make(name, **settings)
    learner.learn(batch(0)[0], torch.zeros(len(batch(0)[0]), dtype=torch.int64))
    learner.relabel([0, 1], 2)
    return learner


@pytest.mark.parametrize("name", ["pcr", "gsa", "stride"])
def test_a_class_that_came_by_correction_is_predicted(name: str, quick_convolution: None) -> None:
    learner = after_a_correction(name)
    learner.relabel([], 3)
    assert learner.scores(batch(1)[0]).ne(NOT_MET).any(0).nonzero().flatten().tolist() == [0, 2]


def test_a_review_learns_a_class_that_came_by_correction(quick_convolution: None) -> None:
    learner = after_a_correction("stride", seen_only=True)
    learner.review()
    assert float(learner.last_loss) < 100  # a class left out of a softmax costs 10,000


def test_a_class_that_came_by_correction_is_not_pushed_down(quick_convolution: None) -> None:
    """By the stream, as a class that is still to come would be."""
    seen = after_a_correction("er-ace", future="unseen").seen_classes
    assert kept_classes(torch.tensor([0]), seen, "unseen").tolist() == [True, True, False, True, True, True]


def test_a_class_that_came_by_correction_is_old_after_the_task(quick_convolution: None) -> None:
    learner = after_a_correction("ocm")
    learner.relabel([], 3)
    learner.task_ended()
    assert learner.old_classes.tolist() == [True, False, True, False, False, False]
    assert learner.old_count == 2


def small(size: int) -> Memory:
    return Memory(size, (1,), torch.Generator().manual_seed(3))


def offer(memory: Memory, *values: int) -> None:
    memory.add(torch.tensor(values, dtype=torch.uint8)[:, None], torch.tensor(values))


def test_while_all_are_stored_the_next_sample_finds_the_free_slot() -> None:
    memory = small(4)
    offer(memory, 1, 2, 3, 4)
    source, empty = memory.count_out(1)
    assert (source, empty, len(memory), int(memory.seen)) == (3, 3, 3, 3)


def test_a_full_memory_stays_a_fair_draw() -> None:
    """A reservoir of 2 of the samples 1..5; 1 is counted out if it is there; then 6 comes.

    Each of 2..5 must be as likely as another to be stored. 6 is stored with 2 / 5 where 1 was counted out, which is in
    2 / 5 of all cases, and else with 2 / 6: it has 0.18 of the slots.
    """
    found: Counter[int] = Counter()
    generator = torch.Generator().manual_seed(0)
    runs = 800
    for _ in range(runs):
        memory = Memory(2, (1,), generator)
        offer(memory, 1)
        offer(memory, 2, 3, 4, 5)
        for slot in (memory.labels[:2] == 1).nonzero().flatten().tolist():
            source, empty = memory.count_out(slot)
            assert empty is None
            memory.labels[slot] = memory.labels[source]
        offer(memory, 6)
        found.update(memory.labels[:2].tolist())
    assert 1 not in found
    shares = [found[number] / (2 * runs) for number in range(2, 6)]
    assert max(shares) - min(shares) < 0.07
    assert abs(found[6] / (2 * runs) - 0.18) < 0.03


def test_the_last_samples_can_be_counted_out() -> None:
    memory = small(2)
    offer(memory, 1, 1, 1)
    assert memory.count_out(1, [0]) == (1, 1)
    assert memory.count_out(0) == (0, 0)
    assert memory.draw(1) is None
    offer(memory, 7)
    assert memory.labels[: len(memory)].tolist() == [7]
