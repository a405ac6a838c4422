# mypy: disable-error-code="no-untyped-def"
"""Random views in one kernel: crop, flip, jitter and gray of ``ocil.learning.views``, given what was drawn."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ocil.kernels.draw import Draw, Jitter

PIXELS = 256
"""Per program."""


@triton.jit
def affine(x, scale, shift):
    return tl.minimum(tl.maximum(x * scale + shift, 0.0), 1.0)


@triton.jit
def channel(value, chroma, hue, offset):
    """Value less chroma times a trapezium of the hue; green and blue are red's, a third of a turn on."""
    sextant = offset + hue * 6.0
    sextant = sextant - 6.0 * tl.floor(sextant / 6.0)
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(sextant, 4.0 - sextant), 0.0), 1.0)


@triton.jit
def recolour(r, g, b, purer, turned):
    """Multiply the saturation, turn the hue."""
    value = tl.maximum(r, tl.maximum(g, b))
    chroma = value - tl.minimum(r, tl.minimum(g, b))
    across = tl.where(r == value, g - b, tl.where(g == value, b - r, r - g))
    largest = tl.where(r == value, 0.0, tl.where(g == value, 2.0, 4.0))
    hue = (across / tl.maximum(chroma, 1e-31) + largest) / 6.0 + turned
    saturation = tl.minimum(tl.maximum(chroma / tl.maximum(value, 1e-31) * purer, 0.0), 1.0)
    chroma = value * saturation
    return channel(value, chroma, hue, 5.0), channel(value, chroma, hue, 3.0), channel(value, chroma, hue, 1.0)


@triton.jit
def read(images, row, y, x, H, W, C: tl.constexpr, c: tl.constexpr, inside):
    there = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    return tl.load(images + ((row * H + y) * W + x) * C + c, mask=there, other=0.0)


@triton.jit
def sample(images, row, y, x, H, W, C: tl.constexpr, c: tl.constexpr, inside):
    """Bilinear, zeros outside."""
    y0 = tl.floor(y)
    x0 = tl.floor(x)
    fy = y - y0
    fx = x - x0
    iy = y0.to(tl.int32)
    ix = x0.to(tl.int32)
    upper = read(images, row, iy, ix, H, W, C, c, inside) * (1 - fx)
    upper += read(images, row, iy, ix + 1, H, W, C, c, inside) * fx
    lower = read(images, row, iy + 1, ix, H, W, C, c, inside) * (1 - fx)
    lower += read(images, row, iy + 1, ix + 1, H, W, C, c, inside) * fx
    return tl.minimum(tl.maximum(upper * (1 - fy) + lower * fy, 0.0), 1.0)


@triton.jit(do_not_specialize=["batch"])
def views_kernel(
    images,
    out,
    boxes,
    flipped,
    jitter,
    grayed,
    H,
    W,
    batch,
    C: tl.constexpr,
    SHARED: tl.constexpr,
    CROP: tl.constexpr,
    FLIP: tl.constexpr,
    JITTER: tl.constexpr,
    GRAY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program makes ``BLOCK`` pixels of one view; ``SHARED``: one row of parameters serves all images. The order of
    the jitter is that of the image's batch, each of which has ``batch`` images.
    """
    row = tl.program_id(0)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < H * W
    own = 0 if SHARED else row
    i = pixel // W
    j = pixel % W
    if FLIP:
        j = tl.where(tl.load(flipped + own) != 0, W - 1 - j, j)
    y = i.to(tl.float32)
    x = j.to(tl.float32)
    if CROP:
        top = tl.load(boxes + own * 4)
        left = tl.load(boxes + own * 4 + 1)
        bottom = tl.load(boxes + own * 4 + 2)
        right = tl.load(boxes + own * 4 + 3)
        y = (top + (y + 0.5) / H * (bottom - top)) * H / (H - 1) - 0.5
        x = (left + (x + 0.5) / W * (right - left)) * W / (W - 1) - 0.5
        r = sample(images, row, y, x, H, W, C, 0, inside)
        g = sample(images, row, y, x, H, W, C, C // 2, inside)
        b = sample(images, row, y, x, H, W, C, C - 1, inside)
    else:
        r = read(images, row, i, j, H, W, C, 0, inside)
        g = read(images, row, i, j, H, W, C, C // 2, inside)
        b = read(images, row, i, j, H, W, C, C - 1, inside)
    if JITTER:
        if tl.load(jitter.chosen + own) != 0:
            when = jitter.when + row // batch * 4
            first = tl.load(when)
            second = tl.load(when + 1)
            third = tl.load(when + 2)
            fourth = tl.load(when + 3)
            shift = tl.load(jitter.brightness + own)
            scale = tl.load(jitter.contrast + own)
            purer = tl.load(jitter.saturation + own)
            turned = tl.load(jitter.hue + own)
            at_shift = (second < first).to(tl.int32) + (third < first).to(tl.int32) + (fourth < first).to(tl.int32)
            at_scale = (first < second).to(tl.int32) + (third < second).to(tl.int32) + (fourth < second).to(tl.int32)
            at_purer = (first < third).to(tl.int32) + (second < third).to(tl.int32) + (fourth < third).to(tl.int32)
            for place in range(4):
                if place == at_shift:
                    r = affine(r, 1.0, shift)
                    g = affine(g, 1.0, shift)
                    b = affine(b, 1.0, shift)
                elif place == at_scale:
                    r = affine(r, scale, 0.0)
                    g = affine(g, scale, 0.0)
                    b = affine(b, scale, 0.0)
                elif C == 3:
                    now_purer = tl.where(place == at_purer, purer, 1.0)
                    now_turned = tl.where(place == at_purer, 0.0, turned)
                    r, g, b = recolour(r, g, b, now_purer, now_turned)
    if GRAY:
        luma = 0.299 * r + 0.587 * g + 0.114 * b
        dull = tl.load(grayed + own) != 0
        r = tl.where(dull, luma, r)
        g = tl.where(dull, luma, g)
        b = tl.where(dull, luma, b)
    where = out + (row * H * W + pixel) * C
    tl.store(where, r, mask=inside)
    if C == 3:
        tl.store(where + 1, g, mask=inside)
        tl.store(where + 2, b, mask=inside)


def views(images: Tensor, draw: Draw) -> Tensor:
    """What ``RandomViews.apply`` makes of channels-last float32 images."""
    count, channels, height, width = images.shape
    out = torch.empty_like(images, memory_format=torch.channels_last)
    jitter = draw.jitter
    drawn = [t for t in (draw.boxes, draw.flipped, draw.grayed, jitter and jitter.chosen) if t is not None]
    grid = (count, triton.cdiv(height * width, PIXELS))
    none = images  # stands for what was not drawn
    batches = 1 if jitter is None else len(jitter.when) // 4
    views_kernel[grid](
        images,
        out,
        none if draw.boxes is None else draw.boxes,
        none if draw.flipped is None else draw.flipped,
        Jitter(*[none] * len(Jitter._fields)) if jitter is None else jitter,
        none if draw.grayed is None else draw.grayed,
        height,
        width,
        max(1, count // batches),
        C=channels,
        SHARED=bool(drawn) and len(drawn[0]) == 1,
        BLOCK=PIXELS,
        CROP=draw.boxes is not None,
        FLIP=draw.flipped is not None,
        JITTER=jitter is not None,
        GRAY=draw.grayed is not None and channels == 3,
    )
    return out
