"""What every method promises of its state, its memory, what an engine relies on, vectors, and growth by class."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ocil.methods.base import Learner
from ocil.methods.config import Problem
from ocil.methods.passes import Pass
from ocil.networks import NOT_MET
from ocil.testing.contract import Promises, must
from ocil.testing.subject import (
    BATCH,
    CLASSES,
    IMAGES,
    MEMORY,
    MethodSubject,
    changed,
    end_task,
    frozen,
    measured_passes,
    same,
)
from ocil.testing.watch import watched

promise: Promises[MethodSubject] = Promises()


# State


@promise("`state()` holds plain tensors by name, with nothing that JSON and safetensors could not hold.")
def plain_state(it: MethodSubject) -> None:
    learner = it.warm(2)
    end_task(learner)
    odd = [
        str(name)
        for name, value in learner.state().items()
        if not (isinstance(name, str) and isinstance(value, Tensor))
    ]
    must(not odd, f"{', '.join(odd[:3])} is not a tensor with a name")


@promise("A run that was killed goes on bit for bit: all that later steps depend on is in `state()`.", slow=True)
def resumed_bit_for_bit(it: MethodSubject) -> None:
    with_momentum: dict[str, Any] = {"momentum": 0.9, "weight_decay": 1e-2}
    for steps, more in ((0, {}), (1, with_momentum), (4, {})):
        learner = it.warm(steps, **more)
        state = {name: value.contiguous() for name, value in frozen(learner).items()}
        other = it.make(**more)
        other.load_state(state)
        for each in (learner, other):
            it.work(each, steps)
        differ = sorted(changed(learner.state(), other.state()))
        must(not differ, f"resumed after {steps} steps, it differs later in {', '.join(differ[:3])}")


@promise("A run that was killed after a task goes on bit for bit.", slow=True)
def resumed_after_a_task(it: MethodSubject) -> None:
    learner = it.warm(4)
    end_task(learner)
    learner.learn(*it.batch(4))
    other = it.make()
    other.load_state(frozen(learner))
    must(other.step_variant() == learner.step_variant(), "`step_variant()` is another one after `load_state`")
    for each in (learner, other):
        it.work(each, 5)
    differ = sorted(changed(learner.state(), other.state()))
    must(not differ, f"it differs later in {', '.join(differ[:3])}")
    x = it.batch(9)[0]
    must(torch.equal(other.scores(x), learner.scores(x)), "its scores differ")


@promise("Two learners that load one state share nothing, and the state stays as it was.", slow=True)
def states_are_copied(it: MethodSubject) -> None:
    state = frozen(it.warm(3, momentum=0.9))
    kept = {name: value.clone() for name, value in state.items()}
    first, second = it.make(momentum=0.9), it.make(momentum=0.9)
    first.load_state(state)
    second.load_state(state)
    first.learn(*it.batch(3))
    touched = changed(kept, state)
    must(not touched, f"learning changed {', '.join(sorted(touched)[:3])} of the state that was loaded")
    second.learn(*it.batch(3))
    must(same(first, second), "a step of the first learner changed the second")


# Memory and reviews


@promise("The memory holds images of the stream as they came, with their labels.", applies=lambda it: it.has_memory)
def memory_of_the_stream(it: MethodSubject) -> None:
    learner = it.warm(6)
    x, y = it.data
    known = {(image.numpy().tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
    count = len(learner.memory)
    must(0 < count <= MEMORY, f"after 30 images it holds {count}, where memory = {MEMORY}")
    held = zip(learner.memory.images[:count], learner.memory.labels[:count], strict=True)
    strange = sum((image.numpy().tobytes(), int(label)) not in known for image, label in held)
    must(not strange, f"{strange} of {count} were not in the stream with that label")


@promise("A method whose entry has memory=False keeps no image.", applies=lambda it: not it.has_memory)
def no_memory(it: MethodSubject) -> None:
    learner = it.warm(2)
    must(len(learner.memory) == 0, f"it holds {len(learner.memory)} images")


@promise(
    "A review trains on memory images, each at most once, and does not change the memory.",
    applies=lambda it: it.has_memory,
    slow=True,
)
def reviews(it: MethodSubject) -> None:
    learner = it.warm(4, review_batch=5)
    parts = [slots.tolist() for slots in learner.review_batches()]
    visited = [slot for part in parts for slot in part]
    must(len(set(visited)) == len(visited), "`review_batches` has an image twice")
    must(set(visited) <= set(range(MEMORY)), "`review_batches` has slots outside of the memory")
    before, steps = frozen(learner), int(learner.steps)
    learner.review()
    moved = changed(before, learner.state())
    must(not any(name.startswith("memory.") for name in moved), "the memory was changed")
    must(int(learner.steps) == steps + len(parts), "a batch of a review must be one step: call `record_loss` once")


@promise(
    "`end_task()` does what a run does at a task's end: task_ended, the steps there, a review if asked for.", slow=True
)
def task_end_in_one_call(it: MethodSubject) -> None:
    one, other = it.warm(4), it.warm(4)
    one.end_task()
    end_task(other)
    if other.config.reviews_at_task_ends:
        other.review()
    must(same(one, other), "the two ways differ")
    must(one.task_number == 1, "`task_ended` must call super().task_ended()")


# What an engine relies on


@promise("`passes` lists the batches that go through the network in a step, so that memory and time can be planned.")
def passes_of_a_step(it: MethodSubject) -> None:
    learner = it.warm(6)
    learner.task_ended()
    expected = learner.passes(learner.config, BATCH, CLASSES)
    with measured_passes(learner) as found:
        learner.learn(*it.batch(6))
    full = f" with a full memory of {learner.config.memory} images" if it.has_memory else ""
    must(sorted(found) == sorted(expected), f"it lists {_text(expected)}; measured are {_text(found)}{full}")


def _text(passes: Iterable[Pass]) -> str:
    """Passes as a method writes them: ``[Pass(10), Pass(50, trains=False)]``."""
    texts = (f"Pass({each.images})" if each.trains else f"Pass({each.images}, trains=False)" for each in passes)
    return f"[{', '.join(texts)}]"


@promise(
    "Once `shapes_are_static()` is true, steps read nothing back to the host and keep their shapes, so that they can be"
    " captured as a CUDA graph. Else set capturable=False.",
    applies=lambda it: it.info.capturable,
    slow=True,
)
def steady_steps(it: MethodSubject) -> None:
    for settings in ({}, {"momentum": 0.9, "weight_decay": 1e-3}):
        learner = it.make(**{"memory": 20} | it.settings | settings)
        step = 0
        while not learner.shapes_are_static():
            learner.learn(*it.batch(step))
            step += 1
            memory = learner.config.memory
            must(step < 12, f"`shapes_are_static()` is still false after 12 batches with a memory of {memory} images")
        steps_of: dict[int, Any] = {}
        for _ in ("first task", "second task"):
            variant = learner.step_variant()
            learner.learn(*it.batch(step))
            first, second = (watched(partial(learner.learn, *it.batch(step + more))) for more in (1, 2))
            must(first == second, "operations or shapes differ between steps")
            must(learner.step_variant() == variant, "`step_variant()` changed without a reason")
            known = steps_of.setdefault(variant, first)
            must(first == known, "steps are others after a task's end, and `step_variant()` is not")
            step += 3
            places = _places(learner)
            end_task(learner)
            must(learner.shapes_are_static(), "`shapes_are_static()` turned false again")
            moved = [name for name, place in _places(learner).items() if place != places.get(name, place)]
            if learner.step_variant() == variant:
                what = "a task's end puts another tensor in the place of"
                must(not moved, f"{what} {', '.join(moved[:3])}: copy into it, or change `step_variant()`")


def _places(learner: Learner) -> dict[str, int]:
    """Where the learner's tensors lie: a captured step finds them there again."""
    return {name: value.data_ptr() for name, value in learner.state_dict().items()}


