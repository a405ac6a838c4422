"""The losses of a learner's last steps, for progress displays and loggers."""

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ocil.methods.base import Learner

Phase = Literal["stream", "review", "rehearsal"]
"""What a step learns from: a stream batch, the memory in a review, or the memory at a task's end (rehearsal)."""


class RecordedLosses:
    """The last loss of each phase and the parts that it is the sum of, kept on the device until they are read.

    Losses with the same parts share a row that is allocated once and never replaced, because captured steps write to
    it too. No later step depends on these numbers, so they are not part of a learner's state.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, ...], Tensor] = {}

    @torch.no_grad()
    def put(self, phase: Phase, loss: Tensor, parts: Mapping[str, Tensor]) -> None:
        names = (phase, *(f"{phase}/{part.replace('_', ' ')}" for part in parts))
        if names not in self.rows:
            self.rows[names] = torch.empty(len(names), device=loss.device)
        torch.stack([loss, *parts.values()], out=self.rows[names])

    def take(self) -> dict[str, float]:
        """The values put since the last call, by name: ``stream`` is a loss, ``stream/memory`` a part of it.

        Waits for the device.
        """
        if not self.rows:
            return {}
        names = [name for row in self.rows for name in row]
        values = torch.cat(list(self.rows.values())).tolist()
        for row in self.rows.values():
            row.fill_(math.nan)
        return {name: value for name, value in zip(names, values, strict=True) if not math.isnan(value)}


def warning_of_no_loss(learner: "Learner") -> str:
    """What to tell the user about a learner that has trained and recorded no loss, in one line; empty if it has, or if
    it trains no network. A loss of a review does not count: the review that all methods inherit records it.
    """
    phases = {phase for phase, *_ in learner.recorded_losses.rows}
    if not learner.trains_network or phases - {"review"}:
        return ""
    return (
        f"{type(learner).__name__} records no loss, so none is shown, and one that is not finite does not stop it: "
        "end `learn` with self.record_loss(loss). If it trains no network, say so by trains_network = False."
    )


def total(parts: Mapping[str, Tensor]) -> Tensor:
    """The sum of a loss's parts, added in their order."""
    return added(parts.values())


def added(values: Iterable[Tensor]) -> Tensor:
    """The sum of one value or more, added in their order."""
    return reduce(add, values)
