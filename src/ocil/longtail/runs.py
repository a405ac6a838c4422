"""Long-tailed runs: stage 1 once per seed, then each variant. A killed run goes on from its last epoch."""

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ocil import tensorfile
from ocil.devices import pick_device
from ocil.errors import OcilError
from ocil.files import folder_path
from ocil.longtail import metrics
from ocil.longtail.config import LongTailConfig, Stage1Config
from ocil.longtail.data import LongTailDeviceData, LongTailed, load
from ocil.longtail.network import PlainNetwork
from ocil.longtail.results import LongTailResult, Stage1Result, read_result
from ocil.longtail.training import BalancedStage, Stage, StageOne, StageTwo, check, plain_network, predict
from ocil.precision import Precision
from ocil.runs.captured import record
from ocil.runs.environment import digest_of, environment
from ocil.runs.folder import RunFolder, State, read_tensors
from ocil.runs.protocol import ActiveRun, Finished, Interrupted, Progress, Run, SaveTimes, Workspace, perform
from ocil.runs.results import other_images, unreadable, write_json

STAGE1_FACTS = ("digest", "best_epoch", "validation", "seconds")
WARM = 3  # steps outside of a graph before one is recorded: they prepare what a graph may not prepare


@dataclass(frozen=True)
class TailRun(Run):
    """The part that runs of stage 1 and of the variants have in common."""

    config: LongTailConfig
    side_by_side = 6
    advice = "use a smaller batch_size or width, or fewer workers"

    @property
    def precision(self) -> Precision:
        return self.config.precision

    def fingerprint(self, data_dir: Path | None) -> str:
        return load(self.config, data_dir).fingerprint

    def device_data(self, workspace: Workspace) -> LongTailDeviceData:
        """The images on the device, cut and uploaded once for all runs of a workspace that share them."""
        config = self.config
        cut = (config.imbalance, config.open_share, config.validation, config.seed) if config.imbalance else ()
        key = (config.dataset, *cut)
        found = workspace.share(key, lambda: LongTailDeviceData(load(config, workspace.data_dir), workspace.device))
        check(config, len(found.train_y))
        return found

    def open(self, workspace: Workspace, held: ExitStack) -> ActiveRun:
        held.enter_context(self.folder(workspace.root).lock())
        if (finished := self.result(workspace.root)) is not None:
            return Finished(finished)
        return self.begin(workspace, self.device_data(workspace))

    @abstractmethod
    def begin(self, workspace: Workspace, device_data: LongTailDeviceData) -> ActiveRun:
        """Resume in the folder, of which this process has the lock."""


@dataclass(frozen=True)
class Stage1Run(TailRun):
    """Stage 1 of a seed, for every variant that starts from it."""

    config: Stage1Config
    label = "stage1"

    def result(self, root: Path) -> Stage1Result | None:
        found = self.weights(root)
        return None if found is None else _stage1_result(found[1])

    def weights(self, root: Path) -> tuple[State, dict[str, Any]] | None:
        """The best weights, if stage 1 is finished, and what was measured with them."""
        folder = self.folder(root)
        found = read_tensors(weights_path(folder), "found")
        if found is not None:
            folder.check_settings(folder.stored_config(self.config))
        return found

    def begin(self, workspace: Workspace, device_data: LongTailDeviceData) -> ActiveRun:
        folder = self.folder(workspace.root)
        folder.check_checkpoint_settings()
        folder.save_config(self.config)
        _save_split(folder.path / "split.safetensors", device_data.split)
        return ActiveStage1(StageTraining(StageOne(self.config, device_data), folder, workspace))


@dataclass(frozen=True)
class LongTailRun(TailRun):
    """One variant: stage 2, which starts from stage 1's best weights, then the test. ``ce`` tests stage 1 itself, and
    ``bs`` trains in its place."""

    @property
    def label(self) -> str:
        return self.config.variant

    @property
    def stage1(self) -> Stage1Run:
        return Stage1Run(self.config.stage1)

    def requires(self) -> Sequence[Run]:
        return () if self.config.variant == "bs" else (self.stage1,)

    def result(self, root: Path) -> LongTailResult | None:
        return self.folder(root).read_result(read_result)

    def begin(self, workspace: Workspace, device_data: LongTailDeviceData) -> ActiveRun:
        if not self.requires():  # else the folder of stage 1 has it
            _save_split(self.folder(workspace.root).path / "split.safetensors", device_data.split)
        return ActiveVariant(self, device_data, workspace)


