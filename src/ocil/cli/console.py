"""What commands print: results on standard output, messages and progress on standard error.

Labels, names of files and what is in files come from others, so control characters in them are escaped.
"""

import codecs
import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ocil.text import SPELLED, escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

    from ocil.report.terminal_table import Lines

WIDTH = 120
"""Columns, if the output is not a terminal."""


def accept_all_text() -> None:
    """Let standard output take every character, also where its encoding is not UTF-8.

    That is so with an old locale, and on Windows if the output is a file. Python would end with a traceback in the
    middle of a table.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors in ("strict", "surrogateescape"):
        codecs.register_error("ocil.spelled", _spelled)
        out.reconfigure(errors="ocil.spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """The handler of encoding errors: what to write in place of the characters, ``?`` for most, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(SPELLED.get(letter, "?") for letter in letters), error.end


def info(message: str) -> None:
    """One line on standard error."""
    print(escaped(message), file=sys.stderr, flush=True)


def warning(message: str) -> None:
    info(f"ocil: warning: {_one_line(message)}")


def error(message: str) -> None:
    info(f"ocil: error: {_one_line(message)}")


def print_line(message: str) -> None:
    """One line on standard output."""
    print(escaped(message))


def print_json(content: Any) -> None:
    """One JSON object in one line. Nothing is escaped beyond what JSON escapes."""
    print(json.dumps(content), flush=True)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    lines: "Lines" = "all",
    wrap: Literal["all", "last"] = "all",
) -> None:
    """A table on standard output, see ``ocil.report.terminal_table.terminal``."""
    from ocil.report.table import Column, Row, Table
    from ocil.report.terminal_table import terminal

    table = Table(title, tuple(map(Column, columns)), tuple(Row.of(*row) for row in rows))
    stdout().print(terminal(table, lines=lines, wrap=wrap))


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and their explanations in two columns, indented; long explanations are wrapped."""
    from ocil.report import terminal_table

    console = stdout()
    console.print(*terminal_table.pairs(pairs, console.width), sep="")


def stdout(width: int = WIDTH) -> "Console":
    """Standard output, as wide as the terminal, or ``width`` columns if it is not one."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


def stderr() -> "Console":
    """Standard error, for bars and live tables."""
    from rich.console import Console

    return Console(stderr=True)


def bars(*columns: "ProgressColumn", transient: bool = True) -> "Progress":
    """Bars on standard error. Where that is no terminal, those that pass leave nothing behind, not even the empty line
    that would end them; others are written as they are at the end."""
    from rich.progress import Progress

    screen = stderr()
    return Progress(*columns, console=screen, transient=transient, disable=transient and not screen.is_terminal)


def _one_line(message: str) -> str:
    return " ".join(message.split())
