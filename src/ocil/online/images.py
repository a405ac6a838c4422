"""Turns a caller's arrays, rows of numbers, files or Pillow images into the uint8 images that learners take."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocil.data import images as files
from ocil.data.images import GRAY_MODES
from ocil.errors import OcilError
from ocil.networks import ImageShape, smallest_batch
from ocil.online.inputs import InputError, numbers

Picture = str | Path | Image.Image

KEPT = 4  # times as large as the model's images a JPEG stays when it is decoded at a smaller scale
FAR, FEW = 0.05, 0.01  # of the pixel range, how far outside it; and of all numbers: what is clipped without a warning
EIGHT_BITS = 100  # white of a model whose images had numbers up to 255, or not far below
OPEN = -1  # in place of a height or width: it follows from the data, as in numpy's reshape


@dataclass(frozen=True)
class ImageFormat:
    """The format of a model's images: their shape, and the values of black and white."""

    shape: ImageShape
    """Height, width, channels."""
    low: float = 0.0
    high: float = 255.0
    dtype: ClassVar["np.dtype[Any]"] = np.dtype(np.uint8)

    def __post_init__(self) -> None:
        sides = self.shape
        if len(sides) != 3 or any(type(side) is not int or side < 1 for side in sides) or sides[2] not in (1, 3):
            raise InputError(f"the shape of an image must be (height, width, 1 or 3), not {sides}.")
        if not -math.inf < self.low <= self.high < math.inf:
            raise InputError(f"black = {self.low} and white = {self.high} must be two numbers, the smaller one first.")
        if self.high - self.low == math.inf:
            raise InputError(
                f"the pixels' numbers, {self.low:g} to {self.high:g}, lie too far apart: divide them by 4."
            )

    @property
    def factor(self) -> int:
        """How often each pixel is repeated in both directions: a single tiny image would have no batch statistics."""
        factor = 1
        while smallest_batch((self.shape[0] * factor, self.shape[1] * factor, 1)) > 1:
            factor += 1
        return factor

    @property
    def network_shape(self) -> ImageShape:
        height, width, channels = self.shape
        return height * self.factor, width * self.factor, channels

    def __str__(self) -> str:
        return f"images of {'x'.join(map(str, self.shape))}"

    @classmethod
    def of(
        cls,
        given: "Sequence[Picture] | NDArray[Any]",
        image_shape: Sequence[int] | None = None,
        pixel_range: tuple[float, float] | None = None,
    ) -> "ImageFormat":
        """The format of the first images that a model sees, which it keeps for good.

        Numbers that are not uint8 are mapped from ``pixel_range`` to 0..255: if it is not given, from 0..1 where all of
        these lie in it, from 0..255 where they look like uint8 numbers of another type, else from their smallest to
        their largest. Rows of pixels need an ``image_shape``.
        """
        wanted = _checked_shape(image_shape)
        if pixel_range is not None:
            pixel_range = _checked_range(pixel_range)
        if is_pictures(given):
            if wanted is not None and OPEN in wanted:
                raise InputError(f"image_shape = {image_shape}: files are resized, and need a height and a width.")
            if wanted is None or len(wanted) == 2:
                with opened(given[0]) as picture:
                    sides = wanted or files.upright_size(picture)[::-1]
                    wanted = (*sides, 1 if picture.mode in GRAY_MODES else 3)
            return cls(_three(wanted))
        array = numbers(given, "image")
        shape = _folded(_three(wanted), array) if wanted else _shape_of(array)
        if pixel_range is None:
            pixel_range = _range_of(array)
        return cls(shape, *pixel_range)

    def read(self, given: "Sequence[Picture] | NDArray[Any]") -> NDArray[np.uint8]:
        """uint8 [N, H, W, C] for the network: pictures are resized, arrays must fit."""
        if is_pictures(given):
            images = np.stack([self._read_picture(picture) for picture in given])
        else:
            images = self._from_array(numbers(given, "image"))
        return images.repeat(self.factor, axis=1).repeat(self.factor, axis=2)

    def decode_small(self, image: Image.Image) -> None:
        """Let a large JPEG whose pixels are not read yet be decoded in halves, quarters or eighths, as long as it stays
        ``KEPT`` times as large as the model's images. It is resized afterwards in any case: pixels differ by about one
        level in 256, and it takes a tenth of the time."""
        image.draft(None, (KEPT * max(self.shape[:2]),) * 2)

    def _read_picture(self, picture: Picture) -> NDArray[np.uint8]:
        """One image as [H, W, C], turned upright, in gray or colour as the model has them, resized bilinearly."""
        height, width, channels = self.shape
        with opened(picture, self.decode_small) as image:
            pixels = files.upright(image, channels == 1)
            if pixels.size != (width, height):
                pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(pixels, np.uint8).reshape(self.shape)

    def _from_array(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        height, width, channels = self.shape
        fits = array.ndim == 2 and array.shape[1] == height * width * channels
        fits |= array.ndim == 3 and channels == 1 and array.shape[1:] == (height, width)
        fits |= array.ndim == 4 and array.shape[1:] == self.shape
        if not fits:
            size = "x".join(map(str, array.shape[1:]))
            advice = " If this is one image, give x[None]." if array.shape in (self.shape, self.shape[:2]) else ""
            raise InputError(f"images of {size} were given, but the model has {height}x{width}x{channels}.{advice}")
        if array.dtype != np.uint8:
            scaled = (array.astype(np.float64) - self.low) * (255 / ((self.high - self.low) or 1.0))
            array = np.rint(scaled.clip(0, 255)).astype(np.uint8)
        return array.reshape(-1, *self.shape)

    def warn_of_another_range(self, array: NDArray[Any]) -> None:
        """Warn of numbers that would become white or black images, whatever is in them, or have another contrast."""
        if array.dtype.kind not in "fiu" or not array.size:
            return
        margin, known = FAR * (self.high - self.low), f"the model's pixel range, {self.low:g} to {self.high:g}"
        if array.dtype == np.uint8:
            nearly = abs(self.low) <= FAR * 255 and abs(self.high - 255) <= FAR * 255  # as models of ocil 0.1 have it
            if not nearly and (self.low, self.high) not in ((0, 1), (-1, 1)):
                warnings.warn(
                    f"these uint8 numbers are taken as they are, and others are stretched from {known}, to 0 to 255: "
                    "give them as another type, or begin the model with a pixel_range.",
                    stacklevel=4,
                )
            return
        if np.mean((array < self.low - margin) | (array > self.high + margin)) > FEW:
            warnings.warn(
                f"many of these numbers lie outside {known}, and are clipped: bring them into it, or begin the model "
                "with a pixel_range.",
                stacklevel=4,
            )
        elif array.dtype.kind == "f" and self.high >= EIGHT_BITS and 0 < array.max() <= 1 and array.min() >= 0:
            warnings.warn(
                f"these numbers lie from 0 to 1, next to black in {known}: multiply them by {self.high:g}, or give "
                "uint8 numbers.",
                stacklevel=4,
            )


def is_pictures(given: Any) -> "TypeGuard[Sequence[Picture]]":
    """Whether these are files or Pillow images, not numbers."""
    if isinstance(given, np.ndarray) and given.ndim != 1:
        return False
    if not isinstance(given, list | tuple | np.ndarray) or not len(given):
        return False
    return all(isinstance(one, str | Path | Image.Image) for one in given)


@contextmanager
def opened(picture: Picture, before: Callable[[Image.Image], None] = lambda image: None) -> Iterator[Image.Image]:
    """A picture whose pixels can be read. ``InputError``, with its name, for one that is broken or far too large.

    ``before`` is called with the image of a file, before its pixels are read.
    """
    try:
        if isinstance(picture, Image.Image):
            yield picture
            return
        with files.opened(Path(picture)) as image:
            before(image)
            image.load()
            yield image
    except InputError:
        raise
    except OcilError as error:
        raise InputError(str(error)) from error


def _checked_shape(image_shape: Sequence[int] | None) -> tuple[int, ...] | None:
    if image_shape is None:
        return None
    try:
        shape = tuple(int(side) for side in image_shape)
    except (TypeError, ValueError):
        shape = ()
    sides, channels = shape[:2], shape[2:]
    whole = len(sides) == 2 and all(side > 0 or side == OPEN for side in sides) and sides != (OPEN, OPEN)
    if not whole or channels not in ((), (1,), (3,)):
        raise InputError(
            f"image_shape = {image_shape} must be (height, width) or (height, width, 1 or 3); for rows of pixels one "
            "of height and width may be -1."
        )
    return shape


def _three(shape: tuple[int, ...]) -> ImageShape:
    return shape[0], shape[1], shape[2] if len(shape) == 3 else 1


def _folded(shape: ImageShape, array: NDArray[Any]) -> ImageShape:
    """The shape with a side that was left open computed from the others and the numbers per image."""
    if OPEN not in shape:
        return shape
    count, known = math.prod(array.shape[1:]), -math.prod(shape)
    if count % known or not count:
        raise InputError(f"image_shape = {shape}: rows of {count} numbers cannot be folded to it.")
    height, width = (count // known if side == OPEN else side for side in shape[:2])
    return height, width, shape[2]


def _shape_of(array: NDArray[Any]) -> ImageShape:
    if array.ndim == 3:
        return array.shape[1], array.shape[2], 1
    if array.ndim == 4 and array.shape[3] in (1, 3):
        return array.shape[1], array.shape[2], array.shape[3]
    if array.ndim == 2:
        raise InputError(f"rows of {array.shape[1]} numbers need image_shape=(height, width) to be images.")
    size = "x".join(map(str, array.shape))
    first = array.ndim == 4 and array.shape[1] in (1, 3)
    advice = " Its channels come first: give x.transpose(0, 2, 3, 1)." if first else ""
    raise InputError(f"images must be [N,H,W], [N,H,W,1] or [N,H,W,3], but this array is {size}.{advice}")


def _checked_range(given: Any) -> tuple[float, float]:
    try:
        low, high = map(float, given)
    except (TypeError, ValueError, OverflowError):
        low = high = math.nan
    if not low < high:
        raise InputError(f"pixel_range = {given} must be two numbers, the smaller one first.")
    return low, high


def _range_of(array: NDArray[Any]) -> tuple[float, float]:
    if array.dtype == np.uint8 or not array.size:
        return 0.0, 255.0
    low, high = float(array.min()), float(array.max())
    if low >= 0 and EIGHT_BITS <= high <= 255:  # then the same images as uint8 give the same model
        return 0.0, 255.0
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
