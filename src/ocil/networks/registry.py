"""The networks by name.

A network is named by a setting: ``reduced-resnet18``, ``mlp(hidden=512)``, ``timm:tf_efficientnet_lite0`` or
``module:package.module:factory``. docs/adding-a-network.md explains how to write one.
"""

import inspect
import math
import re
import sys
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ocil.errors import OcilError
from ocil.limits import MAX_WIDTH, whole
from ocil.networks import pretrained as weights
from ocil.networks.base import Factory, Network, unsaved_buffers
from ocil.networks.growth import GrowingHead
from ocil.networks.inputs import InputShape, image_shape, is_image
from ocil.networks.modes import default_generator_kept, seeded
from ocil.networks.reduced_resnet18 import ReducedResNet18
from ocil.networks.spec import Spec
from ocil.networks.wrapped import WrappedNetwork
from ocil.plugins import PROGRAM, Origin, Registry, package_origin, spelling
from ocil.precision import Precision
from ocil.rng import derive

REDUCED = "reduced-resnet18"
"""The default for images. It alone has kernels of its own, and the setting ``width``."""
FOR_VECTORS = "linear"
"""The default where inputs are vectors."""


@dataclass(frozen=True)
class NetworkInfo:
    """The facts about a network that are known without importing it.

    Examples:
        >>> from torch import nn
        >>> def flat(input_shape, size=8):
        ...     height, width, channels = input_shape
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(height * width * channels, size), nn.ReLU())
        >>> ocil.register(ocil.NetworkInfo("flat", flat, "one layer"))
        >>> learner = ocil.make_learner("er", ocil.load_dataset(), memory=50, network="flat(size=16)")
    """

    name: str
    """What the setting ``network`` calls it."""
    target: str | Factory
    """``module:factory`` inside ``ocil.networks``, or a factory from anywhere."""
    summary: str
    """One line for lists."""
    inputs: Literal["images", "vectors", "any"] = "images"
    """What it takes. Other inputs are refused before a run starts."""

    def load(self) -> Factory:
        """The factory of the network, imported on first use."""
        if not isinstance(self.target, str):
            return self.target
        module, name = self.target.split(":")
        factory: Factory = getattr(import_module(f"ocil.networks.{module}"), name)
        return factory


_BUILT_IN = (
    NetworkInfo(REDUCED, "reduced_resnet18:ReducedResNet18", "the paper's: 20 to 160 channels; fast kernels on a GPU"),
    NetworkInfo("resnet18", "resnet18:ResNet18", "64 to 512 channels; stem='imagenet' for images of 224 pixels"),
    NetworkInfo("linear", "vectors:Linear", "no layer before the head", "vectors"),
    NetworkInfo("mlp", "vectors:MLP", "linear layers with ReLU, hidden=(256, 256)", "vectors"),
)


def _read(name: str, found: Any) -> list[NetworkInfo]:
    """The network of an entry point: a ``NetworkInfo``, or a factory, of which nothing more is known."""
    if not isinstance(found, NetworkInfo) and not callable(found):
        raise TypeError(f"{found!r} is neither a NetworkInfo nor a factory of modules")
    about = (getattr(found, "__doc__", None) or name).strip().partition("\n")[0]
    return [found if isinstance(found, NetworkInfo) else NetworkInfo(spelling(name), found, about, "any")]


NETWORKS: Registry[NetworkInfo] = Registry("network", "ocil.networks", _BUILT_IN, _read, spelling)


register = NETWORKS.register  # ``ocil.register`` does the same for anything that has a registry


def origin_of(spec: str) -> Origin:
    """Where a network comes from, by its setting. A ``module:`` or a model of timm is named by its package."""
    name = Spec.parse(spec, "network").name
    kind, _, rest = name.partition(":")
    if not rest:
        info = NETWORKS.find(name)
        return PROGRAM if info is None else NETWORKS.origin(info.name)
    return package_origin("timm" if kind == "timm" else rest.partition(":")[0].partition(".")[0])


