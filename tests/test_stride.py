"""Stride against steps written out by hand in numpy, its plan of steps and images, and its balanced draws."""

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.learning import losses
from ocil.learning.memory import Memory
from ocil.methods.config import Problem
from ocil.methods.stride import Stride, StrideConfig, default_steps, plan
from ocil.networks import NOT_MET, bn_momentum
from ocil.online.model import Model, Recipe
from ocil.online.vectors import VectorFormat
from ocil.testing import method_checks
from tests.conftest import Call
from tests.networks_to_try import TINY
from tests.reference.datasets import noise
from tests.test_methods import afs_classification, afs_regulariser, record

pytestmark = pytest.mark.usefixtures("quick_convolution")

Array = NDArray[np.float64]
CLASSES, SIZE = 5, 3


def on_vectors(**settings: Any) -> Stride:
    usual: dict[str, Any] = {"memory": 30, "memory_batch": 6, "steps": 3, "views": 0, "raw": True, "network": "linear"}
    return Stride(StrideConfig(**usual | settings), Problem((SIZE,), CLASSES, torch.float32))


def on_images(classes: int = 4, **settings: Any) -> Stride:
    usual: dict[str, Any] = {"memory": 30, "memory_batch": 6, "steps": 3, "width": 2}
    return Stride(StrideConfig(**usual | settings), Problem((8, 8, 3), classes))


def batch(number: int, size: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size, SIZE, generator=generator), torch.randint(CLASSES, (size,), generator=generator)


