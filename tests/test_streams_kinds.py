"""Kinds of streams by their definitions: every share is counted again from the batches that arrive."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from ocil import Dataset, OcilError, Stream, StreamConfig
from ocil.data import load
from ocil.streams import KINDS
from ocil.streams.choices import Boundary
from ocil.streams.i_blurry import choose_disjoint
from ocil.streams.kinds import sizes_vary
from ocil.streams.si_blurry import fill_empty
from tests.reference.datasets import numbered

EVEN = numbered([40] * 10)
UNEVEN = numbered([13, 27, 18, 31, 19, 11, 22, 40, 15, 30])
NEW = ("i-blurry", "si-blurry", "repeated")
KNOWN: dict[str, tuple[str, str]] = {
    "clear": ("4efa33a0cd47", "df264652141c"),
    "blurry": ("882ab43ca424", "e9fcd80090d3"),
    "none": ("74ba8ecb6c4b", "c7b1a3f541b2"),
    "iid": ("7f2a268b8105", "c65c44398dc1"),
    "i-blurry": ("03a7198bc6e8", "a4990b650cdf"),
    "si-blurry": ("4209c5ef6ee7", "67fd985202fb"),
    "repeated": ("1918ab0c9411", "974b18a472a6"),
}
"""Digests of orders by seeds 0 and 3: results depend on them."""


def stream_of(data: Dataset = EVEN, seed: int = 0, **settings: Any) -> Stream:
    return Stream(data, StreamConfig(**{"tasks": 5, "batch_size": 7, "drop_last": False} | settings), seed)


def samples(stream: Stream) -> list[int]:
    """The numbers of the samples in the order of their arrival, read from their pixels."""
    rows = torch.cat([batch.x.view(-1, 3) for batch in stream]).long()
    return (rows[:, 0] + 256 * rows[:, 1]).tolist()


def per_task(stream: Stream, classes: int = 10) -> np.ndarray:
    """``[tasks, classes]``: how many samples of each class arrive between two evaluation points."""
    counts = [np.zeros(classes, int)]
    for batch in stream:
        np.add.at(counts[-1], batch.y.numpy(), 1)
        if batch.evaluation_point is not None:
            counts.append(np.zeros(classes, int))
    assert not counts.pop().any(), "samples after the last evaluation point"
    return np.stack(counts)


def test_the_table_has_every_kind() -> None:
    assert tuple(KINDS) == get_args(Boundary)
    fields = set(StreamConfig.__dataclass_fields__)
    for kind in KINDS.values():
        assert kind.draw.__module__.startswith("ocil.streams.")
        assert set(kind.settings) <= fields


@pytest.mark.parametrize("boundary", KNOWN)
def test_orders_that_results_depend_on_have_not_changed(boundary: Any) -> None:
    data = numbered([13, 27, 8, 31, 19, 11, 22])
    epochs = 2 if boundary == "iid" else 1
    config = StreamConfig(3, 5, "fixed", boundary, epochs=epochs)
    assert tuple(Stream(data, config, seed).arrivals.digest for seed in (0, 3)) == KNOWN[boundary]


@pytest.mark.parametrize(
    ("settings", "digests"),
    [
        ({"label_noise": 0.3}, ("0707d0244295", "9834fed3a5e8")),
        ({"label_noise": 0.3, "noise_among": "task"}, ("bba62ae31bde", "f5c870e01c48")),
        ({"imbalance_factor": 10.0}, ("e9707eeeeaab", "73b5d2cb08dc")),
        ({"imbalance_factor": 10.0, "imbalance_order": "seeded"}, ("d888b5801ffb", "9957ebedd103")),
        ({"class_order": "seeded"}, ("8ce2a9606a1d", "d48a4f0a53f8")),
    ],
)
def test_draws_that_results_depend_on_have_not_changed(settings: dict[str, Any], digests: tuple[str, str]) -> None:
    """Wrong labels, long tails and shuffled classes, by seeds 0 and 3."""
    data = numbered([13, 27, 8, 31, 19, 11, 22])
    assert tuple(Stream(data, StreamConfig(3, 5, **settings), seed).arrivals.digest for seed in (0, 3)) == digests


@pytest.mark.parametrize(
    ("settings", "vary"),
    [
        ({}, False),
        ({"class_order": "seeded"}, True),
        ({"boundary": "si-blurry"}, True),
        ({"imbalance_factor": 10.0}, False),
        ({"imbalance_order": "seeded"}, False),  # of a stream without a tail
        ({"imbalance_factor": 10.0, "imbalance_order": "seeded"}, True),
    ],
)
def test_which_streams_may_differ_in_length_by_seed(settings: dict[str, Any], vary: bool) -> None:
    assert sizes_vary(StreamConfig(**settings)) is vary


# Every new kind


@pytest.mark.parametrize("boundary", NEW)
@pytest.mark.parametrize("data", [EVEN, UNEVEN])
def test_each_sample_comes_once_and_the_seed_decides(boundary: Any, data: Dataset) -> None:
    first, again, other = (samples(stream_of(data, seed, boundary=boundary)) for seed in (4, 4, 5))
    assert sorted(first) == list(range(len(data.train_y)))
    assert first == again
    assert first != other


@pytest.mark.parametrize("boundary", NEW)
def test_groups_part_the_classes_and_points_are_complete(boundary: Any) -> None:
    stream = stream_of(UNEVEN, 3, boundary=boundary, class_order="seeded", drop_last=True)
    assert sorted(itertools.chain(*stream.groups)) == list(range(10))
    assert [b.evaluation_point for b in stream if b.evaluation_point is not None] == [0, 1, 2, 3, 4]
    assert {len(batch.y) for batch in stream} == {7}


# i-Blurry


@pytest.mark.parametrize(("disjoint", "blurry"), [(0.5, 0.1), (0.0, 0.3), (1.0, 0.5), (0.3, 1.0)])
def test_i_blurry_has_its_two_shares(disjoint: float, blurry: float) -> None:
    data = numbered([40] * 10)
    shares = {"disjoint_share": disjoint, "blurry_share": blurry}
    stream = stream_of(data, 2, boundary="i-blurry", task_ends="announced", **shares)
    counts = per_task(stream)
    major = {c: task for task, group in enumerate(stream.groups) for c in group}
    elsewhere = {c: int(counts[:, c].sum() - counts[major[c], c]) for c in range(10)}
    moved = round(blurry * 40)
    spread = [c for c in range(10) if elsewhere[c]]
    assert len(spread) == 10 - round(disjoint * 10)
    for c in spread:
        assert elsewhere[c] == moved
        others = [counts[task, c] for task in range(5) if task != major[c]]
        assert max(others) - min(others) <= 1, "the rest is spread evenly"
    per_group = [sum(c in spread for c in group) for group in stream.groups]
    assert max(per_group) - min(per_group) <= 1


def test_which_classes_are_disjoint_depends_on_the_seed() -> None:
    found = set()
    for seed in range(8):
        counts = per_task(stream_of(EVEN, seed, boundary="i-blurry", task_ends="announced"))
        found.add(tuple((counts > 0).sum(0) == 1))
    assert len(found) > 4


def test_tasks_of_one_class_are_disjoint_by_chance() -> None:
    """Not always the first ones: half of ten tasks is to be rounded up."""
    drawn = [choose_disjoint([[c] for c in range(10)], 0.5, np.random.default_rng(seed)) for seed in range(200)]
    assert {len(one) for one in drawn} == {5}
    counts = np.bincount([c for one in drawn for c in one], minlength=10)
    assert (np.abs(counts - 100) < 4.5 * np.sqrt(50)).all()


def test_one_task_has_nowhere_to_move_samples_to() -> None:
    stream = stream_of(EVEN, boundary="i-blurry", tasks=1)
    assert per_task(stream).tolist() == [[40] * 10]


# Si-Blurry


def test_si_blurry_draws_sizes_and_keeps_the_shares() -> None:
    data, sizes, foreign = numbered([40] * 20), [], []
    for seed in range(20):
        stream = stream_of(data, seed, boundary="si-blurry", blurry_share=0.25, task_ends="announced")
        counts = per_task(stream, 20)
        sizes.append(tuple(map(len, stream.groups)))
        assert all(stream.groups)
        major = np.array([next(t for t, group in enumerate(stream.groups) if c in group) for c in range(20)])
        elsewhere = counts.sum(0) - counts[major, np.arange(20)]
        assert np.count_nonzero(elsewhere) <= 10, "half of the classes are disjoint"
        foreign.append(elsewhere.sum())
        totals = [sum(40 for _ in group) for group in stream.groups]
        assert counts.sum(1).tolist() == totals, "a task gets as many samples as it gives"
    assert len(set(sizes)) > 15
    assert max(max(each) for each in sizes) > 6 > 2 > min(min(each) for each in sizes)
    assert min(foreign) > 0
    assert max(foreign) <= 0.25 * 10 * 40


def test_si_blurry_with_as_many_tasks_as_classes() -> None:
    stream = stream_of(EVEN, 1, boundary="si-blurry", tasks=10)
    assert [len(group) for group in stream.groups] == [1] * 10


@pytest.mark.parametrize(
    ("alone", "shared", "expected"),
    [
        ([1, 0, 4, 0, 2], [1, 0, 1, 0, 2], ([1, 1, 2, 1, 2], [1, 0, 1, 0, 2])),
        ([1, 0, 2, 0], [1, 0, 2, 0], ([1, 0, 1, 1], [1, 1, 1, 0])),
    ],
)
def test_a_task_without_classes_gets_one_of_the_largest(
    alone: list[int], shared: list[int], expected: tuple[list[int], list[int]]
) -> None:
    """A disjoint class where the largest task has more of these, else a blurry one. Others keep what they have."""
    fill_empty(alone, shared)
    assert (alone, shared) == expected


# Repeated classes


def test_repeated_classes_return_with_new_samples() -> None:
    data = numbered([60] * 10)
    shares = []
    for seed in range(10):
        stream = stream_of(data, seed, boundary="repeated", return_share=0.4)
        counts = per_task(stream)
        for task, group in enumerate(stream.groups):
            for c in group:
                assert not counts[:task, c].any(), "nothing comes before its own task"
                there = counts[task:, c][counts[task:, c] > 0]
                assert there.sum() == 60
                assert there.max() - there.min() <= 1
                assert counts[task, c]
                shares += (counts[task + 1 :, c] > 0).tolist()
    assert np.mean(shares) == pytest.approx(0.4, abs=0.06)
    assert (per_task(stream_of(data, boundary="repeated", return_share=0.0)) > 0).sum() == 10
    always = per_task(stream_of(data, boundary="repeated", return_share=1.0))
    assert (always > 0).sum(1).tolist() == [2, 4, 6, 8, 10]


# Sizes and order of tasks


def test_task_sizes_and_a_larger_first_task() -> None:
    assert [len(g) for g in stream_of(task_sizes=[5, 1, 1, 3]).groups] == [5, 1, 1, 3]
    assert stream_of(task_sizes=(5, 1, 1, 3)).config.tasks == 4
    assert [len(g) for g in stream_of(tasks=4, first_task=5).groups] == [5, 2, 2, 1]
    assert [len(g) for g in stream_of(tasks=1, first_task=10).groups] == [10]
    for boundary in ("clear", "blurry", "none", "i-blurry", "repeated"):
        stream = stream_of(task_sizes=(7, 3), boundary=boundary)
        assert stream.evaluation_points == 2
        assert stream.groups == [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9]]


def test_a_given_order_by_names_numbers_or_a_file(tmp_path: Path) -> None:
    order = [3, 9, 0, 1, 2, 8, 7, 6, 5, 4]
    names = [f"class {c}" for c in order]
    (tmp_path / "order.txt").write_text("\n".join(names) + "\n\n")
    for given in (tuple(map(str, order)), tuple(names), (str(tmp_path / "order.txt"),)):
        stream = stream_of(arrival_order=given)
        assert list(itertools.chain(*stream.groups)) == order
        assert samples(stream)[:80] != samples(stream_of())[:80]
    assert StreamConfig(arrival_order=(str(tmp_path / "order.txt"),)).arrival_order == tuple(names)


# Long tails


def test_an_exponential_long_tail() -> None:
    data = numbered([200] * 5)
    stream = stream_of(data, tasks=5, imbalance_factor=100.0)
    counts = per_task(stream, 5).sum(0)
    assert counts.tolist() == [200, 63, 20, 6, 2]  # 200 / 100 ** (i / 4), rounded down
    assert len(set(samples(stream))) == 291
    seeded = [
        per_task(stream_of(data, seed, imbalance_factor=100.0, imbalance_order="seeded"), 5).sum(0) for seed in range(6)
    ]
    assert all(sorted(each) == [2, 6, 20, 63, 200] for each in seeded)
    assert len({tuple(each) for each in seeded}) > 3
    assert set(samples(stream_of(data, 1, imbalance_factor=100.0))) != set(samples(stream))


def test_the_tail_follows_the_given_order_and_never_exceeds_what_is_there() -> None:
    stream = stream_of(numbered([100, 20, 50]), tasks=3, imbalance_factor=4.0, arrival_order=("2", "1", "0"))
    assert per_task(stream, 3).sum(0).tolist() == [25, 20, 50]


def test_given_counts() -> None:
    wanted = [5, 40, 1, 2, 3, 4, 6, 7, 8, 9]
    stream = stream_of(class_counts=wanted, tasks=2)
    assert per_task(stream).sum(0).tolist() == wanted
    assert (np.bincount(stream.data.test_y) == 1).all()


def test_given_counts_are_shuffled_by_the_seed_and_never_exceed_what_is_there() -> None:
    data, wanted = numbered([40] * 9 + [3]), [5, 40, 1, 2, 3, 4, 6, 7, 8, 9]
    streams = [stream_of(data, seed, class_counts=wanted, imbalance_order="seeded", tasks=2) for seed in range(4)]
    found = [per_task(stream).sum(0).tolist() for stream in streams]
    assert len(set(map(tuple, found))) == 4
    for counts in found:
        assert counts[-1] <= 3
        assert len(set(counts[:-1]) - set(wanted)) == 0


# Label noise


def test_label_noise_is_exact_symmetric_and_seeded() -> None:
    data = numbered([100] * 10)
    stream = stream_of(data, 1, label_noise=0.3)
    x, given = (torch.cat(parts) for parts in zip(*((b.x.view(-1, 3), b.y) for b in stream), strict=True))
    true = x[:, 2].long()
    wrong = given != true
    assert int(wrong.sum()) == 300
    into = np.bincount(given[wrong].numpy(), minlength=10)
    assert into.min() > 12  # 30 each on average
    assert into.max() < 55
    assert (stream.data.train_y == data.train_y).all()
    assert (stream.given_labels != stream_of(data, 2, label_noise=0.3).given_labels).any()
    assert (stream.given_labels == stream_of(data, 1, label_noise=0.3, boundary="none").given_labels).all()
    assert samples(stream) == samples(stream_of(data, 1)), "the order is that without noise"


def test_label_noise_within_the_task() -> None:
    stream = stream_of(numbered([50] * 10), 1, label_noise=1.0, noise_among="task", tasks=5)
    for batch in stream:
        true = batch.x.view(-1, 3)[:, 2].long()
        assert torch.equal(true // 2, batch.y // 2)
        assert not (true == batch.y).any()
    with pytest.raises(OcilError, match="'class 0' stands alone: use noise_among = 'all'"):
        stream_of(label_noise=0.1, noise_among="task", tasks=10)


def test_noisy_streams_share_the_images_on_a_device() -> None:
    first = stream_of(label_noise=0.5)
    second = Stream(EVEN, first.config, 1, resident=first.device_data)
    assert first.device_data.train_x is second.device_data.train_x
    assert (first.given_labels != second.given_labels).any()
    away = Stream(EVEN, first.config, 0, resident=None)
    away.device_data = type(away.device_data)(EVEN, "cpu", resident=False)
    for one, other in zip(first, away, strict=True):
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.x, other.x)
    away.close()


# Order files


@pytest.mark.parametrize(
    "settings",
    [{"boundary": "i-blurry"}, {"label_noise": 0.4}, {"task_ends": "hidden"}, {"imbalance_factor": 5.0}],
)
def test_an_order_file_keeps_kinds_noise_and_task_ends(settings: dict[str, Any], tmp_path: Path) -> None:
    first = stream_of(UNEVEN, 3, **settings)
    first.save_order(tmp_path / "order.npz")
    again = Stream(UNEVEN, StreamConfig(order=str(tmp_path / "order.npz")), seed=9)
    assert samples(again) == samples(first)
    assert torch.equal(torch.cat([b.y for b in again]), torch.cat([b.y for b in first]))
    assert again.announces_tasks == first.announces_tasks
    assert again.fingerprint == first.fingerprint
    with pytest.raises(OcilError, match="leave out label_noise"):
        StreamConfig(order=str(tmp_path / "order.npz"), label_noise=0.1)


# Task ends


@pytest.mark.parametrize("boundary", list(KINDS))
def test_who_announces_task_ends(boundary: Any) -> None:
    usual = stream_of(boundary=boundary)
    assert usual.announces_tasks == (boundary in ("clear", "blurry", "iid", "repeated"))
    hidden = stream_of(boundary=boundary, task_ends="hidden")
    assert not any(batch.ends_task for batch in hidden)
    assert hidden.evaluation_points == usual.evaluation_points
    if boundary != "none":
        announced = stream_of(boundary=boundary, task_ends="announced")
        assert sum(batch.ends_task for batch in announced) == announced.evaluation_points


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_sizes": (3, 3)}, "task_sizes = 3,3 is 6 classes, and numbered has 10"),
        ({"task_sizes": (10, 0)}, "at least 1"),
        ({"task_sizes": "4,6"}, "not a list of whole numbers"),
        ({"task_sizes": (5, 5), "first_task": 3}, "leave out first_task"),
        ({"first_task": 8, "tasks": 4}, "first_task = 8 leaves 2 of 10 for the 3 others"),
        ({"first_task": 11, "tasks": 2}, "leaves 0"),
        ({"first_task": 9, "tasks": 1}, "first_task = 9"),
        ({"first_task": -1}, "first_task = -1 must be at least 0"),
        ({"arrival_order": ("0", "1", "cat")}, "'cat', which is neither"),
        ({"arrival_order": ("0", "1", "Class 2")}, "Did you mean 'class 2'"),
        ({"arrival_order": ("0", "1")}, "'class 2' not at all"),
        ({"arrival_order": tuple("0123456788")}, "'class 8' twice"),
        ({"arrival_order": ("no-such.txt",)}, "cannot read"),
        ({"arrival_order": ("0",), "class_order": "seeded"}, "leave one out"),
        ({"boundary": "si-blurry", "first_task": 2}, "draws the task sizes"),
        ({"boundary": "none", "task_ends": "announced"}, "no task ends"),
        ({"imbalance_factor": 0.5}, "at least 1"),
        ({"imbalance_factor": float("nan")}, "at least 1"),
        ({"imbalance_factor": float("inf")}, "at least 1"),
        ({"class_counts": (1, 2)}, "2 numbers, and numbered has 10 classes"),
        ({"class_counts": (41, *[1] * 9)}, "41 samples of 'class 0', which has 40"),
        ({"class_counts": (1,) * 10, "imbalance_factor": 2.0}, "leave one out"),
        ({"boundary": "none", "fade": 1e308}, "from 0 to 1,000,000"),
        (
            {"boundary": "none", "batch_size": 100},
            "makes 4 batches of the 400 samples of numbered, .* evaluate 5 times",
        ),
        (
            {"batch_size": 79, "task_ends": "hidden", "drop_last": True},
            "lets two tasks of numbered end in the same batch",
        ),
        ({"boundary": "iid", "batch_size": 500, "drop_last": True}, "makes 0 batches of the 400 samples"),
        ({"batch_size": 81, "drop_last": True}, "holds, 80 samples: give smaller batches or fewer tasks, or drop_last"),
        (
            {"imbalance_factor": 10.0, "batch_size": 50, "drop_last": True},
            "holds, .* fewer tasks or less than imbalance_factor = 10, or drop_last",
        ),
        ({"label_noise": float("nan")}, "from 0 to 1"),
        ({"disjoint_share": 1.5}, "from 0 to 1"),
        ({"return_share": -0.1}, "from 0 to 1"),
        ({"scenario": "domain"}, "needs a dataset with domains"),
        ({"scenario": "task"}, "is not one of class, domain"),
        ({"tasks": 11}, "more than the 10 classes"),
        ({"tasks": "3"}, "tasks = '3' is not a whole number"),
        ({"batch_size": 2.0}, "batch_size = '2.0' is not a whole number"),
        ({"first_task": True}, "first_task = 'True' is not a whole number"),
        ({"evaluate_every": 2.5}, "evaluate_every = '2.5' is not a whole number"),
        ({"fade": None}, "fade = 'None' is not a number"),
        ({"imbalance_factor": "2"}, "imbalance_factor = '2' is not a number"),
        ({"drop_last": "no"}, "drop_last = 'no' is not true or false"),
        ({"order": 5}, "order = '5' is not text"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OcilError, match=message) as caught:
        stream_of(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [1.0, "1", None, -1, 2**64])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(OcilError, match="seed = "):
        Stream(EVEN, StreamConfig(), seed)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    numbers: Any = {"tasks": np.int64(2), "evaluate_every": np.int32(3)}
    config = StreamConfig(**numbers)
    assert config == StreamConfig(tasks=2, evaluate_every=3)
    assert type(config.tasks) is int


def test_the_embedded_data_has_no_sample_twice_in_any_kind() -> None:
    data = load()
    for boundary in KINDS:
        chosen = Stream(data, StreamConfig(boundary=boundary), 0).arrivals
        assert max(Counter(chosen.samples.tolist()).values()) == 1
