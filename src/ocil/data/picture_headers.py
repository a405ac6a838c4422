"""What is refused in an image file before Pillow reads it, because a few bytes there make it work for minutes.

Each function returns what is wrong with a file, or an empty text.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

PNG = b"\x89PNG\r\n\x1a\n"
PNG_TEXTS = (b"iCCP", b"zTXt", b"iTXt")  # chunks that are inflated to a megabyte each
MOST_TEXTS = 256
PLAIN = (b"P1", b"P2", b"P3")  # PPM as text
MOST_COMMENTS = 64
TIFF = {b"II*\0": "<", b"MM\0*": ">"}
BIG_TIFF = (b"II+\0", b"MM\0+")
TIFF_FOLDERS = (34665, 34853, 40965)  # tags with the place of another list of tags: Exif, GPS, interoperability
TILE_WIDTH, TILE_LENGTH, TILE_PLACES, STRIP_PLACES = 322, 323, 324, 273
TIFF_PARTS = (STRIP_PLACES, 279, TILE_PLACES, 325)  # where strips and tiles are, and their lengths
BLOBS = (1, 2, 7)  # types of values that stay bytes
MOST_VALUES = 2**16
MOST_TAGS = 2**12


def problem(content: bytes, pixels: int) -> str:
    """What is wrong with a file of any format. ``pixels``: how many an image may have."""
    if content[:8] == PNG and sum(map(content.count, PNG_TEXTS)) > MOST_TEXTS:
        return f"has more than {MOST_TEXTS} texts and profiles"
    if content[:2] in PLAIN and content.count(b"#") > MOST_COMMENTS:
        return f"has more than {MOST_COMMENTS} comments"
    if content[:4] in BIG_TIFF:
        return "is a BigTIFF, which is for larger files: save it as a TIFF"
    return _problem_of_tiff(content, TIFF[content[:4]], pixels) if content[:4] in TIFF else ""


class _Entry(NamedTuple):
    tag: int
    kind: int
    values: int
    value: int


def _problem_of_tiff(content: bytes, order: str, pixels: int) -> str:
    tile: dict[int, int] = {}
    for number, entry in enumerate(_entries(content, order)):
        if number == MOST_TAGS:
            return f"has more than {MOST_TAGS:,} tags"
        if entry.values > MOST_VALUES and (entry.kind not in BLOBS or entry.tag in TIFF_PARTS):
            return f"has a tag with more than {MOST_VALUES:,} values"
        if entry.tag in (TILE_WIDTH, TILE_LENGTH):
            tile[entry.tag] = max(entry.value, tile.get(entry.tag, 0))
        if entry.tag == TILE_PLACES:
            tile[entry.tag] = max(entry.values, tile.get(entry.tag, 0))
    width, length, places = (tile.get(tag, 0) for tag in (TILE_WIDTH, TILE_LENGTH, TILE_PLACES))
    if width * length > pixels or width * length * places > 4 * pixels:
        return f"has tiles of more than {pixels / 1e6:g} million pixels"
    return ""


def _entries(content: bytes, order: str) -> Iterator[_Entry]:
    """The tags of the first image and of the lists that they lead to, as far as they are in the file."""
    places = list(struct.unpack_from(f"{order}I", content.ljust(8, b"\0"), 4))
    for place in places:  # it grows meanwhile
        if place + 2 > len(content):
            continue
        (count,) = struct.unpack_from(f"{order}H", content, place)
        for at in range(place + 2, min(place + 2 + 12 * count, len(content) - 11), 12):
            tag, kind, values, value = struct.unpack_from(f"{order}HHII", content, at)
            if kind == 3 and values == 1:  # a number of 16 bits is at the beginning of its place
                (value,) = struct.unpack_from(f"{order}H", content, at + 8)
            if tag in TIFF_FOLDERS and value not in places:
                places.append(value)
            yield _Entry(tag, kind, values, value)
