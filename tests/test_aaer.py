"""AAER, our reconstruction: anchors, drift and centres against loops and numbers by hand."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.methods._distances import nearness
from ocil.methods.aaer import AAER, AAERConfig, drift, least_by_class
from ocil.methods.config import Problem
from ocil.networks import to_float
from ocil.runs.environment import digest
from ocil.testing.subject import frozen
from ocil.testing.watch import HostWatch
from tests.reference.datasets import noise, patterned
from tests.test_methods import BATCH, MEMORY, REPLAY, SlowStep, batch, record

pytestmark = pytest.mark.usefixtures("quick_convolution")

NOISE = noise()
KINDS = ["forward", "backward", "none"]


def make(seed: int = 0, **given: Any) -> AAER:
    start = {"memory": MEMORY, "memory_batch": REPLAY, "width": 2, "batch_size": BATCH}
    learner = ocil.make_learner("aaer", NOISE, seed=seed, **start | given)
    assert isinstance(learner, AAER)
    return learner


def learn(learner: AAER, numbers: range) -> None:
    for number in numbers:
        learner.learn(*batch(number))


def evaluated(owner: AAER | SlowStep, x: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised features and logits of images by running statistics, one image after the other."""
    owner.network.eval()
    with torch.no_grad():
        raw = torch.cat([owner.network.features(to_float(x[i : i + 1])) for i in range(len(x))])
        logits = owner.network.head(raw)
    owner.network.train()
    return raw / raw.norm(dim=1, keepdim=True), logits


# Anchors


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=25))
@settings(max_examples=50, deadline=None)
def test_least_by_class(rows: list[tuple[int, int]]) -> None:
    losses, labels = torch.tensor([float(loss) for loss, _ in rows]), torch.tensor([label for _, label in rows])
    index, found = least_by_class(losses, labels, 5)
    for label in range(5):
        members = [(loss, number) for number, (loss, each) in enumerate(rows) if each == label]
        assert bool(found[label]) == bool(members)
        if members:
            assert int(index[label]) == min(members)[1]


def test_an_anchor_is_the_stored_image_of_smallest_loss() -> None:
    learner = make()
    learn(learner, range(4))
    assert not learner.known.any()
    learner.task_ended()
    x, y = learner.memory.images[:MEMORY], learner.memory.labels[:MEMORY]
    features, logits = evaluated(learner, x)
    for label in range(NOISE.num_classes):
        members = [number for number in range(MEMORY) if int(y[number]) == label]
        assert bool(learner.known[label]) == bool(members)
        if members:
            best = min(members, key=lambda number: float(F.cross_entropy(logits[number], y[number])))
            assert torch.equal(learner.anchors[label], x[best])
            torch.testing.assert_close(learner.taken[label], features[best])
            mean = sum(features[number] for number in members) / len(members)
            torch.testing.assert_close(learner.centres[label], mean)
    assert not learner.moved.any()


def test_a_task_without_images_leaves_no_anchor() -> None:
    learner = make()
    learner.task_ended()
    assert not learner.known.any()
    assert torch.equal(learner.scores(batch(0)[0]), torch.zeros(BATCH, NOISE.num_classes))


def test_centres_stay_while_anchors_are_chosen_anew_and_their_moves_add_up() -> None:
    learner = make()
    learn(learner, range(3))
    learner.task_ended()
    old, anchors, taken, centres = (
        value.clone() for value in (learner.known, learner.anchors, learner.taken, learner.centres)
    )
    learn(learner, range(3, 9))
    moved = evaluated(learner, anchors)[0] - taken
    learner.task_ended()
    torch.testing.assert_close(learner.moved[old], moved[old])
    assert float(learner.moved[old].norm()) > 0.1
    assert torch.equal(learner.centres[old], centres[old])
    stored = set(learner.memory.labels[:MEMORY].tolist())
    assert not torch.equal(learner.anchors[old], anchors[old])
    for label in old.nonzero().flatten().tolist():
        if label not in stored:  # nothing to choose from: it keeps its anchor
            assert torch.equal(learner.anchors[label], anchors[label])
    torch.testing.assert_close(learner.taken, evaluated(learner, learner.anchors)[0])


def test_an_anchor_outlives_its_slot() -> None:
    learner = make()
    learn(learner, range(3))
    learner.task_ended()
    before = learner.anchors.clone()
    learner.memory.images.zero_()
    assert torch.equal(learner.anchors, before)


# Drift


