"""From a configuration to a learner, and checks of a configuration before anything is built from it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ocil.data import CATALOG, Dataset, load_once
from ocil.data.dataset import require_dataset
from ocil.devices import pick_device
from ocil.errors import OcilError
from ocil.evaluation.anytime import AnytimeEvaluator
from ocil.evaluation.evaluator import tested_per_group
from ocil.evaluation.prequential import Prequential
from ocil.files import path_or_none
from ocil.learning.memory import refuse_what_cannot_fit
from ocil.methods import method
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.growth import capacity_for
from ocil.networks import InputShape, Network
from ocil.networks import build as build_network
from ocil.networks.registry import identity_of, refuse_what_is_not_kept, untrained
from ocil.runs.config import RunConfig, facts_of, resolve
from ocil.runs.features import Encoder
from ocil.runs.settings import refuse_unknown
from ocil.streams import Order, Stream, StreamConfig
from ocil.streams.kinds import sizes_vary

IN_MEMORY = "give dataset= to ocil.run, or register an ocil.DatasetSource, which run_many and tune find by its name"
"""What to do with a dataset in memory."""


def named_dataset(config: RunConfig, data_dir: Path | str | None = None, how: str = IN_MEMORY) -> Dataset:
    """The dataset that a configuration names. If there is none, or another one than the configuration was made for, the
    error says what to do with a dataset in memory: ``how``."""
    name = config.dataset
    try:
        found = load_once(name, path_or_none(data_dir))
    except OcilError as error:
        if name in CATALOG or Path(name).suffix:
            raise
        raise OcilError(f"{error} If it is one that you made in Python, {how}.") from error
    if config.made_for and config.made_for != found.fingerprint:
        changed = f"the dataset that is found as '{name}' is not the one that this configuration was made for"
        raise OcilError(f"{changed}: {how}. Give a dataset that you changed a name of its own.")
    return found


def build(config: RunConfig, dataset: Dataset, device: torch.device | str = "cpu") -> Learner:
    """The learner of a configuration, before its first batch. ``dataset``: what it learns from, or the images that its
    features are computed from."""
    classes = capacity_for(0) if config.learner.growing else dataset.num_classes + dataset.unseen
    problem = problem_of(dataset, classes, config.learner)
    learner = config.learner_class(config.learner, problem, config.seed, device)
    optimizer: Any = learner.optimizer  # of a method of someone's own it may be anything
    if isinstance(optimizer, torch.optim.Optimizer):
        raise OcilError(
            f"the optimiser of {config.method} comes from torch.optim as it is, and cannot be saved: use the setting "
            "optimizer, or ocil.learning.optimizers.make."
        )
    return learner


def problem_of(dataset: Dataset, classes: int, config: LearnerConfig | None = None) -> Problem:
    """What a learner knows of a dataset, with so many classes. With the setting ``features`` it knows the features of
    the dataset's images."""
    encoder = Encoder.of(config) if config is not None and dataset.is_images else None
    if encoder is not None:
        return Problem(encoder.vector_shape(dataset.input_shape), classes, torch.float32)
    dtype = torch.from_numpy(np.empty(0, dataset.train_x.dtype)).dtype
    return Problem(dataset.input_shape, classes, dtype)


def refuse_missing_operators(config: RunConfig, dataset: Dataset, device: torch.device) -> None:
    """Raise if the steps of a method use an operator that the device does not have. An Apple GPU lacks some.

    Tried on a small learner, so that it is known before a run starts.
    """
    if device.type == "mps":
        _try_steps(config.method, replace(config.learner, width=1), problem_of(dataset, 2), device)


