"""ASER: Shapley values against all subsets, choices against loops, and a step by hand."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocil
from ocil.data import CATALOG
from ocil.errors import OcilError
from ocil.methods import aser
from ocil.methods._distances import distances
from ocil.methods.aser import ASER, ASERConfig, class_balanced, knn_shapley, places, ranking, replay_score
from ocil.methods.config import Problem
from ocil.networks import to_float
from ocil.runs.environment import digest
from ocil.testing.watch import HostWatch
from tests.reference.datasets import noise, patterned
from tests.test_methods import BATCH, MEMORY, REPLAY, SlowStep, batch, record

pytestmark = pytest.mark.usefixtures("quick_convolution")

NOISE = noise()


def make(**given: Any) -> ASER:
    start = {"memory": MEMORY, "memory_batch": REPLAY, "width": 2, "batch_size": BATCH}
    learner = ocil.make_learner("aser", NOISE, **start | given)
    assert isinstance(learner, ASER)
    return learner


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Shapley values


def worth(subset: Sequence[tuple[float, int, bool]], k: int) -> float:
    """Of a set of (distance, number, right label): 1/k for each of its k nearest that has the right label."""
    return sum(right for _, _, right in sorted(subset)[:k]) / k


def brute_force(players: list[tuple[float, int, bool]], k: int) -> dict[int, float]:
    """The definition: what a player adds, on average over all orders in which they may come."""
    values = {}
    for player in players:
        others = [other for other in players if other is not player]
        values[player[1]] = sum(
            (worth([*subset, player], k) - worth(subset, k)) / (len(players) * math.comb(len(others), size))
            for size in range(len(players))
            for subset in itertools.combinations(others, size)
        )
    return values


def recursion(distances: list[float], right: list[bool], k: int) -> list[float]:
    """The paper's recursion from the farthest candidate to the nearest, for a list without gaps."""
    order = sorted(range(len(right)), key=lambda i: (distances[i], i))
    values, count = [0.0] * len(right), len(right)
    for m in range(count, 0, -1):
        here = order[m - 1]
        if m == count:
            values[here] = right[here] * min(k, count) / (k * count)
        else:
            after = order[m]
            values[here] = values[after] + (int(right[here]) - int(right[after])) / k * min(k, m) / m
    return values


# Whole numbers, so that equal distances occur.
candidates = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=7)