def test_drift_by_hand() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 2.0], [5.0, 0.0]])
    anchors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    known = torch.tensor([True, False, True])
    got = drift(features, anchors, torch.tensor([0, 1, 2]), known)
    assert float(got) == pytest.approx(((0.4**2 + 0.8**2) + 0 + (0.4**2 + 0.8**2)) / 3)


def test_drift_pulls_features_to_anchors_and_not_the_other_way() -> None:
    features = torch.tensor([[3.0, 4.0], [1.0, -2.0], [2.0, 1.0]], requires_grad=True)
    anchors = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    labels, known = torch.tensor([0, 0, 1]), torch.tensor([True, False])
    drift(features, anchors, labels, known).backward()
    assert anchors.grad is None
    assert features.grad is not None
    assert not features.grad[2].any()  # its class has no anchor
    moved = F.normalize((features - 0.5 * features.grad).detach())
    before = F.normalize(features.detach())
    for number in range(2):
        assert (moved[number] - anchors[0]).norm() < (before[number] - anchors[0]).norm()


@pytest.mark.slow
def test_the_drift_term_keeps_replayed_classes_near_their_anchors() -> None:
    """The same stream with and without it, mean over seeds."""

    def spread(weight: float, seed: int) -> float:
        learner = make(seed=seed, drift_weight=weight, augment=False, lr=0.05)
        learn(learner, range(3))
        learner.task_ended()
        learn(learner, range(3, 12))
        x, y = learner.memory.images[:MEMORY], learner.memory.labels[:MEMORY]
        near = evaluated(learner, x)[0] - evaluated(learner, learner.anchors)[0][y]
        return float(near.square().sum(1)[learner.known[y]].mean())

    seeds = range(4)
    assert sum(spread(3.0, seed) for seed in seeds) < 0.9 * sum(spread(0.0, seed) for seed in seeds)


# The step


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("ended", [True, False])
def test_a_step_by_hand(steps: int, augment: bool, ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make(lr=0.07, augment=augment, drift_weight=0.6)
    learn(learner, range(steps))
    if ended:
        learner.task_ended()
        learner.known[1] = False  # a class that has no anchor yet
    slow, known = SlowStep(learner), learner.known.clone()
    draws, views = record(learner.memory, "retrieve", monkeypatch), record(learner, "random_views", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)
    slow.minimise(F.cross_entropy(slow.logits(to_float(x)), y))
    (draw,) = draws
    if steps:
        images, labels = torch.cat([to_float(draw[0]), *views]), torch.cat([draw[1]] * (1 + augment))
        assert len(images) == min(REPLAY, BATCH * steps) * (1 + augment)
        features = slow.network.features(images)
        anchors = evaluated(slow, learner.anchors)[0]
        pull = torch.zeros(())
        for feature, label in zip(features, labels.tolist(), strict=True):
            if known[label]:
                pull = pull + ((feature / feature.norm() - anchors[label]) ** 2).sum() / len(labels)
        slow.minimise(F.cross_entropy(slow.network.head(features), labels) + 0.6 * pull)
    slow.agrees()


def test_the_pull_with_a_margin_against_a_loop() -> None:
    torch.manual_seed(0)
    raw = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    anchors, known = F.normalize(torch.randn(5, 3, dtype=torch.float64)), torch.tensor([True, True, False, True, True])
    labels = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3])
    found = drift(raw, anchors, labels, known, margin=0.7)
    total = torch.zeros((), dtype=torch.float64)
    active = 0
    for feature, label in zip(raw, labels.tolist(), strict=True):
        if known[label]:
            away = [((feature / feature.norm() - anchors[j]) ** 2).sum() for j in range(5)]
            hinge = 0.7 + away[label] - min(away[j] for j in range(5) if j != label and known[j])
            active += hinge > 0
            total = total + torch.clamp(hinge, min=0) / 9
    assert 0 < active < 7  # some images are near enough
    torch.testing.assert_close(found, total)
    torch.testing.assert_close(*(torch.autograd.grad(value, raw)[0] for value in (found, total)))
    alone = torch.tensor([True, False, False, False, False])  # no other anchor: nothing to be nearer than
    assert drift(raw, anchors, labels, alone, margin=0.7) == 0


def test_updates_repeat_the_step_with_new_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    once, twice = make(), make(updates=2)
    learn(once, range(3))
    once.task_ended()
    twice.load_state(frozen(once))
    with monkeypatch.context() as patch:
        patch.setattr(once.memory, "add", lambda x, y: None)
        once.learn(*batch(3))
    for learner in (once, twice):
        learner.learn(*batch(3))
    for name, value in once.network.state_dict().items():
        assert torch.equal(value, twice.network.state_dict()[name]), name
    assert torch.equal(once.memory.labels, twice.memory.labels)
    classes = NOISE.num_classes
    assert AAER.passes(twice.config, BATCH, classes) == 2 * AAER.passes(once.config, BATCH, classes)


