"""Streams whose order is given: by a file, or by the batches of a generator."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ocil
from ocil import Dataset, OcilError, Stream, StreamConfig, tensorfile
from ocil.data.mapped import is_mapped
from ocil.runs import folder
from ocil.runs.protocol import Interrupted
from ocil.runs.results import read_json
from ocil.streams import record
from tests.conftest import Call
from tests.networks_to_try import TINY

SMALL = {"memory": 10, "memory_batch": 5, "width": 1}


def images(labels: Any, seed: int = 0) -> np.ndarray:
    """8x8 gray images whose brightness tells their classes apart."""
    y = np.asarray(labels)
    return (np.random.default_rng(seed).integers(0, 60, (len(y), 8, 8, 1)) + 60 * y[:, None, None, None]).astype(
        np.uint8
    )


def in_tasks(seed: int = 0) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Two classes, then two others, twelve batches of five."""
    rng = np.random.default_rng(seed)
    for number in range(12):
        y = (rng.permutation(5) % 2 + (0 if number < 6 else 2)).tolist()
        yield images(y, seed + number), y


TEST_Y = [0, 1, 2, 3] * 2
TEST = images(TEST_Y, 99), TEST_Y


@pytest.mark.parametrize("boundary", ["clear", "blurry", "none", "iid"])
def test_an_order_file_replays_every_batch(boundary: Any, tiny: Dataset, tmp_path: Path) -> None:
    first = Stream(tiny, StreamConfig(2, 6, "seeded", boundary), seed=3)
    first.save_order(tmp_path / "order.npz")
    again = Stream(tiny, StreamConfig(order=str(tmp_path / "order.npz")), seed=8)
    assert again.config.tasks == 2
    assert again.config.batch_size == 6
    assert again.config.boundary == boundary
    assert again.groups == first.groups
    assert len(again) == len(first)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
        assert (one.evaluation_point, one.ends_task) == (other.evaluation_point, other.ends_task)


