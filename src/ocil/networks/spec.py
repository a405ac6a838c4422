"""``NAME`` or ``NAME(option=value, ...)``: how a setting names a network or an optimiser with its options."""

import ast
import re
from dataclasses import dataclass
from typing import Any

from ocil.errors import OcilError

_CALL = re.compile(r"(?P<name>[^()]+?)\s*(?:\((?P<options>.*)\))?", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """A name and its options."""

    name: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str, setting: str) -> "Spec":
        """Read ``NAME(option=value, ...)``. Values are Python literals. ``setting`` is named in errors."""
        found = _CALL.fullmatch(text.strip())
        if found is None:
            raise OcilError(f"{setting} = {text!r} is not a NAME, or NAME(option=value, ...).")
        name, options = found["name"].strip(), found["options"]
        return cls(name, {} if options is None else _literals(options, text, setting))

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.name}({options})" if options else self.name


def _literals(options: str, text: str, setting: str) -> dict[str, Any]:
    example = "write each option once as name=value, for example NAME(width=64), with texts in quotes"
    try:
        call = ast.parse(f"f({options})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        names = [word.arg for word in call.keywords]
        if call.args or None in names or len(set(names)) < len(names):
            raise ValueError
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise OcilError(f"{setting} = {text!r} cannot be read: {example}.") from None
