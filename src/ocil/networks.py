"""The network of the paper: a reduced ResNet-18, and its head."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import fused
from ocil.convolution import Conv2d
from ocil.precision import Precision
from ocil.rng import derive

ImageShape = tuple[int, int, int]  # height, width, channels

NOT_MET = -1e4  # the score of a class not met: exp of it is 0 in any precision, yet 0 times it is 0


def smallest_batch(image_shape: ImageShape) -> int:
    """One image has batch statistics only if the last map has more than one pixel."""
    return 1 if max(image_shape[:2]) > 8 else 2


def to_float(images: Tensor) -> Tensor:
    """uint8 ``[N, H, W, C]`` as kept, to float ``[N, C, H, W]`` in [0, 1], channels-last: nothing moves."""
    return images.permute(0, 3, 1, 2).float() / 255


class Block(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(Conv2d(in_channels, channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


class ReducedResNet18(nn.Module):
    """ResNet-18 for small images with a third of the width: 3x3 stem, stages of 20/40/80/160 channels, no max-pool.

    ``features`` averages the last map over 4x4 windows (over the whole map where it is smaller) and flattens it:
    160 numbers for a 32x32 image, 640 for 84x84. ``head`` gives one logit for each class.
    """

    def __init__(self, image_shape: ImageShape, classes: int, width: int = 20, precision: Precision = "tf32") -> None:
        super().__init__()
        self.precision = precision
        height, width_px, channels = image_shape
        self.conv1 = Conv2d(channels, width, 3)
        self.bn1 = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        in_channels = width
        for factor, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
            blocks += [Block(in_channels, factor * width, stride), Block(factor * width, factor * width, 1)]
            in_channels = factor * width
        self.blocks = nn.Sequential(*blocks)
        last_map = (-(-height // 8), -(-width_px // 8))
        self.window = (min(4, last_map[0]), min(4, last_map[1]))
        self.feature_size = in_channels * (last_map[0] // self.window[0]) * (last_map[1] // self.window[1])
        self.head: nn.Module = nn.Linear(self.feature_size, classes)

    def features(self, x: Tensor) -> Tensor:
        if fused.usable(self, x):
            return fused.features(self, x, into_grad=True)
        return self.plain_features(x)

    def plain_features(self, x: Tensor) -> Tensor:
        """The same by PyTorch's own kernels, whatever else there is."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            y = F.relu(self.bn1(self.conv1(x)), inplace=True)
            return F.avg_pool2d(self.blocks(y), self.window).flatten(1).float()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


@contextmanager
def bn_momentum(network: nn.Module, momentum: float) -> Iterator[None]:
    """Let running statistics move by ``momentum`` inside the block."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = momentum
    try:
        yield
    finally:
        for norm, value in zip(norms, before, strict=True):
            norm.momentum = value


class Growing(nn.Module):
    """Tensors with one row a class, named in ``class_rows``, for classes that are not known in advance.

    A row is 0 until its class is met. Then it is drawn from the seed and the class's number alone, so it does not
    depend on when that was, on what came before, or on how the room for it grew.
    """

    class_rows: ClassVar[tuple[str, ...]] = ("met", "weight")
    met: Tensor

    def start(self, classes: int, seed: int, bound: float) -> None:
        """Rows are drawn evenly from ``-bound`` to ``bound``."""
        self.seed, self.bound = seed, bound
        self.register_buffer("met", torch.zeros(classes, dtype=torch.bool))

    @torch.no_grad()
    def meet(self, classes: Iterable[int]) -> None:
        for number in classes:
            generator = torch.Generator().manual_seed(derive(self.seed, str(number)))
            for name in self.class_rows:
                row: Tensor = getattr(self, name)[number]
                if name == "met":
                    row.fill_(True)
                else:
                    row.copy_(torch.empty(row.shape).uniform_(-self.bound, self.bound, generator=generator))


class GrowingHead(Growing, nn.Linear):
    """A linear layer, a row a class, with PyTorch's default initialisation of a row. A class not met scores -10,000,
    without a gradient: it has no part in a softmax.
    """

    class_rows = ("met", "weight", "bias")

    def __init__(self, features: int, classes: int, seed: int) -> None:
        super().__init__(features, classes)
        self.start(classes, seed, features**-0.5)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).masked_fill(~self.met, NOT_MET)


def meet(module: nn.Module, classes: Iterable[int]) -> None:
    """Draw the rows of these classes in every part that has some."""
    classes = list(classes)
    for part in module.modules():
        if isinstance(part, Growing):
            part.meet(classes)


def grow(module: nn.Module, classes: int) -> None:
    """Room for ``classes`` classes in all that ``module`` or a part of it names in ``class_rows``; new rows are 0."""
    for part in module.modules():
        for name in getattr(part, "class_rows", ()):
            setattr(part, name, with_rows(getattr(part, name), classes))
        if isinstance(part, GrowingHead):
            part.out_features = classes


def with_rows(tensor: Tensor, count: int) -> Tensor:
    """The first ``count`` rows; zeros where there are fewer. The tensor itself if it has as many."""
    if len(tensor) == count:
        return tensor
    rows = tensor.new_zeros((count, *tensor.shape[1:]))
    rows[: len(tensor)] = tensor.detach()[:count]
    return nn.Parameter(rows, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else rows


def build(
    image_shape: ImageShape,
    classes: int,
    width: int,
    seed: int,
    device: torch.device,
    precision: Precision = "tf32",
    growing: bool = False,
) -> ReducedResNet18:
    """PyTorch's default initialisation, drawn on the CPU from ``seed`` alone: the same start on every device."""
    network = seeded(lambda: ReducedResNet18(image_shape, classes, width, precision), seed)
    if growing:
        network.head = GrowingHead(network.feature_size, classes, derive(seed, "head"))
    return network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


M = TypeVar("M", bound=nn.Module)


def seeded(make: Callable[[], M], seed: int) -> M:
    """A module whose initial weights come from ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Batch normalisation by running statistics inside the block."""
    mode = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(mode)


@contextmanager
def virtual_step(module: nn.Module, lr: float) -> Iterator[None]:
    """Inside the block a module is as one plain SGD step along its present gradients would leave it.

    Afterwards its weights and running statistics are what they were, bit for bit.
    """
    with torch.no_grad():
        weights: list[Tensor] = [parameter for parameter in module.parameters() if parameter.grad is not None]
        slopes = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        touched = [*weights, *module.buffers()]
        before = [value.clone() for value in touched]
        torch._foreach_add_(weights, slopes, alpha=-lr)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(touched, before)
