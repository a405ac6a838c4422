"""A method under test: tiny learners of it, and the images that they learn from."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ocil.errors import OcilError
from ocil.methods import METHODS, MethodInfo, method
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import Pass
from ocil.runs.environment import digest
from ocil.runs.settings import fill, refuse_unknown
from ocil.runs.stepper import MemorySteps

IMAGES, CLASSES, SHAPE = 60, 6, (8, 8, 3)
BATCH, MEMORY, REPLAY = 5, 12, 8
SMALL: dict[str, Any] = {"width": 2, "memory": MEMORY, "memory_batch": REPLAY, "optimizer": "sgd"}
WITHOUT_MEMORY = ("memory", "memory_batch")

State = dict[str, Tensor]


class MethodSubject:
    """A method and the settings that it is tested with, where these are not the usual tiny ones."""

    def __init__(self, info: MethodInfo, settings: dict[str, Any]) -> None:
        self.info, self.settings = info, settings
        self.learner = info.learner_class
        refuse_unknown(info.name, settings, {field.name for field in fields(self.learner.Config)})
        self._warm: dict[Any, Learner] = {}

    @classmethod
    def of(cls, target: "type[Learner] | MethodInfo | str", settings: dict[str, Any]) -> "MethodSubject":
        """The subject for a registered name, an entry of the registry, or a class that is registered or not."""
        if isinstance(target, str):
            target = method(target)
        if isinstance(target, MethodInfo):
            return cls(target, settings)
        if not (isinstance(target, type) and issubclass(target, Learner)):
            raise OcilError(f"a method is checked by its class, its MethodInfo or its name, not by {target!r}.")
        known = (info for info in METHODS.values() if not isinstance(info.target, str) and info.target is target)
        name = target.__name__.lower().strip("_") or "mine"
        return cls(next(known, MethodInfo(name, target, f"the class {target.__name__}", "-")), settings)

    def __str__(self) -> str:
        return self.info.name

    @property
    def has_memory(self) -> bool:
        return self.info.memory

    @property
    def rehearses(self) -> bool:
        """Whether it learns at the end of a task from its memory, perhaps instead of from the stream."""
        return self.learner.task_end_batches is not Learner.task_end_batches

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """Images without meaning, all of them different, and their labels."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (IMAGES, *SHAPE), dtype=torch.uint8, generator=generator)
        return x, torch.arange(IMAGES) % CLASSES

    def config(self, **settings: Any) -> LearnerConfig:
        chosen = SMALL | self.learner.settings_for("", MEMORY, CLASSES) | self.settings | settings
        if not self.has_memory:
            chosen = {name: value for name, value in chosen.items() if name not in WITHOUT_MEMORY}
        return fill(self.learner.Config, chosen)

    def make(self, seed: int = 0, classes: int = CLASSES, **settings: Any) -> Learner:
        """A new learner."""
        return self.learner(self.config(**settings), Problem(SHAPE, classes), seed)

    def batch(self, number: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
        """Stream batches without end: the images over and over."""
        x, y = self.data
        index = torch.arange(number * BATCH, number * BATCH + size) % IMAGES
        return x[index], y[index]

    def batch_of(self, classes: list[int], number: int) -> tuple[Tensor, Tensor]:
        """Batches of some classes only."""
        x, y = self.data
        mine = torch.isin(y, torch.tensor(classes)).nonzero().flatten()
        index = mine[torch.arange(number * BATCH, (number + 1) * BATCH) % len(mine)]
        return x[index], y[index]

    def learn(self, learner: Learner, numbers: range) -> None:
        for number in numbers:
            learner.learn(*self.batch(number))

    def warm(self, steps: int, **settings: Any) -> Learner:
        """A learner after some steps: a copy, so that these steps are taken once for all checks."""
        key = (steps, *settings.items())
        if key not in self._warm:
            learner = self.make(**settings)
            self.learn(learner, range(steps))
            self._warm[key] = learner
        return copy.deepcopy(self._warm[key])

    def work(self, learner: Learner, number: int) -> None:
        """All that a learner does, from a batch on: steps, the end of a task, a review, one more step."""
        self.learn(learner, range(number, number + 2))
        end_task(learner)
        learner.review()
        learner.learn(*self.batch(number + 2))


def end_task(learner: Learner) -> None:
    """The end of a task as a run does it, without a review."""
    for _ in MemorySteps(learner).task_end_steps():
        pass


def frozen(learner: Learner) -> State:
    """Its state, cut loose: the tensors of ``state()`` go on changing with the learner."""
    return {name: value.clone() for name, value in learner.state().items()}


def changed(before: State, after: State) -> set[str]:
    """The names of what differs."""
    names = before.keys() | after.keys()
    return {n for n in names if n not in before or n not in after or not torch.equal(before[n], after[n])}


def same(one: Learner, other: Learner) -> bool:
    """Whether two learners are bit for bit the same."""
    return digest(one) == digest(other)


@contextmanager
def measured_passes(learner: Learner) -> Iterator[list[Pass]]:
    """The batches that pass through the learner's network, and others of its kind, inside the block."""
    kind: Any = type(learner.network)
    found: list[Pass] = []
    features: Callable[..., Tensor] = kind.features
    stage_maps: Callable[..., list[Tensor]] = kind.stage_maps

    def see(images: int, last: Tensor) -> None:
        number = len(found)
        found.append(Pass(images, trains=False))
        if last.requires_grad:
            last.register_hook(lambda gradient: found.__setitem__(number, Pass(images, trains=True)))

    def seen_features(network: Any, x: Tensor) -> Tensor:
        result = features(network, x)
        see(len(x), result)
        return result

    def seen_maps(network: Any, x: Tensor) -> list[Tensor]:
        result = stage_maps(network, x)
        see(len(x), result[-1])
        return result

    kind.features, kind.stage_maps = seen_features, seen_maps
    try:
        yield found
    finally:
        kind.features, kind.stage_maps = features, stage_maps