@given(st.lists(candidates, min_size=1, max_size=2), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_shapley_values_are_those_of_all_subsets(rows: list[list[tuple[int, bool, bool]]], k: int) -> None:
    """Also with fewer candidates than neighbours, and with candidates that are not there."""
    width = max(map(len, rows))
    rows = [row + [(0, True, False)] * (width - len(row)) for row in rows]
    table = torch.tensor(rows, dtype=torch.float64)
    values = knn_shapley(table[..., 0], table[..., 1] > 0, k, table[..., 2] > 0)
    for row, got in zip(rows, values, strict=True):
        players = [(float(far), number, right) for number, (far, right, there) in enumerate(row) if there]
        expected = brute_force(players, k)
        assert got.tolist() == pytest.approx([expected.get(number, 0.0) for number in range(width)], abs=1e-12)
        assert float(got.sum()) == pytest.approx(worth(players, k))  # what all are worth together


def test_one_mask_serves_all_rows_and_float32_is_enough() -> None:
    distances, same = torch.rand(5, 40, generator=generator()), torch.rand(5, 40, generator=generator(1)) < 0.4
    valid = torch.rand(40, generator=generator(2)) < 0.7
    values = knn_shapley(distances, same, 3, valid)
    assert values.dtype == torch.float32
    there = valid.nonzero().flatten()
    for row in range(5):
        expected = recursion(distances[row, there].tolist(), same[row, there].tolist(), 3)
        torch.testing.assert_close(values[row, there], torch.tensor(expected))
    assert not values[:, ~valid].any()


def test_distances_of_close_neighbours_keep_their_digits() -> None:
    points = 100 + torch.arange(30.0)[:, None].expand(-1, 4) / 64
    expected = 2 * (points[:, None, 0] - points[:, 0]).abs()
    torch.testing.assert_close(distances(points, points), expected)


def test_fewer_candidates_than_neighbours() -> None:
    """By the definition the farthest of two gets 1/k; some code gives it 1/2."""
    distances, right = torch.tensor([[1.0, 2.0]]), torch.tensor([[True, True]])
    assert knn_shapley(distances, right, 3, torch.tensor([True, True])).tolist() == [[pytest.approx(1 / 3)] * 2]


def test_scores_by_hand() -> None:
    cooperative = torch.tensor([[0.1, 0.4], [0.3, 0.2], [9.0, 9.0]])
    adversarial = torch.tensor([[0.5, -0.1], [0.1, 0.3]])
    asked = torch.tensor([True, True, False])
    nobody = torch.zeros(3, dtype=torch.bool)
    expected = {"asvm": [0.2 - 0.3, 0.3 - 0.1], "asv": [0.3 - 0.1, 0.4 + 0.1], "neg_sv": [-0.6, -0.2]}
    alone = {"asvm": [-0.3, -0.1], "asv": [-0.1, 0.1], "neg_sv": [-0.6, -0.2]}
    for kind in ("asvm", "asv", "neg_sv"):
        torch.testing.assert_close(replay_score(cooperative, adversarial, asked, kind), torch.tensor(expected[kind]))
        torch.testing.assert_close(replay_score(cooperative, adversarial, nobody, kind), torch.tensor(alone[kind]))


# Draws


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 30), st.integers(1, 6), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_a_balanced_draw_takes_what_there_is_of_each_class(
    labels: list[int], stored: int, count: int, seed: int
) -> None:
    filled = torch.arange(len(labels)) < stored
    slots, real, sizes = class_balanced(torch.tensor(labels), filled, 5, count, generator(seed))
    assert slots.shape == real.shape == (5, count)
    for label in range(5):
        members = {slot for slot, each in enumerate(labels[:stored]) if each == label}
        drawn = slots[label][real[label]].tolist()
        assert int(sizes[label]) == len(members)
        assert len(drawn) == len(set(drawn)) == min(count, len(members))
        assert set(drawn) <= members


def test_a_balanced_draw_is_uniform() -> None:
    labels, filled = torch.tensor([0, 1, 0, 0, 1, 0]), torch.ones(6, dtype=torch.bool)
    source, hits = generator(), torch.zeros(6)
    for _ in range(2000):
        slots, real, _ = class_balanced(labels, filled, 3, 1, source)
        hits[slots[real]] += 1
    torch.testing.assert_close(hits / 2000, torch.tensor([0.25, 0.5, 0.25, 0.25, 0.5, 0.25]), atol=0.04, rtol=0)


@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5]), min_size=1, max_size=12), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_ranking(scores: list[float], seed: int) -> None:
    order = ranking(torch.tensor(scores), generator(seed)).tolist()
    assert sorted(order) == list(range(len(scores)))
    assert [scores[i] for i in order] == sorted(scores, reverse=True)


