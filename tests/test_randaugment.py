"""RandAugment: every operation against Pillow, and what is drawn."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from ocil.errors import OcilError
from ocil.learning.randaugment import OPERATIONS, SPACES, Operation, RandAugment
from ocil.testing.watch import watched

SIGNS = (1, -1, 1, -1, 1, -1)
ROUNDED = ("autocontrast", "color", "contrast", "brightness", "sharpness")  # in floats, by Pillow as the processor does
TURNED = ("rotate", "shear_x", "shear_y")  # in 65,536ths of a pixel by Pillow: ties go elsewhere


def pictures(height: int, width: int) -> np.ndarray:
    """Noise of several ranges, and one image of a single level, uint8."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (len(SIGNS), height, width, 3)) * rng.uniform(0.2, 0.75, (len(SIGNS), 1, 1, 3))
    images = (noise + rng.integers(0, 60, (len(SIGNS), 1, 1, 3))).astype(np.uint8)
    images[0] = 77
    return images


def by_pillow(
    name: str, image: Image.Image, magnitude: float, sign: int, centre: list[float], torchvision: bool = False
) -> Image.Image:
    share, (width, height) = magnitude / 30, image.size
    factor, size, across, down = 0.1 + 1.8 * share, 40 * share, 100 * share, 100 * share
    bits, threshold = max(1, int(4 * share)), 256 * share
    if torchvision:
        factor, across, down = 1 + sign * 0.9 * share, int(150 / 331 * width * share), int(150 / 331 * height * share)
        bits, threshold = 8 - round(magnitude / 7.5), 255 * (30 - magnitude) / 30

    def moved(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix)

    def brighter() -> Image.Image:
        return Image.fromarray(np.clip(np.array(image) + 110 * share, 0, 255).astype(np.uint8))

    def cut() -> Image.Image:
        left, top = (int(max(0, at * length - size / 2)) for at, length in ((centre[1], width), (centre[0], height)))
        box = (left, top, min(width, left + size), min(height, top + size))
        copy = image.copy()
        ImageDraw.Draw(copy).rectangle(box, (125, 123, 114))
        return copy

    made: dict[str, Callable[[], Image.Image]] = {
        "identity": lambda: image,
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "invert": lambda: ImageOps.invert(image),
        "rotate": lambda: image.rotate(sign * 30 * share),
        "posterize": lambda: ImageOps.posterize(image, bits),
        "solarize": lambda: ImageOps.solarize(image, int(np.ceil(threshold))),
        "solarize_add": lambda: ImageOps.solarize(brighter(), 128),
        "color": lambda: ImageEnhance.Color(image).enhance(factor),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
        "shear_x": lambda: moved(1, sign * 0.3 * share, 0, 0, 1, 0),
        "shear_y": lambda: moved(1, 0, 0, sign * 0.3 * share, 1, 0),
        "cutout": cut,
        "translate_x": lambda: moved(1, 0, sign * across, 0, 1, 0),
        "translate_y": lambda: moved(1, 0, 0, 0, 1, sign * down),
    }
    return made[name]()


@pytest.mark.parametrize("magnitude", [0, 5, 14, 22.5, 30])
@pytest.mark.parametrize(
    ("space", "name"), [(space, name) for space, names in SPACES.items() for name in names], ids=lambda text: text
)
def test_each_operation_is_pillows(space: Any, name: str, magnitude: float) -> None:
    for shape in ((32, 32), (13, 20)):
        images = pictures(*shape)
        centre = torch.rand(len(SIGNS), 2, generator=torch.Generator().manual_seed(1))
        number = torch.full((len(SIGNS),), SPACES[space].index(name))
        drawn = Operation(number, torch.tensor(SIGNS), centre)
        got = RandAugment(1, magnitude, space).apply(torch.from_numpy(images), drawn).numpy()
        for image, found, sign, at in zip(images, got, SIGNS, centre.tolist(), strict=True):
            wanted = np.array(by_pillow(name, Image.fromarray(image), magnitude, sign, at, space == "torchvision"))
            apart = np.abs(found.astype(int) - wanted)
            if name in ROUNDED:
                assert apart.max() <= 1
                assert (apart > 0).mean() < 0.05
            elif name in TURNED:
                assert (apart > 0).mean() < 0.01
            else:
                assert not apart.any()


