"""A class-incremental run and its loop: learn, task end, review, evaluate, save. A configuration in, a result out.

It can be killed at any moment and goes on from its last checkpoint.
"""

import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ocil import data
from ocil.data import Dataset
from ocil.data.dataset import known_fingerprint, require_dataset
from ocil.devices import pick_device, refuse_no_device
from ocil.errors import OcilError
from ocil.evaluation.anytime import AnytimeEvaluator
from ocil.evaluation.evaluator import Evaluation, Evaluator
from ocil.evaluation.prequential import Prequential
from ocil.evaluation.probe import probe
from ocil.files import folder_path, path_or_none
from ocil.limits import check_threads
from ocil.methods.base import Learner
from ocil.methods.recorded_losses import warning_of_no_loss
from ocil.networks import pretrained
from ocil.precision import Precision
from ocil.runs.build import build, check, named_dataset, refuse_missing_operators
from ocil.runs.captured import CapturedStepper, can_be_captured
from ocil.runs.config import RunConfig, code_of, origins, refuse_unresolved
from ocil.runs.cost import cost_of
from ocil.runs.defaults import lower_lr, reviews_every
from ocil.runs.environment import digest, environment, peak_memory
from ocil.runs.features import Encoder, inputs_of
from ocil.runs.fit import how_many_fit
from ocil.runs.folder import COUNTS, RunFolder, State, images_of_name
from ocil.runs.program_code import changed_since, digests_of_code, warn_if_changed
from ocil.runs.protocol import (
    ActiveRun,
    Finished,
    Interrupted,
    Progress,
    Run,
    SaveTimes,
    Workspace,
    out_of_memory,
    perform,
)
from ocil.runs.results import Result, order_has_changed
from ocil.runs.stepper import Stepper
from ocil.streams import DeviceData, Order, Stream

FIRST_SAVE, FIRST_SAVE_ON_GPU = 3.0, 30.0  # seconds; on a GPU many runs wait while one is saved
REPORT_EVERY = 50  # stream batches between two reports of progress: each one waits for the device
CHECKPOINT_SECONDS = 120.0  # at least, where runs take turns: while one writes, the others soon have nothing to do


@dataclass(frozen=True)
class StreamRun(Run):
    """A class-incremental run."""

    config: RunConfig
    side_by_side = 10  # more gain little: ten keep an H200 busy
    advice = "use a smaller memory or width, or another device"

    @property
    def label(self) -> str:
        return self.config.label

    @property
    def precision(self) -> Precision:
        return self.config.learner.precision

    def fingerprint(self, data_dir: Path | None) -> str:
        return data.fingerprint(self.dataset, data_dir)

    def fingerprint_there(self) -> Callable[[Path | None], str]:
        return partial(data.fingerprint, self.dataset)

    def result(self, root: Path) -> Result | None:
        return self.folder(root).result()

    def is_finished(self, root: Path) -> bool:
        """Whether there is a result, or one that cannot be read: then there is nothing to compute."""
        try:
            return self.result(root) is not None
        except OcilError:
            return True

    def how_many_fit(self, workspace: Workspace, free: int) -> int:
        return how_many_fit(self.config, self._inputs(workspace), free)

    def open(self, workspace: Workspace, held: ExitStack) -> ActiveRun:
        dataset, folder = self._dataset(workspace), self.folder(workspace.root)
        held.enter_context(folder.lock())
        if (finished := folder.result()) is not None:
            return Finished(finished.require_same_images(dataset, folder.path, workspace.arrivals is not None))
        device, seconds, inputs = workspace.device, workspace.checkpoint_seconds, self._inputs(workspace)
        refuse_missing_operators(self.config, inputs, device)
        key = ("inputs", self.dataset, Encoder.of(self.config.learner))
        device_data = workspace.share(key, lambda: DeviceData(inputs, device))
        stepper = Stepper
        if workspace.interleaved:
            seconds = max(seconds, CHECKPOINT_SECONDS)
            if device.type == "cuda" and can_be_captured(self.config):
                stepper = CapturedStepper
        active = ActiveStreamRun(
            self.config, folder, inputs, device_data, stepper, seconds, workspace.surroundings, workspace.arrivals
        )
        held.callback(active.stream.close)  # it may have a thread that reads ahead
        return active

    def _inputs(self, workspace: Workspace) -> Dataset:
        """What the learner sees: the dataset, or the features of its images."""
        return inputs_of(self.config.learner, self._dataset(workspace), workspace.data_dir, workspace.device)

    def _dataset(self, workspace: Workspace) -> Dataset:
        return workspace.dataset or data.load_once(self.dataset, workspace.data_dir)