def run(
    config: LongTailConfig,
    root: Path | str,
    *,
    device: torch.device | str = "auto",
    data_dir: Path | None = None,
    threads: int = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> LongTailResult:
    """Run a configuration in its folder under ``root``, after its stage 1 if that is not finished. Raises
    ``InUseError`` if another process works on either."""
    this, root = LongTailRun(config), folder_path("root", root)
    if (found := this.result(root)) is not None:
        return found
    device = pick_device(device)
    workspace = Workspace(root, device, data_dir, threads)
    # A step cannot be recorded on the default stream.
    with torch.cuda.stream(torch.cuda.Stream(device) if device.type == "cuda" else None):
        return cast("LongTailResult", perform(this, workspace, on_progress, should_stop))


class RecordedSteps:
    """Takes the steps of a stage. On a GPU, one is recorded after the first few, and then replayed."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.capture = stage.config.capture and stage.data.device.type == "cuda"
        self.taken = 0
        self.replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        if not self.capture or self.taken < WARM:
            self.taken += 1
            self.stage.step()
            return
        if self.replay is None:
            self.replay = record(self.stage.step, self.stage.rng).replay
        self.replay()


class Reading:
    """Numbers on their way from the device. ``get`` waits for them if they have not arrived."""

    def __init__(self, values: Tensor) -> None:
        self.host, self.event = values, None
        if values.device.type == "cuda":
            self.host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.host.copy_(values, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def get(self) -> list[float]:
        if self.event is not None:
            self.event.synchronize()
        found: list[float] = self.host.tolist()
        return found


class StageTraining:
    """The training of one stage in its folder: epochs, checkpoints, and at the end the best weights."""

    def __init__(self, stage: Stage, folder: RunFolder, workspace: Workspace, before: int = 0) -> None:
        """``before``: epochs that came before this stage."""
        self.stage, self.folder, self.before = stage, folder, before
        # On a CPU an epoch takes longer than to save it.
        self.checkpoint_seconds = 0.0 if workspace.device.type == "cpu" else workspace.checkpoint_seconds
        self.step = RecordedSteps(stage)
        self.history: list[dict[str, float]] = []
        self.seconds = 0.0
        folder.resume(stage.data.device, stage.data.split.fingerprint, self.load)

    def steps(self, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> Iterator[None]:
        """Train epoch by epoch. The numbers of an epoch are read during the next, so the device never waits."""
        saves = SaveTimes(self.checkpoint_seconds)
        earlier, reading = self.seconds, None
        on_progress(self.progress())
        while self.stage.epoch < self.stage.epochs:
            self.stage.begin_epoch()
            for number in range(self.stage.steps):
                if should_stop():
                    raise Interrupted(str(self.folder.path))
                self.step()
                yield
                if reading is not None and number == self.stage.steps // 2:  # more steps are queued while we wait
                    self.note(reading)
                    on_progress(self.progress())
                    reading = None
            reading = Reading(self.stage.end_epoch())
            yield
            self.seconds = earlier + time.monotonic() - saves.started
            if saves.due():
                self.note(reading)
                reading = None
                self.save()
                on_progress(self.progress())
                saves.note()
        if reading is not None:
            self.note(reading)
            self.seconds = earlier + time.monotonic() - saves.started
            on_progress(self.progress())

    def note(self, reading: Reading) -> None:
        loss, accuracy = reading.get()
        epoch = len(self.history) + 1
        if loss != loss or loss in (float("inf"), float("-inf")):
            config = self.stage.config
            raise OcilError(
                f"{config.variant} seed {config.seed}: the loss is not finite in epoch {epoch}. "
                "Lower the learning rates (--set lr1=0.01 lr2=0.001 lr_classifier=0.01)."
            )
        self.history.append({"loss": loss, "validation": accuracy})

    def progress(self) -> Progress:
        last = self.history[-1] if self.history else {}
        done, total = self.before + len(self.history), self.before + self.stage.epochs
        return Progress(done, total, last.get("loss"), last.get("validation"))

    def save(self) -> None:
        progress = {"epoch": self.stage.epoch, "seconds": self.seconds, "history": self.history}
        data = self.stage.data
        self.folder.save_for_resume(self.stage.state(), progress, data.device, data.split.fingerprint)

    def load(self, tensors: State, progress: Mapping[str, Any]) -> None:
        self.stage.load_state(tensors, progress["epoch"])
        self.seconds, self.history = progress["seconds"], progress["history"]

    def save_best(self) -> dict[str, Any]:
        """Write the best weights and what was measured with them. The checkpoint stays until they have been used."""
        best = self.stage.best
        found = {
            "best_epoch": int(self.stage.best_epoch),
            "validation": float(self.stage.best_accuracy),
            "seconds": round(self.seconds, 3),
            "digest": digest_of(best),
            "images": self.stage.data.split.fingerprint,
            "history": self.history,
        }
        tensorfile.write(weights_path(self.folder), best, {"found": json.dumps(found)})
        return found


class ActiveStage1:
    """Stage 1 in progress."""

    def __init__(self, training: StageTraining) -> None:
        self.training, self.steps = training, training.steps

    def finish(self) -> Stage1Result:
        found = self.training.save_best()
        self.training.folder.checkpoint.unlink(missing_ok=True)
        return _stage1_result(found)


class ActiveVariant:
    """A variant in progress."""

    def __init__(self, run: LongTailRun, device_data: LongTailDeviceData, workspace: Workspace) -> None:
        self.config, self.device_data, self.folder = run.config, device_data, run.folder(workspace.root)
        self.stage1: dict[str, Any] = {}
        self.training: StageTraining | None = None
        stage: Stage | None = None
        if self.config.variant == "bs":
            stage = BalancedStage(self.config, device_data)
        else:
            self.plain = self.after_stage1(run.stage1, workspace)
            if self.config.has_stage2:
                stage = StageTwo(self.config, device_data, self.plain)
        self.folder.check_checkpoint_settings()
        self.folder.save_config(self.config)
        if stage is not None:
            before = self.config.epochs1 if self.config.has_stage2 else 0
            self.training = StageTraining(stage, self.folder, workspace, before)

    def after_stage1(self, run: Stage1Run, workspace: Workspace) -> PlainNetwork:
        """The network with stage 1's best weights; what was measured with them is kept in ``stage1``."""
        folder, found = run.folder(workspace.root), run.weights(workspace.root)
        if found is None:
            raise OcilError(f"{weights_path(folder)} has gone: give the same command again.")
        weights, self.stage1 = found
        if self.stage1.get("images", self.device_data.split.fingerprint) != self.device_data.split.fingerprint:
            raise OcilError(other_images(folder.path))
        plain = plain_network(self.config, self.device_data)
        try:
            plain.load_state_dict(weights)
        except RuntimeError as error:
            raise OcilError(unreadable(weights_path(folder), error)) from error
        return plain

    def steps(self, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> Iterator[None]:
        if self.training is not None:
            return self.training.steps(on_progress, should_stop)
        on_progress(Progress(self.config.epochs1, self.config.epochs1))
        return iter(())

    def finish(self) -> LongTailResult:
        config, split, found, mu = self.config, self.device_data.split, self.stage1, None
        if self.training is None:
            network: torch.nn.Module = self.plain
        else:
            found = self.training.save_best()
            stage = self.training.stage
            stage.restore_best()
            network = stage.network
            if "mu" in stage.best:
                mu = stage.best["mu"].tolist()
        parts = [predict(network, images) for images in (self.device_data.test_x, self.device_data.open_x)]
        (predicted, sure), (open_predicted, open_sure) = [(a.cpu().numpy(), b.cpu().numpy()) for a, b in parts]
        each = metrics.class_accuracies(predicted, split.test_y, len(split.classes))
        measures = metrics.measure(
            predicted, sure, split.test_y, split.counts, open_predicted, open_sure, config.reject_below
        )
        result = LongTailResult(
            config,
            measures,
            [None if value != value else float(value) for value in each],
            split.summary(),
            found["best_epoch"],
            found["validation"],
            found["history"],
            mu,
            found["seconds"],
            {name: self.stage1[name] for name in STAGE1_FACTS if name in self.stage1},
            found["digest"],
            environment(self.device_data.device) | {"images": split.fingerprint},
        )
        write_json(self.folder.path / "result.json", result.to_json())
        self.folder.checkpoint.unlink(missing_ok=True)  # not earlier: a kill during the test would lose all of stage 2
        return result


def weights_path(folder: RunFolder) -> Path:
    return folder.path / "weights.safetensors"


def _stage1_result(found: dict[str, Any]) -> Stage1Result:
    return Stage1Result(found.get("validation", 0.0), found.get("seconds", 0.0), found.get("history", []))


def _save_split(path: Path, split: LongTailed) -> None:
    """Record which images of the dataset were kept. A prepared dataset is not cut, so nothing is written."""
    if split.train_index is None or split.val_index is None:
        return
    tensors = {"train": torch.from_numpy(split.train_index), "validation": torch.from_numpy(split.val_index)}
    tensorfile.write(path, tensors, {"summary": json.dumps(split.summary())})
