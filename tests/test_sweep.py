import json
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ocil import precision
from ocil.cli.progress import CellTable
from ocil.data import CATALOG, Dataset, load
from ocil.engines.job import Outcomes
from ocil.errors import OcilError
from ocil.experiments.estimate import MILLISECONDS, Estimator, Size, cost_of_run, cost_of_step, roughly
from ocil.experiments.files import Cell
from ocil.experiments.plan import Plan
from ocil.methods import METHODS
from ocil.methods.er import ER
from ocil.runs.config import RunConfig, resolve
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted, Progress, RunKey
from ocil.runs.results import Result
from ocil.runs.stream_run import StreamRun
from ocil.runs.stream_run import run as run_alone
from ocil.streams import Order, StreamConfig
from ocil.streams import stream as stream_module
from ocil.streams.kinds import draw
from tests.conftest import Call, Said, left_over, one_error

pytestmark = pytest.mark.usefixtures("quick_convolution")

TEXT = """
title = "A small table"
seeds = 2

[settings]
dataset = "{dataset}"
memory = 20
width = 2
tasks = 2
memory_batch = 5

[[cells]]
method = "er"
review = [false, true]

[[cells]]
label = "AFS, beta {{beta}}"
method = "afs"
beta = [0.1, 0.2]
"""

Sweep = Callable[..., Said]


@pytest.fixture
def experiment(tmp_path: Path, tiny_npz: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT.format(dataset=tiny_npz))
    return path


@pytest.fixture
def sweep(ocil_command: Call, experiment: Path, tmp_path: Path) -> Sweep:
    def call(*words: object, file: Path = experiment) -> Said:
        workers = () if "--workers" in words else ("--workers", 1)
        return ocil_command("sweep", file, *workers, "--out", tmp_path / "runs", *words)

    return call


