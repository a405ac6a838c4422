"""Long-tailed runs: stage 1 once a seed, then each variant; killed at any moment, they go on from their last epoch."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ocil import data, tensorfile
from ocil.engine.captured import record
from ocil.engine.lanes import take_turns
from ocil.engine.local import in_a_line
from ocil.engine.patience import patiently
from ocil.errors import OcilError
from ocil.files import is_link
from ocil.longtail import metrics
from ocil.longtail.config import STAGE1, LongTailConfig
from ocil.longtail.data import LongTailed, Resident, load
from ocil.longtail.results import LongTailResult, read_result
from ocil.longtail.training import Stage, StageOne, StageTwo, check, plain_network, predict
from ocil.precision import numerics
from ocil.results import (
    RunFolder,
    begun_with,
    find_run,
    other_images,
    read_tensors,
    refuse_other_settings,
    unreadable,
    write_json,
)
from ocil.runner import Interrupted, Progress, SaveTimes, check_begun, digest_of, environment, pick_device

WARM = 3  # steps as they are written before one is recorded: they prepare what may not be prepared in a graph
SIDE_BY_SIDE = 6  # on a GPU; on a CPU one after the other

Outcome = LongTailResult | OcilError | Interrupted
Watcher = Callable[[int, Progress | Outcome], None]
Graph = Callable[[], None]


@dataclass(frozen=True)
class Job:
    """Where runs live, what they run on, and how often they are saved; 0 seconds: after every epoch."""

    root: Path
    device: torch.device
    data_dir: Path | None = None
    checkpoint_seconds: float = 0.0
    side_by_side: int = 0


class Stepper:
    """Takes the steps of a stage, on a GPU by replaying one that was recorded after a few were taken as written."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.capture = stage.config.capture and stage.data.device.type == "cuda"
        self.taken = 0
        self.replay: Graph | None = None

    def __call__(self) -> None:
        if not self.capture or self.taken < WARM:
            self.taken += 1
            self.stage.step()
            return
        if self.replay is None:
            self.replay = self.record()
        self.replay()

    def record(self) -> Graph:
        return record(self.stage.step, self.stage.rng).replay