def _try_steps(name: str, config: LearnerConfig, problem: Problem, device: torch.device) -> None:
    try:
        learner = method(name).learner_class(config, problem, device=device)
        x = torch.zeros((4, *problem.input_shape), dtype=problem.dtype, device=device)
        y = torch.arange(4, device=device) % 2
        learner.meet(range(2))
        for _ in range(3):
            learner.learn(x, y)
        learner.end_task()
        learner.review()
        learner.scores(x)
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise OcilError(f"{name} cannot run on {device}: {reason}. Use the CPU (--device cpu).") from error


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

    Args:
        name: A method from ``ocil.METHODS``.
        dataset: It is asked for its shapes and classes only: a learner never sees a dataset.
        memory: Samples to keep for replay; by default the published number for this dataset.
        seed: What weights and all random choices are drawn from.
        device: Where the learner is, and where batches must be: auto, cpu, cuda or mps.
        settings: Fields of the method's config; those not given have the published or default value. ``batch_size`` is
            how many samples will arrive together, 10 by default: a memory must hold a batch.

    Raises:
        OcilError: There is no such method or setting, or the method cannot learn from such inputs.

    Examples:
        >>> data = ocil.load_dataset()
        >>> learner = ocil.make_learner("er", data, memory=50, width=2)
        >>> batch = next(iter(ocil.Stream(data)))
        >>> learner.learn(batch.x, batch.y)
        >>> tuple(learner.scores(batch.x).shape)
        (10, 10)
    """
    require_dataset(dataset)
    refuse_unknown(name, settings, {field.name for field in fields(method(name).learner_class.Config)} | {"batch_size"})
    config = resolve(name, dataset.name, memory=memory, seed=seed, settings=settings, **facts_of(dataset))
    refuse_wrong_inputs(config, dataset)
    return build(config, dataset, pick_device(device))


@dataclass(frozen=True)
class StreamLength:
    """How long a stream is. Those that are equal need the same of the settings of a learner."""

    batches: int
    smallest: int
    """Samples of the smallest batch."""
    samples: int = field(compare=False)
    """How many training samples come."""
    dropped: int = field(compare=False)
    """How many more would, but are in no batch."""


def check(config: RunConfig, dataset: Dataset, arrivals: Order | None = None) -> None:
    """Raise what a run would raise later: tasks without images, reviews that never come, steps without memory images, a
    memory that is too large for this machine. ``arrivals``: an order that the configuration does not name.
    """
    _check_learner(config, dataset, _length_of(config, dataset, arrivals))


@dataclass
class Checks:
    """Checks the cells of one dataset: the stream of a seed is drawn once for all cells that share it."""

    dataset: Dataset
    _known: dict[tuple[StreamConfig, int], StreamLength] = field(default_factory=dict)

    def check(self, configs: Sequence[RunConfig]) -> None:
        """Raise what one of these runs, which differ by their seed alone, would raise later. See ``check``."""
        lengths: set[StreamLength] = set()
        for config in configs if sizes_vary(configs[0].stream) else configs[:1]:
            try:
                length = self.length(config)
                if length not in lengths:
                    _check_learner(config, self.dataset, length)
            except OcilError as error:
                if config is configs[0]:
                    raise
                raise OcilError(f"seed {config.seed}: {error}") from error
            lengths.add(length)

    def length(self, config: RunConfig) -> StreamLength:
        """Of a run's stream."""
        key = config.stream, config.seed
        if key not in self._known:
            self._known[key] = _length_of(config, self.dataset)
        return self._known[key]


def _length_of(config: RunConfig, dataset: Dataset, arrivals: Order | None = None) -> StreamLength:
    """The length of a run's stream. Raises if it cannot be drawn, or if what it should record cannot be."""
    stream = Stream(dataset, config.stream, config.seed, arrivals=arrivals)
    _check_evaluations(stream)
    smallest = min(last - first for first, last in stream.bounds)
    order = stream.arrivals
    return StreamLength(len(stream), smallest, len(order.arriving), order.dropped)


def _check_evaluations(stream: Stream) -> None:
    """Raise if a group has no test images, if there are too few of them, if evaluations are asked for that would never
    come, or if a result cannot hold all counts."""
    tested_per_group(stream)
    if (every := stream.config.evaluate_every) > len(stream):
        raise OcilError(
            f"evaluate_every = {every} is more than the {len(stream)} batches of the stream: no evaluation would come "
            "besides those after each task. Give a smaller one (--set evaluate_every=N), or leave it out."
        )
    for evaluator in (AnytimeEvaluator, Prequential):
        evaluator(stream)  # raises


