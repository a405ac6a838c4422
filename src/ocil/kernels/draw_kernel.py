# mypy: disable-error-code="no-untyped-def"
"""The random parameters of views in one kernel, from uniform numbers, where PyTorch's operators take about 40."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ocil.kernels.draw import Draw, Jitter, Ranges

ROWS = 64
"""Per program."""


@triton.jit
def between(number, low, high):
    return low + number * (high - low)


@triton.jit(do_not_specialize=["rows"])
def draw_kernel(
    numbers,
    boxes,
    amounts,
    choices,
    rows,
    height,
    width,
    area_low,
    area_high,
    ratio_low,
    ratio_high,
    whole_height,
    whole_width,
    brightness_low,
    brightness_high,
    contrast_low,
    contrast_high,
    saturation_low,
    saturation_high,
    hue_low,
    hue_high,
    flip,
    jitter,
    gray,
    TRIALS: tl.constexpr,
    REJECT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """From ``numbers``, ``[kinds, rows]``, uniform in [0, 1): ``boxes`` ``[rows, 4]``, the ``amounts`` of the jitter
    ``[4, rows]``, and ``choices`` ``[3, rows]``: flip, jitter, gray.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    number = numbers + row
    if TRIALS > 0:
        high = tl.zeros([ROWS], tl.float32)
        wide = tl.zeros([ROWS], tl.float32)
        fitted = tl.zeros([ROWS], tl.int32)
        for trial in range(TRIALS):
            area = between(tl.load(number + trial * rows, mask=inside, other=0.0), area_low, area_high)
            ratio = tl.load(number + (TRIALS + trial) * rows, mask=inside, other=0.0)
            ratio = tl.exp(between(ratio, ratio_low, ratio_high))
            tall = tl.floor(tl.sqrt_rn(area * ratio))
            across = tl.floor(tl.sqrt_rn(area / ratio))
            if REJECT:
                fits = (tall > 0) & (tall < height) & (across > 0) & (across < width)
                first = fits & (fitted == 0)
                high = tl.where(first, tall, high)
                wide = tl.where(first, across, wide)
                fitted = tl.where(fits, 1, fitted)
            else:
                high = tl.minimum(tl.maximum(tall, 1.0), height)
                wide = tl.minimum(tl.maximum(across, 1.0), width)
        if REJECT:
            high = tl.where(fitted > 0, high, whole_height)
            wide = tl.where(fitted > 0, wide, whole_width)
        number += 2 * TRIALS * rows
        top = tl.floor(tl.load(number, mask=inside, other=0.0) * (height + 1 - high))
        left = tl.floor(tl.load(number + rows, mask=inside, other=0.0) * (width + 1 - wide))
        tl.store(boxes + row * 4, top, mask=inside)
        tl.store(boxes + row * 4 + 1, left, mask=inside)
        tl.store(boxes + row * 4 + 2, top + high - 1, mask=inside)
        tl.store(boxes + row * 4 + 3, left + wide - 1, mask=inside)
    number += 2 * rows
    amount = amounts + row
    brightness = between(tl.load(number, mask=inside, other=0.0), brightness_low, brightness_high)
    contrast = between(tl.load(number + rows, mask=inside, other=0.0), contrast_low, contrast_high)
    saturation = between(tl.load(number + 2 * rows, mask=inside, other=0.0), saturation_low, saturation_high)
    hue = between(tl.load(number + 3 * rows, mask=inside, other=0.0), hue_low, hue_high)
    tl.store(amount, brightness, mask=inside)
    tl.store(amount + rows, contrast, mask=inside)
    tl.store(amount + 2 * rows, saturation, mask=inside)
    tl.store(amount + 3 * rows, hue, mask=inside)
    number += 4 * rows
    choice = choices + row
    flipped = tl.load(number, mask=inside, other=0.0) < flip
    jittered = tl.load(number + rows, mask=inside, other=0.0) < jitter
    grayed = tl.load(number + 2 * rows, mask=inside, other=0.0) < gray
    tl.store(choice, flipped.to(tl.uint8), mask=inside)
    tl.store(choice + rows, jittered.to(tl.uint8), mask=inside)
    tl.store(choice + 2 * rows, grayed.to(tl.uint8), mask=inside)


def draw(ranges: Ranges, numbers: Tensor, when: Tensor) -> Draw:
    """The parameters that ``numbers``, ``[ranges.numbers, rows]``, and the orders ``when`` stand for, four numbers per
    batch.
    """
    rows = numbers.shape[1]
    boxes, amounts = numbers.new_empty(rows, 4), numbers.new_empty(4, rows)
    choices = torch.empty(3, rows, dtype=torch.uint8, device=numbers.device)
    jitters = (*ranges.brightness, *ranges.contrast, *ranges.saturation, *ranges.hue)
    draw_kernel[(triton.cdiv(rows, ROWS),)](
        numbers,
        boxes,
        amounts,
        choices,
        rows,
        float(ranges.height),
        float(ranges.width),
        *ranges.area,
        *ranges.log_ratio,
        *map(float, ranges.whole or (0, 0)),
        *jitters,
        ranges.flip,
        ranges.jitter,
        ranges.gray,
        TRIALS=ranges.trials,
        REJECT=ranges.whole is not None,
        ROWS=ROWS,
    )
    flipped, jittered, grayed = choices.view(torch.bool)
    brightness, contrast, saturation, hue = amounts
    return Draw(
        boxes if ranges.trials else None,
        flipped if ranges.flip > 0 else None,
        Jitter(jittered, brightness, contrast, saturation, hue, when) if ranges.jitter > 0 else None,
        grayed if ranges.gray > 0 else None,
    )
