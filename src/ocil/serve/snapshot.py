"""Copies of a learner that predictions read while it learns."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil.errors import OcilError
from ocil.methods.base import Learner
from ocil.networks.base import networks_in
from ocil.online.labels import ClassLabel
from ocil.online.model import Model, probabilities


class NotFiniteError(OcilError):
    """Weights or scores are infinite or NaN."""


@dataclass(frozen=True)
class Snapshot:
    """A model as it was after a step. Nothing in it changes while it is read."""

    labels: tuple[ClassLabel, ...]
    samples: int
    batches: int
    device: torch.device
    learner: Learner
    scorer: Callable[[Tensor], Tensor]

    def probabilities(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """[N, classes], as ``Model.probabilities``."""
        found = probabilities(self.scorer, x, len(self.labels), self.device)
        if not np.isfinite(found).all():
            raise NotFiniteError("the scores are not finite any more: begin again with a lower learning rate.")
        return found


class Snapshots:
    """Three copies of a learner in turn: the newest, the one that is being read, and one to write to.

    A step is published by copying all that a prediction depends on to a spare copy and then naming that the newest. So
    no reader sees half a step, and none waits for one. Frozen weights never change, so all copies share them. The
    memory is not copied: what a method reads of it, for its class means, it reads when its scorer is made, here, in
    the learning thread.

    One reader at a time, besides the learning thread, which may always read the newest one.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._lock = threading.Lock()
        self.pinned: Snapshot | None = None
        """What predictions read instead of the newest one. It is of another model, which does not learn."""
        self._copies: list[Learner] = []
        self._read: Learner | None = None
        self.newest = self._snapshot_of(self._make_copy())

    def publish(self, probe: NDArray[Any]) -> Snapshot:
        """Make the model as it is now the newest snapshot.

        ``NotFiniteError``, and no change, if its weights are not finite, or its scores of the inputs ``probe``: weights
        can be finite and yet far too large.
        """
        with self._lock:
            busy = (self.newest.learner, self._read)
        spare = next((one for one in self._copies if all(one is not other for other in busy)), None)
        if spare is None:
            spare = self._make_copy()
        elif not _write_over(spare, self.model.learner):  # classes grew: tensors have other shapes
            self._copies = [one for one in self._copies if one is not spare]
            spare = self._make_copy()
        taken = self._snapshot_of(spare)
        taken.probabilities(probe)
        with self._lock:
            self.newest = taken
        return taken

    @property
    def current(self) -> Snapshot:
        """What predictions come from now: the pinned snapshot, else the newest one."""
        return self.pinned or self.newest

    @contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """The newest snapshot, or the pinned one. It stays as it is inside the block, whatever is learned meanwhile."""
        with self._lock:
            found = self.current
            self._read = found.learner
        try:
            yield found
        finally:
            with self._lock:
                self._read = None

    def begin_anew(self) -> None:
        """The model has another learner now. The newest snapshot stays until the next is published."""
        self._copies = []

    def _make_copy(self) -> Learner:
        learner = self.model.learner
        shared = (learner.memory, learner.optimizer, learner.rng, *_frozen(learner).values())
        made: Learner = copy.deepcopy(learner, {id(part): part for part in shared})
        made.requires_grad_(False).eval()
        self._copies.append(made)
        return made

    def _snapshot_of(self, learner: Learner) -> Snapshot:
        found = networks_in(learner)
        weights = [value for each in found for value in each.state_dict().values() if value.is_floating_point()]
        if not all(bool(value.isfinite().all()) for value in weights):
            raise NotFiniteError("the weights are not finite any more: begin again with a lower learning rate.")
        for network in found:
            network.prepare()
        model = self.model
        scorer = learner.scorer()
        return Snapshot(tuple(model.labels), model.samples, model.batches, model.device, learner, scorer)


def _tensors(learner: Learner) -> dict[str, Tensor]:
    """The learner's tensors without those of the memory, and without frozen ones."""
    frozen = _frozen(learner)
    return {
        name: value
        for name, value in learner.state_dict().items()
        if not name.startswith("memory.") and name not in frozen
    }


def _frozen(learner: Learner) -> dict[str, Tensor]:
    """The weights and batch statistics of the network's frozen parts, by their names in the learner's state."""
    return {
        f"network.{part}.{name}": value
        for part in learner.network.frozen_parts
        for name, value in learner.network.get_submodule(part).state_dict(keep_vars=True).items()
    }


@torch.no_grad()
def _write_over(copied: Learner, learner: Learner) -> bool:
    """Make a copy equal to the learner again. False, and no change, if their tensors have different shapes."""
    old, new = _tensors(copied), _tensors(learner)
    if old.keys() != new.keys() or any(old[name].shape != new[name].shape for name in new):
        return False
    torch._foreach_copy_(list(old.values()), [new[name] for name in old])
    parts = {"_parameters", "_buffers", "_modules"}
    copied.__dict__.update({n: v for n, v in vars(learner).items() if n not in parts and n != "training"})
    return True
