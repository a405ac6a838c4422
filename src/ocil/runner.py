"""One run: a configuration in, a result out. It can be killed at any moment and goes on from its last checkpoint."""

import hashlib
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ocil
from ocil import data
from ocil.config import RunConfig, refuse_unknown, resolve, reviews_every
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluate import Evaluation, Evaluator
from ocil.memory import refuse_what_cannot_fit
from ocil.methods import method
from ocil.methods.base import Learner, Problem, capacity_for
from ocil.networks import smallest_batch
from ocil.precision import numerics
from ocil.results import Result, RunFolder, other_images, unreadable
from ocil.streams import DeviceData, Stream
from ocil.threads import check_threads, using

LOOK_EVERY = 50  # stream batches between two looks at the loss: each look waits for the device
FIRST_SAVE = 3.0  # seconds
FIRST_SAVE_ON_GPU = 30.0


@dataclass(frozen=True)
class Progress:
    """Where a run is, for whoever watches."""

    done: int
    total: int
    loss: float | None = None
    """Of the last stream batch."""
    accuracy: float | None = None
    """Mean accuracy over the groups shown so far, once there is one."""
    evaluations: tuple[Evaluation, ...] = ()
    """What was found after each group so far."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Of the last batch of a ``review`` or a ``rehearsal``, if there was one since the last look, and the parts that
    losses are sums of: ``stream/memory`` is a part of ``loss``."""


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop. It has saved what is needed to go on."""


class SaveTimes:
    """When work that may be killed is to be saved: after 3, 9 and 27 seconds, then every ``seconds`` of the caller.

    So a kill costs at most about two thirds of what was done, and never more than ``seconds``. ``first`` is later on a
    GPU, where many runs wait while one is saved.
    """

    def __init__(self, seconds: float, first: float = FIRST_SAVE) -> None:
        self.seconds, self.first = seconds, first
        self.started = self.saved = time.monotonic()

    def due(self) -> bool:
        gap = max(self.first, 2 * (self.saved - self.started))
        return time.monotonic() - self.saved >= min(self.seconds, gap)

    def note(self) -> None:
        """It was saved now."""
        self.saved = time.monotonic()


def pick_device(name: str = "auto") -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError):
        there = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu"
        raise OcilError(f"device '{name}' is not there: use {there}.") from None
    return device


def build(config: RunConfig, dataset: Dataset, device: torch.device | str = "cpu") -> Learner:
    classes = capacity_for(0) if config.learner.growing else dataset.num_classes + dataset.unseen
    problem = Problem(dataset.image_shape, classes)
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

    ``settings`` are fields of the method's config; those not given have the published or default value. ``batch_size``
    says how many samples will arrive together, if not 10: a memory must hold a batch.
    """
    refuse_unknown(name, settings, {field.name for field in fields(method(name).load().Config)} | {"batch_size"})
    config = resolve(name, dataset.name, memory=memory, seed=seed, settings=settings,
                     classes=dataset.num_classes, train=len(dataset.train_y))  # fmt: skip
    return build(config, dataset, device)


def check(config: RunConfig, dataset: Dataset) -> None:
    """Raise now what a run would raise later: tasks that cannot be filled or tested, reviews that never come, a memory
    beyond this machine's.
    """
    stream = Stream(dataset, config.stream, config.seed)
    Evaluator(stream)
    learner = config.learner
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    refuse_what_cannot_fit(learner.memory, dataset.image_shape, [torch.device("cpu"), *gpus])
    if learner.review and learner.review_every > len(stream):
        raise OcilError(
            f"review_every = {learner.review_every} is more than the {len(stream)} batches of the stream: "
            "no review would come. Give a smaller one with --set review_every=N, or --no-review."
        )
    if learner.review and not learner.review_keep_last and learner.review_batch > learner.memory:
        raise OcilError(
            f"review_batch = {learner.review_batch} is more than memory = {learner.memory}: no review would have a "
            f"whole batch. Give --set review_batch={learner.memory}, or --no-review."
        )
    smallest = min(last - first for first, last in stream.bounds)
    if method(config.method).memory:
        smallest = min(smallest, learner.memory_batch)
    if smallest < smallest_batch(dataset.image_shape):
        raise OcilError(
            f"a batch of one image of {dataset.name} has no batch statistics: its images are too small. "
            "Use another batch_size or memory_batch, or drop_last = true."
        )


