"""What every network has: features, a head, and facts about itself."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ocil.errors import OcilError
from ocil.precision import Precision

Factory = Callable[..., nn.Module]
"""Called with the shape of a stored input, ``(H, W, C)`` or ``(D,)``, and options by name; returns a module that turns
float inputs ``[B, C, H, W]`` in [0, 1], or ``[B, D]``, into features ``[B, d]``."""


class Outputs(NamedTuple):
    """What a network gives for a batch."""

    features: Tensor
    """``[B, feature_size]``"""
    scores: Tensor
    """``[B, classes]``"""


class Network(nn.Module):
    """Turns float inputs, ``[B, C, H, W]`` in [0, 1] or ``[B, D]``, into features ``[B, feature_size]``, and these by
    its ``head`` into class scores. Methods may replace the head.

    A subclass implements ``plain_features``. What lies before the head can be frozen: then it keeps its weights and its
    batch statistics, and computes no gradients.
    """

    precision: Precision
    feature_size: int
    head: nn.Module
    channels: int
    """Numbers per place of the last map, ``feature_size`` if the network averages over all places."""
    smallest_batch: int = 1
    """The smallest batch that it can learn from: 2 if a single input has no batch statistics."""
    multiply_adds: int = 0
    """What the features of one input cost, roughly. The number of CPU threads is chosen by it."""
    stage_channels: tuple[int, ...] = ()
    """Channels of the map behind each stage; empty if the network does not show its stages."""
    normalises: bool = False
    """Whether it brings inputs to the mean and deviation that it was trained with."""
    frozen_parts: tuple[str, ...] = ()
    """Names of the submodules that are frozen."""

    def features(self, x: Tensor) -> Tensor:
        return self.plain_features(x)

    def plain_features(self, x: Tensor) -> Tensor:
        """``features`` by PyTorch's own operators. Every network has them; some have kernels of their own too."""
        raise NotImplementedError

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        """The map ``[B, c, h, w]`` behind each stage, first to last, in the precision of the network: what ``features``
        computes on its way. Only for a network with ``stage_channels``.
        """
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    def outputs_of(self, batches: Sequence[Tensor]) -> list[Outputs]:
        """The outputs of several batches that pass one after the other. In training each is normalised by its own batch
        statistics, and the running statistics move batch by batch.

        Networks with kernels of their own may take all of them in one pass. So call ``backward`` once, on the sum of
        the losses: it is one pass too.
        """
        found = []
        for x in batches:
            features = self.features(x)
            found.append(Outputs(features, self.head(features)))
        return found

    def prepare(self) -> None:
        """Make predictions fast, for weights that do not change from now on until the next call. Optional."""

    def train(self, mode: bool = True) -> "Network":
        super().train(mode)
        for name in self.frozen_parts:
            self.get_submodule(name).eval()
        return self

    def freeze(self, until: str) -> None:
        """Freeze what lies before the head: all of it (``backbone``), or all up to a stage, by the stage's name."""
        names, entered = list(self.backbone_parts()), [""]
        if until != "backbone":
            names, entered = _up_to(self, until)
        self.frozen_parts = tuple(names)
        for name in names:
            self.get_submodule(name).requires_grad_(False)
        for name in entered:  # a transformer's position embedding, say: it belongs to no stage, and comes first
            for parameter in self.get_submodule(name).parameters(recurse=False):
                parameter.requires_grad_(False)
        self.train(self.training)

    def is_frozen(self, name: str) -> bool:
        """Whether a tensor of its state, by its name, is frozen."""
        module, _, own = name.rpartition(".")
        parameter = self.get_submodule(module)._parameters.get(own)
        inside = any(f"{name}.".startswith(f"{part}.") for part in self.frozen_parts)
        return inside or (parameter is not None and not parameter.requires_grad)

    def backbone_parts(self) -> Iterable[str]:
        """Names of the submodules before the head, in the order of the forward pass."""
        return (name for name, _ in self.named_children() if name != "head")


def stages(network: Network) -> list[str]:
    """The names that ``freeze`` takes, down to two levels."""
    found = []
    for name in network.backbone_parts():
        short = _short(name)
        if short:
            found.append(short)
        children = network.get_submodule(name).named_children()
        found += [f"{short}.{child}" if short else child for child, _ in children]
    return found


BODY = "body"  # the submodule that holds a stranger's module: users name its stages as its author did


def _short(name: str) -> str:
    return "" if name == BODY else name


def _up_to(network: Network, until: str) -> tuple[list[str], list[str]]:
    """The submodules from the input up to and including the stage of this name, and the modules that contain it."""
    parts, wanted = list(network.backbone_parts()), until
    if parts == [BODY]:
        wanted = f"{BODY}.{until}"
    names: list[str] = []
    entered = [""]
    while parts:
        name = parts.pop(0)
        if name == wanted:
            return [*names, name], entered
        if wanted.startswith(f"{name}."):
            entered.append(name)
            parts = [f"{name}.{child}" for child, _ in network.get_submodule(name).named_children()]
        else:
            names.append(name)
    there = ", ".join(stages(network)[:12])
    raise OcilError(f"freeze = '{until}' names no stage of the network: use none, backbone, or one of {there}.")


def networks_in(module: nn.Module) -> list[Network]:
    """All networks in a module. A learner may have more than one: a teacher, an average, a peer."""
    return [part for part in module.modules() if isinstance(part, Network)]


def unsaved_buffers(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that are not in the state of a network. A table of positions may be among them, for it never changes;
    a running mean may not."""
    saved = network.state_dict().keys()
    return {name: buffer for name, buffer in network.named_buffers() if name not in saved}


def autocast(x: Tensor, precision: Precision) -> torch.autocast:
    """bfloat16 where the precision asks for it."""
    return torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bf16")