def run(
    config: RunConfig,
    root: Path | str,
    *,
    device: torch.device | str = "auto",
    data_dir: Path | str | None = None,
    dataset: Dataset | None = None,
    stream: Stream | None = None,
    threads: int = 1,
    checkpoint_seconds: float = 30.0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Run a configuration in its folder under ``root``. It goes on from its checkpoint, if there is one; if it is
    finished, its result is read. A configuration that cannot run to its end is refused before anything is written.

    Args:
        config: What to run, from ``ocil.resolve``.
        root: The folder of all runs. This one is in ``CELL/seed-N`` below it.
        device: auto, cpu, cuda or mps.
        data_dir: The data folder; by default ``$OCIL_DATA``, else the user's.
        dataset: Used instead of the one that the configuration names.
        stream: Also gives the order of arrival, in place of ``config.stream``: see ``Stream.from_batches``. A run goes
            on with the same samples in the same order only.
        threads: How many CPU threads it takes, whatever PyTorch is set to: results depend on it in their last digits.
        checkpoint_seconds: Seconds between two checkpoints.
        on_progress: Called now and then with a ``Progress``.
        should_stop: Called after every batch, also of a review or an evaluation; once it returns True, the run raises
            ``Interrupted`` as soon as there is a checkpoint to go on from.

    Raises:
        OcilError: The configuration cannot run to its end, or another process holds the folder.

    Examples:
        >>> config = ocil.resolve("fine-tune", settings={"width": 1})
        >>> result = ocil.run(config, "runs", device="cpu")
        >>> 0 <= ocil.metrics.average_accuracy(result.matrix) <= 1
        True
    """
    refuse_unresolved(config)
    check_threads(threads)
    data_dir = path_or_none(data_dir)
    if dataset is not None:
        require_dataset(dataset)
    if not isinstance(stream, Stream | None):
        raise OcilError(f"stream is an ocil.Stream, not a {type(stream).__name__}.")
    refuse_no_device(device)  # whether it is there matters only if there is something to do
    root = folder_path("root", root)
    config, dataset = _with_data(config, dataset, stream, root, data_dir)
    this = StreamRun(config)
    folder = this.folder(root)
    if (finished := folder.result()) is not None:
        warn_if_changed(finished)
        if dataset is None and config.dataset not in data.CATALOG:
            with suppress(OcilError):  # a result can be read without its images
                dataset = named_dataset(config, data_dir)
        return finished if dataset is None else finished.require_same_images(dataset, folder.path, stream is not None)
    device = pick_device(device)
    dataset = dataset or named_dataset(config, data_dir)
    arrivals = stream.arrivals if stream is not None else None
    check(config, dataset, arrivals)
    workspace = Workspace(root, device, data_dir, threads, checkpoint_seconds, dataset=dataset, arrivals=arrivals)
    warning = ""

    def reported(progress: Progress) -> None:
        nonlocal warning
        warning = progress.warning
        on_progress(progress)

    try:
        return cast("Result", perform(this, workspace, reported, should_stop))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise this.does_not_fit() from error
    finally:
        if warning:  # here, so that it names the user's line
            warnings.warn(warning, stacklevel=2)


def _with_data(
    config: RunConfig, dataset: Dataset | None, stream: Stream | None, root: Path, data_dir: Path | None
) -> tuple[RunConfig, Dataset | None]:
    """The configuration with what tells its data from others of the same name, and the dataset if that needed it."""
    if stream is not None:
        if dataset is not None:
            raise OcilError("give a dataset or a stream, not both.")
        return _in_order_of(stream, config)
    if config.dataset not in data.CATALOG and not config.fingerprint:
        return _identified(config, dataset, root, data_dir)
    if dataset is None and config.made_for:
        dataset = named_dataset(config, data_dir)
    return config, dataset


def _identified(
    config: RunConfig, dataset: Dataset | None, root: Path, data_dir: Path | None
) -> tuple[RunConfig, Dataset | None]:
    """The configuration of a run on its dataset's images, and the dataset. If the dataset is not found, but runs of its
    name and of the same images, these are meant: their result can be read without them.
    """
    try:
        dataset = dataset or named_dataset(config, data_dir)
    except OcilError:
        known = images_of_name(root, config)
        if config.made_for or len(known) != 1:
            raise
        return replace(config, fingerprint=known.pop()), None
    return config.identified(dataset), dataset


def _in_order_of(stream: Stream, config: RunConfig) -> tuple[RunConfig, Dataset]:
    """The configuration of a run on this stream, and the stream's dataset, whose fingerprint is then the stream's: the
    order of arrival is part of what a result was measured on."""
    dataset = known_fingerprint(replace(stream.data), stream.fingerprint)
    config = replace(config, stream=stream.config.measured_as(config.stream))
    if config.dataset in data.CATALOG or config.made_for == stream.data.fingerprint:
        config = replace(config, fingerprint=stream.fingerprint)  # not a run of that dataset in an order drawn
    return config, dataset


def _refuse_changed(config: RunConfig, dataset: Dataset) -> None:
    """Raise if what a configuration has the digest of is not what it was then: images, a plugin, pretrained weights."""
    changed, path = "", config.learner.pretrained
    if config.fingerprint and config.fingerprint != dataset.fingerprint:
        changed = config.dataset
    elif config.code != code_of(config.method, config.learner):
        changed = f"the plugin of {config.method}"
    elif config.weights and config.weights != pretrained.digest(path):
        changed = path
    if changed:
        again = "by the same command or by ocil.resolve"
        raise OcilError(f"{changed} has changed since this was planned: plan it again, {again}.")


class ActiveStreamRun:
    """A run in progress: learner, stream cursor, evaluations, time spent."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        dataset: Dataset,
        device_data: DeviceData,
        stepper: Callable[[Learner, Stream], Stepper] = Stepper,
        checkpoint_seconds: float = 30.0,
        surroundings: Mapping[str, Any] | None = None,
        arrivals: Order | None = None,
    ) -> None:
        """``dataset``: what the learner sees, images or features; ``device_data``: the same for its stream.

        ``surroundings``, ``arrivals``: see ``Workspace``.
        """
        _refuse_changed(config, dataset)
        self.config, self.folder = config, folder
        self.device, self.fingerprint = device_data.device, dataset.fingerprint
        self.checkpoint_seconds, self.surroundings = checkpoint_seconds, surroundings or {}
        self.stream = Stream(dataset, config.stream, config.seed, resident=device_data, arrivals=arrivals)
        self.evaluator, self.anytime = Evaluator(self.stream), AnytimeEvaluator(self.stream)
        self.prequential = Prequential(self.stream)
        self.code = digests_of_code(config)  # now: a file may be changed while the code that was read from it runs
        self.learner = build(config, dataset, self.device)
        self.stepper = stepper(self.learner, self.stream)
        self.cursor = 0
        self.saved_cursor = -1  # of the checkpoint on the disk
        self.evaluations: list[Evaluation] = []
        self.seconds = 0.0
        self.warning = ""
        self._go_on_in_folder(own_batches=arrivals is not None)

    def _go_on_in_folder(self, own_batches: bool) -> None:
        """Go on from the checkpoint in the folder, if there is one, and write down the configuration.

        What is refused is refused before anything is written: the version of ocil that began the run may have to go on
        with it, and needs the configuration as it wrote it.
        """
        self.folder.check_checkpoint_settings()
        self.folder.resume(self.device, self.fingerprint, self.load, own_batches)
        self.folder.save_config(self.config)

    def load(self, tensors: State, progress: Mapping[str, Any]) -> None:
        self._refuse_other_order(progress)
        self._refuse_other_code(progress)
        counts = {name.removeprefix(COUNTS): tensors.pop(name) for name in list(tensors) if name.startswith(COUNTS)}
        self.learner.load_state(tensors)
        self.anytime.load_state(counts)
        self.prequential.load_state(counts)
        self.cursor = self.saved_cursor = int(progress["cursor"])
        self.seconds = float(progress["seconds"])
        if not 0 <= self.cursor <= len(self.stream):
            raise ValueError(f"its cursor is {self.cursor}, the stream has {len(self.stream)} batches")
        self.evaluations = [Evaluation(**row) for row in progress["evaluations"]]

    def _refuse_other_order(self, progress: Mapping[str, Any]) -> None:
        """Raise if the samples of a checkpoint came in another order than this version of ocil draws from its settings:
        the rest of this order would show some samples twice and others never."""
        kept, drawn = progress.get("order"), self.stream.arrivals.digest
        if kept == drawn or (kept is None and not order_has_changed(self.config.stream)):
            return
        begun = "was begun" if kept else "may have been begun"
        raise OcilError(
            f"{self.folder.path} {begun} with another order of arrival, which another version of ocil drew from these "
            "settings: finish it with that version, use another --out, or delete that folder."
        )

    def _refuse_other_code(self, progress: Mapping[str, Any]) -> None:
        """Raise if the method or network of a checkpoint had other code: the result would be of neither."""
        known = progress.get("code", {})
        if not isinstance(known, dict):
            raise TypeError("its code is not an object")
        if changed := changed_since(self.config, known):
            raise OcilError(
                f"the code of {changed} has changed since {self.folder.path} was begun: delete that folder to begin "
                "anew, use another folder of runs (--out), or go back to that code to finish the run."
            )

    def save(self) -> None:
        self.check_loss()
        progress = {
            "order": self.stream.arrivals.digest,
            "code": {"python": platform.python_version(), **self.code},
            "cursor": self.cursor,
            "seconds": self.seconds,
            "evaluations": [row.to_json() for row in self.evaluations],
        }
        counts = self.anytime.state() | self.prequential.state()
        state = self.learner.state() | {f"{COUNTS}{name}": value for name, value in counts.items()}
        self.folder.save_for_resume(state, progress, self.device, self.fingerprint)
        self.saved_cursor = self.cursor

    def steps(
        self,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        saves = SaveTimes(self.checkpoint_seconds, FIRST_SAVE if self.device.type == "cpu" else FIRST_SAVE_ON_GPU)
        earlier = self.seconds
        on_progress(self.progress())
        for number in range(self.cursor, len(self.stream)):
            if self.is_long(number) and self.saved_cursor != self.cursor:
                self.save()
                saves.note()
            yield from self.take(number, should_stop)
            self.cursor = number + 1
            stop = should_stop()
            self.seconds = earlier + time.monotonic() - saves.started
            if stop or saves.due():
                self.save()
                saves.note()
            if stop:
                raise Interrupted(str(self.folder.path))
            if number % REPORT_EVERY == 0 or self.stream.evaluation_point_after(number) is not None:
                self.check_loss()
                on_progress(self.progress())
            yield

    def take(self, number: int, should_stop: Callable[[], bool]) -> Iterator[None]:
        """A batch and what follows it: the end of a task, a review, an evaluation.

        ``Learner.end_task`` does the same for a loop of one's own, in one piece.
        """

        def stop_here() -> None:
            """Inside a batch nothing can be saved, so stop only if there is a checkpoint from just before it."""
            if self.saved_cursor == self.cursor and should_stop():
                raise Interrupted(str(self.folder.path))

        if self.prequential.every:
            self.stepper.predict(number, self.prequential)
        self.stepper.learn(number)
        if self.ends_task(number):
            for _ in self.stepper.task_end_steps():
                stop_here()
                yield
        if self.reviews_after(number):
            for _ in self.stepper.review_steps():
                stop_here()
                yield
        point, known = self.stream.evaluation_point_after(number), None
        if point is not None:
            evaluation = self.evaluator.start(self.learner, point, stop_here)
            yield
            self.check_loss()  # first: its message has the step
            self.evaluations.append(evaluation.result())
            self.warning = warning_of_no_loss(self.learner)
            known = evaluation.correct
        if self.anytime.is_due(number + 1):
            self.anytime.count(self.learner, number + 1, stop_here, known)
            yield

    def is_long(self, number: int) -> bool:
        """Whether so much work follows a batch that a checkpoint is saved before it. On a GPU a review or an evaluation
        is short."""
        if self.ends_task(number) and self.learner.has_task_end_steps:
            return True
        evaluates = self.stream.evaluation_point_after(number) is not None
        return self.device.type == "cpu" and (evaluates or self.reviews_after(number))

    def ends_task(self, number: int) -> bool:
        """Whether a batch is the last of a task, in a stream that announces tasks."""
        return self.stream.announces_tasks and self.stream.evaluation_point_after(number) is not None

    def reviews_after(self, number: int) -> bool:
        """Whether the review trick follows a batch: at its period if it has one, else where a task ends."""
        every = self.config.learner.review_every
        if not every and not self.stream.announces_tasks:  # resolved without knowing the stream's length
            every = reviews_every(len(self.stream), self.stream.config)
        here = (number + 1) % every == 0 if every else self.ends_task(number)
        return self.config.learner.review and here

    def progress(self) -> Progress:
        accuracy = None
        if self.evaluations:
            row = self.evaluations[-1].accuracy
            shown = len(row) if self.stream.config.boundary == "iid" else len(self.evaluations)
            accuracy = float(np.mean(row[:shown]))
        losses = self.learner.recorded_losses.take()
        loss = losses.pop("stream", None)
        found = tuple(self.evaluations)
        return Progress(self.cursor, len(self.stream), loss, accuracy, found, losses, self.warning)

    def check_loss(self) -> None:
        failed = int(self.learner.failed_at)
        if failed >= 0:
            lower = lower_lr(self.config.learner.lr)
            advice = f"Lower the learning rate (--set lr={lower:g})."
            if failed == 0:
                advice = (
                    "It is the first step: look at the network and the loss before you lower the learning rate "
                    f"(--set lr={lower:g})."
                )
            raise OcilError(
                f"{self.config.label} seed {self.config.seed}: the loss is not finite at training step {failed} "
                f"(stream batch {self.cursor} of {len(self.stream)}). {advice}"
            )

    def finish(self) -> Result:
        self.save()
        result = self._result()
        self.folder.save_result(result)
        return result

    def _result(self) -> Result:
        """All that a finished run has measured, with what it was computed on. Waits for the device."""
        stream = self.stream
        reviews = self._batches_where(self.reviews_after)
        tasks = self._batches_where(lambda number: stream.evaluation_point_after(number) is not None)
        announced = self._batches_where(self.ends_task)
        evaluations = [row.to_json() for row in self.evaluations]
        confusion, calibration = evaluations[-1].pop("confusion", []), evaluations[-1].pop("calibration", {})
        return Result(
            config=self.config,
            matrix=[row.accuracy for row in self.evaluations],
            evaluations=evaluations,
            wall_seconds=round(self.seconds, 3),
            peak_memory=peak_memory(self.device),
            digest=digest(self.learner),
            environment=self._environment(),
            anytime=self.anytime.record(reviews, tasks),
            **self.evaluator.facts(),
            confusion=confusion,
            calibration=calibration,
            prequential=self.prequential.record(),
            probe=probe(self.learner, stream) if stream.config.probe else {},
            cost=cost_of(self.learner, self.config, stream, reviews, announced),
        )

    def _batches_where(self, follows: Callable[[int], bool]) -> list[int]:
        """After how many batches something happened that follows some of them."""
        return [number + 1 for number in range(len(self.stream)) if follows(number)]

    def _environment(self) -> dict[str, Any]:
        """What the result was computed on and from: device and libraries, images, order of arrival, code."""
        return {
            **environment(self.device),
            "images": self.fingerprint,
            "order": self.stream.arrivals.digest,
            **self._inputs_of_own(),
            **self._other_code(),
            **self.surroundings,
        }

    def _inputs_of_own(self) -> dict[str, Any]:
        """That the dataset holds vectors, for which methods have other defaults: a report does not see the dataset."""
        return {} if self.stream.data.is_images or self.config.learner.features else {"inputs": "vectors"}

    def _other_code(self) -> dict[str, Any]:
        """What a result records about code that is not ours: packages with versions, files and classes with digests."""
        found = [origin.to_json() for origin in origins(self.config.method, self.config.learner)]
        return ({"plugins": found} if found else {}) | self.code
