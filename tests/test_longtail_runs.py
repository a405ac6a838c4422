"""Long-tailed runs on made data: they learn, resume bit for bit, and are told by the command line and the report."""

import csv
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ocil import precision, tensorfile
from ocil.data import Dataset
from ocil.engines import execute, gpu, pool
from ocil.engines.job import Job, Observer, Outcome, in_order
from ocil.errors import InUseError, OcilError
from ocil.longtail import data, runs
from ocil.longtail.config import ONE_STAGE, VARIANTS, LongTailConfig, resolve
from ocil.longtail.data import LongTailDeviceData
from ocil.longtail.metrics import LATER, MEASURES
from ocil.longtail.results import LongTailResult, cells, read_result
from ocil.longtail.runs import LongTailRun, RecordedSteps, run
from ocil.longtail.training import BalancedStage, StageOne, StageTwo, plain_network, predict
from ocil.networks import evaluating, to_float
from ocil.report import longtail, papers
from ocil.report.collect import collect
from ocil.report.table import csv as as_csv
from ocil.report.table import latex, markdown
from ocil.report.write import write
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted, Progress, Run
from ocil.runs.results import sealed, write_json
from ocil.tensorfile import DamagedFileError
from ocil.testing.watch import HostWatch
from tests.conftest import Call, Script, left_over, one_error
from tests.reference import longtail as slow
from tests.reference.datasets import patterned

pytestmark = [pytest.mark.usefixtures("quick_convolution"), pytest.mark.slow]

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "imbalance": 8,
    "open_share": 0.2,
    "validation": 8,
    "width": 2,
    "batch_size": 16,
    "epochs1": 3,
    "epochs2": 3,
    "decay_every1": 2,
    "decay_every2": 2,
    "crop_scale": 0.8,
    "jitter": 0.1,
}
WORDS = ("validation=8", "width=2", "batch_size=16", "epochs1=2", "epochs2=2", "crop_scale=0.8")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "made.npz"
    patterned(per_class=48, classes=5).save(path)
    return path


@pytest.fixture(scope="session")
def whole(made: Path) -> Dataset:
    from ocil.data import load

    return load(made)


def config(made: Path, variant: str = "oltr-rfld", seed: int = 0, **settings: Any) -> LongTailConfig:
    return resolve(variant, str(made), seed=seed, settings=SETTINGS | settings)


def device_data(config: LongTailConfig, whole: Dataset) -> LongTailDeviceData:
    return LongTailDeviceData(data.load(config, dataset=whole), CPU)


def carry_out(plan: list[LongTailConfig], job: Job, observer: Observer | None = None) -> list[Outcome]:
    """The outcomes in the order of the configurations."""
    runs = [LongTailRun(config) for config in plan]
    outcomes = execute(runs, job, observer)
    return [outcomes[run.key] for run in runs]


def taking_turns(plan: list[LongTailConfig], job: Job) -> list[Outcome]:
    """The same as on a GPU, whatever the device."""
    runs = [LongTailRun(config) for config in plan]
    outcomes = in_order(gpu.run_all, runs, job, Observer())
    return [outcomes[run.key] for run in runs]


def run_folder(root: Path, config: LongTailConfig) -> RunFolder:
    return LongTailRun(config).folder(root)


def stage1_folder(root: Path, config: LongTailConfig) -> RunFolder:
    return LongTailRun(config).stage1.folder(root)


def stage1_weights(root: Path, config: LongTailConfig) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    found = LongTailRun(config).stage1.weights(root)
    assert found is not None
    return found


def stage_two(config: LongTailConfig, whole: Dataset) -> StageTwo:
    held = device_data(config, whole)
    return StageTwo(config, held, plain_network(config, held))


@pytest.fixture(scope="session")
def finished(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[LongTailResult]]:
    """All variants, two seeds, long enough to learn. For the session: workers of the tests come back to this file."""
    root = tmp_path_factory.mktemp("runs")
    # The pictures are noise: cut out or mirrored, they are others.
    gentle = {
        "epochs1": 8,
        "epochs2": 6,
        "decay_every1": 6,
        "decay_every2": 4,
        "crop_scale": 1,
        "flip": 0,
        "jitter": 0.05,
    }
    plan = [config(made, variant, seed, **gentle) for variant in VARIANTS for seed in (0, 1)]
    outcomes = carry_out(plan, Job(root, "cpu", workers=1))
    assert all(isinstance(outcome, LongTailResult) for outcome in outcomes), outcomes
    return root, outcomes  # type: ignore[return-value]


# Stages


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in ONE_STAGE])
def test_a_step_leaves_the_host_alone(made: Path, whole: Dataset, variant: str) -> None:
    stage = stage_two(config(made, variant), whole)
    for _ in range(2):
        stage.step()
    with HostWatch() as watch:
        stage.step()
    first = watch.trace
    with HostWatch() as watch:
        stage.step()
    assert watch.trace == first  # the same operations on the same shapes


