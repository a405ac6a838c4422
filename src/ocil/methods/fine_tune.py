"""Fine-tuning: no memory, no defence. The lower bound, and with an iid stream of many epochs the upper one."""

from dataclasses import dataclass

from torch import Tensor

from ocil import losses
from ocil.methods.base import Learner, LearnerConfig
from ocil.networks import to_float


@dataclass(frozen=True)
class FineTuneConfig(LearnerConfig):
    pass


class FineTune(Learner):
    """Step: cross-entropy of the stream batch, backward, SGD."""

    Config = FineTuneConfig

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = losses.cross_entropy(self.network(to_float(x)), y)
        loss.backward()
        self.optimizer.step()
        self.watch(loss)
