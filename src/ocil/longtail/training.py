"""The two stages. A step has static shapes and reads nothing back to the host: it can be captured as a CUDA graph."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from ocil import precision
from ocil.errors import OcilError
from ocil.learning import losses
from ocil.learning.sgd import SGD
from ocil.learning.views import RandomViews
from ocil.longtail import sampler
from ocil.longtail.centroids import disc_centroids
from ocil.longtail.config import LongTailConfig
from ocil.longtail.data import LongTailDeviceData
from ocil.longtail.dynamic import DynamicMu
from ocil.longtail.network import OpenNetwork, PlainNetwork, he_normal
from ocil.networks import evaluating, seeded, to_float
from ocil.rng import Rng, derive

EVALUATION_BATCH = {"cpu": 500, "cuda": 1000}  # images that are scored together; no result depends on it

N = TypeVar("N", bound=nn.Module)


class Stage:
    """A stage under way: network, optimisers, the order of the images in all epochs, and the best epoch so far.

    ``step`` trains on the next batch of the order; ``end_epoch`` validates. The best weights are kept on the device.
    """

    network: nn.Module

    def __init__(
        self,
        config: LongTailConfig,
        data: LongTailDeviceData,
        network: nn.Module,
        groups: Sequence[tuple[Sequence[nn.Parameter], float]],
        order: sampler.ImageOrder,
        decay_every: int,
        name: str,
    ) -> None:
        self.config, self.data, self.network, device = config, data, network, data.device
        self.epochs, used = order.shape
        self.steps = used // config.batch_size
        self.order = torch.from_numpy(order.reshape(-1)).to(device)
        self.within = torch.arange(config.batch_size, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.start_lrs, self.decay_every = [lr for _, lr in groups], decay_every
        self.lrs = [torch.tensor(lr, device=device) for lr in self.start_lrs]
        self.optimisers = [
            SGD(parameters, lr, config.momentum, config.weight_decay)
            for (parameters, _), lr in zip(groups, self.lrs, strict=True)
        ]
        self.augment = RandomViews(
            crop_scale=(config.crop_scale, 1.0),
            flip=config.flip,
            jitter=float(config.jitter > 0),
            hue=0.0,
            brightness=config.jitter,
            contrast=config.jitter,
            saturation=config.jitter,
        )
        self.rng = Rng(derive(config.seed, f"longtail-{name}"), device)
        self.views = self.rng["augment"]  # made before a graph is recorded, which must know all generators
        self.dynamic: DynamicMu | None = None
        self.total_loss = torch.zeros((), device=device)
        self.best = self.copies()
        self.best_accuracy = torch.full((), -1.0, device=device)
        self.best_epoch = torch.zeros((), dtype=torch.int64, device=device)
        self.epoch = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def step(self) -> None:
        """One batch: gather, augment, forward, loss, backward, step."""
        index = self.order[self.cursor * self.config.batch_size + self.within]
        x = self.augment(to_float(self.data.train_x[index]), self.views)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        loss = self.loss(x, self.data.train_y[index])
        loss.backward()
        for optimiser in self.optimisers:
            optimiser.step()
        self.total_loss += loss.detach()
        self.cursor += 1

    def begin_epoch(self) -> None:
        for lr, start in zip(self.lrs, self.start_lrs, strict=True):
            lr.fill_(start * self.config.decay ** (self.epoch // self.decay_every))

    @torch.no_grad()
    def end_epoch(self) -> Tensor:
        """Validate, and keep the weights if they are the best so far. Returns mean loss and accuracy on the device."""
        self.epoch += 1
        predicted, _ = predict(self.network, self.data.val_x)
        accuracy = (predicted == self.data.val_y).float().mean()
        better = accuracy > self.best_accuracy
        for name, value in self.tested().items():
            self.best[name].copy_(torch.where(better, value, self.best[name]))
        self.best_accuracy.copy_(torch.where(better, accuracy, self.best_accuracy))
        self.best_epoch.copy_(torch.where(better, self.epoch, self.best_epoch))
        mean = self.total_loss / self.steps
        self.total_loss.zero_()
        if self.dynamic is not None:
            self.dynamic.update()
        return torch.stack((mean, accuracy))

    def tested(self) -> dict[str, Tensor]:
        """The kept state of the best epoch: the network and, with the dynamic loss, the mu it was trained with."""
        found = self.network.state_dict()
        return found if self.dynamic is None else found | {"mu": self.dynamic.mu}

    def copies(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.tested().items()}

    def restore_best(self) -> None:
        self.network.load_state_dict({name: value for name, value in self.best.items() if name != "mu"})

    def state(self) -> dict[str, Tensor]:
        """Everything that the next epoch depends on."""
        found = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        found |= {f"best.{name}": value for name, value in self.best.items()}
        for number, optimiser in enumerate(self.optimisers):
            found |= {f"optimiser.{number}.{name}": value for name, value in optimiser.state().items()}
        found |= {f"rng.{name}": value for name, value in self.rng.state().items()}
        if self.dynamic is not None:
            found |= {f"dynamic.{name}": value for name, value in self.dynamic.state().items()}
        return found | {"best_accuracy": self.best_accuracy, "best_epoch": self.best_epoch}

    def load_state(self, state: Mapping[str, Tensor], epoch: int) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

        self.network.load_state_dict(part("network."))
        for name, value in part("best.").items():
            self.best[name].copy_(value)
        for number, optimiser in enumerate(self.optimisers):
            optimiser.load_state(part(f"optimiser.{number}."))
        self.rng.load_state(part("rng."))
        if self.dynamic is not None:
            self.dynamic.load_state(part("dynamic."))
        self.best_accuracy.copy_(state["best_accuracy"])
        self.best_epoch.copy_(state["best_epoch"])
        self.epoch = epoch
        self.cursor.fill_(epoch * self.steps)


class StageOne(Stage):
    """Cross-entropy, with every image once per epoch."""

    network: PlainNetwork

    def __init__(self, config: LongTailConfig, data: LongTailDeviceData) -> None:
        network = plain_network(config, data)
        standardise(network.backbone, data)
        order = sampler.shuffled(len(data.train_y), config.batch_size, config.epochs1, config.seed)
        groups = [(list(network.parameters()), config.lr1)]
        super().__init__(config, data, network, groups, order, config.decay_every1, "stage1")

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.cross_entropy(self.network(x), y)


class BalancedStage(StageOne):
    """Stage 1 with balanced softmax (Ren et al., NeurIPS 2020), which is logit adjustment (Menon et al., ICLR 2021).

    In training the logarithm of each class's share of the images is added to its logit. So the network learns logits
    for balanced classes, and the test adds nothing. All but the loss is as in stage 1, also the random numbers.
    """

    def __init__(self, config: LongTailConfig, data: LongTailDeviceData) -> None:
        super().__init__(config, data)
        counts = torch.from_numpy(data.split.counts).to(torch.float32)
        self.offset = (config.adjustment * torch.log(counts / counts.sum())).to(data.device)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return losses.cross_entropy(self.network(x) + self.offset, y)


class StageTwo(Stage):
    """The variant's classification loss plus the weighted disc-centroids loss, with classes drawn evenly."""

    network: OpenNetwork

    def __init__(self, config: LongTailConfig, data: LongTailDeviceData, plain: PlainNetwork) -> None:
        network = open_network(config, data)
        network.start_from(plain)
        network.centroids.data.copy_(class_means(network, data))
        order = sampler.class_aware(
            data.split.train_y, config.samples_per_class, config.batch_size, config.epochs2, config.seed
        )
        groups = [
            (network.feature_parameters(), config.lr2),
            (list(network.embedding.parameters()), config.lr_classifier),
            ([network.centroids], config.lr_centroids),
        ]
        super().__init__(config, data, network, groups, order, config.decay_every2, "stage2")
        if config.loss == "dynamic":
            self.dynamic = DynamicMu(len(data.split.classes), config.bins, config.share, data.device)
            self.best = self.copies()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        config, network = self.config, self.network
        features = network.features(x)
        logits = network.embedding(features, network.centroids)
        if self.dynamic is not None:
            self.dynamic.collect(logits, y)
        weights = (config.repel_weight, config.centroid_weight, config.weighted_centroids)
        near = disc_centroids(features, y, network.centroids, config.margin, *weights)
        return self.classification(logits, y) + near

    def classification(self, logits: Tensor, y: Tensor) -> Tensor:
        config = self.config
        if config.loss == "focal":
            return losses.focal(logits, y, config.alpha, config.gamma)
        if config.loss == "revised":
            return losses.revised_focal(logits, y, config.alpha, config.mu, config.sigma)
        if self.dynamic is not None:
            return losses.revised_focal(logits, y, config.alpha, self.dynamic.mu, config.sigma)
        return losses.cross_entropy(logits, y)


