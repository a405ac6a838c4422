"""Images that clients send, decoded for the model with no more work than the limits allow."""

import base64
import binascii
import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocil.data.bounded_images import (
    FORMATS,
    RefusedImageError,
    TooManyPixelsError,
    open_bounded,
    refuse_long_exif,
)
from ocil.data.picture_headers import PNG, PNG_TEXTS
from ocil.online.images import ImageFormat
from ocil.serve.limits import Limits, RefusedError

QUICK_BYTES, QUICK_PIXELS = 2**13, 64 * 64
SLOW_CHUNKS = (*PNG_TEXTS, b"eXIf", b"Raw profile")


def decode(content: bytes, form: ImageFormat, limits: Limits, name: str) -> NDArray[np.uint8]:
    """One image file as an array [H, W, C] in the model's format. ``name`` stands for it in the message of an error."""
    with opened(content, limits, name) as image:
        form.decode_small(image)
        image.load()
        refuse_long_exif(image)  # a PNG may have it behind its pixels
        pixels: NDArray[np.uint8] = form.read([image])[0]
        return pixels


@contextmanager
def opened(content: bytes, limits: Limits, name: str) -> Iterator[Image.Image]:
    """An image file, to be decoded inside the block. Whatever fails there is a ``RefusedError``."""
    if not content:
        raise RefusedError(422, f"{name} is empty.")
    try:
        with open_bounded(content, limits.pixels) as image:
            yield image
    except RefusedError:
        raise
    except TooManyPixelsError as error:
        raise _too_large(name, error.most) from error
    except RefusedImageError as error:
        raise RefusedError(422, f"{name} {error}.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, limits.pixels) from error
    except Exception as error:  # a broken image can fail in any way
        raise RefusedError(422, f"{name} is not a readable image ({', '.join(FORMATS)}).") from error


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
