"""MKD: its distillation in numpy, the teacher by its recursion, steps by hand, and the mean of both that predicts."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods.mkd import MKD, distillation
from ocil.networks import to_float
from tests.networks_to_try import TINY
from tests.test_methods import BATCH, REPLAY, SlowStep, batch, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")


def mkd(steps: int, **changes: Any) -> MKD:
    learner = warm("mkd", steps, **changes)
    assert isinstance(learner, MKD)
    return learner


def test_distillation_and_its_gradient_in_numpy() -> None:
    """T² KL(q ‖ p), whose gradient with respect to the network's logits is T (p - q) / N."""
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(0, 3, (5, 4)), rng.normal(0, 3, (5, 4))
    p, q = (np.exp(z / 4) / np.exp(z / 4).sum(1, keepdims=True) for z in (student, teacher))
    expected = 16 * np.mean([sum(q[i, c] * (np.log(q[i, c]) - np.log(p[i, c])) for c in range(4)) for i in range(5)])
    logits = torch.tensor(student, dtype=torch.float32, requires_grad=True)
    loss = distillation(logits, torch.tensor(teacher, dtype=torch.float32), 4.0)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    (slope,) = torch.autograd.grad(loss, [logits])
    np.testing.assert_allclose(slope.numpy(), 4 * (p - q) / 5, atol=1e-6)
    assert float(distillation(logits, logits, 4.0).detach()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize(
    "settings", [{}, {"start": "copy"}, {"augment": False, "distillation": 2.0, "start": "copy"}], ids=str
)
def test_a_step_by_hand(settings: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = mkd(steps, lr=0.07, **settings)
    slow, teacher, config = SlowStep(learner), copy.deepcopy(learner.teacher), learner.config
    draws, views = record(learner.memory, "retrieve", monkeypatch), record(learner, "random_views", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)
    (draw,) = draws
    if draw is None:
        assert steps == 0
        slow.agrees()  # nothing to replay: nothing is learned
        return
    assert len(draw[1]) == min(REPLAY, BATCH * steps)
    raw, labels = to_float(torch.cat([draw[0], x])), torch.cat([draw[1], y])
    seen = views[0] if config.augment else raw
    taught = teacher.train()(seen).detach()

    def distance(logits: Tensor) -> Tensor:
        return 16 * F.kl_div((logits / 4).log_softmax(1), (taught / 4).softmax(1), reduction="batchmean")

    logits = slow.logits(seen)
    parts = [distance(logits)] + ([distance(slow.logits(raw))] if config.augment else [])
    slow.minimise(F.cross_entropy(logits, labels) + config.distillation * torch.stack(parts).mean())
    slow.agrees()
    for mine, former, weight in zip(
        learner.teacher.parameters(), teacher.parameters(), learner.network.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, 0.99 * former + 0.01 * weight.detach())


def test_a_review_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-entropy of the views; the teacher stays where it is."""
    learner = mkd(3)
    slow, before = SlowStep(learner), copy.deepcopy(learner.teacher.state_dict())
    views, slots = record(learner, "random_views", monkeypatch), torch.tensor([4, 1, 9])
    learner.review_step(slots)
    (shown,) = views
    slow.minimise(F.cross_entropy(slow.logits(shown), learner.memory.labels[slots]))
    slow.rate *= 0.1
    slow.agrees()
    assert all(torch.equal(value, before[name]) for name, value in learner.teacher.state_dict().items())


def test_how_the_teacher_starts() -> None:
    for start, share in (("small", 0.01 / 0.99), ("copy", 1.0)):
        learner = mkd(0, start=start)
        for mine, weight in zip(learner.teacher.parameters(), learner.network.parameters(), strict=True):
            torch.testing.assert_close(mine, share * weight.detach())


@pytest.mark.parametrize("growing", [False, True])
def test_the_mean_of_both_predicts(growing: bool) -> None:
    learner = make("mkd", growing=growing, lr=0.05)
    assert isinstance(learner, MKD)
    for number in range(5):
        learner.learn(*batch(number))
    mean = copy.deepcopy(learner.network).eval()
    with torch.no_grad():
        for weight, other in zip(mean.parameters(), learner.teacher.parameters(), strict=True):
            weight.copy_((weight + other) / 2)
    x = batch(7)[0]
    torch.testing.assert_close(learner.scores(x), mean(to_float(x)).detach(), rtol=1e-4, atol=1e-4)


def test_what_is_frozen_is_not_averaged() -> None:
    x, y = torch.randint(256, (12, 9, 9, 3), dtype=torch.uint8), torch.arange(12) % 3
    data = ocil.Dataset("tiny", x.numpy(), y.numpy(), x.numpy(), y.numpy(), ("a", "b", "c"))
    learner = ocil.make_learner("mkd", data, network=TINY, freeze="backbone", memory=12, memory_batch=4)
    assert isinstance(learner, MKD)
    assert learner.trained == ["head.weight", "head.bias"]
    for name, weight in learner.teacher.named_parameters():
        assert torch.equal(weight, learner.network.get_parameter(name)) == name.startswith("body.")


def test_published_settings() -> None:
    config: Any = ocil.resolve("mkd", "cifar100").learner
    assert (config.memory_batch, config.optimizer, config.lr, config.weight_decay) == (64, "adam", 0.0005, 0)
    assert (config.distillation, config.temperature, config.alpha, config.start) == (5.5, 4, 0.01, "small")
    assert (config.crop, config.flip, config.jitter, config.gray) == (0.2, 0.5, 0.8, 0.2)
    refused: list[dict[str, Any]] = [{"alpha": 0.0}, {"alpha": 1.0}, {"temperature": 0.0}, {"distillation": -1.0}]
    for wrong in refused:
        with pytest.raises(OcilError, match=next(iter(wrong))):
            make("mkd", **wrong)
