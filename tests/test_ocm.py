"""OCM: variants and losses against loops, and steps of the first and of later tasks by hand."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods import ocm
from ocil.methods.ocm import OCM, squared_difference, sup_n, sup_u, turned
from ocil.networks import to_float
from ocil.runs.build import check
from ocil.runs.environment import digest
from ocil.testing.subject import frozen
from ocil.testing.watch import HostWatch
from tests.reference.datasets import noise, patterned
from tests.test_methods import BATCH, NOISE, batch, learn, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")

REPLAYED = 4


def learner_after(steps: int, ended: bool = False, **changes: float | bool) -> OCM:
    learner = warm("ocm", steps, **{"memory": 20, "memory_batch": REPLAYED, **changes})
    assert isinstance(learner, OCM)
    if ended:
        learner.task_ended()
    return learner


# The 16 variants


def turned_by_loops(image: np.ndarray) -> list[np.ndarray]:
    """Pixel by pixel."""
    side, half = len(image), len(image) // 2
    variants = []
    for quarters in range(4):
        for upside_left in (False, True):
            for upside_right in (False, True):
                inner = np.empty_like(image)
                for row in range(side):
                    for column in range(side):
                        left = column < half
                        low, high = (0, half) if left else (half, side)
                        source = (row, column)
                        if upside_left if left else upside_right:
                            source = (side - 1 - row, low + high - 1 - column)
                        inner[row, column] = image[source]
                variants.append(np.rot90(inner, quarters))
    return variants


@pytest.mark.parametrize(("side", "channels"), [(8, 3), (5, 1), (2, 3)])
def test_variants_by_loops(side: int, channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, side, side, channels), dtype=np.uint8)
    got = turned(torch.from_numpy(images)).numpy()
    assert got.shape == (48, side, side, channels)
    for number, image in enumerate(images):
        for variant, expected in enumerate(turned_by_loops(image)):
            assert np.array_equal(got[3 * variant + number], expected)
    assert np.array_equal(got[:3], images)
    if side > 2:
        assert len({image.tobytes() for image in got}) == 48


def test_pseudo_labels_name_class_and_variant() -> None:
    learner = learner_after(0)
    y = torch.tensor([5, 0, 5])
    labels = learner.pseudo_labels(y, 2).view(2, 16, 3)
    assert torch.equal(labels[0], labels[1])
    assert len(labels.unique()) == 32
    assert torch.equal(labels[0] % NOISE.num_classes, y.expand(16, 3))
    assert torch.equal(labels[0, :, 0], labels[0, :, 2])


def test_pseudo_labels_follow_the_variants() -> None:
    """The label of a variant lies where that variant of that image lies."""
    learner = learner_after(0)
    x, y = batch(0)
    images, labels = turned(x), learner.pseudo_labels(y, 1)
    for number in range(BATCH):
        for variant in range(16):
            at = variant * BATCH + number
            assert torch.equal(images[at], turned(x[number : number + 1])[variant])
            assert int(labels[at]) == int(y[number]) + variant * NOISE.num_classes


def test_only_square_images() -> None:
    with pytest.raises(OcilError, match="square"):
        make("ocm", data=noise(shape=(8, 10, 3)))


def test_images_that_are_not_square_are_refused_before_any_run() -> None:
    data = noise(shape=(8, 10, 3))
    with pytest.raises(OcilError, match=r"^ocm turns images by 90 degrees and so needs square ones, not 8x10\.$"):
        check(ocil.resolve("ocm", data), data)


# Losses


def ell(row: list[float], i: int, j: int, tau: float, skip_itself: bool) -> float:
    """-log(softmax + 1e-8) of one entry."""
    if skip_itself and i == j:
        return -math.log(1e-8)
    others = [k for k in range(len(row)) if not (skip_itself and k == i)]
    total = sum(math.exp((row[k] - row[j]) / tau) for k in others)
    return -math.log(1 / total + 1e-8)


def by_loops(similarity: list[list[float]], labels: list[int], tau: float, kind: str) -> float:
    count, skip = len(labels), kind == "n"
    total = 0.0
    for i, row in enumerate(similarity):
        same = [j for j in range(count) if labels[j] == labels[i]]
        mean = sum(ell(row, i, j, tau, skip) for j in same) / len(same)
        total += 2 * mean + ell(row, i, (i + count // 2) % count, tau, skip) if kind == "n" else mean
    return total / count


@pytest.mark.parametrize(("kind", "loss"), [("n", sup_n), ("u", sup_u)])
@given(st.integers(1, 5), st.integers(0, 10**6), st.sampled_from([0.07, 0.5]))
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
def test_contrast_against_loops(
    kind: str, loss: Callable[[Tensor, Tensor, float], Tensor], images: int, seed: int, tau: float
) -> None:
    rng = np.random.default_rng(seed)
    similarity = rng.uniform(-1, 1, (2 * images, 2 * images))
    labels = np.tile(rng.integers(0, 3, images), 2)
    got = loss(torch.from_numpy(similarity), torch.from_numpy(labels), tau)
    assert float(got) == pytest.approx(by_loops(similarity.tolist(), labels.tolist(), tau, kind), rel=1e-9)


@pytest.mark.parametrize("loss", [sup_n, sup_u])
def test_gradients_of_the_contrast(loss: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    similarity = torch.randn(6, 6, dtype=torch.float64, generator=generator).requires_grad_()
    labels = torch.tensor([0, 1, 0, 0, 1, 0])
    assert torch.autograd.gradcheck(lambda s: loss(s, labels, 0.5), [similarity])


def test_an_image_alone_has_only_its_other_view() -> None:
    """Two vectors: the other view is the only choice, so only the constant of the image itself is left."""
    loss = sup_n(torch.tensor([[2.0, -1.0], [0.0, 2.0]]), torch.tensor([0, 0]), 0.07)
    assert float(loss) == pytest.approx(-math.log(1e-8), rel=1e-5)  # 2 · (18.4 + 0) / 2 + 0


def test_squared_difference() -> None:
    one, other = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.zeros(2, 3)
    assert float(squared_difference(one, other, torch.tensor([True, False, True]))) == (1 + 9 + 16 + 36) / 4
    assert float(squared_difference(one, other, torch.zeros(3, dtype=torch.bool))) == 0
    everywhere = squared_difference(one, other, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(everywhere, F.mse_loss(one, other))


# Steps by hand


class Copies:
    """Copies of everything that is trained, and of the previous model, whose step is taken by hand."""

    def __init__(self, learner: OCM) -> None:
        self.learner = learner
        self.network, self.projection = copy.deepcopy(learner.network), copy.deepcopy(learner.projection)
        self.previous = copy.deepcopy(learner.previous_network), copy.deepcopy(learner.previous_projection)
        self.weights = [*self.network.parameters(), *self.projection.parameters()]

    @staticmethod
    def standard(images: Tensor) -> Tensor:
        mean, std = [125.3, 123.0, 113.9], [63.0, 62.1, 66.7]
        return torch.stack([(images[:, c] - mean[c] / 255) / (std[c] / 255) for c in range(3)], 1)

    def embed(self, images: Tensor, previous: bool = False) -> tuple[Tensor, Tensor]:
        network, projection = self.previous if previous else (self.network, self.projection)
        h = network.features(self.standard(images))
        u = projection(h)
        return h / h.norm(dim=1, keepdim=True), u / u.norm(dim=1, keepdim=True)

    def agrees(self, loss: Tensor) -> None:
        slopes = torch.autograd.grad(loss, self.weights)
        with torch.no_grad():
            for weight, slope in zip(self.weights, slopes, strict=True):
                weight.sub_(self.learner.config.lr * slope)
        for mine, its in ((self.network, self.learner.network), (self.projection, self.learner.projection)):
            for (name, value), (_, got) in zip(mine.state_dict().items(), its.state_dict().items(), strict=True):
                torch.testing.assert_close(got, value, rtol=2e-4, atol=5e-6, msg=f"{name}: {{}}".format)
        assert float(self.learner.last_loss) == pytest.approx(float(loss.detach()), rel=1e-5)


def labels_of(y: Tensor) -> Tensor:
    return torch.tensor([16 * int(label) + variant for variant in range(16) for label in y])


def slow_n(s: Tensor, labels: Tensor, tau: float) -> Tensor:
    """As released: row maximum subtracted, exponentials, the diagonal multiplied away."""
    count = len(s)
    weight = torch.exp((s - s.max(1, keepdim=True).values.detach()) / tau) * (1 - torch.eye(count))
    entries = -torch.log(weight / weight.sum(1, keepdim=True) + 1e-8)
    same = (labels[:, None] == labels[None, :]).float()
    pair = torch.stack([entries[i, (i + count // 2) % count] for i in range(count)])
    return pair.mean() + 2 * ((entries * same).sum(1) / same.sum(1)).mean()


def slow_u(s: Tensor, labels: Tensor, tau: float) -> Tensor:
    entries = -torch.log(F.softmax(s / tau, 1) + 1e-8)
    same = (labels[:, None] == labels[None, :]).float()
    return ((entries * same).sum(1) / same.sum(1)).mean()


def test_first_task_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_after(2, lr=0.02, similarity_weight=0.3)  # the weight is for later tasks
    hand = Copies(learner)
    views = record(learner, "random_views", monkeypatch)
    retrieved = record(learner.memory, "retrieve", monkeypatch)
    x, y = batch(2)
    learner.learn(x, y)
    assert retrieved == []
    h, u = hand.embed(torch.cat([to_float(turned(x)), views[0]]))
    assert h.shape == u.shape  # 16 features: the slice is the whole feature
    labels = labels_of(y).repeat(2)
    loss = slow_n(u @ u.T + u @ h.T, labels, 0.07)
    loss = loss + F.cross_entropy(hand.network(hand.standard(views[1])), y)
    assert [len(view) for view in views] == [16 * BATCH, BATCH]
    hand.agrees(loss)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_later_tasks_by_hand(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_after(2, lr=0.02, similarity_weight=weight)
    learner.seen_classes[4:] = False  # so that there are new classes
    learner.task_ended()
    learn(learner, range(2, 3))  # now the previous model is another one
    hand = Copies(learner)
    views, draws = record(learner, "random_views", monkeypatch), record(learner.memory, "retrieve", monkeypatch)
    x, y = batch(3)
    learner.learn(x, y)
    ((memory_x, memory_y),) = draws
    assert len(memory_y) == REPLAYED
    stream = torch.cat([to_float(turned(x)), views[0]])
    memory = torch.cat([to_float(turned(memory_x)), views[1]])
    h, u = hand.embed(torch.cat([stream, memory]))
    n, half = len(stream), len(memory) // 2
    with torch.no_grad():
        _, previous_u = hand.embed(to_float(turned(memory_x)), previous=True)
        previous_z = hand.previous[0](hand.standard(views[3]))
    labels, memory_labels = labels_of(y).repeat(2), labels_of(memory_y)
    su, sh, mu, mh = u[:n], h[:n], u[n:], h[n:]
    loss = slow_n(weight * su @ su.T + weight * su @ sh.T, labels, 0.07)
    loss = loss + slow_u(weight * mu @ mu.T + weight * mu @ mh.T, memory_labels.repeat(2), 0.07)
    loss = loss + slow_u(mu[:half] @ previous_u.T, memory_labels, 0.07)
    z = hand.network(hand.standard(views[2]))
    loss = loss + F.cross_entropy(z, memory_y) + F.mse_loss(z[:, :4], previous_z[:, :4])
    assert not torch.equal(views[2], views[3])
    hand.agrees(loss)


def test_review_is_cross_entropy_of_augmented_images(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_after(3)
    hand = Copies(learner)
    views = record(learner, "random_views", monkeypatch)
    slots = torch.tensor([4, 1, 9, 6])
    before = [parameter.clone() for parameter in learner.projection.parameters()]
    loss = learner.review_loss(learner.memory.images[slots], learner.memory.labels[slots])
    expected = F.cross_entropy(hand.network(hand.standard(views[0])), learner.memory.labels[slots])
    torch.testing.assert_close(loss, expected)
    learner.review_step(slots)
    assert all(map(torch.equal, before, learner.projection.parameters()))


# The slice, the pooling, the normalisation


def test_slice_of_wide_features() -> None:
    """With more features than projections a contiguous part is taken, at every place in turn, the last one excluded."""
    learner = make("ocm", projection=10)
    assert isinstance(learner, OCM)
    h = torch.eye(16)[None, :].expand(2, -1, -1).flatten(0, 1)  # row i: 1 at feature i
    u = torch.eye(10)[[0]].expand(32, -1)
    starts = {int((learner.similarity(u, h, 1.0)[0] - 1).argmax()) for _ in range(200)}
    assert starts == set(range(6))  # drawn from [0, 16 - 10)
    assert learner.projection.weight.shape == (10, 16)


def test_features_of_large_images_are_averaged_over_the_image() -> None:
    learner = make("ocm", data=noise(count=6, shape=(64, 64, 3)), memory_batch=2, memory=6, width=2)
    assert isinstance(learner, OCM)
    assert learner.network.feature_size == 4 * 16
    images = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    h, u = learner.embed(learner.network, learner.projection, images)
    windows = learner.network.features(images).view(3, 16, 2, 2)
    torch.testing.assert_close(h, F.normalize(windows.mean((2, 3))))
    assert u.shape == (3, 16)


def test_inputs_are_standardised_for_learning_and_scoring() -> None:
    learner, plain = learner_after(3), make("ocm", normalise=False, memory=20, memory_batch=REPLAYED)
    plain.load_state(frozen(learner))
    x = batch(7)[0]
    network = copy.deepcopy(learner.network).eval()
    with torch.no_grad():
        torch.testing.assert_close(learner.scores(x), network(Copies.standard(to_float(x))))
        torch.testing.assert_close(plain.scores(x), network(to_float(x)))
    gray = make("ocm", data=noise(shape=(8, 8, 1)))
    assert isinstance(gray, OCM)
    assert float(gray.standard(torch.full((1, 1, 8, 8), 120.7333 / 255)).abs().max()) < 1e-3


# Task ends


def test_previous_model_is_the_model_of_the_last_task_end() -> None:
    learner = learner_after(2)
    places = [value.data_ptr() for value in learner.previous_network.parameters()]
    for first in (2, 4):
        learner.task_ended()
        kept = [value.clone() for value in (*learner.network.parameters(), *learner.projection.parameters())]
        learn(learner, range(first, first + 2))
        previous = [*learner.previous_network.parameters(), *learner.previous_projection.parameters()]
        assert all(map(torch.equal, kept, previous))
        assert not any(value.requires_grad for value in previous)
        assert learner.step_variant() == learner.task_number
    assert places == [value.data_ptr() for value in learner.previous_network.parameters()]


def test_running_statistics_of_the_previous_model_do_not_matter() -> None:
    one, other = learner_after(3, ended=True), learner_after(3, ended=True)
    for name, value in other.previous_network.named_buffers():
        value.fill_(5 if "num" in name else 0.5)
    learn(one, range(3, 5))
    learn(other, range(3, 5))
    assert torch.equal(one.last_loss, other.last_loss)
    assert all(map(torch.equal, one.network.state_dict().values(), other.network.state_dict().values()))


@pytest.mark.parametrize(
    ("known", "tasks", "classes", "expected"),
    [(2, 1, 10, 28), (4, 2, 10, 42), (6, 3, 10, 56), (8, 4, 10, 64), (10, 1, 100, 64), (2, 1, 3, 21), (0, 1, 10, 1)],
)
def test_replay_grows_with_the_classes_seen(known: int, tasks: int, classes: int, expected: int) -> None:
    """Seven a class, for the classes that will have come by the task's end if all tasks bring as many."""
    learner = make("ocm", data=noise(classes=classes, count=2 * classes), memory=100, memory_batch=64)
    assert isinstance(learner, OCM)
    learner.old_count, learner.task_number = known, tasks
    assert learner.replay_batch() == expected