def test_a_file_without_the_order_of_classes_is_the_same_order(tiny: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "order.npz"
    first = Stream(tiny, StreamConfig(1, 6, arrival_order=("3", "0", "2", "1")), seed=3)
    first.save_order(path)
    named = StreamConfig(order=str(path)).order_digest
    whole = dict(np.load(path))
    assert whole.pop("arrival").tolist() == [3, 0, 2, 1]
    np.savez(path, **whole)
    again = Stream(tiny, StreamConfig(order=str(path)))
    assert again.config.order_digest == named
    assert again.fingerprint == first.fingerprint
    assert again.groups == [[0, 1, 2, 3]]


@pytest.mark.parametrize("settings", [{"class_order": "seeded"}, {"class_counts": (9, 8, 7, 10)}], ids=str)
def test_a_replayed_run_has_the_same_result(settings: dict[str, Any], tiny: Dataset, tmp_path: Path) -> None:
    """Also where an incomplete last batch of a task is dropped: what never arrives is neither probed nor counted."""
    small = {"network": TINY, "memory": 20, "memory_batch": 5, "evaluate_every": 2, "probe": True, "prequential": 1}
    first = ocil.resolve("er", tiny.name, settings=small | settings | {"tasks": 2, "batch_size": 6}, seed=2)
    stream = Stream(tiny, first.stream, seed=2)
    stream.save_order(tmp_path / "order.npz")
    assert len(stream.arrivals.arriving) < len(stream.arrivals.samples)
    replay = ocil.resolve("er", tiny.name, settings=small | {"order": str(tmp_path / "order.npz")}, seed=2)
    one, other = (ocil.run(config, tmp_path / "runs", dataset=tiny, device="cpu") for config in (first, replay))
    assert one.config.cell != other.config.cell
    for name in ("digest", "matrix", "evaluations", "anytime", "probe", "prequential", "confusion", "groups", "cost"):
        assert getattr(one, name) == getattr(other, name), name
    last = one.evaluations[-1]
    new = np.isin(tiny.train_y[stream.arrivals.arriving], one.groups[-1])
    assert last["hard"] + last["ambiguous"] + last["easy"] == new.sum()


def test_a_class_that_never_arrives_is_tested_all_the_same(tiny: Dataset, tmp_path: Path) -> None:
    """Its samples come before the first batch of the file: nothing of it is left to count."""
    path = tmp_path / "order.npz"
    Stream(tiny, StreamConfig(4, 5), seed=1).save_order(path)
    whole = dict(np.load(path))
    came = whole["samples"][tiny.train_y[whole["samples"]] != 3]
    ends = np.arange(1, len(came) + 1)
    np.savez(path, **whole | {"samples": came, "batch_ends": ends, "points": ends[-4:] - 1})
    settings = {"network": TINY, "memory": 20, "memory_batch": 5, "order": str(path), "probe": True}
    result = ocil.run(ocil.resolve("er", tiny.name, settings=settings), tmp_path, dataset=tiny, device="cpu")
    assert [result.evaluations[-1][kind] for kind in ("hard", "ambiguous", "easy")] == [0, 0, 0]
    assert result.probe["correct"][3] == 0


def test_a_run_with_an_order_file_is_named_by_its_content(tiny: Dataset, tiny_npz: Path, tmp_path: Path) -> None:
    Stream(tiny, StreamConfig(2, 5), seed=1).save_order(tmp_path / "one.npz")
    Stream(tiny, StreamConfig(2, 5), seed=2).save_order(tmp_path / "two.npz")
    small = {"network": TINY, "memory": 10, "memory_batch": 5}

    def config(name: str) -> ocil.RunConfig:
        return ocil.resolve("er", str(tiny_npz), settings=small | {"order": str(tmp_path / name)})

    one, two = config("one.npz"), config("two.npz")
    assert one.cell != two.cell
    (tmp_path / "one.npz").rename(tmp_path / "moved.npz")
    assert config("moved.npz").cell == one.cell
    assert ocil.RunConfig.from_json(one.to_json()) == one  # the file need not be there
    result = ocil.run(config("moved.npz"), tmp_path / "runs", device="cpu")
    assert len(result.matrix) == 2
    (tmp_path / "two.npz").replace(tmp_path / "moved.npz")
    with pytest.raises(OcilError, match=r"moved\.npz has changed since this was planned"):
        Stream(tiny, result.config.stream)


@pytest.mark.parametrize(
    "settings",
    [
        {"tasks": 3},
        {"boundary": "blurry"},
        {"batch_size": "7"},
        {"task_ends": "announced"},
        {"scenario": "domain"},
        {"class_order": "seeded"},
        {"drop_last": "false"},
        {"blurry_share": 0.3},
        {"order_digest": "abc"},
    ],
    ids=str,
)
def test_a_setting_beside_an_order_file_agrees_with_it_or_is_refused(
    settings: dict[str, Any], tiny: Dataset, tiny_npz: Path, tmp_path: Path, ocil_command: Call
) -> None:
    """A setting without an effect would be a surprise, and would rename the run."""
    path = tmp_path / "order.npz"
    Stream(tiny, StreamConfig(2, 5, boundary="i-blurry"), seed=1).save_order(path)
    ((name, value),) = settings.items()
    with pytest.raises(OcilError, match=f"leave out {name}"):
        ocil.resolve("er", str(tiny_npz), settings={"order": str(path)} | settings)
    said = ocil_command("stream", "show", "--dataset", tiny_npz, "--set", f"order={path}", f"{name}={value}")
    assert said.code == 2
    assert f"leave out {name}" in said.err
    config = ocil.resolve("er", str(tiny_npz), settings={"order": str(path), "evaluate_every": 3})
    agreeing = {name: getattr(config.stream, name), "evaluate_every": 3, "order": str(path)}
    assert ocil.resolve("er", str(tiny_npz), settings=agreeing) == config


def test_a_digest_belongs_to_a_file(tiny_npz: Path) -> None:
    with pytest.raises(OcilError, match="does not belong to a stream without order = FILE: leave out order_digest"):
        ocil.resolve("er", str(tiny_npz), settings={"order_digest": "abc"})


def test_reviews_of_a_short_order_file_come_as_often_as_its_tasks(tmp_path: Path) -> None:
    """Not as often as those of the whole dataset: there may never be one then."""
    data = ocil.load_dataset()
    short = StreamConfig(5, 10, boundary="i-blurry", class_counts=(12,) * 10)
    Stream(data, short, seed=1).save_order(tmp_path / "order.npz")
    settings = {"order": str(tmp_path / "order.npz"), "network": TINY, "memory_batch": 5, "evaluate_every": 1}
    config = ocil.resolve("er", data.name, memory=20, review=True, settings=settings)
    result = ocil.run(config, tmp_path, dataset=data, device="cpu")
    assert result.anytime["reviews"] == list(range(2, 13, 2))


def test_order_files_that_do_not_fit(tiny: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "order.npz"
    Stream(tiny, StreamConfig(2, 5), seed=1).save_order(path)
    other = Dataset(
        "other", tiny.train_x[::-1].copy(), tiny.train_y[::-1].copy(), tiny.test_x, tiny.test_y, tiny.classes
    )
    with pytest.raises(OcilError, match="is an order of other data than other"):
        Stream(other, StreamConfig(order=str(path)))
    whole = dict(np.load(path))
    no_text = np.frombuffer(np.array([2**31 - 1], np.uint32).tobytes(), "<U1").reshape(())
    for key, value, message in (
        ("samples", whole["samples"] + 1, "do not fit together"),  # the largest is the number of samples
        ("samples", whole["samples"] + 1000, "do not fit together"),
        ("samples", whole["samples"] - 1000, "do not fit together"),
        ("samples", whole["samples"][:-1], "do not fit together"),
        ("batch_ends", whole["batch_ends"][::-1].copy(), "do not fit together"),
        ("points", whole["points"][:1], "do not fit together"),
        ("points", whole["points"] + 100, "do not fit together"),
        ("points", whole["points"] - 1, "do not fit together"),
        ("group_of", np.array([0, 0, 2, 2]), "do not fit together"),
        ("group_of", np.array([0, 1]), "do not fit together"),
        ("group_of", np.array([-1, 0, 1, 1]), "do not fit together"),
        ("group_of", np.array([0, 0, 1, 2**62]), "is more than|do not fit together"),
        ("arrival", np.array([0, 1, 2]), "do not fit together"),
        ("arrival", np.array([0, 1, 2, 2]), "do not fit together"),
        ("arrival", np.array([0, 1, 2, -1]), "do not fit together"),
        ("arrival", np.array(0.5), "is not an order: arrival is float64"),
        ("samples", whole["samples"].astype(np.float64), "is not an order: samples is float64"),
        ("points", np.array("x"), "is not an order: points is"),
        ("boundary", np.array("soft"), "the boundary 'soft'"),
        ("boundary", no_text, "is not an order: boundary is not text"),
        ("task_ends", np.array("\udc80"), "is not an order: task_ends is not text"),
    ):
        np.savez(path, **whole | {key: value})
        with pytest.raises(OcilError, match=message) as error:
            Stream(tiny, StreamConfig(order=str(path)))
        assert "\n" not in str(error.value)
    path.write_bytes(b"nothing")
    with pytest.raises(OcilError, match=r"not an \.npz file"):
        StreamConfig(order=str(path))
    with pytest.raises(OcilError, match="no such file"):
        StreamConfig(order=str(tmp_path / "absent.npz"))


def test_test_samples_that_are_no_pair() -> None:
    with pytest.raises(OcilError, match=r"test is list, not a pair \(x, y\): give all test samples and their labels"):
        Stream.from_batches(in_tasks(), [TEST, TEST, TEST])  # type: ignore[arg-type]


def test_batches_of_a_generator_arrive_as_they_came() -> None:
    stream = Stream.from_batches(in_tasks(), TEST)
    assert stream.data.classes == ("0", "1", "2", "3") or set(stream.data.classes[:2]) == {"0", "1"}
    for batch, (x, y) in zip(stream, in_tasks(), strict=True):
        np.testing.assert_array_equal(batch.x.numpy(), x)
        assert [stream.data.classes[label] for label in batch.y.tolist()] == list(map(str, y))
    assert [batch.evaluation_point for batch in stream if batch.ends_task] == [0, 1]
    assert stream.groups == [[0, 1], [2, 3]]
    assert stream.config.tasks == 2
    assert stream.config.batch_size == 5


def test_tasks_that_are_named() -> None:
    batches = [(x, y, "spring" if number < 3 else "autumn") for number, (x, y) in enumerate(in_tasks())]
    stream = Stream.from_batches(batches, TEST)
    # The first task has two classes, the second brings two more though the first ones go on.
    assert [batch.number for batch in stream if batch.ends_task] == [2, 11]
    assert stream.groups == [[0, 1], [2, 3]]
    same = [(x, y, number) for number, (x, y) in enumerate(in_tasks())]
    assert [batch.number for batch in Stream.from_batches(same, TEST) if batch.ends_task] == [5, 11]
    with pytest.raises(OcilError, match="batch 3 has 2 parts, unlike those before"):
        Stream.from_batches([*batches[:3], batches[3][:2]], TEST)


@pytest.mark.parametrize(
    "kind", [np.full, lambda size, task: torch.full((size,), task), lambda size, task: np.array(task)]
)
def test_a_loader_may_name_the_task_of_each_sample(kind: Callable[[int, int], Any]) -> None:
    batches = list(in_tasks())
    first = [(x, y, kind(len(y), number // 6)) for number, (x, y) in enumerate(batches)]
    assert [batch.number for batch in Stream.from_batches(first, TEST) if batch.ends_task] == [5, 11]


def test_a_batch_belongs_to_one_task_and_has_a_label_per_sample() -> None:
    x, y = next(in_tasks())
    with pytest.raises(OcilError, match=r"batch 0 has samples of the tasks \[0, 1\]"):
        Stream.from_batches([(x, y, np.arange(len(y)) % 2)], TEST)
    for label in (3, "cat", np.int64(3), torch.tensor(3)):
        with pytest.raises(OcilError, match=r"batch 0 has one label, .* There must be one label per sample"):
            Stream.from_batches([(x, label)], TEST)


def test_classes_that_return_announce_no_tasks() -> None:
    batches = [(images([label, 0]), [label, 0]) for label in (0, 1, 2, 3) for _ in range(3)]
    stream = Stream.from_batches(batches, TEST, tasks=2)
    assert not stream.announces_tasks
    assert stream.groups == [[0, 1], [2, 3]]
    assert [number for number in range(12) if stream.evaluation_point_after(number) is not None] == [5, 11]
    with pytest.raises(OcilError, match="needs task ends"):
        ocil.run(ocil.resolve("gdumb", "own", settings=SMALL | {"batch_size": 2}), "nowhere", stream=stream)


def test_classes_are_numbered_as_they_arrive_or_as_they_are_named() -> None:
    batches = [(images([1, 1]), ["wren", "wren"]), (images([0, 0]), ["auk", "auk"])]
    test = images([0, 1]), ["auk", "wren"]
    assert Stream.from_batches(batches, test).data.classes == ("wren", "auk")
    named = Stream.from_batches(batches, test, classes=["auk", "wren"])
    assert named.data.classes == ("auk", "wren")
    assert named.groups == [[1], [0]]
    with pytest.raises(OcilError, match="label 'wren', which is not among the classes"):
        Stream.from_batches(batches, test, classes=["auk", "owl"])
    with pytest.raises(OcilError, match="test_y has the label 'owl', which no batch has"):
        Stream.from_batches(batches, (images([0]), ["owl"]))


def test_without_test_samples_a_share_is_held_out() -> None:
    notes: list[str] = []
    stream = Stream.from_batches(in_tasks(), note=notes.append, seed=4)
    assert "held out" in notes[0]
    arrived = sum(len(batch.y) for batch in stream)
    assert arrived + len(stream.data.test_y) == 60
    again = Stream.from_batches(in_tasks(), note=notes.append, seed=4)
    assert stream.fingerprint == again.fingerprint
    assert Stream.from_batches(in_tasks(), note=notes.append, seed=5).fingerprint != stream.fingerprint


@pytest.mark.parametrize("seed", range(20))
def test_a_class_is_of_the_task_in_which_its_first_training_sample_comes(seed: int) -> None:
    """Not of one in which all of its samples are held out: it would be tested as learned before it has come."""
    labels = [[0] * 6 + [1], [1] * 5 + [2] * 6]
    batches = [(images(part), part, task) for task, part in enumerate(labels)]
    stream = Stream.from_batches(batches, note=lambda _: None, test_share=0.5, seed=seed)
    came: list[list[int]] = []
    for batch in stream:
        came.append(sorted(set(batch.y.tolist()) - {label for part in came for label in part}))
    assert stream.groups == came


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"seed": -1}, "seed = -1 must be a whole number from 0 to 4,294,967,295."),
        ({"seed": 1.5}, "seed = 1.5 must be a whole number from 0 to 4,294,967,295."),
        ({"tasks": 0}, "tasks = 0 must be a whole number of at least 1."),
        ({"tasks": "2"}, "tasks = '2' must be a whole number of at least 1."),
    ],
)
def test_numbers_that_are_none_are_refused(option: dict[str, Any], says: str) -> None:
    with pytest.raises(OcilError, match=says):
        Stream.from_batches(in_tasks(), note=lambda _: None, **option)


def test_a_generator_may_fill_the_same_array_again() -> None:
    buffer = np.zeros((5, 8, 8, 1), np.uint8)

    def reusing() -> Iterator[tuple[np.ndarray, list[int]]]:
        for x, y in in_tasks():
            buffer[:] = x
            yield buffer, y

    assert Stream.from_batches(reusing(), TEST).fingerprint == Stream.from_batches(in_tasks(), TEST).fingerprint


def test_many_batches_are_kept_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCIL_CACHE", str(tmp_path))
    monkeypatch.setattr(record, "MEMORY_BYTES", 1000)
    stream = Stream.from_batches(in_tasks(), TEST)
    assert is_mapped(stream.data.train_x)
    assert not list((tmp_path / "streams").iterdir())  # it has no name any more
    for batch, (x, _) in zip(stream, in_tasks(), strict=True):
        np.testing.assert_array_equal(batch.x.numpy(), x)
    with pytest.raises(OcilError, match=r"larger than memory, so none can be held out. Give test="):
        Stream.from_batches(in_tasks())

    def failing() -> Iterator[tuple[np.ndarray, list[int]]]:
        yield from in_tasks()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Stream.from_batches(failing(), TEST)
    gc.collect()
    assert not list((tmp_path / "streams").iterdir())


def test_vectors_and_tensors_arrive_too() -> None:
    batches = [(torch.full((4, 3), float(label)), torch.tensor([label] * 4)) for label in (0, 1)]
    stream = Stream.from_batches(batches, (torch.zeros(2, 3), torch.tensor([0, 1])))
    assert not stream.data.is_images
    assert next(iter(stream)).x.dtype == torch.float32


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "there are no batches"),
        (5, r"give a list or a generator of \(x, y\) or \(x, y, task\) as batches, not int"),
        ([5], r"batch 0 is int. A batch is \(x, y\)"),
        ([(images([0, 1]), [0])], "batch 0 has 2 samples but 1 labels"),
        ([(images([0]), [0]), (np.zeros((1, 9, 8, 1), np.uint8), [1])], "batch 1 has inputs of uint8"),
        ([(images([0]), [0]), (np.zeros((1, 8, 8), np.uint8), [1])], "batch 1 has the shape"),
        ([(images([0]) / 1.0, [0])], r"Float images must lie in \[0, 1\]"),
    ],
)
def test_what_is_not_a_stream_of_batches(batches: Any, message: str) -> None:
    with pytest.raises(OcilError, match=message):
        Stream.from_batches(batches, TEST)


