"""Inputs as they are stored, and as a network takes them.

An input is an image, stored as uint8 ``[H, W, C]`` with one or three channels, or a vector, for example an embedding,
stored as float16 or float32 ``[D]``.
"""

from torch import Tensor

from ocil.errors import OcilError

InputShape = tuple[int, ...]  # of one input as it is stored: (height, width, channels), or (length,)
ImageShape = tuple[int, int, int]  # height, width, channels


def is_image(shape: InputShape) -> bool:
    """Whether an input of this shape is an image; else it is a vector."""
    return len(shape) == 3


def image_shape(shape: InputShape) -> ImageShape:
    """The shape of an image. Only for code that vectors never reach."""
    height, width, channels = shape
    return height, width, channels


def to_float(x: Tensor) -> Tensor:
    """Stored images, uint8 ``[N, H, W, C]``, as float ``[N, C, H, W]`` in [0, 1], channels-last; vectors as float32.

    Images that are floats already raise an ``OcilError``: divided by 255 once more, they would all be black.
    """
    if x.ndim != 4:
        return x.float()
    if x.is_floating_point():
        raise OcilError(f"images must be uint8 [N, H, W, C] from 0 to 255, not {x.dtype} {list(x.shape)}.")
    return x.permute(0, 3, 1, 2) / 255
