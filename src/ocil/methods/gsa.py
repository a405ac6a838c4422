"""Gradient self-adaptation (Guo, Liu, Zhao, Dealing with Cross-Task Class Discrimination in Online Continual Learning,
CVPR 2023)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import networks
from ocil.learning import losses
from ocil.methods._seen_classes import SeesTaskClasses
from ocil.methods._standardised import Standardise, StandardisedConfig
from ocil.methods._tasks import StoredTasks, drawn_among
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.passes import ExtraState, Pass
from ocil.methods.recorded_losses import total
from ocil.networks import image_shape, to_float

TINY = 1e-12  # the least sum that is divided by


@dataclass(frozen=True)
class GSAConfig(StandardisedConfig):
    memory_batch: int = 64
    """Images of the balanced set."""
    optimizer: str = "adam(betas=(0.9, 0.99))"
    lr: float = 0.001
    weight_decay: float = 0.0001

    current_batch: int = 22
    """Memory images of the current task in a step."""
    warm_up: int = 5
    """Batches at the beginning of a task in which all classes weigh the same."""

    crop: float = 0.6
    gray: float = 0.2

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"current_batch": 1, "warm_up": 0}


class GSA(SeesTaskClasses):
    """Step: the stream batch and memory images of its task, mirrored and augmented: cross-entropy among the classes of
    the task. Then a set that is balanced between these and memory images of earlier tasks, mirrored: twice the
    cross-entropy over all classes seen, weighed by how much each class has been pushed up and down so far. One step of
    Adam; the raw stream batch enters the reservoir.
    """

    Config = GSAConfig
    config: GSAConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mini": {"memory_batch": 20, "current_batch": 10}  # ours: the demo has to run on a slow laptop
    }
    class_rows = (*Learner.class_rows, "task_classes", "seen_classes", "pulled", "pushed")

    @classmethod
    def why_not_vectors(cls, config: GSAConfig) -> str | None:
        return "it mirrors and crops images"

    def __init__(self, config: GSAConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.random_views = config.random_views()
        self.standard = Standardise(
            image_shape(problem.input_shape)[2], self.device, config.normalise and not self.network.normalises
        )
        self.tasks = StoredTasks(self.memory)
        self.task_classes = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.seen_classes = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.pulled: Tensor = nn.Buffer(torch.zeros(problem.classes, device=self.device))
        """How much images of each class have pulled its logit up so far."""
        self.pushed: Tensor = nn.Buffer(torch.zeros(problem.classes, device=self.device))
        """How much images of other classes have pushed it down."""
        self.batches_of_task: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=self.device))

    @classmethod
    def passes(cls, config: GSAConfig, batch_size: int, classes: int) -> list[Pass]:
        """An upper bound: in some tasks the balanced set is an image smaller."""
        return [Pass(2 * (batch_size + config.current_batch)), Pass(2 * config.memory_batch)]

    @classmethod
    def extra_state(cls, config: GSAConfig, problem: Problem, network: networks.Network) -> ExtraState:
        return ExtraState(8 * (config.memory + 1) + 8 * problem.classes)

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.task_classes.index_fill_(0, y, True)
        self.seen_classes.index_fill_(0, y, True)
        current = self.tasks.are(self.tasks_ended)
        stored = drawn_among(self.memory, current, self.config.current_batch, x, y)
        new_x, new_y = torch.cat([x, stored[0]]), torch.cat([y, stored[1]])
        old, new = self.balance(len(new_y))
        balanced_x, balanced_y = new_x[:new], new_y[:new]
        if old:
            old_x, old_y = drawn_among(self.memory, ~current, old, x, y)
            balanced_x, balanced_y = torch.cat([old_x, balanced_x]), torch.cat([old_y, balanced_y])

        logits = self.network(self.standard(self.random_views(mirrored(new_x), self.rng["augment"])))
        among = logits.masked_fill(~self.task_classes, networks.NOT_MET)
        parts = {"task": losses.cross_entropy(among, new_y.repeat(2))}
        logits = self.network(self.standard(mirrored(balanced_x)))
        log_p = F.log_softmax(logits.masked_fill(~self.seen_classes, networks.NOT_MET), dim=1)
        labels = balanced_y.repeat(2)
        weight = self.weights(log_p.detach().exp(), labels)
        parts["balanced"] = -2 * (weight[labels] * log_p.gather(1, labels[:, None]).squeeze(1)).mean()
        self.optimizer.zero_grad()
        loss = total(parts)
        loss.backward()
        self.optimizer.step()
        self.tasks.keep(self.memory.add(x, y), self.tasks_ended)
        self.batches_of_task += 1
        self.record_loss(loss, **parts)

    def balance(self, at_hand: int) -> tuple[int, int]:
        """How many images of earlier tasks and of the current one make the balanced set, in the proportion of their
        classes at the end of this task, if it has as many classes as each earlier task had.
        """
        size, tasks = self.config.memory_batch, self.task_number
        return size * tasks // (tasks + 1), max(1, min(size // (tasks + 1), at_hand))

    @torch.no_grad()
    def weights(self, p: Tensor, labels: Tensor) -> Tensor:
        """The weight of each class ``[C]``, after the probabilities ``[N, C]`` of this step have been counted."""
        pulled, pushed = gradient_sums(p, labels)
        self.pulled += pulled
        self.pushed += pushed
        adapted = 2 * torch.sigmoid(self.pulled / self.pushed.clamp(min=TINY) - 1)
        return torch.where(self.batches_of_task < self.config.warm_up, 1.0, adapted)

    def inputs(self, x: Tensor) -> Tensor:
        return self.standard(to_float(x))

    def shapes_are_static(self) -> bool:
        return True  # what is not stored yet is made up for by what is

    def step_variant(self) -> int:
        return self.task_number

    @torch.no_grad()
    def task_ended(self) -> None:
        super().task_ended()
        self.task_classes.zero_()
        self.batches_of_task.zero_()

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        views = self.standard(self.random_views(to_float(x), self.rng["augment"]))
        return losses.cross_entropy(self.network(views), y)

    def predictable(self) -> Tensor:
        """A class that was not seen yet is not predicted. A head that grows knows this."""
        return self.seen_classes if self.met is None else self.met


def mirrored(x: Tensor) -> Tensor:
    """Stored images ``[B, H, W, C]`` as the network takes them, and behind them the same ones mirrored."""
    return to_float(torch.cat([x, x.flip(2)]))


def gradient_sums(p: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """By how much the cross-entropy of a batch pulls each class's logit up, and by how much it pushes it down, ``[C]``.

    The gradient of an image is ``p - 1`` on the logit of its own class and ``p`` on the others.
    """
    own = labels[:, None] == torch.arange(p.shape[1], device=p.device)
    return torch.where(own, 1 - p, 0).sum(0), torch.where(own, 0, p).sum(0)
