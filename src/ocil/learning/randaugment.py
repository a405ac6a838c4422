"""RandAugment (Cubuk et al., NeurIPS 2020) on the device: each image of a batch gets operations of its own.

There are two sets of operations and strengths: those of the code that RAR was published with, and those of torchvision.
Each operation computes what Pillow computes on uint8 images. Shapes are static and nothing is read back to the host, so
a call can be captured as a CUDA graph. Nothing branches on an image's operation. Instead there are four kinds of
operations, and every image passes through one step of each kind, which changes nothing unless it is the kind that was
drawn for this image.

| kind | operations |
|---|---|
| a table of levels | autocontrast, equalize, invert, posterize, solarize, solarize_add, contrast, brightness |
| a mixture with another image | color (with its gray image), sharpness (with a smooth image) |
| pixels from another place | rotate, shear_x, shear_y, translate_x, translate_y |
| a rectangle of one colour | cutout |
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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
TORCHVISION = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
SPACES = {"rar": OPERATIONS, "torchvision": TORCHVISION}
STRONGEST = 30  # the magnitude at which all operations have their full strength
FILLED = (125, 123, 114)  # the colour of a cutout, as published
LUMA = (19595, 38470, 7471)  # of 65,536: the shares of red, green and blue in gray, as Pillow rounds them


class Operation(NamedTuple):
    """What is drawn for each image of a batch."""

    number: Tensor
    """int64 ``[B]``: which operation of the space."""
    sign: Tensor
    """-1 or 1 ``[B]``: the direction of the operations that have one."""
    centre: Tensor
    """``[B, 2]``: row and column of a cutout's centre, as shares of the image."""


class Strengths(NamedTuple):
    """How strong each operation is."""

    bits: int
    """That posterize keeps."""
    threshold: float
    """The level from which solarize inverts."""
    added: float
    """Levels that solarize_add adds first."""
    factor: Tensor | float
    """Of color, contrast, brightness and sharpness: 1 changes nothing. Per image, ``[B]``, or the same for all."""
    angle: float
    """Of rotations, in degrees."""
    shear: float
    pixels: tuple[float, float]
    """Of translations, along x and y."""
    cutout: float
    """Length of the square's sides."""

    @classmethod
    def of_rar(cls, share: float) -> "Strengths":
        """The strengths of ``rar``, at a share of the largest magnitude. Cutout and translations were made for images
        of 224 pixels.
        """
        return cls(
            bits=max(1, int(4 * share)),
            threshold=256 * share,
            added=110 * share,
            factor=0.1 + 1.8 * share,
            angle=30 * share,
            shear=0.3 * share,
            pixels=(100 * share, 100 * share),
            cutout=40 * share,
        )

    @classmethod
    def of_torchvision(cls, share: float, sign: Tensor, height: int, width: int) -> "Strengths":
        return cls(
            bits=8 - round(4 * share),
            threshold=255 * (1 - share),
            added=0,
            factor=1 + 0.9 * share * sign,
            angle=30 * share,
            shear=0.3 * share,
            pixels=(int(150 / 331 * width * share), int(150 / 331 * height * share)),
            cutout=0,
        )