def identity_of(spec: str) -> Hashable:
    """A key for caches of what a network builds. It changes when the network is registered again, or its plugin file
    has changed.
    """
    name = Spec.parse(spec, "network").name
    return None if ":" in name else NETWORKS.find(name), origin_of(spec)


def network(name: str) -> NetworkInfo:
    """The entry of a network, without its options: a registered name, ``timm:MODEL`` or ``module:PACKAGE:FACTORY``."""
    kind, _, rest = name.partition(":")
    if kind == "timm" and rest:
        from ocil.networks.timm_models import make

        return NetworkInfo(name, make(rest), "a model of timm")
    if kind == "module" and rest:
        return NetworkInfo(name, _from_module(rest), f"the factory {rest}", "any")
    info = NETWORKS.find(name)
    if info is None:
        raise NETWORKS.unknown(name, "timm:MODEL", "module:PACKAGE.MODULE:FACTORY")
    return info


def spec_of(factory: str | Factory) -> str:
    """The setting for a factory: Python users may give the function or class itself, if other code can import it."""
    if isinstance(factory, str):
        return factory
    if isinstance(factory, nn.Module):
        raise OcilError(
            f"network = {type(factory).__name__}(...) is an object, and each run makes its own network: give the "
            "class, or a function that makes it, factory(input_shape)."
        )
    if not callable(factory):
        raise OcilError(f"network = {factory!r} must be the name of a network, or a class or function that makes one.")
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    here: Any = sys.modules.get(str(module))
    for part in name.split("."):
        here = getattr(here, part, None)
    if here is not factory:
        text = name or repr(factory)
        raise OcilError(
            f"network = {text} cannot be found by its name: define it at the top of a module, or register it "
            "(ocil.register) and give that name."
        )
    return f"module:{module}:{name}"


def canonical_spec(text: str, setting: str = "network") -> str:
    """One way to write a network for all that mean the same: options in alphabetical order, without those that have
    their default, as far as defaults are known without a stranger's code (``module:``, ``timm:``).
    """
    spec = Spec.parse(text, setting)
    info, options = None if ":" in spec.name else NETWORKS.find(spec.name), spec.options
    if options and info is not None and info.name != REDUCED:  # the width of that one is a setting, see ``resolve``
        defaults = {option.name: option.default for option in options_of(info)}
        options = {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}
    return str(Spec(spec.name if info is None else info.name, dict(sorted(options.items()))))


class Option(NamedTuple):
    """An option of a network, ``NAME(option=value)``."""

    name: str
    default: Any
    meaning: str


INPUT_SIZE = Option(
    "input_size", None, "A side, or (height, width), to which images are resized: by default as trained."
)


