"""Reads image files as arrays, with Pillow. The error for a broken or far too large file names it."""

import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocil.data.bounded_images import (
    JPEG,
    RefusedImageError,
    TooManyPixelsError,
    open_bounded,
    refuse_long_exif,
)
from ocil.errors import OcilError

MAX_PIXELS = 40_000_000  # a small file can unpack to gigabytes
MAX_BYTES = 2**29
PATIENCE = 8  # as nobody waits for an answer: a PPM as text of four million pixels takes ten seconds
HEADER_BYTES = 2**18
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
OTHER_SUFFIXES = (
    ".heic", ".heif", ".hif", ".avif", ".jxl", ".jfif", ".jpe", ".jp2", ".j2k", ".apng", ".pbm", ".pnm", ".tga", ".ico",
    ".svg", ".svgz", ".eps", ".psd", ".xcf", ".exr", ".hdr", ".raw", ".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw",
    ".arw", ".srf", ".sr2", ".orf", ".rw2", ".raf", ".pef", ".srw", ".x3f", ".3fr", ".iiq", ".kdc", ".mrw",
)  # fmt: skip
"""How the names of pictures end that are not read: of other formats, and of other names of formats."""
GRAY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F")
TURNS = {  # ImageOps.exif_transpose would also write all EXIF data anew
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF: how the camera was held, and when width and height change places


class FloatPixelsError(OcilError):
    """An image of floats that are not from 0 to 1: what its black and its white are is not known."""


def is_image_name(path: Path) -> bool:
    """Whether a file is named as an image, and not hidden: macOS puts ``._a.jpg`` beside ``a.jpg``."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def is_other_picture(path: Path) -> bool:
    """Whether a file is named as a picture in a format that is not read, and not hidden."""
    return path.suffix.lower() in OTHER_SUFFIXES and not path.name.startswith(".")


def probe(path: Path) -> tuple[tuple[int, int], bool]:
    """(width, height) of the upright image and whether it is gray, from the header, without decoding the pixels."""
    with suppress(Exception):  # of a large photo the beginning is enough
        if path.stat().st_size > HEADER_BYTES:
            with path.open("rb") as file:
                head = file.read(HEADER_BYTES)
            if head.startswith(JPEG):
                with _QUIET, open_bounded(head, MAX_PIXELS) as image:
                    return upright_size(image), image.mode in GRAY_MODES
    with opened(path) as image:
        return upright_size(image), image.mode in GRAY_MODES


def read_image(path: Path, gray: bool, size: int | None = None, crop: bool = False) -> NDArray[np.uint8]:
    """uint8 [H,W,1] or [H,W,3]; ``size`` resizes to a square, bilinear; ``crop`` first cuts out the middle square."""
    with opened(path) as image:
        pixels = upright(image, gray)
        if crop and pixels.width != pixels.height:
            side = min(pixels.size)
            left, top = (pixels.width - side) // 2, (pixels.height - side) // 2
            pixels = pixels.crop((left, top, left + side, top + side))
        if size is not None and pixels.size != (size, size):
            pixels = pixels.resize((size, size), Image.Resampling.BILINEAR)
        array = np.asarray(pixels, dtype=np.uint8)
    return array[:, :, None] if gray else array


def upright(image: Image.Image, gray: bool) -> Image.Image:
    """The image in gray or colour with eight bits per channel, turned upright by its EXIF orientation."""
    if image.mode.startswith(("I", "F")):  # Pillow would clip sixteen bits at 255, and make 0 of floats below 1
        exif = image.info.get("exif")
        image = Image.fromarray(_eight_bits(np.asarray(image)))
        image.info |= {} if exif is None else {"exif": exif}
    if (turn := TURNS.get(_orientation(image))) is not None:
        image = image.transpose(turn)
    return image.convert("L" if gray else "RGB")


def _eight_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels of sixteen bits, or floats from 0 to 1, as ``Dataset.from_arrays`` takes them."""
    if pixels.dtype.kind != "f":
        return np.asarray(pixels.astype(np.int64).clip(0, 65535) // 257, np.uint8)
    if not (pixels >= 0).all() or not (pixels <= 1).all():  # also if some are not numbers
        low, high = pixels.min(), pixels.max()
        raise FloatPixelsError(f"an image of floats has pixels from {low:.4g} to {high:.4g}, which must lie in 0..1.")
    return np.asarray(np.rint(pixels * 255), np.uint8)


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) of the image that ``upright`` returns."""
    return (image.height, image.width) if _orientation(image) in SIDEWAYS else image.size


def _orientation(image: Image.Image) -> Any:
    """How the camera was held. An unknown orientation, or one that cannot be read, is none."""
    try:
        return image.getexif().get(ORIENTATION)
    except Exception:
        return None


class _Quiet:
    """Hides warnings while any thread is inside. ``warnings.catch_warnings`` alone is not safe with threads.

    Pillow warns of moderately large images and of odd palettes.
    """

    def __init__(self) -> None:
        self.lock, self.inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.caught = warnings.catch_warnings()
                self.caught.__enter__()
                warnings.simplefilter("ignore")
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.caught.__exit__(None, None, None)


_QUIET = _Quiet()


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """A file as a Pillow image, its pixels not read yet. Any error inside the block becomes an ``OcilError``.

    The file may come from a stranger: one that would take minutes, or fill the memory, is an error too.
    """
    try:
        with _QUIET, open_bounded(_content(path), MAX_PIXELS, PATIENCE) as image:
            if image.format == "PNG" and "exif" not in image.info:
                _load_if_whole(image)  # as Pillow does to look for EXIF data: they may lie behind the pixels
                refuse_long_exif(image)
            yield image
    except TooManyPixelsError as error:
        raise OcilError(f"{path} {error}. Shrink it or take it out.") from error
    except FloatPixelsError as error:
        raise OcilError(f"{path}: {error} Scale them, or take it out.") from error
    except RefusedImageError as error:
        raise OcilError(f"{path} {error}. Replace it or take it out.") from error
    except OcilError:
        raise
    except FileNotFoundError as error:
        raise OcilError(f"there is no file {path}.") from error
    except Exception as error:  # a broken image can fail in any way
        raise OcilError(f"{path} is not a readable image. Replace it or take it out.") from error


def _content(path: Path) -> bytes:
    """What a file holds, or what is written to a pipe. A list of images may name a FIFO that nobody writes to."""
    with open(path, "rb", opener=_without_waiting) as file:  # Path.open has no opener
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode):
            content = file.read() if found.st_size <= MAX_BYTES else b""
        elif stat.S_ISFIFO(found.st_mode):
            os.set_blocking(file.fileno(), True)  # whoever writes may take their time
            content = file.read(MAX_BYTES + 1)  # which takes so much address space, so not for each file
        else:
            raise RefusedImageError("is not a file")
        if max(len(content), found.st_size) > MAX_BYTES:
            raise RefusedImageError(f"is larger than {MAX_BYTES >> 20} MiB")
        return content


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file. A FIFO without a writer would otherwise be waited for without end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _load_if_whole(image: Image.Image) -> None:
    """Read the pixels of an image. One that is broken stays as it is, and fails where its pixels are needed."""
    try:
        image.load()
    except RefusedImageError:
        raise
    except Exception:
        return
