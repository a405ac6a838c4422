import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

import ocil
from ocil.cli.execute import stop_when_asked
from ocil.engines.job import Observer
from ocil.errors import WriteError
from ocil.methods import METHODS
from ocil.methods.fine_tune import FineTune
from ocil.runs.config import RunConfig
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted, RunKey
from ocil.runs.stream_run import StreamRun
from tests.conftest import SMALL, Call, Said, left_over, one_error
from tests.forking import Forked

Process: TypeAlias = "subprocess.Popen[str] | Forked"
Start = Callable[..., Process]


def results_in(root: Path) -> dict[str, dict[str, Any]]:
    return {str(path.parent.relative_to(root)): json.loads(path.read_text()) for path in root.rglob("result.json")}


def told(root: Path) -> dict[str, tuple[Any, ...]]:
    """All of the results that must not depend on how they came about."""
    return {name: (r["digest"], r["matrix"], r["evaluations"]) for name, r in results_in(root).items()}


def test_run_json(run_tiny: Call, tmp_path: Path) -> None:
    said = run_tiny("er", "--seeds", 2, "--review", "--json")
    assert said.code == 0
    assert len(said.out.splitlines()) == 1
    content = json.loads(said.out)
    assert content["method"] == "er-rv"
    assert (content["memory"], content["seeds"], content["failed"]) == (20, 2, [])
    for name in ("average_accuracy", "average_forgetting", "average_intransigence", "wall_seconds"):
        numbers = content[name]
        assert len(numbers["values"]) == 2
        assert numbers["mean"] == pytest.approx(sum(numbers["values"]) / 2)
        assert numbers["interval"] >= 0
    assert "note" not in content
    for number, run in enumerate(content["runs"]):
        assert {path.name for path in Path(run).iterdir()} == {
            ".lock",
            "config.json",
            "result.json",
            "checkpoint.safetensors",
        }
        result = json.loads((Path(run) / "result.json").read_text())
        assert result["config"] == json.loads((Path(run) / "config.json").read_text())
        assert result["config"]["seed"] == number
        assert result["average_accuracy"] == content["average_accuracy"]["values"][number]
    assert not left_over(tmp_path)

    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    again = run_tiny("er", "--seeds", 2, "--review", "--json")
    assert again.out == said.out
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}


def test_one_seed_has_no_interval_and_says_so(run_tiny: Call) -> None:
    said = run_tiny("fine-tune", "--seeds", 1, "--json")
    content = json.loads(said.out)
    assert content["average_accuracy"]["interval"] is None
    assert content["note"] == "one seed: no interval"
    table = run_tiny("fine-tune", "--seeds", 1)
    assert "one seed, so no interval" in table.out
    assert "(one seed)" in table.out
    assert "nan" not in table.out


def test_fine_tune_has_no_intransigence_against_itself(run_tiny: Call, tmp_path: Path) -> None:
    content = json.loads(run_tiny("fine-tune", "--seeds", 2, "--json").out)
    assert content["average_intransigence"]["values"] == [0.0, 0.0]
    assert len(results_in(tmp_path / "runs")) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_finished_before_says_so(run_tiny: Call, workers: int) -> None:
    first, again = (run_tiny("fine-tune", "--seeds", 2, "--workers", number) for number in (1, workers))
    assert "finished before" not in first.out + first.err
    assert (again.out + again.err).count("finished before") == 2


def test_references_are_computed_once_and_used_again(run_tiny: Call, tmp_path: Path) -> None:
    run_tiny("er", "--seeds", 1)
    assert len(results_in(tmp_path / "runs")) == 2
    (reference,) = (tmp_path / "runs").glob("tiny-fine-tune-*/seed-0/result.json")
    before = reference.stat().st_mtime_ns
    said = run_tiny("er", "--seeds", 1, settings=("forward=joint",))
    assert said.code == 0
    assert reference.stat().st_mtime_ns == before
    assert len(results_in(tmp_path / "runs")) == 3


def test_without_reference(run_tiny: Call, tmp_path: Path) -> None:
    content = json.loads(run_tiny("er", "--seeds", 1, "--no-reference", "--json").out)
    assert content["average_intransigence"] is None
    assert len(results_in(tmp_path / "runs")) == 1


