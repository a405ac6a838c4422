"""What a run notes after each group, against a slow version that goes over the samples one by one."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor

import ocil
from ocil.data import Dataset
from ocil.evaluation.evaluator import Evaluation, Evaluator
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.fine_tune import FineTune
from tests.reference.datasets import patterned

TASKS, BATCH = 2, 5


def trained(name: str, data: Dataset) -> tuple[Learner, ocil.Stream]:
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=TASKS, batch_size=BATCH), seed=0)
    learner = ocil.make_learner(name, data, memory=20, width=4, batch_size=BATCH, memory_batch=BATCH, lr=0.03)
    for part in stream:
        learner.learn(part.x, part.y)
    return learner, stream


def slow(learner: Learner, data: Dataset) -> Evaluation:
    """After the last of two tasks: classes 0 and 1 are old, 2 and 3 are new."""
    logits = learner.scores(torch.from_numpy(data.test_x)).tolist()
    hits = [row.index(max(row)) == label for row, label in zip(logits, data.test_y.tolist(), strict=True)]
    accuracy = [
        fmean(hit for hit, label in zip(hits, data.test_y, strict=True) if label in group) for group in ((0, 1), (2, 3))
    ]
    head = learner.network.head
    assert isinstance(head, torch.nn.Linear)
    weights = [[*row, bias] for row, bias in zip(head.weight.tolist(), head.bias.tolist(), strict=True)]
    scores = learner.scores(torch.from_numpy(data.train_x)).softmax(1).tolist()
    new = [row[label] for row, label in zip(scores, data.train_y.tolist(), strict=True) if label >= 2]
    return Evaluation(
        accuracy,
        fmean(value for row in logits for value in row[:2]),
        fmean(value for row in logits for value in row[2:]),
        fmean(value for row in weights[:2] for value in row),
        fmean(value for row in weights[2:] for value in row),
        sum(p < 0.3 for p in new),  # the published bounds
        sum(0.3 <= p <= 0.6 for p in new),
        sum(p > 0.6 for p in new),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["er", "afs"])
def test_against_the_slow_version(name: str) -> None:
    data = patterned()
    learner, stream = trained(name, data)
    found, expected = Evaluator(stream)(learner, TASKS - 1), slow(learner, data)
    assert found.accuracy == pytest.approx(expected.accuracy)
    assert (found.hard, found.ambiguous, found.easy) == (expected.hard, expected.ambiguous, expected.easy)
    for field in ("mean_logit_old", "mean_logit_new", "mean_weight_old", "mean_weight_new"):
        assert getattr(found, field) == pytest.approx(getattr(expected, field), abs=1e-5), field
    probabilities = learner.scores(torch.from_numpy(data.test_x)).softmax(1).tolist()
    bins = [[0, 0, 0.0] for _ in range(15)]
    for row, label in zip(probabilities, data.test_y.tolist(), strict=True):
        place = next(b for b in range(15) if max(row) <= (b + 1) / 15 or b == 14)
        bins[place][0] += 1
        bins[place][1] += row.index(max(row)) == label
        bins[place][2] += max(row)
    count, correct, confidence = (list(column) for column in zip(*bins, strict=True))
    assert found.calibration is not None
    assert found.calibration["count"] == count
    assert found.calibration["correct"] == correct
    assert found.calibration["confidence"] == pytest.approx(confidence, abs=1e-5)
    first = Evaluator(stream)(learner, 0)
    assert first.confusion is None
    assert first.calibration is None
    assert first.mean_logit_old is None
    assert first.mean_weight_old is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scr", "aaer"])
def test_distances_are_no_logits(name: str) -> None:
    """The softmax of distances is nearly uniform, however sure the learner is: no sample would be easy."""
    data = patterned()
    learner, stream = trained(name, data)
    found = Evaluator(stream)(learner, TASKS - 1)
    assert found == Evaluation(found.accuracy, correct=found.correct, confusion=found.confusion)
    scores = learner.scores(torch.from_numpy(data.test_x)).argmax(1)
    counts = [[0] * 4 for _ in range(4)]
    for label, guess in zip(data.test_y.tolist(), scores.tolist(), strict=True):
        counts[label][guess] += 1
    assert found.confusion == counts
    assert found.correct == [counts[name][name] for name in range(4)]
    right = (scores == torch.from_numpy(data.test_y)).double().view(-1, 4)  # classes take turns
    assert found.accuracy == pytest.approx([right[:, :2].mean().item(), right[:, 2:].mean().item()])


@pytest.mark.parametrize(
    ("wrong", "given"),
    [(lambda scores: scores.argmax(1), r"\[40\]"), (lambda scores: scores[:, :2], r"\[40, 2\]"), (list, "a list")],
)
def test_scores_of_another_shape_are_one_line(wrong: Callable[[Tensor], Any], given: str) -> None:
    class Mine(FineTune):
        def scorer(self) -> Any:
            scores = super().scorer()
            return lambda x: wrong(scores(x))

    data = patterned()
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=TASKS), seed=0)
    learner = Mine(LearnerConfig(width=1), Problem(data.input_shape, data.num_classes))
    with pytest.raises(ocil.OcilError, match=rf"^the scorer of Mine must return .* = \[40, 4\], not {given}\.$"):
        Evaluator(stream)(learner, 0)


def test_a_started_evaluation_is_called_with_a_warning() -> None:
    learner, stream = trained("er", patterned())
    started = Evaluator(stream).start(learner, TASKS - 1)
    with pytest.warns(DeprecationWarning, match=r"call \.result\(\) .* goes away in 0\.5\.0"):
        assert started() == started.result()


def test_scores_that_are_nan_count_as_no_class() -> None:
    class Mine(FineTune):
        def scorer(self) -> Any:
            scores = super().scorer()
            return lambda x: scores(x).where(torch.arange(len(x))[:, None] > 0, torch.nan)

    data = patterned()
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=TASKS), seed=0)
    learner = Mine(LearnerConfig(width=1), Problem(data.input_shape, data.num_classes))
    with pytest.raises(ocil.OcilError, match=r"^Mine has scores that are NaN at evaluation point 0: "):
        Evaluator(stream)(learner, 0)


def test_counts_are_not_copied() -> None:
    """A hundred evaluations of a thousand classes would take ten times as long to copy as to write."""
    evaluation = Evaluation([0.5], correct=[1, 2], confusion=[[1, 0], [1, 1]])
    content = evaluation.to_json()
    assert content["correct"] is evaluation.correct
    assert content["confusion"] is evaluation.confusion
    assert "calibration" not in content
    assert content["hard"] is None
    assert Evaluation(**content) == evaluation
