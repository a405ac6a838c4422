"""Fine-tuning without a memory: the lower bound, and with an iid stream of many epochs the upper bound."""

from dataclasses import dataclass

from torch import Tensor

from ocil.learning import losses
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig
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
        self.record_loss(loss)