@pytest.mark.parametrize("kind", [StageOne, BalancedStage])
def test_a_step_of_stage_1_leaves_the_host_alone(made: Path, whole: Dataset, kind: type[StageOne]) -> None:
    stage = kind(config(made), device_data(config(made), whole))
    stage.step()
    with HostWatch():
        stage.step()


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_balanced_softmax_by_hand(made: Path, whole: Dataset, strength: float) -> None:
    """Loss and gradient by the logits: p_j n_j^s / Σ p n^s minus 1 for the label, over the batch."""
    stage = BalancedStage(config(made, "bs", adjustment=strength), device_data(config(made), whole))
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.1], [1.5, 0.2, 0.0, -0.7]], requires_grad=True)
    labels, counts = [3, 0], [n**strength for n in stage.data.split.counts.tolist()]
    stage.network.forward = lambda x: logits
    loss = stage.loss(torch.zeros(2, 1), torch.tensor(labels))
    loss.backward()
    assert loss.item() == pytest.approx(slow.balanced_softmax(logits.detach().numpy(), labels, counts), rel=1e-5)
    assert logits.grad is not None
    for row, label, gradient in zip(logits.tolist(), labels, logits.grad.tolist(), strict=True):
        mass = [n * np.exp(z) for n, z in zip(counts, row, strict=True)]
        by_hand = [(m / sum(mass) - (j == label)) / 2 for j, m in enumerate(mass)]
        assert gradient == pytest.approx(by_hand, abs=1e-6)


def test_balanced_softmax_begins_as_stage_1_and_learns_to_name_rare_classes(made: Path, whole: Dataset) -> None:
    held = device_data(config(made), whole)
    plain, balanced, none = (
        kind(config(made, "bs", adjustment=strength), held)
        for kind, strength in ((StageOne, 1), (BalancedStage, 1), (BalancedStage, 0))
    )
    assert torch.equal(plain.order, balanced.order)
    for _ in range(3):
        for stage in (plain, balanced, none):
            stage.step()
    assert all(torch.equal(a, b) for a, b in zip(plain.best.values(), balanced.best.values(), strict=True))
    assert torch.equal(plain.network.head.bias, none.network.head.bias)  # without adjustment it is stage 1
    more = balanced.network.head.bias - plain.network.head.bias  # the rarest class is last
    assert more[-1] > 0 > more[0]


def test_learning_rates_follow_the_schedule(made: Path, whole: Dataset) -> None:
    stage = stage_two(config(made, decay_every2=2, epochs2=5), whole)
    seen = []
    for epoch in range(5):
        stage.epoch = epoch
        stage.begin_epoch()
        seen.append([round(float(lr), 6) for lr in stage.lrs])
    assert seen == [[0.01, 0.1, 0.01]] * 2 + [[0.001, 0.01, 0.001]] * 2 + [[0.0001, 0.001, 0.0001]]


def test_every_parameter_learns_at_one_rate(made: Path, whole: Dataset) -> None:
    stage = stage_two(config(made), whole)
    groups = [[id(p) for p in optimiser.parameters] for optimiser in stage.optimisers]
    assert sorted(number for group in groups for number in group) == sorted(id(p) for p in stage.network.parameters())
    before = {name: p.detach().clone() for name, p in stage.network.named_parameters()}
    stage.begin_epoch()
    for _ in range(2):
        stage.step()
    # A bias before a softmax over places or pixels may see no gradient; everything else moves.
    still = {name for name, p in stage.network.named_parameters() if torch.equal(p, before[name])}
    assert not {name for name in still if "attention" not in name}


def test_centroids_start_as_class_means(made: Path, whole: Dataset) -> None:
    stage = stage_two(config(made), whole)
    split = stage.data.split
    with torch.no_grad(), evaluating(stage.network):
        features = [stage.network.features(to_float(torch.from_numpy(x[None])))[0].numpy() for x in split.train_x]
    for label in range(len(split.classes)):
        mean = np.mean([f for f, y in zip(features, split.train_y, strict=True) if y == label], axis=0)
        np.testing.assert_allclose(stage.network.centroids[label].detach().numpy(), mean, rtol=1e-4, atol=1e-5)


