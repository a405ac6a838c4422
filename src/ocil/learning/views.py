"""Random views of images, drawn per image, on the device.

They follow kornia 0.4.1 (RandomResizedCrop, RandomHorizontalFlip, ColorJitter, RandomGrayscale), not torchvision:
brightness adds, contrast multiplies, and the order of the jitter is drawn once per batch. Shapes are static and nothing
is read back to the host, so a call can be captured as a CUDA graph.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil import kernels
from ocil.errors import OcilError
from ocil.kernels.draw import Draw, Jitter, Range, Ranges
from ocil.limits import check

CropRule = Literal["reject", "clamp"]
TRIALS = 10


@dataclass(frozen=True)
class RandomViews:
    """Random crop, flip, colour jitter and gray. The defaults are those of AFS; on CIFAR-10 it adds ``gray=0.2``.

    ``crop_scale=None`` switches the crop off, a probability of 0 each of the others. ``per_batch`` draws one set of
    parameters for the whole batch, as DVC does.
    """

    crop_scale: Range | None = (0.75, 1.0)
    crop_ratio: Range = (3 / 4, 4 / 3)
    crop_rule: CropRule = "reject"
    flip: float = 0.5
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    jitter: float = 0.8
    gray: float = 0.0
    per_batch: bool = False

    def __post_init__(self) -> None:
        for name in ("flip", "jitter", "gray"):
            check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "a probability from 0 to 1")
        for name, most in (("brightness", 1), ("contrast", math.inf), ("saturation", math.inf), ("hue", 0.5)):
            value = getattr(self, name)
            check(0 <= value <= most and math.isfinite(value), name, value, f"a number from 0 to {most}")
        if self.crop_scale is not None:
            low, high = self.crop_scale
            check(0 < low <= high <= 1, "crop_scale", self.crop_scale, "None or 0 < low <= high <= 1")
        low, high = self.crop_ratio
        check(0 < low <= high < math.inf, "crop_ratio", self.crop_ratio, "0 < low <= high")
        check(self.crop_rule in ("reject", "clamp"), "crop_rule", self.crop_rule, "'reject' or 'clamp'")

    def __call__(self, images: Tensor, generator: torch.Generator, batches: int = 1) -> Tensor:
        """Random views of float32 images [B, C, H, W] in [0, 1], C = 1 or 3. The generator lives on their device.

        ``batches``: the images are so many batches of one size, one behind the other. What is drawn once per batch is
        drawn for each of them, as in as many calls; on a GPU they take the kernels of one call.
        """
        good = images.ndim == 4 and images.shape[1] in (1, 3) and min(images.shape[2:]) > 1
        if not good or images.dtype != torch.float32:
            got = f"{images.dtype} {list(images.shape)}"
            raise OcilError(f"random views need float32 images [B, 1 or 3, H, W], got {got}.")
        fused = kernels.present(images) and images.is_contiguous(memory_format=torch.channels_last)
        if batches > 1 and (self.per_batch or not fused):
            return torch.cat([self(part, generator) for part in images.split(len(images) // batches)])
        draw = self.draw(images, generator, batches)
        return kernels.views(images, draw) if fused else self.apply(images, draw)

    def draw(self, images: Tensor, generator: torch.Generator, batches: int = 1) -> Draw:
        """All random parameters for a batch of this shape, on its device. Several ``batches``: on a GPU only."""
        rows = 1 if self.per_batch else images.shape[0]
        height, width = images.shape[2:]
        if kernels.present(images):
            return kernels.draw(self.ranges(height, width), rows, generator, batches)
        empty = images.new_empty

        def chosen(probability: float) -> Tensor:
            return empty(rows, dtype=torch.bool).bernoulli_(probability, generator=generator)

        def between(low: float, high: float) -> Tensor:
            return empty(rows).uniform_(low, high, generator=generator)

        boxes = None
        if self.crop_scale is not None:
            boxes = crop_boxes(rows, height, width, self.crop_scale, self.crop_ratio, self.crop_rule, generator)
        flipped = chosen(self.flip) if self.flip > 0 else None
        jittered = None
        if self.jitter > 0:
            jittered = Jitter(
                chosen=chosen(self.jitter),
                brightness=between(*_around(0, self.brightness)),
                contrast=between(*_around(1, self.contrast)),
                saturation=between(*_around(1, self.saturation)),
                hue=between(*_around(0, self.hue)),
                when=empty(4).uniform_(generator=generator),
            )
        grayed = chosen(self.gray) if self.gray > 0 else None
        return Draw(boxes, flipped, jittered, grayed)

    def ranges(self, height: int, width: int) -> Ranges:
        """What ``draw`` draws from for images of this size, as numbers."""
        low, high = self.crop_scale or (1.0, 1.0)
        reject = self.crop_rule == "reject"
        return Ranges(
            height,
            width,
            trials=_trials(self.crop_rule) if self.crop_scale else 0,
            area=(low * height * width, high * height * width),
            log_ratio=(math.log(self.crop_ratio[0]), math.log(self.crop_ratio[1])),
            whole=_whole(height, width, self.crop_ratio) if reject else None,
            flip=self.flip,
            jitter=self.jitter,
            brightness=_around(0, self.brightness),
            contrast=_around(1, self.contrast),
            saturation=_around(1, self.saturation),
            hue=_around(0, self.hue),
            gray=self.gray,
        )

    def apply(self, images: Tensor, draw: Draw) -> Tensor:
        """The views that these parameters give. A pure function; it returns the images if all is switched off."""
        channels_last = images.is_contiguous(memory_format=torch.channels_last)
        views = images
        if draw.boxes is not None:
            views = crop(views, draw.boxes)
        if draw.flipped is not None:
            views = _choose(draw.flipped, views.flip(3), views)
        if draw.jitter is not None:
            chosen, *parameters = draw.jitter
            views = _choose(chosen, jitter(views, *parameters), views)
        if draw.grayed is not None and images.shape[1] == 3:
            views = _choose(draw.grayed, gray(views), views)
        return views.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def crop_range(smallest: float, name: str = "crop") -> Range | None:
    """The ``crop_scale`` of a crop that keeps at least this share of the image; 1 switches the crop off. ``name``: of
    the setting, for the message."""
    check(0 < smallest <= 1, name, smallest, "more than 0 and at most 1")
    return (smallest, 1.0) if smallest < 1 else None


def crop_boxes(
    rows: int, height: int, width: int, scale: Range, ratio: Range, rule: CropRule, generator: torch.Generator
) -> Tensor:
    """Random boxes [rows, 4] of integer (top, left, bottom, right), the last two included in the box.

    The area is uniform, the ratio height / width is log-uniform, both sides are rounded down. "reject" takes the first
    of ten trials whose sides are smaller than the image's, else the whole image (or the largest box of an allowed ratio
    if the image itself is too long). "clamp" takes one trial and cuts it to the image.
    """
    empty = torch.empty(rows, _trials(rule), device=generator.device)
    area = empty.uniform_(scale[0] * height * width, scale[1] * height * width, generator=generator)
    aspect = torch.empty_like(area).uniform_(math.log(ratio[0]), math.log(ratio[1]), generator=generator).exp_()
    high, wide = (area * aspect).sqrt().floor(), (area / aspect).sqrt().floor()
    if rule == "clamp":
        high, wide = high.clamp(1, height), wide.clamp(1, width)
    else:
        fits = (high > 0) & (high < height) & (wide > 0) & (wide < width)
        first, any_fits = fits.int().argmax(1, keepdim=True), fits.any(1, keepdim=True)
        whole_height, whole_width = _whole(height, width, ratio)
        high = torch.where(any_fits, high.gather(1, first), whole_height)
        wide = torch.where(any_fits, wide.gather(1, first), whole_width)
    place = torch.rand(2, rows, 1, generator=generator, device=area.device)
    top, left = (place[0] * (height + 1 - high)).floor(), (place[1] * (width + 1 - wide)).floor()
    return torch.cat((top, left, top + high - 1, left + wide - 1), 1)


def _trials(rule: CropRule) -> int:
    return TRIALS if rule == "reject" else 1


def _whole(height: int, width: int, ratio: Range) -> tuple[int, int]:
    """Height and width of the largest box of an allowed ratio. It is the whole image, unless that is too long."""
    return min(height, round(width * ratio[1])), min(width, round(height / ratio[0]))


def _around(middle: int, amount: float) -> Range:
    """The range of a jitter around its middle. A factor (its middle is 1) does not become negative."""
    low = middle - amount
    return (max(0.0, low) if middle else low), middle + amount


def crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Each box (top, left, bottom, right, all included), resized to the image's own size; bilinear, zeros outside.

    Output column j of W reads input column ``(left + (j + 0.5) / W * (right - left)) * W / (W - 1) - 0.5``. So the
    whole image stays as it is, and a smaller box that touches the border of the image gets a darker edge there.
    """
    count, _, height, width = images.shape
    # In the units of grid_sample that formula is a straight line between the box's corners, where the centres of the
    # first and the last pixel of the image are at -1 and 1.
    top, bottom = (boxes[:, 0::2, None] * (2 / (height - 1)) - 1).unbind(1)
    left, right = (boxes[:, 1::2, None] * (2 / (width - 1)) - 1).unbind(1)
    y, x = torch.lerp(top, bottom, _centres(height, images)), torch.lerp(left, right, _centres(width, images))
    grid = torch.stack((x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)), 3)
    views = F.grid_sample(images, grid.expand(count, -1, -1, -1), "bilinear", "zeros", align_corners=False)
    return views.clamp_(0, 1)  # the four weights may add up to a hair more than one


