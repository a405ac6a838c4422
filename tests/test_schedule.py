"""What a run is expected to cost is what it has cost: batches, reviews and task ends of real runs."""

from pathlib import Path
from typing import Any

import pytest

import ocil
from ocil.methods import method
from ocil.runs.cost import PassedImages
from ocil.runs.schedule import Schedule
from tests.networks_to_try import TINY
from tests.reference.datasets import noise

pytestmark = pytest.mark.usefixtures("quick_convolution")

DATA = noise(160, 4, (8, 8, 1))
RUN = {"network": TINY, "tasks": 2, "batch_size": 5, "memory": 32, "review_batch": 6}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fine-tune", {}),
        ("er", {}),
        ("er", {"review": True}),  # the last two of 32 images are in no batch of a review
        ("er", {"review": True, "review_keep_last": True}),
        ("er", {"review": True, "review_every": 7}),
        ("er", {"review": True, "memory": 90}),  # 80 of them when the first task ends
        ("er", {"review": True, "task_ends": "hidden"}),
        ("er", {"review": True, "task_ends": "hidden", "imbalance_factor": 3.0}),  # known when the stream is there
        ("aaer", {"review": True, "memory_batch": 8}),
        ("gdumb", {"rehearsal_batch": 10, "rehearsal_epochs": 2}),
    ],
)
def test_the_schedule_is_that_of_the_run(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    given = RUN if method(name).memory else {key: RUN[key] for key in ("network", "tasks", "batch_size")}
    config = ocil.resolve(name, DATA, settings=given | settings)
    cost = ocil.run(config, tmp_path, dataset=DATA).cost
    kind, stream = method(name).load(), ocil.Stream(DATA, config.stream)
    schedule = Schedule.expected(config, len(stream.samples))
    expected = PassedImages().plus(kind.passes(config.learner, config.stream.batch_size, 4), schedule.batches)
    for passes, times in schedule.passes_on_memory(kind, config.learner, 4):
        expected = expected.plus(passes, times)
    assert schedule.batches == len(stream)
    assert (cost["images"], cost["forward"]) == expected
