"""What TensorBoard shows of a run is what the run found."""

import sys
from pathlib import Path
from typing import Any

import pytest

from ocil.engines.job import Job, Observer
from ocil.engines.pool import run_all
from ocil.evaluation.evaluator import Evaluation
from ocil.runs.config import resolve
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted, Progress
from ocil.runs.results import CURVES, Result
from ocil.runs.stream_run import StreamRun
from ocil.runs.trackers import tracking
from ocil.runs.trackers.tensorboard import Scalars
from tests.conftest import Call, one_error

Points = dict[str, list[tuple[int, Any]]]


def read(folder: Path) -> Points:
    """Every scalar below a run's folder, as TensorBoard itself reads it."""
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the package tensorboard"
    )
    found = accumulators.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, pytest.approx(e.value)) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def measured(result: Result) -> Points:
    """What must be shown of a result's evaluations."""
    points: Points = {}
    for shown, row in enumerate(result.evaluations, 1):
        for group, accuracy in enumerate(row["accuracy"], 1):
            points.setdefault(f"accuracy by group/{group:02}", []).append((shown, accuracy))
        for name, tag in CURVES.items():
            if row[name] is not None:
                points.setdefault(tag, []).append((shown, row[name]))
    return points


def writer() -> Any:
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter


@pytest.fixture
def a_run(tiny_npz: Path) -> StreamRun:
    return StreamRun(resolve("er", str(tiny_npz), settings={"width": 2, "tasks": 2, "memory": 20, "memory_batch": 5}))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_events_are_what_was_measured(run_tiny: Call, tmp_path: Path, workers: int) -> None:
    """Also when workers do the work: only this process writes."""
    writer()
    board = tmp_path / "board"
    said = run_tiny("er", "--seeds", 2, "--no-reference", "--workers", workers, "--tensorboard", board)
    assert said.code == 0, said.err
    folders = sorted(path.parent for path in (tmp_path / "runs").rglob("result.json"))
    assert len(folders) == 2
    for folder in folders:
        result = RunFolder(folder).result()
        assert result is not None
        points = read(board / folder.relative_to(tmp_path / "runs"))
        assert {tag: of for tag, of in points.items() if not tag.startswith(("progress/", "loss/"))} == measured(result)
        assert [step for step, _ in points["progress/loss"]] == [1, 4, 8]
        assert [step for step, _ in points["loss/memory"]] == [4, 8]
        for (_, loss), (_, stream), (_, memory) in zip(
            points["progress/loss"][1:], points["loss/stream"], points["loss/memory"], strict=True
        ):
            assert stream.expected + memory.expected == pytest.approx(loss.expected, rel=1e-4)
        assert [step for step, _ in points["progress/accuracy"]] == [4, 8]
        assert points["progress/accuracy"][-1] == (8, sum(result.matrix[-1]) / 2)
    before = sorted(board.rglob("events.*"))
    run_tiny("er", "--seeds", 2, "--no-reference", "--tensorboard", board)
    assert sorted(board.rglob("events.*")) == before  # finished and shown: nothing is added


def test_a_sweep_and_a_search_write_too(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    writer()
    file, board = tmp_path / "small.toml", tmp_path / "board"
    settings = f'dataset = "{tiny_npz}"\nmemory = 20\nwidth = 2\ntasks = 2\nmemory_batch = 5\n'
    file.write_text(f'title = "Small"\nseeds = 1\n[settings]\n{settings}[[cells]]\nmethod = "er"\n')
    common = ("--workers", 1, "--tensorboard", board)
    assert ocil_command("sweep", file, "--out", tmp_path / "runs", "--no-reference", *common).code == 0
    (folder,) = [path.parent for path in (tmp_path / "runs").rglob("result.json")]
    assert read(board / folder.relative_to(tmp_path / "runs"))["progress/loss"]
    words = ("--dataset", tiny_npz, "--grid", "lr=0.05", "--seeds", 1, "--tasks", 1, "--memory", 20)
    said = ocil_command(
        "tune", "er", *words, "--set", "width=2", "memory_batch=5", "tasks=2", "--out", tmp_path / "search", *common
    )
    assert said.code == 0, said.err
    assert len(list(board.rglob("events.*"))) == 2


def test_a_finished_run_is_shown_too(a_run: StreamRun, tmp_path: Path) -> None:
    (result,) = run_all([a_run], Job(tmp_path / "runs", "cpu", workers=1), Observer()).values()
    assert isinstance(result, Result)
    scalars = Scalars(tmp_path, writer())
    scalars.on_event(a_run, result)
    assert read(a_run.folder(tmp_path).path) == measured(result)


def test_reviews_have_a_line_of_their_own(run_tiny: Call, tmp_path: Path) -> None:
    writer()
    board = tmp_path / "board"
    said = run_tiny("afs", "--seeds", 1, "--no-reference", "--tensorboard", board)
    assert said.code == 0, said.err
    (folder,) = [path.parent for path in board.rglob("events.*")]
    points = read(folder)
    assert [step for step, _ in points["progress/loss"]] == [1, 4, 8]
    assert [step for step, _ in points["progress/review loss"]] == [4, 8]
    assert points["progress/review loss"][-1][1].expected < points["loss/revised focal"][-1][1].expected * 2
    distilled = points["loss/virtual distillation"]
    assert [step for step, _ in distilled] == [1, 4, 8]
    assert all(
        part.expected < loss.expected for (_, part), (_, loss) in zip(distilled, points["progress/loss"], strict=True)
    )


@pytest.mark.parametrize("checkpoint", [2, 4])
def test_a_resumed_run_takes_back_what_it_does_again(a_run: StreamRun, tmp_path: Path, checkpoint: int) -> None:
    """Also the evaluation that came between the checkpoint and the kill."""
    (result,) = run_all([a_run], Job(tmp_path / "runs", "cpu", workers=1), Observer()).values()
    assert isinstance(result, Result)
    found = tuple(Evaluation(**row) for row in result.evaluations)
    first = Scalars(tmp_path, writer())
    for done in (0, 1, 2, 3, 4, 5):
        first.on_event(a_run, Progress(done, 8, loss=float(done), evaluations=found[: done // 4]))
    first.on_event(a_run, Interrupted("stopped"))
    second = Scalars(tmp_path, writer())
    second.on_event(a_run, Progress(checkpoint, 8, evaluations=found[: checkpoint // 4]))
    for done in (4, 5, 8):
        if done > checkpoint:
            second.on_event(a_run, Progress(done, 8, loss=10.0 + done, evaluations=found[: done // 4]))
    second.on_event(a_run, result)
    points = read(a_run.folder(tmp_path).path)
    before = [(done, float(done)) for done in range(1, checkpoint + 1)]
    assert points.pop("progress/loss") == before + [(done, 10.0 + done) for done in (4, 5, 8) if done > checkpoint]
    assert points == measured(result)


def test_not_asked_for_is_not_imported(run_tiny: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert run_tiny("fine-tune", "--seeds", 1).code == 0
    with tracking((), tmp_path, print) as on_event:
        on_event(StreamRun(resolve("er")), Progress(1, 2))


def test_without_the_package(run_tiny: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    message = one_error(run_tiny("fine-tune", "--tensorboard", tmp_path / "board"))
    assert message.endswith("is not installed: pip install 'ocil[tensorboard]'")
    assert not (tmp_path / "board").exists()


def test_a_folder_that_cannot_be(run_tiny: Call, tmp_path: Path) -> None:
    writer()
    (tmp_path / "file").write_text("")
    message = one_error(run_tiny("fine-tune", "--tensorboard", tmp_path / "file"))
    assert "cannot be used: it is a file" in message
