"""Opens image files of strangers so that none takes far more work than its pixels need.

A few bytes can keep Pillow working for minutes, or fill the memory: scans of a JPEG, parts of a file, EXIF data, tags.
``picture_headers`` has what is refused before Pillow sees the file.
"""

import io
import re

from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from ocil.data import picture_headers
from ocil.data.picture_headers import STRIP_PLACES, TILE_PLACES

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
JPEG = b"\xff\xd8"
MOST_SCANS = 32  # of a JPEG; programs write up to 20, and each may take some bytes and pass over all pixels
MARKER = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")  # of those that decoders skip by their length, and the end
SCAN, END = b"\xda", b"\xd9"
MOST_READS = 2**15  # of parts of a file, each of which takes microseconds
MOST_READS_OF = {JPEG: 2**11, b"BM": 2**21, b"P5": 2**21, b"P6": 2**21}  # by the first bytes of a file
READ_IN_PARTS = (b"P5", b"P6", picture_headers.PNG[:2])  # honest ones too, the more the larger they are
MOST_PLAIN, MOST_RUNS = 5 * 10**5, 4 * 10**6  # pixels of a PPM as text and of a BMP of runs, which Python decodes
FEW_BYTES = 2**14  # whose parts take milliseconds, as does counting them in a dataset of small images
TIMES_READ = 4  # the bytes of a file, all reads together
EXIF, MOST_EXIF, MOST_EXIF_BYTES = b"Exif\0\0", 2, 2**17  # its entries may each be a copy of all of it
EXIF_KEYS = {"exif": MOST_EXIF_BYTES, "Raw profile type exif": 2 * MOST_EXIF_BYTES}  # the latter is text of a PNG


class RefusedImageError(Exception):
    """An image file that is not opened. The text says what is wrong, after its name: ``has more than 32 scans``."""


class TooManyPixelsError(RefusedImageError):
    """An image with more than ``most`` pixels."""

    def __init__(self, most: int) -> None:
        super().__init__(f"has more than {most / 1e6:g} million pixels")
        self.most = most


def open_bounded(content: bytes, pixels: int, patience: int = 1) -> Image.Image:
    """An image file, its pixels not read yet. They may be read without further ado, in a minute at most.

    ``pixels``: how many it may have. ``patience``: how many times as long as some seconds it may take where Pillow
    decodes in Python. Before EXIF data is looked at that may lie behind the pixels, call ``refuse_long_exif``.

    Raises:
        RefusedImageError: It would take far more work than an image needs. Reading its pixels may raise that too.
    """
    if wrong := picture_headers.problem(content, pixels):
        raise RefusedImageError(wrong)
    small = patience > 1 and len(content) <= FEW_BYTES
    try:
        image = Image.open(io.BytesIO(content) if small else _BoundedFile(content, patience), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixelsError(pixels) from error
    most = _most_pixels(image, content, pixels, patience)
    if image.width * image.height > most:  # known from the header, nothing is decoded yet
        raise TooManyPixelsError(most)
    if _has_too_many_scans(image, content):
        raise RefusedImageError(f"has more than {MOST_SCANS} scans, which is the limit for a JPEG here")
    refuse_long_exif(image)
    return image


def refuse_long_exif(image: Image.Image) -> None:
    if any(len(image.info.get(key, b"")) > longest for key, longest in EXIF_KEYS.items()):
        raise RefusedImageError(f"has more than {MOST_EXIF_BYTES >> 10} KiB of EXIF data")


class _BoundedFile(io.BytesIO):
    """A file in memory that is read a limited number of times: Pillow reads each part of a header by itself, and some
    take a time or a memory that grows with the square of their number."""

    def __init__(self, content: bytes, patience: int) -> None:
        super().__init__(content)
        kind = content[:2]
        self._reads = MOST_READS_OF.get(kind, MOST_READS) * (patience if kind in READ_IN_PARTS else 1)
        self._bytes = TIMES_READ * len(content) + 2**20
        self._exif = MOST_EXIF

    def read(self, size: int | None = -1, /) -> bytes:
        part = io.BytesIO.read(self, size)  # dozens of times per image: super() would take as long again
        self._reads -= 1
        self._bytes -= len(part)
        if part.startswith(EXIF):
            self._exif -= 1
        if self._reads < 0 or self._bytes < 0 or self._exif < 0:
            raise RefusedImageError("has far more parts than an image needs")
        return part


def _most_pixels(image: Image.Image, content: bytes, pixels: int, patience: int) -> int:
    """How many pixels may be decoded; fewer where Pillow decodes them in Python."""
    if content[:2] in picture_headers.PLAIN:
        return min(patience * MOST_PLAIN, pixels)
    return min(MOST_RUNS, pixels) if image.format == "BMP" and image.info.get("compression") else pixels


def _has_too_many_scans(image: Image.Image, content: bytes) -> bool:
    """Whether a progressive JPEG, or one inside a TIFF, would be decoded for minutes."""
    if image.format in ("JPEG", "MPO"):
        return content.count(b"\xff" + SCAN) > MOST_SCANS and _scans_of(content) > MOST_SCANS
    if isinstance(image, TiffImageFile):
        tags = image.tag_v2
        parts = set(tags.get(TILE_PLACES) or tags.get(STRIP_PLACES) or (0,))  # of equal size, one scan each
        return image.info.get("compression") == "jpeg" and content.count(b"\xff" + SCAN) > MOST_SCANS + len(parts)
    return False


def _scans_of(jpeg: bytes) -> int:
    """How many scans a JPEG has, up to one more than there may be. What follows its end does not count."""
    at = scans = 0
    while (marker := MARKER.search(jpeg, at)) and marker[1] != END and scans <= MOST_SCANS:
        scans += marker[1] == SCAN
        at = marker.end() + int.from_bytes(jpeg[marker.end() : marker.end() + 2], "big")
    return scans
