"""Images that clients send, decoded for the model with no more work than the limits allow."""

import base64
import binascii
import io
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from ocil.data.images import FORMATS
from ocil.online.images import ImageFormat
from ocil.serve import picture_headers
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.picture_headers import PNG, STRIP_PLACES, TILE_PLACES

QUICK_BYTES, QUICK_PIXELS = 2**13, 64 * 64
SLOW_CHUNKS = (*picture_headers.PNG_TEXTS, b"eXIf", b"Raw profile")
MOST_SCANS = 32  # of a JPEG; programs write up to 20, and each may take some bytes and pass over all pixels
MARKER = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")  # of those that decoders skip by their length, and the end
SCAN, END = b"\xda", b"\xd9"
MOST_READS = 2**15  # of parts of a file, each of which takes microseconds
MOST_READS_OF = {b"\xff\xd8": 2**11, b"BM": 2**21, b"P5": 2**21, b"P6": 2**21}  # by the first bytes of a file
MOST_PLAIN, MOST_RUNS = 5 * 10**5, 4 * 10**6  # pixels of a PPM as text and of a BMP of runs, which Python decodes
TIMES_READ = 4  # the bytes of a file, all reads together
EXIF, MOST_EXIF, MOST_EXIF_BYTES = b"Exif\0\0", 2, 2**17  # its entries may each be a copy of all of it
EXIF_KEYS = {"exif": MOST_EXIF_BYTES, "Raw profile type exif": 2 * MOST_EXIF_BYTES}  # the latter is text of a PNG


def decode(content: bytes, form: ImageFormat, limits: Limits, name: str) -> NDArray[np.uint8]:
    """One image file as an array [H, W, C] in the model's format. ``name`` stands for it in the message of an error."""
    with opened(content, limits, name) as image:
        form.decode_small(image)
        image.load()
        _refuse_long_exif(image, name)  # a PNG may have it behind its pixels
        pixels: NDArray[np.uint8] = form.read([image])[0]
        return pixels


@contextmanager
def opened(content: bytes, limits: Limits, name: str) -> Iterator[Image.Image]:
    """An image file, to be decoded inside the block. Whatever fails there is a ``RefusedError``."""
    if not content:
        raise RefusedError(422, f"{name} is empty.")
    try:
        if wrong := picture_headers.problem(content, limits.pixels):
            raise RefusedError(422, f"{name} {wrong}.")
        with Image.open(_BoundedFile(content, name), formats=FORMATS) as image:
            most = _most_pixels(image, content, limits)
            if image.width * image.height > most:  # known from the header, nothing is decoded yet
                raise _too_large(name, most)
            if _has_too_many_scans(image, content):
                raise RefusedError(422, f"{name} has more than {MOST_SCANS} scans, which is the limit for a JPEG here.")
            _refuse_long_exif(image, name)
            yield image
    except RefusedError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, limits.pixels) from error
    except Exception as error:  # a broken image can fail in any way
        raise RefusedError(422, f"{name} is not a readable image ({', '.join(FORMATS)}).") from error


def _refuse_long_exif(image: Image.Image, name: str) -> None:
    if any(len(image.info.get(key, b"")) > longest for key, longest in EXIF_KEYS.items()):
        raise RefusedError(422, f"{name} has more than {MOST_EXIF_BYTES >> 10} KiB of EXIF data.")


class _BoundedFile(io.BytesIO):
    """A file in memory that is read a limited number of times: Pillow reads each part of a header by itself, and some
    take a time or a memory that grows with the square of their number."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._name = name
        self._reads = MOST_READS_OF.get(content[:2], MOST_READS)
        self._bytes = TIMES_READ * len(content) + 2**20
        self._exif = MOST_EXIF

    def read(self, size: int | None = -1, /) -> bytes:
        part = super().read(size)
        self._reads -= 1
        self._bytes -= len(part)
        self._exif -= part[: len(EXIF)] == EXIF
        if min(self._reads, self._bytes, self._exif) < 0:
            raise RefusedError(422, f"{self._name} has far more parts than an image needs.")
        return part


def _most_pixels(image: Image.Image, content: bytes, limits: Limits) -> int:
    """How many pixels may be decoded; fewer where Pillow decodes them in Python."""
    if content[:2] in picture_headers.PLAIN:
        return min(MOST_PLAIN, limits.pixels)
    return min(MOST_RUNS, limits.pixels) if image.format == "BMP" and image.info.get("compression") else limits.pixels


def _has_too_many_scans(image: Image.Image, content: bytes) -> bool:
    """Whether a progressive JPEG, or one inside a TIFF, would be decoded for minutes."""
    if image.format in ("JPEG", "MPO"):
        return _scans_of(content) > MOST_SCANS
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


def is_quick(content: bytes) -> bool:
    """Whether an image is decoded in less time than another thread takes to begin: a small PNG, by its header.

    Of several headers Pillow takes the last one, and texts and profiles may be long where they are unpacked.
    """
    if len(content) > QUICK_BYTES or content[:8] != PNG or content[12:16] != b"IHDR" or content.count(b"IHDR") > 1:
        return False
    if any(kind in content for kind in SLOW_CHUNKS):
        return False
    width, height = struct.unpack(">II", content[16:24].rjust(8, b"\xff"))
    return bool(width * height <= QUICK_PIXELS)


def decode_pictures(contents: Sequence[bytes], form: ImageFormat, limits: Limits) -> NDArray[np.uint8]:
    check_count(contents, limits)
    return np.stack([decode(one, form, limits, f"image {number}") for number, one in enumerate(contents, 1)])


def check_count(contents: Sequence[bytes], limits: Limits) -> None:
    if not contents:
        raise RefusedError(422, "there is no image.")
    if len(contents) > limits.batch:
        raise RefusedError(422, f"there are {len(contents)} images, the most in one request is {limits.batch}.")


def from_base64(text: str, number: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(422, f"image {number} is not base64.") from error


def as_png(pixels: NDArray[np.uint8]) -> str:
    """An image as a PNG in a data URL."""
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _too_large(name: str, most: int) -> RefusedError:
    return RefusedError(413, f"{name} has more than {most / 1e6:g} million pixels, which is the limit here.")