def test_a_review_minimises_both_terms() -> None:
    learner = make(drift_weight=0.6)
    learn(learner, range(4))
    learner.task_ended()
    learn(learner, range(4, 6))
    slow = SlowStep(learner)
    slots = torch.arange(6)
    x, y = learner.memory.images[slots], learner.memory.labels[slots]
    learner.review_step(slots)
    features = slow.network.features(to_float(x))
    anchors = evaluated(slow, learner.anchors)[0]
    apart = (features / features.norm(dim=1, keepdim=True) - anchors[y]).square().sum(1)
    pull = apart[learner.known[y]].sum() / len(y)
    slow.minimise(F.cross_entropy(slow.network.head(features), y) + 0.6 * pull)
    slow.rate *= 0.1
    slow.agrees()


@pytest.mark.slow
def test_the_form_changes_at_the_first_tasks_end_and_steps_read_nothing() -> None:
    learner = make()
    forms = [learner.step_variant()]
    for task in range(3):
        learn(learner, range(3 * task, 3 * task + 3))
        x, y = batch(50 + task)
        with HostWatch() as watch:
            learner.learn(x, y)
        learner.task_ended()
        forms.append(learner.step_variant())
        if task == 1:
            trace = watch.trace
    assert forms == [0, 1, 1, 1]
    assert watch.trace == trace


def test_a_state_goes_on_exactly_across_task_ends() -> None:
    learner = make(momentum=0.9)
    learn(learner, range(4))
    learner.task_ended()
    learn(learner, range(4, 6))
    other = make(seed=5, momentum=0.9)
    other.load_state(frozen(learner))
    assert other.step_variant() == learner.step_variant() == 1
    for each in (learner, other):
        learn(each, range(6, 8))
        each.task_ended()
        each.review()
        learn(each, range(8, 9))
    assert digest(other) == digest(learner)
    x = batch(3)[0]
    assert torch.equal(learner.scores(x), other.scores(x))


# Classification


class Plane(AAER):
    """Its features are two pixels, turned by an angle: a drift that is known."""

    angle = 0.0

    def features(self, images: Tensor) -> Tensor:
        x = F.normalize(images[:, 0, 0, :2].float())
        angle = torch.tensor(self.angle)
        return x @ torch.tensor([[angle.cos(), angle.sin()], [-angle.sin(), angle.cos()]])

    def look_at_memory(self) -> tuple[Tensor, Tensor]:
        """Brighter images have a smaller loss."""
        count = len(self.memory)
        x, y = self.memory.images[:count], self.memory.labels[:count]
        means = torch.zeros(3, 2)
        for label in set(y.tolist()):
            means[label] = self.features(x[y == label]).mean(0)
        return means, -x[:, 0, 0].float().sum(1)


def images(*points: tuple[int, int]) -> Tensor:
    x = torch.zeros(len(points), 8, 8, 3, dtype=torch.uint8)
    x[:, 0, 0, :2] = torch.tensor(points).byte()
    return x


def plane(compensation: str) -> Plane:
    learner = Plane(AAERConfig(memory=8, memory_batch=4, width=1, compensation=compensation), Problem((8, 8, 3), 3))  # type: ignore[arg-type]
    learner.centres, learner.taken, learner.moved = torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 2)
    learner.memory.add(images((100, 0), (40, 30), (0, 100), (30, 40)), torch.tensor([0, 0, 1, 1]))
    return learner