def test_first_task_is_steady_at_once_and_later_ones_with_enough_stored() -> None:
    learner = make("ocm", memory=20, memory_batch=8)
    assert learner.shapes_are_static()
    learner.learn(*batch(0))
    learner.task_ended()
    assert not learner.shapes_are_static()
    learner.learn(*batch(1))
    assert learner.shapes_are_static()


@pytest.mark.slow
@pytest.mark.parametrize("projection", [128, 10])
def test_later_tasks_read_nothing_and_keep_their_shapes(projection: int) -> None:
    learner = learner_after(3, ended=True, projection=projection)
    assert learner.shapes_are_static()
    learn(learner, range(3, 4))
    traces = []
    for number in (4, 5):
        x, y = batch(number)
        with HostWatch() as watch:
            learner.learn(x, y)
        traces.append(watch.trace)
    assert len(traces[0]) > 100
    assert traces[0] == traces[1]


def test_state_after_a_task_goes_on_exactly() -> None:
    """What the host knows of the classes comes back with the state."""
    learner = learner_after(2, ended=True)
    learn(learner, range(2, 4))
    other = make("ocm", memory=20, memory_batch=REPLAYED)
    assert isinstance(other, OCM)
    other.load_state(frozen(learner))
    assert (other.old_count, other.task_number) == (learner.old_count, 1)
    for each in (learner, other):
        learn(each, range(4, 5))
        each.task_ended()
        learn(each, range(5, 6))
    assert digest(learner) == digest(other)


