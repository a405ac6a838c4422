"""What a method says of its passes is what passes through its network, forward and backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ocil.methods import METHODS
from ocil.methods.base import Learner
from ocil.methods.passes import Pass, images_held
from ocil.runs.build import build
from ocil.runs.config import RunConfig, resolve
from tests.networks_to_try import TINY
from tests.reference.datasets import noise

pytestmark = pytest.mark.usefixtures("quick_convolution")

DATA = noise(160, 4, (8, 8, 1))
BATCH, MEMORY, TASK = 5, 32, 7  # batches until a task ends, and the memory is full
X, Y = torch.from_numpy(DATA.train_x), torch.from_numpy(DATA.train_y)
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    *((name, {"memory": 12}) for name, info in METHODS.items() if info.memory),  # fewer than candidates or groups
    *((name, {"growing": True}) for name in ("aaer", "aser", "ocm")),  # where the number of classes counts
    ("afs", {"forward": "joint"}),
    ("afs", {"views": "raw"}),
    ("afs", {"views": "augmented", "forward": "joint"}),
    ("er", {"forward": "joint"}),
    ("aaer", {"augment": False}),
    ("aaer", {"drift_weight": 0.0}),
    ("aser", {"per_class": 5}),
    ("gss", {"groups": 3, "group_size": 7}),
    ("mir", {"candidates": 20}),
    ("dvc", {"candidates": 20}),
    ("ocm", {"per_class": 1}),
    ("pcr", {"views": "raw"}),
    ("pcr", {"hybrid": True}),
]


def configured(name: str, settings: dict[str, Any]) -> RunConfig:
    given: dict[str, Any] = {"tasks": 2, "batch_size": BATCH}
    given |= {"width": 2} if name == "gss" else {"network": TINY}  # GSS passes some of Tiny's layers once more
    if METHODS[name].memory:
        given |= {"memory": MEMORY, "memory_batch": 8, "review_batch": 6}
    if name == "rar":
        given |= {"repeats": 3}
    if METHODS[name].offline:
        given |= {"boundary": "iid"}
    return resolve(name, "own.npz", settings=given | settings, classes=DATA.num_classes)


def learn(learner: Learner, number: int) -> None:
    index = torch.arange(number * BATCH, (number + 1) * BATCH) % len(Y)
    learner.learn(X[index], Y[index])


def measured(learner: Learner, work: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """The passes of some work, by hooks on every network of the learner's kind."""
    forward: list[int] = []
    backward: set[int] = set()
    kind: Any = type(learner.network)
    plain, plain_maps = kind.features, kind.stage_maps

    def watched(found: Tensor) -> Tensor:
        number = len(forward)
        forward.append(len(found))
        if found.requires_grad:
            found.register_hook(lambda gradient: backward.add(number))
        return found

    def maps(network: Any, x: Tensor) -> list[Tensor]:
        *others, last = plain_maps(network, x)
        return [*others, watched(last)]

    with monkeypatch.context() as patch:
        patch.setattr(kind, "features", lambda network, x: watched(plain(network, x)))
        patch.setattr(kind, "stage_maps", maps)
        work()
    return [Pass(images, number in backward) for number, images in enumerate(forward)]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_every_pass_of_a_step_is_named(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(name, settings)
    learner = build(config, DATA)
    for number in range(TASK):
        learn(learner, number)
    learner.task_ended()
    classes = learner.problem.classes  # of a growing learner those it has room for
    expected = learner.passes(config.learner, BATCH, classes)
    found = measured(learner, lambda: learn(learner, TASK), monkeypatch)
    if name == "ocm" and config.learner.growing:  # its memory batch grows with the classes it has seen, not with room
        expected = learner.passes(config.learner, BATCH, DATA.num_classes)
    assert sorted(found) == sorted(expected)
    assert sum(each.images for each in found) == sum(each.images for each in expected)


@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if info.memory])
def test_every_pass_on_the_memory_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(name, {"rehearsal_batch": 10} if name == "gdumb" else {})
    learner = build(config, DATA)
    for number in range(TASK):
        learn(learner, number)
    slots = torch.arange(config.learner.review_batch)
    ended = learner.task_end_passes(config.learner, DATA.num_classes, len(learner.memory))

    def task_end() -> None:
        learner.task_ended()
        for batch in learner.task_end_batches():
            learner.task_end_step(batch)

    assert sorted(measured(learner, task_end, monkeypatch)) == sorted(ended)
    expected = learner.review_passes(config.learner, DATA.num_classes)
    assert sorted(measured(learner, lambda: learner.review_step(slots), monkeypatch)) == sorted(expected)


def test_a_method_that_names_none_is_taken_to_replay() -> None:
    class Own(Learner):
        pass

    config = Own.Config(memory=100, memory_batch=20)
    assert Own.passes(config, 10, 5) == [Pass(10, trains=True), Pass(20, trains=True)]
    assert Own.passes(Own.Config(), 10, 5) == [Pass(10, trains=True)]
    assert Own.review_passes(config, 5) == [Pass(10, trains=True)]
    assert Own.task_end_passes(config, 5, 100) == []


def test_activations_of_trained_passes_are_held_together() -> None:
    assert images_held([]) == 0
    assert images_held([Pass(10), Pass(20), Pass(25, trains=False)]) == 30
    assert images_held([Pass(10), Pass(25, trains=False)]) == 25
