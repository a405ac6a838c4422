"""What every method promises. docs/adding-a-method.md explains the reasons."""

import json
import math
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ocil.errors import OcilError
from ocil.methods import MethodInfo, check_name
from ocil.methods.base import Learner
from ocil.methods.config import Problem
from ocil.networks import NOT_MET
from ocil.runs.config import restored
from ocil.runs.naming import plain
from ocil.testing.contract import Check, Promises, must, run_all
from ocil.testing.subject import (
    BATCH,
    CLASSES,
    IMAGES,
    MEMORY,
    SHAPE,
    MethodSubject,
    changed,
    end_task,
    frozen,
    measured_passes,
    same,
)
from ocil.testing.watch import watched

promise: Promises[MethodSubject] = Promises()


def method_checks(target: type[Learner] | MethodInfo | str, **settings: Any) -> list[Check[MethodSubject]]:
    """The checks of a method, given as a class, a ``MethodInfo`` or a registered name.

    A class that keeps no memory, needs task ends or cannot be captured must come in a ``MethodInfo`` that says so.
    ``settings`` are fields of the method's config: they replace the tiny values that the checks use. The network has a
    width of 2, the memory holds 12 images, 8 are replayed in a step, and the optimiser is SGD.
    """
    return promise.checks(MethodSubject.of(target, settings))


def check_method(target: type[Learner] | MethodInfo | str, **settings: Any) -> None:
    """Run all ``method_checks``. Raises ``ContractError`` with one line for each promise that is not kept."""
    run_all(method_checks(target, **settings))


# Entry and settings


@promise("The entry has a name for folders and tables, a summary, and a class whose `learn` is its own.")
def complete_entry(it: MethodSubject) -> None:
    try:
        check_name(it.info)
    except OcilError as error:
        must(False, str(error))
    must(it.info.summary.strip(), "the summary is empty")
    must(issubclass(it.learner, Learner), f"{it.learner.__name__} is not a subclass of ocil.Learner")
    must(it.learner.learn is not Learner.learn, f"{it.learner.__name__} has no `learn`")
    must((it.learner.__doc__ or "").strip(), f"{it.learner.__name__} has no docstring")


@promise("An impossible value of a setting raises OcilError before anything is built.")
def impossible_settings(it: MethodSubject) -> None:
    for name, value in (("lr", -1.0), ("width", 0), ("momentum", math.nan), ("review_batch", 0)):
        try:
            it.config(**{name: value})
        except OcilError:
            continue
        must(False, f"{name} = {value} was accepted")


@promise("The settings come back from JSON as they were: a run is resumed from its config.json.")
def settings_as_json(it: MethodSubject) -> None:
    config = it.config()
    content = json.loads(json.dumps(asdict(config)))
    again = restored(type(config), content)
    different = [name for name, value in asdict(config).items() if plain(getattr(again, name)) != plain(value)]
    must(not different, f"{', '.join(different)} changed on the way")


# Learning


@promise("Steps and the end of a task train every weight, and each step counts once and records its loss.")
def every_weight_learns(it: MethodSubject) -> None:
    learner = it.make()
    before = {name: value.detach().clone() for name, value in learner.network.named_parameters() if value.requires_grad}
    it.learn(learner, range(3))
    must(int(learner.steps) == 3, f"3 batches were {int(learner.steps)} steps: call `record_loss` once at the end")
    end_task(learner)
    must(int(learner.failed_at) == -1, f"the loss of step {int(learner.failed_at)} was not finite")
    after = dict(learner.network.named_parameters())
    still = [name for name, value in before.items() if torch.equal(value, after[name])]
    must(not still, f"{', '.join(still[:3])} did not change")


@promise("A batch may be smaller than the others, as the last one of a stream is.")
def a_smaller_batch(it: MethodSubject) -> None:
    learner = it.warm(3)
    learner.learn(*it.batch(3, size=3))
    must(int(learner.failed_at) == -1, "the loss of a batch of 3 was not finite")


@promise("The images and labels that it is given stay as they are.")
def inputs_are_left_alone(it: MethodSubject) -> None:
    learner = it.make()
    x, y = it.batch(0)
    before = x.clone(), y.clone()
    for _ in range(4):
        learner.learn(x, y)
        learner.scores(x)
    must(torch.equal(x, before[0]), "the images were changed in place")
    must(torch.equal(y, before[1]), "the labels were changed in place")


@promise("The seed decides everything: the same seed gives the same bits, another one gives others.", slow=True)
def seeds(it: MethodSubject) -> None:
    first, again, other = it.make(0), it.make(0), it.make(1)
    for learner in (first, again, other):
        it.work(learner, 0)
    must(same(first, again), "two learners of one seed differ after the same batches")
    must(not same(first, other), "learners of two seeds are equal")


@promise("Randomness comes from `self.rng` alone: PyTorch's global generator is neither read nor moved.", slow=True)
def own_generators(it: MethodSubject) -> None:
    learners = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            learner = it.make()
            it.work(learner, 0)
            must(torch.equal(torch.get_rng_state(), before), "the global generator was moved")
            learners.append(learner)
    must(same(*learners), "the result depends on torch.manual_seed")


