import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ocil.config import resolve
from ocil.data import Dataset
from ocil.errors import OcilError, WriteError
from ocil.files import atomic_write, write_bytes
from ocil.results import Result, RunFolder, summarise
from ocil.runner import Interrupted, run
from tests.conftest import left_over

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
    assert content["schema"] == 1
    assert content["config"]["learner"]["lr"] == 0.1
    for name in ("average_accuracy", "average_forgetting", "accuracy_curve", "matrix", "wall_seconds", "digest"):
        assert content[name] is not None
    assert {"ocil", "python", "torch", "device", "finished"} <= content["environment"].keys()
    assert content["peak_memory"]["host"] > 1 << 20


def changed(content: dict[str, Any], **values: Any) -> str:
    return json.dumps(content | values)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "",
        lambda content: json.dumps(content)[:-20],
        lambda content: "{}",
        lambda content: changed(content, schema=2),
        lambda content: "[]",
        lambda content: "3",
        lambda content: "null",
        lambda content: "\x00" * 100,
        lambda content: changed(content, config={}),
        lambda content: changed(content, config=content["config"] | {"method": "gone"}),
        lambda content: changed(content, config=content["config"] | {"stream": {"no_such": 1}}),
        lambda content: json.dumps({key: content[key] for key in content if key != "matrix"}),
    ],
)
def test_a_corrupt_result_says_so(result: Result, tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "result.json"
    path.write_text(damage(result.to_json()))
    with pytest.raises(OcilError, match="Delete it to start that run again") as error:
        RunFolder(tmp_path).result()
    assert str(path) in str(error.value)


def test_a_result_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OcilError, match="Delete it"):
        RunFolder(tmp_path).result()


@pytest.fixture(scope="module")
def third_batch(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run stopped after its third batch."""
    root = tmp_path_factory.mktemp("stopped")
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        run(CONFIG, root, dataset=tiny, device="cpu", should_stop=lambda: next(asked))
    return RunFolder.of(root, CONFIG).path


@pytest.fixture
def stopped(third_batch: Path, tmp_path: Path) -> RunFolder:
    folder = RunFolder.of(tmp_path, CONFIG)
    shutil.copytree(third_batch, folder.path)
    return folder


def test_checkpoint_holds_tensors_and_progress_in_one_file(stopped: RunFolder) -> None:
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
    assert json.loads((folder.path / "config.json").read_text()) == CONFIG.to_json()


def rewritten(path: Path, metadata: dict[str, str] | None = None, drop: str | None = None) -> None:
    with safetensors.safe_open(path, "pt") as file:
        old = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys() if name != drop}  # noqa: SIM118
    path.write_bytes(safetensors.torch.save(tensors, old if metadata is None else metadata))


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


def test_without_its_corrupt_checkpoint_a_run_starts_again(
    tiny: Dataset, tmp_path: Path, stopped: RunFolder, result: Result
) -> None:
    stopped.checkpoint.unlink()
    assert run(CONFIG, tmp_path, dataset=tiny, device="cpu").digest == result.digest


def test_a_checkpoint_of_another_device(tiny: Dataset, tmp_path: Path, stopped: RunFolder) -> None:
    found = stopped.load_checkpoint()
    assert found is not None
    rewritten(stopped.checkpoint, {"progress": json.dumps(found[1] | {"device": "cuda"})})
    with pytest.raises(OcilError, match="was begun on cuda: go on with --device cuda, or delete that folder"):
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
    with pytest.raises(WriteError, match="Choose another folder with --out"), RunFolder(tmp_path / "file" / "x").lock():
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
    assert summarise([result, result], [result, None]).average_intransigence is None
