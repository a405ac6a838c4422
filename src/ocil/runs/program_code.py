"""The code of a method that a script or a notebook registers. No plugin file has a digest of it, so a result keeps one,
and a finished result is not taken for that of a class which has changed since without a warning.
"""

import inspect
import platform
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from ocil.methods import METHODS
from ocil.plugins import PROGRAM
from ocil.runs.naming import short_digest

if TYPE_CHECKING:
    from ocil.runs.results import Result

ENTRY = "program_code"
"""Its name in the environment of a result."""


def digest_of_code(method: str) -> str:
    """A digest of what the class of a method defines; empty unless this program has registered it.

    Its functions count, and numbers and texts of the class; comments, line numbers and functions outside it do not.
    """
    if METHODS.origin(method) != PROGRAM:
        return ""
    return short_digest(sorted(_definitions(METHODS[method].load())))


def warn_if_changed(result: "Result") -> None:
    """Warn if a finished result is of a class whose code has changed since."""
    known, now = result.environment.get(ENTRY), digest_of_code(result.config.method)
    same_python = result.environment.get("python") == platform.python_version()  # others have other instructions
    if known and now and known != now and same_python:
        warnings.warn(
            f"the code of {result.config.method} has changed since {result.config.cell} seed {result.config.seed} "
            "was finished: this is the former result. Delete its folder, or give another one, to run it again.",
            stacklevel=3,
        )


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
