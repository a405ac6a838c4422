"""Text for people: what others wrote, made safe to print; counts and bytes in few digits."""

import io
import re
import unicodedata

ESCAPED = ("Cc", "Cs", "Zl", "Zp")  # control characters, half of a surrogate pair, separators of lines and paragraphs
DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

NOT_ZERO = re.compile("[1-9]|nan|inf", re.IGNORECASE)
LAST_BITS = 1e-11  # relative: what is nearer to a half than this is meant to be one
SPELLED = {"±": "+-", "→": "->", "·": ".", "•": "*", "×": "x", "–": "-", "−": "-", "…": "..."} | dict(
    zip("▁▂▃▄▅▆▇█░▒▓", "_.:-=+*#.+*", strict=True)  # curves and shades
)
"""How characters are written where the output cannot have them."""


def has_letter(encoding: str, letter: str) -> bool:
    """Whether an encoding can write it.

    >>> has_letter("latin-1", "±"), has_letter("ascii", "±")
    (True, False)
    """
    try:
        letter.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def escaped(text: str) -> str:
    r"""The text with control characters written as ``\x1b`` and the like.

    A terminal would act on them, and some change the direction of the text around them. Use it for labels, names of
    files and what is in files when they are shown to a person, not for output that programs read.
    """
    return "".join(_escaped(letter) for letter in text)


def lines_of(text: str) -> list[str]:
    r"""The lines of a file's text, however it ends them. ``str.splitlines`` also ends them at characters that names may
    have, such as the separator of lines U+2028.

    >>> lines_of("a\u2028b\r\nc\n")
    ['a\u2028b', 'c']
    """
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]


def _escaped(letter: str) -> str:
    if unicodedata.category(letter) in ESCAPED or letter in DIRECTIONS:
        return letter.encode("unicode_escape").decode()
    return letter


def number_text(value: float, form: str) -> str:
    """A number in a format of Python, or ``percent`` for a share of 1. A half is rounded away from zero, whatever its
    last bits are: sums of the same numbers in different orders, which differ there, are written alike. Zero has no
    minus.

    >>> number_text(54.15, ".1f"), number_text(54.15000000000001, ".1f"), number_text(-0.0005, "percent")
    ('54.2', '54.2', '-0.1')
    >>> number_text(-0.04, ".1f"), number_text(-0.04, "+.1f"), number_text(-0.04, "+.2f")
    ('0.0', '+0.0', '-0.04')
    """
    if form == "percent":
        value, form = 100 * value, ".1f"
    text = format(value * (1 + LAST_BITS), form)
    return text if NOT_ZERO.search(text) else format(0.0, form)


def kilo(number: float, digits: int = 3) -> str:
    """A count with three digits, or more, and a prefix: ``220``, ``1.2 k``, ``3.4 M``."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.{digits}g}" + (f" {prefix}" if prefix else "")
        number /= 1000
    return f"{1000 * number:.3g} T"


def bytes_text(number: float) -> str:
    """Bytes: ``600 B``, ``19.8 MB``."""
    return f"{kilo(number)}B" if number >= 999.5 else f"{number:.0f} B"