def jitter(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor, when: Tensor
) -> Tensor:
    """Add brightness, multiply by contrast, multiply the saturation, turn the hue (in turns); each clamped to [0, 1].

    The operations run in ascending order of the four numbers ``when``. One-channel images have no saturation and hue.
    """
    # The order is on the device, not known here. Two HSV steps leave three gaps for the two affine steps: run an affine
    # step in every gap, with factors that change nothing where the order has none.
    moments, step = when.view(2, 2).sort(1)
    gap = (moments[0, :, None] > moments[1]).sum(1)  # how many HSV steps come before each affine step
    here = torch.arange(3, device=images.device)[:, None] == gap
    shift = brightness * (here & (step[0] == 0))[:, :, None]
    scale = torch.where((here & (step[0] == 1))[:, :, None], contrast, 1.0)
    purer = torch.where((step[1] == 0)[:, None], saturation, 1.0)
    turned = hue * (step[1] == 1)[:, None]
    for place in range(3):
        for affine in range(2):
            a, b = _per_image(scale[place, affine]), _per_image(shift[place, affine])
            images = torch.addcmul(b, images, a).clamp_(0, 1)
        if place < 2 and images.shape[1] == 3:
            h, s, v = to_hsv(images)
            images = to_rgb(h + _per_image(turned[place]), (s * _per_image(purer[place])).clamp_(0, 1), v)
    return images