def noting(function: Callable[[Path], Any], names: list[str]) -> Callable[[Path], Any]:
    """The function, which notes the name of each file that it reads."""

    def call(path: Path) -> Any:
        names.append(path.name)
        return function(path)

    return call


def test_a_run_on_a_generator_goes_on_if_the_same_batches_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ocil.resolve("er", "own", settings=SMALL | {"batch_size": 5})
    whole = ocil.run(config, tmp_path / "whole", stream=Stream.from_batches(in_tasks(), TEST), device="cpu")
    assert np.array(whole.matrix).shape == (2, 2)
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen > 7

    with pytest.raises(Interrupted):
        ocil.run(
            config, tmp_path / "runs", stream=Stream.from_batches(in_tasks(), TEST), device="cpu", should_stop=stop
        )
    with pytest.raises(OcilError, match="was begun with other batches, so it cannot go on with these") as error:
        ocil.run(config, tmp_path / "runs", stream=Stream.from_batches(in_tasks(1), TEST), device="cpu")
    assert "\n" not in str(error.value)
    read: list[str] = []
    monkeypatch.setattr(tensorfile, "read", noting(tensorfile.read, read))
    monkeypatch.setattr(folder, "read_json", noting(read_json, read))
    again = ocil.run(config, tmp_path / "runs", stream=Stream.from_batches(in_tasks(), TEST), device="cpu")
    assert again.digest == whole.digest
    assert [read.count(name) for name in ("checkpoint.safetensors", "config.json")] == [1, 1]
    with pytest.raises(OcilError, match="other batches"):  # also once it is finished
        ocil.run(config, tmp_path / "runs", stream=Stream.from_batches(in_tasks(1), TEST), device="cpu")
    stream = Stream.from_batches(in_tasks(), TEST)
    with pytest.raises(OcilError, match="a dataset or a stream, not both"):
        ocil.run(config, tmp_path, stream=stream, dataset=stream.data)
