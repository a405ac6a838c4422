"""Multi-level online sequential experts (Yan, Wang, Zhong, Zhang, Wang, Orchestrate Latent Expertise: Advancing Online
Continual Learning with Multi-Level Supervision and Reverse Self-Distillation, CVPR 2024)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import networks
from ocil.errors import OcilError
from ocil.learning import losses, optimizers
from ocil.methods._class_means import class_means
from ocil.methods._distances import nearness
from ocil.methods._experts import Experts
from ocil.methods._seen_classes import SeesTaskClasses
from ocil.methods._standardised import Standardise, StandardisedConfig
from ocil.methods._tasks import StoredTasks, drawn_among
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.gsa import mirrored
from ocil.methods.passes import ExtraState, Pass
from ocil.methods.recorded_losses import total
from ocil.methods.scr import supervised_contrastive
from ocil.networks import GrowingHead, image_shape, to_float
from ocil.networks.base import autocast
from ocil.rng import derive

VIEWS = 4  # of each image: itself, mirrored, and an augmented view of both


@dataclass(frozen=True)
class MOSEConfig(StandardisedConfig):
    memory_batch: int = 64
    """Images of the balanced set; in the first task, memory images in a step."""
    optimizer: str = "adam"
    lr: float = 0.001
    weight_decay: float = 0.0001

    current_batch: int = 22
    """Memory images of the current task in a step, from the second task on."""
    per_class: int = 7
    """Memory images of earlier tasks for each class seen, while that is less than ``memory_batch``."""
    temperature: float = 0.07
    """Divides the similarities of the contrast."""
    projection: int = 128
    """Size of the vectors that are contrasted."""
    distillation: float = 1.0
    """Weight of the distance between the last expert's features and those of the others."""
    readout: Literal["mean", "last"] = "mean"
    """Whose class means classify: those of all experts (MOSE-MOE in the paper), or of the last one."""

    minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {
        "current_batch": 1,
        "per_class": 1,
        "temperature": 1e-6,
        "projection": 1,
        "distillation": 0,
    }


