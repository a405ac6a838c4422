"""Streams of samples that are chosen by their numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ocil
from ocil import Dataset, OcilError, Stream, StreamConfig

SMALL = {"memory": 10, "memory_batch": 5, "width": 1}


def halves(data: Dataset) -> list[Any]:
    """The samples of the odd classes, the last one first, and then those of the even ones, with a repeated one."""
    odd, even = (np.flatnonzero(data.train_y % 2 == rest) for rest in (1, 0))
    return [odd[::-1], [*even.tolist(), int(odd[0])]]


def test_samples_arrive_in_the_given_order(tiny: Dataset) -> None:
    tasks = halves(tiny)
    stream = Stream.from_indices(tiny, tasks, batch_size=7)
    expected = [number for task in tasks for number in task]
    assert torch.equal(torch.cat([batch.x for batch in stream]), torch.from_numpy(tiny.train_x[expected]))
    assert [label for batch in stream for label in batch.y.tolist()] == tiny.train_y[expected].tolist()
    sizes = [len(batch.y) for batch in stream]
    first = -(-len(tasks[0]) // 7)
    assert sizes[: first - 1] == [7] * (first - 1)  # a batch never has samples of two tasks
    assert sum(sizes[:first]) == len(tasks[0])
    assert [batch.number for batch in stream if batch.ends_task] == [first - 1, len(sizes) - 1]
    assert [sorted(group) for group in stream.groups] == [
        [label for label in range(tiny.num_classes) if label % 2 == rest] for rest in (1, 0)
    ]


def test_a_task_without_new_classes_belongs_to_the_one_before(tiny: Dataset) -> None:
    odd, even = halves(tiny)
    stream = Stream.from_indices(tiny, [odd, odd[:3], even], batch_size=5)
    assert len(stream.groups) == 2
    ends = [batch.number for batch in stream if batch.ends_task]
    assert ends[0] == -(-len(odd) // 5)


def test_methods_do_not_hear_of_hidden_task_ends(tiny: Dataset) -> None:
    stream = Stream.from_indices(tiny, halves(tiny), task_ends="hidden")
    assert not stream.announces_tasks
    assert stream.config.task_ends == "hidden"
    assert Stream.from_indices(tiny, halves(tiny)).announces_tasks


def test_it_is_run_and_replayed_from_a_file(tiny: Dataset, tmp_path: Path) -> None:
    stream = Stream.from_indices(tiny, halves(tiny), batch_size=6)
    config = ocil.resolve("er", tiny, settings=SMALL)
    result = ocil.run(config, tmp_path / "runs", stream=stream, device="cpu")
    assert len(result.matrix) == 2
    stream.save_order(tmp_path / "mine.npz")
    again = Stream(tiny, StreamConfig(order=str(tmp_path / "mine.npz")))
    assert again.arrivals.digest == stream.arrivals.digest
    assert [batch.y.tolist() for batch in again] == [batch.y.tolist() for batch in stream]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "there are no tasks: give for each task"),
        ([[0, 1], []], "task 1 is not a list of numbers of training samples, with at least one"),
        ([[0, 1.5]], "task 0 is not a list of numbers"),
        ([[[0], [1]]], "task 0 is not a list of numbers"),
        ([[True, False]], "task 0 is a mask of yes and no: give the numbers of its samples, as np.flatnonzero does"),
        ([0, 1, 2], "task 0 is not a list of numbers of training samples"),
        ([[0, [1, 2]]], "task 0 is not a list of numbers of training samples"),
        ({0: [0, 1]}, "of each task as tasks, not dict"),
        (None, "as tasks, not NoneType"),
        ([[0, -1]], "task 0 has sample -1, but the training samples have the numbers 0 to"),
        ([[0], [10**6]], "task 1 has sample 1000000, but the training samples"),
        ([[0]], "no task has a sample of the classes 'b', 'c', 'd': give samples of all classes"),
        ([range(60)], "no task has a sample of the class 'd': give samples of all classes"),
    ],
)
def test_numbers_that_are_no_order_are_refused(tasks: Any, message: str, tiny: Dataset) -> None:
    with pytest.raises(OcilError, match=message) as error:
        Stream.from_indices(tiny, tasks)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, -1, 2.5, "3"])
def test_impossible_batch_sizes_are_refused(size: Any, tiny: Dataset) -> None:
    with pytest.raises(OcilError, match="must be a whole number of at least 1"):
        Stream.from_indices(tiny, halves(tiny), batch_size=size)


def test_a_run_on_it_is_not_taken_for_one_of_the_dataset(tiny: Dataset, tmp_path: Path) -> None:
    stream = Stream.from_indices(tiny, halves(tiny), batch_size=6)
    config = ocil.resolve("er", tiny, settings=SMALL)
    given = ocil.run(config, tmp_path, stream=stream, device="cpu")
    same = replace(config, stream=given.config.stream)
    drawn = ocil.run(same, tmp_path, dataset=tiny, device="cpu")
    assert drawn.config.cell != given.config.cell
    assert drawn.digest != given.digest
    assert ocil.run(config, tmp_path, stream=stream, device="cpu").digest == given.digest
    with pytest.raises(OcilError):
        ocil.run(given.config, tmp_path / "elsewhere", dataset=tiny, device="cpu")  # its order is not known here
