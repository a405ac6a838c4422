"""What every method has: a network, a memory, an optimiser, and four verbs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import wraps
from operator import ge, gt, index, le, lt
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from ocil import losses, networks
from ocil.augment import Augment, crop_range
from ocil.errors import OcilError
from ocil.memory import Memory
from ocil.methods._watched import Phase, WatchedLosses
from ocil.networks import ImageShape, to_float
from ocil.precision import Precision
from ocil.rng import Rng, derive
from ocil.sgd import SGD
from ocil.threads import default_if_free

FIRST_CAPACITY = 16  # of a learner whose classes are not known; it doubles, so that growth is rare


@dataclass(frozen=True)
class Problem:
    """What a learner is told about the data: image height, width and channels, and how many classes will come."""

    image_shape: ImageShape
    classes: int
    """Of a growing learner: how many it has room for."""


def capacity_for(classes: int) -> int:
    """The smallest capacity step that holds so many."""
    capacity = FIRST_CAPACITY
    while capacity < classes:
        capacity *= 2
    return capacity


@dataclass(frozen=True)
class LearnerConfig:
    """Settings every method shares. Defaults are the paper's; a method's own config adds its fields below these."""

    memory: int = 0
    """Images kept for replay (0 for methods without a memory)."""
    memory_batch: int = 10
    """Images drawn from the memory for each stream batch."""
    lr: float = 0.1
    """Learning rate of plain SGD."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    width: int = 20
    """Channels of the network's first stage; the next ones have 2, 4 and 8 times as many."""
    precision: Precision = "tf32"
    """On a GPU. ``fp32``: exact and repeatable bit for bit (in a loop of your own, inside ``precision.numerics``).
    ``tf32``: convolutions round their factors to TF32, as PyTorch does by default. ``bf16``: the network's inside in
    bfloat16, its head and the losses in float32."""
    review: bool = False
    """The review trick: a pass over the memory at a small learning rate."""
    review_every: int = 0
    """Stream batches between two reviews; 0 means at task ends (500 where the stream announces none)."""
    review_batch: int = 10
    review_lr_scale: float = 0.1
    """Gradients in a review are multiplied by this: 0.1 at lr 0.1 is the paper's review learning rate of 0.01."""
    review_keep_last: bool = False
    """Whether a review keeps the incomplete last batch (the base harness drops it, AFS keeps it)."""
    growing: bool = False
    """Classes are not known in advance: the head and all else that is kept by class grows, and every softmax runs over
    the classes met so far."""

    minimum: ClassVar[dict[str, float]] = {
        "memory": 0, "memory_batch": 1, "momentum": 0, "weight_decay": 0, "width": 1,
        "review_every": 0, "review_batch": 1, "review_lr_scale": 0,
    }  # fmt: skip
    maximum: ClassVar[dict[str, float]] = {"width": 1024}
    above: ClassVar[dict[str, float]] = {"lr": 0}
    below: ClassVar[dict[str, float]] = {"momentum": 1}

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            value, hint = getattr(self, field.name), hints[field.name]
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise OcilError(f"{field.name} = {value!r} is not one of {', '.join(map(str, get_args(hint)))}.")
            for bounds, holds, wanted in (
                (self.minimum, ge, "at least"),
                (self.maximum, le, "at most"),
                (self.above, gt, "more than"),
                (self.below, lt, "less than"),
            ):
                if field.name in bounds and not holds(value, bounds[field.name]):
                    raise OcilError(f"{field.name} = {value} must be {wanted} {bounds[field.name]}.")

    def refuse_less(self, name: str, than: str) -> None:
        mine, least = getattr(self, name), getattr(self, than)
        if mine < least:
            raise OcilError(f"{name} = {mine} must be at least {than} = {least}.")


