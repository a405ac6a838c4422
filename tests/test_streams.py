"""Streams: which images arrive, in which order, and where a stream can be taken up again."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ocil.errors import OcilError
from ocil.streams import Batch, Stream, StreamConfig
from tests.reference.datasets import numbered

quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)
BOUNDARIES = ("clear", "blurry", "none", "iid")
every_boundary = pytest.mark.parametrize("boundary", BOUNDARIES)
EVEN = numbered([20] * 6)
UNEVEN = numbered([13, 27, 8, 31, 19, 11, 22])


def stream_of(data: Any = EVEN, seed: int = 0, **settings: Any) -> Stream:
    return Stream(data, StreamConfig(**{"tasks": 3, "batch_size": 7, "drop_last": False} | settings), seed)


def numbers(batch: Batch) -> list[int]:
    """Which samples of the dataset these are; checks that images and labels belong together."""
    low, high, label = batch.x.view(-1, 3).long().unbind(1)
    assert torch.equal(label, batch.y)
    return (low + 256 * high).tolist()


def order(stream: Stream) -> list[int]:
    return [number for batch in stream for number in numbers(batch)]


def comparable(batch: Batch) -> tuple[Any, ...]:
    return numbers(batch), batch.y.tolist(), batch.number, batch.evaluation_point, batch.ends_task


def by_task(stream: Stream) -> list[list[Batch]]:
    tasks: list[list[Batch]] = [[]]
    for batch in stream:
        tasks[-1].append(batch)
        if batch.evaluation_point is not None:
            tasks.append([])
    assert tasks.pop() == [], "batches after the last evaluation point"
    return tasks


# Tasks


@given(st.integers(1, 7), st.sampled_from(["fixed", "seeded"]), st.integers(0, 3))
@quick
def test_groups_part_the_classes(tasks: int, class_order: str, seed: int) -> None:
    groups = stream_of(UNEVEN, seed, tasks=tasks, class_order=class_order).groups
    assert len(groups) == tasks
    assert sorted(itertools.chain(*groups)) == list(range(7))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_fixed_order_is_ascending() -> None:
    assert stream_of(seed=3).groups == [[0, 1], [2, 3], [4, 5]]


def test_seeded_order_depends_on_the_seed_and_on_nothing_else() -> None:
    def classes(seed: int, **settings: Any) -> list[int]:
        return list(itertools.chain(*stream_of(seed=seed, class_order="seeded", **settings).groups))

    plain = classes(1)
    others: list[dict[str, Any]] = [
        {"tasks": 2},
        {"batch_size": 3},
        {"boundary": "blurry"},
        {"boundary": "blurry", "blurry_share": 0.5},
        {"boundary": "none", "fade": 2.0},
        {"boundary": "iid", "epochs": 3},
        {"drop_last": True},
    ]
    assert all(classes(1, **settings) == plain for settings in others)
    assert len({tuple(classes(seed)) for seed in range(8)}) > 5


@pytest.mark.parametrize("class_order", ["fixed", "seeded"])
def test_clear_tasks_come_one_after_the_other(class_order: str) -> None:
    stream = stream_of(UNEVEN, seed=2, class_order=class_order)
    tasks = by_task(stream)
    assert len(tasks) == stream.evaluation_points == 3
    for group, batches in zip(stream.groups, tasks, strict=True):
        labels = torch.cat([batch.y for batch in batches]).tolist()
        assert Counter(labels) == {c: int((UNEVEN.train_y == c).sum()) for c in group}
        last = batches[-1]
        assert last.ends_task
        assert last.evaluation_point is not None
        assert not any(batch.ends_task for batch in batches[:-1])
    assert [batches[-1].evaluation_point for batches in tasks] == [0, 1, 2]


def test_batches_are_full_but_for_the_last_of_a_task() -> None:
    for batches in by_task(stream_of(UNEVEN)):
        lengths = [len(batch.y) for batch in batches]
        assert lengths[:-1] == [7] * (len(lengths) - 1)
        assert 1 <= lengths[-1] <= 7


def test_tasks_are_shuffled_inside() -> None:
    first = [number for batch in by_task(stream_of())[0] for number in numbers(batch)]
    in_file_order = np.flatnonzero(np.isin(EVEN.train_y, [0, 1])).tolist()
    assert sorted(first) == in_file_order
    assert first != in_file_order
    labels = EVEN.train_y[first]
    assert 5 < (labels[1:] != labels[:-1]).sum() < 35  # classes are mixed, not one after the other


# One pass


@every_boundary
@given(st.integers(1, 18), st.integers(1, 7), st.integers(0, 3))
@quick
def test_each_sample_comes_once(boundary: str, batch_size: int, tasks: int, seed: int) -> None:
    stream = stream_of(UNEVEN, seed, boundary=boundary, batch_size=batch_size, tasks=tasks)
    assert sorted(order(stream)) == list(range(len(UNEVEN.train_y)))
    assert len(stream) == sum(1 for _ in stream)
    assert [batch.number for batch in stream] == list(range(len(stream)))


@every_boundary
def test_drop_last_drops_only_incomplete_batches(boundary: str) -> None:
    whole, cut = (stream_of(UNEVEN, boundary=boundary, drop_last=drop) for drop in (False, True))
    full = [numbers(batch) for batch in whole if len(batch.y) == 7]
    assert [numbers(batch) for batch in cut] == full
    assert {len(batch.y) for batch in cut} == {7}
    pieces = 3 if boundary in ("clear", "blurry") else 1
    lost = len(UNEVEN.train_y) - 7 * len(full)
    assert 0 < lost <= 6 * pieces
    assert cut.evaluation_points == whole.evaluation_points
    assert [batch.evaluation_point for batch in cut if batch.evaluation_point is not None] == list(
        range(cut.evaluation_points)
    )


@pytest.mark.parametrize("boundary", ["clear", "i-blurry", "si-blurry"])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_hidden_task_ends_do_not_show_in_the_batches(boundary: str, drop: bool, seed: int) -> None:
    whole = stream_of(UNEVEN, seed, boundary=boundary, task_ends="announced")
    hidden = stream_of(UNEVEN, seed, boundary=boundary, task_ends="hidden", drop_last=drop)
    arrivals, count = order(whole), len(UNEVEN.train_y)
    assert order(hidden) == arrivals[: count - count % 7 if drop else count]
    assert {len(batch.y) for batch in itertools.islice(hidden, len(hidden) - 1)} == {7}
    ends = list(itertools.accumulate(sum(len(batch.y) for batch in task) for task in by_task(whole)))
    last = [arrivals[end - 1] for end in ends[:-1]]  # the last sample of each task but the last one
    at_points = [numbers(batch) for batch in hidden if batch.evaluation_point is not None]
    assert all(sample in batch for sample, batch in zip(last, at_points[:-1], strict=True))
    assert at_points[-1] == numbers(list(hidden)[-1])
    assert not any(batch.ends_task for batch in hidden)


def test_batches_that_fit_lose_nothing() -> None:
    assert sorted(order(stream_of(batch_size=8, drop_last=True))) == list(range(120))


# Seeds and resuming


@every_boundary
def test_the_seed_decides_everything(boundary: str) -> None:
    first, again, other = (stream_of(boundary=boundary, seed=seed) for seed in (4, 4, 5))
    assert list(map(comparable, first)) == list(map(comparable, again))
    assert order(first) != order(other)


def test_a_stream_may_be_read_twice_and_ignores_global_generators() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    stream = stream_of(boundary="blurry")
    first = list(map(comparable, stream))
    torch.rand(3)
    assert list(map(comparable, stream)) == first
    assert list(map(comparable, stream_of(boundary="blurry"))) == first


@every_boundary
@given(st.data())
@quick
def test_batches_go_on_from_anywhere(boundary: str, data: st.DataObject) -> None:
    stream = stream_of(
        UNEVEN,
        data.draw(st.integers(0, 3)),
        boundary=boundary,
        drop_last=data.draw(st.booleans()),
        tasks=data.draw(st.integers(1, 3)),
        epochs=2 if boundary == "iid" else 1,
    )
    start = data.draw(st.integers(0, len(stream)))
    whole = list(map(comparable, stream))
    assert list(map(comparable, stream.batches(start))) == whole[start:]


# Blurry


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_blurry_tasks_keep_their_size_and_take_a_share_from_others(share: float) -> None:
    data = numbered([200] * 6)
    stream = stream_of(data, boundary="blurry", blurry_share=share, batch_size=10)
    tasks = by_task(stream)
    strangers = []
    for group, batches in zip(stream.groups, tasks, strict=True):
        labels = torch.cat([batch.y for batch in batches]).numpy()
        assert len(labels) == 400
        assert batches[-1].ends_task
        strangers.append(float((~np.isin(labels, group)).mean()))
    # Of a dealt sample's three homes one is its own: two thirds of the share end up as strangers.
    assert np.mean(strangers) == pytest.approx(share * 2 / 3, abs=0.04)
    if share == 0:
        assert strangers == [0, 0, 0]


def test_strangers_are_spread_over_a_blurry_task() -> None:
    stream = stream_of(numbered([200] * 4), tasks=2, boundary="blurry", blurry_share=0.4, batch_size=10)
    labels = torch.cat([batch.y for batch in by_task(stream)[0]]).numpy()
    halves = [(half >= 2).mean() for half in np.split(labels, 2)]
    assert halves[0] == pytest.approx(halves[1], abs=0.12)


# No boundaries


def test_without_boundaries_nobody_announces_and_evaluation_points_are_equally_spaced() -> None:
    stream = stream_of(numbered([50] * 6), boundary="none", tasks=5, batch_size=7)
    marks = {batch.number: batch.evaluation_point for batch in stream if batch.evaluation_point is not None}
    assert not stream.announces_tasks
    assert not any(batch.ends_task for batch in stream)
    assert list(marks.values()) == [0, 1, 2, 3, 4]
    ends = [-1, *marks]
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    assert ends[-1] == len(stream) - 1
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("class_order", ["fixed", "seeded"])
def test_without_boundaries_classes_fade_in_and_out_in_order(class_order: str) -> None:
    data = numbered([100] * 6)
    stream = stream_of(data, boundary="none", fade=0.5, class_order=class_order)
    arrival = np.empty(600)
    arrival[order(stream)] = np.arange(600)
    expected = list(itertools.chain(*stream.groups))
    middle = [float(np.median(arrival[data.train_y == c])) for c in expected]
    assert middle == sorted(middle)
    spans = [np.quantile(arrival[data.train_y == c], (0.05, 0.95)) for c in expected]
    assert all(spans[i][1] > spans[i + 1][0] for i in range(5)), "neighbours overlap"
    assert all(spans[i][1] < spans[i + 4][0] for i in range(2)), "distant classes do not"


def test_hardly_any_fade_is_one_class_after_the_other() -> None:
    data = numbered([30] * 4)
    labels = data.train_y[order(stream_of(data, boundary="none", fade=1e-9, tasks=2))]
    assert labels.tolist() == sorted(labels.tolist())


# Mixed


def test_iid_passes() -> None:
    stream = stream_of(boundary="iid", epochs=3)
    batches = list(stream)
    per_epoch = len(batches) // 3
    passes = [
        [number for batch in batches[epoch * per_epoch : (epoch + 1) * per_epoch] for number in numbers(batch)]
        for epoch in range(3)
    ]
    assert all(sorted(one) == list(range(120)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert stream.evaluation_points == 1
    assert [batch.evaluation_point for batch in batches] == [None] * (len(batches) - 1) + [0]
    assert len(set(batches[0].y.tolist() + batches[1].y.tolist())) > 3


# What has been shown


def test_new_and_old_classes() -> None:
    stream = stream_of()
    assert [stream.new_classes(i) for i in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert [stream.old_classes(i) for i in range(3)] == [[], [0, 1], [0, 1, 2, 3]]
    mixed = stream_of(boundary="iid", class_order="seeded")
    assert mixed.new_classes(0) == list(range(6))
    assert mixed.old_classes(0) == []


def test_images_on_the_device_are_shared() -> None:
    first = stream_of(UNEVEN)
    second = Stream(UNEVEN, first.config, seed=1, resident=first.device_data)
    assert second.device_data is first.device_data
    assert list(map(comparable, second)) == list(map(comparable, stream_of(UNEVEN, seed=1)))


def test_fetch_and_evaluation_point_after_are_what_batches_says() -> None:
    stream = stream_of(UNEVEN)
    for batch in stream:
        x, y = stream.fetch(batch.number)
        assert torch.equal(x, batch.x)
        assert torch.equal(y, batch.y)
        assert stream.evaluation_point_after(batch.number) == batch.evaluation_point


# Refusals


@pytest.mark.parametrize(
    "settings",
    [
        {"tasks": 0},
        {"batch_size": 0},
        {"epochs": 0, "boundary": "iid"},
        {"epochs": 2},
        {"boundary": "fuzzy"},
        {"class_order": "random"},
        {"blurry_share": -0.1},
        {"blurry_share": 1.1},
        {"blurry_share": float("nan")},
        {"fade": -1.0},
        {"fade": float("nan")},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(OcilError, match=next(iter(settings))):
        StreamConfig(**settings)


def test_more_tasks_than_classes_are_refused() -> None:
    with pytest.raises(OcilError, match="tasks = 7"):
        stream_of(tasks=7)


def test_batches_larger_than_every_task_are_refused() -> None:
    with pytest.raises(OcilError, match="batch_size = 1000"):
        stream_of(batch_size=1000, drop_last=True)
    assert len(stream_of(batch_size=1000)) == 3


@pytest.mark.parametrize("counts", [[4, 20, 20], [20, 4, 20], [20, 20, 4]])
def test_a_task_smaller_than_a_batch_is_refused_or_evaluated(counts: list[int]) -> None:
    """Its row of the accuracy matrix must not go missing in silence."""
    try:
        stream = stream_of(numbered(counts), batch_size=10, drop_last=True)
    except OcilError:
        return
    assert [batch.evaluation_point for batch in stream if batch.evaluation_point is not None] == [0, 1, 2]


def test_fewer_batches_than_evaluation_points_are_refused_or_evaluated() -> None:
    try:
        stream = stream_of(boundary="none", tasks=5, batch_size=40)
    except OcilError:
        return
    assert [batch.evaluation_point for batch in stream if batch.evaluation_point is not None] == [0, 1, 2, 3, 4]
