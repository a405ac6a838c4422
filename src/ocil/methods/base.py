"""The learner: four verbs, and the state that every method has: a network, a memory and an optimiser.

A method is one file whose ``learn`` shows the whole step. What it can rely on stands here and in

- ``config``: the settings that methods share, their bounds, and ``Problem``, the shape of the data;
- ``growth``: ``GrowsByClass``, for classes that are not known in advance;
- ``capturable``: ``Capturable``, by which an engine learns when it may capture a step as a CUDA graph;
- ``passes``: ``Pass``, in which a method states what a step costs;
- ``recorded_losses``: the losses of the last steps, for progress displays and loggers;
- ``verbs``: what happens around each verb, whoever calls it: the number of threads, meeting new classes, and that
  scores come from the averaged network, with ``average``, and from mirror images too, with ``test_flip``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ocil import kernels, networks, precision
from ocil.errors import OcilError
from ocil.learning import losses, optimizers
from ocil.learning.average import WeightAverage
from ocil.learning.memory import Memory
from ocil.learning.optimizers import Optimizer
from ocil.methods.capturable import Capturable
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.growth import GrowsByClass
from ocil.methods.passes import ExtraState, Pass, replayed
from ocil.methods.recorded_losses import Phase, RecordedLosses
from ocil.methods.verbs import check_inputs, refuse_former_names, refuse_whole_verbs, wrap_verbs
from ocil.networks import to_float
from ocil.rng import Rng, derive


class Learner(GrowsByClass, Capturable):
    """Learns from one batch at a time: ``learn``, ``scores``, ``review``, ``end_task``, and the state they share.

    Images are uint8 ``[B, H, W, C]``, vectors float16 or float32 ``[B, D]``, labels int64 ``[B]``, all on the learner's
    device. A method writes ``learn`` out in full. Where it differs in the others it overrides ``scorer``,
    ``review_loss`` and ``task_ended``.

    Examples:
        >>> from ocil.networks import to_float
        >>> class Plain(ocil.Learner):
        ...     def learn(self, x, y):
        ...         self.optimizer.zero_grad()
        ...         loss = ocil.losses.cross_entropy(self.network(to_float(x)), y)
        ...         loss.backward()
        ...         self.optimizer.step()
        ...         self.record_loss(loss)
        >>> ocil.register(ocil.MethodInfo("plain", Plain, "no memory", "-", memory=False))
        >>> data = ocil.load_dataset()
        >>> learner = ocil.make_learner("plain", data, width=2)
        >>> for batch in ocil.Stream(data):
        ...     learner.learn(batch.x, batch.y)
    """

    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    """The class of the method's settings, and of ``config`` in the class methods below: a method that overrides one of
    them names its own class there in place of ``Any``."""
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {}
    """Per dataset: the defaults that differ from the config's own. ``settings_for`` returns them."""
    kernel_factor: ClassVar[float] = 1.0
    """A bf16 step's time on a GPU as a multiple of what its ``passes`` predict: more than 1 if it does much outside the
    fused kernels, less if several batches share a pass. ``benchmarks/gpu_steps.py`` measures it; values are in
    results/performance/h200-steps.json."""
    vector_settings: ClassVar[dict[str, Any]] = {}
    """The defaults that differ from the config's own where inputs are vectors."""
    restarts: ClassVar[bool] = False
    """Whether it builds its network anew at task ends."""
    trains_network: ClassVar[bool] = True
    """False if it takes the network as it is: then a single input needs no batch statistics."""
    scores_are_logits: ClassVar[bool] = True
    """False if scores only rank the classes, as distances do: their softmax is not a probability."""
    no_average: ClassVar[str] = ""
    """Why the average of its weights (the setting ``average``) cannot be tested in the network's place; empty if it
    can."""
    config: LearnerConfig
    average: WeightAverage | None
    """The averaged network; None unless the setting ``average`` asks for one."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        refuse_whole_verbs(cls, Learner)
        refuse_former_names(cls)
        wrap_verbs(cls)

    def __init__(
        self, config: LearnerConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        if config.features and problem.is_images:
            raise OcilError(
                f"features = {config.features} are computed before a stream begins: for images that come one by one "
                "give network=NAME pretrained=FILE freeze=backbone."
            )
        self.check_scoring(config, vectors=not problem.is_images)
        self.config = config
        self.problem = problem
        self.device = torch.device(device)
        self.rng = Rng(seed, self.device)
        self.network = self.make_network(derive(seed, "init"))
        self.check_network(config, self.network, problem.input_shape)
        self.memory = Memory(config.memory, problem.input_shape, self.rng["memory"], problem.dtype)
        self.average = None
        self.optimizer = self.make_optimizer()
        self.recorded_losses = RecordedLosses()
        self.task_number = 0
        """The number of the present task, from 0. The host's copy of ``tasks_ended``, which is on the device."""
        self.start_classes(config.growing, self.device)
        self.tasks_ended: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=self.device))
        self.steps: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=self.device))
        self.failed_at: Tensor = nn.Buffer(torch.full((), -1, dtype=torch.int64, device=self.device))
        self.last_loss: Tensor = nn.Buffer(torch.zeros((), device=self.device))

    @classmethod
    def settings_for(cls, dataset: str, memory: int, classes: int | None = None) -> dict[str, Any]:
        """The defaults for a dataset, memory size and number of classes (None: not known) that differ from the
        config's own, above all the published settings.
        """
        return cls.dataset_settings.get(dataset, {})

    @classmethod
    def why_not_vectors(cls, config: Any) -> str | None:
        """Why it cannot learn from vectors with these settings, as a clause that ends the message; None if it can."""
        return None

    @classmethod
    def why_not_images(cls, config: Any) -> str | None:
        """Why it cannot learn from images with these settings, as ``why_not_vectors``; None if it can."""
        return None

    @classmethod
    def why_task_ends(cls, config: Any) -> str | None:
        """Why these settings need announced task ends, or what to set instead; None if they need none.

        A method that always needs them says so by ``MethodInfo.needs_task_ends``.
        """
        return None

    @classmethod
    def check_scoring(cls, config: LearnerConfig, vectors: bool) -> None:
        """Raise an ``OcilError`` if the settings ask for scores, averaged or of mirror images, that the method or the
        data cannot have."""
        if config.average and cls.no_average:
            raise OcilError(f"average = {config.average} does not suit {cls.__name__}: {cls.no_average}.")
        if config.test_flip and vectors:
            raise OcilError("test_flip = true needs images, and these inputs are vectors: leave it out.")

    @classmethod
    def check_network(cls, config: Any, network: networks.Network, input_shape: networks.InputShape) -> None:
        """Raise an ``OcilError`` if the method cannot learn with this network, or from inputs of this shape. A run asks
        before it begins, with a network that has one class: to look at.
        """

    @classmethod
    def passes(cls, config: Any, batch_size: int, classes: int) -> list[Pass]:
        """The passes through the network of a step on ``batch_size`` stream images, once the memory is full and a task
        has ended. Device memory, time estimates and the benchmark's floor are computed from them.

        The default is the stream batch, then a memory batch. A method whose step makes other passes overrides this.
        """
        return [Pass(batch_size)] + ([Pass(replayed(config))] if config.memory else [])

    @classmethod
    def review_passes(cls, config: Any, classes: int) -> list[Pass]:
        """The passes for one batch of a review."""
        return [Pass(config.review_batch)]

    @classmethod
    def task_end_passes(cls, config: Any, classes: int, stored: int) -> list[Pass]:
        """All passes at a task's end, without its review, with ``stored`` images in the memory."""
        return []

    @classmethod
    def extra_state(cls, config: Any, problem: Problem, network: networks.Network) -> ExtraState:
        """The tensors that the method adds to those of every learner. Whether a run fits on a device is computed from
        it. A method with tensors of its own that may be large overrides this.

        ``network`` is as the settings build it, but with one class: to look at.
        """
        return ExtraState()

    def make_network(self, seed: int) -> networks.Network:
        """The network with new or pretrained weights. If the learner grows, no class is met in it."""
        c, p = self.config, self.problem
        return networks.build(
            p.input_shape,
            p.classes,
            c.width,
            seed,
            self.device,
            precision.on(self.device, c.precision),
            c.growing,
            spec=c.network,
            pretrained="" if c.features else c.pretrained,
            freeze=c.freeze,
        )

    def make_optimizer(self) -> Optimizer:
        """The optimiser of all trainable parameters. A method that adds or replaces a head calls it again."""
        c = self.config
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        made = optimizers.make(c.optimizer, trained, c.lr, c.momentum, c.weight_decay)
        if c.average:
            if self.average is None:
                self.average = WeightAverage(self.network, c.average)
            self.average.follow(self.network)
            made.after_step = self.average.update
        return made

    @property
    def scoring_network(self) -> networks.Network:
        """The network that scores come from: the averaged one, if there is one, else the one that is trained."""
        return self.network if self.average is None else self.average.network

    def learn(self, x: Tensor, y: Tensor) -> None:
        """Learn from one stream batch."""
        raise NotImplementedError(f"{type(self).__name__} has no `learn(self, x, y)`")

    def scores(self, x: Tensor) -> Tensor:
        """Class scores ``[B, C]``: ``scores(x).argmax(1)`` predicts. The learner does not change."""
        check_inputs(self.problem, x)
        return self.scorer()(x)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """``scores`` as of now, for many batches. A method that classifies by class means computes them here, once."""

        @torch.no_grad()
        def logits(x: Tensor) -> Tensor:
            with networks.evaluating(self.network):
                scores: Tensor = self.network(self.inputs(x))
            return self.masked(scores)

        return logits

    def inputs(self, x: Tensor) -> Tensor:
        """Stored inputs in the form that the network takes, without augmentation."""
        return to_float(x)

    def review(self) -> None:
        """The review trick: one shuffled pass over the memory, at ``review_lr_scale`` times the learning rate."""
        for slots in self.review_batches():
            self.review_step(slots)

    def review_batches(self) -> list[Tensor]:
        """Begin a review, and return the memory slots of each of its batches."""
        order, size = self.memory.epoch(), self.config.review_batch
        end = len(order) if self.config.review_keep_last else len(order) - len(order) % size
        slots = list(order[:end].split(size)) if end else []
        if slots and len(slots[-1]) < self.network.smallest_batch:
            slots.pop()  # a single tiny image has no batch statistics
        if slots and self.average is not None and self.config.average_restarts:
            self.average.restart()
        return slots

    def review_step(self, slots: Tensor) -> None:
        """Learn from one batch of ``review_batches``."""
        self.optimizer.zero_grad()
        loss = self.review_loss(self.memory.images[slots], self.memory.labels[slots])
        with self.optimizer.scaled(self.config.review_lr_scale) as factor:
            (factor * loss).backward()
            self.optimizer.step()
        self.record_loss(loss, "review")

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a review: the method's own classification loss."""
        return losses.cross_entropy(self.network(to_float(x)), y)

    @torch.no_grad()
    def relabel(self, slots: Sequence[int], label: int) -> None:
        """Give the samples in these memory slots another label, that of a class that was met. Not inside a step.

        The network keeps what it has learned, as do stored outputs. A method that copies samples extends this.
        """
        for slot in slots:
            self.memory.relabel(slot, label)

    @torch.no_grad()
    def forget(self, slots: Sequence[int]) -> None:
        """Remove the samples in these memory slots, with all that is kept beside them. Not inside a step.

        The network keeps what it has learned. A method that copies samples, or that keeps more of them than
        ``slot_rows`` names, extends this.
        """
        left = sorted(slots)
        while left:
            slot = left.pop()  # from the last: the sample that may move to its slot is none of these
            source, empty = self.memory.count_out(slot, left)
            for rows in self._slot_tensors():
                rows[slot] = rows[source]
                if empty is not None:
                    rows[empty] = 0

    def _slot_tensors(self) -> Iterator[Tensor]:
        """All tensors with one row per memory slot."""
        for part in self.modules():
            yield from (getattr(part, name) for name in getattr(part, "slot_rows", ()))
            yield from (getattr(part, name).T for name in getattr(part, "slot_columns", ()))
        if self.memory.numbers is not None:
            yield self.memory.numbers.of_slot

    def step_variant(self) -> int:
        # A method that does something at a task's end may replace tensors there, which a captured step would not see.
        return self.task_number if type(self).task_ended is not Learner.task_ended else 0

    def task_ended(self) -> None:
        """A task is over. Methods that are defined by task ends extend this."""
        self.task_number += 1
        self.tasks_ended += 1

    def end_task(self) -> None:
        """Do all that belongs to a task's end: ``task_ended``, the method's steps there, and a review if the settings
        ask for it. With ``review_every`` they do not: call ``review`` after that many batches instead.
        """
        self.task_ended()
        for slots in self.task_end_batches():
            self.task_end_step(slots)
        if self.config.reviews_at_task_ends:
            self.review()

    @torch.no_grad()
    def record_loss(self, loss: Tensor, phase: Phase = "stream", /, **parts: Tensor) -> None:
        """Keep, on the device, the last loss and the first step whose loss was not finite. Every step ends with this.

        ``parts``, by name, add up to the loss; progress displays and loggers show them.
        """
        self.recorded_losses.put(phase, loss, parts)
        if kernels.present(loss):
            kernels.record_loss(loss, self.last_loss, self.failed_at, self.steps)
        else:
            self.last_loss.copy_(loss)
            failed = torch.where(torch.isfinite(loss), -1, self.steps)
            self.failed_at.copy_(torch.where(self.failed_at < 0, failed, self.failed_at))
            self.steps += 1

    def state(self) -> dict[str, Tensor]:
        """Everything that later steps depend on, as a flat dictionary: weights, memory, optimiser, generators.

        These are the live tensors, not copies: later steps change them.
        """
        state = dict(self.state_dict())
        state |= {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}
        return state | {f"rng.{name}": value for name, value in self.rng.state().items()}

    def load_state(self, state: dict[str, Tensor], generators: bool = True) -> None:
        """Continue exactly where ``state`` was taken. A growing learner gets as much room as the state has.

        ``generators=False`` leaves the random generators as they are: the states of another device do not fit.
        """
        if self.met is not None:
            self.load_classes(state["met"])
        own = {name: value for name, value in state.items() if not name.startswith(("optimizer.", "rng."))}
        self._refuse_later_parts(own)
        self.load_state_dict(own)
        self.memory.recount()
        self.task_number = int(self.tasks_ended)
        self.optimizer.load_state(_below("optimizer.", state))
        if generators:
            self.rng.load_state(_below("rng.", state))

    def _refuse_later_parts(self, state: Mapping[str, Tensor]) -> None:
        """Raise if a state has parts that this learner does not have, such as a teacher made at a task's end."""
        parts = {name.partition(".")[0] for name in state.keys() - self.state_dict().keys()}
        if later := sorted(parts - {name.partition(".")[0] for name in self.state_dict()}):
            raise OcilError(
                f"what was saved has {', '.join(later)}, which a new {type(self).__name__} does not have: a method "
                "makes all that it will ever keep in `__init__`, or makes it in `load_state` too."
            )


wrap_verbs(Learner, base=True)


def _below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
