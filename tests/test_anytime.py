"""Accuracy between task ends: against a slow version, without influence on learning, through stops, as shown."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ocil.data import Dataset
from ocil.engines.job import Observer
from ocil.engines.lanes import take_turns
from ocil.errors import OcilError
from ocil.evaluation import measures
from ocil.experiments.estimate import Size, cost_of_run
from ocil.report.collect import collect
from ocil.report.papers import load
from ocil.report.show import renderables
from ocil.runs.build import build, check
from ocil.runs.config import RunConfig, resolve
from ocil.runs.protocol import Interrupted, Workspace
from ocil.runs.results import Result, sealed
from ocil.runs.stream_run import StreamRun, run
from ocil.streams import Stream, StreamConfig
from tests.networks_to_try import TINY
from tests.test_runner import stop_at, told

pytestmark = pytest.mark.usefixtures("quick_convolution")


def configured(**settings: Any) -> RunConfig:
    usual = {"network": TINY, "tasks": 2, "memory": 20, "memory_batch": 5, "evaluate_every": 3}
    return resolve("er", "tiny", settings=usual | settings)


@pytest.mark.parametrize(
    "settings",
    [{"review": True}, {"boundary": "none", "growing": True}, {"boundary": "blurry", "class_order": "seeded"}],
    ids=str,
)
def test_each_point_is_what_a_slow_version_finds(tiny: Dataset, tmp_path: Path, settings: dict[str, Any]) -> None:
    config = configured(**settings)
    result = run(config, tmp_path, dataset=tiny, device="cpu")
    stream = Stream(tiny, config.stream, config.seed)
    learner, seen = build(config, tiny), set[int]()
    points: list[dict[str, Any]] = []
    for part in stream:
        seen |= set(part.y.tolist())
        learner.learn(part.x, part.y)
        if part.ends_task:
            learner.end_task()
        done = part.number + 1
        if settings.get("boundary") == "none" and config.learner.review and done % config.learner.review_every == 0:
            learner.review()
        if done % 3 == 0:
            correct = [0] * tiny.num_classes
            for image, label in zip(tiny.test_x, tiny.test_y.tolist(), strict=True):
                guess = int(learner.scores(torch.from_numpy(image[None])).argmax())
                correct[label] += label in seen and guess == label
            tested = sum(label in seen for label in tiny.test_y.tolist())
            points.append({"batch": done, "accuracy": sum(correct) / tested, "correct": correct})
    record = result.anytime
    assert [point["batch"] for point in record["points"]] == [point["batch"] for point in points]
    for mine, slow in zip(record["points"], points, strict=True):
        assert np.abs(np.subtract(mine["correct"], slow["correct"])).sum() <= 1  # rounding may turn one image
        assert mine["accuracy"] == pytest.approx(slow["accuracy"], abs=0.1)
    assert record["tested"] == np.bincount(tiny.test_y).tolist()
    for name, batch in enumerate(record["arrived"]):
        first = min(part.number for part in stream if name in part.y.tolist())
        assert batch == first + 1


def test_learning_does_not_change_and_old_results_stay_as_they_are(tiny: Dataset, tmp_path: Path) -> None:
    plain = run(configured(evaluate_every=0), tmp_path, dataset=tiny, device="cpu")
    more = run(configured(), tmp_path, dataset=tiny, device="cpu")
    assert plain.digest == more.digest
    assert plain.matrix == more.matrix
    assert "anytime" not in plain.to_json()
    assert plain.config.cell == configured(evaluate_every=0).identified(tiny).cell != more.config.cell
    assert plain.config.reference() == more.config.reference()


@pytest.mark.parametrize("stops", [(3, 2), (4, 3)])
def test_a_stopped_run_has_the_same_curve(tiny: Dataset, tmp_path: Path, stops: tuple[int, ...]) -> None:
    config = configured(evaluate_every=2)
    undisturbed = run(config, tmp_path / "a", dataset=tiny, device="cpu")
    for batch in stops:
        with pytest.raises(Interrupted):
            run(config, tmp_path / "b", dataset=tiny, device="cpu", should_stop=stop_at(batch))
    resumed = run(config, tmp_path / "b", dataset=tiny, device="cpu")
    assert told(resumed) == told(undisturbed)
    assert resumed.anytime == undisturbed.anytime
    assert len(resumed.anytime["points"]) == 4
    again = Result.from_json(json.loads(json.dumps(resumed.to_json())))
    assert again.anytime == resumed.anytime
    assert ("anytime accuracy", 4, again.anytime["points"][1]["accuracy"]) in list(again.curves)


def test_runs_that_take_turns_have_the_same_curve(tiny: Dataset, tmp_path: Path) -> None:
    config = configured()
    alone = run(config, tmp_path / "a", dataset=tiny, device="cpu")
    runs = [StreamRun(replace(config, seed=seed)) for seed in (0, 1)]
    workspace = Workspace(tmp_path / "b", torch.device("cpu"), None, 1, dataset=tiny)
    outcomes = take_turns(runs, workspace, 2, Observer())
    found = outcomes[runs[0].key]
    assert isinstance(found, Result)
    assert found.anytime == alone.anytime


def test_a_given_stream_is_evaluated_as_the_settings_ask(tiny: Dataset, tmp_path: Path) -> None:
    stream = Stream(tiny, StreamConfig(tasks=2))
    result = run(configured(evaluate_every=4), tmp_path, stream=stream, device="cpu")
    assert [point["batch"] for point in result.anytime["points"]] == [4, 8]


def test_measures_by_hand() -> None:
    record: Any = {"points": [{"accuracy": 0.5}, {"accuracy": 0.1}, {"accuracy": 0.3}]}
    assert measures.average_anytime_accuracy(record) == pytest.approx(0.3)
    assert measures.lowest_anytime_accuracy(record) == 0.1
    assert measures.average_anytime_accuracy({}) is measures.lowest_anytime_accuracy({}) is None


def test_a_record_that_is_none_is_refused(tiny: Dataset, tmp_path: Path) -> None:
    content = run(configured(), tmp_path, dataset=tiny, device="cpu").to_json()
    for name, value in (("batch", 0), ("accuracy", 1.5), ("correct", [1]), ("batch", True)):
        damaged = copy.deepcopy(content)
        damaged["anytime"]["points"][-1][name] = value
        with pytest.raises(ValueError, match="anytime"):
            Result.from_json(sealed(damaged))


def test_it_is_shown_and_counted(tiny: Dataset, tmp_path: Path) -> None:
    run(configured(), tmp_path, dataset=tiny, device="cpu")
    (cell,) = collect([tmp_path]).cells
    text = "\n".join(str(part) for part in renderables(cell, load("none")))
    assert "every 3 batches" in text
    assert re.search(r", lowest \d+\.\d %", text)
    size = Size(100, 50, 4, (8, 8, 3))
    assert cost_of_run(configured(), size).images > cost_of_run(configured(evaluate_every=0), size).images


def test_evaluations_that_would_never_come_are_refused(tiny: Dataset, tmp_path: Path) -> None:
    late = configured(evaluate_every=10_000)
    with pytest.raises(OcilError, match=r"evaluate_every = 10000 is more than the \d+ batches of the stream: no eval"):
        run(late, tmp_path, dataset=tiny, device="cpu")
    assert not list(tmp_path.iterdir())
    check(configured(evaluate_every=len(Stream(tiny, late.stream))), tiny)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(OcilError, match="evaluate_every = -1 must be at least 0"):
        configured(evaluate_every=-1)
