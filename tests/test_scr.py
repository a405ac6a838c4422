"""SCR: the contrastive loss against a double loop, steps by hand, and classification by class means."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods import _class_means, scr
from ocil.methods.scr import SCR, supervised_contrastive
from ocil.networks import to_float
from ocil.testing.subject import frozen
from tests.reference.datasets import patterned
from tests.test_methods import BATCH, MEMORY, NOISE, REPLAY, SlowStep, batch, learn, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")


def learner_after(steps: int, **changes: float) -> SCR:
    learner = warm("scr", steps, **changes)
    assert isinstance(learner, SCR)
    return learner


def unit(count: int, views: int, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, views, size, generator=generator, dtype=torch.float64), dim=2)


def by_loops(projections: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """One anchor and one positive at a time, with the softmax written out."""
    vectors = [(v, int(y)) for row, y in zip(projections, labels, strict=True) for v in row]
    anchors = []
    for i, (anchor, label) in enumerate(vectors):
        others = [(torch.dot(anchor, v) / temperature, y) for j, (v, y) in enumerate(vectors) if j != i]
        total = torch.log(torch.stack([torch.exp(s) for s, _ in others]).sum())
        positives = [total - s for s, y in others if y == label]
        anchors.append(torch.stack(positives).mean())
    return torch.stack(anchors).mean()


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(2, 3), st.integers(0, 10**6), st.floats(0.05, 2.0))
@settings(max_examples=15, deadline=None, derandomize=True, database=None)
def test_loss_and_gradient_against_loops(count: int, views: int, seed: int, temperature: float) -> None:
    projections = unit(count, views, 5, seed).requires_grad_()
    labels = torch.from_numpy(np.random.default_rng(seed).integers(0, 3, count))
    expected = by_loops(projections, labels, temperature)
    got = supervised_contrastive(projections, labels, temperature)
    torch.testing.assert_close(got, expected)
    (slope,), (slow_slope,) = (torch.autograd.grad(value, [projections]) for value in (got, expected))
    torch.testing.assert_close(slope, slow_slope, rtol=1e-6, atol=1e-9)
    swapped = supervised_contrastive(projections.flip(1), labels, temperature)  # views have no order
    torch.testing.assert_close(swapped, got)


def test_loss_of_known_vectors() -> None:
    """All vectors equal: every other one is equally likely. Two opposite classes: only the positive is."""
    same = torch.ones(3, 2, 1)
    assert float(supervised_contrastive(same, torch.tensor([0, 1, 1]), 0.1)) == pytest.approx(math.log(5))
    opposite = torch.tensor([[[1.0], [1.0]], [[-1.0], [-1.0]]])
    assert float(supervised_contrastive(opposite, torch.tensor([0, 1]), 0.1)) == pytest.approx(0, abs=1e-6)


def test_loss_is_finite_where_the_largest_similarity_is_the_own() -> None:
    """Vectors of norm 3 at temperature 0.07: subtracting the own similarity would leave only zeros."""
    projections = (3 * unit(20, 2, 16, 0)).float().requires_grad_()
    loss = supervised_contrastive(projections, torch.arange(20) % 4, 0.07)
    loss.backward()
    assert loss.isfinite()
    assert projections.grad is not None
    assert projections.grad.isfinite().all()


@pytest.mark.parametrize("steps", [1, 4])
def test_step_by_hand(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_after(steps, lr=0.05)
    slow = SlowStep(learner)
    draws, views = record(learner.memory, "retrieve", monkeypatch), record(learner, "random_views", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)
    ((memory_x, memory_y),) = draws
    (augmented,) = views
    assert len(memory_y) == min(REPLAY, BATCH * steps)
    raw = to_float(torch.cat([memory_x, x]))
    assert augmented.shape == raw.shape
    passes = []
    for images in (raw, augmented):  # separate passes: each view has its own batch statistics
        out = slow.network.head(slow.network.features(images))
        passes.append(out / out.norm(dim=1, keepdim=True))
    slow.minimise(by_loops(torch.stack(passes, 1), torch.cat([memory_y, y]), 0.1))
    slow.agrees()


def test_the_first_batch_is_only_stored() -> None:
    learner = make("scr")
    before = frozen(learner)
    x, y = batch(0)
    learner.learn(x, y)
    for name, value in learner.network.state_dict().items():
        assert torch.equal(value, before[f"network.{name}"]), name
    assert (int(learner.steps), float(learner.last_loss), len(learner.memory)) == (1, 0.0, BATCH)


def test_review_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_after(3)
    slow = SlowStep(learner)
    views = record(learner, "random_views", monkeypatch)
    slots = torch.tensor([4, 1, 9, 6])
    learner.review_step(slots)
    x, y = learner.memory.images[slots], learner.memory.labels[slots]
    passes = [F.normalize(slow.logits(images)) for images in (to_float(x), views[0])]
    slow.minimise(by_loops(torch.stack(passes, 1), y, 0.1))
    slow.rate *= 0.1
    slow.agrees()


def test_head_is_the_projection() -> None:
    learner = make("scr", projection=7, width=3)
    shapes = [tuple(p.shape) for p in learner.network.head.parameters()]
    assert shapes == [(24, 24), (24,), (7, 24), (7,)]
    assert all(any(p is q for q in learner.optimizer.parameters) for p in learner.network.parameters())


def scores_by_hand(learner: SCR, x: Tensor) -> list[list[float]]:
    """Image by image, class by class."""
    network = copy.deepcopy(learner.network).eval()

    def feature(image: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = network.features(to_float(image[None]))[0].double()
        return found / found.norm()

    stored = len(learner.memory)
    held = [(feature(learner.memory.images[i]), int(learner.memory.labels[i])) for i in range(stored)]
    rows = []
    for image in x:
        row = []
        for label in range(learner.problem.classes):
            members = [f for f, y in held if y == label]
            if not members:
                row.append(-math.inf)
                continue
            mean = torch.stack(members).mean(0)
            row.append(-float((feature(image) - mean / mean.norm()).norm()))
        rows.append(row)
    return rows


@pytest.mark.parametrize("chunk", [500, 5])
def test_scores_are_distances_to_class_means(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_class_means.MEANS_BATCH, "cpu", chunk)
    learner = learner_after(5)
    learner.memory.labels[learner.memory.labels == 2] = 3  # a class without a stored image
    learner.memory.labels[0] = 2
    learner.memory.labels[:MEMORY][learner.memory.labels[:MEMORY] == 4] = 5
    x = batch(8)[0]
    expected = torch.tensor(scores_by_hand(learner, x))
    got = learner.scores(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert (got[:, 4] == -math.inf).all()
    assert got[:, 2].isfinite().all()


def test_no_scores_before_anything_is_stored() -> None:
    assert torch.equal(make("scr").scores(batch(0)[0]), torch.zeros(BATCH, NOISE.num_classes))


def test_class_means_are_of_the_moment_and_of_the_filled_slots() -> None:
    """Empty slots hold class 0: they must not count. A scorer keeps its means while the memory changes."""
    learner = make("scr")
    x, y = batch(0)
    learner.learn(x[1:], y[1:])  # classes 1 to 4
    scorer = learner.scorer()
    before = scorer(x)
    assert before.isfinite().all(0).tolist() == [False, True, True, True, True, False]
    learner.memory.labels.zero_()
    assert torch.equal(scorer(x), before)
    assert not torch.equal(learner.scores(x), before)


def test_published_settings() -> None:
    config = ocil.resolve("scr", "cifar100").learner
    assert isinstance(config, scr.SCRConfig)
    assert (config.memory_batch, config.review, config.review_batch, config.review_keep_last) == (100, True, 100, False)
    assert (config.temperature, config.projection, config.lr, config.weight_decay) == (0.1, 128, 0.1, 0)
    augment = config.random_views()
    assert (augment.crop_scale, augment.flip, augment.jitter, augment.gray) == ((0.2, 1.0), 0.5, 0.8, 0.2)
    assert (augment.brightness, augment.contrast, augment.saturation, augment.hue) == (0.4, 0.4, 0.4, 0.1)
    assert not augment.per_batch
    assert ocil.resolve("scr", "cifar100").label == "scr"


@pytest.mark.parametrize("name", ["temperature", "projection", "crop"])
def test_impossible_settings(name: str) -> None:
    with pytest.raises(OcilError, match=name):
        make("scr", **{name: 0})  # type: ignore[arg-type]


def test_learning_pulls_classes_together() -> None:
    """On patterns the loss falls, and class means of what was learned beat those of the untrained features."""
    data = patterned(per_class=40)
    learner = make("scr", data=data, width=4, memory=40, crop=0.6)
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    losses = []
    for number in range(25):
        learner.learn(*batch(number, data))
        losses.append(float(learner.last_loss))
    assert np.mean(losses[-5:]) < np.mean(losses[1:6]) - 0.3
    margins = learner.scores(x).gather(1, y[:, None])[:, 0] - learner.scores(x).mean(1)
    untrained = make("scr", data=data, width=4, memory=40)
    untrained.memory.load_state_dict(learner.memory.state_dict())
    before = untrained.scores(x).gather(1, y[:, None])[:, 0] - untrained.scores(x).mean(1)
    assert margins.mean() > 2 * before.mean()
    assert (learner.scores(x).argmax(1) == y).double().mean() > 0.85


def test_learn_uses_the_memory() -> None:
    """Two learners that differ only in what is stored learn differently."""
    one, other = learner_after(4), learner_after(4)
    other.memory.images[:MEMORY] = 255 - other.memory.images[:MEMORY]
    learn(one, range(4, 5))
    learn(other, range(4, 5))
    assert float(one.last_loss) != float(other.last_loss)