def test_iid_offline_has_one_row_and_no_forgetting(run_tiny: Call) -> None:
    said = run_tiny("iid-offline", "--seeds", 1, "--json", settings=("epochs=1", "batch_size=40"))
    content = json.loads(said.out)
    assert content["average_forgetting"] is None
    assert content["average_intransigence"] is None
    assert len(content["accuracy_curve"]) == 1


def test_the_first_seed_can_be_chosen(run_tiny: Call, tmp_path: Path) -> None:
    run_tiny("fine-tune", "--seeds", 1, "--seed", 1)
    alone = told(tmp_path / "runs")
    assert [Path(name).name for name in alone] == ["seed-1"]
    run_tiny("fine-tune", "--seeds", 2, "--out", tmp_path / "both")
    assert alone.items() <= told(tmp_path / "both").items()


@pytest.mark.slow
def test_toml_and_command_line(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        f'method = "er"\ndataset = "{tiny_npz}"\nmemory = 30\nseeds = 2\nseed = 4\nreview = true\n'
        "width = 2\nmemory_batch = 5\ntasks = 2\nlr = 0.05\n"
    )
    words = ("run", "--config", file, "--no-reference", "--workers", 1, "--out", tmp_path / "runs", "--json")
    said = json.loads(ocil_command(*words).out)
    assert (said["method"], said["memory"], said["seeds"]) == ("er-rv", 30, 2)
    config = json.loads((Path(said["runs"][0]) / "config.json").read_text())
    assert (config["learner"]["lr"], config["seed"]) == (0.05, 4)
    for wins in (("--memory", 20, "--no-review"), ("--set", "memory=20", "review=false")):
        said = json.loads(ocil_command(*words, "--seeds", 1, "--seed", 0, *wins).out)
        assert (said["method"], said["memory"], said["seeds"]) == ("er", 20, 1)
    said = json.loads(ocil_command("run", "fine-tune", *words[1:], "--seeds", 1).out)
    assert (said["method"], said["memory"]) == ("fine-tune", 0)


