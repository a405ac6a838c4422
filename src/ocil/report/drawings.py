"""A figure of a report: chosen, then rendered, with its title and caption."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ocil.report.cells import MeasuredCell, MeasuredColumn
from ocil.report.formatting import range_note
from ocil.report.rendering import OnFigure, ignore, render_all
from ocil.report.style import shared_looks

CROWD = 8  # with more lines than this, a method is shown with its own settings, and with the review trick only


@dataclass(frozen=True)
class Drawing:
    """A figure that was rendered: a file name without ending, its title, what it shows, its SVG, and how it is made."""

    name: str
    title: str
    caption: str
    svg: str
    paint: Callable[..., Any]
    args: tuple[Any, ...] = ()
    column: MeasuredColumn | None = None
    """The dataset and memory it is about; None where it is about none in particular."""
    photos: bool = False
    """Whether it holds images, whose colours a page must not change."""


@dataclass(frozen=True)
class Sketch:
    """A figure that is chosen and not rendered yet."""

    name: str
    title: str
    caption: str
    paint: Callable[..., Any]
    """The function that makes the figure."""
    args: tuple[Any, ...]
    """Its arguments: numbers and names. They may be sent to another process, which knows no plugins."""
    column: MeasuredColumn
    told_apart: tuple[tuple[str, ...], ...] = ()
    """Names that have a look of their own in it: in each group, no two should have one colour."""


def sketch_of(
    column: MeasuredColumn,
    name: str,
    title: str,
    caption: str,
    paint: Callable[..., Any],
    *args: Any,
    device: str = "",
    told_apart: Iterable[Iterable[str]] = (),
) -> Sketch:
    """A figure about a column of tables, which its name and title end with, and about a device if one is given."""
    name, title = f"{name}-{column.slug}-{device}", ", ".join(filter(None, (title, column.title, device)))
    return Sketch(file_name(name), title, caption, paint, args, column, tuple(map(tuple, told_apart)))


def with_looks(sketches: Sequence[Sketch], order: Iterable[str]) -> list[Sketch]:
    """The same figures, where a name has one look in all of them. Those that tell names apart get the looks as their
    last argument. Names are served in this ``order``."""
    look = shared_looks(order, [group for sketch in sketches for group in sketch.told_apart])

    def given(sketch: Sketch) -> Sketch:
        mine = {name: look[name] for group in sketch.told_apart for name in group}
        return replace(sketch, args=(*sketch.args, mine)) if mine else sketch

    return [given(sketch) for sketch in sketches]


def draw(sketches: Sequence[Sketch], workers: int = 1, progress: OnFigure = ignore) -> list[Drawing]:
    """Render figures, many of them in up to so many processes."""
    svgs = render_all([(sketch.paint, sketch.args) for sketch in sketches], workers, progress)
    return [
        Drawing(sketch.name, sketch.title, sketch.caption, svg, sketch.paint, sketch.args, sketch.column)
        for sketch, svg in zip(sketches, svgs, strict=True)
    ]


def file_name(text: str) -> str:
    """Letters, digits and hyphens, whatever the text is."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text)[:100].strip("-") or "figure"


def uncrowded(cells: Mapping[str, MeasuredCell]) -> dict[str, MeasuredCell]:
    """The cells for a figure: all, or where they are too many those of methods with their own settings."""
    found = {name: cell for name, cell in cells.items() if not cell.learner_settings}
    return found if len(cells) > CROWD and len(found) > 1 else dict(cells)


def units_of(cells: Iterable[MeasuredCell]) -> str:
    """What is new in the tasks of the cells of a figure: classes or domains."""
    return "domains" if all(cell.config.stream.scenario == "domain" for cell in cells) else "classes"


def has_tasks(cells: Iterable[MeasuredCell]) -> bool:
    """Whether the streams of a figure have tasks. Without, they are evaluated at equal distances."""
    return any(cell.config.stream.boundary != "none" for cell in cells)


def seeds_of(cells: Iterable[MeasuredCell]) -> str:
    """How many seeds the cells of a figure have, and what is shown of two, for its caption."""
    found = list(cells)
    counts = sorted({len(cell.runs) for cell in found})
    if counts == [1]:
        return "One seed."
    number = f"{counts[0]} seeds." if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds."
    return number + range_note(cell.summary.average_accuracy for cell in found)
