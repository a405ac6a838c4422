"""The settings of a stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ocil.data import CATALOG
from ocil.errors import OcilError

Boundary = Literal["clear", "blurry", "none", "iid"]
ClassOrder = Literal["fixed", "seeded"]
# Metadata of fields that concern online methods only, or offline methods only: see ``ocil.runs.config.concerns``.
BOUNDARIES: Mapping[str, str] = {"concerns": "boundaries"}
EPOCHS: Mapping[str, str] = {"concerns": "epochs"}
EVALUATION: Mapping[str, str] = {"concerns": "evaluation"}  # what is measured: it does not change what is learned
DEFAULT_TASKS = 5
MAX_EPOCHS = 10_000  # the order of all epochs is drawn at once


@dataclass(frozen=True)
class StreamConfig:
    """How a dataset becomes a stream. The defaults are the paper's protocol."""

    tasks: int = 5
    """Number of class groups. They arrive one after the other; the accuracy matrix has one column per group."""
    batch_size: int = 10
    """Samples that arrive together."""
    class_order: ClassOrder = "fixed"
    """``fixed``: ascending labels, as in the paper. ``seeded``: shuffled by the seed."""
    boundary: Boundary = field(default="clear", metadata=BOUNDARIES)
    """``clear``: one task after the other. ``blurry``: a share of each task's samples moves to other tasks.
    ``none``: classes fade in and out, without announced tasks. ``iid``: all classes mixed, for the upper bound."""
    blurry_share: float = field(default=0.1, metadata=BOUNDARIES)
    """With ``blurry``: the share of each task's samples that goes into a pool, which is dealt out to all tasks."""
    fade: float = field(default=0.5, metadata=BOUNDARIES)
    """With ``none``: how far a class spreads in time, in units of the time one class takes."""
    epochs: int = field(default=1, metadata=EPOCHS)
    """Passes over the data: one for online learning, or more with ``iid``."""
    drop_last: bool = True
    """Whether a task's incomplete last batch is dropped, as in the published protocol."""
    order: str = field(default="", metadata=BOUNDARIES)
    """A file that ``Stream.save_order`` wrote: the same samples arrive in the same batches, whatever the seed.
    ``tasks``, ``batch_size`` and ``boundary`` come from the file."""
    order_digest: str = field(default="", metadata=BOUNDARIES)
    """Digest of what that file holds, which stands for its path. It is filled in."""
    evaluate_every: int = field(default=0, metadata=EVALUATION)
    """Stream batches between two evaluations on the classes that have arrived, besides those after each task; 0: none.
    The accuracy after task ends and reviews is then seen beside that between them."""
    evaluate_on: int = field(default=0, metadata=EVALUATION)
    """With ``evaluate_every``: how many test images these evaluations take, equally many per class and the same in all
    runs; 0: all. Those after each task take all."""
    prequential: int = field(default=0, metadata=EVALUATION)
    """Each stream batch is classified before it is learned, and correct samples are counted in windows of so many
    batches; 0: not."""
    probe: bool = field(default=False, metadata=EVALUATION)
    """Whether a linear probe of the final features is trained, on all training samples of the stream."""

    def __post_init__(self) -> None:
        if self.order and not self.order_digest:
            self._read_order()
        for name, choices in (("boundary", get_args(Boundary)), ("class_order", get_args(ClassOrder))):
            if getattr(self, name) not in choices:
                raise OcilError(f"{name} = {getattr(self, name)!r} is not one of {', '.join(choices)}.")
        for name in ("tasks", "batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise OcilError(f"{name} = {getattr(self, name)} must be at least 1.")
        self._check_evaluations()
        if not 0 <= self.blurry_share <= 1:
            raise OcilError(f"blurry_share = {self.blurry_share} must lie between 0 and 1.")
        if not self.fade >= 0:
            raise OcilError(f"fade = {self.fade} must not be negative.")
        if self.boundary == "none" and not self.fade:
            raise OcilError("fade = 0 with boundary = 'none' lets no class fade: give more, or boundary = 'clear'.")
        if self.epochs > MAX_EPOCHS:
            raise OcilError(f"epochs = {self.epochs} must be at most {MAX_EPOCHS:,}.")
        if self.epochs > 1 and self.boundary != "iid":
            raise OcilError("epochs > 1 needs boundary = 'iid': an online stream is seen once.")

    @property
    def unmeasured(self) -> "StreamConfig":
        """The same stream, evaluated after each task alone."""
        usual: dict[str, Any] = {f.name: f.default for f in fields(self) if f.metadata == EVALUATION}
        return replace(self, **usual)

    def measured_as(self, other: "StreamConfig") -> "StreamConfig":
        """The same stream, with those evaluations of another one that this one does not ask for."""
        names = [f.name for f in fields(self) if f.metadata == EVALUATION]
        return replace(self, **{name: getattr(self, name) or getattr(other, name) for name in names})

    def _check_evaluations(self) -> None:
        for name in ("evaluate_every", "evaluate_on", "prequential"):
            if getattr(self, name) < 0:
                raise OcilError(f"{name} = {getattr(self, name)} must not be negative.")
        if self.evaluate_on and not self.evaluate_every:
            raise OcilError(
                f"evaluate_on = {self.evaluate_on} is about the evaluations of evaluate_every: give that too."
            )

    def _read_order(self) -> None:
        from ocil.streams.order import settings_in

        path = Path(self.order).expanduser().resolve()
        for name, value in (settings_in(path) | {"order": str(path)}).items():
            object.__setattr__(self, name, value)


def usual_tasks(name: str, classes: int | None = None) -> int:
    """The number of tasks in the literature for a dataset of the catalog, else five, or fewer if classes are fewer."""
    return CATALOG[name].tasks if name in CATALOG else min(DEFAULT_TASKS, classes or DEFAULT_TASKS)
