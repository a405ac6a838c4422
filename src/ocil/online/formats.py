"""The format of a model's inputs: images or vectors, which its first samples decide for good."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocil.online.images import ImageFormat, is_pictures
from ocil.online.vectors import VectorFormat

InputFormat = ImageFormat | VectorFormat
"""Both have ``shape``, of one input as it is given; ``network_shape`` and ``dtype``, as it is stored; and ``read``."""


def format_of(
    given: Any, image_shape: Sequence[int] | None = None, pixel_range: tuple[float, float] | None = None
) -> InputFormat:
    """The format of the first inputs that a model sees.

    Rows of numbers, [N, D], are vectors, unless an ``image_shape`` says that they are pixels: nothing else
    distinguishes pixels from an embedding. All else is images.
    """
    if image_shape is None and not is_pictures(given) and np.ndim(given) == 2:
        return VectorFormat.of(given)
    return ImageFormat.of(given, image_shape, pixel_range)