def to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue in turns, -1/6 to 5/6, saturation and value, each [B, 1, H, W]. Gray has hue and saturation 0."""
    value, largest = images.max(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    # The channel after the largest, less the one before it.
    across = (images.roll(-1, 1) - images.roll(1, 1)).gather(1, largest)
    hue = torch.add(across / chroma.clamp(min=1e-31), largest, alpha=2) / 6
    return hue, chroma / value.clamp(min=1e-31), value


def to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The inverse of ``to_hsv``, for any hue."""
    # Each channel is value less chroma times a trapezium of the hue; green and blue are red's, a third of a turn on.
    channel = torch.arange(5, 0, -2, device=hue.device).view(1, 3, 1, 1)
    sextant = torch.add(channel, hue, alpha=6).remainder_(6)
    return torch.addcmul(value, value * saturation, torch.minimum(sextant, 4 - sextant).clamp_(0, 1), value=-1)


def gray(images: Tensor) -> Tensor:
    """The luma of colour images, in all three channels."""
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    return (0.299 * red + 0.587 * green + 0.114 * blue).expand_as(images)


def _centres(length: int, images: Tensor) -> Tensor:
    return (torch.arange(length, device=images.device, dtype=images.dtype) + 0.5) / length


def _per_image(row: Tensor) -> Tensor:
    return row.view(-1, 1, 1, 1)


def _choose(chosen: Tensor, changed: Tensor, images: Tensor) -> Tensor:
    return torch.where(_per_image(chosen), changed, images)
