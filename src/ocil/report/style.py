"""How figures look, and how they are rendered and saved."""

import io
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from ocil.files import write_bytes
from ocil.processes import garbage_kept

INK, RULE, PAPER = "#1f2328", "#e3e3df", "#ffffff"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # safe for colour-blind readers
MARKERS = "osD^vP*"
LINES = ("-", "--", ":")
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "svg.hashsalt": "ocil",  # the same figure gives the same bytes
    "pdf.fonttype": 42,  # TrueType: many publishers refuse the default, Type 3
    "text.parse_math": False,  # a name from a file is not a formula
}
REPORT_STYLE: Any = STYLE | {
    "svg.fonttype": "none",  # text stays text: it can be searched
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": RULE,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.titlesize": 10,
    "legend.facecolor": "none",
    "legend.frameon": False,
}
PALETTE = (*COLOURS[:-1], INK)
ROUNDS = 3  # in which each name may take another look, now that it knows those of all others
SHARED_WEIGHT = 10**9  # of a name beside another, over the squared number of names in the figure
UNDATED: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata by format, without the time at which a figure was drawn."""


@dataclass(frozen=True)
class Look:
    """Colour, marker and style of one line in a figure."""

    colour: str
    marker: str
    line: str

    @property
    def line_options(self) -> dict[str, Any]:
        """Options of ``Axes.plot`` and ``Axes.errorbar``."""
        return {"color": self.colour, "marker": self.marker, "markersize": 4.5, "linewidth": 1.4}

    @property
    def parts(self) -> tuple[object, object, object]:
        """What may be the same in two looks: the colour, the line of this colour, and all of it."""
        return self.colour, (self.colour, self.line), self

    @classmethod
    def number(cls, n: int) -> "Look":
        again = n // len(PALETTE)  # the same colour once more, with another marker and line
        return cls(PALETTE[n % len(PALETTE)], MARKERS[(n + again) % len(MARKERS)], LINES[again % len(LINES)])


ALL_LOOKS = [Look.number(n) for n in range(len(PALETTE) * len(MARKERS) * len(LINES))]
Looks = Mapping[str, Look]  # by the names in a legend


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name of a figure that stands alone, whatever their order."""
    return {name: Look.number(number) for number, name in enumerate(sorted(names))}


def shared_looks(order: Iterable[str], figures: Sequence[Iterable[str]]) -> dict[str, Look]:
    """One look for each name, for several figures that each show some of the names.

    There may be more names than colours. Each name in turn, those of the ``order`` first, takes the colour that is
    rarest in the figures that show it, then the rarest line, then the rarest marker; then each may choose again. A
    figure with few names counts more than one with many, where colours repeat anyway.
    """
    shown = [(frozenset(figure), Counter[Look]()) for figure in figures]
    found: dict[str, Look] = {}
    everywhere = Counter[object]()  # how many names have a colour, a line of this colour, a look
    for name in list(dict.fromkeys(chain(order, *figures))) * ROUNDS:
        here = [(names, taken) for names, taken in shown if name in names]
        if not here:
            continue
        if before := found.pop(name, None):
            everywhere.subtract(before.parts)
            for _, taken in here:
                taken[before] -= 1
        beside = Counter[Look]()
        for names, taken in here:
            for look, count in taken.items():
                beside[look] += count * SHARED_WEIGHT // len(names) ** 2
        found[name] = _rarest(beside, everywhere)
        everywhere.update(found[name].parts)
        for _, taken in here:
            taken[found[name]] += 1
    return found


def _rarest(weights: Mapping[Look, int], everywhere: Counter[object]) -> Look:
    """The look that differs most from those with weights, and then from those that are used ``everywhere``."""
    beside = Counter[object]()
    for look, weight in weights.items():
        for part in look.parts:
            beside[part] += weight

    def rarity(look: Look) -> tuple[int, ...]:
        colour, line, whole = look.parts
        return beside[colour], everywhere[colour], beside[line], beside[whole], everywhere[whole]

    return min(ALL_LOOKS, key=rarity)


def new_figure(width: float = 6.4, height: float = 4.0, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, columns)))


def lay_out(figure: Figure) -> None:
    """Give the axes their final size, so that places in them can be computed. Nothing is drawn."""
    if engine := figure.get_layout_engine():
        engine.execute(figure)


def render(paint: Callable[..., Figure], *args: Any) -> str:
    """The SVG of the figure that ``paint`` makes, in the style of reports: equal bytes for equal numbers.

    ``Figure.savefig`` would draw everything twice, the first time for the layout alone.
    """
    with garbage_kept(), mpl.rc_context(REPORT_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's font has it, where ours has not
        file = io.StringIO()
        FigureCanvasSVG(paint(*args)).print_svg(file, metadata=UNDATED["svg"])  # type: ignore[no-untyped-call]
    return file.getvalue()


def render_pdf(paint: Callable[..., Figure], *args: Any) -> bytes:
    """The same figure as ``render`` gives, as a PDF."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf  # an eighth of a second, and few ask for PDF

    with garbage_kept(), mpl.rc_context(REPORT_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        file = io.BytesIO()
        FigureCanvasPdf(paint(*args)).print_pdf(file, metadata=UNDATED["pdf"])  # type: ignore[no-untyped-call]
    return file.getvalue()


def save(figure: Figure, path: Path) -> str:
    """Write by atomic rename; the suffix chooses PNG, SVG or PDF. Returns a warning, or nothing.

    The font of figures lacks some characters, such as those of Chinese names. An SVG that needs them keeps its text as
    text, which is shown in the reader's font. Elsewhere they are boxes, of which the warning tells.
    """
    form = path.suffix[1:].lower()
    try:
        content, lacking = _rendered(figure, form, STYLE)
        if lacking and form == "svg":
            content, _ = _rendered(figure, form, STYLE | {"svg.fonttype": "none"})
    finally:
        plt.close(figure)
    write_bytes(path, content)
    if lacking and form != "svg":
        return f"{path} has boxes in the place of characters that the font of figures lacks: an .svg file shows them."
    return ""


def _rendered(figure: Figure, form: str, style: Any) -> tuple[bytes, bool]:
    """The content of a file, and whether the font of figures lacks a character."""
    file = io.BytesIO()
    with mpl.rc_context(style), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph .* missing")
        figure.savefig(file, format=form, dpi=150, metadata=UNDATED.get(form))
    others = [each for each in caught if not str(each.message).startswith("Glyph ")]
    for other in others:
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return file.getvalue(), len(caught) > len(others)