def options_of(info: NetworkInfo) -> list[Option]:
    """The options of a network, from the signature of its factory. Their meanings are in its docstring, each after the
    option's name in backquotes and a colon.
    """
    if info.name == REDUCED:
        return [Option("width", 20, "Channels of its first stage. The setting width does the same.")]
    factory: Any = info.load()
    text = " ".join((inspect.getdoc(factory.__init__ if inspect.isclass(factory) else factory) or "").split())
    meanings = dict(re.findall(r"``(\w+)``: (.*?)(?=\s*``\w+``: |$)", text))
    given = list(inspect.signature(factory).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [each for each in given if each.kind in kinds and each.name != "own_weights"]
    found = [Option(each.name, each.default, meanings.get(each.name, "")) for each in named]
    return found + ([INPUT_SIZE] if info.inputs != "vectors" else [])


def names_code(spec: str) -> bool:
    """Whether building a network would call any Python code that its setting names (``module:...``). A file that a
    stranger wrote may name what it likes, with any options: nothing may be built from it unless the user trusts it.
    """
    return bool(spec) and Spec.parse(spec, "network").name.startswith("module:")


def build(
    input_shape: InputShape,
    classes: int,
    width: int = 20,
    seed: int = 0,
    device: torch.device | str = "cpu",
    precision: Precision = "tf32",
    growing: bool = False,
    *,
    spec: str = REDUCED,
    pretrained: str = "",
    freeze: str = "none",
) -> Network:
    """A network with weights drawn on the CPU from ``seed`` alone, the same on every device, or ``pretrained`` ones.

    ``width`` is that of the reduced ResNet-18; other networks have options of their own, in ``spec``.
    """
    chosen = Spec.parse(spec, "network")
    info = network(chosen.name)
    check_input_kind(info, input_shape)
    if pretrained == weights.OWN and not info.name.startswith("timm:"):
        raise OcilError(f"pretrained = {weights.OWN} is for models of timm: give a file of weights for {info.name}.")

    def make() -> Network:
        if info.name == REDUCED:
            wide = _checked_width(chosen, width)
            return ReducedResNet18(image_shape(input_shape), classes, wide, precision)
        return WrappedNetwork(_body(info, chosen, input_shape, pretrained), input_shape, classes, precision)

    made = seeded(make, seed)
    if growing:
        made.head = GrowingHead(made.feature_size, classes, derive(seed, "head"))
    if pretrained and pretrained != weights.OWN:
        weights.load(made.body if isinstance(made, WrappedNetwork) else made, pretrained)
    if freeze != "none":
        made.freeze(freeze)
    _refuse_dropout(made, chosen)
    return made.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def untrained(spec: str, input_shape: InputShape, width: int = 20, freeze: str = "none") -> Network:
    """A network with random weights and one class, built once: to look at, not to train."""
    return _untrained(spec, input_shape, width, freeze, identity_of(spec))


@lru_cache(maxsize=32)
def _untrained(spec: str, input_shape: InputShape, width: int, freeze: str, identity: Hashable) -> Network:
    """``identity`` serves the cache alone."""
    return build(input_shape, 1, width, spec=spec, freeze=freeze)


def _refuse_dropout(made: Network, chosen: Spec) -> None:
    """Raise an ``OcilError`` if a pass would draw random numbers that are not the learner's: a run could not be resumed
    bit for bit, nor captured.
    """
    for name, part in made.named_modules():
        share = getattr(part, "p", 0) if isinstance(part, _DropoutNd) else getattr(part, "drop_prob", 0)
        if part.training and isinstance(share, int | float) and share > 0:
            raise OcilError(
                f"network = {chosen} has dropout ({name.removeprefix('body.')}, {share:g}), which ocil cannot repeat "
                "bit for bit: set it to 0, or freeze that part."
            )


def refuse_what_is_not_kept(spec: str, input_shape: InputShape, width: int = 20, freeze: str = "none") -> None:
    """Raise an ``OcilError`` if a training pass of a stranger's network does what neither a seed decides nor a
    checkpoint keeps: it draws random numbers in its own code, where no layer shows it, or changes a buffer that is not
    part of its state. A run could be neither repeated nor resumed, and a saved model would be another one."""
    chosen = Spec.parse(spec, "network")
    if _is_known(chosen):
        return
    tried = build(input_shape, 1, width, spec=spec, freeze=freeze)  # not a copy: some networks cannot be copied
    before = {name: buffer.clone() for name, buffer in unsaved_buffers(tried).items()}
    if _draws_numbers(tried, input_shape):
        raise OcilError(
            f"network = {chosen} draws random numbers while it trains, as dropout does, and ocil cannot repeat them: "
            "leave that out in training mode, or give freeze = backbone."
        )
    for name, buffer in unsaved_buffers(tried).items():
        if name not in before or not _are_equal(before[name], buffer):
            raise OcilError(
                f"network = {chosen} changes its buffer {name.removeprefix('body.')} while it trains, and has it "
                "registered with persistent=False, so that nothing saves it: leave that out, or give freeze = backbone."
            )


def _draws_numbers(tried: Network, input_shape: InputShape) -> bool:
    """Whether a training pass moves PyTorch's generator."""
    image = (input_shape[2], *input_shape[:2]) if is_image(input_shape) else input_shape
    count = max(2, tried.smallest_batch)
    x = torch.linspace(0, 1, count * math.prod(image)).view(count, *image)
    with default_generator_kept(), torch.no_grad(), suppress(Exception):  # what fails is reported by a step
        before = torch.get_rng_state()
        tried(x)
        return not torch.equal(torch.get_rng_state(), before)
    return False


def _are_equal(one: Tensor, other: Tensor) -> bool:
    """Also where both are NaN, and for sparse tensors, which ``torch.equal`` refuses."""
    try:
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True


def _is_known(chosen: Spec) -> bool:
    """Whether a network is one of ours or of timm, and not a stranger's."""
    return chosen.name.startswith("timm:") or network(chosen.name) in _BUILT_IN


def check_input_kind(info: NetworkInfo, input_shape: InputShape) -> None:
    """Raise an ``OcilError`` if a network for images would get vectors, or the other way round."""
    if info.inputs == "images" and not is_image(input_shape):
        advice = f"use {FOR_VECTORS} or mlp"
        raise OcilError(f"network = {info.name} takes images, and these are vectors of {input_shape[0]}: {advice}.")
    if info.inputs == "vectors" and is_image(input_shape):
        advice = f"use {REDUCED}, or turn the images into vectors first (features=...)"
        raise OcilError(f"network = {info.name} takes vectors, and these are images: {advice}.")


def has_random_weights(spec: str, pretrained: str) -> bool:
    """Whether a network of ours or of timm would begin with weights that nobody trained. What a stranger's factory
    returns may be trained already.
    """
    chosen = Spec.parse(spec, "network")
    return _is_known(chosen) and not pretrained and not chosen.options.get("pretrained")


def _body(info: NetworkInfo, chosen: Spec, input_shape: InputShape, pretrained: str) -> nn.Module:
    options = dict(chosen.options)
    size = options.pop("input_size", None)
    if pretrained == weights.OWN:
        options["own_weights"] = True
    try:
        body = info.load()(input_shape, **options)
    except OcilError:
        raise
    except (Exception, SystemExit) as error:  # a stranger's code, or options that it does not take
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if isinstance(error, SystemExit):
            reason = f"its factory ends the program (SystemExit: {reason})"
        raise OcilError(f"network = {chosen} cannot be built: {reason}.") from error
    if not isinstance(body, nn.Module):
        raise OcilError(f"network = {chosen}: its factory must return a torch module, not {type(body).__name__}.")
    if any(isinstance(part, torch.jit.ScriptModule) for part in body.modules()):
        raise OcilError(
            f"network = {chosen} is a TorchScript program, at least in part, and ocil must see its layers: return the "
            "torch module that it was made from."
        )
    if size is not None:
        body.input_size = size
    return body


def _checked_width(chosen: Spec, width: int) -> int:
    if more := sorted(chosen.options.keys() - {"width"}):
        raise OcilError(f"network = {chosen} cannot be built: {REDUCED} has no option '{more[0]}', only width.")
    return whole("width", chosen.options.get("width", width), 1, MAX_WIDTH)


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
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        absent = isinstance(error, ModuleNotFoundError) and module.partition(".")[0] == error.name
        how = " Install it, put its folder into PYTHONPATH, or load a plugin file (--plugin FILE, ocil.plugins.load)."
        remedy = how if absent else ""
        raise OcilError(f"network = 'module:{target}': {module} cannot be imported ({reason}).{remedy}") from error
    if not callable(found):
        raise OcilError(f"network = 'module:{target}' is not a function or class: {example}.")
    factory: Factory = found
    return factory
