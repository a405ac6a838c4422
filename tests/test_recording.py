"""What a run records for measures: against slow versions, without influence on learning, through stops, as shown."""

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluation.anytime import AnytimeEvaluator
from ocil.evaluation.evaluator import Evaluator
from ocil.evaluation.measures import MEASURES
from ocil.evaluation.prequential import Prequential
from ocil.evaluation.probe import encoder_of, fit, probe
from ocil.evaluation.subset import chosen_images
from ocil.experiments.estimate import Size, cost_of_run
from ocil.report.collect import collect
from ocil.report.papers import load
from ocil.report.result_tables import legend, summary_table
from ocil.report.show import renderables, summary_json
from ocil.runs.build import build, check
from ocil.runs.config import RunConfig, resolve
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted
from ocil.runs.results import Result, sealed, summarise
from ocil.runs.stepper import Stepper
from ocil.runs.stream_run import ActiveStreamRun, run
from ocil.streams import DeviceData, Stream
from ocil.testing.watch import HostWatch
from tests.networks_to_try import TINY
from tests.reference.datasets import patterned
from tests.test_engine_gpu import FakeCapture
from tests.test_runner import stop_at, told

pytestmark = pytest.mark.usefixtures("quick_convolution")

ALL: dict[str, Any] = {"evaluate_every": 3, "evaluate_on": 4, "prequential": 2, "probe": True}


def configured(name: str = "er", **settings: Any) -> RunConfig:
    usual = {"network": TINY, "tasks": 2, "memory": 20, "memory_batch": 5}
    return resolve(name, "tiny", settings=usual | settings)


