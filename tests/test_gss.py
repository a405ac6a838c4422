"""GSS-greedy: its cosines against one backward pass a sample, its memory against a slow one and against chances."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import ocil
import ocil.kernels.convolution
from ocil import networks
from ocil.errors import OcilError
from ocil.methods._gradients import gradient_products
from ocil.methods.gss import GSS, ScoredMemory, similarities
from ocil.networks import ReducedResNet18, to_float
from ocil.precision import numerics
from tests.reference.datasets import noise, patterned
from tests.reference.networks import logits as reference_logits

pytestmark = pytest.mark.usefixtures("quick_convolution")

NOISE = noise()
BATCH = 5


def trained_network(shape: tuple[int, int, int], width: int, precision: Any = "fp32") -> ReducedResNet18:
    """Its running statistics and affine parameters are not those of the start."""
    network = networks.build(shape, 6, width, 1, torch.device("cpu"), precision)
    assert isinstance(network, ReducedResNet18)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in [*network.named_parameters(), *network.named_buffers()]:
            if "bn" in name or "shortcut.1" in name:
                value += 0.3 * torch.rand(value.shape, generator=generator) if value.is_floating_point() else 1
    return network.eval()


def some_images(count: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)
    return to_float(x), torch.randint(6, (count,), generator=generator)


def parts(x: Tensor, y: Tensor, singles: int, group_size: int) -> list[tuple[Tensor, Tensor]]:
    alone = zip(x[:singles].split(1), y[:singles].split(1), strict=True)
    return [*alone, *zip(x[singles:].split(group_size), y[singles:].split(group_size), strict=True)]


def backward_for_each(network: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """One backward pass for each, in double precision, through the network written as one function."""
    rows = []
    for x, y in batches:
        weights = {name: value.detach().double() for name, value in network.state_dict().items()}
        trained = [weights[name].requires_grad_() for name, _ in network.named_parameters()]
        loss = F.cross_entropy(reference_logits(weights, x.double(), training=False), y)
        rows.append(torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, trained)]))
    return torch.stack(rows)


@pytest.mark.parametrize("patches", [True, False])
@pytest.mark.parametrize(("shape", "width"), [((8, 8, 3), 3), ((14, 14, 1), 2), ((20, 34, 3), 2)])
def test_products_against_one_backward_pass_for_each(
    shape: tuple[int, int, int], width: int, patches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocil.kernels.convolution, "SLOW_BACKWARD", patches)
    network = trained_network(shape, width)
    x, y = some_images(3 + 2 * 4, shape)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    products = gradient_products(network, x, y, singles=3, group_size=4)
    rows = backward_for_each(network, parts(x, y, 3, 4))
    torch.testing.assert_close(products.double(), rows @ rows.mT, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())


def test_products_against_torch_func() -> None:
    network = trained_network((8, 8, 3), 4)
    x, y = some_images(5 + 3 * 2, (8, 8, 3))
    weights = {name: value.detach() for name, value in network.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(network, weights, (x,)), y)

    each = vmap(grad(loss), (None, 0, 0))
    alone = each(weights, x[:5, None], y[:5, None])
    groups = each(weights, x[5:].unflatten(0, (3, 2)), y[5:].unflatten(0, (3, 2)))
    rows = torch.cat([torch.cat([alone[name].flatten(1), groups[name].flatten(1)]) for name in weights], 1)
    torch.testing.assert_close(gradient_products(network, x, y, 5, 2), rows @ rows.mT, rtol=1e-4, atol=1e-5)


def test_products_in_bf16_are_close_and_in_float32() -> None:
    x, y = some_images(4 + 2 * 4, (8, 8, 3))
    exact, rough = (
        gradient_products(trained_network((8, 8, 3), 4, precision), x, y, 4, 4) for precision in ("fp32", "bf16")
    )
    assert rough.dtype == torch.float32
    torch.testing.assert_close(similarities(rough, 4)[0], similarities(exact, 4)[0], rtol=0, atol=0.02)


class OneTwice(nn.Sequential):
    """Its second layer is called twice, its third never."""

    def forward(self, x: Tensor) -> Tensor:
        flatten, again, _, last = self
        found: Tensor = last(again(again(flatten(x)).tanh()).tanh())
        return found


def tied() -> nn.Sequential:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 2))
    network[3].weight = network[1].weight
    return network


OTHER_LAYERS = {
    "tied": tied,
    "one twice": lambda: OneTwice(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 2)),
    "normalised": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
    "grouped": lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2)),
    "padded": lambda: nn.Sequential(nn.Conv2d(4, 2, 3, padding=2, bias=False), nn.Flatten(), nn.Linear(72, 2)),
}


@pytest.mark.parametrize("kind", OTHER_LAYERS)
@pytest.mark.parametrize("frozen", [False, True])
def test_products_of_any_network(kind: str, frozen: bool) -> None:
    torch.manual_seed(0)
    network = OTHER_LAYERS[kind]().eval()
    if frozen:
        network[:-1].requires_grad_(False)
    x, y = torch.rand(5, 4, 4, 4), torch.tensor([0, 1, 0, 1, 1])
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    rows = []
    for chosen in ([0], [1, 2], [3, 4]):
        loss = nn.functional.cross_entropy(network(x[chosen]), y[chosen])
        rows.append(
            torch.cat([slope.flatten() for slope in torch.autograd.grad(loss, trained, materialize_grads=True)])
        )
    expected = torch.stack(rows) @ torch.stack(rows).mT
    torch.testing.assert_close(gradient_products(network, x, y, 1, 2), expected, rtol=1e-4, atol=1e-6)


def cosine(a: list[float], b: list[float]) -> float:
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / max(math.hypot(*a) * math.hypot(*b), 1e-8)


vectors = st.lists(st.floats(-3, 3).map(lambda v: round(v, 2)), min_size=4, max_size=4)


@given(st.lists(vectors, min_size=1, max_size=4), st.lists(vectors, min_size=1, max_size=3))
def test_similarities_against_plain_cosines(samples: list[list[float]], groups: list[list[float]]) -> None:
    rows = torch.tensor(samples + groups, dtype=torch.float64)
    found, batch = similarities(rows @ rows.mT, len(samples))
    expected = [max(cosine(sample, group) for group in groups) for sample in samples]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    mean = [math.fsum(column) / len(samples) for column in zip(*samples, strict=True)]
    if math.hypot(*mean) > 1e-3:
        assert float(batch) == pytest.approx(max(cosine(mean, group) for group in groups), abs=1e-6)


def test_similarities_of_what_is_not_finite() -> None:
    rows = torch.tensor([[math.nan, 1.0], [1.0, 0.0], [-1.0, 0.0]])
    found, batch = similarities(rows @ rows.mT, 2)
    assert found.tolist() == [1.0, -1.0]
    assert float(batch) == 1.0  # nothing is replaced on such grounds
    zero, batch = similarities(torch.zeros(4, 4), 2)
    assert zero.tolist() == [0.0, 0.0]
    assert float(batch) == 0.0


# The memory


def memory_of(scores: list[float], size: int | None = None, seed: int = 0) -> ScoredMemory:
    """Slot i holds the image and the label i."""
    count = len(scores)
    memory = ScoredMemory(size or count, (1, 1, 1), torch.Generator().manual_seed(seed))
    slots = torch.arange(count)
    memory.put(slots, slots.to(torch.uint8).view(-1, 1, 1, 1), slots)
    memory.score[:count] = torch.tensor(scores)
    memory.seen.fill_(count)
    return memory


def strangers(count: int, first: int = 100) -> tuple[Tensor, Tensor]:
    y = torch.arange(first, first + count)
    return y.to(torch.uint8).view(-1, 1, 1, 1), y


@pytest.mark.parametrize(
    ("filled", "shape"), [(1, (1, 1)), (3, (1, 3)), (4, (1, 4)), (7, (1, 4)), (8, (2, 4)), (12, (3, 4)), (20, (3, 4))]
)
def test_groups_are_disjoint_and_shuffled(filled: int, shape: tuple[int, int]) -> None:
    memory = memory_of([0.0] * filled, size=20)
    first = {}
    for _ in range(30):
        slots = memory.groups(3, 4)
        assert slots is not None
        assert slots.shape == shape
        assert len(set(slots.flatten().tolist())) == slots.numel()
        assert int(slots.max()) < filled
        first[int(slots[0, 0])] = True
    assert len(first) > min(filled, 10) // 2


def test_groups_of_nothing() -> None:
    assert ScoredMemory(5, (1, 1, 1), torch.Generator()).groups(10, 10) is None


def slow_offer(
    scores: list[float], size: int, new: list[float], batch_score: float, ring: list[float], chance: list[float]
) -> list[int]:
    """Where each of the new samples goes (``size``: nowhere), by the rule one sample at a time."""
    if len(scores) < size:
        return [min(len(scores) + i, size) for i in range(len(new))]
    if batch_score >= 0:
        return [size] * len(new)
    spread = max(scores) - min(scores) + 0.01
    rates = [max((s - min(scores)) / spread, 1e-12) for s in scores]
    order = sorted(range(size), key=lambda i: ring[i] / rates[i])
    went = []
    for i, c in enumerate(new):
        s = scores[order[i]]
        total = (s + 1) + (c + 1)
        went.append(order[i] if total > 0 and chance[i] < (s + 1) / total else size)
    return went


unit = st.floats(-1, 1).map(lambda v: round(v, 3))


@given(
    st.lists(unit, min_size=4, max_size=8),
    st.integers(0, 5),
    st.lists(unit, min_size=1, max_size=4),
    unit,
    st.integers(0, 2**31),
)
def test_offers_against_the_rule_one_at_a_time(
    scores: list[float], free: int, new: list[float], batch_score: float, seed: int
) -> None:
    size = len(scores) + free
    memory = memory_of(scores, size, seed)
    generator = torch.Generator()
    generator.set_state(memory.generator.get_state())
    ring = torch.empty(size).exponential_(generator=generator).tolist()
    chance = torch.rand(len(new), generator=generator).tolist()
    expected = slow_offer(scores, size, new, batch_score, ring, chance)
    x, y = strangers(len(new))
    slots = memory.offer(x, y, torch.tensor(new), torch.tensor(batch_score))
    assert slots.tolist() == expected
    labels, held = list(range(len(scores))) + [0] * free, scores + [0.0] * free
    for slot, label, score in zip(expected, y.tolist(), new, strict=True):
        if slot < size:
            labels[slot], held[slot] = label, score
    assert memory.labels.tolist() == [*labels, 0]
    assert memory.images.flatten().tolist() == [*labels, 0]
    assert memory.score.tolist() == pytest.approx([*held, 0.0])
    assert int(memory.seen) == len(scores) + len(new)


def test_a_batch_larger_than_the_memory() -> None:
    memory = memory_of([0.9, 0.9])
    slots = memory.offer(*strangers(5), torch.full((5,), -1.0), torch.tensor(-0.5))
    assert sorted(slots.tolist()) == [0, 1, 2, 2, 2]


def inclusion(rates: list[float], count: int) -> list[float]:
    """How likely each is among ``count`` drawn one after the other, by going through all orders."""
    chances = [0.0] * len(rates)
    for order in itertools.permutations(range(len(rates)), count):
        left, chance = sum(rates), 1.0
        for i in order:
            chance *= rates[i] / left
            left -= rates[i]
        for i in order:
            chances[i] += chance
    return chances


def frequencies(memory: ScoredMemory, count: int, trials: int = 4000) -> list[float]:
    drawn = [memory.draw_similar(count).tolist() for _ in range(trials)]
    assert all(len(set(slots)) == count for slots in drawn)
    return [sum(i in slots for slots in drawn) / trials for i in range(memory.size)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_slots_are_drawn_by_their_score(count: int) -> None:
    scores = [-0.5, 0.9, 0.1, -0.2, 0.5]
    rates = [s + 0.5 for s in scores]
    assert frequencies(memory_of(scores), count) == pytest.approx(inclusion(rates, count), abs=0.04)


def test_the_lowest_score_is_drawn_last() -> None:
    assert frequencies(memory_of([0.3, -0.9, 0.2, 0.7]), 3, trials=300) == [1, 0, 1, 1]


@pytest.mark.parametrize("scores", [[0.1] * 5, [-1.0] * 5, [-1.0, -1.0, -1.0, -1.0, 0.5]])
def test_equal_scores_are_drawn_evenly(scores: list[float]) -> None:
    top = scores.index(max(scores)) if len(set(scores)) > 1 else None
    rest = [f for i, f in enumerate(frequencies(memory_of(scores), 2, trials=3000)) if i != top]
    assert rest == pytest.approx([sum(rest) / len(rest)] * len(rest), abs=0.04)
    assert sum(rest) == pytest.approx(2 if top is None else 1)


# The learner


def make(**settings: Any) -> GSS:
    data = settings.pop("data", NOISE)
    defaults = {"width": 2, "batch_size": BATCH, "memory": 12, "memory_batch": 8, "groups": 3, "group_size": 4}
    learner = ocil.make_learner("gss", data, **defaults | settings)
    assert isinstance(learner, GSS)
    return learner


def batch(number: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(number * BATCH, (number + 1) * BATCH) % len(NOISE.train_y)
    return torch.from_numpy(NOISE.train_x)[index], torch.from_numpy(NOISE.train_y)[index]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_step_by_hand(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, one with less than a replay batch, and one with a full memory."""
    learner = make(lr=0.07)
    for number in range(steps):
        learner.learn(*batch(number))
    old, twin = copy.deepcopy(learner.memory), copy.deepcopy(learner.network)
    seen: dict[str, Any] = {}
    for name in ("retrieve", "groups", "draw_similar"):
        call = getattr(learner.memory, name)
        monkeypatch.setattr(learner.memory, name, lambda *a, _n=name, _c=call: seen.setdefault(_n, _c(*a)))
    x, y = batch(steps)
    learner.learn(x, y)

    loss = F.cross_entropy(twin(to_float(x)), y)
    if steps:
        loss = loss + F.cross_entropy(twin(to_float(seen["retrieve"][0])), seen["retrieve"][1])
    slopes = torch.autograd.grad(loss, list(twin.parameters()))
    with torch.no_grad():
        for parameter, slope in zip(twin.parameters(), slopes, strict=True):
            parameter.sub_(0.07 * slope)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(learner.network.state_dict()[name], value, rtol=1e-4, atol=2e-6)
    assert float(learner.last_loss) == pytest.approx(float(loss.detach()), rel=1e-5)

    scores = [0.1] * BATCH
    batch_score = 1.0
    if steps:
        slots = seen["groups"]
        batches = [(old.images[group], old.labels[group]) for group in slots]
        groups = backward_for_each(twin, [(to_float(images), labels) for images, labels in batches]).tolist()
        samples = backward_for_each(twin, list(zip(to_float(x).split(1), y.split(1), strict=True))).tolist()
        scores = [max(cosine(sample, group) for group in groups) for sample in samples]
        (whole,) = backward_for_each(twin, [(to_float(x), y)]).tolist()
        batch_score = max(cosine(whole, group) for group in groups)
        assert slots.shape == ((1, 4) if steps == 1 else (3, 4))
    kept = 0
    for place, (image, label, score) in enumerate(zip(x, y, scores, strict=True)):
        slot = steps * BATCH + place if steps * BATCH < 12 else int(seen["draw_similar"][place])
        if slot < 12 and torch.equal(learner.memory.images[slot], image):
            kept += 1
            assert int(learner.memory.labels[slot]) == int(label)
            assert float(learner.memory.score[slot]) == pytest.approx(score, abs=1e-4)
    if steps < 2:
        assert kept == BATCH
    elif batch_score >= 0:
        assert kept == 0
    assert learner.network.training


