"""The reduced ResNet-18 for predictions on ARM processors, of weights that do not change meanwhile.

Two things make it faster than the modules themselves, which compute all but the same numbers (to about five digits):

- Batch normalisation by running statistics is a scale and a shift per channel. They are folded into the weights and a
  bias of the convolution before it.
- A 3x3 convolution of stride 1 takes a fraction of the multiplications by Winograd's way. NNPACK, which PyTorch's ARM
  build has but does not use, does it in tiles of 6x6 outputs. On maps for which these tiles are too large it is done
  here by F(4, 3) along the width: four neighbouring outputs come from six products instead of twelve. Along the width
  only: in both directions the transforms of so small a map cost what the products save.

For F(4, 3) maps are kept as [height, images, width, channels], so that a row above or below is a contiguous part of the
same array, and the three rows of the kernel are three matrix products that add up.

Where PyTorch can still trace a function, a pass is one call into it, which does not hold Python's lock: some hundred
small operations would each wait for it while other threads answer requests.
"""

import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from ocil.networks.reduced_resnet18 import ReducedResNet18

PAYS = platform.machine().lower() in ("aarch64", "arm64")
"""Whether it is faster than oneDNN's convolutions, which are good on Intel's and AMD's processors."""
LARGE_WORK = 5_000_000  # multiply-adds for the features of an image: from here on it pays
NNPACK_TILE = 6  # outputs of a tile in each direction
LARGE_MAP = 100  # places of a map: from here on NNPACK pays
MOST_COVERED = 1.7  # places of the tiles for each place of the map that they cover: up to here
OUTPUTS, TILE = 4, 6  # outputs of a tile, and the inputs that they depend on

# Winograd's F(4, 3) for the points 0, 1, -1, 2, -2 and infinity: outputs = RESULT @ ((KERNEL @ k) * (INPUT @ inputs)).
INPUT = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0),
         (0, 4, 0, -5, 0, 1))  # fmt: skip
KERNEL = ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6),
          (1 / 24, -1 / 12, 1 / 6), (0, 0, 1))  # fmt: skip
RESULT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
CONSTANT = 1  # the product that counts once in each of the four outputs: a bias is added to it

TracedPass = Callable[..., Tensor]


class FoldedBlock(NamedTuple):
    """How a block of the network is computed."""

    stride: int
    shortcut: bool
    """Whether its shortcut is a convolution."""
    tiled: bool
    """Whether NNPACK computes its convolutions of stride 1."""