def test_images_are_standardised_by_the_training_images(made: Path, whole: Dataset) -> None:
    stage = StageOne(config(made), device_data(config(made), whole))
    pixels = stage.data.split.train_x.astype(float) / 255
    backbone = stage.network.backbone
    np.testing.assert_allclose(backbone.mean.flatten().numpy(), pixels.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(backbone.deviation.flatten().numpy(), pixels.std((0, 1, 2)), rtol=1e-5)


def test_the_first_epoch_of_the_dynamic_loss_has_mu_0(made: Path, whole: Dataset) -> None:
    stage = stage_two(config(made, share=1.0), whole)  # the highest score counts
    assert stage.dynamic is not None
    for _ in range(stage.steps):
        assert (stage.dynamic.mu == 0).all()
        stage.step()
    assert int(stage.dynamic.counts.sum()) == stage.steps * 16  # every image that went through
    stage.end_epoch()
    assert int(stage.dynamic.counts.sum()) == 0
    assert (stage.dynamic.mu > 0).any()


def test_predictions_do_not_depend_on_the_batch(made: Path, whole: Dataset) -> None:
    stage = stage_two(config(made), whole)
    stage.step()
    images = stage.data.test_x
    predicted, confidence = predict(stage.network, images)
    for batch in (1, 7):
        other, sure = predict(stage.network, images, batch)
        assert torch.equal(predicted, other)
        torch.testing.assert_close(confidence, sure)
    assert len(predict(stage.network, images[:0])[0]) == 0


def test_recorded_steps_are_the_same_steps(made: Path, whole: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a graph: replaying runs the recorded work again."""
    plain, recorded = (stage_two(config(made), whole) for _ in range(2))
    stepper, calls = RecordedSteps(recorded), []
    stepper.capture = True

    def record(work: Callable[[], None], rng: object) -> Any:
        assert rng is recorded.rng
        calls.append(work)
        return type("Graph", (), {"replay": staticmethod(work)})

    monkeypatch.setattr(runs, "record", record)
    for _ in range(6):
        plain.step()
        stepper()
    assert len(calls) == 1
    for name, value in plain.state().items():
        assert torch.equal(value, recorded.state()[name]), name


# Runs


def test_all_variants_learn(finished: tuple[Path, list[LongTailResult]]) -> None:
    _, results = finished
    by_variant: dict[str, list[float]] = {}
    for result in results:
        assert result.split["classes"]
        overall = result.measures["overall"]
        assert overall is not None
        by_variant.setdefault(result.config.variant, []).append(overall)
        assert result.history[-1]["loss"] < result.history[0]["loss"]
    for variant, values in by_variant.items():
        assert np.mean(values) > 0.8, variant  # chance is a quarter


def test_the_best_epoch_is_chosen_on_validation_images(finished: tuple[Path, list[LongTailResult]]) -> None:
    for result in finished[1]:
        validation = [epoch["validation"] for epoch in result.history]
        assert result.validation == pytest.approx(max(validation))
        assert result.best_epoch == 1 + validation.index(max(validation))
        assert (result.mu is not None) == (result.config.variant == "oltr-rfld")
        if result.best_epoch == 1 and result.mu is not None:
            assert set(result.mu) == {0.0}


def test_stage_1_is_trained_once_and_is_what_plain_ce_is(
    finished: tuple[Path, list[LongTailResult]], whole: Dataset
) -> None:
    root, results = finished
    assert len(list(root.glob("*-stage1-*/seed-*/weights.safetensors"))) == 2
    for result in results:
        if result.config.variant == "bs":  # it trains in the place of stage 1
            assert (result.stage1, len(result.history)) == ({}, result.config.epochs1)
            assert (run_folder(root, result.config).path / "split.safetensors").is_file()
            continue
        assert result.stage1["digest"] == stage1_weights(root, result.config)[1]["digest"]
    ce = results[0]
    assert (ce.config.variant, ce.digest) == ("ce", ce.stage1["digest"])
    held = device_data(ce.config, whole)
    network = plain_network(ce.config, held)
    network.load_state_dict(stage1_weights(root, ce.config)[0])
    predicted, _ = predict(network, held.test_x)
    assert (predicted == held.test_y).float().mean().item() == pytest.approx(ce.measures["overall"])
    stage = StageTwo(replace(ce.config, variant="oltr"), held, network)
    assert torch.equal(stage.network.backbone.conv1.weight, network.backbone.conv1.weight)


def test_a_result_says_everything(finished: tuple[Path, list[LongTailResult]]) -> None:
    root, results = finished
    result = results[-1]
    path = run_folder(root, result.config).path / "result.json"
    again = read_result(path)
    assert again is not None
    assert again.to_json() == result.to_json()
    split = result.split
    assert (len(split["classes"]), len(split["open_classes"]), split["open"]) == (4, 1, 10)
    assert split["counts"] == data.profile(4, 40, 8)
    kept = stage1_folder(root, result.config).path / "split.safetensors"
    from safetensors.torch import load_file

    tensors = load_file(kept)
    assert len(tensors["train"]) == split["train"]
    assert len(tensors["validation"]) == split["validation"] == 32
    assert not left_over(root)
    assert not list(root.rglob("checkpoint.safetensors"))


def stopping(after: int) -> Callable[[], bool]:
    """True from the given question on: one is asked before each step."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    return stop


@pytest.mark.parametrize("variant", ["oltr-rfld", "oltr"])
def test_a_stopped_run_ends_with_the_same_bits(made: Path, tmp_path: Path, variant: str) -> None:
    chosen = config(made, variant)
    straight = run(chosen, tmp_path / "straight", device="cpu")
    stops, result = 0, None
    seen: list[Any] = []
    while result is None:
        try:
            # 4 steps per epoch: each attempt gets through an epoch and dies in the middle of the next.
            result = run(chosen, tmp_path / "stopped", device="cpu", should_stop=stopping(6), on_progress=seen.append)
        except Interrupted:
            stops += 1
            assert stops < 20
    assert stops >= 4
    assert result.digest == straight.digest
    assert result.stage1["digest"] == straight.stage1["digest"]
    assert (result.measures, result.history, result.mu) == (straight.measures, straight.history, straight.mu)
    assert {progress.done for progress in seen} == set(range(7))
    assert isinstance(seen[0], Progress)


def test_runs_that_take_turns_equal_runs_alone(made: Path, tmp_path: Path) -> None:
    plan = [config(made, variant, seed) for variant in ("ce", "oltr", "oltr-rfld") for seed in (0, 1)]
    together = taking_turns(plan, Job(tmp_path / "together", "cpu", workers=4))
    for chosen, outcome in zip(plan, together, strict=True):
        assert isinstance(outcome, LongTailResult)
        alone = run(chosen, tmp_path / "alone", device="cpu")
        assert (outcome.digest, outcome.measures) == (alone.digest, alone.measures)


def test_a_finished_run_is_not_run_again(finished: tuple[Path, list[LongTailResult]]) -> None:
    root, results = finished
    weights = stage1_folder(root, results[3].config).path / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    assert run(results[3].config, root, device="cpu").to_json() == results[3].to_json()
    assert weights.stat().st_mtime_ns == before


def test_a_kill_during_the_test_costs_no_epoch(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(made)
    seen: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(runs, "predict", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(chosen, tmp_path, device="cpu")
    result = run(chosen, tmp_path, device="cpu", on_progress=seen.append)
    assert {progress.done for progress in seen} == {6}  # nothing was trained again
    assert len(result.history) == 3
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


def test_what_another_process_finished_meanwhile_is_not_run_again(made: Path, tmp_path: Path) -> None:
    plan = [config(made, "oltr", seed) for seed in (0, 1)]
    others: dict[int, Any] = {}

    def watch(this: Run, event: object) -> None:
        if this.seed == 0 and isinstance(event, Progress) and event.done == 1 and not others:
            others[1] = None
            others[1] = run(replace(plan[1], variant="ce"), tmp_path, device="cpu")  # it has stage 1 of seed 1
            others[2] = stamp()
        if this.seed == 0 and isinstance(event, Progress) and event.done == 4 and len(others) == 2:
            others[3] = run(plan[1], tmp_path, device="cpu")

    def stamp() -> int:
        return (stage1_folder(tmp_path, plan[1]).path / "weights.safetensors").stat().st_mtime_ns

    outcomes = carry_out(plan, Job(tmp_path, "cpu", workers=1), Observer(watch))
    assert stamp() == others[2]
    assert isinstance(outcomes[1], LongTailResult)
    assert outcomes[1].to_json() == others[3].to_json()  # its seconds too


def test_a_loss_that_explodes_is_said(made: Path, tmp_path: Path) -> None:
    with pytest.raises(OcilError, match=r"not finite in epoch \d+. Lower"):
        run(config(made, lr1=1e30), tmp_path, device="cpu")
    outcomes = carry_out([config(made, v, lr1=1e30) for v in ("ce", "oltr")], Job(tmp_path / "all", "cpu", workers=1))
    assert all(isinstance(outcome, OcilError) for outcome in outcomes)
    assert all("ce seed 0" in str(outcome) for outcome in outcomes)  # the first variant that requires stage 1


def test_a_checkpoint_of_other_threads_is_refused(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Interrupted):
        run(config(made), tmp_path, device="cpu", should_stop=stopping(10))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    with pytest.raises(OcilError, match="was begun with 1 threads: go on with as many \\(--threads 1\\)"):
        run(config(made), tmp_path, device="cpu")


def test_other_images_of_that_name_are_refused(tmp_path: Path) -> None:
    file, root = tmp_path / "made.npz", tmp_path / "runs"
    first, other = patterned(per_class=48, classes=5), patterned(per_class=48, classes=5)
    other = replace(other, train_x=np.ascontiguousarray(other.train_x[:, ::-1]))
    first.save(file)
    with pytest.raises(Interrupted):
        run(config(file), root, device="cpu", should_stop=stopping(10))
    other.save(file)
    with pytest.raises(OcilError, match="was begun with other images of that name"):
        run(config(file), root, device="cpu")
    first.save(file)
    result = run(config(file, "oltr"), root, device="cpu")
    assert result.environment["images"] == first.fingerprint
    other.save(file)
    with pytest.raises(OcilError, match=r"stage1-.* was begun with other images of that name"):  # its stage 1 is shared
        run(config(file, "oltr-fl"), root, device="cpu")


def test_finished_runs_of_other_images_are_refused(ocil_command: Call, tmp_path: Path) -> None:
    file = tmp_path / "data/cifar10.npz"  # a name of the catalog does not vouch for the images
    made = replace(patterned(per_class=48, classes=5), name="cifar10")
    made.save(file)
    words = (
        "longtail",
        "run",
        "ce",
        "--dataset",
        "cifar10",
        "--data-dir",
        tmp_path / "data",
        "--device",
        "cpu",
        "--out",
        tmp_path / "runs",
        "--set",
        *WORDS,
    )
    assert ocil_command(*words, "--seeds", 1).code == 0
    assert ocil_command(*words, "--seeds", 1).code == 0
    with pytest.MonkeyPatch.context() as on_gpu:
        on_gpu.setattr(precision, "usual", lambda: "bf16")
        assert "has a run of this command in tf32" in one_error(ocil_command(*words, "--seeds", 1))
        assert ocil_command(*words, "precision=tf32", "--seeds", 1).code == 0
    replace(made, train_x=np.ascontiguousarray(made.train_x[:, ::-1])).save(file)
    assert "was begun with other images of that name" in one_error(ocil_command(*words, "--seeds", 2))
    (path,) = (tmp_path / "runs").rglob("result.json")
    content = json.loads(path.read_text())
    for seed, images in ((1, content["environment"]["images"]), (2, "others")):
        content["config"]["seed"], content["environment"]["images"] = seed, images
        write_json(path.parents[1] / f"seed-{seed}/result.json", sealed(content))
    found = collect([tmp_path / "runs"])
    assert [result.config.seed for result in found.longtail[0].results] == [0, 1]
    (warning,) = found.warnings
    assert "seed-2/result.json is left out: it had other images" in warning


def test_broken_files_are_named(made: Path, tmp_path: Path) -> None:
    chosen = config(made)
    with pytest.raises(Interrupted):
        run(chosen, tmp_path, device="cpu", should_stop=stopping(10))
    checkpoint = stage1_folder(tmp_path, chosen).checkpoint
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(OcilError, match=r"checkpoint\.safetensors"):
        run(chosen, tmp_path, device="cpu")
    weights = stage1_folder(tmp_path, chosen).path / "weights.safetensors"
    weights.write_bytes(b"nothing")
    with pytest.raises(OcilError, match=r"weights\.safetensors.*Delete it"):
        run(chosen, tmp_path, device="cpu")
    result = run_folder(tmp_path, chosen).path / "result.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text('{"kind": "longtail"}')
    with pytest.raises(OcilError, match="is not a long-tailed result"):
        run(chosen, tmp_path, device="cpu")


def test_a_changed_byte_is_refused(finished: tuple[Path, list[LongTailResult]], tmp_path: Path) -> None:
    result = finished[1][-1]
    root = tmp_path / "runs"
    shutil.copytree(finished[0], root)
    path = run_folder(root, result.config).path / "result.json"
    good = path.read_bytes()
    for place in range(0, len(good), 11):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with suppress(OcilError):
            assert read_result(path) == result  # it was in the space between two words
    path.write_bytes(good.replace(b'"checksum"', b'"chacksum"'))
    with pytest.raises(OcilError, match="does not match its checksum"):
        run(result.config, root, device="cpu")
    path.unlink()
    weights = stage1_folder(root, result.config).path / "weights.safetensors"
    split = weights.with_name("split.safetensors")
    for file in (weights, split):
        content = file.read_bytes()
        file.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        with pytest.raises(DamagedFileError, match="does not match its checksum"):
            tensorfile.read(file)
    with pytest.raises(OcilError, match=re.escape(f"cannot read {weights}: it is damaged")):
        run(result.config, root, device="cpu")
    weights.rename(tmp_path / "weights")
    weights.symlink_to(tmp_path / "weights")
    with pytest.raises(OcilError, match=re.escape(f"cannot read {weights}: it is a symbolic link")):
        run(result.config, root, device="cpu")


def test_too_few_images_for_a_batch(made: Path, tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="fewer than batch_size = 128"):
        run(config(made, batch_size=128), tmp_path, device="cpu")


def test_a_run_that_fails_does_not_stop_the_others(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stage: StageTwo, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if stage.config.variant == "oltr-fl":
            raise RuntimeError("out of luck")
        return logits.sum()

    monkeypatch.setattr(StageTwo, "classification", broken)
    plan = [config(made, variant) for variant in ("oltr-fl", "oltr")]
    failed, fine = taking_turns(plan, Job(tmp_path, "cpu", workers=2))
    assert isinstance(failed, OcilError)
    assert "oltr-fl" in str(failed)
    assert "RuntimeError: out of luck" in str(failed)
    assert isinstance(fine, LongTailResult)


# Table and report


def test_the_table(finished: tuple[Path, list[LongTailResult]]) -> None:
    found = cells(finished[1])
    assert [cell.config.variant for cell in found] == list(VARIANTS)
    document = longtail.document(found, papers.load())
    text = markdown(document)
    for name in longtail.NAMES.values():
        assert f"| {name} |" in text
    assert "another dataset" in text
    rows = list(csv.DictReader(as_csv(document.records).splitlines()))
    assert [row["source"] for row in rows] == ["measured"] * 6 + ["published"] * 5
    mean = 100 * np.mean([r.measures["overall"] for r in finished[1] if r.config.variant == "oltr"])
    assert float(rows[2]["overall"]) == pytest.approx(mean, abs=1e-3)
    assert rows[-1]["overall"] == "39.0"
    assert latex(document).count(r"\\") == 1 + 6 + 1 + 5
    assert text.count("Balanced softmax trains") == latex(document).count("Balanced softmax trains") == 1
    assert all(remark.startswith("Published: ") for remark in document.tables[0].remarks)
    assert len(document.tables[0].remarks) == len(papers.load().longtail.claims) - 1  # no many-shot class here
    bare = longtail.document(found, papers.NO_PAPER)
    assert [len(table.rows) for table in bare.tables] == [6]
    assert not bare.tables[0].remarks


def test_results_from_before_auroc(finished: tuple[Path, list[LongTailResult]]) -> None:
    old = [
        LongTailResult.from_json(
            sealed(r.to_json() | {"measures": {k: v for k, v in r.measures.items() if k not in LATER}})
        )
        for r in finished[1]
    ]
    assert set(old[0].measures) == set(MEASURES) - set(LATER)
    text = markdown(longtail.document(cells(old), papers.load()))
    assert "AUROC" not in text  # neither a column nor its explanation
    assert "F-measure |" in text
    (one, *_), mixed = old, markdown(longtail.document(cells([old[0], *finished[1][1:]]), papers.load()))
    assert "AUROC: how often a known image" in mixed
    assert "AUROC | FPR95 |" in mixed  # a row with an older run has no number there
    row = next(line for line in mixed.splitlines() if line.startswith(f"| {longtail.NAMES[one.config.variant]} |"))
    assert row.split("|")[-4:-2] == [" - ", " - "]
    with pytest.raises(ValueError, match="measures"):
        LongTailResult.from_json(sealed(old[0].to_json() | {"measures": old[0].measures | {"aurocc": 0.5}}))


def test_a_table_is_named_by_what_its_rows_share(finished: tuple[Path, list[LongTailResult]]) -> None:
    (table,) = longtail.document(cells(finished[1]), papers.NO_PAPER).tables
    assert "epochs1=8" in table.title
    assert "epochs2=6" in table.title
    usual = [replace(r, config=resolve(r.config.variant, "cifar100", image_side=32)) for r in finished[1]]
    (table,) = longtail.document(cells(usual), papers.NO_PAPER).tables
    assert table.title.endswith("20 % of the classes open, tf32")


def test_what_holds_is_judged_by_runs_of_the_same_seed(finished: tuple[Path, list[LongTailResult]]) -> None:
    def changed(variant: str, overall: tuple[float, ...]) -> list[LongTailResult]:
        usual = next(r for r in finished[1] if r.config.variant == variant)
        return [
            replace(usual, config=replace(usual.config, seed=seed), measures=usual.measures | {"overall": value})
            for seed, value in enumerate(overall)
        ]

    def verdict(mine: tuple[float, ...], theirs: tuple[float, ...]) -> longtail.JudgedClaim:
        found = cells(changed("oltr-rfld", mine) + changed("oltr", theirs))
        claims = longtail.judged(found, papers.load().longtail.claims)
        return next(c for c in claims if c.text == "RFL^d is better than OLTR overall")

    low, high = (0.40, 0.60, 0.30), (0.50, 0.71, 0.405)
    assert verdict(high, low).verdict == "holds"
    assert verdict(high, low).difference.mean == pytest.approx(0.105)
    assert verdict(low, high).verdict == "does not hold"
    assert verdict((0.50, 0.60, 0.30), (0.40, 0.71, 0.30)).verdict.startswith("not settled")
    assert verdict(high[:2], low[:2]).verdict == "two seeds, so not known"
    assert verdict(high[:1], low[:1]).verdict == "one seed, so not known"


@pytest.mark.parametrize("columns", [80, 160])
def test_the_table_fits_a_terminal(
    finished: tuple[Path, list[LongTailResult]],
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    from ocil.cli.longtail import _print  # the tests of a GPU run without the packages of the command line

    _print(collect([finished[0]]).longtail)
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    for name in ("OLTR + RFL^d", "open: medium", "F-measure", "time / run"):
        assert name in out
    words = " ".join(out.split())  # as the files have them, but for the breaks of lines
    for note in (longtail.caption(cells(finished[1])), longtail.BALANCED, longtail.NO_THRESHOLD, "Published: "):
        assert words.count(note) >= 1, note


def test_the_report_has_the_table(finished: tuple[Path, list[LongTailResult]], tmp_path: Path, run_tiny: Call) -> None:
    root, results = finished
    found = collect([root])
    assert not found.warnings
    assert (len(found.cells), len(found.longtail)) == (0, 6)
    written = write(found, tmp_path / "only")
    assert {path.name for path in written.tables} >= {"longtail.md", "longtail.csv", "longtail.tex"}
    page = written.page.read_text()
    assert 'id="longtail"' in page
    assert "OLTR + RFL^d" in page
    assert "AUROC: how often a known image" in page
    assert run_tiny("fine-tune", "--seeds", 1).code == 0
    both = collect([root, tmp_path / "runs"])
    assert (len(both.cells), len(both.longtail)) == (1, 6)
    page = write(both, tmp_path / "both").page.read_text()
    assert 'id="longtail"' in page
    assert f"And {len(results)} long-tailed runs." in page
    none = write(collect([tmp_path / "runs"]), tmp_path / "none")
    assert 'id="longtail"' not in none.page.read_text()
    assert not [path for path in none.tables if path.name.startswith("longtail")]


def test_a_broken_long_tailed_result_is_left_out(finished: tuple[Path, list[LongTailResult]], tmp_path: Path) -> None:
    good = finished[1][0].to_json()
    bad = [
        good | {"measures": good["measures"] | {"few": 3.0}},
        good | {"measures": {}},
        good | {"wall_seconds": "long"},
        good | {"config": good["config"] | {"variant": "<b>"}},
        {"kind": "longtail"},
        good | {"config": good["config"] | {"width": "wide"}},
        good | {"config": good["config"] | {"dataset": "\ud800"}},
        good | {"config": good["config"] | {"precision": []}},
        good | {"config": good["config"] | {"imbalance": 10**400}},
        good | {"wall_seconds": 10**400},
        good | {"wall_seconds": 1e308},
        good | {"wall_seconds": float("nan")},
        good | {"measures": good["measures"] | {"few": 10**400}},
    ]
    bad = [*map(sealed, bad), good | {"validation": 0.5}]  # and one that was changed since
    for number, content in enumerate([good, *bad]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "result.json").write_text(json.dumps(content))
    found = collect([tmp_path])
    assert len(found.longtail) == 1
    assert len(found.warnings) == len(bad)
    assert all("is not a" in warning and "result of ocil" in warning for warning in found.warnings)


# Command line


def test_run_table_report_and_show(ocil_command: Call, made: Path, tmp_path: Path) -> None:
    common = ("--dataset", made, "--imbalance", 8, "--seeds", 1, "--out", tmp_path / "runs", "--device", "cpu")
    said = ocil_command("longtail", "run", "oltr-rfl", *common, "--json", "--set", *WORDS)
    assert said.code == 0, said.err
    (cell,) = json.loads(said.out)["cells"]
    assert cell["variant"] == "oltr-rfl"
    assert Path(cell["runs"][0], "result.json").is_file()
    said = ocil_command("longtail", "compare", "ce", "oltr-rfl", *common, "--set", *WORDS)
    assert said.code == 0, said.err
    assert "plain CE" in said.out
    assert "another dataset" in said.out
    assert "[2/2]" in said.err
    assert [line.split()[1] for line in said.err.splitlines() if line.endswith("finished before")] == ["oltr-rfl"]
    for form, word in (("terminal", "OLTR + RFL"), ("markdown", "| OLTR + RFL |"), ("csv", "measured,")):
        said = ocil_command("longtail", "table", tmp_path / "runs", "--format", form)
        assert (said.code, word in said.out) == (0, True)
    said = ocil_command("longtail", "table", tmp_path / "runs", "--json")
    assert [c["variant"] for c in json.loads(said.out)["cells"]] == ["ce", "oltr-rfl"]
    said = ocil_command("report", tmp_path / "runs", "--out", tmp_path / "report", "--json")
    assert len(json.loads(said.out)["longtail"]) == 2
    assert "ocil longtail table" in one_error(ocil_command("show", tmp_path / "runs"))
    said = ocil_command("longtail", "settings", "--json")
    assert {"epochs1", "share"} <= {row["name"] for row in json.loads(said.out)["settings"]}
    assert "epochs2" in ocil_command("longtail", "settings").out


def test_from_lists_to_a_result(ocil_command: Call, tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    (tmp_path / "lists").mkdir()
    for split, labels in (("train", [0] * 12 + [1] * 6), ("val", [0, 1] * 3), ("test", [0, 1] * 3), ("open", [2] * 3)):
        lines = []
        for number, label in enumerate(labels):
            path = tmp_path / "images" / split / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((rng.integers(0, 60, (9, 12, 3)) + 90 * label).astype(np.uint8)).save(path)
            lines.append(f"{split}/{number}.png {label}")
        (tmp_path / "lists" / f"Tail_LT_{split}.txt").write_text("\n".join(lines))
    folder = ("--data-dir", tmp_path / "data")
    words = ("longtail", "prepare", "tail", tmp_path / "lists", tmp_path / "images", "--size", 8)
    said = ocil_command(*words, "--json", *folder)
    assert said.code == 0, said.err
    assert json.loads(said.out)["train"] == 18
    common = ("--dataset", "tail", "--seeds", 1, "--out", tmp_path / "runs", "--device", "cpu", *folder)
    settings = ("--set", "width=1", "batch_size=8", "epochs1=1", "epochs2=1")
    said = ocil_command("longtail", "run", "oltr", "--json", *common, *settings)
    assert said.code == 0, said.err
    (cell,) = json.loads(said.out)["cells"]
    assert cell["cell"].startswith("tail-lt-oltr-")
    assert "by itself" in one_error(ocil_command("longtail", "run", "oltr", *common, "--open", 0.2, *settings))
    for word in ("imbalance=50", "open_share=0.2", "validation=3"):
        assert "by itself" in one_error(ocil_command("longtail", "run", "oltr", *common, *settings, word))
    assert "catalog" in one_error(ocil_command("longtail", "prepare", "cifar100", tmp_path, tmp_path, *folder))


@pytest.mark.parametrize("stage", ["stage1", "ce"])
def test_a_run_of_another_process_is_waited_for(
    ocil_command: Call,
    made: Path,
    tmp_path: Path,
    stage: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = ("--dataset", made, "--out", tmp_path, "--device", "cpu", "--workers", 1)
    words = ("longtail", "run", "ce", *place, "--imbalance", 8)
    assert ocil_command(*words, "--seeds", 1, "--set", *WORDS).code == 0
    (folder,) = tmp_path.glob(f"*-{stage}-*")
    other = ExitStack()
    other.enter_context(RunFolder(folder / "seed-1").lock())
    finished: list[int] = []

    def end(seconds: float) -> None:
        finished.append(len(list(tmp_path.rglob("result.json"))))
        other.close()

    monkeypatch.setattr(time, "sleep", end)
    said = ocil_command(*words, "--seeds", 3, "--json", "--set", *WORDS)
    content = json.loads(said.out)
    assert (said.code, content["cells"][0]["seeds"], content["failed"]) == (0, 3, [])
    assert finished == [2]  # the others did not wait
    assert "Another process works on 1 of the runs: waiting for it" in caplog.text


def test_a_stage_1_that_fails_is_said_once(ocil_command: Call, made: Path, tmp_path: Path) -> None:
    words = ("longtail", "compare", "ce", "oltr", "--dataset", made, "--imbalance", 8, "--out", tmp_path)
    said = ocil_command(*words, "--seeds", 1, "--device", "cpu", "--json", "--set", *WORDS, "lr1=1e30")
    assert said.code == 2
    assert len(said.errors) == len(json.loads(said.out)["failed"]) == 1
    assert said.err.count("failed") == 2  # of the two runs, which are counted


def test_tensorboard_shows_epochs(ocil_command: Call, made: Path, tmp_path: Path) -> None:
    from tests.test_tensorboard import read

    place = ("--dataset", made, "--out", tmp_path / "runs", "--device", "cpu", "--workers", 1)
    words = ("longtail", "run", "oltr", *place, "--imbalance", 8, "--seeds", 1, "--set", *WORDS)
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    assert ocil_command(*words, "--tensorboard", tmp_path / "board").code == 0
    (stage1,), (variant,) = ((tmp_path / "board").glob(f"*-{label}-*/seed-0") for label in ("stage1", "oltr"))
    (path,) = (tmp_path / "runs").rglob("result.json")
    result = read_result(path)
    assert result is not None
    points = read(variant)
    assert points["progress/loss"] == [(3, result.history[0]["loss"]), (4, result.history[1]["loss"])]
    assert points["test/overall"] == [(2 + result.best_epoch, result.measures["overall"])]
    assert [step for step, _ in read(stage1)["progress/accuracy"]] == [1, 2]
    before = sorted((tmp_path / "board").rglob("events.*"))
    assert ocil_command(*words, "--tensorboard", tmp_path / "board").code == 0
    assert sorted((tmp_path / "board").rglob("events.*")) == before
    assert ocil_command(*words, "--tensorboard", tmp_path / "other").code == 0  # finished before, shown all the same
    (again,) = (tmp_path / "other").glob("*-oltr-*/seed-0")
    assert read(again) == points


def test_a_single_run_of_another_process_is_in_use(made: Path, tmp_path: Path) -> None:
    one = config(made, "ce")
    with stage1_folder(tmp_path, one).lock(), pytest.raises(InUseError, match="another process is working on"):
        run(one, tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "oltr-rfld2"), "Did you mean 'oltr-rfld'"),
        (("run", "oltr-rfdl"), "Did you mean 'oltr-rfld'"),
        (("run", "oltr", "--set", "epoch=3"), "unknown setting 'epoch'"),
        (("run", "oltr", "--set", "epochs1"), "FIELD=VALUE"),
        (("run", "oltr", "--imbalance", 0), "imbalance"),
        (("run", "oltr", "--imbalance", 0.5), "imbalance"),
        (("run", "oltr", "--open", 0.9), "classes known"),
        (("run", "oltr", "--seeds", 0), "seeds = 0"),
        (("run", "oltr", "--threads", 0), "--threads"),
        (("run", "oltr", "--device", "tpu9"), "is not there"),
        (("run", "oltr", "--set", "validation=48"), "validation"),
        (("run", "oltr", "--set", "batch_size=4096"), "batch_size"),
        (("table",), "name the folders"),
        (("table", "nowhere"), "there is nothing at nowhere"),
    ],
)
def test_mistakes(ocil_command: Call, made: Path, tmp_path: Path, words: tuple[object, ...], message: str) -> None:
    more: tuple[object, ...] = () if words[0] == "table" else ("--dataset", made, "--out", tmp_path / "runs")
    if words[0] == "run" and "--set" not in words:
        more += ("--set", "validation=8", "batch_size=8")
    assert message in one_error(ocil_command("longtail", *words, *more))
    assert not list(tmp_path.rglob("*.json"))


def test_the_training_path_needs_no_library_of_the_command_line(fork_python: Callable[..., Any]) -> None:
    script = """
import sys
import time
import ocil.longtail.runs, ocil.report.longtail
print(sorted({"rich", "cyclopts", "jinja2", "matplotlib", "sklearn"} & set(sys.modules)))
"""
    out, err = fork_python("-c", script).communicate(timeout=600)
    assert (out.strip(), err) == ("[]", "")


def test_the_benchmark_writes_as_runs_end(
    script: Script, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "cores", lambda: 1)  # in this process: workers would load PyTorch for seconds
    words = (
        "--datasets",
        made,
        "--variants",
        "ce",
        "oltr",
        "--seeds",
        "1",
        "--imbalance",
        "8",
        "--device",
        "cpu",
        "--root",
        tmp_path / "runs",
        "--json",
        tmp_path / "out.json",
    )
    out = script("benchmarks/longtail", *WORDS, *words)
    assert "from start to table" in out
    assert "| OLTR |" in out
    content = json.loads((tmp_path / "out.json").read_text())
    assert {LongTailResult.from_json(run).config.variant for run in content["runs"]} == {"ce", "oltr"}  # as they ended
    for more, said in (((), "2 of 2"), (("--side-by-side", "2"), "0 of 2")):
        taken = script("tools/take_runs", tmp_path / "out.json", tmp_path / "taken", *more)
        assert taken == f"{said} runs are new\n"
    assert collect([tmp_path / "taken"]).longtail == collect([tmp_path / "runs"]).longtail


@pytest.mark.gpu
def test_graphs_on_a_gpu_give_the_bits_of_plain_steps(made: Path, tmp_path: Path) -> None:
    plan = [config(made, variant, seed, precision="fp32") for variant in VARIANTS for seed in (0, 1)]
    device = torch.device("cuda")
    together = taking_turns(plan, Job(tmp_path / "recorded", "cuda", workers=4))
    for chosen, outcome in zip(plan, together, strict=True):
        assert isinstance(outcome, LongTailResult), outcome
        written = run(replace(chosen, capture=False), tmp_path / "written", device=device)
        assert (outcome.digest, outcome.measures) == (written.digest, written.measures)


def test_a_root_that_is_no_folder() -> None:
    with pytest.raises(OcilError, match=r"^root = None must be the path of a folder\.$"):
        runs.run(resolve("oltr", "cifar100"), None)  # type: ignore[arg-type]
