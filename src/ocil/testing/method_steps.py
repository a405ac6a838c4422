"""What every method promises of its entry, its steps, its scores and its losses."""

import json
import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ocil.errors import OcilError
from ocil.methods import check
from ocil.methods.base import Learner
from ocil.runs.naming import plain
from ocil.runs.settings import restored
from ocil.testing.contract import Promises, must
from ocil.testing.subject import (
    BATCH,
    CLASSES,
    SHAPE,
    MethodSubject,
    changed,
    end_task,
    frozen,
    same,
)

promise: Promises[MethodSubject] = Promises()


# Entry and settings


@promise("The entry has a name for folders and tables, a summary, and a class whose `learn` is its own.")
def complete_entry(it: MethodSubject) -> None:
    try:
        check(it.info)
    except OcilError as error:
        must(False, str(error))
    must(it.info.summary.strip(), "the summary is empty")
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


@promise("`why_not_vectors`, `why_not_images` and `why_task_ends` return the reason as text, or None.")
def reasons_as_text(it: MethodSubject) -> None:
    for name in ("why_not_vectors", "why_not_images", "why_task_ends"):
        reason = getattr(it.learner, name)(it.config())
        is_text = isinstance(reason, str) and reason.strip()
        must(reason is None or is_text, f"`{name}` returned {reason!r}, which a message would end with")


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


@promise("If what `scorer` returns fails, the learner is as before.")
def failed_scores(it: MethodSubject) -> None:
    learner = it.make()
    try:
        learner.scorer()(torch.zeros(2, *SHAPE[:2], 1, dtype=torch.uint8))  # one channel instead of three
    except Exception:
        must(all(module.training for module in learner.network.modules()), "the network was left in evaluation mode")
    else:
        must(False, "images with one channel instead of three were scored")


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
