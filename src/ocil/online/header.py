"""The header of a model file. The file may come from anywhere, so nothing in it is trusted: before a model is
allocated, every entry must have its type and range, and every tensor the shape and type that follow from the settings.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ocil.errors import OcilError
from ocil.learning.sgd import SGD
from ocil.methods import MethodInfo, method
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.networks import pretrained
from ocil.networks.registry import is_known
from ocil.online.images import ImageFormat
from ocil.online.labels import ClassLabel, decoded, encoded
from ocil.runs.config import fill, values

FORMAT = 1

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


class NewerFormatError(HeaderError):
    """A header that a later version of this package has written."""


@dataclass(frozen=True)
class Header:
    recipe: dict[str, Any]
    config: LearnerConfig
    images: ImageFormat
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
        _images(entry(content, "images", dict)),
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


def check_tensors(header: Header, tensors: Mapping[str, Tensor]) -> None:
    """Raise a ``HeaderError`` unless a learner of these settings has exactly these tensors. Allocates nothing.

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
        info.load().state is not Learner.state or info.load().load_state is not Learner.load_state
    )
    expected = _expected(header, len(met))
    if expected is not None:
        _check_learner(expected, tensors, own_state)
    for name, tensor in tensors.items():
        if name.split(".")[-1] == "met" and not own_state and not torch.equal(tensor, met):
            raise HeaderError(f"its tensors met and {name} differ")
    stored = tensors.get("memory.labels", met.new_zeros(1, dtype=torch.int64))
    if not 0 <= int(stored.min()) <= int(stored.max()) < max(1, len(header.labels)):
        raise HeaderError("its memory holds images of classes that have no label")


def _recipe(given: dict[str, Any]) -> dict[str, Any]:
    _only(given, ("method", "memory", "batch_size", "width", "review_every", "seed", "settings"), "recipe")
    chosen = method(entry(given, "method", str))
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
    kind = of.load().Config
    _only(given, (field.name for field in fields(kind)), "settings")
    read = values(kind, {name: value for name, value in given.items() if value is not None})
    return {name: read[name] if isinstance(value, list) else value for name, value in given.items()}


def _config(recipe: Mapping[str, Any], given: dict[str, Any]) -> LearnerConfig:
    info = method(recipe["method"])
    kind = info.load().Config
    _only(given, (field.name for field in fields(kind)), "config")
    config = fill(kind, given)
    if config.memory != (recipe["memory"] if info.memory else 0):
        raise HeaderError(f"its entries disagree on the memory: {config.memory} and {recipe['memory']} images")
    if not config.growing:
        raise HeaderError("it was made with growing = false and cannot take new classes: learn anew")
    return config


def _images(given: dict[str, Any]) -> ImageFormat:
    _only(given, ("shape", "low", "high"), "images")
    shape = tuple(entry(given, "shape", list))
    low, high = (entry(given, name, int, float) for name in ("low", "high"))
    if not -sys.float_info.max <= low <= high <= sys.float_info.max:
        raise HeaderError("its entry 'images' has no numbers for black and white")
    return ImageFormat(shape, float(low), float(high))


def _labels(given: list[Any]) -> list[ClassLabel]:
    labels = [decoded(label) for label in given]
    for label in labels:
        encoded(label)
    if len(set(labels)) < len(labels):
        raise HeaderError("two of its labels are equal")
    return labels


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
    if type(expected.optimizer) is SGD:  # of another optimiser's state nothing is known
        velocities = {f"optimizer.{n}.momentum_buffer": p for n, p in enumerate(expected.optimizer.parameters)}
        given = {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}
        _compare({name: velocities[name] for name in given if name in velocities}, given)


def _compare(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name in sorted(expected.keys() ^ found.keys()):
        raise HeaderError(f"its tensor {name} is {'missing' if name in expected else 'unknown'}")
    for name, like in expected.items():
        if (like.shape, like.dtype) != (found[name].shape, found[name].dtype):
            raise _misshapen(name, found[name], like)


def _misshapen(name: str, found: Tensor, expected: Tensor) -> HeaderError:
    has, needs = (f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in (found, expected))
    return HeaderError(f"its tensor {name} is {has}, its settings ask for {needs}")


def _expected(header: Header, capacity: int) -> Learner | None:
    """A learner of these settings on the meta device, without numbers. None for a method from outside this package
    that cannot be made without numbers: then only its own ``load_state`` checks its tensors.
    """
    info = method(header.recipe["method"])
    if not is_known(header.config.network):  # a file may not choose which code is imported
        raise HeaderError(f"its network is {header.config.network}: import that module first, if you trust it")
    try:
        with torch.device("meta"), _WithoutNumbers(), pretrained.skipped():
            return info.load()(header.config, Problem(header.images.network_shape, capacity))
    except Exception as error:
        if isinstance(info.target, str):
            raise HeaderError(f"its settings make no model: {error}") from error
        return None


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
        return func(*args, **options)
