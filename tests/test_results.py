import json
import os
import re
import runpy
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ocil import tensorfile
from ocil.data import Dataset
from ocil.errors import OcilError, WriteError
from ocil.files import atomic_write, write_bytes
from ocil.methods import MethodInfo, register
from ocil.methods.fine_tune import FineTune, FineTuneConfig
from ocil.runs.config import resolve
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted
from ocil.runs.results import Result, sealed, summarise
from ocil.runs.stream_run import run
from ocil.tensorfile import DamagedFileError
from tests.conftest import Call, left_over, one_error
from tests.networks_to_try import TINY

CONFIG = resolve("fine-tune", "tiny", settings={"width": 2, "tasks": 2})


@pytest.fixture(scope="module")
def result(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(CONFIG, tmp_path_factory.mktemp("runs"), dataset=tiny, device="cpu")


def test_result_json_round_trip(result: Result, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.result() is None
    folder.save_result(result)
    assert folder.result() == result
    content = json.loads((tmp_path / "result.json").read_text())
    assert content["schema"] == 2
    assert content["config"]["learner"]["lr"] == 0.1
    for name in ("average_accuracy", "average_forgetting", "accuracy_curve", "matrix", "wall_seconds", "digest"):
        assert content[name] is not None
    assert {"ocil", "python", "torch", "device", "instructions", "finished"} <= content["environment"].keys()
    assert content["peak_memory"]["host"] > 1 << 20


def changed(content: dict[str, Any], **values: Any) -> str:
    return json.dumps(sealed(content | values))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "",
        lambda content: json.dumps(content)[:-20],
        lambda content: "{}",
        lambda content: changed(content, schema=0),
        lambda content: "[]",
        lambda content: "3",
        lambda content: "null",
        lambda content: "\x00" * 100,
        lambda content: changed(content, config={}),
        lambda content: changed(content, config=content["config"] | {"method": "gone"}),
        lambda content: json.dumps(sealed({key: content[key] for key in content if key != "matrix"})),
        lambda content: json.dumps({key: content[key] for key in content if key != "checksum"}),
        lambda content: json.dumps(content | {"schema": 1, "wall_seconds": 0.5}),
    ],
)
def test_a_corrupt_result_says_so(result: Result, tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "result.json"
    path.write_text(damage(result.to_json()))
    with pytest.raises(OcilError, match="Delete it to start that run again") as error:
        RunFolder(tmp_path).result()
    assert str(path) in str(error.value)


@pytest.mark.parametrize("damage", [{"stream": {"no_such": 1}}, {"no_such": 1}, None])
def test_a_result_of_a_later_version_is_not_to_be_deleted(result: Result, tmp_path: Path, damage: Any) -> None:
    content = result.to_json()
    later = {"schema": 99} if damage is None else {"config": content["config"] | damage}
    (tmp_path / "result.json").write_text(changed(content, **later))
    with pytest.raises(OcilError, match=r"this version of ocil .*Update ocil\.$"):
        RunFolder(tmp_path).result()


@dataclass(frozen=True)
class OwnConfig(FineTuneConfig):
    steps: int | None = 5
    rate: str | float = "auto"
    scale: float = 1  # a whole number in the place of 1.0
    rounds: int = 1.5  # type: ignore[assignment]
    parts: Any = 0


class Own(FineTune):
    Config = OwnConfig


@pytest.mark.parametrize("settings", [{}, {"steps": None}, {"rate": 0.5}, {"scale": 0.5}, {"parts": [1, 2]}], ids=str)
def test_a_setting_of_one_s_own_may_hold_what_its_type_allows(
    tiny: Dataset, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Also where its default is of another type: a finished result could not be read any more."""
    register(MethodInfo("own", Own, "like fine-tune", "-", memory=False))
    config = resolve("own", "tiny", settings={"network": TINY, "tasks": 2})
    config = replace(config, learner=replace(config.learner, **settings))
    result = run(config, tmp_path, dataset=tiny, device="cpu")
    assert result.config.learner == config.learner
    again = run(config, tmp_path, dataset=tiny, device="cpu")
    assert (again.config, again.matrix, again.digest) == (result.config, result.matrix, result.digest)


@pytest.mark.parametrize("settings", [{"scale": "large"}, {"test_flip": "no"}, {"review_every": 2**63}], ids=str)
def test_a_setting_that_holds_what_its_type_does_not_allow_is_refused(result: Result, settings: dict[str, Any]) -> None:
    register(MethodInfo("own", Own, "like fine-tune", "-", memory=False))
    own = replace(result, config=resolve("own", "tiny", settings={"width": 2, "tasks": 2}))
    assert Result.from_json(own.to_json()) == own
    broken = own.to_json()
    broken["config"]["learner"] |= settings
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"{name} = {value} is not what it should be"):
        Result.from_json(sealed(broken))


def test_a_result_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OcilError, match="Delete it"):
        RunFolder(tmp_path).result()


def test_a_changed_byte_of_a_result_is_refused(result: Result, tmp_path: Path) -> None:
    """Spacing may change, nothing else."""
    folder, path = RunFolder(tmp_path), tmp_path / "result.json"
    folder.save_result(result)
    good, refused = path.read_bytes(), 0
    for place in range(len(good)):
        flipped = bytearray(good)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        if json_or_none(flipped) == json.loads(good):
            assert folder.result() == result
            continue
        with pytest.raises(OcilError, match=re.escape(f"cannot read {path}: ")):
            folder.result()
        refused += 1
    assert refused > len(good) * 0.6


def json_or_none(content: bytes | bytearray) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_results_of_before_there_was_a_checksum_are_read(result: Result, tmp_path: Path) -> None:
    content = {name: value for name, value in result.to_json().items() if name != "checksum"} | {"schema": 1}
    (tmp_path / "result.json").write_text(json.dumps(content))
    assert RunFolder(tmp_path).result() == result


def put(path: Path, kind: str, elsewhere: Path) -> None:
    """Something that is no regular file of a usual size in the place of one. ``elsewhere`` is what a link leads to."""
    path.unlink(missing_ok=True)
    make: dict[str, Any] = {
        "link": lambda: path.symlink_to(elsewhere),
        "loop": lambda: path.symlink_to(path),
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "huge": lambda: (path.touch(), os.truncate(path, 1 << 42)),
    }
    make[kind]()


KINDS = ("link", "loop", "fifo", "folder", "huge")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["result.json", "checkpoint.safetensors"])
def test_what_is_no_file_of_ours_is_named_and_left_alone(
    tiny: Dataset, tmp_path: Path, stopped: RunFolder, result: Result, name: str, kind: str
) -> None:
    stopped.save_result(result)
    elsewhere = (stopped.path / name).rename(tmp_path / name)
    (stopped.path / "result.json").unlink(missing_ok=True)
    content = elsewhere.read_bytes()
    put(stopped.path / name, kind, elsewhere)
    with pytest.raises(OcilError, match=re.escape(f"cannot read {stopped.path / name}: it is")) as error:
        run(CONFIG, tmp_path, dataset=tiny, device="cpu")
    assert "\n" not in str(error.value)
    assert elsewhere.read_bytes() == content
    assert {path.name for path in stopped.path.iterdir()} >= {name, ".lock", "config.json"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_names_what_is_no_file_of_ours(ocil_command: Call, result: Result, tmp_path: Path, kind: str) -> None:
    good, bad = (RunFolder.of(tmp_path, replace(CONFIG, seed=seed)) for seed in (0, 1))
    good.save_result(result)
    bad.path.mkdir()
    put(bad.path / "result.json", kind, good.path / "result.json")
    for words in (("show", good.path.parent, "--json"), ("report", tmp_path, "--out", tmp_path / "report", "--json")):
        said = ocil_command(*words)
        assert said.code == 0, said.err
        warnings = json.loads(said.out)["warnings"]
        assert len(warnings) == 1 or kind == "loop"  # which leads to no file
        assert all(warning.startswith(f"cannot read {bad.path / 'result.json'}: it is") for warning in warnings)
    assert str(bad.path) in one_error(ocil_command("show", bad.path))


def test_a_report_of_links_that_were_named(ocil_command: Call, result: Result, tmp_path: Path) -> None:
    folder = RunFolder.of(tmp_path / "disk", CONFIG)
    folder.save_result(result)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    (tmp_path / "one.json").symlink_to(folder.path / "result.json")
    for path in (tmp_path / "runs", tmp_path / "one.json"):
        said = ocil_command("show", path, "--json")
        assert (said.code, json.loads(said.out)["warnings"]) == (0, [])


@pytest.mark.parametrize("place", ["loop", "loop/runs", "x" * 300, "file", "file/runs", "broken"])
def test_a_place_that_cannot_be_is_said_once(run_tiny: Call, ocil_command: Call, tmp_path: Path, place: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    message = one_error(run_tiny("fine-tune", "--seeds", 3, "--out", tmp_path / place))
    assert message.startswith(f"{tmp_path / place} cannot be used: ")
    assert message.endswith(("Name a folder.", "Name another folder."))
    for command in ("show", "report"):
        assert str(tmp_path / place) in one_error(ocil_command(command, tmp_path / place))


def test_the_folder_of_all_runs_may_be_a_link_and_no_other(tiny: Dataset, tmp_path: Path, result: Result) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    assert run(CONFIG, tmp_path / "runs", dataset=tiny, device="cpu").digest == result.digest
    cell = RunFolder.of(tmp_path / "others", CONFIG.identified(tiny)).path.parent
    cell.parent.mkdir()
    (tmp_path / "precious").mkdir()
    for link in (cell, cell / "seed-0"):
        link.symlink_to(tmp_path / "precious")
        with pytest.raises(OcilError, match=re.escape(f"cannot write to {link}: it is a symbolic link")):
            run(CONFIG, tmp_path / "others", dataset=tiny, device="cpu")
        assert not list((tmp_path / "precious").iterdir())
        link.unlink()
        cell.mkdir(exist_ok=True)


def test_runs_of_a_benchmark_are_taken_with_their_checksum(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, words = tmp_path / "out.json", ["take_runs.py", str(tmp_path / "out.json"), str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", [*words, "--side-by-side", "10"])
    tool = str(Path(__file__).parents[1] / "tools" / "take_runs.py")
    if not Path(tool).exists():
        pytest.skip("the tools are in the repository only")
    result = replace(result, config=CONFIG)  # as of a dataset in the catalog, which has no fingerprint
    source.write_text(json.dumps({"runs": [result.to_json() | {"wall_seconds": 0.5}]}))
    with pytest.raises(DamagedFileError, match="does not match its checksum"):
        runpy.run_path(tool, run_name="__main__")
    assert not (tmp_path / "results").exists()
    source.write_text(json.dumps({"runs": [result.to_json()]}))
    runpy.run_path(tool, run_name="__main__")
    taken = RunFolder.of(tmp_path / "results", CONFIG).result()
    assert taken == replace(result, environment=result.environment | {"side_by_side": 10})
    other = replace(result, digest="of others", environment=result.environment | {"images": "others"})
    source.write_text(json.dumps({"runs": [replace(other, config=replace(CONFIG, seed=9)).to_json(), other.to_json()]}))
    with pytest.raises(SystemExit, match="had other images"):
        runpy.run_path(tool, run_name="__main__")
    assert [path.name for path in RunFolder.of(tmp_path / "results", CONFIG).path.parent.iterdir()] == ["seed-0"]
    old = replace(result, environment={name: v for name, v in result.environment.items() if name != "images"})
    RunFolder.of(tmp_path / "results", CONFIG).save_result(old)
    runpy.run_path(tool, run_name="__main__")
    assert "1 of 2 runs are new\n1 are left out that may have other images" in capsys.readouterr().out


@pytest.fixture(scope="module")
def third_batch(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run stopped after its third batch."""
    root = tmp_path_factory.mktemp("stopped")
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        run(CONFIG, root, dataset=tiny, device="cpu", should_stop=lambda: next(asked))
    return RunFolder.of(root, CONFIG.identified(tiny)).path


@pytest.fixture
def stopped(tiny: Dataset, third_batch: Path, tmp_path: Path) -> RunFolder:
    folder = RunFolder.of(tmp_path, CONFIG.identified(tiny))
    shutil.copytree(third_batch, folder.path)
    return folder


def test_checkpoint_holds_tensors_and_progress_in_one_file(tiny: Dataset, stopped: RunFolder) -> None:
    folder = stopped
    found = folder.load_checkpoint()
    assert found is not None
    tensors, progress = found
    assert progress["cursor"] == 3
    assert progress["device"] == "cpu"
    assert "rng.memory" in tensors
    assert folder.result() is None
    names = {path.name for path in folder.path.iterdir()}
    assert names == {".lock", "config.json", "checkpoint.safetensors"}
    written = json.loads((folder.path / "config.json").read_text())
    assert written == json.loads(json.dumps(CONFIG.identified(tiny).to_json()))


def rewritten(path: Path, metadata: dict[str, str] | None = None, drop: str | None = None) -> None:
    with safetensors.safe_open(path, "pt") as file:
        old = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys() if name != drop}  # noqa: SIM118
    tensorfile.write(path, tensors, old if metadata is None else metadata)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"not a checkpoint"),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
        lambda path: rewritten(path, {}),
        lambda path: rewritten(path, {"progress": "{"}),
        lambda path: rewritten(path, {"progress": "{}"}),
        lambda path: rewritten(path, {"progress": "[]"}),
        lambda path: rewritten(path, {"progress": '{"cursor": 99, "seconds": 1, "evaluations": []}'}),
        lambda path: rewritten(path, {"progress": '{"cursor": -1, "seconds": 1, "evaluations": []}'}),
        lambda path: rewritten(path, {"progress": '{"cursor": 1, "seconds": "long", "evaluations": []}'}),
        lambda path: rewritten(path, {"progress": '{"cursor": 1, "seconds": 1, "evaluations": [{"x": 1}]}'}),
        lambda path: rewritten(path, drop="network.head.bias"),
        lambda path: path.write_bytes(safetensors.torch.save({"x": torch.zeros(1)})),
    ],
)
def test_a_corrupt_checkpoint_says_so(tiny: Dataset, tmp_path: Path, stopped: RunFolder, damage: Any) -> None:
    damage(stopped.checkpoint)
    with pytest.raises(OcilError, match="Delete it to start that run again") as error:
        run(CONFIG, tmp_path, dataset=tiny, device="cpu")
    assert str(stopped.checkpoint) in str(error.value)
    assert stopped.result() is None