@pytest.mark.parametrize(("dataset", "weight"), [("cifar10", 0.5), ("cifar100", 1.0), ("mini_imagenet", 1.0)])
def test_published_settings(dataset: str, weight: float) -> None:
    config = ocil.resolve("ocm", dataset).learner
    assert isinstance(config, ocm.OCMConfig)
    assert (config.similarity_weight, config.temperature, config.projection) == (weight, 0.07, 128)
    assert (config.memory_batch, config.per_class, config.review, config.normalise) == (64, 7, False, True)
    augment = config.random_views()
    assert (augment.crop_scale, augment.flip, augment.jitter, augment.gray) == ((0.3, 1.0), 0.5, 0.0, 0.25)


@pytest.mark.parametrize("name", ["temperature", "per_class", "projection", "crop"])
def test_impossible_settings(name: str) -> None:
    with pytest.raises(OcilError, match=name):
        make("ocm", **{name: 0})  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_tasks_are_learned() -> None:
    """Four easy classes of two tasks; those of the second are learned from the memory alone."""
    data = patterned(per_class=40)
    learner = make("ocm", data=data, memory=40, memory_batch=16, lr=0.1, crop=1.0, gray=0.0)
    images, labels = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    for task, steps in ((0, 16), (1, 40)):
        of_task = (labels // 2 == task).nonzero()[:, 0]
        for number in range(steps):
            index = of_task[torch.arange(number * BATCH, (number + 1) * BATCH) % len(of_task)]
            learner.learn(images[index], labels[index])
        learner.task_ended()
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    found = learner.scores(x).argmax(1) == y
    assert found.double().mean() > 0.5
    assert found[y >= 2].double().mean() > 0.5
