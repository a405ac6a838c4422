"""The random parameters of the views of a batch, as ``learning.views`` draws them and a kernel reads them."""

from typing import NamedTuple

from torch import Tensor


class Jitter(NamedTuple):
    """The parameters of the colour jitter: five tensors ``[rows]``, and ``when``, which orders its steps."""

    chosen: Tensor
    """bool; the other images keep their colours."""
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    when: Tensor
    """``[4]``, one number per operation (brightness, contrast, saturation, hue); they run in ascending order of these.
    For a kernel ``[4 * batches]``: the images are so many batches of one size, and each has an order of its own."""


class Draw(NamedTuple):
    """The parameters of one batch: one row per image, or one row for all images. None where a part is switched off."""

    boxes: Tensor | None
    """``[rows, 4]``: top, left, bottom and right of the crop, the last two included."""
    flipped: Tensor | None
    jitter: Jitter | None
    grayed: Tensor | None


Range = tuple[float, float]


class Ranges(NamedTuple):
    """What the parameters of views are drawn from: ``RandomViews`` for images of one size, as numbers for a kernel."""

    height: int
    width: int
    trials: int
    """Boxes that are drawn for a crop; 0 without a crop."""
    area: Range
    """Of a box, in pixels."""
    log_ratio: Range
    """The logarithm of a box's height / width."""
    whole: tuple[int, int] | None
    """Height and width of the box if none of the trials fits; None: the only trial is cut to the image."""
    flip: float
    jitter: float
    brightness: Range
    contrast: Range
    saturation: Range
    hue: Range
    gray: float

    @property
    def numbers(self) -> int:
        """Uniform numbers that the parameters of a row are made of: the areas of all boxes, then their ratios, two for
        the place, four for the amounts of the jitter, and one each for whether to flip, to jitter and to turn gray."""
        return 2 * self.trials + 9