@pytest.fixture(scope="module")
def measured(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(configured(review=True, **ALL), tmp_path_factory.mktemp("runs"), dataset=tiny, device="cpu")


def test_learning_and_names_do_not_depend_on_what_is_measured(tiny: Dataset, measured: Result, tmp_path: Path) -> None:
    plain = run(configured(review=True), tmp_path, dataset=tiny, device="cpu")
    assert (plain.digest, plain.matrix, plain.evaluations) == (measured.digest, measured.matrix, measured.evaluations)
    assert plain.cost == measured.cost
    for name in ("anytime", "prequential", "probe"):
        assert name not in plain.to_json()
    assert {"evaluate_on", "prequential", "probe"}.isdisjoint(plain.config.settings["stream"])
    assert plain.config.reference() == measured.config.reference()


@pytest.mark.parametrize("stops", [(3,), (5, 2)])
def test_a_stopped_run_has_the_same_record(
    tiny: Dataset, measured: Result, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    for batch in stops:
        with pytest.raises(Interrupted):
            run(measured.config, tmp_path, dataset=tiny, device="cpu", should_stop=stop_at(batch))
    resumed = run(measured.config, tmp_path, dataset=tiny, device="cpu")
    assert told(resumed) == told(measured)
    for name in ("anytime", "prequential", "probe", "confusion", "calibration", "cost", "tested", "groups"):
        assert getattr(resumed, name) == getattr(measured, name), name
    assert RunFolder.of(tmp_path, measured.config).result() == resumed


@pytest.mark.parametrize(
    ("name", "settings"),
    [("er", {}), ("er", {"growing": True, "boundary": "none"}), ("scr", {"growing": True}), ("er", {"average": 0.5})],
    ids=str,
)
def test_each_batch_is_classified_before_it_is_learned(
    tiny: Dataset, tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    config = configured(name, prequential=3, review=False, **settings)
    record = run(config, tmp_path, dataset=tiny, device="cpu").prequential
    learner, stream = build(config, tiny), Stream(tiny, config.stream, config.seed)
    met, correct, seen = set[int](), Counter[int](), Counter[int]()
    for part in stream:
        window = part.number // 3
        for image, label in zip(part.x, part.y.tolist(), strict=True):
            knows = bool(met) or not settings.get("growing")
            guess = int(learner.scores(image[None]).argmax()) if knows else -1
            correct[window] += guess == label
            seen[window] += 1
        met |= set(part.y.tolist())
        learner.learn(part.x, part.y)
        if part.ends_task:
            learner.end_task()
    assert record["every"] == 3
    assert record["seen"] == [seen[window] for window in sorted(seen)]
    assert np.abs(np.subtract(record["correct"], [correct[w] for w in sorted(seen)])).max() <= 1  # rounding
    assert sum(record["correct"]) > 0


@pytest.mark.parametrize("settings", [{"growing": True}, {"drop_last": False, "batch_size": 6}], ids=str)
def test_captured_predictions_are_the_same(tiny: Dataset, tmp_path: Path, settings: dict[str, Any]) -> None:
    config = configured(**ALL, **settings)
    found = []
    for resident, stepper in ((True, Stepper), (True, FakeCapture), (False, FakeCapture)):
        place = RunFolder(tmp_path / f"{stepper.__name__}-{resident}")
        data = DeviceData(tiny, "cpu", resident=resident)
        work = ActiveStreamRun(config, place, tiny, data, stepper)
        list(work.steps())
        result = work.finish()
        work.stream.close()
        found.append((result.digest, result.prequential, result.anytime))
    assert all(each == found[0] for each in found)


def test_counts_per_class_are_those_of_the_matrix(tiny: Dataset, measured: Result) -> None:
    assert measured.tested == np.bincount(tiny.test_y).tolist()
    assert sorted(sum(measured.groups, [])) == list(range(tiny.num_classes))  # noqa: RUF017
    for row, evaluation in zip(measured.matrix, measured.evaluations, strict=True):
        for accuracy, group in zip(row, measured.groups, strict=True):
            right, count = (sum(values[c] for c in group) for values in (evaluation["correct"], measured.tested))
            assert accuracy == pytest.approx(right / count)
    assert [row[c] for c, row in enumerate(measured.confusion)] == measured.evaluations[-1]["correct"]
    assert sum(measured.calibration["count"]) == len(tiny.test_y)
    assert sum(measured.calibration["correct"]) == sum(measured.evaluations[-1]["correct"])
    assert measured.anytime["tasks"] == measured.anytime["reviews"] == [4, 8]
    assert [point["samples"] for point in measured.anytime["points"]] == [30, 60]


def test_every_measure_has_a_value_and_keeps_its_range(measured: Result) -> None:
    for name, measure in MEASURES.items():
        value = measure.of(measured)
        assert value is not None, name
        assert measure.bounds is not None
        assert measure.bounds[0] <= value <= measure.bounds[1], name


def test_a_part_of_the_test_images_is_balanced_and_fixed() -> None:
    data = patterned(classes=4)
    chosen = chosen_images(data, 10)
    assert len(set(chosen.tolist())) == 10
    assert sorted(Counter(data.test_y[chosen]).values()) == [2, 2, 3, 3]
    assert chosen.tolist() == chosen_images(data, 10).tolist()
    few = replace(data, test_x=data.test_x[3:], test_y=np.array([0, *([1, 2, 3] * 12)]))
    assert sorted(Counter(few.test_y[chosen_images(few, 10)]).values()) == [1, 3, 3, 3]
    assert chosen_images(data, 0).tolist() == chosen_images(data, 99).tolist() == list(range(40))
    with pytest.raises(OcilError, match="evaluate_on = 3 is too small: give at least 4, one image per class"):
        chosen_images(data, 3)
    domains = with_domains(data)
    chosen = chosen_images(domains, 24)
    assert domains.test_domain is not None
    kinds = zip(domains.test_domain[chosen].tolist(), data.test_y[chosen].tolist(), strict=True)
    assert set(Counter(kinds).values()) == {2}
    with pytest.raises(OcilError, match="give at least 12, one image per class of each domain"):
        chosen_images(domains, 11)


def test_points_on_a_part_are_a_slow_versions(tiny: Dataset, measured: Result) -> None:
    images = chosen_images(tiny, 4)
    assert measured.anytime["subset"] == 4
    assert measured.anytime["tested"] == np.bincount(tiny.test_y[images]).tolist()
    learner, stream = build(measured.config, tiny), Stream(tiny, measured.config.stream)
    for part in stream:
        learner.learn(part.x, part.y)
        if part.ends_task:
            learner.end_task()
        if part.number == 5:  # all classes of the first task and one or two of the second
            guesses = learner.scores(torch.from_numpy(tiny.test_x[images])).argmax(1).tolist()
            point = measured.anytime["points"][1]
            for label, guess in zip(tiny.test_y[images].tolist(), guesses, strict=True):
                known = measured.anytime["arrived"][label] <= 6
                assert point["correct"][label] == (known and guess == label)


def test_nothing_is_counted_unless_it_is_asked_for(tiny: Dataset) -> None:
    stream = Stream(tiny, configured().stream)
    anytime, prequential = AnytimeEvaluator(stream), Prequential(stream)
    assert not any(anytime.is_due(batches) for batches in range(len(stream) + 1))
    assert anytime.counts.numel() == 0
    assert anytime.state() == prequential.state() == {}
    assert anytime.record([], []) == prequential.record() == {}


@pytest.mark.parametrize("domains", [False, True])
def test_points_at_task_ends_take_over_what_is_known(domains: bool) -> None:
    data = with_domains(patterned(per_class=10)) if domains else patterned(per_class=10)
    settings = {"network": TINY, "tasks": 2, "memory": 20, "batch_size": 5, "memory_batch": 5, "evaluate_every": 4}
    config = resolve("er", "patterned", settings=settings, classes=4)
    learner, stream = build(config, data), Stream(data, config.stream)
    learner.learn(*stream.fetch(0))
    computed, taken_over = AnytimeEvaluator(stream), AnytimeEvaluator(stream)
    for batches in (4, 8):
        computed.count(learner, batches)
        taken_over.count(learner, batches, known=Evaluator(stream).start(learner, 0).correct)
    first, second = (evaluator.record([], [])["points"] for evaluator in (computed, taken_over))
    assert first == second
    assert sum(first[0]["correct"]) > 0


def test_the_probe_is_ridge_regression_on_frozen_features() -> None:
    data = patterned()
    config = resolve(
        "er", "patterned", settings={"network": TINY, "tasks": 2, "memory": 20, "batch_size": 5}, classes=4
    )
    stream = Stream(data, config.stream)
    learner = build(config, data)
    for part in stream:
        learner.learn(part.x, part.y)
    before = {name: value.clone() for name, value in learner.state().items()}
    found = probe(learner, stream)
    assert all(torch.equal(before[name], value) for name, value in learner.state().items())
    assert found == probe(learner, stream)
    encode = encoder_of(learner)
    index = np.unique(np.concatenate([stream.arrivals.samples[first:last] for first, last in stream.bounds]))
    train, test = (encode(torch.from_numpy(x)).numpy() for x in (data.train_x[index], data.test_x))
    mean, scale = train.mean(axis=0), train.std(axis=0)
    scale[scale == 0] = 1
    z = (train - mean) / scale
    targets = np.eye(4)[data.train_y[index]]
    # Ridge regression as least squares: rows of sqrt(penalty) below the centred samples.
    rows = np.concatenate([z, np.sqrt(1e-3 * len(z)) * np.eye(z.shape[1])])
    weights = np.linalg.lstsq(rows, np.concatenate([targets - targets.mean(0), np.zeros((z.shape[1], 4))]), rcond=None)[
        0
    ]
    scores = (test - mean) / scale @ weights + targets.mean(0)
    ours = fit([torch.from_numpy(train)], [torch.from_numpy(data.train_y[index])], 4)[0].numpy()
    assert np.allclose(ours[:-1], weights, atol=1e-8)
    assert np.allclose(ours[-1], targets.mean(0))
    correct = np.bincount(data.test_y, scores.argmax(1) == data.test_y, 4)
    assert found["correct"] == correct.tolist()
    assert found["accuracy"] == correct.sum() / len(data.test_y) > 0.5


def test_cost_by_hand(tiny: Dataset, measured: Result, tmp_path: Path) -> None:
    """Eight batches of 10 with 5 from the memory each, and two reviews of 20 stored images in batches of 10."""
    each = 8 * 8 + 8
    assert measured.cost["images"] == 8 * (10 + 5) + 2 * 20
    assert measured.cost["forward"] == 0
    assert measured.cost["memory_bytes"] == 20 * each
    learner = build(measured.config, tiny)
    weights = sum(value.nbytes for value in learner.network.state_dict().values())
    assert weights <= measured.cost["state_bytes"] <= weights + 100  # and a few counters
    twice = run(configured(review=True, average=0.9), tmp_path, dataset=tiny, device="cpu")
    assert twice.cost["state_bytes"] >= 2 * weights
    momentum = run(configured(momentum=0.9), tmp_path, dataset=tiny, device="cpu")
    assert momentum.cost["state_bytes"] > 1.5 * weights
    assert run(configured("mir", candidates=8), tmp_path, dataset=tiny, device="cpu").cost["forward"] > 0
    assert (
        run(configured("fine-tune", memory=0, memory_batch=None), tmp_path, dataset=tiny, device="cpu").cost[
            "memory_bytes"
        ]
        == 0
    )


def with_domains(data: Dataset) -> Dataset:
    """The same images with three domains, which take turns."""
    train, test = (np.arange(len(y)) // data.num_classes % 3 for y in (data.train_y, data.test_y))
    return replace(data, train_domain=train, test_domain=test, domains=("day", "dusk", "night"))


def test_counts_by_domain_add_up(tmp_path: Path) -> None:
    data = with_domains(patterned(per_class=10))
    settings = {"network": TINY, "tasks": 2, "memory": 20, "batch_size": 5, "memory_batch": 5, "evaluate_every": 4}
    config = resolve("er", "patterned", settings=settings, classes=4)
    result = run(config, tmp_path, dataset=data, device="cpu")
    assert np.sum(result.tested_by_domain, axis=0).tolist() == result.tested
    assert len(result.tested_by_domain) == 3
    for evaluation in result.evaluations:
        assert np.sum(evaluation["correct_by_domain"], axis=0).tolist() == evaluation["correct"]
    for point in result.anytime["points"]:
        assert np.sum(point["correct_by_domain"], axis=0).tolist() == point["correct"]
    assert max(result.anytime["domains_arrived"]) <= 3
    again = Result.from_json(json.loads(json.dumps(result.to_json())))
    assert again.tested_by_domain == result.tested_by_domain


def test_tasks_of_domains(tmp_path: Path) -> None:
    """Two tasks of three domains: the columns of the matrix, and what measures over time compare."""
    data = with_domains(patterned(per_class=12))
    settings = {"network": TINY, "tasks": 2, "memory": 20, "batch_size": 4, "memory_batch": 5, "evaluate_every": 2}
    config = resolve("er", "patterned", settings=settings | {"scenario": "domain"}, classes=4, domains=3)
    result = run(config, tmp_path, dataset=data, device="cpu")
    assert not result.groups
    tasks = result.anytime["domain_groups"]
    assert sorted(map(len, tasks)) == [1, 2]
    tested = np.array(result.tested_by_domain)
    for row, evaluation in zip(result.matrix, result.evaluations, strict=True):
        correct = np.array(evaluation["correct_by_domain"])
        assert row == pytest.approx([correct[task].sum() / tested[task].sum() for task in tasks])
    last = result.anytime["points"][-1]
    assert last["batch"] == result.anytime["tasks"][-1]
    assert last["correct"] == result.evaluations[-1]["correct"]
    later = [p for p in result.anytime["points"] if p["batch"] > result.anytime["tasks"][0]]
    low = min(np.array(p["correct_by_domain"])[tasks[0]].sum() for p in later) / tested[tasks[0]].sum()
    assert MEASURES["minimum_accuracy"].of(result) == pytest.approx(low)
    assert MEASURES["worst_case_accuracy"].of(result) == pytest.approx((result.matrix[-1][1] + low) / 2)
    assert MEASURES["forward_transfer"].of(result) == pytest.approx(result.matrix[0][1] - 1 / 4)


def test_many_classes_have_no_confusion_and_distances_no_calibration(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocil.evaluation.evaluator.MOST_CLASSES", 3)
    config = configured("scr", review=False)
    result = run(config, tmp_path, dataset=tiny, device="cpu")
    assert not result.confusion
    assert not result.calibration
    assert MEASURES["expected_calibration_error"].of(result) is None


Damage = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda c: c["evaluations"][0].update(correct=[1]), "correct of an evaluation"),
        (lambda c: c["evaluations"][0].update(correct=[99] * 4), "too large"),
        (lambda c: c["evaluations"][0].update(correct=[True] * 4), "whole numbers"),
        (lambda c: c["evaluations"][0].update(correct_by_domain=[[1] * 4]), "correct_by_domain"),
        (lambda c: c.update(tested=[-1, 2, 3, 4]), "tested"),
        (lambda c: c.update(tested=[0.5] * 4), "tested"),
        (lambda c: c.update(tested="1234"), "tested"),
        (lambda c: c.update(tested=[1 << 60] * 4), "tested"),
        (lambda c: c.update(groups=[[0, 1], [1, 2]]), "two groups"),
        (lambda c: c.update(groups=[[0, 9]]), "does not exist"),
        (lambda c: c.update(groups=[[]]), "a group is empty"),
        (lambda c: c.update(groups={"a": 1}), "groups"),
        (lambda c: c.update(confusion=[[1] * 4]), "confusion"),
        (lambda c: c.update(confusion=[[0] * 4] * 4), "confusion"),
        (lambda c: c.update(confusion=[[0] * 4] * 9999), "confusion"),
        (lambda c: c["calibration"].update(count=[1] * 14), "calibration"),
        (lambda c: c["calibration"].update(confidence=[float("nan")] * 15), "calibration"),
        (lambda c: c["calibration"].update(confidence=[1e9] * 15), "calibration"),
        (lambda c: c.update(calibration=[]), "calibration"),
        (lambda c: c["prequential"].update(every=0), "prequential"),
        (lambda c: c["prequential"].update(correct=[0]), "prequential"),
        (lambda c: c["prequential"].update(correct=[999] * 5), "prequential"),
        (lambda c: c["probe"].update(accuracy=float("nan")), "probe"),
        (lambda c: c["probe"].update(correct=[]), "probe"),
        (lambda c: c["cost"].update(images=-1), "cost"),
        (lambda c: c["cost"].update(forward=float("inf")), "cost"),
        (lambda c: c["anytime"].update(subset=0), "anytime"),
        (lambda c: c["anytime"].update(tasks=[5, 5]), "anytime"),
        (lambda c: c["anytime"].update(arrived=[1]), "anytime"),
        (lambda c: c["anytime"]["points"][1].pop("samples"), "anytime"),
        (lambda c: c["anytime"]["points"][1].update(samples=1), "anytime"),
        (lambda c: c["anytime"]["points"][1].update(correct=[-1] * 4), "anytime"),
        (lambda c: c["anytime"]["points"][1].update(accuracy=float("nan")), "anytime"),
        (lambda c: c["anytime"].update(tested_by_domain=[[1] * 4], domains_arrived=[1]), "correct_by_domain"),
    ],
)
def test_a_record_that_no_run_writes_is_refused(measured: Result, damage: Damage, said: str) -> None:
    content = copy.deepcopy(measured.to_json())
    assert Result.from_json(sealed(content)) == measured
    damage(content)
    with pytest.raises((ValueError, KeyError), match=said):
        Result.from_json(sealed(content))


def test_results_of_before_are_read(measured: Result) -> None:
    content = measured.to_json()
    new = ("tested", "groups", "confusion", "calibration", "prequential", "probe", "cost", "anytime")
    old = {name: value for name, value in content.items() if name not in new}
    old["evaluations"] = [{k: v for k, v in row.items() if k != "correct"} for row in content["evaluations"]]
    result = Result.from_json(sealed(old))
    assert result.matrix == measured.matrix
    assert MEASURES["backward_transfer"].of(result) is not None
    assert MEASURES["forward_transfer"].of(result) is None
    assert summarise([result]).measures["worst_case_accuracy"] is None


def test_files_have_lists_of_numbers_in_one_line(measured: Result, tmp_path: Path) -> None:
    RunFolder(tmp_path).save_result(measured)
    text = (tmp_path / "result.json").read_text()
    assert f'"tested": {json.dumps(measured.tested, separators=(",", ":"))}' in text
    assert json.loads(text) == json.loads(json.dumps(measured.to_json()))


def test_it_is_shown(tiny: Dataset, measured: Result, tmp_path: Path) -> None:
    run(measured.config, tmp_path, dataset=tiny, device="cpu")
    (cell,) = collect([tmp_path]).cells
    shown = [str(part) for part in renderables(cell, load("none"))]
    assert any("every 3 batches on 4 of the test images" in part for part in shown)
    found = summary_json(cell, load("none"))
    assert found["measures"].keys() == set(MEASURES)
    assert found["evaluate_on"] == 4
    table = summary_table([cell.summary])
    assert table.title.endswith("A_AUC and WC-ACC on 4 test images")
    heads = [column.title for column in table.columns]
    assert [head for head in heads if head.startswith(("A_AUC", "WC-ACC", "prequential", "linear probe"))] == [
        "A_AUC %",
        "WC-ACC %",
        "prequential %",
        "linear probe %",
    ]
    explained = {line.partition(":")[0] for line in legend([cell.summary])}
    shown_heads = {head.removesuffix(" %") for head in heads if head.endswith("%")}
    assert shown_heads - explained == {"intransigence"}  # it has no value here
    plain = summarise([replace(measured, anytime={}, prequential={}, probe={})])
    assert not [line for line in legend([plain]) if line.startswith("A_AUC")]
    assert not [c for c in summary_table([plain]).columns if c.title == "A_AUC %"]


def test_time_estimates_count_it() -> None:
    size = Size(100, 50, 4, (8, 8, 3))
    plain, every = (cost_of_run(configured(evaluate_every=each), size).images for each in (0, 3))
    assert plain < cost_of_run(configured(evaluate_every=3, evaluate_on=10), size).images < every
    assert cost_of_run(configured(prequential=1), size).images > plain
    assert cost_of_run(configured(probe=True), size).images > plain


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"evaluate_on": -1, "evaluate_every": 1}, "evaluate_on = -1 must be at least 0"),
        ({"prequential": -1}, "prequential = -1 must be at least 0"),
        ({"evaluate_on": 8}, "evaluate_on = 8 is about the evaluations of evaluate_every: give that too"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(OcilError, match=said):
        configured(**settings)


def test_more_than_a_result_holds_is_refused(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocil.evaluation.anytime.MOST_COUNTS", 8)
    monkeypatch.setattr("ocil.evaluation.prequential.MOST_WINDOWS", 4)
    with pytest.raises(OcilError, match=r"evaluate_every = 2 makes 4 evaluations of 4 classes.*give at least 5"):
        run(configured(evaluate_every=2), tmp_path, dataset=tiny, device="cpu")
    with pytest.raises(OcilError, match=r"evaluate_every = 2 makes 4"):
        check(configured(evaluate_every=2), tiny)
    with pytest.raises(OcilError, match=r"evaluate_on = 2 is too small"):
        check(configured(evaluate_every=8, evaluate_on=2), tiny)
    with pytest.raises(OcilError, match=r"prequential = 1 makes 8 windows.*give at least 2"):
        run(configured(prequential=1), tmp_path, dataset=tiny, device="cpu")


def test_a_checkpoint_without_the_counts_is_refused(tiny: Dataset, tmp_path: Path) -> None:
    """One of a version that kept them elsewhere."""
    config = configured(prequential=2)
    with pytest.raises(Interrupted):
        run(config, tmp_path, dataset=tiny, device="cpu", should_stop=stop_at(3))
    folder = RunFolder.of(tmp_path, config.identified(tiny))
    found = folder.load_checkpoint()
    assert found is not None
    tensors, progress = found
    assert tensors.pop("evaluation.prequential").shape == (4,)
    folder.save_checkpoint(tensors, progress)
    with pytest.raises(OcilError, match=r"cannot read .*prequential"):
        run(config, tmp_path, dataset=tiny, device="cpu")


@pytest.mark.parametrize("settings", [{}, {"growing": True}, {"average": 0.5}], ids=str)
def test_evaluations_are_queued_without_waiting_for_the_device(tiny: Dataset, settings: dict[str, Any]) -> None:
    config = configured(**ALL | {"evaluate_on": 0}, **settings)
    learner, stream = build(config, tiny), Stream(tiny, config.stream)
    learner.learn(*stream.fetch(0))
    x, y = stream.fetch(1)
    prequential, anytime, evaluator = Prequential(stream), AnytimeEvaluator(stream), Evaluator(stream)
    started = []
    with HostWatch() as watch:
        prequential.begin(1)
        prequential.count(learner, x, y)
        anytime.count(learner, 3)
        started.append(evaluator.start(learner, 1))
        anytime.count(learner, 6, known=started[0].correct)
    assert len(watch.trace) > 100
    assert started[0].result().correct == anytime.record([], [])["points"][1]["correct"]


def test_batch_statistics_do_not_move_in_evaluations(tiny: Dataset) -> None:
    config = configured(**ALL)
    learner, stream = build(config, tiny), Stream(tiny, config.stream)
    learner.learn(*stream.fetch(0))
    before = {name: value.clone() for name, value in learner.state().items()}
    prequential, anytime = Prequential(stream), AnytimeEvaluator(stream)
    prequential.count(learner, *stream.fetch(1))
    anytime.count(learner, 3)
    Evaluator(stream)(learner, 1)
    assert learner.network.training
    assert all(torch.equal(before[name], value) for name, value in learner.state().items())


def test_a_class_without_images_may_be_predicted(tiny: Dataset) -> None:
    """A search on the first tasks scores the classes of the later ones too."""
    data, config = replace(tiny, unseen=2), configured()
    learner, stream = build(config, data), Stream(data, config.stream)
    head = learner.network.head
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        head.bias[5] = 1e6
    found = Evaluator(stream)(learner, 1)
    assert found.correct == [0] * 4
    assert found.confusion is None
