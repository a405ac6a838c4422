"""The networks by name.

A network is named by a setting: ``reduced-resnet18``, ``mlp(hidden=512)``, ``timm:tf_efficientnet_lite0`` or
``module:package.module:factory``. docs/adding-a-network.md explains how to write one.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import torch
from torch import nn

from ocil.errors import OcilError, suggest
from ocil.networks import pretrained as weights
from ocil.networks.base import Network
from ocil.networks.growth import GrowingHead
from ocil.networks.inputs import InputShape, image_shape, is_image
from ocil.networks.modes import seeded
from ocil.networks.reduced_resnet18 import ReducedResNet18
from ocil.networks.spec import Spec
from ocil.networks.wrapped import WrappedNetwork
from ocil.precision import Precision
from ocil.rng import derive

DEFAULT = "reduced-resnet18"
FOR_VECTORS = "linear"
"""The default where inputs are vectors."""

Factory = Callable[..., nn.Module]
"""Called with the shape of a stored input, ``(H, W, C)`` or ``(D,)``, and options by name; returns a module that turns
float inputs ``[B, C, H, W]`` in [0, 1], or ``[B, D]``, into features ``[B, d]``."""


@dataclass(frozen=True)
class NetworkInfo:
    """The facts about a network that are known without importing it."""

    name: str
    target: str | Factory
    """``module:factory`` inside ``ocil.networks``, or a factory from anywhere."""
    summary: str
    inputs: Literal["images", "vectors", "any"] = "images"

    def load(self) -> Factory:
        if not isinstance(self.target, str):
            return self.target
        module, name = self.target.split(":")
        factory: Factory = getattr(import_module(f"ocil.networks.{module}"), name)
        return factory


_BUILT_IN = (
    NetworkInfo(DEFAULT, "reduced_resnet18:ReducedResNet18", "the paper's: 20 to 160 channels; fast kernels on a GPU"),
    NetworkInfo("resnet18", "resnet18:ResNet18", "64 to 512 channels; stem='imagenet' for images of 224 pixels"),
    NetworkInfo("linear", "vectors:Linear", "no layer before the head", "vectors"),
    NetworkInfo("mlp", "vectors:MLP", "linear layers with ReLU, hidden=(256, 256)", "vectors"),
)

NETWORKS: dict[str, NetworkInfo] = {info.name: info for info in _BUILT_IN}


def register(info: NetworkInfo, replace: bool = False) -> None:
    """Register a network of your own in this process: the setting ``network`` then takes its name.

    ``replace`` allows a name that is taken. Raises an ``OcilError`` if the name is taken or is not a valid name.
    """
    if not re.fullmatch("[a-z0-9]+([-_][a-z0-9]+)*", info.name):
        raise OcilError(
            f"a network's name has small letters and digits, and '-' or '_' between them, not '{info.name}'."
        )
    if NETWORKS.get(info.name, info) != info and not replace:
        raise OcilError(f"there is a network '{info.name}' already: choose another name, or give replace=True.")
    NETWORKS[info.name] = info


def network(name: str) -> NetworkInfo:
    """The entry of a network, without its options: a registered name, ``timm:MODEL`` or ``module:PACKAGE:FACTORY``."""
    kind, _, rest = name.partition(":")
    if kind == "timm" and rest:
        from ocil.networks.timm_models import make

        return NetworkInfo(name, make(rest), "a model of timm")
    if kind == "module" and rest:
        return NetworkInfo(name, _from_module(rest), f"the factory {rest}", "any")
    info = NETWORKS.get(name.lower()) or NETWORKS.get(name.lower().replace("_", "-"))
    if info is None:
        known = suggest(name, [*NETWORKS, "timm:MODEL", "module:PACKAGE.MODULE:FACTORY"])
        raise OcilError(f"unknown network '{name}'.{known}")
    return info


def named(factory: str | Factory) -> str:
    """The setting for a factory: Python users may give the function or class itself, if other code can import it."""
    if isinstance(factory, str):
        return factory
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    here = getattr(sys.modules.get(str(module)), name, None)
    if here is not factory:
        text = name or repr(factory)
        raise OcilError(
            f"network = {text} cannot be found by its name: define it at the top of a module, or register it "
            "(ocil.networks.register) and give that name."
        )
    return f"module:{module}:{name}"


def build(
    input_shape: InputShape,
    classes: int,
    width: int = 20,
    seed: int = 0,
    device: torch.device | str = "cpu",
    precision: Precision = "tf32",
    growing: bool = False,
    *,
    spec: str = DEFAULT,
    pretrained: str = "",
    freeze: str = "none",
) -> Network:
    """A network with weights drawn on the CPU from ``seed`` alone, the same on every device, or ``pretrained`` ones.

    ``width`` is that of the reduced ResNet-18; other networks have options of their own, in ``spec``.
    """
    chosen = Spec.parse(spec, "network")
    info = network(chosen.name)
    refuse_wrong_inputs(info, input_shape)

    def make() -> Network:
        if info.name == DEFAULT:
            wide = _checked_width(chosen.options, width)
            return ReducedResNet18(image_shape(input_shape), classes, wide, precision)
        return WrappedNetwork(_body(info, chosen, input_shape, pretrained), input_shape, classes, precision)

    made = seeded(make, seed)
    if growing:
        made.head = GrowingHead(made.feature_size, classes, derive(seed, "head"))
    if pretrained and pretrained != weights.OWN:
        weights.load(made.body if isinstance(made, WrappedNetwork) else made, pretrained)
    if freeze != "none":
        made.freeze(freeze)
    return made.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def refuse_wrong_inputs(info: NetworkInfo, input_shape: InputShape) -> None:
    """Raise an ``OcilError`` if a network for images would get vectors, or the other way round."""
    if info.inputs == "images" and not is_image(input_shape):
        advice = f"use {FOR_VECTORS} or mlp"
        raise OcilError(f"network = {info.name} takes images, and these are vectors of {input_shape[0]}: {advice}.")
    if info.inputs == "vectors" and is_image(input_shape):
        advice = f"use {DEFAULT}, or turn the images into vectors first (features=...)"
        raise OcilError(f"network = {info.name} takes vectors, and these are images: {advice}.")


def has_random_weights(spec: str, pretrained: str) -> bool:
    """Whether a network of ours or of timm would begin with weights that nobody trained. What a stranger's factory
    returns may be trained already.
    """
    chosen = Spec.parse(spec, "network")
    known = chosen.name.startswith("timm:") or network(chosen.name) in _BUILT_IN
    return known and not pretrained and not chosen.options.get("pretrained")


def _body(info: NetworkInfo, chosen: Spec, input_shape: InputShape, pretrained: str) -> nn.Module:
    options = dict(chosen.options)
    size = options.pop("input_size", None)
    if pretrained == weights.OWN:
        if not info.name.startswith("timm:"):
            raise OcilError(
                f"pretrained = {weights.OWN} is for models of timm: give a file of weights for {info.name}."
            )
        options["pretrained"] = True
    try:
        body = info.load()(input_shape, **options)
    except OcilError:
        raise
    except Exception as error:  # a stranger's code, or options that it does not take
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise OcilError(f"network = {chosen} cannot be built: {reason}.") from error
    if not isinstance(body, nn.Module):
        raise OcilError(f"network = {chosen}: its factory must return a torch module, not {type(body).__name__}.")
    if size is not None:
        body.input_size = size
    return body


def _checked_width(options: dict[str, Any], width: int) -> int:
    if more := sorted(set(options) - {"width"}):
        raise OcilError(f"{DEFAULT} has no option '{more[0]}'. Known: width.")
    wide = options.get("width", width)
    if not isinstance(wide, int) or not 0 < wide <= 1024:
        raise OcilError(f"width = {wide!r} must be a whole number from 1 to 1,024.")
    return wide


def _from_module(target: str) -> Factory:
    module, _, name = target.rpartition(":")
    example = "write module:package.module:factory"
    if not module or not name:
        raise OcilError(f"network = 'module:{target}' names no factory: {example}.")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise OcilError(f"network = 'module:{target}': {module} has no '{name}'.") from None
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise OcilError(f"network = 'module:{target}': {module} cannot be imported ({reason}).") from error
    if not callable(found):
        raise OcilError(f"network = 'module:{target}' is not a function or class: {example}.")
    factory: Factory = found
    return factory