def test_equal_scores_come_in_any_order() -> None:
    source = generator()
    first = [int(ranking(torch.zeros(4), source)[0]) for _ in range(200)]
    assert all(25 < first.count(number) < 75 for number in range(4))


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.lists(st.booleans(), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_places(leaving: list[bool], entering: list[bool]) -> None:
    entering = [each and number < sum(leaving) for number, each in enumerate(entering)]
    leaving = [each and sum(leaving[:number]) < sum(entering) for number, each in enumerate(leaving)]
    slots = [10 * number + 3 for number in range(len(leaving))]
    got = places(torch.tensor(slots), torch.tensor(leaving), torch.tensor(entering), 999).tolist()
    assert [slot != 999 for slot in got] == entering
    taken = {slot for slot in got if slot != 999}
    assert taken == {slot for slot, gone in zip(slots, leaving, strict=True) if gone}


# Retrieval and storage, against loops


class Line(ASER):
    """Its features are the first pixel: samples on a line, so that neighbours can be told by eye."""

    def features(self, images: Tensor) -> Tensor:
        return images[:, 0, 0, :1].float()


def points(*values: int) -> Tensor:
    x = torch.zeros(len(values), 8, 8, 3, dtype=torch.uint8)
    x[:, 0, 0, 0] = torch.tensor(values).byte()
    return x


def line(stored: dict[int, list[int]], seed: int = 0, **settings: Any) -> Line:
    """A learner of three classes whose memory holds these points of each class, and is full."""
    values, labels = zip(*((value, label) for label, row in stored.items() for value in row), strict=True)
    config = ASERConfig(**{"memory": len(values), "memory_batch": 3, "width": 1} | settings)
    learner = Line(config, Problem((8, 8, 3), 3), seed)
    learner.memory.put(torch.arange(len(values)), points(*values), torch.tensor(labels))
    learner.memory.seen += len(values)
    return learner


def value(learner: Line, slots: Sequence[int] | Tensor) -> list[int]:
    return [int(v) for v in learner.memory.images[torch.as_tensor(slots), 0, 0, 0]]


def arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """From now on, everything that a function of the module is given."""
    calls: list[Any] = []
    original = getattr(aser, name)

    def wrapped(*args: Any) -> Any:
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(aser, name, wrapped)
    return calls


def shapley_table(rows: list[tuple[int, int]], columns: list[tuple[int, int]], k: int) -> list[list[float]]:
    """Values of (point, label) columns for (point, label) rows."""
    return [
        recursion([(a - b) ** 2 for b, _ in columns], [label == other for _, other in columns], k) for a, label in rows
    ]


STORED = {0: [10, 14, 31, 90, 95], 1: [12, 33, 60, 64], 2: [41]}


@pytest.mark.parametrize("kind", ["asvm", "asv", "neg_sv"])
def test_replay_is_what_loops_choose(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = line(STORED, aser_type=kind, per_class=2, k=3)
    learner.memory.seen += 1
    draws = record(aser, "class_balanced", monkeypatch)
    x, y = points(30, 62), torch.tensor([2, 1])
    chosen = learner.choose(torch.tensor([0, 1, 2]), x, y).tolist()
    ((slots, real, _),) = draws
    known = [(value(learner, [slot])[0], int(learner.memory.labels[slot])) for slot in range(10)]
    candidates, evaluated = slots[:, :2][real[:, :2]].tolist(), slots[:, 2:][real[:, 2:]].tolist()
    assert len(candidates) == 5  # class 2 has but one
    assert len(evaluated) == 4
    assert not set(candidates) & set(evaluated)
    columns = [known[slot] for slot in candidates]
    stream = shapley_table([(30, 2), (62, 1)], columns, 3)
    memory = shapley_table([known[slot] for slot in evaluated], columns, 3)
    scores = {}
    for number, slot in enumerate(candidates):
        against, helpful = [row[number] for row in stream], [row[number] for row in memory]
        scores[slot] = {
            "asvm": sum(helpful) / 4 - sum(against) / 2,
            "asv": max(helpful) - min(against),
            "neg_sv": -sum(against),
        }[kind]
    assert len(set(chosen)) == 3
    assert [scores[slot] for slot in chosen] == pytest.approx(sorted(scores.values(), reverse=True)[:3], abs=1e-6)


def test_replay_prefers_what_the_stream_is_mistaken_for() -> None:
    """Classes 0 and 1 on a line, the stream amid class 0's upper half: those neighbours come back, not the far ones."""
    learner = line(
        {0: [20, 30, 120, 130], 1: [200, 210, 220, 230]}, per_class=4, aser_type="neg_sv", memory_batch=2, k=2
    )
    learner.memory.seen += 1
    chosen = learner.choose(torch.tensor([4, 5]), points(124, 126), torch.tensor([1, 1]))
    assert sorted(value(learner, chosen)) == [120, 130]


def test_replay_is_random_until_more_came_than_fit() -> None:
    learner = line(STORED)
    drawn = torch.tensor([7, 2, 5])
    x, y = points(30, 62), torch.tensor([2, 1])
    assert sorted(learner.choose(drawn, x, y).tolist()) == [2, 5, 7]
    learner.memory.seen -= 1
    assert sorted(learner.choose(drawn, x, y).tolist()) == [2, 5, 7]


@pytest.mark.parametrize("kind", ["asvm", "asv", "neg_sv"])
def test_random_images_make_up_for_few_candidates(kind: str) -> None:
    """One class, two candidates, four to replay; nothing twice."""
    learner = line({1: [10, 20, 30, 40, 50]}, per_class=2, memory_batch=4, aser_type=kind)
    learner.memory.seen += 1
    for first in range(4):
        drawn = torch.arange(first, first + 4) % 5
        chosen = learner.choose(drawn, points(30, 62), torch.tensor([2, 1])).tolist()
        assert len(set(chosen)) == 4
        assert set(chosen) <= set(range(5))


@pytest.mark.parametrize("free", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_storage_is_what_loops_decide(seed: int, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full memory, and with one slot left for the first of the batch, which then no longer competes.

    A new class is in the minority whatever the threshold; classes 0 and 1, each half of the memory, never are.
    """
    learner = line({0: [10, 14, 31, 90, 95], 1: [12, 33, 60, 64, 70]}, seed, per_class=2, k=3)
    learner.memory.seen -= free
    stream = [(62, 1), (50, 2), (54, 2), (92, 0)]
    known = [(value(learner, [slot])[0], int(learner.memory.labels[slot])) for slot in range(10)]
    known[10 - free :] = stream[:free]
    draws = record(aser, "class_balanced", monkeypatch)
    ranked, placed = arguments("ranking", monkeypatch), arguments("places", monkeypatch)
    learner.store(points(*(point for point, _ in stream)), torch.tensor([label for _, label in stream]))

    ((slots, real, _),) = draws
    ((candidate, leaving, entering, _),), ((score, _),) = placed, ranked
    assert real.tolist() == [[True, True], [True, True], [False, False]]
    evaluated = slots[real].tolist()
    assert len(set(candidate.tolist())) == 6
    assert not set(candidate.tolist()) & set(evaluated)
    assert not entering[:free].any()
    late = stream[free:]
    columns = [known[slot] for slot in candidate.tolist()] + late
    table = shapley_table([known[slot] for slot in evaluated] + stream[1:3], columns, 3)
    total = [sum(column) for column in zip(*table, strict=True)]
    assert score[: len(candidate)].tolist() + score[len(candidate) + free :].tolist() == pytest.approx(total, abs=1e-6)
    assert score[len(candidate) :][:free].tolist() == [-math.inf] * free
    kept = [*(~leaving).tolist(), *entering[free:].tolist()]
    assert sum(kept) == 6
    worst = min(score for score, stays in zip(total, kept, strict=True) if stays)
    best = max(score for score, stays in zip(total, kept, strict=True) if not stays)
    assert worst >= best - 1e-6

    after = sorted(zip(value(learner, range(10)), learner.memory.labels[:10].tolist(), strict=True))
    expected = [each for slot, each in enumerate(known) if slot not in candidate[leaving].tolist()]
    expected += [each for each, enters in zip(stream, entering.tolist(), strict=True) if enters]
    assert after == sorted(expected)
    assert int(learner.memory.seen) == 14 - free


def test_storage_drops_what_misleads() -> None:
    """Two images of class 0 amid class 1 give way to two of class 1 that lie there."""
    learner = line(
        {0: [10, 11, 12, 13, 14, 15, 200, 202], 1: [198, 199, 201, 203, 204, 205, 206, 207]}, per_class=3, k=3
    )
    for _ in range(6):
        learner.store(points(200, 202), torch.tensor([1, 1]))
    stray = [
        v for v, label in zip(value(learner, range(16)), learner.memory.labels[:16].tolist(), strict=True) if not label
    ]
    assert max(stray) < 200


def test_a_batch_that_fills_the_memory_and_more() -> None:
    learner = line(STORED)
    learner.memory.images.zero_()
    learner.memory.labels.zero_()
    learner.memory.seen.fill_(8)
    learner.store(points(1, 2, 3, 4), torch.tensor([1, 2, 1, 2]))
    assert int(learner.memory.seen) == 12
    held = value(learner, range(10))
    assert [v for v in held if v] != []
    assert len({v for v in held if v}) == len([v for v in held if v])  # none twice
    assert set(held) <= {0, 1, 2, 3, 4}
    assert all(label == (v > 0) * (2 - v % 2) for v, label in zip(held, learner.memory.labels.tolist(), strict=False))
    assert not learner.memory.images[10].any()


def test_free_slots_take_everything_in_order() -> None:
    learner = make(memory=20)
    for number in range(4):
        x, y = batch(number)
        learner.learn(x, y)
        here = slice(number * BATCH, (number + 1) * BATCH)
        assert torch.equal(learner.memory.images[here], x)
        assert torch.equal(learner.memory.labels[here], y)
    before = learner.memory.images.clone()
    learner.learn(*batch(4))
    assert int((learner.memory.images != before).flatten(1).any(1).sum()) <= BATCH
    assert int(learner.memory.seen) == 25


# The step


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("updates", [1, 3])
def test_a_step_by_hand(steps: int, updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """First step (nothing to replay), second (less than a replay batch), and one with a full memory."""
    learner = make(lr=0.07, bn_updates=updates)
    for number in range(steps):
        learner.learn(*batch(number))
    slow = SlowStep(learner)
    for norm in slow.network.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.momentum = {1: 0.1, 3: 0.271}[updates]
    choices = record(learner, "choose", monkeypatch)
    images, labels = learner.memory.images.clone(), learner.memory.labels.clone()
    x, y = batch(steps)
    learner.learn(x, y)
    if steps:
        (slots,) = choices
        assert len(set(slots.tolist())) == min(REPLAY, BATCH * steps)
        x, y = torch.cat([images[slots], x]), torch.cat([labels[slots], y])
    else:
        assert choices == []
    slow.minimise(F.cross_entropy(slow.logits(to_float(x)), y))
    slow.agrees()
    assert all(norm.momentum == 0.1 for norm in learner.modules() if isinstance(norm, torch.nn.BatchNorm2d))


@pytest.mark.parametrize("kind", ["asvm", "asv", "neg_sv"])
@pytest.mark.parametrize("per_class", [1, 5])
def test_no_setting_reads_from_the_device(kind: str, per_class: int) -> None:
    learner = make(aser_type=kind, per_class=per_class)
    for number in range(3):
        learner.learn(*batch(number))
    x, y = batch(3)
    with HostWatch():
        learner.learn(x, y)


def test_features_are_the_networks_in_evaluation_mode() -> None:
    learner = make()
    learner.learn(*batch(0))
    x, before = batch(1)[0], digest(learner)
    with torch.no_grad():
        alone = torch.cat([learner.features(x[i : i + 1]) for i in range(BATCH)])
        torch.testing.assert_close(learner.features(x), alone)
    assert digest(learner) == before
    assert learner.network.training


def test_old_classes_stay_in_memory_and_in_mind() -> None:
    data = patterned(per_class=40)
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=2, batch_size=BATCH), seed=0)
    learner = ocil.make_learner("aser", data, memory=20, memory_batch=REPLAY, width=4, batch_size=BATCH, per_class=3)
    for part in stream:
        learner.learn(part.x, part.y)
    kept = learner.memory.labels[:20].bincount(minlength=4)
    assert int(kept.min()) >= 2
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    right = learner.scores(x).argmax(1) == y
    assert right[y < 2].double().mean() > 0.6
    assert right[y >= 2].double().mean() > 0.6


def test_settings() -> None:
    found = {}
    for dataset in ("cifar10", "cifar100", "mini_imagenet"):
        config = ocil.resolve("aser", dataset).learner
        assert isinstance(config, ASERConfig)
        assert (config.k, config.aser_type, config.memory_batch, config.review) == (3, "asvm", 10, False)
        found[dataset] = config.per_class
    assert found == {"cifar10": 9, "cifar100": 2, "mini_imagenet": 3}
    for dataset, smallest in (("cifar10", 200), ("cifar100", 1000), ("mini_imagenet", 1000)):
        assert ASER.settings_for(dataset, smallest, CATALOG[dataset].classes)["per_class"] == found[dataset]
    assert ASER.settings_for("cifar10", 60, 10)["per_class"] == 3
    assert ASER.settings_for("cifar10", 10, 10)["per_class"] == 1
    for bad in ({"k": 0}, {"per_class": 0}, {"aser_type": "sv"}, {"bn_updates": 0}):
        with pytest.raises(OcilError, match=next(iter(bad))):
            make(**bad)
