"""Captured steps of a model that learns online: their logic on a CPU with stand-ins for graphs, their bits on a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.runs.batch_stepper import BatchStepper, CapturedBatchStepper, batch_stepper_for
from ocil.runs.captured import Graph
from ocil.runs.environment import digest

FORM = ImageFormat((9, 9, 1))
SIZE = 4
SETTINGS: dict[str, Any] = {"memory_batch": 3, "review_batch": 5}
SIZES = [4, 4, 3, 4, 4, 4, 1, 4, 4, 4, 4, 4, 4, 4]


class Replayed:
    """What a graph does, without a GPU: replaying runs the recorded work again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.times = work, 0

    def replay(self) -> None:
        self.times += 1
        self.work()


class FakeCapture(CapturedBatchStepper):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.made: list[Replayed] = []

    def record(self, work: Callable[[], None]) -> Graph:
        self.made.append(Replayed(work))
        return self.made[-1]


def model(method: str, device: str = "cpu", width: int = 1, **settings: Any) -> Model:
    return Model(Recipe(method, 12, SIZE, width, 4, settings=SETTINGS | settings), FORM, device)


def teach(it: Model, classes: int = 3) -> Model:
    """Batches of the usual size and smaller ones; every fourth is followed by a review or a task's end."""
    rng = np.random.default_rng(0)
    for number, count in enumerate(SIZES):
        labels = rng.integers(0, classes if number > 5 else 3, count)
        it.learn(rng.integers(0, 256, (count, 9, 9, 1), dtype=np.uint8), labels.tolist())
    return it


@pytest.mark.usefixtures("quick_convolution")
@pytest.mark.parametrize("method", ["er", "afs", "agem", "gdumb", "fine-tune"])
def test_captured_batches_are_learned_as_written(method: str) -> None:
    plain, captured = model(method), model(method)
    captured.stepper = stepper = FakeCapture(captured.learner, SIZE)
    assert digest(teach(plain).learner) == digest(teach(captured).learner)
    assert sum(graph.times for graph in stepper.made) > 3


@pytest.mark.usefixtures("quick_convolution")
def test_a_graph_is_recorded_again_when_there_is_room_for_more_classes() -> None:
    plain, captured = model("er"), model("er")
    captured.stepper = stepper = FakeCapture(captured.learner, SIZE)
    assert digest(teach(plain, 40).learner) == digest(teach(captured, 40).learner)
    assert captured.learner.problem.classes > 16
    learned = [graph for graph in stepper.made if graph.times]
    assert len(learned) > 2


@pytest.mark.usefixtures("quick_convolution")
def test_only_batches_of_the_usual_size_are_recorded() -> None:
    it = Model(Recipe("er", 12, SIZE, 1, 0, settings=SETTINGS), FORM)
    it.stepper = stepper = FakeCapture(it.learner, SIZE)
    rng = np.random.default_rng(0)
    replayed = []
    for count in (4, 4, 4, 2, 4, 3, 4):
        it.learn(rng.integers(0, 256, (count, 9, 9, 1), dtype=np.uint8), [0] * count)
        replayed.append(sum(graph.times for graph in stepper.made))
    # The memory holds nothing, then enough: one step more outside of a graph.
    assert replayed == [0, 0, 1, 1, 2, 2, 3]
    assert len(stepper.made) == 1


def test_where_steps_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = model("er").learner
    assert type(batch_stepper_for(learner, 4, capturable=True)) is BatchStepper
    learner.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    assert type(batch_stepper_for(learner, 4, capturable=True)) is CapturedBatchStepper
    assert type(batch_stepper_for(learner, 4, capturable=False)) is BatchStepper


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["er", "afs", "agem", "gdumb"])
def test_on_a_gpu_captured_batches_give_the_bits_of_plain_ones(method: str) -> None:
    captured = model(method, "cuda", 4, precision="fp32")
    plain = model(method, "cuda", 4, precision="fp32")
    assert isinstance(captured.stepper, CapturedBatchStepper)
    plain.stepper = BatchStepper(plain.learner)
    assert digest(teach(plain, 40).learner) == digest(teach(captured, 40).learner)
    x = np.zeros((2, 9, 9, 1), np.uint8)
    assert np.array_equal(plain.probabilities(x), captured.probabilities(x))
