"""Images as they are stored, and as a network takes them."""

from torch import Tensor

ImageShape = tuple[int, int, int]  # height, width, channels


def smallest_batch(image_shape: ImageShape) -> int:
    """The smallest batch that has batch statistics: 2 if the last map of a network has one pixel, else 1."""
    return 1 if max(image_shape[:2]) > 8 else 2


def to_float(images: Tensor) -> Tensor:
    """Stored images, uint8 ``[N, H, W, C]``, as float ``[N, C, H, W]`` in [0, 1], channels-last."""
    return images.permute(0, 3, 1, 2).float() / 255