@pytest.mark.slow
def test_learning_fills_the_memory_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks of two easy classes. Some of the second enters the full memory, only from batches that point away from
    what is there; the first is not forgotten."""
    data = patterned(per_class=30)
    learner = make(data=data, width=4, memory=30, memory_batch=10, group_size=5, lr=0.02)
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=2, batch_size=BATCH), seed=0)
    memory, score, batch_scores = learner.memory, learner.similarity, []

    def watched(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        found = score(x, y)
        batch_scores.append(float(found[1]))
        return found

    monkeypatch.setattr(learner, "similarity", watched)
    away, replaced = [], []
    for part in stream:
        full, before = len(memory) == 30, memory.images.clone()
        learner.learn(part.x, part.y)
        if full:
            away.append(batch_scores[-1] < 0)
            replaced.append(not torch.equal(memory.images, before))
    assert 0 < sum(away) < len(away)
    assert any(replaced)
    assert all(points_away for points_away, new in zip(away, replaced, strict=True) if new)
    assert len(memory) == 30
    assert int(memory.seen) == 120
    assert float(memory.score.abs().max()) <= 1
    assert len(set(memory.score[:30].tolist())) > 5
    assert int((memory.labels[:30] >= 2).sum()) > 0
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    right = learner.scores(x).argmax(1) == y
    assert right[y < 2].double().mean() > 0.5
    assert right[y >= 2].double().mean() > 0.5


def test_gradients_are_compared_in_ways_that_repeat() -> None:
    """On a GPU cuDNN computes them, forward and backward. It would take the ways that it finds to be the fastest, and
    finds others another time."""
    learner = make()
    learner.learn(*batch(0))
    found: set[tuple[str, bool, bool]] = set()

    def look(*what: Any) -> None:
        training = "training" if learner.network.training else "comparing"
        found.add((f"{training}, {what[-1]}", torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))

    *_, layer = (layer for layer in learner.network.modules() if isinstance(layer, nn.Conv2d))
    layer.register_forward_hook(lambda *_: look("forward"))
    layer.register_full_backward_hook(lambda *_: look("backward"))
    with numerics("tf32"):
        learner.learn(*batch(1))
    assert found == {
        ("training, forward", True, False),
        ("training, backward", True, False),
        ("comparing, forward", False, True),
        ("comparing, backward", False, True),
    }


def test_steady_waits_for_all_groups() -> None:
    """More than a replay batch is not enough: the number of groups must have stopped to grow."""
    learner = make(memory=30, groups=5, group_size=4)
    steady = []
    for number in range(6):
        learner.learn(*batch(number))
        steady.append(learner.shapes_are_static())
    assert steady == [False, False, False, True, True, True]
    assert not make(memory=8, memory_batch=4, groups=5).shapes_are_static()


@pytest.mark.parametrize("settings", [{"groups": 0}, {"group_size": 0}, {"first_score": -2.0}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(OcilError, match=next(iter(settings))):
        make(**settings)


def test_settings_are_the_published_ones() -> None:
    config = ocil.resolve("gss", "cifar100", memory=5000).learner
    assert (config.lr, config.memory_batch, config.weight_decay, config.review) == (0.1, 10, 0, False)
    assert (config.groups, config.group_size, config.first_score) == (10, 10, 0.1)  # type: ignore[attr-defined]
