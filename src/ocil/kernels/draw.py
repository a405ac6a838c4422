"""The random parameters of the views of a batch, as ``learning.views`` draws them and a kernel reads them."""

from typing import NamedTuple

from torch import Tensor


class Jitter(NamedTuple):
    """The parameters of the colour jitter: five tensors ``[rows]``, and ``when`` ``[4]``, which orders its steps."""

    chosen: Tensor
    """bool; the other images keep their colours."""
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor
    when: Tensor
    """One number per operation (brightness, contrast, saturation, hue); they run in ascending order of these."""


class Draw(NamedTuple):
    """The parameters of one batch: one row per image, or one row for all images. None where a part is switched off."""

    boxes: Tensor | None
    """``[rows, 4]``: top, left, bottom and right of the crop, the last two included."""
    flipped: Tensor | None
    jitter: Jitter | None
    grayed: Tensor | None
