"""The code of a method or network that a script, a notebook or another package registers, and of a network that is a
module. No plugin file has a digest of it, so a result keeps one: where a finished result is used and the code has
changed since, a warning says so. A run is not resumed from a checkpoint of other code.
"""

import ast
import inspect
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.networks.registry import network, origin_of
from ocil.networks.spec import Spec
from ocil.plugins import OURS, PROGRAM, Origin, PluginFile
from ocil.runs.naming import short_digest

if TYPE_CHECKING:
    from ocil.runs.config import RunConfig
    from ocil.runs.results import Result

METHOD_ENTRY, NETWORK_ENTRY = "program_code", "network_code"
"""Their names in the environment of a result."""
CODE_ENTRIES = ("python", METHOD_ENTRY, NETWORK_ENTRY)
"""What ``changed_code`` looks at in the environment of a result."""
LIBRARIES = ("ocil", "torch", "builtins")  # packages whose code is not looked at: versions stand for it
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digests_of_code(config: "RunConfig") -> dict[str, str]:
    """Digests of the code of the method and of the network, by the name of their entry in a result. A part that
    something else in the result identifies, such as the version of ocil, has none.

    They are equal in all processes with the same version of Python.
    """
    networks = [_network_code(spec) for spec in (config.learner.network, config.learner.features) if spec]
    found = {METHOD_ENTRY: _method_code(config.method), NETWORK_ENTRY: "".join(networks)}
    return {entry: digest for entry, digest in found.items() if digest}


def changed_code(result: "Result") -> str:
    """The method or network whose code has changed since a result was made. Empty if none is known to have changed."""
    return changed_since(result.config, result.environment)


def changed_since(config: "RunConfig", known: Mapping[str, Any]) -> str:
    """The same for a run that has no result yet. ``known``: what was recorded about its code and version of Python."""
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
    return _code_of(METHODS[name].learner_class, METHODS.origin(name))


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

    For a program it covers what the program itself defines. For a package it covers the whole module, and all modules
    of the package that this one imports. Comments and docstrings never count.
    """
    if origin.kind == "package" and origin != OURS:
        return _digest_of_package(thing)
    if origin != PROGRAM:
        return ""
    if isinstance(thing, type):
        return short_digest(sorted(_definitions(thing)))
    text = _function(thing)
    return short_digest(text) if text is not None else ""


@cache  # by the class or function that was loaded: its file may be edited while it runs
def _digest_of_package(thing: Any) -> str:
    """A digest of the module that defines a thing, and of the modules of its package that this one imports.

    The source files are compared as syntax trees. The loaded modules would not do: a counter, a time or a late import
    in them may differ from process to process.
    """
    first = getattr(thing, "__module__", "")
    waiting, found = [first], dict[str, str]()
    while waiting:
        name = waiting.pop()
        of_package = name.partition(".")[0] == first.partition(".")[0]
        file = _file(name) if of_package and name not in found else None
        tree = None if file is None else _tree(file)
        if file is not None and tree is not None:
            found[name] = ast.dump(tree)
            waiting += _imported(name if file.name == "__init__.py" else name.rpartition(".")[0], tree)
    return short_digest(sorted(found.items()))


def _file(module: str) -> Path | None:
    """The source of a module, found without an import, which would run code; None if there is none."""
    top, *parts = module.split(".")
    if not parts and (file := getattr(sys.modules.get(top), "__file__", None)):
        return Path(file)
    folders = [Path(folder, *parts) for folder in getattr(sys.modules.get(top), "__path__", ())]
    files = [file for folder in folders for file in (folder / "__init__.py", folder.with_name(f"{folder.name}.py"))]
    return next((file for file in files if file.is_file()), None)


def _tree(file: Path) -> ast.Module | None:
    """The syntax tree of a module without its docstrings; None if the file is no source."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # compiled, for example
        return None
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return tree


def _imported(package: str, tree: ast.Module) -> Iterator[str]:
    """The modules that a module imports, at its beginning or later. Some of the names may be no modules.

    ``package``: what its relative imports begin from.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = resolve_name("." * node.level + (node.module or ""), package)
            yield home
            yield from (f"{home}.{alias.name}" for alias in node.names)


def _definitions(kind: type) -> Iterator[str]:
    for parent in kind.__mro__:
        if parent.__module__.partition(".")[0] in LIBRARIES:
            continue
        for name, value in vars(parent).items():
            texts = [text for each in _behind(value) if (text := _function(each)) is not None]
            if texts:
                yield from (f"{parent.__name__}.{name}: {text}" for text in texts)
            elif isinstance(value, int | float | str) and not name.startswith("__"):
                yield f"{parent.__name__}.{name}: {value!r}"


def _behind(value: Any) -> tuple[Any, ...]:
    """The functions of a property; of anything else the value itself."""
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    return (value.func if isinstance(value, cached_property) else value,)


def _function(thing: Any) -> str | None:
    """What a function runs, without its decorators, and its plain default values; None for what is no function."""
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
        constants[0] = None  # as without it; instructions know the others by their place
    return repr((code.co_code.hex(), code.co_names, [_constant(value) for value in constants]))


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _text(value)
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)  # a set has no order of its own
