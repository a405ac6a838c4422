"""RandAugment (Cubuk et al., NeurIPS 2020) on the device: each image of a batch gets operations of its own.

The sixteen operations and their strengths are those of the code that RAR was published with; each computes what Pillow
computes on uint8 images. Shapes are static and nothing is read back to the host, so a call can be captured as a CUDA
graph. Nothing branches on an image's operation. Instead there are four kinds of operations, and every image passes
through one step of each kind, which changes nothing unless it is the kind that was drawn for this image.

| kind | operations |
|---|---|
| a table of levels | autocontrast, equalize, invert, posterize, solarize, solarize_add, contrast, brightness |
| a mixture with another image | color (with its gray image), sharpness (with a smooth image) |
| pixels from another place | rotate, shear_x, shear_y, translate_x, translate_y |
| a rectangle of one colour | cutout |
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil.errors import OcilError

OPERATIONS = (
    "autocontrast",
    "equalize",
    "invert",
    "rotate",
    "posterize",
    "solarize",
    "solarize_add",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "shear_x",
    "shear_y",
    "cutout",
    "translate_x",
    "translate_y",
)
STRONGEST = 30  # the magnitude at which all operations have their full strength
FILLED = (125, 123, 114)  # the colour of a cutout, as published
LUMA = (19595, 38470, 7471)  # of 65,536: the shares of red, green and blue in gray, as Pillow rounds them


class Operation(NamedTuple):
    """What is drawn for each image of a batch."""

    number: Tensor
    """int64 ``[B]``: which of ``OPERATIONS``."""
    sign: Tensor
    """-1 or 1 ``[B]``: the direction of the operations that have one."""
    centre: Tensor
    """``[B, 2]``: row and column of a cutout's centre, as shares of the image."""