def images(number: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    data = noise(40, classes, (8, 8, 3))
    part = slice(5 * number % 40, 5 * number % 40 + 5)
    return torch.from_numpy(data.train_x[part]), torch.from_numpy(data.train_y[part])


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return e / e.sum()


def slope(z: Array, label: int, c: StrideConfig) -> Array:
    """The gradient of one sample's loss by its logits, by hand."""
    p, teacher, soft = softmax(z), np.full(len(z), c.epsilon / (len(z) - 1)), softmax(z / c.temperature)
    teacher[label] = 1 - c.epsilon
    onto, u = np.eye(len(z))[label], p[label]
    if c.loss == "ce":
        first = c.alpha * (p - onto)
    else:
        weight = np.exp(-((u - c.mu) ** 2) / c.sigma)
        by_p = -c.alpha * weight * (1 / u - 2 * (u - c.mu) / c.sigma * np.log(u))
        first = by_p * u * (onto - p)
    return first + c.beta * c.temperature * (soft - softmax(teacher / c.temperature))


class ByHand:
    """The whole step on vectors with a linear network, sample by sample."""

    def __init__(self, learner: Stride) -> None:
        self.config = learner.config
        head = learner.network.head
        self.weight, self.bias = (value.detach().double().numpy().copy() for value in head.parameters())
        self.frequency = [0.0] * CLASSES

    def step(self, *batches: tuple[Tensor, Tensor]) -> None:
        c = self.config
        for k in range(CLASSES):
            self.frequency[k] *= c.frequency_decay
            for _, y in batches:
                self.frequency[k] += sum(int(label) == k for label in y) / len(y)
        share = [max(f / sum(self.frequency), 1e-5) for f in self.frequency]
        by_weight, by_bias = np.zeros_like(self.weight), np.zeros_like(self.bias)
        for x, y in batches:
            for vector, label in zip(x.double().numpy(), y.tolist(), strict=True):
                z = self.weight @ vector + self.bias + c.adjustment * np.log(share)
                among = [k for k in range(CLASSES) if self.frequency[k] or not c.seen_only]
                g = np.zeros(CLASSES)
                g[among] = slope(z[among], among.index(label), c) / len(y)
                by_weight += np.outer(g, vector)
                by_bias += g
        self.weight -= c.lr * by_weight
        self.bias -= c.lr * by_bias


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss": "ce"},
        {"adjustment": 1.0, "beta": 0.3},
        {"adjustment": 0.0},
        {"seen_only": True, "adjustment": 1.0},
        {"seen_only": True, "loss": "ce"},
    ],
    ids=str,
)
def test_batches_are_learned_as_by_hand(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    learner = on_vectors(**settings)
    hand = ByHand(learner)
    drawn: list[tuple[Tensor, Tensor]] = []
    draws = Memory.draws

    def noted(memory: Memory, times: int, count: int, classes: int = 0) -> Any:
        found = draws(memory, times, count, classes)
        drawn.extend([] if found is None else [(memory.images[row], memory.labels[row]) for row in found])
        return found

    monkeypatch.setattr(Memory, "draws", noted)
    for number in range(4):
        stored = len(learner.memory)
        drawn.clear()
        x, y = batch(number)
        learner.learn(x, y)
        assert len(learner.memory) == stored + len(y)  # stored once, not in each step
        assert len(drawn) == (3 if number else 0)
        for step in range(3):
            hand.step((x, y), *drawn[step : step + 1])
    assert len({tuple(found[0].flatten().tolist()) for found in drawn}) == 3  # a new draw in each step
    for found, expected in zip(learner.network.head.parameters(), (hand.weight, hand.bias), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(learner.frequency.numpy(), hand.frequency, rtol=1e-5)


def test_steps_on_images_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network with batch normalisation: the stream and the views pass with their own statistics, and running ones
    move by 0.19 in each pass."""
    learner = on_images()
    for number in range(3):
        learner.learn(*images(number))
    hand = copy.deepcopy(learner.network)
    frequency, stored = learner.frequency.tolist(), learner.memory.labels.clone()
    draws, passed = record(learner.memory, "draws", monkeypatch), seen_by(learner, monkeypatch)
    x, y = images(3)
    learner.learn(x, y)
    (slots,), shown = draws, passed[:]
    assert (slots.shape, len(shown)) == ((3, 6), 6)
    for step in range(3):
        labels = [y, torch.cat([stored[slots[step]]] * 2)]
        for k in range(4):
            seen = sum(sum(int(label) == k for label in its) / len(its) for its in labels)
            frequency[k] = 0.95 * frequency[k] + seen
        offset = 0.5 * torch.tensor(frequency).div(sum(frequency)).clamp(min=1e-5).log()
        loss = torch.zeros(())
        for pixels, its in zip(shown[2 * step : 2 * step + 2], labels, strict=True):
            with bn_momentum(hand, 0.19):
                logits = hand(pixels) + offset
            loss = loss + afs_classification("rfl", logits, its) + afs_regulariser("vkd", logits, its)
        slopes = torch.autograd.grad(loss, list(hand.parameters()))
        with torch.no_grad():
            for weight, by_weight in zip(hand.parameters(), slopes, strict=True):
                weight.sub_(0.1 * by_weight)
    found = learner.network.state_dict()
    for name, value in hand.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=f"{name}: {{}}".format)


def test_the_recorded_loss_is_the_mean_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = on_vectors()
    learner.learn(*batch(0))
    found: list[tuple[Tensor, Tensor]] = []
    focus = losses.focus
    monkeypatch.setattr(
        losses, "focus", lambda *given, **options: (found.append(focus(*given, **options)), found[-1])[1]
    )
    learner.learn(*batch(1))
    assert len(found) == 3
    for loss, parts in found:
        assert parts.shape == (2, 2)
        assert not parts.requires_grad
        torch.testing.assert_close(loss.detach(), parts.sum())
    recorded = learner.recorded_losses.take()
    assert recorded["stream"] == pytest.approx(float(torch.stack([loss.detach() for loss, _ in found]).mean()))
    assert recorded["stream/stream"] == pytest.approx(float(torch.stack([parts[0].sum() for _, parts in found]).mean()))
    assert recorded["stream/memory"] == pytest.approx(float(torch.stack([parts[1].sum() for _, parts in found]).mean()))
    assert float(learner.last_loss) == recorded["stream"]


def test_reviews_and_scores_are_not_adjusted() -> None:
    learner = on_vectors()
    for number in range(3):
        learner.learn(*batch(number))
    x, y = batch(9)
    logits = learner.network(x)
    before = learner.frequency.clone()
    plain = losses.revised_focal(logits, y)
    torch.testing.assert_close(learner.review_loss(x, y), plain)
    seen = learner.seen_classes
    assert int(seen.sum()) > 1
    torch.testing.assert_close(learner.scores(x)[:, seen], logits.detach()[:, seen])
    other = on_vectors(adjust_review=True)
    other.load_state(learner.state())
    share = learner.frequency / learner.frequency.sum()
    adjusted = losses.revised_focal(logits + 0.5 * share.clamp_min(1e-5).log(), y)
    torch.testing.assert_close(other.review_loss(x, y), adjusted)
    assert not torch.allclose(adjusted, plain)
    torch.testing.assert_close(learner.frequency, before)


def test_a_class_that_was_never_seen_is_never_predicted() -> None:
    learner = on_vectors(adjustment=1.0, review=False)
    for number in range(20):
        x, y = batch(number)
        learner.learn(x, y % 2 + 1)
    assert learner.seen_classes.tolist() == [False, True, True, False, False]
    assert learner.scores(batch(50)[0])[:, [0, 3, 4]].eq(NOT_MET).all()
    assert set(learner.scores(batch(50, 100)[0]).argmax(1).tolist()) <= {1, 2}


def test_classes_that_are_yet_to_come_are_lifted_unless_losses_leave_them_out() -> None:
    """Distillation brings adjusted logits to one scale, so a class with an adjustment of -11.5 gets a high logit."""

    def parameters(learner: Stride) -> list[Tensor]:
        """The weight and the bias of the head."""
        return [value.detach().clone() for value in learner.network.head.parameters()]

    def lift(learner: Stride) -> float:
        """How much more the biases of classes that never came have risen than those of the others."""
        _, start = parameters(learner)
        for number in range(60):
            x, y = batch(number)
            learner.learn(x, y % 2 + 1)
        _, end = parameters(learner)
        moved = end - start
        return float(moved[[0, 3, 4]].min() - moved[[1, 2]].max())

    assert lift(on_vectors(adjustment=1.0)) > 0.5
    left_out = on_vectors(adjustment=1.0, seen_only=True)
    before, _ = parameters(left_out)
    assert abs(lift(left_out)) < 0.5
    after, _ = parameters(left_out)
    assert torch.equal(after[[0, 3, 4]], before[[0, 3, 4]])


def test_reviews_leave_out_what_the_steps_leave_out() -> None:
    learner = on_vectors(seen_only=True)
    for number in range(3):
        x, y = batch(number)
        learner.learn(x, y % 2 + 1)
    x, y = batch(9)
    logits, y = learner.network(x), y % 2
    torch.testing.assert_close(learner.review_loss(x, y + 1), losses.revised_focal(logits[:, [1, 2]], y))


def seen_by(learner: Stride, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """From now on, all images that pass through the network."""
    found: list[Tensor] = []
    plain = type(learner.network).features
    monkeypatch.setattr(
        type(learner.network), "features", lambda network, x: (found.append(x.clone()), plain(network, x))[1]
    )
    return found


def test_each_step_shows_two_new_views_and_the_stream_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = on_images(crop=1.0, jitter=0.0, flip=0.5)
    for number in range(3):
        learner.learn(*images(number))
    stored = learner.memory.images[:15].permute(0, 3, 1, 2).float() / 255
    mirrored = {image.numpy().tobytes() for image in torch.cat([stored, stored.flip(3)])}
    passed = seen_by(learner, monkeypatch)
    x, y = images(3)
    learner.learn(x, y)
    assert [len(part) for part in passed] == 3 * [5, 12]
    for stream in passed[::2]:
        assert torch.equal(stream, x.permute(0, 3, 1, 2).float() / 255)
    for memory in passed[1::2]:
        assert all(image.numpy().tobytes() in mirrored for image in memory)
        first, second = memory.chunk(2)
        same = (first == second).flatten(1).all(1) | (first == second.flip(3)).flatten(1).all(1)
        assert same.all()  # two views of the same six images
    assert not torch.equal(passed[1], passed[3])
    assert any(not torch.equal(*memory.chunk(2)) for memory in passed[1::2])


def test_options_of_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, sizes in (({"raw": True, "views": 1}, [5, 12]), ({"views": 3}, [5, 18]), ({"views": 1}, [5, 6])):
        learner = on_images(steps=1, **settings)
        for number in range(3):
            learner.learn(*images(number))
        with monkeypatch.context() as patch:
            passed = seen_by(learner, patch)
            learner.learn(*images(3))
        assert [len(part) for part in passed] == sizes
    learner = on_images(steps=1, augment_stream=True, review_views=True)
    x, y = images(0)
    learner.learn(x, y)
    passed = seen_by(learner, monkeypatch)
    learner.learn(x, y)
    learner.review_step(torch.arange(4))
    raw = learner.memory.images[:4].permute(0, 3, 1, 2).float() / 255
    assert not torch.equal(passed[0], x.permute(0, 3, 1, 2).float() / 255)
    assert passed[-1].shape == raw.shape
    assert not torch.equal(passed[-1], raw)


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("size", [1, 5, 10])
def test_all_steps_together_pass_no_more_images_than_allowed(steps: int, size: int) -> None:
    config = StrideConfig(memory=500, steps=steps)
    found, count = plan(config, size, 100)
    assert found == steps
    assert 210 - steps * (2 + 1) < steps * (size + 2 * count) <= 210
    assert sum(each.images for each in Stride.passes(config, size, 100)) == steps * (size + 2 * count)


def test_the_plan_by_default() -> None:
    assert plan(StrideConfig(memory=5000), 10, 100) == (4, 21)
    assert plan(StrideConfig(memory=1000), 10, 10) == (3, 30)
    assert plan(StrideConfig(memory=5000, images=45), 10, 100) == (1, 17)
    assert plan(StrideConfig(memory=5000, images=870), 10, 100)[0] > 8
    assert plan(StrideConfig(memory=5000), 64, 100) == (1, 73)  # at least as many memory images as stream images
    assert plan(StrideConfig(memory=5000, steps=3, memory_batch=25), 10, 100) == (3, 25)
    with pytest.raises(OcilError, match="images = 210 leaves no memory image to 4 steps on batches of 60: give images"):
        plan(StrideConfig(memory=5000, steps=4), 60, 100)


def test_steps_without_memory_images_are_refused_before_a_run(tmp_path: Path, ocil_command: Call) -> None:
    reason = "images = 10 leaves no memory image to 1 steps on batches of 10: give images = 12 or more."
    said = ocil_command("run", "stride", "--out", tmp_path / "runs", "--set", "images=10")
    assert (said.code, said.err.split()) == (2, f"ocil: error: {reason}".split())
    config = replace(ocil.resolve("stride"), learner=StrideConfig(memory=200, images=10))
    with pytest.raises(OcilError, match=f"^{reason}$"):
        ocil.run(config, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_impossible_settings_are_refused() -> None:
    settings: dict[str, Any]
    for settings in ({"views": 0}, {"adjustment": -1}, {"frequency_decay": 1.0}, {"images": 0}, {"epsilon": 1}):
        with pytest.raises(OcilError):
            StrideConfig(**settings)
    assert Stride.why_not_vectors(StrideConfig()) == "views = 2 makes random views of images"
    assert Stride.why_not_vectors(StrideConfig(views=0, raw=True)) is None
    assert Stride.why_not_vectors(StrideConfig(views=0, raw=True, review_views=True)) is not None


def test_a_growing_learner_takes_more_steps_as_classes_come() -> None:
    learner = on_images(classes=16, growing=True, steps=0, memory_batch=0, memory=5000, images=210)
    assert learner.step_variant() == 3
    learner.meet(range(30))
    assert len(learner.classes_met) == 30
    assert learner.step_variant() == default_steps(learner.config, 30) == 4


def test_a_balanced_draw_takes_each_class_as_often() -> None:
    counts = [40, 10, 3, 1, 0]  # of the classes in the memory; one has none
    memory = Memory(60, (1,), torch.Generator().manual_seed(0), torch.float32)
    labels = torch.repeat_interleave(torch.arange(5), torch.tensor(counts))
    memory.add(torch.zeros(len(labels), 1), labels)
    first: Counter[int] = Counter()
    drawn: Counter[int] = Counter()
    rounds = 2000
    for _ in range(rounds):
        (slots,) = memory.shuffled(6, 5)
        assert len(set(slots.tolist())) == 6
        assert int(slots.max()) < sum(counts)
        first[int(labels[slots[0]])] += 1
        drawn.update(labels[slots].tolist())
    expected = rounds / 4
    assert sum((first[k] - expected) ** 2 / expected for k in range(4)) < 16.27  # chi-square, 3 degrees, 0.001
    assert first[4] == 0
    # All six against numpy's draws without replacement at these weights.
    weight = np.concatenate([np.full(n, 1 / n) for n in counts if n])
    rng = np.random.default_rng(0)
    theirs = Counter(
        label
        for _ in range(rounds)
        for label in labels.numpy()[rng.choice(len(weight), 6, False, weight / weight.sum())].tolist()
    )
    for k in range(4):
        assert drawn[k] == pytest.approx(theirs[k], abs=5 * np.sqrt(theirs[k] + 1))


def test_a_draw_without_classes_is_what_it_was() -> None:
    memory = Memory(9, (1,), torch.Generator().manual_seed(3), torch.float32)
    memory.add(torch.zeros(9, 1), torch.zeros(9, dtype=torch.int64))
    state = memory.generator.get_state()
    slots = memory.draw(4)
    memory.generator.set_state(state)
    assert slots is not None
    assert torch.equal(slots, torch.rand(9, generator=memory.generator).argsort()[:4])


def test_it_replays_a_balanced_draw_from_a_balanced_memory() -> None:
    learner = on_images(balanced=True, balanced_memory=True, memory=8, steps=1, memory_batch=4)
    x, y = images(0)
    for label in (0, 0, 0, 1, 2):
        learner.learn(x, torch.full_like(y, label))
    assert sorted(Counter(learner.memory.labels[:8].tolist()).values()) == [2, 3, 3]


SEARCHED = {"balanced": True, "balanced_memory": True, "augment_stream": True, "memory_batch": 0, "images": 30}
OPTIONS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (SEARCHED | {"average": 0.9}, ("steady-steps", "resumed-after-a-task", "growth-alone", "grown-states")),
    ({"cosine": 10.0, "loss": "ce", "balanced": True}, ("growth-alone", "met-classes", "growth-in-steps")),
    ({"review_views": True, "adjust_review": True}, ("steady-steps-on-the-memory", "resumed-after-a-task")),
    ({"seen_only": True}, ("steady-steps-on-the-memory", "resumed-after-a-task")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{'-'.join(settings)}-{check}")
        for settings, chosen in OPTIONS
        for check in method_checks("stride", network=TINY, **settings)
        if str(check) in chosen
    ],
)
def test_options_keep_the_promises_of_a_method(check: Any) -> None:
    check()


def test_a_model_of_vectors_needs_no_settings() -> None:
    model = Model(Recipe("stride", memory=30), VectorFormat(SIZE))
    assert model.config.memory_batch == 0
    for number in range(3):
        x, y = batch(number)
        model.learn(x.numpy(), [str(label) for label in y.tolist()])
    assert model.probabilities(batch(4)[0].numpy()).shape == (4, len(model.labels))
