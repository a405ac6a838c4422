"""MOSE: its experts and losses written out, the two sets of images, the tasks of stored images, and class means."""

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ocil
from ocil.errors import OcilError
from ocil.methods import mose as mose_file
from ocil.methods._experts import Expert, Experts, enlarged
from ocil.methods._tasks import drawn_among
from ocil.methods.config import Problem
from ocil.methods.mose import MOSE, MOSEConfig
from ocil.networks import build, to_float
from tests.test_methods import BATCH, MEMORY, REPLAY, batch, learn, make, record, warm
from tests.test_scr import by_loops

pytestmark = pytest.mark.usefixtures("quick_convolution")


def mose(steps: int, **changes: Any) -> MOSE:
    learner = warm("mose", steps, **{"width": 2} | changes)
    assert isinstance(learner, MOSE)
    return learner


# Stages and experts


@pytest.mark.parametrize("spec", ["reduced-resnet18", "resnet18(width=3)", "resnet18(width=2, stem='imagenet')"])
def test_the_last_map_becomes_the_features(spec: str) -> None:
    network = build((32, 32, 3), 5, 3, spec=spec).eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = network.stage_maps(x)
    assert tuple(each.shape[1] for each in maps) == network.stage_channels
    assert [a.shape[2] / b.shape[2] for a, b in pairwise(maps)] == [2, 2, 2]
    torch.testing.assert_close(maps[-1].mean((2, 3)), network.features(x))


def test_other_networks_show_no_stages() -> None:
    assert build((5,), 3, spec="mlp(hidden=6)").stage_channels == ()


@pytest.mark.parametrize(("before", "after"), [((2, 2), (4, 4)), ((3, 1), (5, 2)), ((11, 4), (21, 8))])
def test_enlarged_maps_are_bilinear(before: tuple[int, int], after: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, *before, generator=torch.Generator().manual_seed(0))
    wanted = F.interpolate(maps, after, mode="bilinear", align_corners=False)
    torch.testing.assert_close(enlarged(maps, *after), wanted)


@pytest.mark.parametrize("side", [8, 5])
def test_an_expert_written_out(side: int) -> None:
    """Attention at half the size, then blocks up to the last stage's channels; all weights by their place."""
    expert = Expert(2, 8).eval()
    stage = torch.rand(3, 2, side, side, generator=torch.Generator().manual_seed(0))
    weights: Any = iter([each for each in expert.modules() if isinstance(each, nn.Conv2d | nn.BatchNorm2d)])

    def normalised(x: Tensor) -> Tensor:
        norm = next(weights)
        return (x / (1 + 1e-5) ** 0.5 * norm.weight[:, None, None] + norm.bias[:, None, None]).clamp(min=0)

    def block(x: Tensor) -> Tensor:
        for stride in (2, 1):
            x = F.conv2d(x, next(weights).weight, stride=stride, padding=1, groups=x.shape[1])
            x = normalised(F.conv2d(x, next(weights).weight))
        return x

    attention = F.interpolate(normalised(block(stage)), (side, side), mode="bilinear")
    x = stage * torch.sigmoid(attention)
    for channels in (4, 8):
        x = block(x)
        assert x.shape[1] == channels
    assert next(weights, None) is None
    torch.testing.assert_close(expert(stage), x.mean((2, 3)))
    last = torch.rand(3, 8, 3, 2)
    torch.testing.assert_close(Experts([2, 8])([stage, last])[-1], last.mean((2, 3)))


def test_stages_that_do_not_double_are_refused() -> None:
    with pytest.raises(OcilError, match="a stage of 3 channels"):
        Expert(3, 8)


def test_large_images_have_windows_for_the_head_and_none_for_experts() -> None:
    config = MOSEConfig(memory=8, memory_batch=4, current_batch=2, width=1, optimizer="sgd", lr=0.01)
    learner = MOSE(config, Problem((64, 64, 3), 3))
    assert (learner.network.feature_size, learner.size) == (4 * 8, 8)
    x, y = torch.randint(256, (4, 64, 64, 3), dtype=torch.uint8), torch.arange(4) % 3
    for _ in range(2):
        learner.learn(x, y)
    assert int(learner.failed_at) == -1
    assert learner.scores(x).shape == (4, 3)


# The two sets


