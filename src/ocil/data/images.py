"""Image files to arrays, with Pillow. A file that is broken, odd or far too large is refused by name."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocil.errors import OcilError

MAX_PIXELS = 40_000_000  # a small file can unpack to gigabytes
SUFFIXES = (".png", ".jpg", ".jpeg")
EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def probe(path: Path) -> tuple[tuple[int, int], str]:
    """(width, height) and colour mode from the header, without decoding the pixels."""
    with _opened(path) as image:
        return image.size, image.mode


def read_image(path: Path, gray: bool, size: int | None = None, crop: bool = False) -> NDArray[np.uint8]:
    """uint8 [H,W,1] or [H,W,3]; ``size`` resizes to a square, bilinear; ``crop`` first cuts out the middle square."""
    with _opened(path) as image:
        pixels = image.convert("L" if gray else "RGB")
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
