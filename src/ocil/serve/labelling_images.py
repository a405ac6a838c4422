"""Image files as the queue of unlabelled images keeps them."""

import hashlib
import io

from PIL import Image

from ocil.data.images import upright
from ocil.online.images import ImageFormat
from ocil.serve.labelling_store import Content
from ocil.serve.limits import Limits
from ocil.serve.pictures import decode, opened
from ocil.text import escaped

PREVIEW, THUMBNAIL = 1024, 160  # pixels of the longer side
NAME = 200  # characters of a file's name that are kept
SMALL = 64  # images up to this side are kept without loss


def prepare(name: str, file: bytes, form: ImageFormat, limits: Limits) -> Content:
    """An image file in the model's format, with a preview and a thumbnail. ``RefusedError`` if it cannot be read.

    The file itself is not kept, nor what cameras write into it besides the pixels.
    """
    shown = escaped(name.replace("\\", "/"))[-NAME:] or "image"
    pixels = decode(file, form, limits, shown)
    with opened(file, limits, shown) as image:
        image.draft("RGB", (PREVIEW, PREVIEW))  # a large JPEG need not be decoded in full
        preview = upright(image, image.mode in ("1", "L"))
    preview.thumbnail((PREVIEW, PREVIEW), Image.Resampling.LANCZOS)
    large = _encoded(preview)
    preview.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return Content(shown, hashlib.sha256(file).digest(), pixels.tobytes(), large, _encoded(preview))


def _encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    if max(image.size) <= SMALL:
        image.save(file, "PNG")
    else:
        image.save(file, "JPEG", quality=85)
    return file.getvalue()


def media_type(content: bytes) -> str:
    """Of what ``prepare`` made, which is one of two."""
    return "image/png" if content.startswith(b"\x89PNG") else "image/jpeg"