@promise("Four easy classes, mixed, are learned far better than by chance.", slow=True)
def easy_patterns(it: MethodSubject) -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(40, 216, (4, *SHAPE), generator=generator)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(4 * count) % 4
        return (pictures[y] + torch.randint(-40, 40, (len(y), *SHAPE), generator=generator)).to(torch.uint8), y

    x, y = draw(30)
    test_x, test_y = draw(10)
    small: dict[str, Any] = {"width": 4, "memory": 40, "lr": 0.05}
    learner = it.make(classes=4, **small | it.settings)
    for number in range(40):
        index = torch.arange(number * BATCH, (number + 1) * BATCH) % len(y)
        learner.learn(x[index], y[index])
    end_task(learner)
    accuracy = float((learner.scores(test_x).argmax(1) == test_y).float().mean())
    must(accuracy > 0.5, f"after 40 steps its accuracy is {accuracy:.2f}, where chance is 0.25")


# Scores


@promise("`scores` is [B, classes] without a gradient, and an image's scores do not depend on its neighbours.")
def scores_of_each_image(it: MethodSubject) -> None:
    learner = it.warm(3)
    x = it.batch(7)[0]
    scores = learner.scores(x)
    must(
        scores.shape == (BATCH, CLASSES), f"the scores of {BATCH} images and {CLASSES} classes are {list(scores.shape)}"
    )
    must(not scores.requires_grad, "they carry a gradient")
    alone = learner.scores(x[:1])
    must(torch.allclose(alone, scores[:1], rtol=1e-4, atol=1e-5), "an image alone has other scores than in a batch")


@promise("`scores` changes nothing: not the learner's state, nor the network's training mode.")
def scores_are_pure(it: MethodSubject) -> None:
    learner = it.warm(3)
    before, x = frozen(learner), it.batch(7)[0]
    first, second = learner.scores(x), learner.scores(x)
    must(torch.equal(first, second), "asked twice, it gave other scores")
    moved = changed(before, learner.state())
    must(not moved, f"{', '.join(sorted(moved)[:3])} changed")
    must(all(module.training for module in learner.network.modules()), "the network was left in evaluation mode")


@promise("Images that are only scored teach nothing: test images have no influence on what is learned.", slow=True)
def test_images_teach_nothing(it: MethodSubject) -> None:
    watched, alone = it.make(), it.make()
    for number in range(4):
        watched.scores(it.batch(number + 6)[0])
        watched.learn(*it.batch(number))
        alone.learn(*it.batch(number))
    must(same(watched, alone), "a learner that scored other images in between learned something else")


@promise("If `scores` fails, the learner is as before.")
def failed_scores(it: MethodSubject) -> None:
    learner = it.make()
    try:
        learner.scores(torch.zeros(2, *SHAPE[:2], 1, dtype=torch.uint8))  # one channel instead of three
    except Exception:
        must(all(module.training for module in learner.network.modules()), "the network was left in evaluation mode")
    else:
        must(False, "images with one channel instead of three were scored")


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
    if other.config.review and not other.config.review_every:
        other.review()
    must(same(one, other), "the two ways differ")
    must(one.task_number == 1, "`task_ended` must call super().task_ended()")


# Losses


@promise("The first step whose loss is not finite is remembered.", applies=lambda it: not it.rehearses)
def lost_losses(it: MethodSubject) -> None:
    learner = it.warm(2)
    with torch.no_grad():
        for parameter in learner.network.parameters():
            parameter.fill_(math.nan)
    learner.learn(*it.batch(2))
    must(int(learner.failed_at) == 2, f"a network of NaNs failed at step 2, recorded is {int(learner.failed_at)}")


@promise("The recorded loss is the sum of its parts.")
def losses_add_up(it: MethodSubject) -> None:
    learner = it.make()
    it.learn(learner, range(3))
    seen = learner.recorded_losses.take()
    must("stream" in seen, "no loss was recorded: end `learn` with self.record_loss(loss)")
    parts = [value for name, value in seen.items() if name.startswith("stream/")]
    total = seen["stream"]
    must(not parts or math.isclose(sum(parts), total, rel_tol=1e-4, abs_tol=1e-6), f"parts {parts}, loss {total}")


# What an engine relies on


@promise("`passes` lists the batches that go through the network in a step, so that memory and time can be planned.")
def passes_of_a_step(it: MethodSubject) -> None:
    learner = it.warm(6)
    learner.task_ended()
    expected = learner.passes(learner.config, BATCH, CLASSES)
    with measured_passes(learner) as found:
        learner.learn(*it.batch(6))
    must(
        sorted(found) == sorted(expected),
        f"it lists {list(map(tuple, expected))}, measured are {list(map(tuple, found))}",
    )


@promise(
    "Steady steps read nothing back to the host and keep their shapes, so that they can be captured as a CUDA graph."
    " Else set capturable=False.",
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
            must(step < 12, "`shapes_are_static()` is still false after 12 batches")
        for _ in ("first task", "second task"):
            variant = learner.step_variant()
            learner.learn(*it.batch(step))
            traces = [watched(partial(learner.learn, *it.batch(step + more))) for more in range(1, 4)]
            must(all(trace == traces[0] for trace in traces), "operations or shapes differ between steps")
            must(learner.step_variant() == variant, "`step_variant()` changed without a reason")
            step += 4
            end_task(learner)
            must(learner.shapes_are_static(), "`shapes_are_static()` turned false again")


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


@promise("It learns from vectors too, unless `needs_images` gives the reason why it cannot.")
def vectors(it: MethodSubject) -> None:
    config = it.config(network="linear", **it.learner.vector_settings)
    if it.learner.needs_images(config):
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