class MOSE(SeesTaskClasses):
    """Step: the stream batch with memory images of its task ("new"), and some of it with memory images of earlier tasks
    in the proportion of their classes ("balanced"), pass in four views each. Every stage of the network has an expert,
    and every expert a contrast of all images, twice the cross-entropy of the balanced set, and cross-entropy of the new
    set among the classes of its task; the last expert also imitates the others. One step of Adam; the raw stream batch
    enters the reservoir. The first batch is only stored. The nearest class means of the experts classify.
    """

    Config = MOSEConfig
    config: MOSEConfig
    dataset_settings: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mini": {"memory_batch": 10, "current_batch": 5}  # ours: the demo has to run on a slow laptop
    }
    class_rows = (*Learner.class_rows, "task_classes", "seen_classes", "old_classes")
    scores_are_logits = False
    no_average = "its experts are not part of the network that is averaged"

    @classmethod
    def why_not_vectors(cls, config: MOSEConfig) -> str | None:
        return "it learns from the maps of a network for images"

    def __init__(self, config: MOSEConfig, problem: Problem, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        channels = self.network.stage_channels
        self.random_views = config.random_views()
        self.standard = Standardise(
            image_shape(problem.input_shape)[2], self.device, config.normalise and not self.network.normalises
        )
        self.size = channels[-1]

        def head(number: int) -> nn.Module:
            own = derive(seed, f"expert {number}")
            if config.growing:
                return GrowingHead(self.size, problem.classes, own)
            return networks.seeded(lambda: nn.Linear(self.size, problem.classes), own)

        def projections() -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(self.size, config.projection) for _ in channels)

        self.experts = networks.seeded(lambda: Experts(channels), derive(seed, "experts")).to(self.device)
        self.heads = nn.ModuleList(head(number) for number in range(len(channels) - 1)).to(self.device)
        if self.network.feature_size != self.size:  # the last expert averages all places of its map
            self.network.head = head(len(channels) - 1).to(self.device)
        self.projections = networks.seeded(projections, derive(seed, "projections")).to(self.device)
        adapter = networks.seeded(lambda: nn.Linear(self.size, self.size), derive(seed, "adapter"))
        self.adapter = adapter.to(self.device)
        self.optimizer = self.make_optimizer()
        self.tasks = StoredTasks(self.memory)
        self.task_classes = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.seen_classes = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.old_classes: Tensor = nn.Buffer(torch.zeros(problem.classes, dtype=torch.bool, device=self.device))
        self.old_count = 0  # classes seen in earlier tasks, on the host

    @classmethod
    def check_network(cls, config: MOSEConfig, network: networks.Network, input_shape: networks.InputShape) -> None:
        if len(network.stage_channels) < 2:
            raise OcilError(f"mose needs a network that shows its stages, as resnet18 does, not {config.network}.")

    @classmethod
    def passes(cls, config: MOSEConfig, batch_size: int, classes: int) -> list[Pass]:
        """An upper bound: the balanced set grows with the classes. The side branches come on top of the network."""
        return [Pass(VIEWS * (batch_size + config.current_batch + config.memory_batch))]

    @classmethod
    def review_passes(cls, config: MOSEConfig, classes: int) -> list[Pass]:
        return [Pass(VIEWS * config.review_batch)]

    @classmethod
    def extra_state(cls, config: MOSEConfig, problem: Problem, network: networks.Network) -> ExtraState:
        """Experts, heads, projections and the map, each with its gradient and what the optimiser keeps."""
        channels = network.stage_channels
        size, experts = channels[-1], Experts(channels)
        weights = sum(weight.numel() for weight in experts.parameters()) + (size + 1) * size
        weights += (size + 1) * ((len(channels) - 1) * problem.classes + len(channels) * config.projection)
        statistics = sum(buffer.numel() for buffer in experts.buffers())
        copies = 2 + optimizers.numbers_kept(config.optimizer)
        return ExtraState(4 * (copies * weights + statistics) + 8 * (config.memory + 1))

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.task_classes.index_fill_(0, y, True)
        self.seen_classes.index_fill_(0, y, True)
        loss = torch.zeros((), device=self.device)
        parts: dict[str, Tensor] = {}
        if self.memory.draw(1) is not None:  # none only before anything is stored
            current, balanced = self.tasks.are(self.tasks_ended), None
            new_x, new_y = drawn_among(self.memory, current, self.new_images(), x, y)
            new = torch.cat([x, new_x]), torch.cat([y, new_y])
            if self.task_number:
                stream, others = self.balance(len(y))
                old_x, old_y = drawn_among(self.memory, ~current, others, x, y)
                balanced = torch.cat([x[:stream], old_x]), torch.cat([y[:stream], old_y])
            parts = self.parts(new, balanced)
            self.optimizer.zero_grad()
            loss = total(parts)
            loss.backward()
            self.optimizer.step()
        self.tasks.keep(self.memory.add(x, y), self.tasks_ended)
        self.record_loss(loss, **parts)

    def new_images(self) -> int:
        return self.config.current_batch if self.task_number else self.config.memory_batch

    def balance(self, batch: int) -> tuple[int, int]:
        """How many stream images and how many of earlier tasks make the balanced set, in the proportion of the classes
        that will have been seen by the end of this task, if it has as many as earlier tasks had.
        """
        size, tasks = self.config.memory_batch, self.task_number
        expected = max(1, round(self.old_count * (tasks + 1) / tasks))
        stream = min(size // (tasks + 1), batch)
        return stream, max(1, min(size - stream, self.config.per_class * expected))

    def parts(self, new: tuple[Tensor, Tensor], balanced: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
        """The parts of the loss, each summed over the experts."""
        sets = [self.four_views(*each) for each in (new, balanced) if each is not None]
        labels, border = torch.cat([y for _, y in sets]), len(sets[0][1])
        features = self.features(torch.cat([images for images, _ in sets]))
        contrast, classes, imitation = (torch.zeros((), device=self.device) for _ in range(3))
        adapted = F.normalize(self.adapter(features[-1]))
        for number, (h, projection) in enumerate(zip(features, self.projections, strict=True)):
            vectors = F.normalize(projection(h))[:, None]
            contrast = contrast + supervised_contrastive(vectors, labels, self.config.temperature)
            head = self.heads[number] if number < len(self.heads) else self.network.head
            logits = head(h)
            if balanced is None:
                classes = classes + losses.cross_entropy(logits, labels)
            else:
                among = logits[:border].masked_fill(~self.task_classes, networks.NOT_MET)
                classes = classes + losses.cross_entropy(logits[border:], labels[border:], 2.0)
                classes = classes + losses.cross_entropy(among, labels[:border])
            if number < len(self.heads):
                imitation = imitation + torch.linalg.vector_norm(adapted - F.normalize(h.detach()))
        distillation = self.config.distillation * imitation
        return {"contrast": contrast, "cross_entropy": classes, "distillation": distillation}

    def four_views(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        raw = mirrored(x)
        return torch.cat([raw, self.random_views(raw, self.rng["augment"])]), y.repeat(VIEWS)

    def features(self, images: Tensor) -> list[Tensor]:
        """Features ``[B, size]`` of each expert."""
        with autocast(images, self.network.precision):
            maps = self.network.stage_maps(self.standard(images))
            found: list[Tensor] = self.experts(maps)
        return found

    def inputs(self, x: Tensor) -> Tensor:
        return self.standard(to_float(x))

    def shapes_are_static(self) -> bool:
        return self.memory.holds_more_than(1)

    def step_variant(self) -> int:
        return self.task_number

    @torch.no_grad()
    def task_ended(self) -> None:
        super().task_ended()
        self.task_classes.zero_()
        self.old_classes.copy_(self.seen_classes)
        self.old_count = int(self.old_classes.sum())

    def load_state(self, state: dict[str, Tensor], generators: bool = True) -> None:
        super().load_state(state, generators)
        self.old_count = int(self.old_classes.sum())

    def review_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return total(self.parts((x, y), None))

    def scorer(self) -> Callable[[Tensor], Tensor]:
        """Negative distances between the features of all experts, one behind the other, and their class means: the root
        of the sum of the experts' squared distances. Minus infinity for a class without a stored image.
        """
        experts = len(self.projections) if self.config.readout == "mean" else 1
        means, present = class_means(self.memory, self.problem.classes, experts * self.size, self.encode)
        means = _unit_parts(means, experts)

        @torch.no_grad()
        def scores(x: Tensor) -> Tensor:
            return self.masked(nearness(self.encode(x), means, present))

        return scores

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """The unit vectors of the experts that classify, one behind the other, by running statistics."""
        with networks.evaluating(self.network), networks.evaluating(self.experts):
            features = self.features(to_float(x))
        used = features if self.config.readout == "mean" else features[-1:]
        return torch.cat([F.normalize(h) for h in used], dim=1)


def _unit_parts(rows: Tensor, parts: int) -> Tensor:
    """Each row ``[C, parts · size]`` with every part scaled to length 1."""
    return F.normalize(rows.unflatten(1, (parts, -1)), dim=2).flatten(1)