@dataclass(frozen=True)
class RandAugment:
    """``count`` random operations, one after the other, on each image, at ``magnitude`` / 30 of their full strength.

    Some operations are weaker, not stronger, at a larger magnitude: posterize and solarize. Color, contrast, brightness
    and sharpness change nothing at 15. Cutout and translations are in pixels: they were made for images of 224.
    """

    count: int = 1
    magnitude: float = 14

    def __post_init__(self) -> None:
        if self.count < 0 or not 0 <= self.magnitude <= STRONGEST:
            raise OcilError(
                f"RandAugment takes a count of at least 0 and a magnitude from 0 to {STRONGEST}, "
                f"not {self.count} and {self.magnitude}."
            )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented copies of uint8 images ``[B, H, W, 1 or 3]``. The generator lives on their device."""
        for _ in range(self.count):
            images = self.apply(images, self.draw(len(images), generator))
        return images

    def draw(self, rows: int, generator: torch.Generator) -> Operation:
        device = generator.device
        number = torch.randint(len(OPERATIONS), (rows,), generator=generator, device=device)
        sign = torch.randint(2, (rows,), generator=generator, device=device) * 2 - 1
        return Operation(number, sign, torch.rand(rows, 2, generator=generator, device=device))

    def apply(self, images: Tensor, drawn: Operation) -> Tensor:
        """The images after their operations. A pure function."""
        share = self.magnitude / STRONGEST
        chosen = dict(zip(OPERATIONS, (drawn.number == number for number in range(len(OPERATIONS))), strict=True))
        planes = images.permute(0, 3, 1, 2).long().contiguous()
        planes = _by_table(planes, chosen, share)
        planes = _mixed(planes, chosen, share)
        planes = _moved(planes, chosen, drawn.sign, share)
        planes = _cut_out(planes, chosen["cutout"], drawn.centre, 40 * share)
        return planes.to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _by_table(planes: Tensor, chosen: dict[str, Tensor], share: float) -> Tensor:
    """Operations in which a pixel's new level depends on its old one alone, given the image: a table per channel."""
    levels = torch.arange(256, device=planes.device)
    flat = planes.flatten(2)
    least, most = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    # How many pixels are darker than each level: for one image a cumulative histogram, of which nothing is counted.
    darker = torch.searchsorted(flat.sort(2).values, levels.expand(*flat.shape[:2], -1).contiguous())
    step = darker.gather(2, most) // 255
    added = (levels + 110 * share).clamp(max=255).long()
    bits = max(1, int(4 * share))
    factor = 0.1 + 1.8 * share
    tables = {
        "autocontrast": torch.where(most > least, (levels - least) * 255 // (most - least).clamp(min=1), levels),
        "equalize": torch.where(step > 0, (step // 2 + darker) // step.clamp(min=1), levels),
        "invert": 255 - levels,
        "posterize": levels // 2 ** (8 - bits) * 2 ** (8 - bits),
        "solarize": torch.where(levels < 256 * share, levels, 255 - levels),
        "solarize_add": torch.where(added < 128, added, 255 - added),
        "contrast": _blend(_mean_gray(planes), levels, factor),
        "brightness": _blend(torch.zeros_like(levels), levels, factor),
    }
    table = levels.expand(*flat.shape[:2], -1)
    for name, made in tables.items():
        table = torch.where(chosen[name][:, None, None], made.clamp(0, 255), table)
    return table.gather(2, flat).view_as(planes)


def _mixed(planes: Tensor, chosen: dict[str, Tensor], share: float) -> Tensor:
    """Operations that move an image away from, or towards, a duller one."""
    smooth = planes.clone()
    window = F.avg_pool2d(planes.float(), 3, 1, 1, divisor_override=1).long() + 4 * planes
    smooth[:, :, 1:-1, 1:-1] = ((2 * window + 13) // 26)[:, :, 1:-1, 1:-1]  # a 13th, rounded; the border stays
    dull = torch.where(_per_image(chosen["color"]), _gray(planes), planes)
    dull = torch.where(_per_image(chosen["sharpness"]), smooth, dull)
    either = _per_image(chosen["color"] | chosen["sharpness"])
    return torch.where(either, _blend(dull, planes, 0.1 + 1.8 * share), planes)


def _moved(planes: Tensor, chosen: dict[str, Tensor], sign: Tensor, share: float) -> Tensor:
    """Operations that take each pixel from another place, the nearest one, or black from outside of the image.

    The pixel at column x and row y, counted at the pixels' centres, comes from (a x + b y + c, d x + e y + f).
    """
    height, width = planes.shape[2:]
    angle, shear, pixels = math.radians(30 * share), 0.3 * share, 100 * share

    def where(name: str, value: Tensor | float) -> Tensor:
        return torch.where(chosen[name], value, 0.0)

    a = e = 1 - where("rotate", 1 - math.cos(angle))
    turn = where("rotate", sign * math.sin(angle))
    b, d = where("shear_x", sign * shear) - turn, where("shear_y", sign * shear) + turn
    c = where("translate_x", sign * pixels) + where("rotate", (1 - a) * (width / 2) + turn * (height / 2))
    f = where("translate_y", sign * pixels) + where("rotate", (1 - e) * (height / 2) - turn * (width / 2))
    x = torch.arange(width, device=planes.device)[None, None, :] + 0.5
    y = torch.arange(height, device=planes.device)[None, :, None] + 0.5
    a, b, c, d, e, f = (value[:, None, None] for value in (a, b, c, d, e, f))
    column, row = (a * x + b * y + c).floor().long(), (d * x + e * y + f).floor().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    found = planes.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, planes.shape[1], -1))
    return torch.where(inside[:, None], found.view_as(planes), 0)


def _cut_out(planes: Tensor, chosen: Tensor, centre: Tensor, size: float) -> Tensor:
    """Fill a square of ``size`` pixels, as far as it lies in the image, in one colour."""
    height, width = planes.shape[2:]
    hidden = _per_image(chosen)
    for length, share, axis in ((height, centre[:, 0], 2), (width, centre[:, 1], 3)):
        first = (share * length - size / 2).clamp(min=0).floor()
        last = (first + size).clamp(max=length).floor()
        place = torch.arange(length, device=planes.device).view([-1 if each == axis else 1 for each in range(4)])
        hidden = hidden & (place >= _per_image(first)) & (place <= _per_image(last))
    if planes.shape[1] == 1:
        return torch.where(hidden, sum(FILLED) // 3, planes)
    red, green, blue = (torch.where(hidden[:, 0], level, planes[:, n]) for n, level in enumerate(FILLED))
    return torch.stack((red, green, blue), 1)


def _blend(first: Tensor, second: Tensor, factor: float) -> Tensor:
    """``first`` at a factor of 0, ``second`` at 1, and beyond; cut to a level and rounded down."""
    return (first + factor * (second - first)).clamp(0, 255).long()


def _gray(planes: Tensor) -> Tensor:
    """The gray image ``[B, 1, H, W]``."""
    if planes.shape[1] == 1:
        return planes
    red, green, blue = (planes[:, n : n + 1] * share for n, share in enumerate(LUMA))
    return (red + green + blue + 2**15) // 2**16


def _mean_gray(planes: Tensor) -> Tensor:
    """The mean level of the gray image, rounded, ``[B, 1, 1]``."""
    count = planes.shape[2] * planes.shape[3]
    return ((2 * _gray(planes).sum((2, 3)) + count) // (2 * count))[:, :, None]


def _per_image(row: Tensor) -> Tensor:
    return row.view(-1, 1, 1, 1)