def plain_network(config: LongTailConfig, data: LongTailDeviceData) -> PlainNetwork:
    split = data.split
    size = (split.image_shape, len(split.classes), config.width, precision.on(data.device, config.precision))
    return _initial(lambda: PlainNetwork(*size), derive(config.seed, "longtail-plain"), data.device)


def open_network(config: LongTailConfig, data: LongTailDeviceData) -> OpenNetwork:
    split = data.split
    size = (split.image_shape, len(split.classes), config.width, precision.on(data.device, config.precision))
    seed = derive(config.seed, "longtail-open")
    return _initial(lambda: OpenNetwork(*size, config.cosine_scale, config.reach), seed, data.device)


def _initial(make: Callable[[], N], seed: int, device: torch.device) -> N:
    """A network with initial weights from a seed, on a device."""
    network = seeded(lambda: he_normal(make()), seed)
    return network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@torch.no_grad()
def standardise(backbone: nn.Module, data: LongTailDeviceData) -> None:
    """Set mean and deviation of each channel to those of the training images, computed on the host."""
    pixels = data.split.train_x
    total, squares, count = 0, 0, 0
    for first in range(0, len(pixels), 1000):  # sums of whole numbers are the same in every order
        part = pixels[first : first + 1000].astype("int64")
        total, squares = total + part.sum((0, 1, 2)), squares + (part**2).sum((0, 1, 2))
        count += part[..., 0].size
    mean = torch.as_tensor(total / count / 255)
    deviation = (torch.as_tensor(squares / count / 255**2) - mean**2).clamp_min(1e-6).sqrt()
    for name, value in (("mean", mean), ("deviation", deviation)):
        getattr(backbone, name).copy_(value[:, None, None])