@dataclass(frozen=True)
class RandAugment:
    """``count`` random operations, one after the other, on each image, at ``magnitude`` / 30 of their full strength.

    In the space ``rar`` some operations are weaker, not stronger, at a larger magnitude: posterize and solarize; and
    color, contrast, brightness and sharpness change nothing at 15. ``per_batch`` draws the same for all images.
    """

    count: int = 1
    magnitude: float = 14
    space: Literal["rar", "torchvision"] = "rar"
    per_batch: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or not 0 <= self.magnitude <= STRONGEST:
            raise OcilError(
                f"RandAugment takes a count of at least 0 and a magnitude from 0 to {STRONGEST}, "
                f"not {self.count} and {self.magnitude}."
            )
        if self.space not in SPACES:
            raise OcilError(f"RandAugment has the spaces {' and '.join(SPACES)}, not {self.space!r}.")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented copies of uint8 images ``[B, H, W, 1 or 3]``. The generator lives on their device."""
        for _ in range(self.count):
            images = self.apply(images, self.draw(len(images), generator))
        return images

    def draw(self, rows: int, generator: torch.Generator) -> Operation:
        device, drawn = generator.device, 1 if self.per_batch else rows
        number = torch.randint(len(SPACES[self.space]), (drawn,), generator=generator, device=device)
        sign = torch.randint(2, (drawn,), generator=generator, device=device) * 2 - 1
        centre = torch.rand(drawn, 2, generator=generator, device=device)
        return Operation(number.expand(rows), sign.expand(rows), centre.expand(rows, 2))

    def apply(self, images: Tensor, drawn: Operation) -> Tensor:
        """The images after their operations. A pure function."""
        known, height, width = SPACES[self.space], images.shape[1], images.shape[2]
        absent = len(known)  # a number that is never drawn
        chosen = {name: drawn.number == (known.index(name) if name in known else absent) for name in OPERATIONS}
        share = self.magnitude / STRONGEST
        strengths = Strengths.of_rar(share)
        if self.space == "torchvision":
            strengths = Strengths.of_torchvision(share, drawn.sign, height, width)
        planes = images.permute(0, 3, 1, 2).long().contiguous()
        planes = _by_table(planes, chosen, strengths)
        planes = _mixed(planes, chosen, strengths)
        planes = _moved(planes, chosen, drawn.sign, strengths)
        planes = _cut_out(planes, chosen["cutout"], drawn.centre, strengths.cutout)
        return planes.to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _by_table(planes: Tensor, chosen: dict[str, Tensor], strengths: Strengths) -> Tensor:
    """Operations in which a pixel's new level depends on its old one alone, given the image: a table per channel."""
    levels = torch.arange(256, device=planes.device)
    flat = planes.flatten(2)
    least, most = flat.amin(2, keepdim=True), flat.amax(2, keepdim=True)
    # How many pixels are darker than each level: for one image a cumulative histogram, of which nothing is counted.
    darker = torch.searchsorted(flat.sort(2).values, levels.expand(*flat.shape[:2], -1).contiguous())
    step = darker.gather(2, most) // 255
    added = (levels + strengths.added).clamp(max=255).long()
    dropped = 2 ** (8 - strengths.bits)
    factor = _per_image(strengths.factor, 3)
    tables = {
        "autocontrast": torch.where(most > least, (levels - least) * 255 // (most - least).clamp(min=1), levels),
        "equalize": torch.where(step > 0, (step // 2 + darker) // step.clamp(min=1), levels),
        "invert": 255 - levels,
        "posterize": levels // dropped * dropped,
        "solarize": torch.where(levels < strengths.threshold, levels, 255 - levels),
        "solarize_add": torch.where(added < 128, added, 255 - added),
        "contrast": _blend(_mean_gray(planes), levels, factor),
        "brightness": _blend(torch.zeros_like(levels), levels, factor),
    }
    table = levels.expand(*flat.shape[:2], -1)
    for name, made in tables.items():
        table = torch.where(chosen[name][:, None, None], made.clamp(0, 255), table)
    return table.gather(2, flat).view_as(planes)


def _mixed(planes: Tensor, chosen: dict[str, Tensor], strengths: Strengths) -> Tensor:
    """Operations that move an image away from, or towards, a duller one."""
    smooth = planes.clone()
    window = F.avg_pool2d(planes.float(), 3, 1, 1, divisor_override=1).long() + 4 * planes
    smooth[:, :, 1:-1, 1:-1] = ((2 * window + 13) // 26)[:, :, 1:-1, 1:-1]  # a 13th, rounded; the border stays
    dull = torch.where(_per_image(chosen["color"]), _gray(planes), planes)
    dull = torch.where(_per_image(chosen["sharpness"]), smooth, dull)
    either = _per_image(chosen["color"] | chosen["sharpness"])
    return torch.where(either, _blend(dull, planes, _per_image(strengths.factor)), planes)


def _moved(planes: Tensor, chosen: dict[str, Tensor], sign: Tensor, strengths: Strengths) -> Tensor:
    """Operations that take each pixel from another place, the nearest one, or black from outside of the image.

    The pixel at column x and row y, counted at the pixels' centres, comes from (a x + b y + c, d x + e y + f).
    """
    height, width = planes.shape[2:]
    angle, shear, (across, down) = math.radians(strengths.angle), strengths.shear, strengths.pixels

    def where(name: str, value: Tensor | float) -> Tensor:
        return torch.where(chosen[name], value, 0.0)

    a = e = 1 - where("rotate", 1 - math.cos(angle))
    turn = where("rotate", sign * math.sin(angle))
    b, d = where("shear_x", sign * shear) - turn, where("shear_y", sign * shear) + turn
    c = where("translate_x", sign * across) + where("rotate", (1 - a) * (width / 2) + turn * (height / 2))
    f = where("translate_y", sign * down) + where("rotate", (1 - e) * (height / 2) - turn * (width / 2))
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


def _blend(first: Tensor, second: Tensor, factor: Tensor | float) -> Tensor:
    """A mixture of two images: ``first`` at a factor of 0, ``second`` at 1, and beyond. Values are clamped to a level
    and rounded down.
    """
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


def _per_image(row: Any, dimensions: int = 4) -> Any:
    """A value per image, to be combined with tensors of so many dimensions; one for all stays as it is."""
    return row.view(-1, *[1] * (dimensions - 1)) if isinstance(row, Tensor) else row
