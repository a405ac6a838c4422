"""Experience replay (Chaudhry et al., On Tiny Episodic Memories in Continual Learning, ICML Workshop 2019)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ocil.learning import losses
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig
from ocil.methods.passes import Pass, replayed
from ocil.methods.recorded_losses import total
from ocil.networks import to_float


@dataclass(frozen=True)
class ERConfig(LearnerConfig):
    forward: Literal["separate", "joint"] = "separate"
    """``separate``: stream and memory pass one after the other and their mean losses add up (published numbers).
    ``joint``: one pass and one mean over both."""


class ER(Learner):
    """Step: cross-entropy of the stream batch plus cross-entropy of a random memory batch, each with its own batch
    statistics; one SGD step; then the stream batch enters the reservoir. Nothing is augmented.
    """

    Config = ERConfig
    config: ERConfig

    @classmethod
    def passes(cls, config: ERConfig, batch_size: int, classes: int) -> list[Pass]:
        if config.forward == "joint":
            return [Pass(batch_size + replayed(config))]
        return super().passes(config, batch_size, classes)

    def learn(self, x: Tensor, y: Tensor) -> None:
        replay = self.memory.retrieve(self.config.memory_batch)
        parts: dict[str, Tensor] = {}
        self.optimizer.zero_grad()
        if replay is not None and self.config.forward == "joint":
            loss = losses.cross_entropy(self.network(to_float(torch.cat([x, replay[0]]))), torch.cat([y, replay[1]]))
        elif replay is not None:
            stream, memory = self.network.outputs_of([to_float(x), to_float(replay[0])])
            parts["stream"] = losses.cross_entropy(stream.scores, y)
            parts["memory"] = losses.cross_entropy(memory.scores, replay[1])
            loss = total(parts)
        else:
            loss = losses.cross_entropy(self.network(to_float(x)), y)
        loss.backward()
        self.optimizer.step()
        self.memory.add(x, y)
        self.record_loss(loss, **parts)