def test_how_many_images_of_each_kind() -> None:
    """CIFAR-100 in ten tasks and CIFAR-10 in five, with the published batches."""
    learner = MOSE(MOSEConfig(memory=100, width=1, optimizer="sgd"), Problem((8, 8, 3), 100))
    assert learner.new_images() == 64
    for classes, expected in (
        (10, {1: (10, 54), 6: (9, 55), 9: (6, 58)}),
        (2, {1: (10, 28), 2: (10, 42), 4: (10, 54)}),
    ):
        for task, sizes in expected.items():
            learner.task_number, learner.old_count = task, classes * task
            assert learner.new_images() == 22
            assert learner.balance(10) == sizes
    assert MOSE.passes(learner.config, 10, 100)[0].images == 384


def test_images_of_this_task_and_of_others() -> None:
    learner = mose(0, memory=20)
    x = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 8, 8, 3)
    learner.memory.add(x, torch.arange(20) % 6)
    learner.tasks.numbers[:20] = torch.arange(20) % 3
    current = learner.tasks.are(torch.tensor(1))
    stream, labels = torch.full((5, 8, 8, 3), 200, dtype=torch.uint8), torch.arange(5)
    drawn = np.zeros(20)
    for _ in range(400):
        images, found = drawn_among(learner.memory, current, 4, stream, labels)
        numbers = images[:, 0, 0, 0].tolist()
        assert len(set(numbers)) == 4
        assert found.tolist() == [number % 6 for number in numbers]
        np.add.at(drawn, numbers, 1)
    mine = np.arange(20) % 3 == 1
    assert not drawn[~mine].any()
    np.testing.assert_allclose(drawn[mine] / 400, 4 / 7, atol=0.1)  # of 7 images, all alike
    images, _ = drawn_among(learner.memory, ~current, 13, stream, labels)
    assert sorted(images[:, 0, 0, 0].tolist()) == np.arange(20)[~mine].tolist()
    images, _ = drawn_among(learner.memory, current, 16, stream, labels)  # more than there are: they repeat
    assert set(np.bincount(images[:, 0, 0, 0], minlength=20)[mine]) == {2, 3}
    none = learner.tasks.are(torch.tensor(7))
    images, found = drawn_among(learner.memory, none, 7, stream, labels)  # none: the stream repeats
    assert images.eq(200).all()
    assert found.tolist() == [0, 1, 2, 3, 4, 0, 1]


def test_the_task_of_each_stored_image_is_known() -> None:
    learner = make("mose")
    assert isinstance(learner, MOSE)
    task_of: dict[bytes, int] = {}
    seen: set[int] = set()
    for number in range(9):
        x, y = batch(number)
        seen |= set(y.tolist())
        for image in x:
            task_of[image.numpy().tobytes()] = number // 3
        learner.learn(x, y)
        if number % 3 == 2:
            learner.end_task()
            assert learner.old_count == len(seen)
    stored = [task_of[image.numpy().tobytes()] for image in learner.memory.images[:MEMORY]]
    assert learner.tasks.numbers.tolist() == [*stored, 0]
    assert len(set(stored)) > 1


# The loss


def loss_by_hand(hand: MOSE, images: Tensor, labels: Tensor, new: int, among: list[int] | None) -> Tensor:
    """Of four views of all images, the first ``new`` of which are the new set. ``among``: the classes of this task so
    far; None in the first task."""
    mean, std = (torch.tensor(values).view(3, 1, 1) / 255 for values in ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)))
    features = hand.experts(hand.network.stage_maps((images - mean) / std))
    assert [tuple(h.shape) for h in features] == [(len(labels), 16)] * 4
    last = features[-1] @ hand.adapter.weight.T + hand.adapter.bias
    loss = torch.zeros(())
    for number, h in enumerate(features):
        projected = hand.projections[number](h)
        unit = projected / projected.norm(dim=1, keepdim=True)
        loss = loss + by_loops(unit[:, None], labels, 0.07)
        logits = (*hand.heads, hand.network.head)[number](h)
        if among:
            loss = loss + 2 * F.cross_entropy(logits[new:], labels[new:])
            where = torch.tensor([among.index(label) for label in labels[:new].tolist()])
            loss = loss + F.cross_entropy(logits[:new, among], where)
        else:
            loss = loss + F.cross_entropy(logits, labels)
        if number < 3:
            rows = last / last.norm(dim=1, keepdim=True) - (h / h.norm(dim=1, keepdim=True)).detach()
            loss = loss + rows.square().sum().sqrt()
    return loss


