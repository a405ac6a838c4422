"""ER-ACE: its mask by enumeration, its head and its views in plain loops, steps by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods._cosine_head import CosineHead
from ocil.methods.er_ace import ERACE, Future, cut, kept_classes, shift_and_flip
from ocil.networks import to_float
from ocil.testing.watch import HostWatch
from tests.reference.datasets import patterned
from tests.test_methods import BATCH, SlowStep, batch, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")

CLASSES = 6
quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)
label_batches = st.lists(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=4), min_size=1, max_size=5)


def er_ace(steps: int, **changes: Any) -> ERACE:
    learner = warm("er-ace", steps, **changes)
    assert isinstance(learner, ERACE)
    return learner


# The mask


def kept_by_hand(history: list[list[int]], future: Future) -> list[bool]:
    """Of the last batch; the batch itself counts as seen."""
    seen = {label for labels in history for label in labels}
    kept = set(history[-1])
    for label in range(CLASSES):
        if (future == "unseen" and label not in seen) or (future == "largest" and label >= max(seen)):
            kept.add(label)
    return [label in kept for label in range(CLASSES)]


@pytest.mark.parametrize("future", ["largest", "unseen"])
@quick
@given(history=label_batches)
def test_kept_classes_by_enumeration(future: Future, history: list[list[int]]) -> None:
    seen = torch.zeros(CLASSES, dtype=torch.bool)
    for labels in history:
        seen[labels] = True
    kept = kept_classes(torch.tensor(history[-1]), seen, future)
    assert kept.tolist() == kept_by_hand(history, future)


@pytest.mark.parametrize(
    ("future", "history", "kept"),
    [
        ("largest", [[1]], [1, 2, 3, 4, 5]),  # 0 will still come, but lies below
        ("unseen", [[1]], [0, 1, 2, 3, 4, 5]),
        ("largest", [[0, 1], [0]], [0, 1, 2, 3, 4, 5]),  # 1 is the largest so far: kept although it is not in the batch
        ("unseen", [[0, 1], [0]], [0, 2, 3, 4, 5]),
        ("largest", [[0, 1], [3]], [3, 4, 5]),  # the batch counts: 2 lies below its largest label
        ("unseen", [[0, 1], [3]], [2, 3, 4, 5]),
        ("largest", [[4, 5], [1]], [1, 5]),  # in another order nothing new lies above
        ("unseen", [[4, 5], [1]], [0, 1, 2, 3]),
    ],
)
def test_kept_classes_in_words(future: Future, history: list[list[int]], kept: list[int]) -> None:
    assert [label for label, is_kept in enumerate(kept_by_hand(history, future)) if is_kept] == kept


def test_the_two_rules_agree_between_tasks_in_ascending_order() -> None:
    """Once all classes of a task were seen, and if the largest one is in the batch."""
    for end in range(1, CLASSES):
        seen = torch.arange(CLASSES) <= end
        y = torch.tensor([end - 1, end])
        assert torch.equal(kept_classes(y, seen, "largest"), kept_classes(y, seen, "unseen"))


@pytest.mark.parametrize("future", ["largest", "unseen"])
def test_the_stream_does_not_push_masked_classes(future: Future, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without replay a step leaves their weights as they were, to the bit, and moves the others."""
    learner = make("er-ace", head="linear", future=future)
    learner.learn(*batch(0))
    monkeypatch.setattr(learner.memory, "retrieve", lambda count: None)
    weight = learner.network.get_parameter("head.weight")
    before = weight.detach().clone()
    x, _ = batch(1)
    y = torch.tensor([4, 4, 2, 2, 4])
    learner.learn(x, y)
    moved = (weight != before).any(1).tolist()
    assert moved == kept_by_hand([batch(0)[1].tolist(), y.tolist()], future)
    assert not all(moved)


def test_seen_classes_are_part_of_the_state() -> None:
    learner = make("er-ace")
    learner.learn(batch(0)[0], torch.tensor([3, 1, 1, 3, 1]))
    assert learner.state()["seen_classes"].nonzero().flatten().tolist() == [1, 3]


