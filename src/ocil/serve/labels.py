"""Labels that clients send: which are accepted, and which class they mean."""

import json
import unicodedata
from collections.abc import Iterable, Sequence

from ocil.online.labels import ClassLabel, encoded
from ocil.serve.limits import Limits, RefusedError
from ocil.text import escaped

BIGGEST_NUMBER = 2**53 - 1  # every JSON reader reads whole numbers up to it exactly
BLANK_CATEGORIES = {"Cf", "Zs"}
INVISIBLE = (
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian variation selectors and vowel separator
    (0x2065, 0x2065),  # reserved among invisible operators
    (0x2800, 0x2800),  # braille pattern without dots
    (0x3164, 0x3164),  # Hangul filler
    (0xFDD0, 0xFDEF),  # noncharacters
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFFA0, 0xFFA0),  # halfwidth Hangul filler
    (0xFFF0, 0xFFF8),  # reserved
    (0x13441, 0x13442),  # Egyptian hieroglyph blanks
    (0x16FE4, 0x16FE4),  # Khitan small script filler
    (0x1D159, 0x1D159),  # musical symbol null notehead
    (0xE0000, 0xE0FFF),  # tags, more variation selectors, reserved
)
"""Characters that show nothing though their category is not blank: Unicode's default ignorable ones and a few more."""


def checked_label(label: str | int, limits: Limits) -> ClassLabel:
    """The label that a client sent, without blanks around it. ``RefusedError`` if it cannot be shown as it is."""
    if isinstance(label, int):
        if abs(label) > BIGGEST_NUMBER:
            raise RefusedError(422, f"a label that is a number must lie within ±{BIGGEST_NUMBER}.")
        return label
    text = label.strip()
    if not text:
        raise RefusedError(422, "a label is empty.")
    if len(text) > limits.label:
        raise RefusedError(422, f"a label has {len(text)} characters, the most is {limits.label}.")
    if escaped(text) != text:
        raise RefusedError(422, "a label has a control character, one for the direction of text, or invalid Unicode.")
    if not any(map(_is_visible, text)):
        raise RefusedError(422, "a label has no visible character.")
    return text


def _is_visible(character: str) -> bool:
    code = ord(character)
    hidden = code & 0xFFFE == 0xFFFE or any(first <= code <= last for first, last in INVISIBLE)
    return not hidden and unicodedata.category(character) not in BLANK_CATEGORIES


def reading(label: ClassLabel) -> str:
    """What the page shows for a label. It is the same for canonically equivalent texts."""
    if isinstance(label, str):
        return unicodedata.normalize("NFC", label)
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return json.dumps(encoded(label), ensure_ascii=False, separators=(",", ":"))


class KnownLabels:
    """The labels of all classes so far. A label that reads like a known one means the same class.

    So the text "1" of a form and the number 1 of JSON are one class, called by the label that came first. A model that
    has both keeps both: a label that is known as it is means itself.
    """

    def __init__(self, labels: Iterable[ClassLabel] = ()) -> None:
        self._labels: set[ClassLabel] = set()
        self._by_reading: dict[str, ClassLabel] = {}
        self.update(labels)

    def __len__(self) -> int:
        return len(self._labels)

    def update(self, labels: Iterable[ClassLabel]) -> None:
        for label in labels:
            self._labels.add(label)
            self._by_reading.setdefault(reading(label), label)

    def meant(self, labels: Sequence[ClassLabel]) -> tuple[ClassLabel, ...]:
        """The label of the class that each of them means; of a new class, the first one of these."""
        new: dict[str, ClassLabel] = {}
        return tuple(self._meant(label, new) for label in labels)

    def _meant(self, label: ClassLabel, new: dict[str, ClassLabel]) -> ClassLabel:
        if label in self._labels:
            return label
        reads = reading(label)
        return self._by_reading[reads] if reads in self._by_reading else new.setdefault(reads, label)

    def new(self, labels: Iterable[ClassLabel]) -> set[ClassLabel]:
        return set(labels) - self._labels
