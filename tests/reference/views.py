"""Slow views of one image: loops over pixels in double precision, written from the definition, not from the library."""

import colorsys
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float64]  # [C, H, W]
Box = tuple[int, int, int, int]  # top, left, bottom, right; the last two included


def crop(image: Image, box: Box) -> Image:
    """Follow one output pixel through every change of coordinates of kornia 0.4.1."""
    channels, height, width = image.shape
    out = np.zeros_like(image)
    for row in range(height):
        for column in range(width):
            y = _source(row, height, box[0], box[2])
            x = _source(column, width, box[1], box[3])
            for channel in range(channels):
                out[channel, row, column] = _bilinear(image[channel], y, x)
    return out


def _source(index: int, length: int, first: int, last: int) -> float:
    unit = (index + 0.5) / length  # the output pixel's centre, 0 and 1 at the outer edges
    output_pixel = unit * (length - 1)  # 0 and 1 are now taken for the first and the last pixel's centre
    input_pixel = first + output_pixel * (last - first) / (length - 1)  # corners of the box to corners of the output
    unit = input_pixel / (length - 1)
    return unit * length - 0.5  # and 0 and 1 are the outer edges again


def _bilinear(plane: Image, y: float, x: float) -> float:
    total = 0.0
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < plane.shape[0] and 0 <= column < plane.shape[1]:
                total += (1 - abs(y - row)) * (1 - abs(x - column)) * plane[row, column]
    return total


def flip(image: Image) -> Image:
    return np.stack([[list(reversed(row)) for row in plane] for plane in image])


def gray(image: Image) -> Image:
    luma = 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    return np.stack([luma, luma, luma])


def hsv(image: Image) -> Image:
    pixels = [[colorsys.rgb_to_hsv(*pixel) for pixel in row] for row in np.moveaxis(image, 0, 2)]
    return np.moveaxis(np.array(pixels), 2, 0)


def jitter(image: Image, factors: Sequence[float], order: Sequence[int]) -> Image:
    """Factors are (brightness, contrast, saturation, hue); the order lists them by number."""
    for operation in order:
        image = _jitter_once(image, operation, factors[operation])
    return image


def _jitter_once(image: Image, operation: int, factor: float) -> Image:
    if operation == 0:
        return np.clip(image + factor, 0, 1)
    if operation == 1:
        return np.clip(image * factor, 0, 1)
    if len(image) == 1:
        return image
    out = np.empty_like(image)
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column])
            if operation == 2:
                saturation = min(1.0, saturation * factor)
            else:
                hue = (hue + factor) % 1.0
            out[:, row, column] = colorsys.hsv_to_rgb(hue, saturation, value)
    return out


def size_probabilities(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], cells: int = 1500
) -> dict[tuple[int, int], float]:
    """How likely each (height, width) of a box is, by summing over a fine grid of areas and ratios; ten trials."""
    share = (np.arange(cells) + 0.5) / cells
    area = height * width * (scale[0] + (scale[1] - scale[0]) * share)[:, None]
    aspect = ratio[0] * (ratio[1] / ratio[0]) ** share[None, :]
    highs, wides = np.sqrt(area * aspect).astype(int), np.sqrt(area / aspect).astype(int)
    counts = np.bincount((highs * 1000 + wides).ravel())
    once = {divmod(int(code), 1000): counts[code] / cells**2 for code in np.flatnonzero(counts)}
    fitting = {size: p for size, p in once.items() if 0 < size[0] < height and 0 < size[1] < width}
    miss = 1 - sum(fitting.values())
    tries = sum(miss**k for k in range(10))  # expected number of trials that are looked at
    result = {size: p * tries for size, p in fitting.items()}
    if height / width < ratio[0]:
        rest = (height, round(height / ratio[0]))
    elif height / width > ratio[1]:
        rest = (round(width * ratio[1]), width)
    else:
        rest = (height, width)
    result[rest] = miss**10
    return result
