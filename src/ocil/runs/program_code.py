"""The code of a method or network that a script, a notebook or another package registers, and of a network that is a
module. No plugin file has a digest of it, so a result keeps one: where a finished result is used and the code has
changed since, a warning says so. A run is not resumed from a checkpoint of other code.
"""

import inspect
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.networks.registry import network, origin_of
from ocil.networks.spec import Spec
from ocil.plugins import OURS, PROGRAM, Origin, PluginFile
from ocil.runs.naming import short_digest
from ocil.runs.source_names import bound_in_module, varying_in_class, varying_in_module

if TYPE_CHECKING:
    from ocil.runs.config import RunConfig
    from ocil.runs.results import Result

METHOD_ENTRY, NETWORK_ENTRY = "program_code", "network_code"
"""Their names in the environment of a result."""
CODE_ENTRIES = ("python", METHOD_ENTRY, NETWORK_ENTRY)
"""What ``changed_code`` looks at in the environment of a result."""
LIBRARIES = ("ocil", "torch", "builtins")  # packages whose code is not looked at: versions stand for it


def digests_of_code(config: "RunConfig") -> dict[str, str]:
    """By their entries: digests of the method and of the network, where nothing else that a run records names them.

    They are equal in all processes with the same version of Python.
    """
    networks = [_network_code(spec) for spec in (config.learner.network, config.learner.features) if spec]
    found = {METHOD_ENTRY: _method_code(config.method), NETWORK_ENTRY: "".join(networks)}
    return {entry: digest for entry, digest in found.items() if digest}


def changed_code(result: "Result") -> str:
    """What has other code than it had for a result: a method or a network. Empty if nothing is known to have."""
    return changed_since(result.config, result.environment)


def changed_since(config: "RunConfig", known: Mapping[str, Any]) -> str:
    """The same for a run of which the entries of its code are ``known``, and its version of Python."""
    same_python = known.get("python") == platform.python_version()  # others have other instructions
    if not same_python or not {METHOD_ENTRY, NETWORK_ENTRY} & known.keys():
        return ""
    now, spec = digests_of_code(config), config.learner.features or config.learner.network
    for entry, name in ((METHOD_ENTRY, config.method), (NETWORK_ENTRY, f"the network {spec}")):
        if entry in known and entry in now and known[entry] != now[entry]:
            return name
    return ""


def warn_if_changed(result: "Result") -> None:
    """Warn if a finished result is of a method or network whose code has changed since."""
    if changed := changed_code(result):
        warnings.warn(
            f"the code of {changed} has changed since {result.config.cell} seed {result.config.seed} "
            "was finished: this is the former result. Delete its folder, or give another one, to run it again.",
            stacklevel=3,
        )


def _method_code(name: str) -> str:
    """A digest of the code of a method; empty if it is ours or of a plugin file."""
    return _code_of(METHODS[name].load(), METHODS.origin(name))


def _network_code(spec: str) -> str:
    """A digest of the file of a ``module:`` network, or of the code of a network that is registered by its name."""
    name = Spec.parse(spec, "network").name
    if name.startswith("module:"):
        try:
            return PluginFile.read(inspect.getsourcefile(network(name).load()) or "").digest
        except (TypeError, OcilError):  # a factory without a file of its own
            return ""
    return "" if ":" in name else _code_of(network(name).load(), origin_of(spec))


def _code_of(thing: Any, origin: Origin) -> str:
    """A digest of a class or function that this program or a package has registered.

    Of a program, what it defines itself counts. Of a package, all that its module and those of the package behind it
    define counts. Comments, line numbers and docstrings never count, nor do values that may differ from process to
    process (see ``source_names``).
    """
    if origin.kind == "package" and origin != OURS:
        return short_digest(sorted(set(_definitions_of_package(thing))))
    if origin != PROGRAM:
        return ""
    if isinstance(thing, type):
        return short_digest(sorted(_definitions(thing)))
    text = _function(thing)
    return short_digest(text) if text is not None else ""


def _definitions_of_package(thing: Any) -> Iterator[str]:
    """The classes, functions and numbers of a thing's module, and of those in its package that it imports.

    A text outside of them may be a path of this machine, and does not count.
    """
    first = getattr(thing, "__module__", "")
    package, waiting, known = first.partition(".")[0], [first], set[str]()
    while waiting:
        name = waiting.pop()
        if name in known or name.partition(".")[0] != package or name not in sys.modules or package in LIBRARIES:
            continue
        known.add(name)
        module = sys.modules[name]
        bound, varying = bound_in_module(module), varying_in_module(module)
        for key, value in list(vars(module).items()):
            if bound is not None and key not in bound:  # imported later, by a function: not in every process
                continue
            home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if home == name and isinstance(value, type):
                yield from _definitions(value)
            elif home == name and (text := _function(value)) is not None:
                yield f"{name}.{key}: {text}"
            elif isinstance(home, str):
                waiting.append(home)
            elif isinstance(value, int | float) and not key.startswith("__") and key not in varying:
                yield f"{name}.{key}: {value!r}"


def _definitions(kind: type) -> Iterator[str]:
    for parent in kind.__mro__:
        if parent.__module__.partition(".")[0] in LIBRARIES:
            continue
        varying = varying_in_class(parent)
        for name, value in vars(parent).items():
            if (text := _function(value)) is not None:
                yield f"{parent.__name__}.{name}: {text}"
            elif isinstance(value, int | float | str) and not name.startswith("__") and name not in varying:
                yield f"{parent.__name__}.{name}: {value!r}"


def _function(thing: Any) -> str | None:
    """What a function runs, without decorators and docstring, and its plain defaults; None for what is no function."""
    function = inspect.unwrap(getattr(thing, "__func__", thing))
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    named = getattr(function, "__kwdefaults__", None) or {}
    defaults = [*(getattr(function, "__defaults__", None) or ()), *named.values()]
    plain = [repr(value) for value in defaults if _is_plain(value)]
    return _text(code, getattr(function, "__doc__", None)) + (f" {plain}" if plain else "")


def _is_plain(value: Any) -> bool:
    """Whether it is a number or a text, or a tuple of them: all else may be written otherwise in another process."""
    return isinstance(value, int | float | str) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _text(code: CodeType, doc: str | None = None) -> str:
    constants = list(code.co_consts)
    if doc is not None and constants[:1] == [doc]:
        constants[0] = None  # as without it; the instructions know the others by their place
    return repr((code.co_code.hex(), code.co_names, [_constant(value) for value in constants]))


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _text(value)
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)  # a set has no order of its own
