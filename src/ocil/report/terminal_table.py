"""The writer of tables for a terminal. It fits a table to the terminal's width and breaks lines between words only."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ocil.report.table import Table, all_values
from ocil.text import SPELLED, escaped, has_letter

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

Lines = Literal["all", "head", "none"]
LONGEST_WORD = 24
"""A word with more letters than this, such as the path of a file, may be broken."""
LEAST_TEXT = 20
"""If fewer columns than this are left beside a name, its explanation stands below it."""


def terminal(
    table: Table, narrow: bool = False, lines: Lines = "all", wrap: Literal["all", "last"] = "all"
) -> "TerminalTable":
    """The table for ``rich``'s console. Text that is too long for its column is wrapped.

    ``narrow`` saves space: less of it between columns, and no remark that a number is of one seed; only the first
    column is not wrapped. ``lines``: around every value, below the head only, or none. ``wrap``: which columns may be
    narrower than their text.
    """
    heads = [column.title for column in table.columns]
    rows = []
    for row in table.rows:
        values = all_values(row, table)
        texts = (value.text.removesuffix(" (one seed)" if narrow else "") for value in values)
        more = (f" ({value.paired})" if value.paired else "" for value in values)
        rows.append([text + paired for text, paired in zip(texts, more, strict=True)])
    last = len(heads) - 1
    fixed = [(narrow and place == 0) or (wrap == "last" and place < last) for place in range(len(heads))]
    return TerminalTable(table.title, heads, rows, narrow, lines, fixed)


@dataclass(frozen=True)
class TerminalTable:
    """A table that ``rich`` can print. If it does not fit, every row is printed as a list of its values."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    narrow: bool
    lines: Lines
    fixed: Sequence[bool]
    """For each column whether its text is never wrapped."""

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        return self._spelled(options.encoding)._fitted(options.max_width)

    def _spelled(self, encoding: str) -> "TerminalTable":
        """The table as the output can have it: what has to be written otherwise has another width."""
        letters = {ord(letter): text for letter, text in SPELLED.items() if not has_letter(encoding, letter)}
        rows = [[text.translate(letters) for text in row] for row in self.rows]
        return replace(self, heads=[head.translate(letters) for head in self.heads], rows=rows)

    def _fitted(self, room: int) -> "Iterator[RenderableType]":
        texts = list(zip(self.heads, *self.rows, strict=True))
        natural = [max(map(_width, column)) for column in texts]
        words = [max(map(_longest_word, column)) for column in texts]
        least = [n if fixed else w for n, w, fixed in zip(natural, words, self.fixed, strict=True)]
        widths = fitting_widths(natural, least, room - self._between)
        if widths is None:
            yield from self._listed(room)
        else:
            yield self._drawn(widths)

    @property
    def _padding(self) -> tuple[int, int]:
        """Blanks before and after a value."""
        return (0, 1) if self.narrow else {"all": (1, 1), "head": (0, 1), "none": (0, 2)}[self.lines]

    @property
    def _between(self) -> int:
        """How many columns of the terminal are taken by lines and blanks."""
        blanks = sum(self._padding) * len(self.heads) - (self._padding[1] if self.narrow else 0)
        return blanks + (0 if self.lines == "none" else len(self.heads) + 1)

    def _drawn(self, widths: Sequence[int]) -> "RichTable":
        from rich import box
        from rich.table import Table as RichTable

        before, after = self._padding
        shown = RichTable(
            title=literal(self.title) if self.title else None,
            title_justify="left" if self.lines == "none" else "center",
            box={"all": box.HEAVY_HEAD, "head": box.SIMPLE, "none": None}[self.lines],
            padding=(0, after, 0, before),
            pad_edge=not self.narrow,
        )
        for head, width in zip(self.heads, widths, strict=True):
            shown.add_column(literal(head), overflow="fold", width=width)
        for row in self.rows:
            shown.add_row(*map(literal, row))
        return shown

    def _listed(self, width: int) -> "Iterator[RenderableType]":
        if self.title:
            yield literal(self.title)
        for name, *values in self.rows:
            yield literal(f"{self.heads[0]} {name}")
            found = zip(self.heads[1:], values, strict=True)
            yield from pairs([(head, value) for head, value in found if value], width)


def fitting_widths(natural: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Widths of columns that fit into ``room`` together: the widest are made narrower, none below its least width.

    None if they do not fit.

    >>> fitting_widths([10, 4, 30], [5, 4, 8], 30)
    [10, 4, 16]
    """
    if sum(least) > room:
        return None
    widths = list(natural)
    while sum(widths) > room:
        places = [place for place, width in enumerate(widths) if width > least[place]]
        widths[max(places, key=lambda place: widths[place])] -= 1
    return widths


def pairs(found: Iterable[tuple[str, str]], width: int) -> "Iterator[RenderableType]":
    """Names and their explanations in two columns, indented. Without room for a second column they stand below."""
    from rich.padding import Padding
    from rich.table import Table as RichTable

    listed = list(found)
    names, texts = (max((_width(pair[place]) for pair in listed), default=0) for place in (0, 1))
    if 2 + names + 2 + min(texts, LEAST_TEXT) > width:
        for name, text in listed:
            yield Padding(literal(name), (0, 0, 0, 2))
            yield Padding(literal(text), (0, 0, 0, 4))
        return
    table = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in listed:
        table.add_row(literal(f"  {name}"), literal(text))
    yield table


def literal(text: str) -> "Text":
    """Text for ``rich`` in which neither markup nor control characters have an effect, except for line breaks."""
    from rich.text import Text

    return Text("\n".join(map(escaped, text.split("\n"))))


def _width(text: str) -> int:
    """The columns that a text takes in one line."""
    return max((literal(line).cell_len for line in text.split("\n")), default=0)


def _longest_word(text: str) -> int:
    return max((min(literal(word).cell_len, LONGEST_WORD) for word in text.split()), default=0)