def run(
    config: RunConfig,
    root: Path | str,
    *,
    device: torch.device | str = "auto",
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    threads: int = 1,
    checkpoint_seconds: float = 30.0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Run a configuration in its folder under ``root``; at once if it is finished there, from its checkpoint if not.

    ``threads`` is how many CPU threads it takes, whatever PyTorch is set to: results depend on it in their last digits.

    ``should_stop`` is asked after every batch, also of a review or an evaluation; on True the run raises
    ``Interrupted`` as soon as it has a checkpoint to go on from.
    """
    check_threads(threads)
    folder = RunFolder.of(Path(root), config)
    if (finished := folder.result()) is not None:
        return finished if dataset is None else finished.refuse_other(dataset, folder.path)
    device = pick_device(device) if isinstance(device, str) else device
    dataset = dataset or data.load(config.dataset, data_dir)
    with folder.lock():
        if (finished := folder.result()) is not None:  # by another process, since we looked
            return finished.refuse_other(dataset, folder.path)
        try:
            with numerics(config.learner.precision), using(threads):
                work = Work(config, folder, dataset, DeviceData(dataset, device))
                for _ in work.steps(checkpoint_seconds, on_progress, should_stop):
                    pass
                return work.finish()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise does_not_fit(config) from None


def does_not_fit(config: RunConfig) -> OcilError:
    return OcilError(f"{config.cell} does not fit on the device: use a smaller memory or width, or another device.")


def out_of_memory(error: Exception) -> bool:
    """PyTorch has an exception of its own for a GPU that is full, but none for a host."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


class Stepper:
    """Takes a learner's steps as they are written. An engine may take the same steps in a faster way."""

    def __init__(self, learner: Learner, stream: Stream) -> None:
        self.learner, self.stream = learner, stream
        self.arrivals = arrivals(stream) if learner.config.growing else {}
        learner.classes_announced = True

    def meet(self, number: int) -> None:
        """Tell the learner of the classes that a batch is the first to show."""
        self.learner.meet(self.arrivals.get(number, ()))

    def learn(self, number: int) -> None:
        self.meet(number)
        self.learner.learn(*self.stream.fetch(number))

    def review(self) -> Iterator[None]:
        """The review trick, a batch at a time."""
        for slots in self.learner.review_slots():
            self.review_one(slots)
            yield

    def review_one(self, slots: Tensor) -> None:
        self.learner.review_step(slots)

    def rehearse_one(self, slots: Tensor) -> None:
        """A batch of what a task's end calls for."""
        self.learner.rehearsal_step(slots)


def arrivals(stream: Stream) -> dict[int, set[int]]:
    """The classes that appear for the first time, by the number of the batch. Read on the host, once."""
    labels = stream.data.train_y[stream.order.cpu().numpy()]
    seen: set[int] = set()
    found: dict[int, set[int]] = {}
    for number, (first, last) in enumerate(stream.bounds):
        if new := set(labels[first:last].tolist()) - seen:
            found[number] = new
            seen |= new
    return found


class Work:
    """The state of a run in progress: learner, stream cursor, evaluations, time spent."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        dataset: Dataset,
        resident: DeviceData,
        stepper: Callable[[Learner, Stream], Stepper] = Stepper,
        surroundings: Mapping[str, Any] | None = None,
    ) -> None:
        """``surroundings``: what its result is to say of where it was run."""
        if config.fingerprint and config.fingerprint != dataset.fingerprint:
            raise OcilError(f"{config.dataset} has changed since this was planned: give the same command again.")
        self.config, self.folder, self.device, self.images = config, folder, resident.device, dataset.fingerprint
        self.surroundings = surroundings or {}
        self.stream = Stream(dataset, config.stream, config.seed, resident=resident)
        self.evaluator = Evaluator(self.stream)
        self.learner = build(config, dataset, self.device)
        folder.save_config(config)
        self.stepper = stepper(self.learner, self.stream)
        self.cursor = 0
        self.saved_cursor = -1
        """Of the checkpoint on the disk."""
        self.evaluations: list[Evaluation] = []
        self.seconds = 0.0
        self.resume()

    def resume(self) -> None:
        found = self.folder.load_checkpoint()
        if found is None:
            return
        tensors, progress = found
        check_begun(self.folder, progress, self.device, self.images)
        try:
            self.learner.load_state(tensors)
            self.cursor = self.saved_cursor = int(progress["cursor"])
            self.seconds = float(progress["seconds"])
            if not 0 <= self.cursor <= len(self.stream):
                raise ValueError(f"its cursor is {self.cursor}, the stream has {len(self.stream)} batches")
            self.evaluations = [Evaluation(**row) for row in progress["evaluations"]]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise OcilError(unreadable(self.folder.checkpoint, error)) from error

    def save(self) -> None:
        self.check_loss()
        progress = {
            "cursor": self.cursor,
            "seconds": self.seconds,
            "device": self.device.type,
            "threads": torch.get_num_threads(),
            "images": self.images,
            "evaluations": [row.to_json() for row in self.evaluations],
        }
        self.folder.save_checkpoint(self.learner.state(), progress)
        self.saved_cursor = self.cursor

    def steps(
        self,
        checkpoint_seconds: float = 30.0,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[None]:
        """The run itself. Yields when something was handed to the device: a batch, a review batch, an evaluation."""
        saves = SaveTimes(checkpoint_seconds, FIRST_SAVE if self.device.type == "cpu" else FIRST_SAVE_ON_GPU)
        earlier = self.seconds

        def stop_here() -> None:
            """Inside a batch there is nothing to save: stop if the checkpoint from before it was written."""
            if self.saved_cursor == self.cursor and should_stop():
                raise Interrupted(str(self.folder.path))

        on_progress(self.progress())
        for number in range(self.cursor, len(self.stream)):
            checkpoint = self.stream.checkpoint_after(number)
            ends_task = checkpoint is not None and self.stream.announces_tasks
            rehearses, reviews = ends_task and self.learner.rehearses, self.reviews_after(number, ends_task)
            # The next point at which it could be saved may be far away. On a GPU a review or an evaluation is short.
            far = rehearses or (self.device.type == "cpu" and (reviews or checkpoint is not None))
            if far and self.saved_cursor != self.cursor:
                self.save()
                saves.note()
            self.stepper.learn(number)
            if ends_task:
                self.learner.task_ended()
                for slots in self.learner.rehearsal():
                    self.stepper.rehearse_one(slots)
                    stop_here()
                    yield
            if reviews:
                for _ in self.stepper.review():
                    stop_here()
                    yield
            if checkpoint is not None:
                evaluation = self.evaluator.start(self.learner, checkpoint, stop_here)
                yield
                self.evaluations.append(evaluation())
            self.cursor = number + 1

            stop = should_stop()
            self.seconds = earlier + time.monotonic() - saves.started
            if stop or saves.due():
                self.save()
                saves.note()
            if stop:
                raise Interrupted(str(self.folder.path))
            if number % LOOK_EVERY == 0 or checkpoint is not None:
                self.check_loss()
                on_progress(self.progress())
            yield

    def reviews_after(self, number: int, ends_task: bool) -> bool:
        """Whether the review trick follows a batch: at its period if it has one, else where a task ends."""
        every = self.config.learner.review_every
        if not every and not self.stream.announces_tasks:  # resolved without knowing the stream's length
            every = reviews_every(len(self.stream), self.stream.config)
        here = (number + 1) % every == 0 if every else ends_task
        return self.config.learner.review and here

    def progress(self) -> Progress:
        accuracy = None
        if self.evaluations:
            row = self.evaluations[-1].accuracy
            shown = len(row) if self.stream.config.boundary == "iid" else len(self.evaluations)
            accuracy = float(np.mean(row[:shown]))
        losses = self.learner.watched.take()
        loss = losses.pop("stream", None)
        return Progress(self.cursor, len(self.stream), loss, accuracy, tuple(self.evaluations), losses)

    def check_loss(self) -> None:
        failed = int(self.learner.failed_at)
        if failed >= 0:
            lower = min(0.1, self.config.learner.lr / 10)
            raise OcilError(
                f"{self.config.label} seed {self.config.seed}: the loss is not finite at training step {failed} "
                f"(stream batch {self.cursor} of {len(self.stream)}). Lower the learning rate: --set lr={lower:g}"
            )

    def finish(self) -> Result:
        self.save()
        peak = _peak_of_host()
        if self.device.type == "cuda":
            peak["device"] = torch.cuda.max_memory_allocated(self.device)
        result = Result(
            self.config,
            [row.accuracy for row in self.evaluations],
            [row.to_json() for row in self.evaluations],
            round(self.seconds, 3),
            peak,
            digest(self.learner),
            {**environment(self.device), "images": self.images, **self.surroundings},
        )
        self.folder.save_result(result)
        return result


def _peak_of_host() -> dict[str, int]:
    """The most memory that this process has used, where the system counts it."""
    try:
        import resource
    except ImportError:  # Windows
        return {}
    return {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)}


def check_begun(folder: RunFolder, progress: Mapping[str, Any], device: torch.device, images: str) -> None:
    """Raise if a checkpoint was made where other bits would come out than here. ``images``: a dataset's fingerprint."""
    begun = progress.get("device", device.type)
    if begun != device.type:
        raise OcilError(f"{folder.path} was begun on {begun}: go on with --device {begun}, or delete that folder.")
    threads = progress.get("threads", torch.get_num_threads())
    if device.type == "cpu" and threads != torch.get_num_threads():
        raise OcilError(
            f"{folder.path} was begun with {threads} threads: go on with --threads {threads}, or delete that folder."
        )
    if progress.get("images", images) != images:
        raise OcilError(other_images(folder.path))


def digest(learner: Learner) -> str:
    """Equal digests mean bit-identical learners."""
    return digest_of(learner.state())


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over tensors and their names."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
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
