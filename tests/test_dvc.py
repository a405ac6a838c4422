"""DVC: its loss against loops, its retrieval against copies that really take the step, and steps by hand."""

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ocil
from ocil.errors import OcilError
from ocil.methods import dvc
from ocil.methods.dvc import DVC, dvc_loss, gradient_size
from ocil.networks import to_float
from ocil.testing.subject import frozen
from ocil.testing.watch import HostWatch
from tests.reference.datasets import patterned
from tests.reference.losses import softmax
from tests.test_methods import BATCH, batch, learn, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")

CHOSEN, CANDIDATES = 3, 9
Logits = Sequence[Sequence[float]]


def learner_after(steps: int, **changes: float) -> DVC:
    learner = warm("dvc", steps, **{"memory": 20, "memory_batch": CHOSEN, "candidates": CANDIDATES, **changes})
    assert isinstance(learner, DVC)
    return learner


def loss_by_loops(views: Sequence[Logits], labels: Sequence[int], weight: float) -> float:
    """Number by number, in plain Python floats."""
    p, p2, p3 = ([softmax(row) for row in logits] for logits in views)
    count, classes = len(labels), len(p[0])
    entropy = 0.0
    for q in (p, p2, p3):
        for c in range(classes):
            mean = sum(row[c] for row in q) / count
            entropy += mean * math.log(mean) / 3
    ce = distance = 0.0
    for i, label in enumerate(labels):
        for q in (p, p2):
            ce -= math.log(q[i][label]) / (2 * count)
            distance += sum(abs(p3[i][c] - q[i][c]) for c in range(classes)) / (2 * count * classes)
    return ce + entropy + weight * distance


@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 10**6), st.floats(0, 5))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_loss_against_loops(count: int, classes: int, seed: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    views, labels = rng.normal(size=(3, count, classes)) * 3, rng.integers(0, classes, count)
    one, two, three = torch.from_numpy(views)
    got = dvc_loss(one, two, three, torch.from_numpy(labels), weight)
    assert float(got) == pytest.approx(loss_by_loops(views.tolist(), labels.tolist(), weight))


def test_gradient_of_the_loss() -> None:
    views = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 4, 2, 2])
    inputs = [view.requires_grad_() for view in views.unbind()]
    assert torch.autograd.gradcheck(lambda a, b, c: dvc_loss(a, b, c, labels, 2.0), inputs)