def test_a_home_folder_in_a_toml_file(
    ocil_command: Call, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tiny_npz.parent))
    (tmp_path / "run.toml").write_text('dataset = "~/tiny.npz"\nseeds = 1\nwidth = 2\ntasks = 2\n')
    said = ocil_command("run", "fine-tune", "-c", tmp_path / "run.toml", "-o", tmp_path, "--workers", 1, "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["dataset"] == str(tiny_npz)


def test_a_file_with_the_name_of_a_dataset_is_not_meant(
    ocil_command: Call, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").touch()
    words = ("run", "fine-tune", "-d", "tiny", "--data-dir", tiny_npz.parent, "-n", 1, "--workers", 1, "--json")
    said = ocil_command(*words, "--set", "width=2", "tasks=2")
    assert said.code == 0, said.err
    assert json.loads(said.out)["dataset"] == "tiny"


@pytest.mark.slow
def test_compare(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    names = ("fine-tune", "er", "er-no-rv", "er-rv", "afs-no-rv")  # er-no-rv is er
    words = ("-d", tiny_npz, "-m", 20, "-n", 1, "--workers", 1)
    said = ocil_command("compare", *names, *words, "-o", out, "--set", *SMALL, "--json")
    assert said.code == 0, said.err
    content = json.loads(said.out)
    assert [cell["method"] for cell in content["cells"]] == ["fine-tune", "er", "er-rv", "afs-no-rv"]
    assert [cell["memory"] for cell in content["cells"]] == [0, 20, 20, 20]
    assert content["cells"][0]["average_intransigence"]["values"] == [0.0]
    assert len(results_in(out)) == 4  # the reference is the fine-tune of the table
    assert Path(content["figure"]) == out / "accuracy.png"
    assert Path(content["table"]) == out / "table.md"
    assert (out / "accuracy.png").read_bytes()[:4] == b"\x89PNG"
    table = (out / "table.md").read_text()
    assert table.count("\n| ") == 5
    named = re.findall(r"\n- (\S+): (\S+), seed 0", table)
    assert [label for label, _ in named] == ["fine-tune", "er", "er-rv", "afs-no-rv"]
    assert [str(out / folder / "seed-0") for _, folder in named] == [c["runs"][0] for c in content["cells"]]

    again = ocil_command("compare", *names, *words, "-o", out, "--set", *SMALL, "--figure", tmp_path / "x" / "a.svg")
    assert again.code == 0
    assert "afs-no-rv" in again.out
    assert (tmp_path / "x" / "a.svg").read_text().startswith("<?xml")
    assert (out / "table.md").read_text() == table


def test_compare_prints_its_table_also_where_the_picture_cannot_be_written(
    ocil_command: Call, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(figure: object, path: Path) -> None:
        raise WriteError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("ocil.report.style.save", full)
    words = ("-d", tiny_npz, "-n", 1, "--workers", 1, "-o", tmp_path / "runs", "--set", "width=2", "tasks=2")
    said = ocil_command("compare", "fine-tune", *words)
    assert said.code == 2
    assert "No space left on device" in said.err
    assert re.search(r"│ fine-tune +│", said.out)


@pytest.mark.parametrize("words", [["methods"], ["datasets"], ["data", "list"], ["data", "check", "fashion-mini"]])
def test_every_command_takes_json(ocil_command: Call, words: list[str]) -> None:
    said = ocil_command(*words, "--json")
    assert said.code == 0
    assert said.err == ""
    assert len(said.out.splitlines()) == 1
    assert isinstance(json.loads(said.out), dict)
    shown = ocil_command(*words)
    assert shown.code == 0
    assert "fashion-mini" in shown.out or "afs" in shown.out


def test_methods_lists_the_registry(ocil_command: Call) -> None:
    listed = json.loads(ocil_command("methods", "--json").out)["methods"]
    assert [entry["name"] for entry in listed] == list(METHODS)
    for name in METHODS:
        assert name in ocil_command("methods").out


def test_the_dataset_defaults_to_the_embedded_one(
    ocil_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunConfig] = []

    def run_all(runs: list[StreamRun], *_: Any) -> dict[RunKey, Exception]:
        asked.extend(run.config for run in runs)
        return {run.key: Interrupted("not now") for run in runs}

    monkeypatch.setattr("ocil.engines.pool.run_all", run_all)
    ocil_command("run", "afs", "--out", tmp_path)
    assert [(config.dataset, config.seed) for config in asked if config.method == "afs"] == [
        ("fashion-mini", seed) for seed in range(3)
    ]


@pytest.fixture
def _seed_1_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    learn = FineTune.learn

    def failing(self: FineTune, x: torch.Tensor, y: torch.Tensor) -> None:
        learn(self, x, y)
        if self.rng.seed == 1:
            self.record_loss(torch.tensor(float("inf")))

    monkeypatch.setattr(FineTune, "learn", failing)


@pytest.mark.usefixtures("_seed_1_diverges")
def test_one_seed_diverges_and_the_others_go_on(run_tiny: Call, tmp_path: Path) -> None:
    said = run_tiny("fine-tune", "--seeds", 3, "--json")
    assert said.code == 1
    assert len(said.errors) == 1
    assert "fine-tune seed 1: the loss is not finite at training step 1 " in said.errors[0]
    assert "--set lr=0.01" in said.errors[0]
    content = json.loads(said.out)
    assert content["seeds"] == 2
    assert len(content["failed"]) == 1
    assert sorted(Path(name).name for name in results_in(tmp_path / "runs")) == ["seed-0", "seed-2"]


def test_all_seeds_diverge(run_tiny: Call, tmp_path: Path) -> None:
    said = run_tiny("fine-tune", "--seeds", 2, settings=("lr=1e6",))
    assert said.code == 2
    assert [line.split(": the loss")[0] for line in said.errors] == [
        "ocil: error: fine-tune seed 0",
        "ocil: error: fine-tune seed 1",
    ]
    assert said.out == ""
    assert not results_in(tmp_path / "runs")


def test_a_mistake_in_a_method_is_one_line(run_tiny: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(*_: Any) -> None:
        raise RuntimeError("shapes\n  do not fit")

    monkeypatch.setattr(FineTune, "learn", learn)
    assert "fine-tune seed 0: RuntimeError: shapes do not fit (test_cli.py, line" in one_error(
        run_tiny("fine-tune", "--seeds", 1)
    )


def test_a_mistake_that_pytorch_finds_is_where_the_method_made_it(
    run_tiny: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FineTune, "learn", lambda self, x, y: self.network(x.flatten()))
    assert "(test_cli.py, line" in one_error(run_tiny("fine-tune", "--seeds", 1))


def test_names_from_the_disk_are_no_markup(run_tiny: Call, tiny_npz: Path, tmp_path: Path) -> None:
    odd = tmp_path / "[bold]odd[.npz"
    odd.write_bytes(tiny_npz.read_bytes())
    said = run_tiny("fine-tune", "--seeds", 1, "-d", odd)
    assert said.code == 0
    assert "[bold]odd[, one seed" in said.out


# Ctrl-C


def test_a_second_ctrl_c_stops_at_once(run_tiny: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bool] = []

    def run_all(runs: Any, job: Any, observer: Observer) -> Any:
        heard.append(observer.should_stop())
        os.kill(os.getpid(), signal.SIGINT)
        heard.append(observer.should_stop())
        monkeypatch.setattr("ocil.cli.execute.ECHO_SECONDS", -1.0)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still here")

    monkeypatch.setattr("ocil.engines.pool.run_all", run_all)
    before = signal.getsignal(signal.SIGINT)
    said = run_tiny("fine-tune", "--seeds", 1)
    assert said.code == 130
    assert heard == [False, True]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_in_a_moment_is_one_request(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ocil.cli.execute.ECHO_SECONDS", 1e9)
    with stop_when_asked() as stopped:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stopped()
    assert capfd.readouterr().err == "Saving; once more stops at once.\n"


# Loaded by every process of a command: each step of fine-tuning sleeps, so that no run ends before the signal comes.
SLOW_STEPS = """
import sys, time
from importlib.machinery import PathFinder


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "ocil.methods.fine_tune":
            return None
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            learn = module.FineTune.learn
            module.FineTune.learn = lambda self, x, y: (time.sleep(0.4), learn(self, x, y))[1]

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder)
"""
CALL = """
from ocil.__main__ import main
main()
"""


@pytest.fixture
def slow_python(fork_python: Callable[..., Forked], tmp_path: Path) -> Start:
    """Start ``ocil`` with ``SLOW_STEPS``, which its workers find as well."""
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SLOW_STEPS)
    path = os.pathsep.join(map(str, (folder, Path(ocil.__file__).parents[1])))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return lambda *words: fork_python("-c", SLOW_STEPS + CALL, *words, env=environment)


def start_and_interrupt(
    start_python: Start,
    words: list[object],
    ready: Callable[[Process], None],
    number: signal.Signals = signal.SIGINT,
) -> Said:
    """What ``ocil`` says when Ctrl-C is pressed in its terminal once it is ready: all its processes get the signal."""
    process = start_python(*words)
    try:
        ready(process)
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode is not None
    return Said(process.returncode, out, err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "number"),
    [(1, signal.SIGTERM), (2, signal.SIGINT)],
    ids=["SIGTERM", "Ctrl-C, two workers"],
)
@pytest.mark.usefixtures("usual_convolution")
def test_asked_to_stop_it_saves_and_the_same_command_goes_on(
    slow_python: Start, ocil_command: Call, tiny_npz: Path, tmp_path: Path, workers: int, number: signal.Signals
) -> None:
    words: list[object] = ["run", "fine-tune", "-d", tiny_npz, "--workers", workers, "--set", "width=2", "tasks=2"]
    seeds = ["--seeds", workers + 1]

    def the_second_run_begins(process: Process) -> None:
        while process.poll() is None and len(list((tmp_path / "a").rglob("config.json"))) < 2:
            time.sleep(0.02)

    said = start_and_interrupt(slow_python, [*words, *seeds, "--out", tmp_path / "a"], the_second_run_begins, number)
    assert said.code == 130, said
    assert "Saving; once more stops at once." in said.err
    assert "Stopped: the same command goes on from what was last saved." in said.err
    assert "Traceback" not in said.err
    assert not said.errors
    stopped = [path.parent for path in (tmp_path / "a").rglob("checkpoint.safetensors")]
    unfinished = [path for path in stopped if RunFolder(path).result() is None]
    assert 1 <= len(unfinished) <= workers
    assert not left_over(tmp_path)
    words[words.index("--workers") + 1] = 1
    assert ocil_command(*words, *seeds, "--out", tmp_path / "a").code == 0
    for path in unfinished:
        seed = path.name.removeprefix("seed-")
        assert ocil_command(*words, "--seeds", 1, "--seed", seed, "--out", tmp_path / "b").code == 0
    assert told(tmp_path / "b").items() <= told(tmp_path / "a").items()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds child processes in /proc")
def test_ctrl_c_while_workers_start(start_python: Start, tiny_npz: Path, tmp_path: Path) -> None:
    def a_worker_starts(process: Process) -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None:
            for child in children.read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return
            time.sleep(0.02)

    words = ["run", "fine-tune", "-d", tiny_npz, "--workers", 2, "--seeds", 3, "--out", tmp_path / "runs"]
    said = start_and_interrupt(start_python, ["-m", "ocil", *words, "--set", "width=2", "tasks=2"], a_worker_starts)
    assert said.code == 130, said
    assert "Traceback" not in said.err
    assert not said.errors
    assert not left_over(tmp_path)


def test_other_images_under_the_same_name_are_another_run(ocil_command: Call, tiny: Any, tmp_path: Path) -> None:
    """A dataset outside the catalog may change; its old result must not come back."""
    words: tuple[object, ...] = (
        "run",
        "fine-tune",
        "-d",
        tmp_path / "mine.npz",
        "-n",
        1,
        "-o",
        tmp_path / "runs",
        "--json",
        "--set",
        *SMALL,
    )
    words = tuple(word for word in words if word != "memory_batch=5")
    tiny.save(tmp_path / "mine.npz")
    first = json.loads(ocil_command(*words).out)["runs"]
    replace(tiny, train_x=tiny.train_x[::-1].copy(), train_y=tiny.train_y[::-1].copy()).save(tmp_path / "mine.npz")
    assert json.loads(ocil_command(*words).out)["runs"] != first


def test_nothing_succeeded_is_said_in_json_too(run_tiny: Call) -> None:
    said = run_tiny("er", "--seeds", 1, "--no-reference", "--json", settings=("lr=1e6",))
    assert said.code == 2
    content = json.loads(said.out)
    assert content["runs"] == []
    assert "not finite" in content["failed"][0]


def test_settings_of_an_offline_method_stand_beside_those_of_a_stream(ocil_command: Call, tiny_npz: Path) -> None:
    words = (
        "compare",
        "fine-tune",
        "iid-offline",
        "-d",
        tiny_npz,
        "-n",
        1,
        "--workers",
        1,
        "-o",
        tiny_npz.parent / "iid",
    )
    said = ocil_command(*words, "--json", "--set", "width=2", "tasks=2", "boundary=blurry", "epochs=2", "batch_size=10")
    assert said.code == 0, said.err
    assert [cell["method"] for cell in json.loads(said.out)["cells"]] == ["fine-tune", "iid-offline"]


def test_the_name_of_a_table_row_is_a_method(run_tiny: Call) -> None:
    assert json.loads(run_tiny("er-rv", "--seeds", 1, "--no-reference", "--json").out)["method"] == "er-rv"


def test_a_memory_that_was_chosen_for_own_data_is_said(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    words = ("run", "er", "-d", tiny_npz, "-n", 1, "--workers", 1, "--no-reference", "-o", tmp_path / "runs")
    said = ocil_command(*words, "--json", "--set", *SMALL)
    assert json.loads(said.out)["memory"] == 10
    lines = [line for line in said.err.splitlines() if "memory of 10 images, chosen for 80 training images" in line]
    assert len(lines) == 1
    assert "images, chosen for" not in ocil_command(*words, "-m", 20, "--set", *SMALL).err
    shown = re.sub(r"[^\w.;]+", " ", ocil_command("run", "--help").out)  # without the frame
    assert "for your own data a tenth of the training images" in shown


def test_samples_that_never_arrive_are_counted(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    """40 images per task, in batches of 15. What is so for both methods is said once."""
    where = ("-d", tiny_npz, "-n", 1, "--workers", 1, "--no-reference", "-o", tmp_path / "runs")
    words = ("compare", "fine-tune", "er", *where, "-m", 20, "--set", "width=2", "tasks=2", "batch_size=15")
    said = ocil_command(*words)
    assert said.code == 0, said.err
    assert [line for line in said.err.splitlines() if "never arrive" in line] == [
        "20 of 80 samples never arrive: an incomplete last batch is dropped. --set drop_last=false keeps it."
    ]
    assert "never arrive" not in ocil_command(*words, "drop_last=false").err
    epochs = ("boundary=iid", "epochs=9")  # others are left over in each of them
    assert "never arrive" not in ocil_command("run", "fine-tune", *where, *words[-4:], *epochs).err
