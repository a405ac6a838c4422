"""The code of a method that a script or a notebook registers, and of a network that is registered so or is a module. No
plugin file has a digest of it, so a result keeps one: where a finished result is used and the code has changed since, a
warning says so.
"""

import inspect
import platform
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.networks.registry import network, origin_of
from ocil.networks.spec import Spec
from ocil.plugins import PROGRAM, PluginFile
from ocil.runs.naming import short_digest

if TYPE_CHECKING:
    from ocil.runs.config import RunConfig
    from ocil.runs.results import Result

METHOD_ENTRY, NETWORK_ENTRY = "program_code", "network_code"
"""Their names in the environment of a result."""


def digests_of_code(config: "RunConfig") -> dict[str, str]:
    """By their entries: digests of the method and of the network, where nothing else that a run records names them."""
    networks = [_network_code(spec) for spec in (config.learner.network, config.learner.features) if spec]
    found = {METHOD_ENTRY: _method_code(config.method), NETWORK_ENTRY: "".join(networks)}
    return {entry: digest for entry, digest in found.items() if digest}


def changed_code(result: "Result") -> str:
    """What has other code than it had for a result: a method or a network. Empty if nothing is known to have."""
    config, known = result.config, result.environment
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
    """A digest of what the class of a method defines; empty unless this program has registered it.

    Its functions count, and numbers and texts of the class; comments, line numbers and functions outside it do not.
    """
    if METHODS.origin(name) != PROGRAM:
        return ""
    return short_digest(sorted(_definitions(METHODS[name].load())))


def _network_code(spec: str) -> str:
    """A digest of the file of a ``module:`` network, or of what a network defines that this program has registered."""
    name = Spec.parse(spec, "network").name
    if name.startswith("module:"):
        try:
            return PluginFile.read(inspect.getsourcefile(network(name).load()) or "").digest
        except (TypeError, OcilError):  # a factory without a file of its own
            return ""
    if origin_of(spec) != PROGRAM:
        return ""
    factory: Any = network(name).load()
    if isinstance(factory, type):
        return short_digest(sorted(_definitions(factory)))
    code = getattr(inspect.unwrap(factory), "__code__", None)
    return short_digest(_text(code)) if code is not None else ""


def _definitions(kind: type) -> Iterator[str]:
    for parent in kind.__mro__:
        if parent.__module__.partition(".")[0] in ("ocil", "torch", "builtins"):
            continue
        for name, value in vars(parent).items():
            code = getattr(inspect.unwrap(getattr(value, "__func__", value)), "__code__", None)
            if code is not None:
                yield f"{parent.__name__}.{name}: {_text(code)}"
            elif isinstance(value, int | float | str) and not name.startswith("__"):
                yield f"{parent.__name__}.{name}: {value!r}"


def _text(code: CodeType) -> str:
    return repr((code.co_code.hex(), code.co_names, [_constant(value) for value in code.co_consts]))


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _text(value)
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)  # a set has no order of its own
