"""DER++ (Buzzega et al., NeurIPS 2020) as a plugin: a method from outside, in one file. (The method `derpp` of
the package is the same with augmentation.)

Run it: ocil run der-pp --plugin examples/der_plus_plus.py, or python examples/der_plus_plus.py
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import ocil
from ocil.learning.memory import Memory
from ocil.methods.passes import Pass, replayed
from ocil.methods.recorded_losses import total
from ocil.networks import to_float


@dataclass(frozen=True)
class DERConfig(ocil.LearnerConfig):
    alpha: float = 0.1
    """Weight of the squared difference to the logits that memory images had when they were stored."""
    beta: float = 0.5
    """Weight of the cross-entropy of a second memory batch."""

    minimum: ClassVar[dict[str, float]] = ocil.LearnerConfig.minimum | {"alpha": 0, "beta": 0}


class DERPlusPlus(ocil.Learner):
    """Step: cross-entropy of the stream batch, ``alpha`` times the mean squared difference of a memory batch's logits
    to its stored ones, ``beta`` times the cross-entropy of another memory batch; one SGD step; then the stream batch
    enters the reservoir with its logits.
    """

    Config = DERConfig
    config: DERConfig
    memory: "LogitMemory"

    def __init__(self, config: DERConfig, problem: Any, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.memory = LogitMemory(config.memory, problem.input_shape, self.rng["memory"], problem.dtype)
        self.memory.start(problem.classes)

    @classmethod
    def passes(cls, config: DERConfig, batch_size: int, classes: int) -> list[Pass]:
        return [Pass(batch_size), Pass(replayed(config)), Pass(replayed(config))]

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        logits = self.network(to_float(x))
        parts = {"stream": self.descend(ocil.losses.cross_entropy(logits, y))}
        if (slots := self.memory.draw(self.config.memory_batch)) is not None:
            now = self.network(to_float(self.memory.images[slots]))
            parts["logits"] = self.descend(self.config.alpha * self.memory.difference(now, slots))
            again, labels = self.memory.retrieve(self.config.memory_batch) or (x, y)
            loss = ocil.losses.cross_entropy(self.network(to_float(again)), labels)
            parts["memory"] = self.descend(self.config.beta * loss)
        self.optimizer.step()
        self.memory.keep(self.memory.add(x, y), logits.detach(), self.met)
        self.record_loss(total(parts), **parts)

    def descend(self, loss: Tensor) -> Tensor:
        loss.backward()
        return loss.detach()


class LogitMemory(Memory):
    """A memory that keeps the logits of each image: a row per class, so that they grow with the classes."""

    class_rows = ("logits", "known")

    def start(self, classes: int) -> None:
        shape, device = (classes, self.size + 1), self.labels.device
        self.logits: Tensor = nn.Buffer(torch.zeros(shape, device=device))
        self.known: Tensor = nn.Buffer(torch.zeros(shape, dtype=torch.bool, device=device))
        """Which classes had been met when the image was stored: the others had no logit."""

    def keep(self, slots: Tensor, logits: Tensor, met: Tensor | None) -> None:
        """Store the logits of images that ``add`` has put into these slots."""
        known = torch.ones_like(logits, dtype=torch.bool) if met is None else met.expand(logits.shape)
        for stored, new in ((self.logits, logits), (self.known, known)):
            stored.index_copy_(1, slots, new.T.contiguous())
            stored[:, self.size].zero_()  # which of several images ends up in the spare place is undefined

    def difference(self, logits: Tensor, slots: Tensor) -> Tensor:
        """The mean squared difference to the stored logits."""
        known = self.known[:, slots].T
        squares = (logits - self.logits[:, slots].T).square()
        return torch.where(known, squares, 0).sum() / known.sum()


about = "replay that also keeps the logits that images had when they were stored"
ocil.register(ocil.MethodInfo("der-pp", DERPlusPlus, about, "Buzzega et al., NeurIPS 2020"))

if __name__ == "__main__":
    ocil.testing.check_method("der-pp")
    result = ocil.run(ocil.resolve("der-pp", settings={"width": 4}), "runs")
    print(f"accuracy {ocil.metrics.average_accuracy(result.matrix):.2f}")