@torch.no_grad()
def class_means(network: OpenNetwork, data: LongTailDeviceData) -> Tensor:
    """The initial centroids: the mean feature of each class's training images, which are not augmented."""
    classes = torch.arange(len(data.split.classes), device=data.device)
    total = torch.zeros_like(network.centroids)
    size = EVALUATION_BATCH.get(data.device.type, 500)
    with evaluating(network):
        for images, labels in zip(data.train_x.split(size), data.train_y.split(size), strict=True):
            total += (classes[:, None] == labels).float() @ network.features(to_float(images))
    return total / torch.bincount(data.train_y, minlength=len(classes))[:, None]


@torch.no_grad()
def predict(network: nn.Module, images: Tensor, batch: int | None = None) -> tuple[Tensor, Tensor]:
    """The most probable class of each image, and its probability. No image has an influence on another."""
    size = batch or EVALUATION_BATCH.get(images.device.type, 500)
    if not len(images):
        return torch.zeros(0, dtype=torch.int64, device=images.device), torch.zeros(0, device=images.device)
    with evaluating(network):
        scores = torch.cat([network(to_float(part)).float().softmax(1) for part in images.split(size)])
    confidence, predicted = scores.max(1)
    return predicted, confidence


def check(config: LongTailConfig, images: int) -> None:
    """Raise if there are too few training images for one batch."""
    if images < config.batch_size:
        raise OcilError(
            f"{config.dataset_label} has {images} training images, fewer than batch_size = {config.batch_size}: "
            "use a smaller one (--set batch_size=N), or a smaller imbalance."
        )
