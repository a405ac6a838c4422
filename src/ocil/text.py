"""Text that others wrote, made safe to print."""

import unicodedata

ESCAPED = ("Cc", "Cs", "Zl", "Zp")  # control characters, half of a surrogate pair, separators of lines and paragraphs
DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

SPELLED = {"±": "+-", "→": "->", "·": ".", "×": "x", "–": "-", "−": "-", "…": "..."}
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


def _escaped(letter: str) -> str:
    if unicodedata.category(letter) in ESCAPED or letter in DIRECTIONS:
        return letter.encode("unicode_escape").decode()
    return letter