@promise(
    "Steps on the memory, in a review and at a task's end, read nothing back and keep their shapes.",
    applies=lambda it: it.info.capturable and it.has_memory,
    slow=True,
)
def steady_steps_on_the_memory(it: MethodSubject) -> None:
    learner = it.make(**{"memory": 20} | it.settings)
    it.learn(learner, range(6))
    slots = torch.arange(min(learner.config.review_batch, len(learner.memory)))
    work = [(learner.review_step, slots)]
    learner.task_ended()
    work += [(learner.task_end_step, batch) for batch in learner.task_end_batches()][:1]
    for step, chosen in work:
        other = chosen.flip(0)
        step(chosen)
        first, second = watched(partial(step, chosen)), watched(partial(step, other))
        must(first == second, "operations or shapes depend on which images are learned")


# Vectors


@promise("It learns from vectors too, unless `why_not_vectors` gives the reason why it cannot.")
def vectors(it: MethodSubject) -> None:
    config = it.config(network="linear", test_flip=False, **it.learner.vector_settings)  # a vector has no mirror image
    if it.learner.why_not_vectors(config):
        return
    x = torch.randn((IMAGES, 7), generator=torch.Generator().manual_seed(0))
    y = it.data[1]
    learner = it.learner(config, Problem((7,), CLASSES, torch.float32))
    before = frozen(learner)
    for number in range(4):
        index = torch.arange(number * BATCH, (number + 1) * BATCH)
        learner.learn(x[index], y[index])
    end_task(learner)
    learner.review()
    must(int(learner.failed_at) == -1, f"the loss of step {int(learner.failed_at)} was not finite")
    must(changed(before, learner.state()), "nothing was learned")
    shape = learner.scores(x[:3]).shape
    must(shape == (3, CLASSES), f"the scores of 3 vectors are {list(shape)}")


