"""RAR: its steps by hand, and what classifies."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ocil
from ocil.errors import OcilError
from ocil.methods.rar import RAR
from ocil.networks import to_float
from tests.test_methods import BATCH, MEMORY, REPLAY, SlowStep, batch, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")


def rar(steps: int, **changes: Any) -> RAR:
    learner = warm("rar", steps, **{"repeats": 2} | changes)
    assert isinstance(learner, RAR)
    return learner


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("settings", [{}, {"operations": 2}, {"operations": 0, "repeats": 3}], ids=str)
def test_repeats_by_hand(settings: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = rar(steps, lr=0.02, **settings)
    slow = SlowStep(learner)
    draws, views = record(learner.memory, "retrieve", monkeypatch), record(RAR, "augmented", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)
    assert len(draws) == len(views) == learner.config.repeats
    for number, (draw, view) in enumerate(zip(draws, views, strict=True)):
        logits = slow.logits(view)  # stream and memory together: they share batch statistics
        loss = F.cross_entropy(logits[:BATCH], y)
        if steps:
            assert len(draw[1]) == min(REPLAY, BATCH * steps)
            loss = loss + F.cross_entropy(logits[BATCH:], draw[1])
        slow.gradients, slow.total = [torch.zeros_like(p) for p in slow.network.parameters()], 0.0
        slow.minimise(loss)
        if number < len(draws) - 1:
            with torch.no_grad():
                for parameter, slope in zip(slow.network.parameters(), slow.gradients, strict=True):
                    parameter.sub_(slow.rate * slope)
    slow.agrees()  # the last step, and the loss of it
    assert int(learner.memory.seen) == BATCH * (steps + 1)  # stored once
    if steps == 4:
        assert not torch.equal(draws[0][0], draws[1][0])  # a memory batch for each repeat
    if not learner.config.operations:
        for draw, view in zip(draws, views, strict=True):
            assert torch.equal(view, to_float(x if draw is None else torch.cat([x, draw[0]])))
    else:
        assert not torch.equal(views[0][:BATCH], views[1][:BATCH])  # other operations


def test_a_review_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = rar(3)
    slow, views = SlowStep(learner), record(RAR, "augmented", monkeypatch)
    slots = torch.tensor([4, 1, 9])
    learner.review_step(slots)
    (shown,) = views
    slow.minimise(F.cross_entropy(slow.logits(shown), learner.memory.labels[slots]))
    slow.rate *= 0.1
    slow.agrees()


def test_the_nearest_class_mean_classifies() -> None:
    learner = rar(4)
    x = batch(7)[0]
    learner.network.eval()
    stored = F.normalize(learner.network.features(to_float(learner.memory.images[:MEMORY]))).detach()
    images = F.normalize(learner.network.features(to_float(x))).detach()
    scores = torch.full((len(x), 6), -torch.inf)
    for label in set(learner.memory.labels[:MEMORY].tolist()):
        mean = stored[learner.memory.labels[:MEMORY] == label].mean(0)
        scores[:, label] = -(images - mean / mean.norm()).norm(dim=1)
    learner.network.train()
    torch.testing.assert_close(learner.scores(x), scores, rtol=1e-4, atol=1e-5)


def test_the_head_classifies_if_asked_for() -> None:
    learner = rar(4, readout="head")
    x = batch(7)[0]
    learner.network.eval()
    expected = learner.network(to_float(x)).detach()
    learner.network.train()
    torch.testing.assert_close(learner.scores(x), expected)


def test_published_settings() -> None:
    config: Any = ocil.resolve("rar", "cifar100").learner
    published = (config.repeats, config.operations, config.magnitude, config.readout)
    assert published == (10, 1, 14, "ncm")
    assert (config.memory_batch, config.lr, config.review) == (10, 0.1, False)
    for wrong in ({"repeats": 0}, {"operations": -1}, {"magnitude": 31.0}):
        with pytest.raises(OcilError, match=next(iter(wrong))):
            make("rar", **wrong)