# The head


def test_cosine_head_in_loops() -> None:
    head = CosineHead(7, CLASSES, scale=10.0).double()
    x = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-4  # eps must show
    logits = head(x).detach()
    weight = head.weight.tolist()
    for i, row in enumerate(x.tolist()):
        for j, column in enumerate(weight):
            norms = [math.sqrt(sum(value * value for value in vector)) + 1e-5 for vector in (row, column)]
            inner = sum(a * b for a, b in zip(row, column, strict=True))
            assert float(logits[i, j]) == pytest.approx(10 * inner / math.prod(norms), rel=1e-9)


def test_cosine_head_has_no_bias_and_is_bounded() -> None:
    head = make("er-ace", scale=3.0).network.head
    assert [name for name, _ in head.named_parameters()] == ["weight"]
    weight = head.get_parameter("weight")
    feature = torch.rand(1, weight.shape[1])
    aligned = head(weight[2:3] * 50)
    assert float(aligned[0, 2].detach()) == pytest.approx(3.0, rel=1e-4)
    torch.testing.assert_close(head(feature), head(100 * feature), rtol=1e-3, atol=1e-4)
    assert head(torch.zeros_like(feature)).abs().max() == 0


def test_only_the_head_depends_on_the_kind_of_head() -> None:
    cosine, linear = (make("er-ace", head=head).network for head in ("cosine", "linear"))
    assert isinstance(linear.head, torch.nn.Linear)
    for (name, a), (_, b) in zip(cosine.named_parameters(), linear.named_parameters(), strict=False):
        assert name.startswith("head.") or torch.equal(a, b)


# The views


def test_views_in_loops() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(1, 256, (9, 6, 5, 3), dtype=np.uint8)
    top, left, flipped = rng.integers(0, 9, 9), rng.integers(0, 9, 9), rng.integers(0, 2, 9).astype(bool)
    got = cut(torch.from_numpy(x), 4, *(torch.from_numpy(array) for array in (top, left, flipped)))
    for image, view, i, j, mirror in zip(x, got.numpy(), top, left, flipped, strict=True):
        expected = np.pad(image, ((4, 4), (4, 4), (0, 0)))[i : i + 6, j : j + 5]
        np.testing.assert_array_equal(view, expected[:, ::-1] if mirror else expected)


def test_views_are_drawn_for_each_image() -> None:
    x = torch.zeros(3000, 6, 6, 1, dtype=torch.uint8)
    x[:, 2, 2] = 255
    views = shift_and_flip(x, 2, torch.Generator().manual_seed(0))
    share = (views[..., 0] == 255).double().mean(0)
    # Row 2 moves to rows 0 to 4, each in a fifth of the images; column 2 too, or to columns 1 to 5 where mirrored.
    torch.testing.assert_close(share.sum(1), torch.tensor([0.2] * 5 + [0]).double(), atol=0.03, rtol=0)
    torch.testing.assert_close(share.sum(0), torch.tensor([0.1, *[0.2] * 4, 0.1]).double(), atol=0.03, rtol=0)
    assert torch.equal(views, shift_and_flip(x, 2, torch.Generator().manual_seed(0)))


def test_the_border_is_black_whatever_the_inputs() -> None:
    white = torch.full((8, 8, 8, 3), 255, dtype=torch.uint8)
    for inputs, black in (("signed", -1.0), ("unit", 0.0)):
        learner = make("er-ace", inputs=inputs)
        assert isinstance(learner, ERACE)
        images = learner.prepare(white, augmented=True)
        assert images.unique().tolist() == [black, 1.0]
        assert images.is_contiguous(memory_format=torch.channels_last)