def _check_learner(config: RunConfig, dataset: Dataset, length: StreamLength) -> None:
    learner = config.learner
    _check_step(config, dataset)
    refuse_wrong_inputs(config, dataset)
    problem = problem_of(dataset, dataset.num_classes, learner)
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    refuse_what_cannot_fit(learner.memory, problem.input_shape, [torch.device("cpu"), *gpus], problem.dtype)
    _check_reviews(learner, length.batches)
    _refuse_weights(learner, dataset.input_shape, config.weights)
    if config.learner_class.trains_network:
        _check_network(config, dataset.name, problem.input_shape, length.smallest)


def _check_step(config: RunConfig, dataset: Dataset) -> None:
    """Raise what the method says against a step with these settings when it is asked for the passes of one."""
    config.learner_class.passes(config.learner, config.stream.batch_size, dataset.num_classes)


def _check_reviews(config: LearnerConfig, batches: int) -> None:
    """Raise if there should be reviews, and none would come or have a whole batch."""
    if config.review and config.review_every > batches:
        raise OcilError(
            f"review_every = {config.review_every} is more than the {batches} batches of the stream: "
            "no review would come. Give a smaller one (--set review_every=N), or no review (--no-review)."
        )
    if config.review and not config.review_keep_last and config.review_batch > config.memory:
        raise OcilError(
            f"review_batch = {config.review_batch} is more than memory = {config.memory}: no review would have a "
            f"whole batch. Give a smaller one (--set review_batch={config.memory}), or no review (--no-review)."
        )


def _check_network(config: RunConfig, dataset: str, input_shape: InputShape, smallest: int) -> None:
    """Raise if the network draws random numbers or changes buffers that nothing keeps, does not suit the method, or
    cannot learn from the smallest batch of the run.

    ``smallest``: samples of the smallest batch of the stream.
    """
    learner = config.learner
    if method(config.method).memory and learner.memory_batch:  # 0: the method finds its own
        smallest = min(smallest, learner.memory_batch)
    network = network_of(learner, input_shape)
    refuse_what_is_not_kept(learner.network, input_shape, learner.width, learner.freeze)
    config.learner_class.check_network(learner, network, input_shape)
    if smallest < network.smallest_batch:
        raise OcilError(
            f"a batch of one image of {dataset} has no batch statistics: its images are too small. "
            "Use another batch_size or memory_batch, or drop_last = true."
        )


def refuse_wrong_inputs(config: RunConfig, dataset: Dataset) -> None:
    """Raise an ``OcilError`` if a method cannot learn from what the dataset holds, if its features cannot be computed,
    or if it cannot be tested as the settings ask.
    """
    learner, learner_class = config.learner, config.learner_class
    vectors = bool(learner.features) or not dataset.is_images
    learner_class.check_scoring(learner, vectors)
    if learner.features and not dataset.is_images:
        raise OcilError(f"{dataset.name} holds vectors already: leave out features = {learner.features}.")
    if vectors and (reason := learner_class.why_not_vectors(learner)):
        raise OcilError(f"{config.method} cannot learn from vectors: {reason}.")
    if not vectors and (reason := learner_class.why_not_images(learner)):
        raise OcilError(f"{config.method} cannot learn from images: {reason}.")
    if (encoder := Encoder.of(learner)) is not None:
        encoder.check()


def _refuse_weights(config: LearnerConfig, input_shape: InputShape, digest: str) -> None:
    """Raise an ``OcilError`` if the file of pretrained weights does not fit the network."""
    if digest and not config.features:  # with features the weights are those of the network that computes them
        code = identity_of(config.network)
        _build_with_weights(input_shape, config.width, config.network, config.pretrained, digest, code)


@lru_cache(maxsize=32)
def _build_with_weights(input_shape: InputShape, width: int, spec: str, path: str, digest: str, code: Hashable) -> None:
    """``digest`` and ``code`` serve the cache alone: they change when the file or the network does."""
    build_network(input_shape, 1, width, spec=spec, pretrained=path)


def network_of(config: LearnerConfig, input_shape: InputShape) -> Network:
    """The network of these settings with random weights and one class: to look at, not to train."""
    return untrained(config.network, input_shape, config.width, config.freeze)
