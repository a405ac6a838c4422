"""GSA: the sums of gradients by autograd, the weights over several steps, and steps by hand."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods import gsa as gsa_file
from ocil.methods._tasks import drawn_among
from ocil.methods.config import Problem
from ocil.methods.gsa import GSA, GSAConfig, gradient_sums
from ocil.networks import NOT_MET, to_float
from tests.test_methods import BATCH, REPLAY, SlowStep, batch, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")


def gsa(steps: int, **changes: Any) -> GSA:
    learner = warm("gsa", steps, **changes)
    assert isinstance(learner, GSA)
    return learner


def standard(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) / 255 for values in ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)))
    return (images - mean) / std


def test_the_sums_are_those_of_the_gradients() -> None:
    """What autograd finds: entries below 0 pull a logit up, entries above push it down."""
    logits = (2 * torch.randn(9, 5, generator=torch.Generator().manual_seed(0))).requires_grad_()
    labels = torch.tensor([0, 1, 1, 4, 4, 4, 2, 0, 1])
    (slope,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), [logits])
    pulled, pushed = gradient_sums(logits.detach().softmax(1), labels)
    torch.testing.assert_close(pulled, -slope.clamp(max=0).sum(0))
    torch.testing.assert_close(pushed, slope.clamp(min=0).sum(0))


def test_the_weights_follow_all_steps_so_far() -> None:
    learner = gsa(0)
    rng, up, down = np.random.default_rng(0), np.zeros(6), np.zeros(6)
    for number in range(7):
        learner.batches_of_task.fill_(number)
        p, labels = rng.dirichlet(np.ones(6), 8), rng.integers(0, 6, 8)
        got = learner.weights(torch.tensor(p, dtype=torch.float32), torch.tensor(labels))
        for row, label in zip(p, labels, strict=True):
            for c in range(6):
                up[c] += (1 - row[c]) * (c == label)
                down[c] += row[c] * (c != label)
        expected = np.ones(6) if number < 5 else 2 / (1 + np.exp(1 - up / down))
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)
    learner.task_ended()
    assert learner.weights(torch.tensor(p, dtype=torch.float32), torch.tensor(labels)).eq(1).all()


def test_how_many_images_of_each_kind() -> None:
    learner = GSA(GSAConfig(memory=100, width=1, optimizer="sgd"), Problem((8, 8, 3), 100))
    for task, sizes in {0: (0, 32), 1: (32, 32), 2: (42, 21), 9: (57, 6)}.items():
        learner.task_number = task
        assert learner.balance(32) == sizes
    assert sum(each.images for each in GSA.passes(learner.config, 10, 100)) == 192


@pytest.mark.parametrize("task", [0, 1])
def test_a_step_by_hand(task: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = gsa(6, lr=0.02)  # beyond the warm-up
    if task:
        learner.end_task()
        for number in range(6):
            learner.learn(batch(number)[0], torch.tensor([4, 5, 4, 5, 5]))
    slow, sums = SlowStep(learner), (learner.pulled.clone(), learner.pushed.clone())
    current = learner.tasks.are(learner.tasks_ended)
    wanted: list[Tensor] = []
    monkeypatch.setattr(gsa_file, "drawn_among", lambda *given: (wanted.append(given[1]), drawn_among(*given))[1])
    draws, views = record(gsa_file, "drawn_among", monkeypatch), record(learner, "random_views", monkeypatch)
    x, y = batch(7)[0], torch.tensor([5, 4, 4, 5, 3])
    learner.learn(x, y)
    assert all(map(torch.equal, wanted, (current, ~current)))  # of this task, then of earlier ones
    assert [len(its) for _, its in draws] == [3, REPLAY // 2][: 1 + task]
    new_x, new_y = torch.cat([x, draws[0][0]]), torch.cat([y, draws[0][1]])
    (view,) = views
    assert len(view) == 2 * (BATCH + 3)
    among = [3, 4, 5] if task else sorted(set(range(6)))
    where = torch.tensor([among.index(label) for label in new_y.repeat(2).tolist()])
    loss = F.cross_entropy(slow.logits(standard(view))[:, among], where)
    size = REPLAY // 2 if task else REPLAY
    chosen = [(new_x[:size], new_y[:size])]
    if task:
        chosen.insert(0, draws[1])
    images, labels = torch.cat([a for a, _ in chosen]), torch.cat([b for _, b in chosen]).repeat(2)
    raw = to_float(images)
    p = slow.logits(standard(torch.cat([raw, raw.flip(3)]))).softmax(1)
    up, down = sums
    for row, label in zip(p.detach(), labels.tolist(), strict=True):
        for c in range(6):
            up[c] += (1 - row[c]) * (c == label)
            down[c] += row[c] * (c != label)
    weight = 2 / (1 + torch.exp(1 - up / down))
    terms = [-weight[label] * row[label].log() for row, label in zip(p, labels.tolist(), strict=True)]
    slow.minimise(loss + 2 * torch.stack(terms).mean())
    slow.agrees()
    torch.testing.assert_close(learner.pulled, up)


def test_a_review_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = gsa(3)
    slow, views = SlowStep(learner), record(learner, "random_views", monkeypatch)
    slots = torch.tensor([4, 1, 9])
    learner.review_step(slots)
    (shown,) = views
    slow.minimise(F.cross_entropy(slow.logits(standard(shown)), learner.memory.labels[slots]))
    slow.rate *= 0.1
    slow.agrees()


def test_classes_that_were_not_seen_are_not_predicted() -> None:
    learner = make("gsa")
    x, _ = batch(0)
    learner.learn(x, torch.tensor([4, 1, 1, 4, 4]))
    assert learner.scores(x).ne(NOT_MET).any(0).nonzero().flatten().tolist() == [1, 4]


def test_published_settings_and_what_is_refused() -> None:
    config: Any = ocil.resolve("gsa", "cifar100").learner
    assert (config.memory_batch, config.current_batch, config.warm_up) == (64, 22, 5)
    assert (config.optimizer, config.lr, config.weight_decay) == ("adam(betas=(0.9, 0.99))", 0.001, 0.0001)
    assert (config.crop, config.gray) == (0.6, 0.2)
    with pytest.raises(OcilError, match=r"^gsa needs task ends, which a stream with boundary = 'none'[^\n]*$"):
        ocil.resolve("gsa", "cifar100", settings={"boundary": "none"})
    with pytest.raises(OcilError, match="current_batch"):
        make("gsa", current_batch=0)