@pytest.mark.parametrize("kind", KINDS)
def test_compensation_by_hand(kind: str) -> None:
    """Class 0 has the anchor (1, 0) and the centre (0.9, 0.3), class 1 the same with changed coordinates."""
    learner = plane(kind)
    learner.task_ended()
    learner.angle = torch.pi / 2  # all features turn left: (a, b) becomes (-b, a)
    x = images((80, 60))  # at (0.8, 0.6) then, at (-0.6, 0.8) now
    point = torch.tensor([-0.6, 0.8])
    centres = torch.tensor([[0.9, 0.3], [0.3, 0.9]])
    moves = torch.tensor(
        [[-1.0, 1.0], [-1.0, -1.0]]
    )  # of the anchors, from (1, 0) to (0, 1) and from (0, 1) to (-1, 0)
    expected = {
        "forward": [(point - centres[label] - moves[label]).norm() for label in range(2)],
        "backward": [(point - moves[0] - centres[label]).norm() for label in range(2)],  # (0, 1) is the nearest anchor
        "none": [(point - centres[label]).norm() for label in range(2)],
    }[kind]
    scores = learner.scores(x)[0]
    torch.testing.assert_close(scores[:2], -torch.stack(expected))
    assert scores[2] == -torch.inf  # never seen
    assert int(scores.argmax()) == (1 if kind == "none" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_moves_before_and_after_a_new_choice_of_anchors_count(kind: str) -> None:
    learner = plane(kind)
    learner.task_ended()
    learner.angle = 0.3
    learner.memory.put(torch.tensor([0]), images((100, 100)), torch.tensor([0]))  # brighter: class 0's next anchor
    learner.task_ended()
    learner.angle = 0.5
    anchors = learner.features(images((100, 100), (0, 100)))
    offset = torch.stack(
        [
            _turned((1, 0), 0.3) - _turned((1, 0), 0.0) + anchors[0] - _turned((0.5**0.5, 0.5**0.5), 0.3),
            _turned((0, 1), 0.5) - _turned((0, 1), 0.0),
        ]
    )
    centres, x = torch.tensor([[0.9, 0.3], [0.3, 0.9]]), images((90, 100), (100, 30), (0, 9))
    for point, scores in zip(learner.features(x), learner.scores(x), strict=True):
        nearest = min(range(2), key=lambda label: float((point - anchors[label]).norm()))
        back = offset[nearest] if kind == "backward" else 0
        forth = offset if kind == "forward" else 0
        torch.testing.assert_close(scores[:2], -(point - back - centres - forth).norm(dim=1))


def _turned(point: tuple[float, float], angle: float) -> Tensor:
    return torch.view_as_real(torch.polar(torch.tensor(1.0), torch.tensor(angle)) * complex(*point))


@pytest.mark.parametrize("kind", KINDS)
def test_classes_of_a_running_task_are_judged_by_their_present_means(kind: str) -> None:
    learner = plane(kind)
    learner.task_ended()
    learner.memory.add(images((100, 100), (100, 100)), torch.tensor([2, 2]))
    scores = learner.scores(images((100, 100), (100, 0)))
    assert scores.argmax(1).tolist() == [2, 0]
    assert float(scores[0, 2]) == pytest.approx(0, abs=1e-3)


def test_before_the_first_tasks_end_memory_means_classify() -> None:
    learner = make()
    learn(learner, range(3))
    x, y = learner.memory.images[:MEMORY], learner.memory.labels[:MEMORY]
    features, test = evaluated(learner, x)[0], evaluated(learner, batch(7)[0])[0]
    scores = learner.scores(batch(7)[0])
    for label in range(NOISE.num_classes):
        members = [features[number] for number in range(MEMORY) if int(y[number]) == label]
        for point, got in zip(test, scores[:, label], strict=True):
            expected = -(point - sum(members) / len(members)).norm() if members else torch.tensor(-torch.inf)
            torch.testing.assert_close(got, expected)


def test_nearness_of_nothing() -> None:
    assert nearness(torch.ones(2, 3), torch.ones(4, 3), torch.zeros(4, dtype=torch.bool)).tolist() == [[0.0] * 4] * 2


# Learning


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_two_tasks_are_remembered(kind: str) -> None:
    data = patterned(per_class=25)
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=2, batch_size=BATCH), seed=0)
    learner = ocil.make_learner(
        "aaer", data, memory=40, memory_batch=REPLAY, width=4, batch_size=BATCH, compensation=kind
    )
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    for part in stream:
        learner.learn(part.x, part.y)
        if part.ends_task:
            learner.task_ended()
    right = learner.scores(x).argmax(1) == y
    assert right[y < 2].double().mean() > 0.6
    assert right[y >= 2].double().mean() > 0.6


def test_settings_and_honesty() -> None:
    config = ocil.resolve("aaer", "cifar100").learner
    assert isinstance(config, AAERConfig)
    assert (config.memory_batch, config.augment, config.compensation, config.review) == (100, True, "backward", False)
    assert config.updates == 4
    here = ocil.resolve("aaer", "fashion-mini").learner
    assert isinstance(here, AAERConfig)
    assert here.updates == AAERConfig().updates == 1  # which a file from before this setting means
    for bad in ({"drift_weight": -1.0}, {"compensation": "sideways"}):
        with pytest.raises(OcilError, match=next(iter(bad))):
            make(**bad)
    assert "reconstruction" in METHODS["aaer"].summary
    with pytest.raises(OcilError, match="task ends"):
        ocil.resolve("aaer", "cifar100", settings={"boundary": "none"})