def test_gray_images_have_all_operations() -> None:
    images = pictures(9, 8)[..., :1]
    for number, name in enumerate(OPERATIONS):
        row = torch.full((len(SIGNS),), number)
        drawn = Operation(row, torch.tensor(SIGNS), torch.full((len(SIGNS), 2), 0.5))
        got = RandAugment(1, 5).apply(torch.from_numpy(images), drawn)
        assert got.shape == images.shape
        if name == "color":
            assert np.array_equal(got.numpy(), images)
        elif name != "cutout":
            pairs = zip(images[..., 0], SIGNS, strict=True)
            wanted = np.stack([np.array(by_pillow(name, Image.fromarray(image), 5, sign, [])) for image, sign in pairs])
            apart = np.abs(got[..., 0].numpy().astype(int) - wanted)
            assert apart.max() <= (1 if name in ROUNDED else 0) or (name in TURNED and (apart > 0).mean() < 0.01)


def test_each_image_has_its_own_operation() -> None:
    """A batch with all operations is each of them alone."""
    images = torch.from_numpy(pictures(12, 12)[1:2]).repeat(len(OPERATIONS), 1, 1, 1)
    augment, numbers = RandAugment(1, 20), torch.arange(len(OPERATIONS))
    sign, centre = torch.ones_like(numbers), torch.full((len(OPERATIONS), 2), 0.4)
    together = augment.apply(images, Operation(numbers, sign, centre))
    for number in range(len(OPERATIONS)):
        row = slice(number, number + 1)
        alone = augment.apply(images[row], Operation(numbers[row], sign[row], centre[row]))
        assert torch.equal(together[row], alone)
    assert len({image.numpy().tobytes() for image in together}) == len(OPERATIONS) - 1  # both translations leave black


def test_draws_are_uniform_and_repeatable() -> None:
    drawn = RandAugment().draw(16000, torch.Generator().manual_seed(0))
    shares = np.bincount(drawn.number.numpy(), minlength=16) / 16000
    np.testing.assert_allclose(shares, 1 / 16, atol=0.008)
    assert abs(float(drawn.sign.double().mean())) < 0.03
    assert set(drawn.sign.tolist()) == {-1, 1}
    np.testing.assert_allclose(drawn.centre.mean(0).numpy(), 0.5, atol=0.01)
    images = torch.from_numpy(pictures(8, 8))
    one, again = (RandAugment(2)(images, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, images)
    assert RandAugment(0)(images, torch.Generator()) is images


def test_operations_follow_each_other() -> None:
    images = torch.from_numpy(pictures(8, 8))
    generator, other = (torch.Generator().manual_seed(5) for _ in range(2))
    augment = RandAugment(1)
    assert torch.equal(RandAugment(2)(images, generator), augment(augment(images, other), other))


def test_one_draw_for_the_whole_batch() -> None:
    augment = RandAugment(1, 15, "torchvision", per_batch=True)
    drawn = augment.draw(50, torch.Generator().manual_seed(1))
    assert all(len(rows) == 50 and bool((rows == rows[0]).all()) for rows in drawn)
    numbers = {int(augment.draw(3, torch.Generator().manual_seed(seed)).number[0]) for seed in range(200)}
    assert numbers == set(range(14))


@pytest.mark.parametrize("augment", [RandAugment(2), RandAugment(2, 15, "torchvision", per_batch=True)], ids=str)
def test_nothing_is_read_back(augment: RandAugment) -> None:
    images, generator = torch.from_numpy(pictures(8, 8)), torch.Generator().manual_seed(0)
    first, second = (watched(lambda: augment(images, generator)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("count", "magnitude"), [(-1, 14), (1, -1), (1, 31)])
def test_what_cannot_be_is_refused(count: int, magnitude: float) -> None:
    with pytest.raises(OcilError, match="magnitude from 0 to 30"):
        RandAugment(count, magnitude)
    with pytest.raises(OcilError, match="the spaces rar and torchvision"):
        RandAugment(space="imagenet")  # type: ignore[arg-type]
