"""Whatever is wrong with the input: one line that says what, exit code 2, and nothing half written."""

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocil.data import Dataset, load, load_once
from ocil.errors import OcilError
from ocil.limits import whole
from ocil.runs.config import resolve
from ocil.runs.folder import RunFolder
from tests.conftest import SMALL, Call, left_over, one_error
from tests.forking import Forked


def nothing_written(root: Path) -> bool:
    return not [
        path for path in root.rglob("*") if path.name in ("result.json", "config.json") or path.suffix == ".tmp"
    ]


SETTINGS = {
    "lr=abc": "lr = 'abc' is not a number",
    "lr=": "--set lr=: write FIELD=VALUE",
    "lr=nan": "lr = 'nan' is not a number",
    "lr=inf": "lr = 'inf' is not a number",
    "lr=-1": "lr = -1.0 must be more than 0",
    "tasks=2.5": "tasks = '2.5' is not a whole number",
    "tasks=two": "tasks = 'two' is not a whole number",
    "tasks=0": "tasks = 0 must be at least 1",
    "tasks=5": "tasks = 5 is more than the 4 classes of tiny: give at most 4 (--set tasks=4).",
    "tasks=1e400": "is not a whole number",
    "batch_size=0": "batch_size = 0 must be at least 1",
    "batch_size=21": "memory = 20 is smaller than batch_size = 21",
    "memory_batch=21": "memory = 20 is smaller than memory_batch = 21",
    "memory_batch=0": "memory_batch = 0 must be at least 1",
    "width=0": "width = 0 must be at least 1",
    "momentum=-0.5": "momentum = -0.5 must be at least 0",
    "forward=joined": "Did you mean 'joint'?",
    "boundary=blury": "Did you mean 'blurry'?",
    "boundary=Clear": "Did you mean 'clear'?",
    "class_order=randm": "class_order = 'randm' is not a choice",
    "review=maybe": "review = 'maybe' is not true or false",
    "drop_last=2": "drop_last = '2' is not true or false",
    "review_every=-1": "review_every = -1 must be at least 0",
    "blurry_share=2": "blurry_share = 2.0 must be from 0 to 1",
    "fade=-1": "fade = -1.0 must be from 0 to 1,000,000",
    "epochs=2": "an online stream is seen once",
    "widht=3": "unknown setting 'widht' for er. Did you mean 'width'?",
    "memori_batch=3": "Did you mean 'memory_batch'?",
    "beta=0.1": "unknown setting 'beta' for er.",
    "method=afs": "unknown setting 'method'",
    "=3": "write FIELD=VALUE",
    "lr": "--set lr: write FIELD=VALUE",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_set(run_tiny: Call, tmp_path: Path, setting: str) -> None:
    assert SETTINGS[setting] in one_error(run_tiny("er", settings=(setting,)))
    assert nothing_written(tmp_path)


OPTIONS: list[tuple[list[str], str]] = [
    (["--memory", "0"], "memory = 0 is smaller than batch_size = 10: give a memory of 10 or more"),
    (["--memory", "9"], "memory = 9 is smaller than batch_size = 10"),
    (["--memory", "-5"], "memory = -5 must be at least 0"),
    (["--memory", "ten"], "Invalid value for --memory: 'ten' is not a whole number."),
    (["--memory", "2.5"], "Invalid value for --memory: '2.5' is not a whole number."),
    (["--seeds", "2.5"], "Invalid value for --seeds: '2.5' is not a whole number."),
    (["--workers", "1.5"], "'1.5' is not a whole number"),
    (["--seeds", "0"], "seeds = 0 must be a whole number from 1"),
    (["--seeds", "-1"], "seeds = -1 must be"),
    (["--seeds", "many"], "Invalid value for --seeds: 'many' is not a whole number."),
    (["--seeds", "0-2"], "'0-2' is a range. Give how many seeds to run: --seeds 3. See:"),
    (["--seeds", "10-19"], "how many seeds to run: --seeds 10. The first is that of --seed 10, or first_seed"),
    (["--seeds", "3-1"], "Invalid value for --seeds: '3-1' is not a whole number."),
    (["--seed", "-1"], "seed = -1 must be a whole number of at least 0"),
    (["--device", "tpu"], "device 'tpu' is not there: use auto"),
    (["--device", "meta"], "device 'meta' is not there"),
    (["--device", "cuda:99"], "device 'cuda:99' is not there"),
    (["--workers", "-1"], "--workers -1 must be from 0 to 1,024"),
    (["--threads", "0"], "--threads 0 must be from 1 to 1,024"),
    (["--sedes", "3"], "Did you mean --seeds?"),
    (["--jsno"], "Did you mean --json?"),
    (["--dataset", "cifar10", "--data-dir", "/nowhere"], "To get it: ocil data download cifar10 --data-dir /nowhere"),
    (["--dataset", "mini-imagenet", "--data-dir", "/nowhere"], "mini_imagenet PATH --data-dir /nowhere"),
    (["--dataset", "cifr10"], "there is no dataset 'cifr10' in"),
    (["--dataset", "fashion-mimi"], "Did you mean 'fashion-mini'?"),
    (["--dataset", ""], "--dataset is empty: give it a value"),
    (["--dataset", "nowhere.npz"], "cannot read nowhere.npz: there is no such file"),
    (["--config", "nowhere.toml"], "cannot read nowhere.toml: No such file or directory"),
    (["--config", "."], "cannot read .: Is a directory"),
    (["--memory"], "--memory needs a value. See: ocil run --help"),
    (["--review", "maybe"], "maybe"),
]


@pytest.mark.parametrize(("words", "message"), OPTIONS, ids=[" ".join(words) for words, _ in OPTIONS])
def test_options(run_tiny: Call, tmp_path: Path, words: list[str], message: str) -> None:
    assert message in one_error(run_tiny("er", *words))
    assert nothing_written(tmp_path)


COMMANDS: list[tuple[list[str], str]] = [
    (["rnu", "afs"], 'Unknown command "rnu". Did you mean "run"?'),
    (["data", "chekc"], 'Did you mean "check"?'),
    (["run"], "name a method, for example: ocil run afs"),
    (["run", "asf"], "unknown method 'asf'. Did you mean 'afs'?"),
    (["run", "er", "--lr", "0.1"], "--lr is no option but a setting: write --set lr=VALUE"),
    (["compare", "er", "--memory-batch=5"], "--memory-batch is no option but a setting: write --set memory_batch="),
    (["longtail", "run", "ce", "--epochs1", "3"], "--epochs1 is no option but a setting: write --set epochs1=VALUE"),
    (["longtail", "run", "ce", "--tasks", "3"], "Unknown option: --tasks"),
    (["run", "er", "--epoch", "5"], "Unknown option: --epoch. See: ocil run --help"),
    (["run", "mine.py"], "'mine.py' is a file: give it as --plugin mine.py, and the method by its name."),
    (["run", "er", "afs"], "afs"),
    (["run", "fine-tune", "--memory", "20"], "fine-tune keeps no memory: leave out memory"),
    (["run", "fine-tune", "--review"], "fine-tune keeps no memory: leave out review"),
    (["compare"], "name the methods to compare"),
    (["compare", "er", "asf"], "Did you mean 'afs'?"),
    (["compare", "er", "--figure", "a.gif"], "must end in .png, .svg or .pdf"),
    (["compare", "er", "--figure", "a"], "must end in .png, .svg or .pdf"),
    (["methods", "--jsn"], "Did you mean --json?"),
    (["data", "check", "nowhere"], "there is no dataset 'nowhere'"),
    (["data", "download", "cifar"], "there is no dataset 'cifar' to download"),
]


@pytest.mark.parametrize(("words", "message"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_commands(
    ocil_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in one_error(ocil_command(*words))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"tasks = ", "is not a TOML file"),
        (b"tasks == 3", "is not a TOML file"),
        (b"\xff\xfe", "is not a TOML file"),
        (b"widht = 3", "unknown setting 'widht' for er. Did you mean 'width'?"),
        (b"[stream]\ntasks = 3", "unknown setting 'stream'"),
        (b"tasks = 2.5", "tasks = 2.5 is not a whole number"),
        (b"tasks = true", "tasks = True is not a whole number"),
        (b"lr = [0.1]", "lr = [0.1] is not a number"),
        (b'lr = "fast"', "lr = 'fast' is not a number"),
        (b"lr = nan", "lr = nan is not a number"),
        (b"seeds = 0", "seeds = 0 must be a whole number from 1"),
        (b"seeds = true", "seeds = True must be"),
        (b'seeds = "3"', "must be a whole number"),
        (b"seed = -1", "seed = -1 must be"),
        (b"seed = 0.5", "seed = 0.5 must be"),
        (b"memory = 1979-05-27", "is not a whole number"),
        (b"dataset = 10", "dataset = 10 in "),
        (b'method = ["er"]', "method = ['er'] in "),
        (b"boundary = 3", "boundary = 3 is not a choice"),
        (b"memory = " + b"9" * 5000, "is not a TOML file"),
        (b"lr = " + b"[" * 3000, "is not a TOML file"),
    ],
    ids=lambda value: value[:30].decode(errors="replace").replace("\n", " ") if isinstance(value, bytes) else "",
)
def test_toml(ocil_command: Call, tiny_npz: Path, tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    words = () if content.startswith(b"dataset") else ("--dataset", tiny_npz)
    assert message in one_error(ocil_command("run", "er", *words, "--config", file, "--out", tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def arrays_of(dataset: Dataset) -> dict[str, Any]:
    names = ("train_x", "train_y", "test_x", "test_y")
    return {name: getattr(dataset, name) for name in names} | {"classes": np.array(dataset.classes)}


ARRAYS: list[tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = [
    (lambda a: {"train_y": a["train_y"] + 1}, "label 4 in train_y is outside 0..3"),
    (lambda a: {"train_y": a["train_y"] - 1}, "label -1 in train_y is outside 0..3"),
    (lambda a: {"test_y": a["test_y"] * 2}, "label 6 in test_y is outside 0..3"),
    (lambda a: {"train_y": a["train_y"].astype(np.int32)}, "train_y must be int64"),
    (lambda a: {"train_y": a["train_y"].astype(float)}, "train_y must be int64"),
    (lambda a: {"train_y": a["train_y"][:, None]}, "train_y must be int64 [N]"),
    (lambda a: {"train_y": a["train_y"][:-1]}, "train has 80 images but 79 labels"),
    (lambda a: {"train_x": a["train_x"] / 255}, "train_x must be images, uint8 [N,H,W,C]"),
    (lambda a: {"train_x": a["train_x"][..., 0]}, "train_x must be images, uint8 [N,H,W,C]"),
    (lambda a: {"train_x": a["train_x"].repeat(2, axis=3)}, "with C 1 or 3"),
    (lambda a: {"test_x": a["test_x"].repeat(3, axis=3)}, "both must have one form"),
    (lambda a: {"test_x": a["test_x"][:, :4]}, "both must have one form"),
    (lambda a: {"train_x": a["train_x"][:0], "train_y": a["train_y"][:0]}, "the train split is empty"),
    (lambda a: {"train_y": np.zeros_like(a["train_y"])}, "3 classes have no training image"),
    (lambda a: {"test_y": np.zeros_like(a["test_y"])}, "has no test image of c, d: add some, or use fewer tasks"),
    (lambda a: {"classes": np.array(["a", "a", "b", "c"])}, "the class name 'a' appears 2 times"),
    (lambda a: {"classes": np.arange(4)}, "classes must be a list of names"),
    (lambda a: {"train_x": np.array([None])}, "pickled objects, which are not loaded"),
    (lambda a: {"test_y": None}, "an array is missing"),
]


@pytest.mark.parametrize(("change", "message"), ARRAYS, ids=[message for _, message in ARRAYS])
def test_datasets(
    run_tiny: Call, tiny: Dataset, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    arrays = arrays_of(tiny)
    arrays |= change(arrays)
    path = tmp_path / "wrong.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    assert message in one_error(run_tiny("er", "--dataset", path))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_dataset_cut_short(run_tiny: Call, tiny_npz: Path, tmp_path: Path, share: float) -> None:
    content = tiny_npz.read_bytes()
    path = tmp_path / "cut.npz"
    path.write_bytes(content[: int(share * len(content))])
    assert f"cannot read {path}: it is cut short or not an .npz file" in one_error(run_tiny("er", "--dataset", path))


def test_a_dataset_with_flipped_bytes(run_tiny: Call, tiny_npz: Path, tmp_path: Path) -> None:
    content = bytearray(tiny_npz.read_bytes())
    content[3000:3050] = bytes(50)
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    assert f"cannot read {path}: Bad CRC-32" in one_error(run_tiny("er", "--dataset", path))


def test_more_in_a_batch_than_in_a_task(run_tiny: Call) -> None:
    found = "batch_size = 41 is more than a task of tiny holds, 40 samples"
    error = one_error(run_tiny("fine-tune", settings=("batch_size=41",)))
    assert f"{found}: give smaller batches or fewer tasks, or drop_last = false." in error


def test_a_batch_of_one_on_tiny_images(run_tiny: Call) -> None:
    """Batch normalisation has nothing to average over; that is known before anything runs."""
    message = one_error(run_tiny("fine-tune", "--seeds", 1, settings=("batch_size=1",)))
    assert message.startswith("a batch of one image of tiny has no batch statistics")


# Where it is written to


def test_out_below_a_file(run_tiny: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = one_error(run_tiny("er", "--seeds", 3, "--out", tmp_path / "file" / "runs"))
    assert message.endswith(f"{tmp_path / 'file'} is a file. Name a folder.")


def test_out_is_a_file(run_tiny: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file. Name a folder." in one_error(run_tiny("er", "--seeds", 3, "--out", tmp_path / "file"))


def test_out_is_a_loop_of_links(run_tiny: Call, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for out in (tmp_path / "a", tmp_path / "a" / "below"):
        assert "a link that leads nowhere" in one_error(run_tiny("er", "--seeds", 3, "--out", out))


def test_names_that_are_too_long(run_tiny: Call, tiny: Dataset, tmp_path: Path) -> None:
    assert "File name too long" in one_error(run_tiny("er", "--seeds", 3, "--out", tmp_path / ("x" * 300)))
    assert "there is no dataset" in one_error(run_tiny("er", "--dataset", "x" * 300))
    assert "File name too long" in one_error(run_tiny("er", "--dataset", f"{'x' * 300}.npz"))
    tiny.save(tmp_path / "short.npz")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "short.npz").rename(tmp_path / f"{'x' * 245}.npz")  # a whole name, of which a folder's has a part
    assert run_tiny("er", "--seeds", 1, "--dataset", tmp_path / f"{'x' * 245}.npz").code == 0


def test_out_is_read_only(run_tiny: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    message = one_error(run_tiny("er", "--seeds", 2))
    assert "Permission denied. Choose another folder of runs (--out)." in message


@pytest.mark.slow
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_full_disk(run_tiny: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Full at config.json, at the last checkpoint or at result.json; then there is room again."""
    sync, synced = os.fsync, []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        message = one_error(run_tiny("fine-tune", "--seeds", 2))
    assert "No space left on device. Free some space or choose another folder." in message
    assert len(synced) == writes + 1  # the second seed is not tried
    assert not list(tmp_path.rglob("result.json"))
    assert not left_over(tmp_path)
    assert run_tiny("fine-tune", "--seeds", 2).code == 0


@pytest.mark.slow
def test_a_file_too_large(fork_python: Callable[..., Forked], tiny_npz: Path, tmp_path: Path) -> None:
    words = ["run", "fine-tune", "-d", str(tiny_npz), "-n", "1", "--workers", "1", "-o", str(tmp_path / "runs")]
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); "
        f"from ocil.cli import main; main({[*words, '--set', 'width=2', 'tasks=2']})"
    )
    process = fork_python("-c", script)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 2, err
    assert out == ""
    assert [line for line in err.splitlines() if "File too large" in line] == err.splitlines()[-1:]
    assert err.splitlines()[-1].startswith("ocil: error: cannot write ")
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not left_over(tmp_path)


def test_a_memory_beyond_the_machine_is_refused_before_anything_runs(run_tiny: Call, tmp_path: Path) -> None:
    assert "memory = 1000000000000 images need" in one_error(run_tiny("er", "--memory", 10**12))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("both", [False, True])
def test_two_processes_on_one_run(
    start_python: Callable[..., "subprocess.Popen[str]"],
    run_tiny: Call,
    tiny_npz: Path,
    tmp_path: Path,
    both: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = dict(setting.split("=") for setting in SMALL)
    config = resolve("er", str(tiny_npz), memory=20, settings=settings)
    config = replace(config, fingerprint=load(tiny_npz).fingerprint)
    folders = [RunFolder.of(tmp_path / "runs", c).path for c in (config, config.reference())[: 1 + both]]
    script = f"""
import fcntl, pathlib, sys
files = []
for name in {list(map(str, folders))}:
    pathlib.Path(name).mkdir(parents=True)
    files.append(open(name + "/.lock", "w"))
    fcntl.flock(files[-1], fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    other = start_python("-c", script)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        monkeypatch.setattr(time, "sleep", lambda seconds: other.communicate(""))  # it ends while we wait
        said = run_tiny("er", "--seeds", 1)
    finally:
        other.kill()
    assert said.code == 0
    assert f"Another process works on {1 + both} of the runs: waiting for it" in caplog.text


def test_no_patience_with_another_process(run_tiny: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_tiny("er", "--seeds", 1).code == 0
    (run,) = (tmp_path / "runs").glob("tiny-er-*/seed-0")
    (run / "result.json").unlink()
    slept: list[float] = []

    def terminate(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) == 1, "it did not stop"
        assert callable(signal.getsignal(signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(time, "sleep", terminate)
    with RunFolder(run).lock():
        said = run_tiny("er", "--seeds", 1)
    assert said.code == 130
    assert "Stopped:" in said.err


def test_other_images_under_a_name_of_the_catalog(ocil_command: Call, tiny: Dataset, tmp_path: Path) -> None:
    """Copies of Mini-ImageNet differ: runs of one are not taken for runs of another."""
    file = tmp_path / "data/mini_imagenet.npz"
    tiny.save(file)
    words: tuple[object, ...] = (
        "--dataset",
        "mini_imagenet",
        "--memory",
        20,
        "--data-dir",
        tmp_path / "data",
        "--workers",
        1,
    )
    words += ("--out", tmp_path / "runs", "--set", *SMALL)
    assert ocil_command("run", "er", "--seeds", 1, *words).code == 0
    assert ocil_command("run", "er", "--seeds", 1, *words).code == 0
    replace(tiny, train_x=np.ascontiguousarray(tiny.train_x[:, ::-1])).save(file)
    for method, seeds in (("er", 2), ("er", 1), ("agem", 1)):  # of the last one only what it compares with is finished
        message = one_error(ocil_command("run", method, "--seeds", seeds, *words))
        assert "was begun with other images of that name: import those again, use another folder" in message
    experiment = tmp_path / "some.toml"
    settings = "\n".join(s if s.split("=")[1].isdigit() else s.replace("=", "='") + "'" for s in SMALL)
    experiment.write_text(f"[settings]\ndataset = 'mini_imagenet'\nmemory = 20\n{settings}\n[[cells]]\nmethod = 'er'")
    words = ("--data-dir", tmp_path / "data", "--out", tmp_path / "runs", "--workers", 1)
    assert "other images of that name" in one_error(ocil_command("sweep", experiment, *words))


@pytest.mark.parametrize("name", ["result.json", "checkpoint.safetensors"])
def test_corrupt_files_of_a_run(run_tiny: Call, tmp_path: Path, name: str) -> None:
    run_tiny("fine-tune", "--seeds", 1)
    (path,) = (tmp_path / "runs").rglob(name)
    path.write_bytes(b"{}")
    if name != "result.json":
        (path.parent / "result.json").unlink()
    message = one_error(run_tiny("fine-tune", "--seeds", 1))
    assert message.startswith(f"cannot read {path}: ")
    assert message.endswith("Delete it to start that run again.")
    path.unlink()
    assert run_tiny("fine-tune", "--seeds", 1).code == 0


def test_a_figure_that_cannot_be_written(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ("compare", "fine-tune", "-d", tiny_npz, "-n", 1, "--workers", 1, "-o", tmp_path / "runs")
    said = ocil_command(*words, "--figure", tmp_path / "file" / "a.png", "--set", "width=2", "tasks=2")
    assert "cannot write" in one_error(said)


@pytest.mark.parametrize("name", ["accuracy.png", "table.md"])
def test_a_folder_in_the_place_of_what_compare_writes(
    ocil_command: Call, tiny_npz: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "runs" / name).mkdir(parents=True)
    words = ("compare", "fine-tune", "-d", tiny_npz, "-n", 1, "--workers", 1, "-o", tmp_path / "runs")
    said = ocil_command(*words, "--set", "width=2", "tasks=2")
    assert one_error(said) == f"cannot write {tmp_path / 'runs' / name}: it is a folder. Choose another place."
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [name]  # nothing has run


def test_a_name_of_another_dataset(run_tiny: Call, tiny: Dataset, tmp_path: Path) -> None:
    """Labels that are fine in one dataset and not in the other do not slip through by its name."""
    replace(tiny, name="other").save(tmp_path / "other.npz")
    said = run_tiny("fine-tune", "--seeds", 1, "--dataset", "OTHER", "--data-dir", tmp_path, "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["dataset"] == "other"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/data/\0.npz", "cannot be the path of a dataset: .*embedded null"),
        ("/data/\ud800.npz", "cannot be the path of a dataset: .* surrogates not allowed"),
        ("~nobody-of-that-name/a.npz", "cannot be the path of a dataset: Could not determine home"),
        (f"/data/{'a' * 5000}.npz", "File name too long"),
    ],
    ids=["null", "surrogate", "user", "long"],
)
def test_a_path_that_cannot_be(path: str, said: str) -> None:
    """It can be resolved: a configuration may come from a machine where it can be."""
    with pytest.raises(OcilError, match=said):
        load_once(path)
    assert resolve("er", path).dataset == path


@pytest.mark.parametrize("value", [True, 2.0, "2", None, [2], np.zeros(2), 0, 11, np.int64(11)])
def test_a_number_of_things_is_whole_and_within_its_bounds(value: object) -> None:
    assert type(whole("things", np.int64(2), 1, 10)) is int
    with pytest.raises(OcilError, match=r"^things = .* must be a whole number from 1 to 10\.$"):
        whole("things", value, 1, 10)