@dataclass(frozen=True)
class AugmentedConfig(LearnerConfig):
    """Settings of the methods that show a memory image in random views."""

    crop: float = 0.75
    """Smallest area of the random crop, as a share of the image; 1 switches the crop off."""
    flip: float = 0.5
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    jitter: float = 0.8
    """Probability that an image's colours are changed."""
    gray: float = 0.0
    """Probability that an image turns gray."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.augment()

    def augment(self) -> Augment:
        return Augment(
            crop_scale=crop_range(self.crop), flip=self.flip, jitter=self.jitter,
            brightness=self.brightness, contrast=self.contrast, saturation=self.saturation, hue=self.hue,
            gray=self.gray,
        )  # fmt: skip


Verb = TypeVar("Verb", bound=Callable[..., Any])


def _on_its_threads(verb: Verb) -> Verb:
    """On a CPU a verb that a user calls takes as many threads as pay for this network, see ``ocil.threads``."""

    @wraps(verb)
    def scoped(self: "Learner", *arguments: Any, **named: Any) -> Any:
        if self.device.type != "cpu":
            return verb(self, *arguments, **named)
        with default_if_free(self.problem.image_shape, self.config.width):
            return verb(self, *arguments, **named)

    scoped.prepared = True  # type: ignore[attr-defined]  # so that it is not wrapped once more where it is inherited
    return cast(Verb, scoped)


class Learner(nn.Module):
    """Learns from one batch at a time. Subclasses write ``learn`` out in full.

    Images are uint8 ``[B, H, W, C]``, labels int64 ``[B]``, both on the learner's device. In the steady state, once the
    memory holds a replay batch, ``learn`` keeps static shapes and reads nothing back to the host, so that a step can be
    captured as a CUDA graph.

    A growing learner meets the classes of a batch before it learns it: by itself, which reads the labels back to the
    host, or, where ``classes_announced``, by calls of ``meet``.
    """

    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    class_rows: ClassVar[tuple[str, ...]] = ("met",)
    """Buffers with one row a class. They grow; new rows are 0."""
    scores_are_logits: ClassVar[bool] = True
    """False where scores only rank the classes, as distances do: their softmax says nothing of how sure it is."""
    config: LearnerConfig
    classes_announced: bool = False
    """Whether the caller promises to ``meet`` every class before a batch shows it, as a run does. Then ``learn`` does
    not look at the labels, and can be captured."""

    def __init_subclass__(cls, **options: Any) -> None:
        """What a method's verbs have in common, so that each method writes out its own step alone."""
        super().__init_subclass__(**options)
        for name in ("learn", "end_task", "review", "scores"):
            verb = getattr(cls, name)  # of the class itself, or of a mixin
            if not hasattr(verb, "prepared"):
                setattr(cls, name, _on_its_threads(_meets_first(verb) if name == "learn" else verb))

    def __init__(
        self, config: LearnerConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.config = config
        self.problem = problem
        self.device = torch.device(device)
        self.rng = Rng(seed, self.device)
        self.network = networks.build(
            problem.image_shape, problem.classes, config.width, derive(seed, "init"), self.device, config.precision,
            config.growing,
        )  # fmt: skip
        self.memory = Memory(config.memory, problem.image_shape, self.rng["memory"])
        self.optimizer = self.make_optimizer()
        self.watched = WatchedLosses()
        self.steps: Tensor
        self.failed_at: Tensor
        self.last_loss: Tensor
        self.tasks_ended: Tensor
        self.met: Tensor | None
        self._met: set[int] = set()  # the same as met, known to the host
        room = torch.zeros(problem.classes, dtype=torch.bool, device=self.device)
        self.register_buffer("met", room if config.growing else None)
        self.tasks = 0  # the same as tasks_ended, known to the host
        self.register_buffer("tasks_ended", torch.zeros((), dtype=torch.int64, device=self.device))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=self.device))
        self.register_buffer("failed_at", torch.full((), -1, dtype=torch.int64, device=self.device))
        self.register_buffer("last_loss", torch.zeros((), device=self.device))

    @classmethod
    def settings_for(cls, dataset: str, memory: int) -> dict[str, Any]:
        """Defaults for a dataset and memory size, published ones first of all, where they differ from the config's."""
        return {}

    @classmethod
    def images_at_once(cls, config: LearnerConfig, batch_size: int, classes: int) -> int:
        """Images of the largest pass that a step makes, from above: device memory is estimated from it."""
        return max(batch_size + 2 * config.memory_batch, config.review_batch)

    def make_optimizer(self) -> SGD:
        """SGD over all that is to be learned. A method that adds or replaces a head calls it again."""
        config = self.config
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return SGD(trained, config.lr, config.momentum, config.weight_decay)

    @property
    def classes_met(self) -> list[int]:
        """In ascending order; all there are, if the learner was told how many."""
        return sorted(self._met) if self.met is not None else list(range(self.problem.classes))

    @property
    def class_count(self) -> int | Tensor:
        """How many classes count: those met so far, on the device, or all there are."""
        return self.problem.classes if self.met is None else self.met.sum()

    def meet(self, classes: Iterable[int]) -> None:
        """These classes are about to appear. Does nothing unless the learner grows, or if it has met them.

        Not for the inside of a step: rows are drawn on the host, and if the learner has no room for a class, all that
        it keeps by class is allocated anew.
        """
        if self.met is None or not (new := sorted({index(number) for number in classes} - self._met)):
            return
        if new[0] < 0:
            raise OcilError(f"class {new[0]} cannot be met: classes count from 0.")
        if new[-1] >= self.problem.classes:
            self.grow(capacity_for(new[-1] + 1))
        networks.meet(self, new)
        self.met[new] = True
        self._met |= set(new)

    def grow(self, capacity: int) -> None:
        """Room for so many classes. (Fewer than now only if a state is loaded that has fewer.)"""
        self.problem = replace(self.problem, classes=capacity)
        networks.grow(self, capacity)
        velocity, self.optimizer = self.optimizer.velocity, self.make_optimizer()
        for number, value in velocity.items():
            self.optimizer.velocity[number] = networks.with_rows(value, len(self.optimizer.parameters[number]))

    def masked(self, scores: Tensor) -> Tensor:
        """Scores of which a class not met never has the largest. The network's own head gives such scores."""
        return scores if self.met is None else scores.masked_fill(~self.met, networks.NOT_MET)

    def state(self) -> dict[str, Tensor]:
        """Everything that later steps depend on, as flat tensors: weights, memory, optimiser, generators.

        Live tensors, not copies: learning goes on changing them.
        """
        state = dict(self.state_dict())
        state |= {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}
        return state | {f"rng.{name}": value for name, value in self.rng.state().items()}

    def load_state(self, state: dict[str, Tensor], generators: bool = True) -> None:
        """Go on exactly where ``state`` was taken. Of a growing learner the state says how much room there is.

        ``generators=False`` leaves random generators as they are: another device's states mean nothing here.
        """
        if self.met is not None:
            if len(state["met"]) != self.problem.classes:
                self.grow(len(state["met"]))
            self._met = set(state["met"].nonzero().flatten().tolist())
        own = {name: value for name, value in state.items() if not name.startswith(("optimizer.", "rng."))}
        self.load_state_dict(own)
        self.memory.recount()
        self.tasks = int(self.tasks_ended)
        self.optimizer.load_state(_below("optimizer.", state))
        if generators:
            self.rng.load_state(_below("rng.", state))

    def learn(self, x: Tensor, y: Tensor) -> None:
        """Learn from one stream batch."""
        raise NotImplementedError

    @_on_its_threads
    def scores(self, x: Tensor) -> Tensor:
        """Class scores ``[B, C]``; changes nothing."""
        return self.scorer()(x)

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """``scores`` as of now, for many batches. Methods that classify by class means compute them here, once."""

        @torch.no_grad()
        def logits(x: Tensor) -> Tensor:
            with networks.evaluating(self.network):
                scores: Tensor = self.network(self.inputs(x))
            return scores

        return logits

    def inputs(self, x: Tensor) -> Tensor:
        """Stored images as the network wants to see them, nothing augmented."""
        return to_float(x)

    def steady(self) -> bool:
        """Whether ``learn`` keeps its shapes from now on, so that a step may be captured. Reads from the device."""
        return self.memory.holds_more_than(self.config.memory_batch)

    def form(self) -> int:
        """Changes when ``learn`` begins to do something else, as after a task. Does not read the device."""
        return 0

    @_on_its_threads
    def review(self) -> None:
        """The review trick: one shuffled pass over the memory at a tenth of the learning rate."""
        for slots in self.review_slots():
            self.review_step(slots)

    def task_ended(self) -> None:
        """A task is over. Methods that are defined by task ends extend this; the others ignore it."""
        self.tasks += 1
        self.tasks_ended += 1

    @_on_its_threads
    def end_task(self) -> None:
        """All that a task's end calls for: what the method is defined by, and a review if its settings have one there.

        With ``review_every`` they have it elsewhere: call ``review`` after as many batches.
        """
        self.task_ended()
        for slots in self.rehearsal():
            self.rehearsal_step(slots)
        if self.config.review and not self.config.review_every:
            self.review()

    def rehearsal(self) -> Iterator[Tensor]:
        """Memory slots of the batches that a task's end calls for, one after the other; for most methods none."""
        return iter(())

    @property
    def rehearses(self) -> bool:
        return type(self).rehearsal is not Learner.rehearsal

    def rehearsal_step(self, slots: Tensor) -> None:
        """Learn from one batch of a rehearsal."""
        raise NotImplementedError

    def review_slots(self) -> list[Tensor]:
        """The memory slots of a review's batches."""
        order, size = self.memory.epoch(), self.config.review_batch
        end = len(order) if self.config.review_keep_last else len(order) - len(order) % size
        slots = list(order[:end].split(size)) if end else []
        if slots and len(slots[-1]) < networks.smallest_batch(self.problem.image_shape):
            slots.pop()  # one tiny image alone cannot be normalised
        return slots

    def review_step(self, slots: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.review_loss(self.memory.images[slots], self.memory.labels[slots])
        (self.config.review_lr_scale * loss).backward()
        self.optimizer.step()
        self.watch(loss, "review")

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What a review minimises: the method's own classification loss."""
        return losses.cross_entropy(self.network(to_float(x)), y)

    @torch.no_grad()
    def watch(self, loss: Tensor, phase: Phase = "stream", /, **parts: Tensor) -> None:
        """Remember, on the device, the last loss and the first step whose loss was not finite.

        ``parts`` are what the loss is the sum of, by name, for those who watch.
        """
        self.watched.put(phase, loss, parts)
        self.last_loss.copy_(loss)
        failed = torch.where(torch.isfinite(loss), -1, self.steps)
        self.failed_at.copy_(torch.where(self.failed_at < 0, failed, self.failed_at))
        self.steps += 1


def _meets_first(learn: Verb) -> Verb:
    """The step of a method, for every caller: classes that nobody announced would have no row to learn."""

    @wraps(learn)
    def step(self: Learner, x: Tensor, y: Tensor, *arguments: Any, **named: Any) -> Any:
        if self.met is not None and not self.classes_announced:
            self.meet(y.tolist())
        return learn(self, x, y, *arguments, **named)

    return cast(Verb, step)


def _below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
