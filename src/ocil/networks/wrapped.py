"""A network around any module that turns inputs into features."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil.errors import OcilError
from ocil.kernels.convolution import subsample_first
from ocil.networks.base import Network, autocast
from ocil.networks.inputs import InputShape, image_shape, is_image
from ocil.networks.modes import evaluating
from ocil.precision import Precision

LARGEST_MAP = 1 << 26  # numbers that one layer may write at a time in evaluation: 256 MiB in float32


class WrappedNetwork(Network):
    """``body`` with a linear head behind it, computed by PyTorch's own operators.

    The body may carry the record of the inputs that it was trained with, as attributes: ``input_size`` (height,
    width), ``mean`` and ``std`` (one number per channel), ``interpolation`` (``bilinear`` or ``bicubic``). Images are
    then resized and normalised here, on the device: a method and its memory have them as they are stored. Gray images
    become three equal channels where the record has three.
    """

    def __init__(self, body: nn.Module, input_shape: InputShape, classes: int, precision: Precision) -> None:
        super().__init__()
        self.precision = precision
        self.body = body
        subsample_first(body)
        self.stage_channels = tuple(getattr(body, "stage_channels", ()))
        self.record = InputRecord(body, input_shape) if is_image(input_shape) else None
        self.normalises = self.record is not None and bool(self.record.mean)
        if self.record is not None and self.record.mean:
            for name, values in (("mean", self.record.mean), ("std", self.record.std)):
                self.register_buffer(f"input_{name}", torch.tensor(values).view(-1, 1, 1), persistent=False)
        facts = Facts(self, input_shape)
        self.feature_size = self.channels = facts.feature_size
        self.smallest_batch = facts.smallest_batch
        self.multiply_adds = facts.multiply_adds
        self.numbers_written = facts.numbers_written
        """By the name of each layer, for one input."""
        self.head = nn.Linear(self.feature_size, classes)

    @property
    def trained_numbers_written(self) -> int:
        """How many numbers the parts that are not frozen write for one input. A backward pass needs these numbers
        again.
        """
        frozen = tuple(f"{name}." for name in self.frozen_parts)
        return sum(count for name, count in self.numbers_written.items() if not f"{name}.".startswith(frozen))

    @property
    def largest_batch(self) -> int:
        """Inputs that pass together where none of them depends on the others: the rest of a batch follows."""
        return max(1, LARGEST_MAP // max(self.numbers_written.values(), default=1))

    def features(self, x: Tensor) -> Tensor:
        whole = self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
        if whole or len(x) <= self.largest_batch:
            return self.plain_features(x)
        return torch.cat([self.plain_features(part) for part in x.split(self.largest_batch)])

    def plain_features(self, x: Tensor) -> Tensor:
        with autocast(x, self.precision):
            return pooled(self.body(self.prepared(x))).float()

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        body: Any = self.body
        with autocast(x, self.precision):
            return list(body.stage_maps(self.prepared(x)))

    def prepared(self, x: Tensor) -> Tensor:
        """Inputs as the body's record asks for them."""
        if self.record is None:
            return x
        if x.shape[1] == 1 and self.record.channels == 3:
            x = x.expand(-1, 3, -1, -1)
        if (size := self.record.size) is not None and tuple(x.shape[2:]) != size:
            # With antialias it computes what Pillow does, which most networks were trained with, also for larger sizes.
            x = F.interpolate(x, size, mode=self.record.interpolation, align_corners=False, antialias=True)
        if self.normalises:  # what is resized first may overshoot: a cubic curve does
            x = (x.clamp(0, 1) - self.get_buffer("input_mean")) / self.get_buffer("input_std")
        return x.contiguous(memory_format=torch.channels_last)


def pooled(found: Tensor) -> Tensor:
    """Features ``[B, d]``: maps ``[B, d, h, w]`` are averaged."""
    return found.mean((2, 3)) if found.ndim == 4 else found


class InputRecord:
    """The inputs that a body wants, from its attributes; checked, since a stranger wrote them."""

    def __init__(self, body: nn.Module, input_shape: InputShape) -> None:
        *_, stored = image_shape(input_shape)
        self.size = _size(getattr(body, "input_size", None))
        self.mean = _numbers("mean", getattr(body, "mean", None))
        self.std = _numbers("std", getattr(body, "std", None))
        self.interpolation = str(getattr(body, "interpolation", "bilinear"))
        if self.interpolation not in ("bilinear", "bicubic"):
            raise OcilError(f"the network's interpolation is '{self.interpolation}': use bilinear or bicubic.")
        if len(self.mean) != len(self.std):
            raise OcilError("the network has a mean without a std, or they have different lengths: give both or none.")
        if not all(value > 0 for value in self.std):
            raise OcilError(f"the network's std is {self.std}: its numbers must be more than 0.")
        self.channels = int(getattr(body, "in_channels", len(self.mean) or stored))
        if self.channels not in {stored, *((3,) if stored == 1 else ())}:
            raise OcilError(f"the network takes images of {self.channels} channels, and these have {stored}.")
        if len(self.mean) not in (0, self.channels):
            raise OcilError(f"the network's mean has {len(self.mean)} numbers for {self.channels} channels.")


class Facts:
    """The properties of a network that one pass of an input shows. A pass of two must give a row for each."""

    def __init__(self, network: WrappedNetwork, input_shape: InputShape) -> None:
        self.multiply_adds = 0
        self.numbers_written: dict[str, int] = {}
        self.smallest_batch = 1
        leaves = [(name, part) for name, part in network.named_modules() if not any(part.children())]
        hooks = [part.register_forward_hook(partial(self._see, name)) for name, part in leaves]
        height, width, channels = image_shape(input_shape) if is_image(input_shape) else (0, 0, 0)
        shape = (channels, height, width) if is_image(input_shape) else input_shape
        try:
            self.feature_size = _feature_size(network, torch.zeros(1, *shape))
        finally:
            for hook in hooks:
                hook.remove()
        _feature_size(network, torch.zeros(2, *shape))

    def _see(self, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(output, Tensor):
            return
        self.numbers_written[name] = self.numbers_written.get(name, 0) + output.numel()
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and isinstance(weight, Tensor):
            self.multiply_adds += output.numel() * weight[0].numel()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and math.prod(output.shape[2:]) == 1:
            self.smallest_batch = 2


def _feature_size(network: WrappedNetwork, inputs: Tensor) -> int:
    """How many features each of these inputs gets. An ``OcilError`` says what is wrong with what the network gives."""
    try:
        with torch.no_grad(), evaluating(network):
            found = network.body(network.prepared(inputs))
    except OcilError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise OcilError(f"the network cannot take an input of shape {list(inputs.shape)}: {reason}.") from error
    count, found = len(inputs), pooled(found) if isinstance(found, Tensor) else found
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != count or not found.is_floating_point():
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise OcilError(
            f"the network must turn [B, ...] into float features [B, d], but it gives {got} for B = {count}."
        )
    return int(found.shape[1])


def _size(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    sides = tuple(value) if isinstance(value, Sequence) else (value, value)
    sides = sides[1:] if len(sides) == 3 and sides[0] in (1, 3) else sides  # timm has the channels first
    if len(sides) != 2 or not all(isinstance(side, int) and 0 < side <= 4096 for side in sides):
        raise OcilError(f"input_size = {value!r} must be a side or (height, width), up to 4096 pixels.")
    return sides[0], sides[1]


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if values is None:
        return ()
    given: Sequence[Any] = values if isinstance(values, Sequence) else (values,)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in given):
        raise OcilError(f"the network's {name} is {values!r}: it must be one number per channel.")
    return tuple(float(value) for value in given)
