"""Image files to arrays, with Pillow. A file that is broken, odd or far too large is refused by name."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ocil.errors import OcilError

MAX_PIXELS = 40_000_000  # a small file can unpack to gigabytes
SUFFIXES = (".png", ".jpg", ".jpeg")
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF: how the camera was held, and when width and height change places
EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def probe(path: Path) -> tuple[tuple[int, int], str]:
    """(width, height) of the upright image and its colour mode, from the header, without decoding the pixels."""
    with _opened(path) as image:
        return upright_size(image), image.mode


def upright(image: Image.Image) -> Image.Image:
    """Turned as the camera was held. An image that does not say so in a readable way stays as it is."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # whatever is wrong with the pixels will be said where they are read
        return image


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) of ``upright``."""
    try:
        sideways = image.getexif().get(ORIENTATION) in SIDEWAYS
    except Exception:
        sideways = False
    return (image.height, image.width) if sideways else image.size


def read_image(path: Path, gray: bool, size: int | None = None, crop: bool = False) -> NDArray[np.uint8]:
    """uint8 [H,W,1] or [H,W,3]; ``size`` resizes to a square, bilinear; ``crop`` first cuts out the middle square."""
    with _opened(path) as image:
        pixels = upright(image).convert("L" if gray else "RGB")
        if crop and pixels.width != pixels.height:
            side = min(pixels.size)
            left, top = (pixels.width - side) // 2, (pixels.height - side) // 2
            pixels = pixels.crop((left, top, left + side, top + side))
        if size is not None and pixels.size != (size, size):
            pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
        array = np.asarray(pixels, dtype=np.uint8)
    return array[:, :, None] if gray else array


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    too_large = OcilError(f"{path} has more than {MAX_PIXELS // 1_000_000} million pixels. Shrink it or take it out.")
    try:
        with warnings.catch_warnings():
            # Pillow only warns about moderately large images and about odd palettes.
            warnings.simplefilter("ignore")
            with Image.open(path, formats=("PNG", "JPEG")) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise too_large
                if image.mode not in EIGHT_BIT_MODES:
                    raise OcilError(f"{path} has pixel format {image.mode}. Save it with 8 bits a channel.")
                yield image
    except Image.DecompressionBombError as error:
        raise too_large from error
    except OcilError:
        raise
    except Exception as error:  # a broken image can fail in any way
        raise OcilError(f"{path} is not a readable PNG or JPEG image. Replace it or take it out.") from error
