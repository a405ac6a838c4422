"""Images that clients send, decoded for the model with no more work than the limits allow."""

import base64
import binascii
import io
import re
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocil.data.images import FORMATS
from ocil.online.images import ImageFormat
from ocil.serve.limits import Limits, RefusedError

PNG = b"\x89PNG\r\n\x1a\n"
QUICK_BYTES, QUICK_PIXELS = 2**13, 64 * 64
MOST_SCANS = 32  # of a JPEG; programs write up to 20, and each may take some bytes and pass over all pixels
MARKER = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")  # of those that decoders skip by their length, and the end
SCAN, END = b"\xda", b"\xd9"


def decode(content: bytes, form: ImageFormat, limits: Limits, name: str) -> NDArray[np.uint8]:
    """One image file as an array [H, W, C] in the model's format. ``name`` stands for it in the message of an error."""
    if not content:
        raise RefusedError(422, f"{name} is empty.")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > limits.pixels:  # known from the header, nothing is decoded yet
                raise _too_large(name, limits)
            if image.format in ("JPEG", "MPO") and _has_too_many_scans(content):
                raise RefusedError(422, f"{name} has more than {MOST_SCANS} scans, which is the limit for a JPEG here.")
            form.decode_small(image)
            image.load()
            pixels: NDArray[np.uint8] = form.read([image])[0]
            return pixels
    except RefusedError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, limits) from error
    except Exception as error:  # a broken image can fail in any way
        raise RefusedError(422, f"{name} is not a readable image ({', '.join(FORMATS)}).") from error


def _has_too_many_scans(jpeg: bytes) -> bool:
    """Whether a progressive JPEG would be decoded for minutes. What follows its end does not count."""
    at = scans = 0
    while (marker := MARKER.search(jpeg, at)) and marker[1] != END and scans <= MOST_SCANS:
        scans += marker[1] == SCAN
        at = marker.end() + int.from_bytes(jpeg[marker.end() : marker.end() + 2], "big")
    return scans > MOST_SCANS


def is_quick(content: bytes) -> bool:
    """Whether an image is decoded in less time than another thread takes to begin: a small PNG, by its header."""
    if len(content) > QUICK_BYTES or content[:8] != PNG or content[12:16] != b"IHDR":
        return False
    width, height = struct.unpack(">II", content[16:24].rjust(8, b"\xff"))
    return bool(width * height <= QUICK_PIXELS)


def decode_pictures(contents: Sequence[bytes], form: ImageFormat, limits: Limits) -> NDArray[np.uint8]:
    if not contents:
        raise RefusedError(422, "there is no image.")
    if len(contents) > limits.batch:
        raise RefusedError(422, f"there are {len(contents)} images, the most in one request is {limits.batch}.")
    return np.stack([decode(one, form, limits, f"image {number}") for number, one in enumerate(contents, 1)])


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


def _too_large(name: str, limits: Limits) -> RefusedError:
    return RefusedError(413, f"{name} has more than {limits.pixels / 1e6:g} million pixels, which is the limit here.")