# Classes that are not known in advance


@promise("With growing=true only classes that were met are predicted; others score -10,000 (`self.masked`).")
def met_classes(it: MethodSubject) -> None:
    learner = it.make(classes=2, growing=True)
    x = it.data[0][:8]
    for classes in ([3], [3, 1], [5]):
        for number in range(2):
            learner.learn(*it.batch_of(classes, number))
        scores = learner.scores(x)
        unmet = [c for c in range(learner.problem.classes) if c not in learner.classes_met]
        must(set(scores.argmax(1).tolist()) <= set(learner.classes_met), "a class that was not met is predicted")
        must(scores[:, unmet].eq(NOT_MET).all(), "a class that was not met has a score")
    must(learner.classes_met == [1, 3, 5], f"it has met 3, 1 and 5, and says {learner.classes_met}")


@promise(
    "Growth changes not one bit of what was there; new rows are 0. Name rows per class in `class_rows`.", slow=True
)
def growth_alone(it: MethodSubject) -> None:
    learner = it.make(classes=4, growing=True, momentum=0.9)
    for number in range(3):
        learner.learn(*it.batch_of([0, 2], number))
    end_task(learner)
    learner.learn(*it.batch_of([2], 3))
    x = it.data[0][:8]
    before, scores = frozen(learner), learner.scores(x)
    learner.grow(32)
    after = learner.state()
    must(torch.allclose(learner.scores(x)[:, :4], scores, rtol=1e-4, atol=1e-5), "scores of the classes before changed")
    for name, value in after.items():
        old = before[name]
        must(torch.equal(value[: len(old)] if old.dim() else value, old), f"{name} changed")
        must(value.shape == old.shape or not value[len(old) :].any(), f"new rows of {name} are not 0")
    learner.learn(*it.batch_of([5], 0))


@promise("Growth in steps and room from the start learn the same, up to rounding.", slow=True)
def growth_in_steps(it: MethodSubject) -> None:
    small, large = (it.make(classes=room, growing=True, lr=0.01) for room in (2, 16))
    for each in (small, large):
        each.learn(*it.batch_of([0, 1], 0))
        each.learn(*it.batch_of([2, 5], 0))  # more steps would enlarge differences by rounding
        end_task(each)
    must(small.classes_met == large.classes_met, f"met are {small.classes_met} and {large.classes_met}")
    x = it.data[0][:8]
    one, other = small.scores(x)[:, :CLASSES], large.scores(x)[:, :CLASSES]
    must(torch.allclose(one, other, rtol=1e-3, atol=1e-3), f"scores differ by {float((one - other).abs().max()):.1e}")


@promise("A state of a learner that has grown can be loaded by a new one, and goes on bit for bit.", slow=True)
def grown_states(it: MethodSubject) -> None:
    learner = it.make(classes=2, growing=True)
    for number in range(3):
        learner.learn(*it.batch_of([0, 5], number))
    other = it.make(classes=2, growing=True)
    other.load_state(frozen(learner))
    must(other.classes_met == [0, 5], f"the classes met are {other.classes_met}, not 0 and 5")
    for each in (learner, other):
        each.learn(*it.batch_of([1], 0))
        end_task(each)
    must(same(learner, other), "it differs later")