def test_loss_is_finite_for_sure_logits() -> None:
    """Classes of probability 0 in every image: the floor keeps their logarithm, and no gradient comes back as NaN."""
    z = torch.tensor([[200.0, 0.0, 0.0], [200.0, 0.0, 0.0]], requires_grad=True)
    loss = dvc_loss(z, z, z, torch.tensor([0, 0]), 4.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_gradient_size_is_that_of_the_last_layer() -> None:
    """The sum of the absolute entries of the classifier's weight gradient, one image at a time."""
    generator = torch.Generator().manual_seed(0)
    features, head = torch.randn(6, 7, generator=generator), nn.Linear(7, 4)
    with torch.no_grad():
        head.weight.copy_(torch.randn(4, 7, generator=generator))
        head.bias.copy_(torch.randn(4, generator=generator))
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    expected = []
    for feature, label in zip(features, labels, strict=True):
        head.zero_grad()
        F.cross_entropy(head(feature[None]), label[None]).backward()
        assert head.weight.grad is not None
        expected.append(float(head.weight.grad.abs().sum()))
    torch.testing.assert_close(gradient_size(features, head(features), labels), torch.tensor(expected))


class Copies:
    """Copies of the network and the Q-net whose steps are taken by hand."""

    def __init__(self, learner: DVC) -> None:
        self.learner = learner
        self.network, self.qnet = copy.deepcopy(learner.network), copy.deepcopy(learner.qnet)
        self.weights = [*self.network.parameters(), *self.qnet.parameters()]
        self.slopes = [torch.zeros_like(weight) for weight in self.weights]
        self.total = 0.0

    def minimise(self, first: Tensor, second: Tensor, y: Tensor) -> None:
        logits = self.network(torch.cat([first, second]))
        z, z2 = logits[: len(y)], logits[len(y) :]
        hidden = torch.relu(F.linear(torch.cat([z, z2], 1), *self.qnet[0].parameters()))
        z3 = F.linear(hidden, *self.qnet[2].parameters())
        loss = dvc_loss(z, z2, z3, y, self.learner.config.dl_weight)
        found = torch.autograd.grad(loss, self.weights)
        self.slopes = [a + b for a, b in zip(self.slopes, found, strict=True)]
        self.total += float(loss.detach())

    def growth(self, first: Tensor, second: Tensor, y: Tensor) -> list[float]:
        """How each image's gradient grows if a copy takes a step along the slopes so far."""
        moved = copy.deepcopy(self.network)
        with torch.no_grad():
            for weight, slope in zip(moved.parameters(), self.slopes, strict=False):  # the Q-net's come last
                weight.sub_(self.learner.config.lr * slope)
        sizes = []
        for network in (moved, self.network):  # a pass in training mode: the real one's statistics move
            with torch.no_grad():
                features = network.features(torch.cat([first, second]))
                p = F.softmax(network.head(features), dim=1)
            sizes.append(
                [
                    float((p[i] - F.one_hot(label, p.shape[1])).abs().sum() * features[i].abs().sum())
                    for i, label in enumerate(y)
                ]
            )
        return [after - before for after, before in zip(*sizes, strict=True)]

    def agrees(self) -> None:
        with torch.no_grad():
            for weight, slope in zip(self.weights, self.slopes, strict=True):
                weight.sub_(self.learner.config.lr * slope)
        for mine, its in ((self.network, self.learner.network), (self.qnet, self.learner.qnet)):
            for (name, value), (_, got) in zip(mine.state_dict().items(), its.state_dict().items(), strict=True):
                torch.testing.assert_close(got, value, rtol=1e-4, atol=2e-6, msg=f"{name}: {{}}".format)
        assert float(self.learner.last_loss) == pytest.approx(self.total, rel=1e-5)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_step_by_hand(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """First step (nothing stored), second (all stored images are candidates), and a steady one."""
    learner = learner_after(steps, lr=0.07, dl_weight=1.5)
    hand = Copies(learner)
    views, draws = record(learner, "random_views", monkeypatch), record(learner.memory, "draw", monkeypatch)
    images, labels = learner.memory.images.clone(), learner.memory.labels.clone()
    x, y = batch(steps)
    learner.learn(x, y)
    hand.minimise(to_float(x), views[0], y)
    (slots,) = draws
    if steps == 0:
        assert slots is None
    else:
        assert len(slots) == min(CANDIDATES, BATCH * steps)
        first, second, y = to_float(images[slots]), views[1], labels[slots]
        growth = hand.growth(first, second, y)
        best = sorted(range(len(y)), key=lambda i: -growth[i])[:CHOSEN]
        hand.minimise(first[best], second[best], y[best])
    assert len(views) == (1 if steps == 0 else 2)  # the candidates' second views are those that are trained on
    hand.agrees()


def test_retrieval_leaves_weights_and_gradients() -> None:
    learner = learner_after(4)
    x, y = batch(4)
    learner.optimizer.zero_grad()
    learner.loss(to_float(x), to_float(x), y).backward()
    weights = [parameter.clone() for parameter in learner.parameters()]
    slopes = [parameter.grad.clone() for parameter in learner.parameters() if parameter.grad is not None]
    replay = learner.retrieve()
    assert replay is not None
    assert [len(part) for part in replay] == [CHOSEN] * 3
    assert all(map(torch.equal, weights, learner.parameters()))
    now = [parameter.grad for parameter in learner.parameters() if parameter.grad is not None]
    assert all(map(torch.equal, slopes, now))


def test_retrieval_reads_nothing() -> None:
    """With fewer candidates than stored images."""
    learner = learner_after(4)
    assert learner.shapes_are_static()
    x, y = batch(4)
    with HostWatch() as watch:
        learner.learn(x, y)
    assert len(watch.trace) > 100


def test_review_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_after(4)
    hand = Copies(learner)
    views = record(learner, "random_views", monkeypatch)
    slots = torch.tensor([4, 1, 9, 6])
    learner.review_step(slots)
    hand.minimise(to_float(learner.memory.images[slots]), views[0], learner.memory.labels[slots])
    hand.slopes = [0.1 * slope for slope in hand.slopes]
    hand.agrees()


def test_qnet_learns_and_has_its_own_seed() -> None:
    learner = make("dvc", qnet_units=5)
    before = frozen(learner)
    learn(learner, range(2))
    moved = [
        name for name, value in learner.state().items() if name.startswith("qnet") and (value != before[name]).any()
    ]
    assert moved == ["qnet.0.weight", "qnet.0.bias", "qnet.2.weight", "qnet.2.bias"]
    assert learner.state()["qnet.0.weight"].shape == (5, 12)
    other = make("dvc", seed=1, qnet_units=5)
    assert not torch.equal(before["qnet.0.weight"], other.state()["qnet.0.weight"])


@pytest.mark.parametrize(("dataset", "weight"), [("cifar10", 2), ("cifar100", 4), ("mini_imagenet", 4)])
def test_published_settings(dataset: str, weight: float) -> None:
    config = ocil.resolve("dvc", dataset).learner
    assert isinstance(config, dvc.DVCConfig)
    assert (config.dl_weight, config.candidates, config.memory_batch, config.lr) == (weight, 50, 10, 0.1)
    assert (config.review, config.review_batch, config.qnet_units) == (False, 10, 128)
    augment = config.random_views()
    assert (augment.crop_scale, augment.flip, augment.jitter, augment.gray) == ((0.2, 1.0), 0.5, 1.0, 0.2)
    assert (augment.brightness, augment.contrast, augment.saturation, augment.hue) == (0.4, 0.4, 0.4, 0.1)
    assert augment.per_batch
    assert not dvc.DVCConfig(per_batch=False).random_views().per_batch


@pytest.mark.parametrize("setting", [{"candidates": 2}, {"qnet_units": 0}, {"dl_weight": -1.0}, {"crop": 0.0}])
def test_impossible_settings(setting: dict[str, Any]) -> None:
    with pytest.raises(OcilError, match=next(iter(setting))):
        make("dvc", **setting)


@pytest.mark.slow
def test_patterns_are_learned_and_views_agree() -> None:
    """Over seeds: accuracy rises, and the distance in the loss brings the Q-net closer to the views."""
    data = patterned(per_class=40)
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    gap, hits = {0.0: 0.0, 4.0: 0.0}, []
    for weight, seed in itertools.product(gap, range(3)):
        learner = make("dvc", seed, data, memory=40, lr=0.1, crop=0.7, jitter=0.0, dl_weight=weight)
        assert isinstance(learner, DVC)
        for number in range(30):
            learner.learn(*batch(number, data))
        scores = learner.scores(x)
        hits.append(float((scores.argmax(1) == y).double().mean()))
        both = learner.qnet(torch.cat([scores, scores], 1)).softmax(1)
        gap[weight] += float((both - scores.softmax(1)).abs().mean().detach())
    assert sum(hits) / len(hits) > 0.6
    assert gap[4.0] < 0.7 * gap[0.0]