class Form(NamedTuple):
    """All that a pass depends on, besides weights and the number of images."""

    image: tuple[int, int, int]
    """Channels, height and width."""
    width: int
    window: tuple[int, int]
    tiled: bool
    """Whether NNPACK computes the first convolution."""
    blocks: tuple[FoldedBlock, ...]

    @classmethod
    def of(cls, network: "ReducedResNet18") -> "Form":
        height, width, channels = network.image_shape
        places, blocks, modules = (height, width), [], cast(list[Any], network.blocks)
        for block in modules:
            stride = block.conv1.stride[0]
            places = (-(-places[0] // stride), -(-places[1] // stride))
            blocks.append(FoldedBlock(stride, len(block.shortcut) > 0, _suits_nnpack(*places)))
        return cls(
            (channels, height, width), network.width, network.window, _suits_nnpack(height, width), tuple(blocks)
        )


class FoldedResNet:
    """``features`` of a network in evaluation mode, as its weights are now."""

    @torch.no_grad()
    def __init__(self, network: "ReducedResNet18") -> None:
        self.form = Form.of(network)
        self.weights = [*(_for_nnpack if self.form.tiled else _for_patches)(*_folded(network.conv1, network.bn1))]
        for form, block in zip(self.form.blocks, network.blocks, strict=True):
            self.weights += _weights(form, block)
        _trace(self.form, self.weights)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, features]."""
        found: Tensor = (_passes.get(self.form) or _pass_of(self.form))(x, *self.weights)
        return found


def _suits_nnpack(height: int, width: int) -> bool:
    """Whether NNPACK's tiles cover a map of this size without much that lies outside."""
    covered = -(-height // NNPACK_TILE) * -(-width // NNPACK_TILE) * NNPACK_TILE**2
    suits = height * width >= LARGE_MAP and covered <= MOST_COVERED * height * width
    return suits and _nnpack_started()


@cache
def _nnpack_started() -> bool:
    """Whether this PyTorch has NNPACK. It keeps the number of threads of its first call: one, as predictions have."""
    if not torch._nnpack_available():  # without this call it fails
        return False
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _nnpack(torch.zeros(1, 1, 6, 6), torch.zeros(1, 1, 3, 3), torch.zeros(1))
    finally:
        torch.set_num_threads(before)
    return True


def _weights(form: FoldedBlock, block: Any) -> Iterator[Tensor]:
    """The weights of a block's convolutions in their order, two tensors for each, as the functions below take them."""
    prepared = _for_nnpack if form.tiled else _for_winograd
    first = _folded(block.conv1, block.bn1)
    yield from prepared(*first) if form.stride == 1 else _for_patches(*first)
    yield from prepared(*_folded(block.conv2, block.bn2))
    if form.shortcut:
        yield from _for_patches(*_folded(*block.shortcut))


def _pass_of(form: Form) -> TracedPass:
    """A function of images and these weights. Between its parts maps are [N, C, H, W], whatever their strides."""

    def features(x: Tensor, *weights: Tensor) -> Tensor:
        left = iter(weights)
        y = (_nnpack if form.tiled else _patches)(x, next(left), next(left)).relu_()
        for block in form.blocks:
            before, given, convolution = y, (next(left), next(left)), _nnpack if block.tiled else _winograd
            y = (convolution(y, *given) if block.stride == 1 else _patches(y, *given, block.stride)).relu_()
            y = convolution(y, next(left), next(left))
            shortcut = _pointwise(before, next(left), next(left), block.stride) if block.shortcut else before
            y = y.add_(shortcut).relu_()
        return F.avg_pool2d(y, form.window).flatten(1)

    return features


_passes: dict[Form, TracedPass] = {}  # those that were traced


def _trace(form: Form, weights: Sequence[Tensor]) -> None:
    """Make the function one call into PyTorch, if this version can still trace: that is deprecated."""
    if form not in _passes:
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            example = (weights[0].new_zeros(2, *form.image), *weights)
            _passes[form] = torch.jit.trace(_pass_of(form), example, check_trace=False)


def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The weight [out, in, k, k] and the bias [out] of a convolution with the batch normalisation after it."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None  # noqa: S101, PT018
    scale = norm.weight * (variance + norm.eps).rsqrt()
    return convolution.weight * scale[:, None, None, None], norm.bias - mean * scale


def _for_patches(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of ``_patches`` and ``_pointwise``: a matrix [k · k · in, out], and the bias."""
    return weight.permute(2, 3, 1, 0).flatten(0, 2).contiguous(), bias


def _patches(x: Tensor, matrix: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
    """A 3x3 convolution as one matrix product over unfolded patches."""
    padded = F.pad(x.permute(2, 0, 3, 1), (0, 0, 1, 1, 0, 0, 1, 1))
    windows = padded.unfold(0, 3, stride).unfold(2, 3, stride)  # [H', N, W', C, 3, 3]
    seen = windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, matrix.shape[0])
    y = torch.addmm(bias, seen, matrix)
    return y.view(windows.shape[0], windows.shape[1], windows.shape[2], -1).permute(1, 3, 0, 2)


def _pointwise(x: Tensor, matrix: Tensor, bias: Tensor, stride: int) -> Tensor:
    """A 1x1 convolution."""
    seen = x.permute(2, 0, 3, 1)[::stride, :, ::stride]
    y = torch.addmm(bias, seen.reshape(-1, matrix.shape[0]), matrix)
    return y.view(seen.shape[0], seen.shape[1], seen.shape[2], -1).permute(1, 3, 0, 2)


def _for_nnpack(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return weight.contiguous(), bias


def _nnpack(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A 3x3 convolution of stride 1."""
    return torch._nnpack_spatial_convolution(x.contiguous(), weight, bias, padding=(1, 1), stride=(1, 1))


def _for_winograd(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of ``_winograd``: [3 rows, TILE, in, out], and what is added to each product: [TILE, 1, out]."""
    shift = weight.new_zeros(TILE, 1, len(bias))
    shift[CONSTANT] = bias
    return torch.einsum("tk,oirk->rtio", weight.new_tensor(KERNEL), weight).contiguous(), shift


def _winograd(x: Tensor, rows: Tensor, shift: Tensor) -> Tensor:
    """A 3x3 convolution of stride 1."""
    count, channels, height, width = x.shape
    tiles = (width + OUTPUTS - 1) // OUTPUTS
    padded = F.pad(x.permute(2, 0, 3, 1), (0, 0, 1, 1 + tiles * OUTPUTS - width, 0, 0, 1, 1))
    seen = padded.unfold(2, TILE, OUTPUTS).permute(4, 0, 1, 2, 3).reshape(TILE, -1)
    inputs = (x.new_tensor(INPUT) @ seen).view(TILE, -1, channels)  # of all rows, with one above and one below
    row = count * tiles
    y = torch.baddbmm(shift, inputs[:, : height * row], rows[0])
    for below in (1, 2):
        y.baddbmm_(inputs[:, below * row : (below + height) * row], rows[below])
    outputs = (x.new_tensor(RESULT) @ y.view(TILE, -1)).view(OUTPUTS, height, count, tiles, -1)
    found = outputs.permute(1, 2, 3, 0, 4).reshape(height, count, tiles * OUTPUTS, -1)[:, :, :width]
    return found.permute(1, 3, 0, 2)