def runs_in(root: Path) -> dict[str, int]:
    return {str(path.parent.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("result.json")}


@pytest.mark.slow
def test_a_sweep_and_what_the_dry_run_said_of_it(sweep: Sweep, tmp_path: Path) -> None:
    told = json.loads(sweep("--dry-run", "--json").out)
    assert (told["runs"], told["references"], told["finished"], told["to_run"]) == (10, 2, 0, 10)
    assert [cell["label"] for cell in told["cells"]] == ["er", "er-rv", "AFS, beta 0.1", "AFS, beta 0.2"]
    assert all(cell["command"].startswith("ocil run ") for cell in told["cells"])
    assert told["seconds"] > 0
    assert "table measured on one ARM core" in told["estimate"]
    assert told["missing"] == []
    assert not (tmp_path / "runs").exists()

    said = sweep("--json")
    assert said.code == 0, said.err
    content = json.loads(said.out)
    assert len(runs_in(tmp_path / "runs")) == told["to_run"]
    assert said.err.count(" left") + said.err.count("   done") == told["to_run"]
    assert [cell["label"] for cell in content["cells"]] == [cell["label"] for cell in told["cells"]]
    for cell in content["cells"]:
        assert (cell["seeds"], cell["wanted"]) == (2, 2)
        assert len(cell["average_intransigence"]["values"]) == 2
        for run in cell["runs"]:
            assert (Path(run) / "result.json").exists()
    assert content["failed"] == []
    assert not left_over(tmp_path)

    before = runs_in(tmp_path / "runs")
    again = sweep("--json")
    assert json.loads(again.out) == content
    assert "10 runs are finished already." in again.err
    assert runs_in(tmp_path / "runs") == before
    after = json.loads(sweep("--dry-run", "--json", "--seeds", 3).out)
    assert (after["finished"], after["to_run"], after["references"]) == (10, 5, 3)
    assert "from finished runs of the same method, dataset and device" in after["estimate"]
    shown = sweep("--dry-run", "--seeds", 3)
    assert "4 cells, 15 runs (3 of them references): 10 finished, 0 begun, 5 to run." in shown.out
    assert "Nothing was run." in shown.out
    one = sweep("--dry-run", "--seeds", 1, "--no-reference", "--only", "label=er")
    assert "1 cell, 1 run (0 of them references): " in one.out


def test_runs_of_a_machine_with_another_default_precision_are_not_run_anew(
    sweep: Sweep, run_tiny: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a cluster run on its GPUs, and the machine that prints their table has none."""
    words = ("--only", "method=er review=false")
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(precision, "usual", lambda: "bf16")
        assert sweep(*words, "--part", "1/1").code == 0
    before = runs_in(tmp_path / "runs")
    says = (
        "has 2 runs of this command in bf16, and the default on this machine is tf32: go on with --set precision=bf16"
    )
    assert says in one_error(sweep(*words))
    assert says in one_error(sweep(*words, "--part", "2/2"))
    assert says in sweep(*words, "--dry-run").err
    assert says in one_error(run_tiny("er", "--seeds", 3))
    assert sweep(*words, "--set", "precision=bf16").code == 0
    assert run_tiny("er", "--seeds", 1, settings=("precision=bf16",)).code == 0
    assert runs_in(tmp_path / "runs") == before

    assert sweep(*words, "--set", "precision=tf32", "--no-reference").code == 0
    assert sweep(*words, "--no-reference").code == 0  # these are there in both
    assert len(runs_in(tmp_path / "runs")) == len(before) + 2


def test_a_file_that_names_a_precision_runs_in_it_beside_the_other(
    sweep: Sweep, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--only", "method=er review=false", "--no-reference", "--seeds", 1)
    monkeypatch.setattr(precision, "usual", lambda: "bf16")
    assert sweep(*words).code == 0
    experiment.write_text(experiment.read_text().replace("width = 2", 'width = 2\nprecision = "tf32"'))
    assert sweep(*words).code == 0


def test_fine_tuned_runs_with_more_evaluations_are_the_references(tmp_path: Path) -> None:
    """They learn the same, so no others are run."""
    every = {"evaluate_every": "5"}
    er, fine_tune = (
        Cell(name, tuple(resolve(name, seed=seed, settings=every) for seed in range(2))) for name in ("er", "fine-tune")
    )
    plan = Plan((er, fine_tune), tmp_path)
    assert [plan.references[config] for config in er.configs] == list(fine_tune.configs)
    assert set(plan.configs) == {*er.configs, *fine_tune.configs}
    other = Cell("fine-tune", tuple(resolve("fine-tune", seed=seed, settings=every | {"lr": "1"}) for seed in range(2)))
    assert len(Plan((er, other), tmp_path).configs) == 3 * 2  # those of ER have its learning rate


def test_only_and_no_reference(sweep: Sweep, tmp_path: Path) -> None:
    said = sweep("--only", "method=er review=true", "--seeds", 1, "--no-reference")
    assert said.code == 0, said.err
    assert re.search(r"er-rv +tiny +20 +1 ", said.out)
    (run,) = runs_in(tmp_path / "runs")
    assert run.startswith("tiny-er-rv-m20-")


def test_equal_to_ocil_run(sweep: Sweep, run_tiny: Call, tmp_path: Path) -> None:
    """The same runs, in the same folders, with the same bits."""
    sweep("--only", "label=er", "--seeds", 1)
    before = runs_in(tmp_path / "runs")
    assert run_tiny("er", "--seeds", 1).code == 0
    assert runs_in(tmp_path / "runs") == before


@pytest.fixture
def _seed_1_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = ER.learn

    def failing(self: ER, x: torch.Tensor, y: torch.Tensor) -> None:
        learn(self, x, y)
        if self.rng.seed == 1 and not self.config.review:
            self.record_loss(torch.tensor(float("inf")))

    monkeypatch.setattr(ER, "learn", failing)


@pytest.mark.usefixtures("_seed_1_diverges")
def test_one_run_fails_and_the_others_go_on(sweep: Sweep, tmp_path: Path) -> None:
    said = sweep("--only", "method=er", "--no-reference", "--json")
    assert said.code == 1
    (error,) = said.errors
    assert "er, tiny, memory 20, seed 1: er seed 1: the loss is not finite" in error
    content = json.loads(said.out)
    assert [(cell["label"], cell["seeds"]) for cell in content["cells"]] == [("er", 1), ("er-rv", 2)]
    assert len(content["failed"]) == 1
    assert len(runs_in(tmp_path / "runs")) == 3
    shown = sweep("--only", "method=er", "--no-reference")
    assert shown.code == 1
    assert re.search(r"er +tiny +20 +1/2 ", shown.out)


def test_a_failed_run_is_tried_again(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ER, "learn", lambda *_: 1 / 0)
        said = sweep("--only", "label=er", "--seeds", 1, "--no-reference", "--json")
    assert said.code == 1
    assert json.loads(said.out)["cells"][0]["runs"] == []
    assert sweep("--only", "label=er", "--seeds", 1, "--no-reference").code == 0
    assert len(runs_in(tmp_path / "runs")) == 1


def test_unfinished_runs_go_on(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--only", "label=er", "--seeds", 1, "--no-reference", "--json")
    whole = json.loads(sweep(*words).out)["cells"][0]["runs"][0]
    digest = json.loads((Path(whole) / "result.json").read_text())["digest"]
    for path in Path(whole).iterdir():
        path.unlink()

    def run_all(runs: list[StreamRun], job: Any, *_: Any) -> dict[RunKey, Exception]:
        with pytest.raises(Interrupted):
            run_alone(runs[0].config, job.root, device="cpu", should_stop=lambda: True)
        return {runs[0].key: Interrupted("stopped")}

    with monkeypatch.context() as patch:
        patch.setattr("ocil.engines.pool.run_all", run_all)
        stopped = sweep(*words)
    assert stopped.code == 130
    assert "the same command goes on from what was last saved" in stopped.err
    assert json.loads(sweep(*words[:-1], "--dry-run", "--json").out)["begun"] == 1
    learned = 0
    learn = ER.learn

    def counting(self: ER, x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal learned
        learned += 1
        learn(self, x, y)

    monkeypatch.setattr(ER, "learn", counting)
    assert sweep(*words).code == 0
    assert learned == 7  # of 8 batches: the first one was done
    assert json.loads((Path(whole) / "result.json").read_text())["digest"] == digest


# Datasets that are not there


def test_missing_datasets_are_said_at_once(ocil_command: Call, tmp_path: Path, tiny_npz: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(
        f'seeds = 1\n[settings]\ndataset = ["cifar10", "{tiny_npz}", "mini_imagenet"]\nmemory = 20\nwidth = 2\n'
        'tasks = 2\nmemory_batch = 5\n[[cells]]\nmethod = ["er", "afs"]\n'
    )
    words = ("sweep", path, "--data-dir", tmp_path, "--out", tmp_path / "runs", "--workers", 1, "--no-reference")
    message = one_error(ocil_command(*words))
    assert message.count("ocil data download cifar10") == 1
    assert message.count("ocil data import mini_imagenet PATH") == 1
    assert "--skip-missing, or --only dataset=tiny." in message
    assert not (tmp_path / "runs").exists()
    told = ocil_command(*words, "--dry-run")
    assert told.code == 0
    assert "The sweep would not start: CIFAR-10 is not in" in told.out
    assert len(json.loads(ocil_command(*words, "--dry-run", "--json").out)["missing"]) == 2

    said = ocil_command(*words, "--skip-missing", "--json")
    assert said.code == 0, said.err
    assert "Left out, 4 cells: CIFAR-10 is not in" in said.err
    assert [cell["label"] for cell in json.loads(said.out)["cells"]] == ["er", "afs"]
    assert ocil_command(*words, "--only", "dataset=tiny", "--json").code == 0
    path.write_text(path.read_text().replace('["er", "afs"]', '"er"').replace(', "mini_imagenet"', ""))
    said = ocil_command(*words, "--skip-missing", "--json")
    assert "Left out, 1 cell: CIFAR-10 is not in" in said.err
    assert "1 run is finished already." in said.err
    assert "nothing is left" in one_error(ocil_command(*words, "--only", "dataset=cifar10", "--skip-missing"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workers", -1), "--workers -1 must be from 0"),
        (("--threads", 0), "--threads 0 must be from 1"),
        (("--address", "auto"), "add --engine ray"),
        (("--engine", "spark"), "spark"),
        (("--seeds", 0), "seeds = 0"),
        (("--seeds", "2.5"), "not a whole number"),
        (("--set", "beta"), "write FIELD=VALUE"),
        (("--set", "tasks=9"), "er: tasks = 9 is more than the 4 classes"),
        (("--set", "memory=3"), "cell 1: er: memory = 3 is smaller"),
        (("--device", "tpu"), "device 'tpu' is not there"),
        (("--set", "dataset=nowhere"), "there is no dataset 'nowhere'"),
    ],
)
def test_mistakes(sweep: Sweep, tmp_path: Path, words: tuple[object, ...], says: str) -> None:
    assert says in one_error(sweep(*words))
    assert not (tmp_path / "runs").exists()


def test_reviews_that_would_never_come_are_seen_at_every_memory_size(sweep: Sweep, experiment: Path) -> None:
    text = experiment.read_text().replace("memory = 20\n", "memory = [50, 20]\nreview_batch = 30\n")
    experiment.write_text(text)
    assert "er-rv: review_batch = 30 is more than memory = 20" in one_error(sweep())


def blank(folder: Path, name: str, sizes: list[int]) -> Path:
    """A dataset with so many training images of each class, all of them black."""
    train_y, test_y = np.repeat(np.arange(4), sizes), np.arange(4)
    images = [np.zeros((len(labels), 8, 8, 1), np.uint8) for labels in (train_y, test_y)]
    Dataset(name, images[0], train_y, images[1], test_y, tuple("abcd")).save(folder / f"{name}.npz")
    return folder / f"{name}.npz"


@pytest.fixture
def unequal(tmp_path: Path) -> Path:
    """Some seeds leave the small class alone in a task."""
    return blank(tmp_path, "unequal", [40, 40, 40, 4])


UNLUCKY = [("class_order=seeded", 1), ("boundary=i-blurry class_order=seeded", 1), ("boundary=si-blurry", 4)]


@pytest.mark.parametrize(("settings", "seed"), UNLUCKY)
def test_the_stream_of_a_later_seed_is_checked_before_any_run(
    ocil_command: Call, unequal: Path, tmp_path: Path, settings: str, seed: int
) -> None:
    lines = "".join(f'{name} = "{value}"\n' for name, value in (one.split("=") for one in settings.split()))
    shared = f'dataset = "{unequal}"\nwidth = 1\ntasks = 3\n{lines}'
    text = f"first_seed = {seed - 1}\nseeds = 2\n[settings]\n{shared}[[cells]]\nmethod = 'fine-tune'\nlr = [0.1, 0.2]\n"
    (tmp_path / "table.toml").write_text(text)
    said = one_error(ocil_command("sweep", tmp_path / "table.toml", "--out", tmp_path / "runs", "--workers", 1))
    assert f"fine-tune, lr=0.1: seed {seed}: batch_size = 10 is more than a task of unequal holds" in said
    assert not (tmp_path / "runs").exists()


def test_a_search_checks_the_streams_of_all_seeds(ocil_command: Call, tmp_path: Path) -> None:
    """Where both classes of the first task are small, it has no whole batch."""
    path = blank(tmp_path, "equal", [40] * 4)
    settings = ("width=1", "tasks=2", "imbalance_factor=20", "imbalance_order=seeded")
    words = ("fine-tune", "--grid", "lr=0.1,0.2", "-d", path, "-o", tmp_path / "search", "--tasks", 1, "--seeds", 9)
    said = one_error(ocil_command("tune", *words, "--set", *settings))
    assert re.search(r"seed \d: batch_size = 10 is more than a task of equal.* holds, [67] samples", said)
    assert not (tmp_path / "search").exists()


def test_a_plan_draws_each_stream_once_and_loads_each_dataset_once(
    unequal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[StreamConfig, int]] = []

    def remember(data: Dataset, config: StreamConfig, seed: int) -> Order:
        drawn.append((config, seed))
        return draw(data, config, seed)

    monkeypatch.setattr(stream_module, "draw", remember)
    loaded = load(str(unequal))

    class Once:
        missing: dict[str, str] = {}  # noqa: RUF012
        times = 0

        def load(self, name: str) -> Dataset:
            self.times += 1
            return loaded

    settings = {"width": 1, "tasks": 2, "class_order": "seeded"}
    configs = [resolve("fine-tune", str(unequal), settings=settings | {"lr": 0.1 * n}) for n in (1, 2, 3)]
    cells = (Cell(f"{n}", tuple(replace(one, seed=seed) for seed in range(4))) for n, one in enumerate(configs))
    datasets: Any = Once()
    Plan(tuple(cells), tmp_path).check(datasets)
    assert datasets.times == 1
    assert len(drawn) == len(set(drawn)) == 4


@pytest.mark.slow
def test_a_run_that_another_process_works_on_comes_last(
    sweep: Sweep, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--only", "method=afs", "--seeds", 1, "--no-reference", "--json")
    run = Path(json.loads(sweep(*words).out)["cells"][0]["runs"][0])
    (run / "result.json").unlink()
    with ExitStack() as held:
        held.enter_context(RunFolder(run).lock())
        monkeypatch.setattr(time, "sleep", lambda seconds: held.close())
        said = sweep("--seeds", 1, "--no-reference", "--json")
    assert said.code == 0
    assert "Another process works on 1 of the runs: waiting" in caplog.text
    assert [cell["seeds"] for cell in json.loads(said.out)["cells"]] == [1, 1, 1, 1]


def test_a_file_in_the_place_of_a_run_fails_it_alone(sweep: Sweep) -> None:
    words = ("--only", "method=afs", "--seeds", 1, "--no-reference", "--json")
    run = Path(json.loads(sweep(*words).out)["cells"][0]["runs"][0])
    shutil.rmtree(run)
    run.write_text("a note")
    said = sweep("--seeds", 1, "--no-reference", "--json")
    assert said.code == 1
    assert f"cannot write to {run}: it is a file" in said.errors[0]
    assert [cell["seeds"] for cell in json.loads(said.out)["cells"]] == [1, 1, 0, 1]


def test_a_label_with_spaces(sweep: Sweep) -> None:
    told = sweep("--only", 'label="AFS, beta 0.1"', "--dry-run", "--json")
    assert [cell["label"] for cell in json.loads(told.out)["cells"]] == ["AFS, beta 0.1"]
    told = sweep("--only", "label=er-rv,er", "--dry-run", "--json")
    assert [cell["label"] for cell in json.loads(told.out)["cells"]] == ["er", "er-rv"]


def test_images_that_changed_while_runs_went_on_are_not_averaged(tmp_path: Path) -> None:
    configs = [resolve("er", "cifar100", seed=seed) for seed in range(2)]
    results: Outcomes = {
        StreamRun(config).key: Result(config, [[0.5] * 10] * 10, [], 1.0, {}, "", {"images": images})
        for config, images in zip(configs, "ab", strict=True)
    }

    def summary(some: list[RunConfig]) -> Any:
        cell = Cell("er", tuple(some))
        return Plan((cell,), tmp_path, with_references=False).summary(cell, results)

    with pytest.raises(OcilError, match=r"the images changed while its runs went on\. Delete that folder"):
        summary(configs)
    assert summary(configs[:1]) is not None


def test_a_result_that_cannot_be_read(sweep: Sweep) -> None:
    words = ("--only", "label=er", "--seeds", 1, "--no-reference")
    run = Path(json.loads(sweep(*words, "--json").out)["cells"][0]["runs"][0])
    (run / "result.json").write_text("{")
    shown = sweep(*words, "--dry-run")
    assert shown.code == 0
    assert "0 finished, 0 begun, 0 to run." in shown.out
    told = json.loads(sweep(*words, "--dry-run", "--json").out)
    said = sweep(*words)
    assert said.code == 1
    (message,) = said.errors
    assert "Delete it to start that run again." in message
    assert message.removeprefix("ocil: error: ") in shown.out
    assert (told["to_run"], told["seconds"], len(told["failed"])) == (0, 0, 1)


def test_no_time_for_nothing_to_do(sweep: Sweep) -> None:
    words = ("--only", "label=er", "--seeds", 1)
    assert sweep(*words).code == 0
    shown = sweep(*words, "--dry-run").out
    assert re.search(r"er +20 +1 +1 +0 *$", shown, re.MULTILINE)
    assert re.search(r"references \(fine-tune\) +1 +1 +0 *$", shown, re.MULTILINE)


def test_the_dry_run_of_a_cluster_says_what_its_estimate_is_for(sweep: Sweep) -> None:
    words = ("--only", "label=er", "--dry-run", "--device", "cpu")
    assert "for this machine alone, not for the cluster" in sweep(*words, "--engine", "ray", "--address", "x:1").out
    told = json.loads(sweep(*words, "--engine", "ray", "--json").out)
    assert told["estimate"].endswith("for this machine alone, not for the cluster")
    assert "not for the cluster" not in sweep(*words).out


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_place_that_can_hold_no_runs(
    ocil_command: Call, experiment: Path, monkeypatch: pytest.MonkeyPatch, dry: tuple[str, ...]
) -> None:
    monkeypatch.setattr("ocil.engines.pool.run_all", lambda *_: pytest.fail("a run was started"))
    for out in (experiment, experiment / "runs"):
        message = one_error(ocil_command("sweep", experiment, "-o", out, *dry))
        assert "small.toml" in message
        assert message.endswith("is a file. Name a folder.")
    long = experiment.parent / ("x" * 300)
    assert "File name too long" in one_error(ocil_command("sweep", experiment, "-o", long, *dry))
    monkeypatch.setattr("os.access", lambda *_: False)
    other = experiment.parent / "other"
    assert "is not yours to write to" in one_error(ocil_command("sweep", experiment, "-o", other, *dry))
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr("os.statvfs", lambda _: read_only)
    assert "is on a read-only file system" in one_error(ocil_command("sweep", experiment, "-o", other, *dry))
    assert not other.exists()


def test_finished_runs_are_shown_where_nothing_can_be_written(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--only", "label=er", "--seeds", 1, "--no-reference")
    assert sweep(*words).code == 0
    monkeypatch.setattr("os.access", lambda *_: False)
    assert sweep(*words).code == 0
    assert sweep(*words, "--dry-run").code == 0


def test_a_folder_that_cannot_be_made_is_said_before_any_run(
    ocil_command: Call, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocil.engines.pool.run_all", lambda *_: pytest.fail("a run was started"))
    nowhere = experiment.parent / "nowhere"
    nowhere.symlink_to(experiment.parent / "gone")
    assert "is a link that leads nowhere" in one_error(ocil_command("sweep", experiment, "-o", nowhere))


# How long it takes


@pytest.mark.parametrize(
    ("method", "settings", "measured"),
    [  # seconds of a run among ten on an H200, from results/
        ("afs", {"precision": "bf16"}, 66.4),
        ("afs", {"precision": "tf32"}, 216.3),
        ("er", {"precision": "tf32"}, 48.6),
        ("er", {"precision": "tf32", "review": True}, 68.4),
        ("er", {"precision": "bf16"}, 22.6),
        ("fine-tune", {"precision": "tf32"}, 25.6),
        ("scr", {"precision": "bf16"}, 57.0),
    ],
)
def test_the_table_of_times_agrees_with_the_results(method: str, settings: dict[str, Any], measured: float) -> None:
    config = resolve(method, "cifar100", settings=settings)
    seconds = Estimator("cuda", 10, {}).seconds(config, Size.of(CATALOG["cifar100"]))
    assert measured / 1.5 < seconds < measured * 1.5


def in_repository(name: str) -> Path:
    return Path(__file__).parents[1] / name


def test_the_table_of_times_agrees_with_the_steps_that_were_timed() -> None:
    """As docs/experiments.md says. GDumb only stores, which counts as nothing."""
    a_pass, an_image = MILLISECONDS["cuda bf16"]
    rows = json.loads(in_repository("results/performance/h200-steps.json").read_text())["rows"]
    rows = [row for row in rows if (row["precision"], row["seeds"]) == ("bf16", 10)]
    names = {row["method"].removesuffix("-rv"): row for row in rows}
    assert {"gss", "agem", "aser", "afs", "er"} < names.keys()
    for name, row in names.items():
        config, measured = resolve(name, "cifar100", settings=row.get("settings")), row["ms_per_step"]
        passes, images = cost_of_step(config, Size.of(CATALOG["cifar100"]))
        tabled = (a_pass * passes + an_image * images) * METHODS[name].load().kernel_factor
        assert name == "gdumb" or measured / 1.15 < tabled < measured * 1.15, name


def test_only_steps_that_were_timed_are_slower() -> None:
    size = Size.of(CATALOG["cifar100"])
    gss = {name: resolve("gss", "cifar100", settings={"precision": name}) for name in ("bf16", "tf32")}
    gpu = Estimator("cuda", 10, {})
    assert gpu.together([gpu.seconds(gss["bf16"], size)] * 10) == pytest.approx(156, rel=0.1)  # 5000 steps of 3.12 ms
    plain = cost_of_run(gss["tf32"], size)
    a_pass, an_image = MILLISECONDS["cuda tf32"]
    assert gpu.seconds(gss["tf32"], size) == pytest.approx((plain.passes * a_pass + plain.images * an_image) / 100)


def test_the_table_of_times_agrees_with_cells_that_had_the_gpu_to_themselves() -> None:
    """As docs/experiments.md says."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    for path in in_repository("results").glob("*/seed-*/result.json"):
        text = path.read_text()
        if '"seconds_for_all"' in text:  # few have it, and to parse thousands takes a second
            content = json.loads(text)
            config = RunConfig.from_json(content["config"])
            tabled = Estimator("cuda", 10, {}).seconds(config, Size.of(CATALOG[config.dataset]))
            seconds.setdefault(config.cell, []).append((content["wall_seconds"], tabled))
    ratios = [np.median([measured / tabled for measured, tabled in runs]) for runs in seconds.values()]
    assert len(ratios) >= 9
    assert all(0.85 < ratio < 1.45 for ratio in ratios)


def test_the_table_of_times_agrees_with_the_cpu_page() -> None:
    """docs/performance.md: 40 images of 14x14 pixels at width 8 in 53 ms."""
    config = resolve("er", "fashion-mini", settings={"memory_batch": 30})
    bare = Estimator("cpu", 1, {}).seconds(config, Size(3000, 0, 10, (14, 14, 1)))
    evaluations = 1000 / 3 * 5 * 0.0008
    assert bare / 1.6 < 300 * (53.2 + 19) / 1000 + evaluations < bare * 1.6


def test_the_cost_of_a_run_counts_images() -> None:
    size = Size(train=1000, test=300, classes=10, input_shape=(32, 32, 3))
    looks = 5 * (300 + 200) / 3
    assert cost_of_run(resolve("fine-tune", "fashion-mini"), size) == pytest.approx((100, 1000 + looks))
    er = resolve("er", "fashion-mini", memory=500, review=True)
    filled = 200 + 400 + 500 + 500 + 500
    assert cost_of_run(er, size) == pytest.approx((2 * 100 + filled / 10, 20 * 100 + filled + looks))
    short = resolve("er", "fashion-mini", memory=500, review=True, settings={"class_counts": (20,) * 10})
    filled = 40 + 80 + 120 + 160 + 200  # by the samples of the stream, not by those of the dataset
    assert cost_of_run(short, size) == pytest.approx((2 * 20 + filled / 10, 20 * 20 + filled + looks))
    offline = resolve("iid-offline", "fashion-mini")
    assert cost_of_run(offline, size).images == pytest.approx(50 * 1000, rel=0.05)
    gdumb = resolve("gdumb", "fashion-mini", memory=500)
    whole = 192 + 400 + 496 + 496 + 496  # in batches of 16
    assert cost_of_run(gdumb, size) == pytest.approx((30 * whole / 16, 30 * whole + looks))


def test_roughly() -> None:
    assert [roughly(s) for s in (0.2, 40, 89, 130, 3599, 3600, 40000, 10**6)] == [
        "1 s",
        "40 s",
        "89 s",
        "2 min",
        "1 h 00 min",
        "1 h 00 min",
        "11 h 07 min",
        "12 days",
    ]


# The live table


def fake_result(config: RunConfig, accuracy: float) -> Result:
    return Result(config, [[accuracy]], [], 10.0, {}, "", {})


def test_the_line_of_a_reference_names_its_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    configs = [resolve("er", dataset, seed=3) for dataset in ("cifar10", "cifar100")]
    runs = [StreamRun(config) for config in (*configs, *(config.reference() for config in configs))]
    board = CellTable([Cell("er", tuple(configs))], runs, [1.0] * 4, 4.0)
    for run in runs[2:]:
        board.on_event(run, fake_result(run.config, 0.5))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("   ")[0] for line in lines] == [
        "[1/4] reference cifar10 seed 3",
        "[2/4] reference cifar100 seed 3",
    ]


def test_the_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    configs = [resolve("er", "cifar100", seed=seed) for seed in range(3)]
    others = [resolve("afs", "cifar100", seed=seed) for seed in range(3)]
    reference = configs[0].reference()
    runs = [StreamRun(config) for config in (reference, *configs, *others)]
    cells = [Cell("ER [bold]", tuple(configs)), Cell("AFS", tuple(others))]
    board = CellTable(cells, runs, [1.0] * 7, 70.0, known={runs[1].key})

    def shown() -> str:
        from rich.console import Console

        console = Console(width=100, record=True, file=StringIO())
        console.print(board.table())
        return console.export_text()

    board.on_event(runs[1], fake_result(configs[0], 0.5))
    assert "runs 0/6; about 70 s left" in shown()
    now = 120.0
    board.on_event(runs[0], fake_result(reference, 0.1))
    board.on_event(runs[2], Progress(50, 100))
    board.on_event(runs[2], Progress(100, 100))  # begun in the middle: only what is done now counts for the pace
    board.on_event(runs[4], Progress(0, 100))
    text = shown()
    assert re.search(r"ER \[bold\] +cifar100 m5000 +1/3 +1 +50.0", text)
    assert re.search(r"AFS +cifar100 m5000 +0/3 +1 ", text)
    assert re.search(r"references +1/1 +10.0", text)
    assert "0 cells done, 2 running, 0 with failures, 0 waiting; runs 1/6" in text
    assert "about 52 s left" in text  # 1.5 of 5.5 in 20 seconds, 4 to come: 53 s, and 47 s by the forecast
    board.on_event(runs[2], fake_result(configs[1], 0.7))
    board.on_event(runs[3], RuntimeError("no"))
    assert "about 39 s left" in shown()  # 1.5 in 20 seconds, 3 to come; what failed is neither done nor to come
    board.on_event(runs[4], Interrupted("stopped"))
    text = shown()
    assert "left" not in text
    assert "done; " not in text
    assert re.search(r"ER \[bold\] +cifar100 m5000 +2/3 +1 +60.0", text)  # one failed
    assert "0 running, 1 with failures, 1 waiting" in text  # of AFS one was stopped


def test_the_time_left_of_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the seconds in which processes load PyTorch nor a slow first step count for all that is to come."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    configs = [resolve("er", "cifar100", seed=seed) for seed in range(60)]
    runs = [StreamRun(config) for config in configs]
    board = CellTable([Cell("er", tuple(configs))], runs, [1.0] * 60, 60.0)
    now = 108.0
    board.on_event(runs[0], Progress(0, 100))
    assert board.time_left() == "about 60 s left"
    now = 108.5
    board.on_event(runs[0], Progress(1, 100))
    assert board.time_left() == "about 86 s left"  # by this step alone it would be 50 minutes
    for number, run in enumerate(runs[:30]):
        now = 109.0 + 2 * number
        board.on_event(run, Progress(0, 100))
        now += 2
        board.on_event(run, fake_result(run.config, 0.5))
    assert board.time_left() == "about 58 s left"  # a run takes 2 s, 30 are to come


def test_other_images_make_another_cell(sweep: Sweep, experiment: Path, tiny: Dataset, tmp_path: Path) -> None:
    mine = tmp_path / "own.npz"
    tiny.save(mine)
    words = ("--only", "label=er", "--seeds", 1, "--no-reference", "--json", "--set", f"dataset={mine}")
    first = json.loads(sweep(*words).out)["cells"][0]["runs"]
    Dataset(
        "own",
        np.ascontiguousarray(tiny.train_x[::-1]),
        tiny.train_y[::-1].copy(),
        tiny.test_x,
        tiny.test_y,
        tiny.classes,
    ).save(mine)
    assert json.loads(sweep(*words).out)["cells"][0]["runs"] != first
    assert RunFolder(Path(first[0])).result() is not None
