"""Small networks as a user would write them, named by ``module:tests.networks_to_try:NAME``."""

import threading
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODULE = "module:tests.networks_to_try:"
TINY = f"{MODULE}Tiny"  # for tests of what does not depend on the network: a quarter of a narrow ResNet's time


class Tiny(nn.Module):
    """A few layers, some of which GSS has no rule of its own for: a bias, groups, a parameter beside the layers."""

    class Inner(nn.Identity):
        """A module inside another name."""

    def __init__(self, input_shape: tuple[int, ...], channels: int = 8) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.stem = nn.Sequential(nn.Conv2d(input_shape[2], channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.ReLU())
        self.mix = nn.Sequential(nn.Conv2d(channels, 2 * channels, 3, 2, 1, groups=2), nn.BatchNorm2d(2 * channels))
        self.stage_channels = (channels, 2 * channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.stage_maps(x)[-1].mean((2, 3))

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        first = self.stem(x + self.shift)
        return [first, F.relu(self.mix(first))]


class Normalised(Tiny):
    """With the record of the inputs that it was trained with."""

    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)


def smooth(input_shape: tuple[int, ...], channels: int = 6) -> nn.Module:
    """Nothing in it enlarges rounding errors: no step of a ReLU, no division by a small standard deviation."""
    first, second = nn.Conv2d(input_shape[2], channels, 3, 2, 1), nn.Conv2d(channels, channels, 3, 2, 1)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Flatten())


class Recorded(nn.Module):
    """No layer, only the record of its inputs: what comes out is what went in."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        size: tuple[int, int] | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        interpolation: str = "bilinear",
    ) -> None:
        super().__init__()
        self.input_size, self.mean, self.std, self.interpolation = size, mean, std, interpolation

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Residual(nn.Module):
    """For vectors: a layer that is used twice, and one without a bias."""

    def __init__(self, input_shape: tuple[int, ...], hidden: int = 12) -> None:
        super().__init__()
        self.inwards = nn.Linear(input_shape[0], hidden, bias=False)
        self.again = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inwards(x)
        return F.relu(x + self.again(F.relu(self.again(F.relu(x)))))


class Tokens(nn.Module):
    """A linear layer over the pixels of an image, and features that are maps."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.embed = nn.Linear(input_shape[2], 6)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.embed(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def scripted(input_shape: tuple[int, ...]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch advises against TorchScript
        body = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1], 4)))
    return nn.Sequential(body, nn.ReLU())


def dropping(input_shape: tuple[int, ...], share: float = 0.5) -> nn.Module:
    return nn.Sequential(Tiny(input_shape), nn.Dropout(share))


class Noisy(Tiny):
    """Draws random numbers while it trains, and no layer shows it."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Centred(Tiny):
    """Subtracts a running mean that no state has, and a table that never changes, like its mask."""

    def __init__(self, input_shape: tuple[int, ...], saved: bool = False) -> None:
        super().__init__(input_shape)
        self.register_buffer("centre", torch.zeros(()), persistent=saved)
        self.register_buffer("table", torch.ones(()), persistent=False)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        centre = self.get_buffer("centre")
        if self.training:
            centre.lerp_(x.detach().mean(), 0.1)
        return super().forward(x) - centre - self.get_buffer("table")


class Odd(Tiny):
    """Cannot be copied, and its tables, which never change, cannot be compared by ``torch.equal``."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__(input_shape)
        self.lock = threading.Lock()
        self.register_buffer("unknown", torch.tensor([0.0, torch.nan]), persistent=False)
        self.register_buffer("neighbours", torch.eye(3).to_sparse(), persistent=False)


def not_a_module(input_shape: tuple[int, ...]) -> int:
    return 3


def gives_a_list(input_shape: tuple[int, ...]) -> nn.Module:
    return nn.Identity() if input_shape == () else _List()


class _List(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x]


def gives_the_first(input_shape: tuple[int, ...]) -> nn.Module:
    return _First()


class _First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:1].flatten(1)


def raises(input_shape: tuple[int, ...]) -> nn.Module:
    raise KeyError("nothing of the kind")
