"""The scripts in benchmarks/ and tools/ run, in their smallest form."""

import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ocil.data import Dataset, load
from ocil.engines.job import Observer, Outcomes, not_started
from ocil.experiments.estimate import MILLISECONDS
from ocil.experiments.files import read
from ocil.report.collect import collect
from ocil.runs.config import resolve
from tests.conftest import Script
from tests.forking import Forked

ROOT = Path(__file__).parents[1]
SMALL = ("width=1", "memory=20", "memory_batch=5", "tasks=2")
NEED_GPU = (
    "fused_kernels",
    "grouped_pixels",
    "gpu_alternatives",
    "gpu_networks",
    "gpu_scaling",
    "gpu_steps",
    "small_steps",
)
ELSEWHERE = {
    "longtail": "test_longtail_runs",
    "rename_runs": "test_naming",
    "results_page": "test_docs",
    "try_trackers": "test_trackers",
    "check_package": "test_sdist",
    "label_studio_check": "test_label_studio",
    "screenshots": "test_report_browser",
}  # scripts that have a test there

Start = Callable[..., "subprocess.Popen[str]"]
Fork = Callable[..., Forked]


def test_every_script_has_a_test_and_says_how_it_is_called() -> None:
    here = Path(__file__).read_text()
    for path in (*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tools/*.py")):
        name = f"{path.parent.name}/{path.stem}"
        assert f"python {name}.py" in path.read_text(), name
        if path.stem in ELSEWHERE:
            assert path.stem in (ROOT / "tests" / f"{ELSEWHERE[path.stem]}.py").read_text(), name
        else:
            assert re.search(rf'"({name}|{path.stem})(\.py)?"', here), name


@pytest.mark.slow
def test_cells_from_start_to_table(script: Script, tiny_npz: Path, tmp_path: Path) -> None:
    words = ("--root", "runs", "--json", "out.json", "--workers", 1, "--device", "cpu")
    er = ("er", *SMALL, "seeds=1")
    out = script("benchmarks/cell", tiny_npz, *er, "+", "fine-tune", *SMALL[::3], "seeds=1", "+", *er, *words)
    assert "from start to table" in out
    rows = [line.split(" | ")[0] for line in out.splitlines() if re.match(r"\| (er|fine-tune) ", line)]
    assert rows == ["| er", "| fine-tune"]
    content = json.loads((tmp_path / "out.json").read_text())
    assert [run["config"]["method"] for run in content["runs"]] == ["er", "fine-tune"]
    assert script("tools/take_runs", "out.json", "taken", "--side-by-side", 2) == "2 of 2 runs are new\n"
    taken = collect([tmp_path / "taken"]).cells
    assert [cell.summary for cell in taken] == [cell.summary for cell in collect([tmp_path / "runs"]).cells]
    assert {cell.runs[0].result.environment["side_by_side"] for cell in taken} == {2}


@pytest.mark.slow
def test_cells_of_experiments_end_at_a_limit_and_go_on(
    script: Script, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped_by_sigterm(runs: Any, job: Any, observer: Observer) -> Outcomes:
        signal.raise_signal(signal.SIGTERM)
        assert observer.should_stop()
        return not_started(runs)

    for name, method in (("one", "er"), ("two", "fine-tune")):
        cell = f'[[cells]]\nmethod = "{method}"\ndataset = "{tiny_npz}"\nwidth = 1\ntasks = 2\n'
        (tmp_path / f"{name}.toml").write_text(f"seeds = 1\n{cell}")
    words = ("one.toml,two.toml", "--json", "out.json", "--workers", 1, "--device", "cpu")
    script("benchmarks/cell", *words, "--limit", 0, code=1)
    assert json.loads((tmp_path / "out.json").read_text())["runs"] == []
    monkeypatch.setattr("ocil.engines.execute", stopped_by_sigterm)
    script("benchmarks/cell", *words, code=1)
    monkeypatch.undo()
    script("benchmarks/cell", *words)
    script("benchmarks/cell", *words)  # which finds both runs finished
    content = json.loads((tmp_path / "out.json").read_text())
    assert [run["config"]["method"] for run in content["runs"]] == ["er", "fine-tune"]


@pytest.mark.slow
def test_convolutions_beside_each_other(script: Script) -> None:
    *_, row = script("benchmarks/cpu_convolution", "--quick").splitlines()
    assert re.fullmatch(r"\| 2 \| 8 \| 2 \|( [\d.]+ \|){4}", row)


@pytest.mark.slow
def test_threads_beside_each_other(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it starts for each measurement is run here as well; how threads wait is in its environment."""
    waiting: list[str | None] = []

    def start(words: list[str], env: dict[str, str], **options: Any) -> "subprocess.CompletedProcess[str]":
        assert words[:2] == [sys.executable, str(ROOT / "benchmarks/threads.py")]
        assert options == {"check": True, "stdout": subprocess.PIPE, "text": True}
        assert "OMP_NUM_THREADS" not in env
        waiting.append(env.get("OMP_WAIT_POLICY"))
        return subprocess.CompletedProcess(words, 0, script("benchmarks/threads", *words[2:]))

    monkeypatch.setattr(subprocess, "run", start)
    words = ("--cases", "er-9-1", "--threads", 1, 2, "--seconds", 0.01, "--json", "out.json")
    assert re.fullmatch(r"\| er-9-1 \|( \d+ / \d+ \|){6}", script("benchmarks/threads", *words).splitlines()[-1])
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [(row["threads"], row["busy"]) for row in rows] == [(1, 0), (2, 0), (2, 0), (1, 1), (2, 1), (2, 1)]
    assert all(row["ms"] > 0 for row in rows)
    assert waiting == ["passive", None, "passive"] * 2


@pytest.mark.slow
@pytest.mark.gpu(optional=True)
def test_steps(script: Script, tmp_path: Path) -> None:
    words = ("--quick", "--seeds", 1, "--seconds", 0.01, "--json", "out.json")
    script("benchmarks/gpu_steps", "--methods", "er", *words)
    script("benchmarks/gpu_steps", "--methods", "fine-tune", "er", *words, "--add")
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["er-rv", "fine-tune"]
    assert all(row["ms_per_step"] > 0 for row in rows)
    a_pass, an_image = MILLISECONDS["cuda bf16"]
    assert rows[0]["tabled_ms"] == pytest.approx(2 * a_pass + 20 * an_image, abs=1e-3)
    assert rows[0]["kernel_factor"] == pytest.approx(rows[0]["ms_per_step"] / rows[0]["tabled_ms"], rel=0.01)


@pytest.mark.slow
@pytest.mark.gpu(optional=True)
def test_the_time_of_a_cell(fork_python: Fork, tiny_npz: Path, tmp_path: Path) -> None:
    """In a process of its own: the script wraps functions of the package."""
    pytest.importorskip("cyclopts", reason="cyclopts is not installed: the script times a command")
    cell = ("afs", "--dataset", tiny_npz, "--seeds", 2, "--no-reference")
    words = ("--json", tmp_path / "out.json", "--limit", 600, *cell, "--set", *SMALL)
    _, said = (process := fork_python(ROOT / "benchmarks/cell_time.py", *words)).communicate(timeout=600)
    assert process.returncode == 0, said
    found = json.loads((tmp_path / "out.json").read_text())
    seconds = {name: phase["seconds"] for name, phase in found["phases"].items()}
    assert sum(seconds.values()) == pytest.approx(found["seconds"], abs=0.05)  # every moment is counted, and once
    calls = {name: phase["calls"] for name, phase in found["phases"].items()}
    assert calls["evaluations"] == 2 * 2 * 2  # seeds, tasks; begun, and read
    assert calls["check"] == 1 + 1  # the settings of all seeds, and their images
    assert (calls["open"], calls["upload"]) == (2, 1 if found["device"] != "cpu" else 2)
    assert all(seconds[name] > 0 for name in ("import", "load", "steps", "reviews", "write"))


@pytest.mark.slow
@pytest.mark.gpu(optional=True)
def test_small_steps(script: Script, tmp_path: Path) -> None:
    words = ("--quick", "--seeds", 1, "--repeats", 2, "--methods", "er", "unknown", "--json", "out.json")
    script("benchmarks/small_steps", *words)
    found = json.loads((tmp_path / "out.json").read_text())
    assert [row["images"] for row in found["passes"]] == [[10, 20]]
    assert [row["method"] for row in found["steps"]] == ["er"]
    assert all(ms > 0 for row in found["passes"] + found["steps"] for ms in row["ms"].values())
    script("benchmarks/small_steps", *words, "--limit", 0)
    found = json.loads((tmp_path / "out.json").read_text())
    assert not found["passes"] + found["steps"]
    assert len(found["left_out"]) == 2


@pytest.mark.slow
@pytest.mark.gpu(optional=True)
def test_curves_and_their_picture(script: Script, tmp_path: Path) -> None:
    kinds = ("seeds", "classes")
    script("benchmarks/gpu_scaling", "out.json", "--quick", "--methods", "er", "--seconds", 0.01, "--kinds", *kinds)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(row["kind"], row["at"]) for row in rows] == [*zip(kinds, (1, 10), strict=True)]
    script("tools/performance_figures", "out.json", "--out", "two.png")
    (tmp_path / "one.json").write_text(json.dumps({"device": "cpu", "rows": rows[:1]}))
    script("tools/performance_figures", "one.json", "--out", "one.png")
    with Image.open(tmp_path / "two.png") as two, Image.open(tmp_path / "one.png") as one:
        assert two.width > 1.5 * one.width


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", [f"benchmarks/{name}" for name in NEED_GPU])
def test_what_needs_a_gpu_says_so(script: Script, name: str, tmp_path: Path) -> None:
    if name.endswith(("fused_kernels", "grouped_pixels")):
        pytest.importorskip("triton", reason="triton is not installed: make test installs it")
    message = script(name, *(["out.json"] if name.endswith("gpu_scaling") else []), code=2)
    assert ".py: error: this needs a GPU" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.gpu
def test_alternatives(script: Script, tmp_path: Path) -> None:
    script("benchmarks/gpu_alternatives", "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["fused"] > 0


@pytest.mark.slow
def test_tiles_are_tried_beside_those_in_use(fork_python: Fork) -> None:
    """The part of ``benchmarks/fused_kernels`` that needs no GPU: one kernel of each kind, and the tiles to time."""
    pytest.importorskip("triton", reason="triton is not installed: make test installs it")
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
import fused_kernels
from ocil.kernels import tiles
fused_kernels.SIDE = 8
found = fused_kernels.cases(2, "cpu")
assert {{case.kind for case in found}} == {{"conv", "dgrad", "wgrad"}}
for case in found:
    tried = fused_kernels.candidates(*case.key)
    assert tried[0] == tiles.tile(*case.key)
    assert len(tried) == len(set(tried)) > 3
    parts = [fused_kernels.fitted(case.layer, t, 2) for t in tried]
    assert all(layer.splits * layer.span >= 2 * layer.shape.out_pixels for layer in parts)
"""
    process = fork_python("-c", code)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err


@pytest.mark.slow
def test_load_on_the_service(start_python: Start, tmp_path: Path) -> None:
    for package in ("fastapi", "uvicorn", "python_multipart"):
        pytest.importorskip(package)
    path = (ROOT / "benchmarks/serve_load").with_suffix(".py")
    process = start_python(path, "fine-tune", "--clients", 1, "--seconds", 0.5, "--set", "width=2", cwd=tmp_path)
    try:
        out, err = process.communicate(timeout=600)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own: what it started goes too
    assert process.returncode == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["clients"], row["learning"]) for row in rows] == [(1, "no"), (1, "yes")]
    assert all(row["predictions_per_second"] > 0 for row in rows)
    assert rows[0]["samples_learned_per_second"] == 0


@pytest.mark.slow
def test_soaking_the_service(fork_python: Fork, tmp_path: Path) -> None:
    for package in ("fastapi", "uvicorn", "python_multipart"):
        pytest.importorskip(package)
    words = ("out.json", "--minutes", 0.1, "--kill-minutes", 0.03, "--calm-minutes", 0.1)
    process = fork_python((ROOT / "benchmarks/serve_soak").with_suffix(".py"), *words, cwd=tmp_path)
    try:
        out, err = process.communicate(timeout=600)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out + err
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["differences"] == []
    assert len(found["lives"]) == found["kills"] + 1 > 1
    assert found["samples_acknowledged"] > 0
    assert found["predictions"] > 0
    assert all(megabytes > 10 for life in found["lives"] for _, megabytes, _ in life["memory"])


@pytest.mark.slow
def test_hardness_of_a_split(script: Script, tmp_path: Path) -> None:
    """Training images are stripes one way, test images the other way: nothing is near, until images are mixed."""
    stripes = np.indices((8, 8))[..., None] % 2 * 200  # across, down
    labels = np.repeat([0, 1], 20)
    noise = np.random.default_rng(0).integers(0, 9, (2, 40, 8, 8, 1))
    train, test = ((stripes[label] + noise[n]).astype(np.uint8) for n, label in enumerate((labels, 1 - labels)))
    Dataset("turned", train, labels, test, labels, ("across", "down")).save(tmp_path / "turned.npz")
    given, mixed = script("benchmarks/split_hardness", "turned.npz", "--random", 1, "--side", 8).splitlines()
    assert given == "turned as it is: 0.00%"
    assert re.fullmatch(r"random split 0: [\d.]+%", mixed)
    assert 10 < float(mixed.split()[-1][:-1]) < 100


@pytest.mark.slow
def test_a_long_stream(script: Script, tmp_path: Path) -> None:
    script("benchmarks/stream_length", "--images", 2000, "--methods", "fine-tune", "--json", "out.json")
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["images"] for row in rows] == [100 * look for look in range(1, 21)]
    assert rows[0]["classes"] < rows[-1]["classes"] <= 100
    assert all(row["host_mb"] > 10 for row in rows)


def test_the_cost_of_table_1_is_that_of_the_documentation(script: Script) -> None:
    table, total = script("benchmarks/table1_cost").split("\n\n")
    assert table in (ROOT / "docs/scale.md").read_text()
    assert re.fullmatch(r"\d+ runs, [\d.]+ GPU-hours\n", total)


def test_cells_that_need_more_seeds_become_an_experiment(script: Script, tmp_path: Path) -> None:
    only = "dataset=cifar10 method=afs,dvc review=true"
    measured = ("afs", "cifar10", 200, 0), ("afs", "cifar10", 500, 0), ("afs", "cifar10", 500, 1)
    for name, dataset, memory, seed in measured:
        config = resolve(name, dataset, memory=memory, seed=seed, settings={"precision": "bf16"})
        kept = Path(config.cell, f"seed-{seed}", "result.json")
        (tmp_path / kept).parent.mkdir(parents=True)
        (tmp_path / kept).write_bytes((ROOT / "results" / kept).read_bytes())
    options = ("--only", only, "--seeds", 2, "--points", 90, "--out", "more.toml")
    rows = [line.strip("| ").split(" | ") for line in script("benchmarks/wide_rows", ".", *options).splitlines()[2:]]
    # AFS with memory 500 has both seeds.
    assert [row[:5] for row in rows if row[1] == "afs"] == [
        ["cifar10", "afs", "200", "-", "1"],
        ["cifar10", "afs", "1000", "-", "2"],
    ]
    assert [row[1] for row in rows].count("dvc-rv") == 3
    spent = [int(row[5]) for row in rows]
    assert spent == sorted(spent)
    cells = read(tmp_path / "more.toml").cells
    assert [[cell.config.dataset, cell.label, str(cell.value("memory"))] for cell in cells] == [row[:3] for row in rows]
    assert all(len(cell.configs) == 2 and cell.config.learner.precision == "bf16" for cell in cells)
    script("benchmarks/wide_rows", ".", "--only", "dataset=cifar10 method=afs memory=200", *options[2:])
    (cell,) = read(tmp_path / "more.toml").cells
    assert [config.seed for config in cell.configs] == [1]


def idx(array: np.ndarray) -> bytes:
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def test_the_embedded_dataset_is_made_from_published_files(script: Script, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = {}
    for prefix in ("train", "t10k"):
        images[prefix] = rng.integers(0, 256, (30, 28, 28)).astype(np.uint8)
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx(images[prefix]))
        (tmp_path / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx((np.arange(30) % 10).astype(np.uint8)))
    script("tools/make_embedded", ".", "--size", 7, "--train", 2, "--test", 1, "--output", "made.npz")
    made = load(str(tmp_path / "made.npz"))
    assert (made.train_x.shape, made.test_x.shape) == ((20, 7, 7, 1), (10, 7, 7, 1))
    assert made.train_y.tolist() == [*range(10)] * 2
    expected = np.floor(images["train"][13].reshape(7, 4, 7, 4).mean((1, 3)) + 0.5)
    assert np.array_equal(made.train_x[13, ..., 0], expected)
    assert "cannot read" in script("tools/make_embedded", "nowhere", "--output", "no.npz", code=1)
    assert not (tmp_path / "no.npz").exists()


@pytest.mark.slow
def test_times_of_commands_are_kept_and_written(script: Script, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("before\n<!-- times -->\n<!-- end -->\nafter\n")
    words = ("--machine", "one machine", "--kept", "kept.json", "--page", "page.md", "--only")
    script("benchmarks/command_times", *words, "methods")
    kept = json.loads((tmp_path / "kept.json").read_text())
    (found,) = kept["commands"].values()
    assert found["processor_seconds"] > 0
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before\n<!-- times -->\nMeasured on one machine.")
    assert "| `ocil methods` | the list of methods |" in page
    kept["commands"]["demo"] = {"seconds": 125.3, "processor_seconds": 240.0}
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    script("benchmarks/command_times", *words, "methods")
    assert (
        "| `make demo` | three methods, three seeds | 2 min 05 s | 4 min 00 s |" in (tmp_path / "page.md").read_text()
    )


def test_the_pictures_of_streams_are_those_of_the_page(script: Script, tmp_path: Path) -> None:
    script("tools/stream_figures", "--out", ".")
    made = {path.name for path in tmp_path.glob("*.svg")}
    assert made == {path.name for path in (ROOT / "docs/images").glob("stream-*.svg")}
    page = (ROOT / "docs/streams.md").read_text()
    assert made == set(re.findall(r"images/(stream-[a-z-]+\.svg)", page))


@pytest.mark.slow
def test_the_picture_of_the_readme_has_the_numbers_of_its_table(script: Script, tmp_path: Path) -> None:
    rows = [line.strip("| ").split(" | ") for line in script("tools/readme_figure", "--out", "a.png").splitlines()]
    page = (ROOT / "docs/performance.md").read_text()
    table = [line for line in page.replace("*", "").splitlines() if line.startswith("|") and line.endswith(" s |")]
    assert len(rows) == 9
    for _, precision, accuracy, *_ in rows:
        assert any(accuracy in line for line in table), (precision, accuracy)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 500


@pytest.mark.slow
def test_reading_ahead(script: Script, tmp_path: Path) -> None:
    out = script("benchmarks/large_data", "prefetch", "--folder", tmp_path / "large", "--count", 300)
    assert len(re.findall(r"^(in the loop|read ahead), .*: \d+ us waited per batch$", out, re.MULTILINE)) == 4


CASE = '<testcase classname="tests.test_kernels" name="{}" time="{}">{}</testcase>'
PASSED, FAILED, SKIPPED = (
    CASE.format("test_one", 1.5, ""),
    CASE.format("test_two", 0.5, '<failure message="assert 1 == 2">1</failure>'),
    CASE.format("test_three", 0, '<skipped message="float32 is for others"/>'),
)


def test_the_outcome_of_the_tests_on_a_gpu_is_kept(script: Script, tmp_path: Path) -> None:
    def write(*cases: str) -> None:
        (tmp_path / "gpu.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")

    write(PASSED, FAILED, SKIPPED)
    words = ("gpu.xml", "kept.json", "--device", "a GPU", "--note", "before Table I")
    assert "1 passed, 1 failed, 1 skipped" in script("tools/gpu_tests", *words, code=1)
    write(PASSED, SKIPPED)
    script("tools/gpu_tests", *words[:4])
    first, second = json.loads((tmp_path / "kept.json").read_text())
    assert (first["device"], first["seconds"], first["note"]) == ("a GPU", 2.0, "before Table I")
    assert first["failures"] == ["tests.test_kernels.test_two"]
    assert first["reasons"] == {"float32 is for others": 1}
    assert (second["passed"], second["failed"], "note" in second) == (1, 0, False)
    for entry in json.loads((ROOT / "results/performance/h200-gpu-tests.json").read_text()):
        assert {"device", "torch", "command", "passed", "failed", "skipped", "seconds"} <= entry.keys()


@pytest.mark.slow
def test_our_half_of_the_comparison_with_peers(script: Script, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (70, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(70) % 2
    np.savez(tmp_path / "task.npz", train_x=images[:60], train_y=labels[:60], test_x=images[60:], test_y=labels[60:])
    out = script("benchmarks/peers", "--worker", "ours", "--worker-method", "er", "--task", "task.npz", "--skip", 1)
    found = json.loads(out)
    assert found["steps"] == 6
    assert found["package"].startswith("ocil ")
    assert found["wall_ms"] > 0
    assert 0 <= found["accuracy"] <= 1
    assert found["peak_bytes"] > 2**20


@pytest.mark.slow
def test_a_search_in_stages(script: Script, tiny_npz: Path, tmp_path: Path) -> None:
    words = (tiny_npz, "width=1", "tasks=2", "memory_batch=5", "--memory", 20, "--tasks", 1, "--seeds", 2)
    stages = ("--stage", "drift_weight=1,0", "--stage", "lr=1e-6,0.1", "updates=1")
    more = ("--device", "cpu", "--workers", 1, "--json", "out.json")
    out = script("benchmarks/staged_search", "aaer", *words, *stages, *more)
    found = json.loads((tmp_path / "out.json").read_text())
    first, second = found["stages"]
    # Anchors come at a task's end: in the first task the pull has no influence, and the default stays.
    assert first["points"][0]["runs"] == first["points"][1]["runs"]
    assert first["chosen"] == {"drift_weight": "1"}
    assert second["before"]["drift_weight"] == "1"
    assert [len(point["runs"]) for point in second["points"]] == [2, 2]
    assert found["chosen"].keys() == {"width", "tasks", "memory_batch", "drift_weight", "lr", "updates"}
    assert "ocil run aaer" in out
    by_chance = script("benchmarks/staged_search", "aaer", *words, *stages, *more)  # finished runs are not run again
    assert by_chance.splitlines()[-1].partition("]")[2] == out.splitlines()[-1].partition("]")[2]
