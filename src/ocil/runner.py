"""One run: a configuration in, a result out. It can be killed at any moment and goes on from its last checkpoint."""

import hashlib
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ocil
from ocil import data
from ocil.config import RunConfig, resolve
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluate import Evaluation, Evaluator
from ocil.methods import method
from ocil.methods.base import Learner, Problem
from ocil.results import Result, RunFolder
from ocil.streams import Stream

LOOK_EVERY = 20  # stream batches between two looks at the loss: each look waits for the device


@dataclass(frozen=True)
class Progress:
    """Where a run is, for whoever watches."""

    done: int
    total: int
    loss: float | None = None
    accuracy: float | None = None
    """Mean accuracy over the groups shown so far, once there is one."""


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop. It has saved what is needed to go on."""


def pick_device(name: str = "auto") -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise OcilError(f"device '{name}' is not there: use auto, cpu or cuda.") from None
    return device


def build(config: RunConfig, dataset: Dataset, device: torch.device | str = "cpu") -> Learner:
    problem = Problem(dataset.image_shape, dataset.num_classes)
    return method(config.method).load()(config.learner, problem, config.seed, device)


def make_learner(
    name: str,
    dataset: Dataset,
    *,
    memory: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    **settings: Any,
) -> Learner:
    """A learner by its method's name, for images and classes like those of ``dataset``.

    ``settings`` are fields of the method's config; those not given have the published or default value.
    """
    config = resolve(name, dataset.name, memory=memory, seed=seed, settings=settings, classes=dataset.num_classes)
    return build(config, dataset, device)


def run(
    config: RunConfig,
    root: Path,
    *,
    device: torch.device | str = "auto",
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    checkpoint_seconds: float = 30.0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Run a configuration in its folder under ``root``; at once if it is finished there, from its checkpoint if not.

    ``should_stop`` is asked after every batch; on True the run saves a checkpoint and raises ``Interrupted``.
    """
    folder = RunFolder.of(root, config)
    if (finished := folder.result()) is not None:
        return finished
    device = pick_device(device) if isinstance(device, str) else device
    dataset = dataset or data.load(config.dataset, data_dir)
    with folder.lock():
        folder.save_config(config)
        work = _Work(config, folder, dataset, device)
        try:
            work.go(checkpoint_seconds, on_progress, should_stop)
        except torch.OutOfMemoryError:
            raise OcilError(
                f"{config.cell} does not fit on {device}: use a smaller memory or width, or another device."
            ) from None
        return work.finish()


class _Work:
    """The state of a run in progress: learner, stream cursor, evaluations, time spent."""

    def __init__(self, config: RunConfig, folder: RunFolder, dataset: Dataset, device: torch.device) -> None:
        self.config, self.folder, self.device = config, folder, device
        self.stream = Stream(dataset, config.stream, config.seed, device)
        self.evaluator = Evaluator(self.stream)
        self.learner = build(config, dataset, device)
        self.cursor = 0
        self.evaluations: list[Evaluation] = []
        self.seconds = 0.0
        self.resume()

    def resume(self) -> None:
        found = self.folder.load_checkpoint()
        if found is None:
            return
        tensors, progress = found
        if progress["device"] != self.device.type:
            raise OcilError(
                f"{self.folder.path} was begun on {progress['device']}: go on with --device {progress['device']}, "
                "or delete that folder."
            )
        self.learner.load_state(tensors)
        self.cursor, self.seconds = progress["cursor"], progress["seconds"]
        self.evaluations = [Evaluation(**row) for row in progress["evaluations"]]

    def save(self, seconds: float) -> None:
        self.check_loss()
        progress = {
            "cursor": self.cursor,
            "seconds": seconds,
            "device": self.device.type,
            "evaluations": [row.to_json() for row in self.evaluations],
        }
        self.folder.save_checkpoint(self.learner.state(), progress)

    def go(
        self, checkpoint_seconds: float, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]
    ) -> None:
        config, learner = self.config.learner, self.learner
        earlier, started = self.seconds, time.monotonic()
        saved = started
        on_progress(self.progress())
        for batch in self.stream.batches(self.cursor):
            learner.learn(batch.x, batch.y)
            if batch.ends_task:
                learner.task_ended()
            periodic = config.review_every and (batch.number + 1) % config.review_every == 0
            if config.review and (periodic or (not config.review_every and batch.ends_task)):
                learner.review()
            if batch.checkpoint is not None:
                self.evaluations.append(self.evaluator(learner, batch.checkpoint))
            self.cursor = batch.number + 1

            now = time.monotonic()
            stop = should_stop()
            self.seconds = earlier + now - started
            if stop or now - saved >= checkpoint_seconds:
                self.save(self.seconds)
                saved = time.monotonic()
            if stop:
                raise Interrupted(str(self.folder.path))
            if batch.number % LOOK_EVERY == 0 or batch.checkpoint is not None:
                self.check_loss()
                on_progress(self.progress())

    def progress(self) -> Progress:
        accuracy = None
        if self.evaluations:
            accuracy = float(np.mean(self.evaluations[-1].accuracy[: len(self.evaluations)]))
        return Progress(self.cursor, len(self.stream), float(self.learner.last_loss), accuracy)

    def check_loss(self) -> None:
        failed = int(self.learner.failed_at)
        if failed >= 0:
            lr = self.config.learner.lr
            raise OcilError(
                f"{self.config.label} seed {self.config.seed}: the loss is not finite at training step {failed} "
                f"(stream batch {self.cursor} of {len(self.stream)}). Lower the learning rate: --set lr={lr / 10:g}"
            )

    def finish(self) -> Result:
        self.save(self.seconds)
        peak = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)}
        if self.device.type == "cuda":
            peak["device"] = torch.cuda.max_memory_allocated(self.device)
        result = Result(
            self.config,
            [row.accuracy for row in self.evaluations],
            [row.to_json() for row in self.evaluations],
            round(self.seconds, 3),
            peak,
            digest(self.learner),
            environment(self.device),
        )
        self.folder.save_result(result)
        return result


def digest(learner: Learner) -> str:
    """SHA-256 over all of a learner's state: equal digests mean bit-identical learners."""
    sha = hashlib.sha256()
    for name, tensor in sorted(learner.state().items()):
        sha.update(name.encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def environment(device: torch.device) -> dict[str, Any]:
    """What a result was measured with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "ocil": ocil.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
