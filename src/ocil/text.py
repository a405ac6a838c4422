"""Text that others wrote, made safe to print."""

import unicodedata

ESCAPED = ("Cc", "Cs", "Zl", "Zp")  # control characters, half of a surrogate pair, separators of lines and paragraphs
DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escaped(text: str) -> str:
    r"""With control characters as ``\x1b`` and the like: a terminal acts on them, and some turn what is read around.

    Labels, names of files and what is in files come from others. What is meant for programs, JSON above all, is not
    escaped by this.
    """
    return "".join(_escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    if unicodedata.category(letter) in ESCAPED or letter in DIRECTIONS:
        return letter.encode("unicode_escape").decode()
    return letter