def test_a_review_has_the_loss_of_the_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = mose(4)
    learner.end_task()
    hand, views = copy.deepcopy(learner), record(learner, "random_views", monkeypatch)
    x, y = learner.memory.images[2:6], learner.memory.labels[2:6]
    found = learner.review_loss(x, y)
    raw = to_float(x)
    expected = loss_by_hand(hand, torch.cat([raw, raw.flip(3), *views]), y.repeat(4), 0, None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", [0, 1])
def test_a_step_by_hand(task: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = mose(4, lr=0.01, weight_decay=0.0)
    if task:
        learner.end_task()
        learner.learn(batch(4)[0], torch.tensor([4, 5, 4, 5, 5]))
    hand, before = copy.deepcopy(learner), {name: p.detach().clone() for name, p in learner.named_parameters()}
    current = learner.tasks.are(learner.tasks_ended)
    wanted: list[Tensor] = []
    monkeypatch.setattr(mose_file, "drawn_among", lambda *given: (wanted.append(given[1]), drawn_among(*given))[1])
    draws, views = record(mose_file, "drawn_among", monkeypatch), record(learner, "random_views", monkeypatch)
    x, y = batch(5)[0], torch.tensor([5, 4, 4, 5, 3])
    learner.learn(x, y)
    assert all(map(torch.equal, wanted, (current, ~current)))  # of this task, then of earlier ones
    assert len(draws) == 1 + task
    stream = [BATCH, REPLAY // 2]  # how many of its images are in each set: in the balanced one the share of its task
    sets = [(torch.cat([x[:n], a]), torch.cat([y[:n], b])) for n, (a, b) in zip(stream, draws, strict=False)]
    images, labels = [], []
    for (chosen, its), view in zip(sets, views, strict=True):
        raw = to_float(chosen)
        images += [raw, raw.flip(3), view]
        labels.append(its.repeat(4))
    new = len(labels[0])
    assert new == 4 * (BATCH + (3 if task else REPLAY))
    everything = torch.cat(labels)
    loss = loss_by_hand(hand, torch.cat(images), everything, new, [3, 4, 5] if task else None)
    assert float(learner.last_loss) == pytest.approx(float(loss.detach()), rel=1e-4)
    names = [name for name, p in hand.named_parameters()]
    slopes = torch.autograd.grad(loss, [p for _, p in hand.named_parameters()])
    for name, slope in zip(names, slopes, strict=True):
        moved = learner.get_parameter(name) - before[name]
        torch.testing.assert_close(moved, -0.01 * slope, rtol=2e-2, atol=2e-5, msg=f"{name}: {{}}".format)


def test_the_first_batch_is_only_stored() -> None:
    learner = make("mose")
    before = [p.detach().clone() for p in learner.parameters()]
    learn(learner, range(1))
    assert all(map(torch.equal, before, learner.parameters()))
    assert len(learner.memory) == BATCH


# Class means


@pytest.mark.parametrize("readout", ["mean", "last"])
def test_the_nearest_class_mean_of_the_experts_classifies(readout: str) -> None:
    learner = mose(4, readout=readout)
    x, stored = batch(7)[0], learner.memory.images[:MEMORY]
    hand = copy.deepcopy(learner).eval()
    with torch.no_grad():
        known, asked = (hand.features(to_float(images)) for images in (stored, x))
    squares = torch.zeros(len(x), 6)
    for h, queries in list(zip(known, asked, strict=True))[0 if readout == "mean" else 3 :]:
        for label in range(6):
            mean = F.normalize(h)[learner.memory.labels[:MEMORY] == label].mean(0)
            squares[:, label] += (F.normalize(queries) - mean / mean.norm()).square().sum(1)
    absent = [label for label in range(6) if label not in learner.memory.labels[:MEMORY].tolist()]
    scores = learner.scores(x)
    squares[:, absent] = torch.inf
    torch.testing.assert_close(-scores, squares.sqrt(), rtol=1e-4, atol=1e-4)


# What it needs


def test_published_settings_and_what_is_refused() -> None:
    config: Any = ocil.resolve("mose", "cifar100").learner
    assert (config.memory_batch, config.current_batch, config.per_class) == (64, 22, 7)
    assert (config.optimizer, config.lr, config.weight_decay) == ("adam", 0.001, 0.0001)
    assert (config.temperature, config.projection, config.crop, config.gray) == (0.07, 128, 0.3, 0.25)
    with pytest.raises(OcilError, match=r"^mose needs task ends, which a stream with boundary = 'none'[^\n]*$"):
        ocil.resolve("mose", "cifar100", settings={"boundary": "none"})
    with pytest.raises(OcilError, match="temperature"):
        make("mose", temperature=0.0)