def test_a_changed_byte_of_a_checkpoint_is_refused(
    tiny: Dataset, tmp_path: Path, stopped: RunFolder, result: Result
) -> None:
    good = stopped.checkpoint.read_bytes()
    for place in [*range(0, 400, 7), *range(400, len(good), len(good) // 50), len(good) - 1]:
        flipped = bytearray(good)
        flipped[place] ^= 1
        stopped.checkpoint.write_bytes(flipped)
        with pytest.raises(OcilError, match=re.escape(f"cannot read {stopped.checkpoint}: it is damaged")):
            stopped.load_checkpoint()
    with pytest.raises(OcilError, match="Delete it to start that run again"):
        run(CONFIG, tmp_path, dataset=tiny, device="cpu")
    assert stopped.checkpoint.read_bytes() == flipped  # it is the user's to delete
    stopped.checkpoint.write_bytes(good)
    assert run(CONFIG, tmp_path, dataset=tiny, device="cpu").digest == result.digest


def test_without_its_corrupt_checkpoint_a_run_starts_again(
    tiny: Dataset, tmp_path: Path, stopped: RunFolder, result: Result
) -> None:
    stopped.checkpoint.unlink()
    assert run(CONFIG, tmp_path, dataset=tiny, device="cpu").digest == result.digest


def test_a_checkpoint_of_another_device(tiny: Dataset, tmp_path: Path, stopped: RunFolder) -> None:
    found = stopped.load_checkpoint()
    assert found is not None
    rewritten(stopped.checkpoint, {"progress": json.dumps(found[1] | {"device": "cuda"})})
    with pytest.raises(OcilError, match="was begun on cuda: go on there \\(--device cuda\\), or delete that folder"):
        run(CONFIG, tmp_path, dataset=tiny, device="cpu")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.lock(), pytest.raises(OcilError, match=r"another process is working on .*wait"), folder.lock():
        pass
    with folder.lock():  # free again
        pass


def test_an_exception_of_the_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_bytes(path, b"old")

    def interrupted() -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert not left_over(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o644


def test_writing_below_a_file_fails_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match=r"cannot write .*its folder is a file"):
        write_bytes(tmp_path / "file" / "x.json", b"")
    with (
        pytest.raises(WriteError, match=r"Choose another folder of runs \(--out\)"),
        RunFolder(tmp_path / "file" / "x").lock(),
    ):
        pass
    assert RunFolder(tmp_path / "file" / "x").result() is None


def test_summary(result: Result) -> None:
    alone = summarise([result])
    assert alone.average_accuracy.interval is None
    assert alone.average_intransigence is None
    many = summarise([result, result], [result, result])
    assert many.average_accuracy.interval == 0
    assert many.average_intransigence is not None
    assert many.average_intransigence.values == (0.0, 0.0)
    assert [len(point.values) for point in many.accuracy_curve] == [2, 2]
    some = summarise([result, result], [result, None]).average_intransigence
    assert some is not None
    assert some.values == (0.0,)  # of the seed that has a reference
    assert summarise([result, result], [None, None]).average_intransigence is None
