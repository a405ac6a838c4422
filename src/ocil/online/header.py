"""The header of a model file. The file may come from anywhere, so nothing in it is trusted: before a model is
allocated, every entry must have its type and range, and every tensor the shape and type that follow from the settings.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ocil.errors import OcilError
from ocil.learning.optimizers import TorchOptimizer
from ocil.learning.sgd import SGD
from ocil.methods import METHODS, MethodInfo, method
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.networks import NETWORKS
from ocil.networks.registry import names_code
from ocil.networks.spec import Spec
from ocil.online.formats import InputFormat
from ocil.online.images import ImageFormat
from ocil.online.labels import ClassLabel, decoded, encoded
from ocil.online.vectors import VectorFormat
from ocil.runs.settings import fill, values

FORMAT = 2
"""Format 1 knew images alone, and one network."""

KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


class HeaderError(ValueError):
    """A header that describes no model."""


class UntrustedError(HeaderError):
    """A header that names code of its own, or what cannot be checked without running it."""


class MissingMethodError(HeaderError):
    """A header that names a method which is not known: perhaps its plugin was not loaded."""


class OtherSettingsError(HeaderError):
    """A header with a setting that its method does not have here: it was saved by another version of the method."""


class NewerFormatError(HeaderError):
    """A header that a later version of this package has written."""


@dataclass(frozen=True)
class Header:
    """All of a model but its tensors, as ``parsed`` has checked it."""

    recipe: dict[str, Any]
    config: LearnerConfig
    input_format: InputFormat
    weights: str
    """The digest of the pretrained weights that the network began with, ``own`` for timm's, empty for none."""
    labels: list[ClassLabel]
    batches: int
    samples: int
    device: str
    """The kind of device that the random generators belong to."""
    note: dict[str, dict[str, Any]]


def parsed(text: str) -> Header:
    """A header from its JSON. ``HeaderError`` or ``OcilError`` if something is wrong with it."""
    try:
        content = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"its header is not JSON: {error}") from None
    if (version := whole(content, "format", 1)) > FORMAT:
        raise NewerFormatError(f"has format {version}, this version of ocil reads up to {FORMAT}")
    recipe = _recipe(entry(content, "recipe", dict))
    note = entry(content, "note", dict)
    for name in note:
        entry(note, name, dict)
    return Header(
        recipe,
        _config(recipe, entry(content, "config", dict)),
        _vectors(entry(content, "vectors", dict)) if "vectors" in content else _images(entry(content, "images", dict)),
        entry(content, "weights", str) if version > 1 else "",
        _labels(entry(content, "labels", list)),
        whole(content, "batches"),
        whole(content, "samples"),
        entry(content, "device", str),
        note,
    )


def entry(content: Any, name: str, *kinds: type) -> Any:
    """An entry of a JSON object. ``HeaderError`` unless it has one of these types; a bool is not an int."""
    value = content.get(name, ...) if isinstance(content, dict) else ...
    if type(value) not in kinds:
        raise HeaderError(f"its entry '{name}' is not {' or '.join(KINDS[kind] for kind in kinds)}")
    return value


def whole(content: Any, name: str, least: int = 0) -> int:
    """An entry of a JSON object that is a whole number of at least ``least``; ``HeaderError`` otherwise."""
    value: int = entry(content, name, int)
    if value < least:
        raise HeaderError(f"its entry '{name}' is {value}, which is less than {least}")
    return value


