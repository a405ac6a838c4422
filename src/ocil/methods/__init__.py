"""The methods, by name. A new one is a file beside this and a line in ``METHODS``."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ocil.errors import OcilError, suggest

if TYPE_CHECKING:
    from ocil.methods.base import Learner


@dataclass(frozen=True)
class MethodInfo:
    """What there is to know of a method without importing it."""

    name: str
    target: str
    """``module:Class`` inside this package."""
    summary: str
    paper: str
    memory: bool = True
    """Keeps images for replay."""
    needs_task_ends: bool = False
    offline: bool = False
    """Sees the data mixed and many times: a bound, not an online method."""
    capturable: bool = True
    """A step in the steady state can be captured as a CUDA graph."""

    def load(self) -> "type[Learner]":
        module, name = self.target.split(":")
        learner: type[Learner] = getattr(import_module(f"ocil.methods.{module}"), name)
        return learner


METHODS: dict[str, MethodInfo] = {
    info.name: info
    for info in (
        MethodInfo(
            "afs", "afs:AFS", "revised focal loss, virtual distillation, augmented replay, review",
            "Liang et al., TCSVT 2023",
        ),
        MethodInfo("er", "er:ER", "replay of random memory samples", "Chaudhry et al., ICML Workshop 2019"),
        MethodInfo(
            "fine-tune", "fine_tune:FineTune", "no defence against forgetting: the lower bound", "-", memory=False,
        ),
        MethodInfo(
            "iid-offline", "fine_tune:FineTune", "all data mixed, 50 epochs: the upper bound", "-", memory=False,
            offline=True,
        ),
    )
}  # fmt: skip


def method(name: str) -> MethodInfo:
    """The entry of a method; names may be written with ``_`` or capitals."""
    info = METHODS.get(name.strip().lower().replace("_", "-"))
    if info is None:
        raise OcilError(f"unknown method '{name}'.{suggest(name, METHODS)}")
    return info
