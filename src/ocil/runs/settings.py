"""Settings as text and as values: a config class is filled from the words of a command line."""

import ast
import inspect
import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from ocil.errors import LaterVersionError, OcilError, suggest
from ocil.limits import python_value
from ocil.methods.config import hints_of

T = TypeVar("T")


def as_argument(value: Any) -> str:
    """A value as text that ``--set NAME=`` reads back."""
    if isinstance(value, list | tuple):
        return ",".join(map(as_argument, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def refuse_no_dictionary(name: str, given: object, example: str) -> None:
    if not isinstance(given, Mapping):
        raise OcilError(f"{name} = {given!r} must be a dictionary, such as {example}.")


def refuse_unknown(name: str, given: Iterable[str], known: set[str]) -> None:
    for key in given:
        if key not in known:
            raise OcilError(f"unknown setting '{key}' for {name}.{suggest(str(key), known)}")


def fill(kind: type[T], chosen: Mapping[str, Any]) -> T:
    """A config class with the chosen values of its fields, each read as the field's type; the rest by default."""
    return kind(**values(kind, chosen))


def values(kind: type, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen values of a config class's fields, each read as the field's type. Other names are left out."""
    hints = hints_of(kind)
    names = [f.name for f in fields(kind) if f.init and f.name in chosen]
    return {name: read_as(name, chosen[name], hints[name]) for name in names}


def restored(kind: type[T], content: Mapping[str, Any]) -> T:
    """A config class from a file. A setting that the file lacks was added since and has its default."""
    refuse_later(kind, content)
    return kind(**content)


def refuse_later(kind: type, content: Iterable[str]) -> None:
    """Raise if a file has a setting that this version does not know."""
    if later := sorted(set(content) - _names_in(kind)):
        raise LaterVersionError(f"this version of ocil has no setting '{later[0][:40]}': a later one wrote it")


@cache
def _names_in(kind: Any) -> frozenset[str]:
    return frozenset(f.name for f in fields(kind))


def read_as(name: str, value: Any, kind: Any) -> Any:
    """A setting as its field's type; text from a command line is read as that type."""
    value = python_value(value)
    if kind is Any:
        return value
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return _parse_union(name, value, kind)
    if origin in (list, tuple):
        return _parse_items(name, value, kind)
    if origin is Literal:
        if value not in get_args(kind):
            raise OcilError(f"{name} = {value!r} is not a choice.{suggest(str(value), map(str, get_args(kind)))}")
        return value
    try:
        found = _parse_plain(value, kind)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise OcilError(f"{name} = {value!r} is not {_in_words(kind)}.") from None
    if kind is int and abs(found) >= 2**63:
        raise OcilError(f"{name} = {value!r} is too large.")
    return found


def _parse_plain(value: Any, kind: Any) -> Any:
    """A setting of a type that is not made of others. Raises whatever shows that the value is not of that type."""
    if kind is NoneType:
        return {"none": None}[str(value).lower()]
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return value if isinstance(value, bool) else words[str(value).lower()]
    if isinstance(value, bool) or (kind is int and float(value) != int(float(value))):
        raise ValueError
    if kind is float and not math.isfinite(float(value)):
        raise ValueError
    return kind(value)


def _parse_union(name: str, value: Any, kind: Any) -> Any:
    """A setting of one of several types. A value that has one of them keeps it; text is read as the first that fits."""
    kinds = get_args(kind)
    if type(value) in kinds and not isinstance(value, str):
        return read_as(name, value, type(value))
    for one in sorted(kinds, key=lambda one: (one is str, one is not NoneType)):  # any text would do as a str
        try:
            return read_as(name, value, one)
        except OcilError:
            continue
    raise OcilError(f"{name} = {value!r} is not {_in_words(kind)}.")


def _parse_items(name: str, value: Any, kind: Any) -> Any:
    """A list or tuple, item by item; in text, commas stand between the items."""
    make, kinds = get_origin(kind) or kind, get_args(kind) or (Any, ...)
    items = [part.strip() for part in value.split(",") if value] if isinstance(value, str) else value
    if isinstance(items, list | tuple):
        if make is list or kinds[-1] is ...:
            kinds = kinds[:1] * len(items)
        if len(items) == len(kinds):
            return make(read_as(name, item, one) for item, one in zip(items, kinds, strict=True))
    raise OcilError(f"{name} = {value!r} is not {_in_words(kind)}.")


def _in_words(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_in_words, get_args(kind)))
    if get_origin(kind) in (list, tuple):
        return "a list (as text: '4,3,3')"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "none"}
    return words.get(kind, str(kind))


def meanings(config: type) -> dict[str, str]:
    """The docstring below each field of a config class and its bases, as far as their source is known."""
    found: dict[str, str] = {}
    for kind in reversed(config.__mro__[:-1]):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        except (OSError, TypeError, SyntaxError, ValueError):  # made in a notebook or by a program: it has no source
            continue
        if not isinstance(body, ast.ClassDef):
            continue
        for field_, text in pairwise(body.body):
            if isinstance(field_, ast.AnnAssign) and isinstance(field_.target, ast.Name) and isinstance(text, ast.Expr):
                found[field_.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found
