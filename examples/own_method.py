"""A method of your own. Run it: python examples/own_method.py, or ocil run repeat --plugin examples/own_method.py"""

from dataclasses import dataclass

from torch import Tensor

import ocil
from ocil.methods.passes import Pass, replayed
from ocil.networks import to_float


@dataclass(frozen=True)
class RepeatConfig(ocil.LearnerConfig):
    repeats: int = 2
    """Memory batches learned per stream batch."""


class Repeat(ocil.Learner):
    """Step: cross-entropy of the stream batch, then of ``repeats`` memory batches, one SGD step each; reservoir."""

    Config = RepeatConfig
    config: RepeatConfig

    def learn(self, x: Tensor, y: Tensor) -> None:
        loss = self.descend(x, y)
        for _ in range(self.config.repeats):
            if (replay := self.memory.retrieve(self.config.memory_batch)) is not None:
                loss = self.descend(*replay)
        self.memory.add(x, y)
        self.record_loss(loss)

    @classmethod
    def passes(cls, config: RepeatConfig, batch_size: int, classes: int) -> list[Pass]:
        """What goes through the network in a step, for estimates of time and memory."""
        return [Pass(batch_size)] + config.repeats * [Pass(replayed(config))]

    def descend(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = ocil.losses.cross_entropy(self.network(to_float(x)), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


ocil.register(ocil.MethodInfo("repeat", Repeat, "replay of several batches per step", "-"))

if __name__ == "__main__":
    config = ocil.resolve("repeat", settings={"repeats": 3, "width": 4})
    print(f"accuracy {ocil.metrics.average_accuracy(ocil.run(config, 'runs').matrix):.2f}")
