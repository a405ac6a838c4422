"""What a model file says of itself. The file may come from a stranger, so nothing of it is believed: every entry must
have its type and range, and every tensor the shape and type that follow from the settings, before a model is allocated.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ocil.config import fill, values
from ocil.errors import OcilError
from ocil.methods import MethodInfo, method
from ocil.methods.base import Learner, LearnerConfig, Problem
from ocil.online.images import ImageFormat, InputError
from ocil.sgd import SGD

FORMAT = 1

Label = Any  # hashable; to be saved: str, int, float, bool, None, or a tuple of these

KINDS: dict[type, str] = {
    dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a whole number", float: "a number",
    type(None): "null",
}  # fmt: skip


class HeaderError(ValueError):
    """A header that describes no model."""


class NewerFormatError(HeaderError):
    """A header that a later version of this package has written."""


@dataclass(frozen=True)
class Header:
    recipe: dict[str, Any]
    config: LearnerConfig
    images: ImageFormat
    labels: list[Label]
    batches: int
    samples: int
    device: str
    """The kind of device that the random generators belong to."""
    note: dict[str, dict[str, Any]]


def parsed(text: str) -> Header:
    """A header from its JSON, or a ``HeaderError`` or ``OcilError`` that says what is wrong with it."""
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
    """An entry of a JSON object, of one of these types. A bool is no number."""
    value = content.get(name, ...) if isinstance(content, dict) else ...
    if type(value) not in kinds:
        raise HeaderError(f"its entry '{name}' is not {' or '.join(KINDS[kind] for kind in kinds)}")
    return value


def whole(content: Any, name: str, least: int = 0) -> int:
    value: int = entry(content, name, int)
    if value < least:
        raise HeaderError(f"its entry '{name}' is {value}, which is less than {least}")
    return value


@contextmanager
def reading_note(of: str) -> Iterator[None]:
    """Whoever keeps a note with a model reads it inside this block, which makes one line of whatever is wrong."""
    try:
        yield
    except (OcilError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = str(error).rstrip(".")
        raise OcilError(f"the model's note of {of} is damaged: {reason}. Restore it from a copy.") from error


def encoded(label: Label) -> Any:
    """A label as JSON."""
    if isinstance(label, tuple):
        return [encoded(part) for part in label]
    if type(label) is float and not math.isfinite(label):
        raise InputError(f"{label} is no label: use text or a finite number.")
    if label is None or type(label) in (str, int, float, bool):
        return label
    wanted = "text, numbers, true or false, or tuples of them"
    raise InputError(f"a label of type {type(label).__name__} cannot be saved: use {wanted}.")


def decoded(label: Any) -> Label:
    """A label from JSON, which knows no tuples."""
    return tuple(decoded(part) for part in label) if isinstance(label, list) else label


def check_tensors(header: Header, tensors: Mapping[str, Tensor]) -> None:
    """Raise a ``HeaderError`` unless a learner of these settings has exactly these tensors. Allocates nothing.

    A method from outside this package may keep its state in its own way: then what its learners have anyway must not be
    larger than in the file, and the rest is left to its ``load_state``.
    """
    met = tensors.get("met")
    if met is None or met.dim() != 1 or met.dtype != torch.bool:
        raise HeaderError("it does not tell which classes were met")
    if met.tolist() != [number < len(header.labels) for number in range(len(met))]:
        raise HeaderError(f"it has {len(header.labels)} labels, but has met {int(met.sum())} classes")
    own_state = _keeps_its_own_state(method(header.recipe["method"]))
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
    """As they were given, each of which its field's type can be read from. JSON knows no tuples: the type tells."""
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


def _labels(given: list[Any]) -> list[Label]:
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


def _keeps_its_own_state(info: MethodInfo) -> bool:
    """Whether a method from outside this package has written what a state consists of."""
    learner = info.load()
    return not isinstance(info.target, str) and (
        learner.state is not Learner.state or learner.load_state is not Learner.load_state
    )


def _check_learner(expected: Learner, tensors: Mapping[str, Tensor], own_state: bool) -> None:
    of_learner = {n: t for n, t in tensors.items() if not n.startswith(("optimizer.", "rng."))}
    if own_state:
        _refuse_smaller(expected.state_dict(), of_learner)
        return
    _compare(expected.state_dict(), of_learner)
    if type(expected.optimizer) is SGD:  # of another optimiser's state nothing is known
        velocities = {f"optimizer.{n}.momentum_buffer": p for n, p in enumerate(expected.optimizer.parameters)}
        given = {name: tensor for name, tensor in tensors.items() if name.startswith("optimizer.")}
        _compare({name: velocities[name] for name in given if name in velocities}, given)


def _refuse_smaller(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name in sorted(expected.keys() & found.keys()):
        if expected[name].nbytes > found[name].nbytes:
            raise HeaderError(
                f"its tensor {name} is {_kind(found[name])}, its settings ask for {_kind(expected[name])}"
            )


def _compare(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name in sorted(expected.keys() ^ found.keys()):
        raise HeaderError(f"its tensor {name} is {'missing' if name in expected else 'unknown'}")
    for name, like in expected.items():
        if (like.shape, like.dtype) != (found[name].shape, found[name].dtype):
            raise HeaderError(f"its tensor {name} is {_kind(found[name])}, its settings ask for {_kind(like)}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _expected(header: Header, capacity: int) -> Learner | None:
    """A learner of these settings whose tensors have no numbers. None for a method from outside this package that
    needs numbers to be made, and fails without them in whatever way; its own ``load_state`` must do.
    """
    info = method(header.recipe["method"])
    try:
        with torch.device("meta"), _WithoutNumbers():
            return info.load()(header.config, Problem(header.images.network_shape, capacity))
    except Exception as error:
        if isinstance(info.target, str):
            raise HeaderError(f"its settings make no model: {error}") from error
        return None


class _WithoutNumbers(TorchFunctionMode):
    """Inside, a tensor has a shape and a type and takes no memory, whatever device it is made for."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.to:
            return args[0]
        options = dict(kwargs or {})
        if options.get("device") is not None:
            options["device"] = "meta"
        return func(*args, **options)