# The step


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"head": "linear", "inputs": "unit"},
        {"future": "unseen"},
        {"augment": "none"},
        {"augment": "memory"},
        {"augment": "both", "pad": 2, "scale": 5.0},
    ],
)
def test_a_step_by_hand(settings: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = er_ace(steps, lr=0.07, **settings)
    slow, config = SlowStep(learner), learner.config
    draws = record(learner.memory, "retrieve", monkeypatch)
    views = record(ocil.methods.er_ace, "shift_and_flip", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)

    def logits(images: Tensor) -> Tensor:
        pixels = images.permute(0, 3, 1, 2) / 255
        return slow.logits(pixels * 2 - 1 if config.inputs == "signed" else pixels)

    if config.augment == "both":
        x = views.pop(0)
    kept = kept_by_hand([batch(number)[1].tolist() for number in range(steps + 1)], config.future)
    stream, picked = logits(x), [label for label in range(CLASSES) if kept[label]]
    shares = [row[label].exp() / row[picked].exp().sum() for row, label in zip(stream, y.tolist(), strict=True)]
    slow.minimise(-torch.stack(shares).log().mean())
    (draw,) = draws
    if draw is not None:
        replayed = draw[0] if config.augment == "none" else views.pop(0)
        slow.minimise(F.cross_entropy(logits(replayed), draw[1]))
    assert views == []
    slow.agrees()


@pytest.mark.parametrize("augmented", [True, False])
def test_a_review_sees_all_classes_and_is_augmented_by_default(
    augmented: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = er_ace(3) if augmented else er_ace(3, review_augment=False)
    slow = SlowStep(learner)
    views = record(ocil.methods.er_ace, "shift_and_flip", monkeypatch)
    slots = torch.arange(6)
    learner.review_step(slots)
    assert len(views) == int(augmented)
    x = views[0] if augmented else learner.memory.images[slots]
    slow.minimise(F.cross_entropy(slow.logits(to_float(x) * 2 - 1), learner.memory.labels[slots]))
    slow.rate *= 0.1
    slow.agrees()


@pytest.mark.parametrize("inputs", ["signed", "unit"])
def test_scores_see_what_the_step_sees(inputs: str) -> None:
    learner = er_ace(3, inputs=inputs)
    x = batch(5)[0]
    scores = learner.scores(x)
    learner.network.eval()
    expected = learner.network(to_float(x) * 2 - 1 if inputs == "signed" else to_float(x))
    torch.testing.assert_close(scores, expected.detach())


@pytest.mark.parametrize("settings", [{"future": "unseen", "augment": "both"}, {"head": "linear", "augment": "memory"}])
def test_nothing_is_read_with_other_settings(settings: dict[str, Any]) -> None:
    learner = er_ace(4, **settings)
    x, y = batch(4)
    with HostWatch() as watch:
        learner.learn(x, y)
    assert len(watch.trace) > 100


# What it is for


@pytest.mark.slow
def test_old_classes_survive_a_new_task() -> None:
    """Mean accuracy on the first task during the second: replay alone lets it drop, the asymmetric loss does not."""
    data = patterned(per_class=40)
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=2, batch_size=BATCH), seed=0)
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    old = y < 2
    mean = {}
    for name, changes in (("er-ace", {"pad": 0}), ("er", {})):
        learner = make(name, data=data, width=4, memory=40, lr=0.03, **changes)
        accuracy = []
        for number, part in enumerate(stream):
            learner.learn(part.x, part.y)
            if number >= len(stream) // 2:
                accuracy.append(float((learner.scores(x[old]).argmax(1) == y[old]).double().mean()))
        mean[name] = sum(accuracy) / len(accuracy)
        assert (learner.scores(x[~old]).argmax(1) == y[~old]).double().mean() > 0.4
    assert mean["er-ace"] > 0.8
    assert mean["er-ace"] > mean["er"] + 0.15


def test_settings() -> None:
    config = ocil.resolve("er-ace", "cifar100", memory=5000).learner
    assert (config.lr, config.memory_batch, config.review) == (0.1, 10, False)
    chosen = {name: getattr(config, name) for name in ("future", "head", "inputs", "augment", "review_augment")}
    assert list(chosen.values()) == ["largest", "cosine", "signed", "both", True]
    for wrong in ({"future": "all"}, {"head": "mlp"}, {"inputs": "raw"}, {"augment": "yes"}, {"pad": -1}):
        with pytest.raises(OcilError, match=next(iter(wrong))):
            make("er-ace", **wrong)