class Reading:
    """Numbers on their way from the device: whoever asks too early waits, whoever comes later does not."""

    def __init__(self, values: Tensor) -> None:
        self.event = None
        if values.device.type == "cuda":
            self.host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.host.copy_(values, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.host = values

    def get(self) -> list[float]:
        if self.event is not None:
            self.event.synchronize()
        found: list[float] = self.host.tolist()
        return found


class StageWork:
    """One stage in its folder: epochs, checkpoints, and at the end the best weights."""

    def __init__(self, stage: Stage, folder: RunFolder, before: int = 0, total: int = 0) -> None:
        self.stage, self.folder = stage, folder
        self.before, self.total = before, total or stage.epochs
        self.stepper = Stepper(stage)
        self.history: list[dict[str, float]] = []
        self.seconds = 0.0
        self.resume()

    def steps(
        self,
        checkpoint_seconds: float,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> Iterator[None]:
        """Yields when a batch or an evaluation was handed to the device. An epoch's numbers are read in the next."""
        saves = SaveTimes(checkpoint_seconds)
        earlier, reading = self.seconds, None
        on_progress(self.progress())
        while self.stage.epoch < self.stage.epochs:
            self.stage.begin_epoch()
            for number in range(self.stage.steps):
                if should_stop():
                    raise Interrupted(str(self.folder.path))
                self.stepper()
                yield
                if reading is not None and number == self.stage.steps // 2:  # there is more queued while we wait
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
                "Lower the learning rates: --set lr1=0.01 lr2=0.001 lr_classifier=0.01"
            )
        self.history.append({"loss": loss, "validation": accuracy})

    def progress(self) -> Progress:
        last = self.history[-1] if self.history else {}
        done = self.before + len(self.history)
        return Progress(done, self.total, last.get("loss"), last.get("validation"))

    def save(self) -> None:
        progress = {
            "epoch": self.stage.epoch,
            "seconds": self.seconds,
            "history": self.history,
            "device": self.stage.data.device.type,
            "threads": torch.get_num_threads(),
            "images": self.stage.data.split.images,
        }
        self.folder.save_checkpoint(self.stage.state(), progress)

    def resume(self) -> None:
        found = self.folder.load_checkpoint()
        if found is None:
            return
        tensors, progress = found
        check_begun(self.folder, progress, self.stage.data.device, self.stage.data.split.images)
        try:
            self.stage.load_state(tensors, progress["epoch"])
            self.seconds, self.history = progress["seconds"], progress["history"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise OcilError(unreadable(self.folder.checkpoint, error)) from error

    def finish(self) -> dict[str, Any]:
        """Write the best weights, with what is to be known of them. The checkpoint stays until they have been used."""
        best = self.stage.best
        found = {
            "best_epoch": int(self.stage.best_epoch),
            "validation": float(self.stage.best_accuracy),
            "seconds": round(self.seconds, 3),
            "digest": digest_of(best),
            "images": self.stage.data.split.images,
            "history": self.history,
        }
        tensorfile.write(weights_path(self.folder), best, {"found": json.dumps(found)})
        return found


def weights_path(folder: RunFolder) -> Path:
    return folder.path / "weights.safetensors"


def _has_weights(folder: RunFolder) -> bool:
    """Or something else of that name, which is refused when it is read."""
    path = weights_path(folder)
    return is_link(path) or path.exists()


def stage1_folder(root: Path, config: LongTailConfig) -> RunFolder:
    own_images = bool(config.fingerprint)
    return RunFolder(find_run(root, config.stage1_cell, config.former_stage1_cell, config.seed, own_images))


def run_folder(root: Path, config: LongTailConfig) -> RunFolder:
    return RunFolder(find_run(root, config.cell, config.former_cell, config.seed, bool(config.fingerprint)))


def finished_run(root: Path, config: LongTailConfig) -> LongTailResult | None:
    """The result of a run, if it is finished."""
    folder = run_folder(root, config).path
    found = read_result(folder / "result.json")
    if found is None:
        return None
    refuse_other_settings(folder, found.config.identity, config.identity)
    return replace(found, config=config)  # the same run; its images may have been moved since


def refuse_other_stage1(folder: RunFolder, config: LongTailConfig) -> None:
    """Raise if a folder's stage 1 has other settings than are asked for."""
    begun = begun_with(folder.path, LongTailConfig.from_json, config)
    refuse_other_settings(folder.path, begun.stage1_identity, config.stage1_identity)


def load_stage1(root: Path, config: LongTailConfig) -> tuple[dict[str, Tensor], dict[str, Any]]:
    folder = stage1_folder(root, config)
    refuse_other_stage1(folder, config)
    path = weights_path(folder)
    found = read_tensors(path, "found")
    if found is None:
        raise OcilError(f"{path} has gone: give the same command again.")
    return found


class StageOneRun:
    """Stage 1 of a seed, for every variant that starts from it."""

    def __init__(self, config: LongTailConfig, job: Job, resident: Resident, total: int) -> None:
        self.folder = stage1_folder(job.root, config)
        if self.folder.checkpoint.exists():
            refuse_other_stage1(self.folder, config)
        content = config.to_json()
        write_json(self.folder.path / "config.json", {name: content[name] for name in STAGE1})
        _save_split(self.folder.path / "split.safetensors", resident.split)
        self.work = StageWork(StageOne(config, resident), self.folder, 0, total)

    def finish(self) -> None:
        self.work.finish()
        self.folder.checkpoint.unlink(missing_ok=True)


class VariantRun:
    """One variant: stage 2 from stage 1's best weights (none for ``ce``), then the test."""

    def __init__(self, config: LongTailConfig, job: Job, resident: Resident) -> None:
        self.config, self.resident, self.folder = config, resident, run_folder(job.root, config)
        weights, self.stage1 = load_stage1(job.root, config)
        if self.stage1.get("images", resident.split.images) != resident.split.images:
            raise OcilError(other_images(stage1_folder(job.root, config).path))
        self.plain = plain_network(config, resident)
        try:
            self.plain.load_state_dict(weights)
        except RuntimeError as error:
            raise OcilError(unreadable(weights_path(stage1_folder(job.root, config)), error)) from error
        if self.folder.checkpoint.exists():
            begun = begun_with(self.folder.path, LongTailConfig.from_json, config)
            refuse_other_settings(self.folder.path, begun.identity, config.identity)
        write_json(self.folder.path / "config.json", config.to_json())
        self.work: StageWork | None = None
        if config.variant != "ce":
            stage = StageTwo(config, resident, self.plain)
            self.work = StageWork(stage, self.folder, config.epochs1, config.epochs1 + config.epochs2)

    def finish(self) -> LongTailResult:
        config, split, found, mu = self.config, self.resident.split, self.stage1, None
        network: torch.nn.Module = self.plain
        if self.work is not None:
            found = self.work.finish()
            self.work.stage.restore_best()
            network = self.work.stage.network
            if "mu" in self.work.stage.best:
                mu = self.work.stage.best["mu"].tolist()
        parts = [predict(network, images) for images in (self.resident.test_x, self.resident.open_x)]
        (said, sure), (open_said, open_sure) = [(a.cpu().numpy(), b.cpu().numpy()) for a, b in parts]
        each = metrics.class_accuracies(said, split.test_y, len(split.classes))
        result = LongTailResult(
            config,
            metrics.measure(said, sure, split.test_y, split.counts, open_said, open_sure, config.reject_below),
            [None if value != value else float(value) for value in each],
            split.summary(), found["best_epoch"], found["validation"], found["history"], mu, found["seconds"],
            {name: self.stage1[name] for name in ("digest", "best_epoch", "validation", "seconds")},
            found["digest"], environment(self.resident.device) | {"images": split.images},
        )  # fmt: skip
        write_json(self.folder.path / "result.json", result.to_json())
        self.folder.checkpoint.unlink(missing_ok=True)  # not before: a kill during the test would cost all of stage 2
        return result


def run(
    config: LongTailConfig,
    root: Path | str,
    *,
    device: torch.device | str = "auto",
    data_dir: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> LongTailResult:
    """One run in its folder under ``root``, stage 1 included where it is not there yet. If another process works on
    either, that is an ``InUseError``."""
    device = pick_device(device) if isinstance(device, str) else device

    def watch(number: int, event: Progress | Outcome) -> None:
        if isinstance(event, Progress):
            on_progress(event)

    (outcome,) = _run_all([config], Job(Path(root), device, data_dir), watch, should_stop)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def run_all(
    configs: Sequence[LongTailConfig],
    job: Job,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Any configurations: finished ones are looked up; first every stage 1 that is needed, then the variants.

    A stage 1 or a run that another process works on is waited for, after all others.
    """

    def attempt(numbers: list[int], hear: Watcher) -> list[Outcome]:
        return _run_all([configs[number] for number in numbers], job, hear, should_stop)

    return patiently(attempt, len(configs), watch, should_stop)


def _run_all(
    configs: Sequence[LongTailConfig], job: Job, watch: Watcher, should_stop: Callable[[], bool]
) -> list[Outcome]:
    """The same, but what another process works on is an ``InUseError``."""
    outcomes: list[Outcome] = [Interrupted("not started")] * len(configs)

    def settle(number: int, outcome: Outcome) -> None:
        outcomes[number] = outcome
        watch(number, outcome)

    waiting = []
    for number, config in enumerate(configs):
        try:
            found = finished_run(job.root, config)
        except OcilError as error:
            settle(number, error)
            continue
        if found is None:
            waiting.append(number)
        else:
            settle(number, found)
    for precision in dict.fromkeys(configs[number].precision for number in waiting):
        with numerics(precision):
            chosen = [number for number in waiting if configs[number].precision == precision]
            _run_group(configs, chosen, job, settle, watch, should_stop)
    return outcomes


def _run_group(
    configs: Sequence[LongTailConfig],
    numbers: Sequence[int],
    job: Job,
    settle: Callable[[int, Outcome], None],
    watch: Watcher,
    should_stop: Callable[[], bool],
) -> None:
    residents = _Residents(job)
    sharing: dict[Path, list[int]] = {}
    for number in numbers:
        sharing.setdefault(stage1_folder(job.root, configs[number]).path, []).append(number)
    failed: dict[int, Outcome] = {}
    first = {n[0]: n for path, n in sharing.items() if not _has_weights(RunFolder(path))}

    def stage1(number: int) -> StageOneRun:
        config = configs[number]
        return StageOneRun(config, job, residents.of(config), _epochs(config))

    def is_there(number: int) -> bool | None:
        return _has_weights(stage1_folder(job.root, configs[number])) or None

    def hear_stage1(number: int, progress: Progress) -> None:
        for other in first[number]:
            watch(other, Progress(progress.done, _epochs(configs[other]), progress.loss, progress.accuracy))

    def end_stage1(number: int, outcome: Any) -> None:
        if isinstance(outcome, OcilError | Interrupted):
            failed.update(dict.fromkeys(first[number], outcome))

    _interleave(list(first), job, stage1, lambda n: stage1_folder(job.root, configs[n]), hear_stage1, end_stage1,
                should_stop, is_there)  # fmt: skip
    for number, outcome in failed.items():
        settle(number, outcome)
    _interleave(
        [number for number in numbers if number not in failed], job,
        lambda number: VariantRun(configs[number], job, residents.of(configs[number])),
        lambda number: run_folder(job.root, configs[number]), watch, settle, should_stop,
        lambda number: finished_run(job.root, configs[number]),
    )  # fmt: skip


def _epochs(config: LongTailConfig) -> int:
    return config.epochs1 + (config.epochs2 if config.variant != "ce" else 0)


def _interleave(
    numbers: Sequence[int],
    job: Job,
    make: Callable[[int], StageOneRun | VariantRun],
    folder: Callable[[int], RunFolder],
    hear: Callable[[int, Progress], None],
    settle: Callable[[int, Any], None],
    should_stop: Callable[[], bool],
    finished: Callable[[int], Any],
) -> None:
    """Runs take turns, a step each; when one ends, the next one begins.

    ``finished`` is what there is of a run that another process has ended while this one waited for its turn.
    """

    def begin(number: int, held: ExitStack) -> tuple[Iterator[None], Callable[[], Any]]:
        held.enter_context(folder(number).lock())
        if (found := finished(number)) is not None:
            return iter(()), lambda: found
        run = make(number)
        if run.work is None:
            return iter(()), run.finish
        return run.work.steps(job.checkpoint_seconds, lambda p: hear(number, p), should_stop), run.finish

    size = job.side_by_side or (SIDE_BY_SIDE if job.device.type == "cuda" else 1)
    take_turns(numbers, size, job.device, begin, settle, lambda n, e: _explained(e, folder(n)), should_stop)


def _explained(error: Exception, folder: RunFolder) -> Exception:
    name = f"{folder.path.parent.name} {folder.path.name}"
    advice = "use a smaller batch_size or width, or fewer --workers"
    return in_a_line(error, name, OcilError(f"{name} does not fit on the device: {advice}."))


class _Residents:
    """Long-tailed datasets on the device, each cut and uploaded once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.found: dict[tuple[Any, ...], Resident] = {}
        self.dataset = lru_cache(maxsize=1)(data.load)

    def of(self, config: LongTailConfig) -> Resident:
        cut = (config.imbalance, config.open_share, config.validation, config.seed) if config.imbalance else ()
        key = (config.dataset, *cut)
        if key not in self.found:
            whole = self.dataset(config.dataset, self.job.data_dir) if config.imbalance else None
            split = load(config, self.job.data_dir, whole)
            self.found[key] = Resident(split, self.job.device)
        check(config, len(self.found[key].train_y))
        return self.found[key]


def _save_split(path: Path, split: LongTailed) -> None:
    """Which images of the dataset were kept, to be looked up later. A prepared dataset is itself the split."""
    if split.train_index is None or split.val_index is None:
        return
    tensors = {"train": torch.from_numpy(split.train_index), "validation": torch.from_numpy(split.val_index)}
    tensorfile.write(path, tensors, {"summary": json.dumps(split.summary())})
