"""Trackers get what the runs found. The tools are stand-ins here; tools/try_trackers.py tries the real ones."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ocil.runs import trackers
from ocil.runs.config import resolve
from ocil.runs.protocol import Interrupted, Progress
from ocil.runs.stream_run import StreamRun
from ocil.runs.trackers import TRACKERS, TrackerInfo, tracking
from ocil.runs.trackers.curves import identifier, settings_of
from tests.conftest import Call, one_error


@dataclass
class Kept:
    """What a tool has kept of one run."""

    config: dict[str, Any]
    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    outcome: str = ""

    def values(self, tag: str) -> list[float]:
        return [values[tag] for _, values in self.rows if tag in values]


def stand_in_for_wandb(kept: dict[str, Kept]) -> ModuleType:
    """The part of wandb that is used. Its run refuses what the real one refuses: a call after the end."""
    wandb = ModuleType("wandb")

    class Run:
        resumed = False

        def __init__(self, name: str, config: dict[str, Any]) -> None:
            self.kept = kept[name] = Kept(config)

        def define_metric(self, name: str, step_metric: str) -> None:
            assert step_metric in ("batch", "group")

        def log(self, values: dict[str, float]) -> None:
            assert not self.kept.outcome
            self.kept.rows.append((int(values.get("batch", values.get("group", 0))), values))

        def finish(self, exit_code: int) -> None:
            self.kept.outcome = "finished" if exit_code == 0 else "stopped"

    def init(*, project: str, name: str, group: str, config: dict[str, Any], resume: str, **more: Any) -> Run:
        assert (resume, more["reinit"], Path(more["dir"]).is_dir()) == ("allow", "create_new", True)
        print("wandb greets on standard output")
        return Run(f"{project}/{more['id']}", config)

    wandb.init, wandb.Settings = init, SimpleNamespace  # type: ignore[attr-defined]
    return wandb


def stand_in_for_trackio(kept: dict[str, Kept]) -> ModuleType:
    trackio = ModuleType("trackio")

    def init(*, project: str, name: str, group: str, config: dict[str, Any], resume: str, embed: bool) -> Any:
        own = kept[f"{project}/{name}"] = Kept(config)

        def log(values: dict[str, float]) -> None:
            own.rows.append((int(values.get("batch", values.get("group", 0))), values))

        def finish() -> None:
            own.outcome = "finished"

        return SimpleNamespace(log=log, finish=finish)

    def finish() -> None:
        raise RuntimeError("Call trackio.init() before trackio.finish().")

    trackio.init, trackio.finish = init, finish  # type: ignore[attr-defined]
    return trackio


def stand_in_for_mlflow(kept: dict[str, Kept]) -> tuple[ModuleType, ModuleType]:
    mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    experiments: dict[str, Any] = {}
    tags: dict[str, str] = {}

    class MlflowClient:
        def __init__(self, tracking_uri: str) -> None:
            assert tracking_uri.startswith("sqlite:///")

        def get_experiment_by_name(self, name: str) -> Any:
            return experiments.get(name)

        def create_experiment(self, name: str) -> str:
            experiments[name] = SimpleNamespace(experiment_id=name)
            return name

        def search_runs(self, ids: list[str], filter_string: str, max_results: int) -> list[Any]:
            wanted = filter_string.split("'")[1]
            return [_run(f"{ids[0]}/{wanted}")] if tags.get(f"{ids[0]}/{wanted}") else []

        def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
            name = f"{experiment}/{tags['ocil.run']}"
            kept[name] = Kept({})
            return _run(name)

        def update_run(self, name: str, status: str) -> None:
            kept[name].outcome = ""

        def log_batch(self, name: str, metrics: Any = (), params: Any = ()) -> None:
            kept[name].config |= {param.key: param.value for param in params}
            tags[name] = "there"
            for metric in metrics:
                kept[name].rows.append((metric.step, {metric.key: metric.value}))

        def set_terminated(self, name: str, status: str) -> None:
            kept[name].outcome = status.lower()

    def _run(name: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id=name))

    def metric(key: str, value: float, timestamp: int, step: int) -> Any:
        return SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)

    def param(key: str, value: str) -> Any:
        return SimpleNamespace(key=key, value=value)

    mlflow.MlflowClient = MlflowClient  # type: ignore[attr-defined]
    entities.Metric, entities.Param = metric, param  # type: ignore[attr-defined]
    return mlflow, entities


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kept]:
    """What the stand-ins keep, by project and run."""
    found: dict[str, Kept] = {}
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", stand_in_for_wandb(found))
    monkeypatch.setitem(sys.modules, "trackio", stand_in_for_trackio(found))
    for module in stand_in_for_mlflow(found):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tool_gets_what_the_runs_found(name: str, run_tiny: Call, kept: dict[str, Kept]) -> None:
    said = run_tiny("er", "--seeds", 2, "--no-reference", "--workers", 1, "--track", f"{name}=birds", "--json")
    assert said.code == 0, said.err
    assert "greets" not in said.out
    assert len(kept) == 2
    for (key, one), accuracy in zip(
        sorted(kept.items()), json.loads(said.out)["average_accuracy"]["values"], strict=True
    ):
        assert key.startswith("birds/tiny-er-m20-")
        assert one.outcome == "finished"
        assert one.values("progress/accuracy")[-1] == pytest.approx(accuracy)
        assert len(one.values("accuracy by group/01")) == 2  # after each of the two tasks
        assert len(one.values("progress/loss")) == 3
        assert str(one.config["learner.memory"]) == "20"
    rows = {key: len(one.rows) for key, one in kept.items()}
    assert run_tiny("er", "--seeds", 2, "--no-reference", "--workers", 1, "--track", f"{name}=birds").code == 0
    assert {key: len(one.rows) for key, one in kept.items()} == rows  # finished before: nothing is added


def a_run() -> StreamRun:
    return StreamRun(resolve("er"))


def test_a_resumed_run_goes_on_in_mlflow(kept: dict[str, Kept], tmp_path: Path) -> None:
    for first, last in ((0, 3), (2, 5)):
        with tracking(["mlflow"], tmp_path, pytest.fail) as on_event:
            for done in range(first, last + 1):
                on_event(a_run(), Progress(done, 8, loss=float(done)))
            on_event(a_run(), Interrupted("stopped"))
    (one,) = kept.values()
    assert one.outcome == "killed"
    assert [step for step, values in one.rows if "progress/loss" in values] == [1, 2, 3, 3, 4, 5]


def test_a_tool_that_fails_does_not_stop_the_runs(kept: dict[str, Kept], tmp_path: Path) -> None:
    def refuse(values: Any) -> None:
        raise ConnectionError("no answer")

    warnings: list[str] = []
    with tracking(["trackio"], tmp_path, warnings.append) as on_event:
        on_event(a_run(), Progress(0, 8))
        opened = sys.modules["trackio"].init(project="p", name="n", group="g", config={}, resume="allow", embed=False)
        opened.log = refuse
        sys.modules["trackio"].init = lambda **settings: opened  # type: ignore[attr-defined]
        other = StreamRun(resolve("er", seed=1))
        on_event(other, Progress(0, 8))
        on_event(other, Progress(1, 8, loss=1.0))
        on_event(other, Progress(2, 8, loss=1.0))
    assert warnings == ["trackio gets no more curves, the runs go on: ConnectionError: no answer"]


def test_a_tracker_of_another_package(tmp_path: Path) -> None:
    seen: list[Any] = []
    opened = SimpleNamespace(on_event=lambda run, event: seen.append(event), close=lambda: seen.append("closed"))
    TRACKERS.register(TrackerInfo("mine", lambda where, root: seen.append((where, root)) or opened))
    with tracking(["mine=here"], tmp_path, pytest.fail) as on_event:
        on_event(a_run(), Progress(0, 8))
    assert seen == [("here", tmp_path), Progress(0, 8), "closed"]
    assert next(iter(trackers._read("Other_One", lambda where, root: opened))).name == "other-one"
    with pytest.raises(TypeError, match="not a function"):
        [*trackers._read("x", 3)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--track", "wnadb"), "unknown tracker 'wnadb'. Did you mean 'wandb'?"),
        (("--track", "trackio", "trackio=x"), "trackio is given twice"),
        (
            ("--track", "mlflow"),
            "needs a package, and mlflow is not installed: pip install 'ocil[mlflow]'",
        ),
    ],
)
def test_what_cannot_be_tracked(
    words: tuple[str, ...], message: str, run_tiny: Call, kept: dict[str, Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert message in one_error(run_tiny("fine-tune", "--seeds", 1, *words))
    assert not kept


def test_names_and_settings() -> None:
    assert identifier(StreamRun(resolve("er", "/a/b c:d.npz", seed=3))).endswith("-seed-3")
    assert ":" not in identifier(StreamRun(resolve("er", "/a/b c:d.npz")))
    found = settings_of(a_run())
    assert (found["method"], found["learner.lr"], found["stream.tasks"]) == ("er", 0.1, 5)
