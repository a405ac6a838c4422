"""Changes of images that make domains: noise, blur and occlusion of any strength, as in the streams of new instances of
Mai et al. (Online continual learning in image classification: An empirical survey, Neurocomputing 2022).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data.mapped import RowReader
from ocil.seeds import derive

NOISE_UNIT = 0.1 * 255  # standard deviation of noise of strength 1: a tenth of the range of a pixel
TRUNCATE = 4.0  # standard deviations up to which the blur's kernel reaches
CHUNK_BYTES = 4 * 2**20
UNIT = 4096  # times 255 * 16 it is less than 2**24, up to which a float32 holds every whole number

Images = NDArray[np.uint8]


@dataclass(frozen=True)
class ChangeKind:
    """A way to change images ``[N, H, W, C]`` by a strength above 0."""

    apply: Callable[[Images, float, np.random.Generator], Images]
    strongest: float
    """The survey's strength of the last of its ten domains."""
    most: float
    per_image: bool = True
    """Whether each image draws its own random numbers; else all images of a domain are changed in the same way."""


def add_noise(images: Images, strength: float, rng: np.random.Generator) -> Images:
    """Normal noise on each value, of ``strength`` tenths of the range."""
    noise = rng.standard_normal(images.shape, dtype=np.float32)
    return _bytes(images + np.float32(NOISE_UNIT * strength) * noise)


def blur(images: Images, strength: float, rng: np.random.Generator) -> Images:
    """A Gaussian blur of ``strength`` pixels' standard deviation. Pixels at the border stand for those beyond it.

    Weights are whole numbers, and so is what lies between the two passes, in sixteenths of a gray level. No sum exceeds
    what a float32 holds exactly, so that every machine makes the same images.
    """
    _, height, width, _ = images.shape
    rows = np.einsum("hk,nkwc->nhwc", _weights(height, strength), images.astype(np.float32), optimize=True)
    rows = np.rint(rows / (UNIT // 16))
    return _bytes(np.einsum("wk,nhkc->nhwc", _weights(width, strength), rows, optimize=True) / (UNIT * 16))


def _weights(side: int, strength: float) -> NDArray[np.float32]:
    """``[side, side]``: how much each pixel of a line counts for each, in whole numbers that add up to ``UNIT``."""
    radius = int(TRUNCATE * strength + 0.5)
    exact = np.exp(-0.5 * (np.arange(-radius, radius + 1) / strength) ** 2)
    whole = np.rint(UNIT * exact / exact.sum())
    whole[radius] += UNIT - whole.sum()
    found = np.zeros((side, side), dtype=np.float32)
    for place in range(side):
        np.add.at(found[place], np.clip(np.arange(-radius, radius + 1) + place, 0, side - 1), whole)
    return found


def occlude(images: Images, strength: float, rng: np.random.Generator) -> Images:
    """A white square of ``strength`` times the shorter side, at the same random place in all images."""
    _, height, width, _ = images.shape
    side = int(strength * min(height, width) + 1e-9)
    top, left = (int(rng.integers(0, length - side + 1)) for length in (height, width))
    found = images.copy()
    found[:, top : top + side, left : left + side] = 255
    return found


CHANGES: Mapping[str, ChangeKind] = {
    "noise": ChangeKind(add_noise, 3.6, 100),
    "blur": ChangeKind(blur, 2.5, 100),
    "occlusion": ChangeKind(occlude, 0.6, 1, per_image=False),
}
"""By the word behind a dataset's name."""


def changed(x: NDArray[Any], domain: NDArray[np.int64], kind: str, strengths: Sequence[float], split: str) -> Images:
    """A copy of images, each changed as strongly as its domain says. It depends on the arguments alone."""
    change, rows = CHANGES[kind], RowReader(x)
    found = np.empty(x.shape, dtype=np.uint8)
    step = max(1, CHUNK_BYTES // max(1, x[:1].nbytes))
    for number, strength in enumerate(strengths):
        here = np.flatnonzero(domain == number)
        place = f"{kind} {number}"
        rng = np.random.default_rng(derive(0, f"{place} {split}" if change.per_image else place))
        for first in range(0, len(here), step):
            chunk = here[first : first + step]
            images = rows.take(chunk)
            if not change.per_image:
                rng = np.random.default_rng(derive(0, place))
            found[chunk] = change.apply(images, strength, rng) if strength else images
    return found


def _bytes(values: NDArray[np.float32]) -> Images:
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)