@contextmanager
def reading_note(of: str) -> Iterator[None]:
    """Read a note that is kept with a model inside this block: whatever is wrong becomes one ``OcilError``."""
    try:
        yield
    except (OcilError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = str(error).rstrip(".")
        raise OcilError(f"the model's note of {of} is damaged: {reason}. Restore it from a copy.") from error


def format_problem(input_format: InputFormat, classes: int) -> Problem:
    """What a learner knows of a model's inputs, with room for so many classes."""
    dtype = torch.from_numpy(np.empty(0, input_format.dtype)).dtype
    return Problem(input_format.network_shape, classes, dtype)


def refuse_unfit(config: LearnerConfig) -> None:
    """Raise an ``OcilError`` for settings that suit a run and no model."""
    if not config.growing:
        raise OcilError("growing = false does not suit a model, whose classes are not known in advance: leave it out.")
    if config.features:
        advice = f"give a model network = {config.features} and freeze = backbone"
        raise OcilError(f"features = {config.features} is for runs: {advice}.")


def check_tensors(header: Header, tensors: Mapping[str, Tensor], trusted: bool) -> None:
    """Raise a ``HeaderError`` unless a learner of these settings has exactly these tensors.

    Nothing is allocated, and no code runs that only the file names, unless it is ``trusted``.

    A method from outside this package may keep its state in its own way: then what its learners have anyway must not be
    larger than in the file, and the rest is left to its ``load_state``.
    """
    met = tensors.get("met")
    if met is None or met.dim() != 1 or met.dtype != torch.bool:
        raise HeaderError("it does not say which classes were met")
    if met.tolist() != [number < len(header.labels) for number in range(len(met))]:
        raise HeaderError(f"it has {len(header.labels)} labels, but has met {int(met.sum())} classes")
    info = method(header.recipe["method"])
    own_state = not isinstance(info.target, str) and (
        info.learner_class.state is not Learner.state or info.learner_class.load_state is not Learner.load_state
    )
    if not trusted and names_code(header.config.network):
        raise UntrustedError(f"has Python code for a network, {header.config.network}")
    expected = _expected(header, len(met), trusted)
    if expected is not None:
        _check_learner(expected, tensors, own_state)
    for name, tensor in tensors.items():
        if name.split(".")[-1] == "met" and not own_state and not torch.equal(tensor, met):
            raise HeaderError(f"its tensors met and {name} differ")
    stored = tensors.get("memory.labels", met.new_zeros(1, dtype=torch.int64))
    if not 0 <= int(stored.min()) <= int(stored.max()) < max(1, len(header.labels)):
        raise HeaderError("its memory holds images of classes that have no label")
    if int((seen := tensors.get("memory.seen", met.new_zeros(1, dtype=torch.int64))).min()) < 0:
        raise HeaderError(f"its memory has seen {int(seen.min())} samples")


def _recipe(given: dict[str, Any]) -> dict[str, Any]:
    _only(given, ("method", "memory", "batch_size", "width", "review_every", "seed", "settings"), "recipe")
    name = entry(given, "method", str)
    if (chosen := METHODS.find(name)) is None:
        raise MissingMethodError(str(METHODS.unknown(name)))
    settings = _settings(chosen, entry(given, "settings", dict))
    if entry(given, "review_every", int, type(None)) is not None:
        whole(given, "review_every")
    whole(given, "memory")
    whole(given, "batch_size", 1)
    whole(given, "width", 1)
    entry(given, "seed", int)
    return given | {"method": chosen.name, "settings": settings}


def _settings(of: MethodInfo, given: dict[str, Any]) -> dict[str, Any]:
    """The settings as they were given, each checked against its field. JSON has no tuples: the field's type decides."""
    kind = of.learner_class.Config
    _only_known_settings(of, given)
    read = values(kind, {name: value for name, value in given.items() if value is not None})
    return {name: read[name] if isinstance(value, list) else value for name, value in given.items()}


def _config(recipe: Mapping[str, Any], given: dict[str, Any]) -> LearnerConfig:
    info = method(recipe["method"])
    _only_known_settings(info, given)
    config = fill(info.learner_class.Config, given)
    if config.memory != (recipe["memory"] if info.memory else 0):
        raise HeaderError(f"its entries disagree on the memory: {config.memory} and {recipe['memory']} images")
    if not config.growing:
        raise HeaderError("it was made with growing = false and cannot take new classes: learn anew")
    if config.pretrained:
        raise HeaderError("it names a file of weights, which a model has in itself")
    refuse_unfit(config)
    return config


def _images(given: dict[str, Any]) -> ImageFormat:
    _only(given, ("shape", "low", "high"), "images")
    shape = tuple(entry(given, "shape", list))
    low, high = (entry(given, name, int, float) for name in ("low", "high"))
    if not -sys.float_info.max <= low <= high <= sys.float_info.max:
        raise HeaderError("its entry 'images' has no numbers for black and white")
    return ImageFormat(shape, float(low), float(high))


def _vectors(given: dict[str, Any]) -> VectorFormat:
    _only(given, ("size", "precision"), "vectors")
    return VectorFormat(whole(given, "size", 1), entry(given, "precision", str))


def _labels(given: list[Any]) -> list[ClassLabel]:
    labels = [decoded(label) for label in given]
    for label in labels:
        encoded(label)
    if len(set(labels)) < len(labels):
        raise HeaderError("two of its labels are equal")
    return labels


def _only_known_settings(of: MethodInfo, given: Iterable[str]) -> None:
    """Raise an ``OtherSettingsError`` for a setting that the method does not have in this version."""
    known = {field.name for field in fields(of.learner_class.Config)}
    if unknown := set(given) - known:
        reason = "a later version of ocil wrote it. Update ocil"
        if not of.is_ours:
            reason = "another version of its plugin wrote it. Load that one"
        raise OtherSettingsError(f"has the setting '{min(unknown)[:40]}', which {of.name} does not have here: {reason}")


def _only(given: Iterable[str], known: Iterable[str], name: str) -> None:
    if unknown := set(given) - set(known):
        raise HeaderError(f"its entry '{name}' has an unknown part '{min(unknown)}'")


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _check_learner(expected: Learner, tensors: Mapping[str, Tensor], own_state: bool) -> None:
    state = expected.state_dict()
    found = {n: t for n, t in tensors.items() if not n.startswith(("optimizer.", "rng."))}
    if own_state:
        for name in sorted(state.keys() & found.keys()):
            if state[name].nbytes > found[name].nbytes:
                raise _misshapen(name, found[name], state[name])
        return
    _compare(state, found)
    given = {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}
    if type(expected.optimizer) is SGD:
        velocities = {f"optimizer.{n}.momentum_buffer": p for n, p in enumerate(expected.optimizer.parameters)}
        _compare({name: velocities[name] for name in given if name in velocities}, given)
    elif type(expected.optimizer) is TorchOptimizer:  # of a stranger's optimiser nothing is known
        for name, tensor in given.items():
            _check_optimizer_tensor(name, tensor, expected.optimizer.parameters)


def _check_optimizer_tensor(name: str, tensor: Tensor, parameters: Sequence[Tensor]) -> None:
    """PyTorch's optimisers keep, per parameter, tensors that can be broadcast to it."""
    number = name.split(".")[1]
    if not number.isdecimal() or len(number) > 9 or int(number) >= len(parameters):
        raise HeaderError(f"its tensor {name} is unknown")
    like = parameters[int(number)]
    sides = zip(reversed(tensor.shape), reversed(like.shape), strict=False)
    if tensor.dim() > like.dim() or any(mine not in (1, its) for mine, its in sides):
        raise _misshapen(name, tensor, like)


def _compare(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name in sorted(expected.keys() ^ found.keys()):
        raise HeaderError(f"its tensor {name} is {'missing' if name in expected else 'unknown'}")
    for name, like in expected.items():
        if (like.shape, like.dtype) != (found[name].shape, found[name].dtype):
            raise _misshapen(name, found[name], like)


def _misshapen(name: str, found: Tensor, expected: Tensor) -> HeaderError:
    has, needs = (f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in (found, expected))
    return HeaderError(f"its tensor {name} is {has}, its settings ask for {needs}")


def _expected(header: Header, capacity: int, trusted: bool) -> Learner | None:
    """A learner of these settings on the meta device, without numbers. None for a method from outside this package
    that cannot be made without numbers: then only its own ``load_state`` checks its tensors.

    A network from outside that cannot be made without numbers is made with them, if it is ``trusted``.
    """
    info, name = method(header.recipe["method"]), Spec.parse(header.config.network, "network").name
    network = NETWORKS.find(name)
    problem = format_problem(header.input_format, capacity)
    ours = isinstance(info.target, str) and (name.startswith("timm:") or (network and isinstance(network.target, str)))
    try:
        return (_kept if ours else _without_numbers)(info.name, header.config, problem)
    except Exception as error:
        if not isinstance(info.target, str):
            return None
        if network is not None and isinstance(network.target, str):
            raise HeaderError(f"its settings make no model: {error}") from error
        if network is None and not trusted:
            raise UntrustedError(f"has a network that cannot be checked before it is built: {error}") from error
    return info.learner_class(header.config, problem)


def _without_numbers(name: str, config: LearnerConfig, problem: Problem) -> Learner:
    with torch.device("meta"), _WithoutNumbers():
        return method(name).learner_class(config, problem)


_kept = lru_cache(maxsize=2)(_without_numbers)
"""Some networks take a second to build, and a service saves its model every few seconds."""


class _WithoutNumbers(TorchFunctionMode):
    """Makes every tensor on the meta device, where it has a shape and a type and takes no memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.to:
            return args[0]
        options = dict(kwargs or {})
        if options.get("device") is not None:
            options["device"] = "meta"
        if func is torch.linspace and options.get("steps", args[2] if len(args) > 2 else 0) in range(1000):
            options["device"] = "cpu"  # networks read such numbers back: how much their layers are to drop
        return func(*args, **options)
