"""The batched views against slow ones, and their draws against the probabilities they should have."""

import itertools
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ocil.errors import OcilError
from ocil.kernels.draw import Draw, Jitter
from ocil.learning import views as fast
from ocil.learning.views import RandomViews
from tests.reference import views as slow

ORDERS = list(itertools.permutations(range(4)))
CORNERS = list(itertools.product((0.0, 0.5, 1.0), repeat=3))  # black, white, grays, pure colours, ties


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int, channels: int = 3, height: int = 7, width: int = 9, seed: int = 0) -> Tensor:
    """Random pixels, some of them gray; in colour the first 27 are the corners and edges of the colour cube."""
    images = torch.rand(count, channels, height, width, generator=seeded(seed))
    images[:, :, -1] = images[:, :1, -1]
    flat = images.flatten(2)
    edges = torch.tensor(CORNERS).T[:channels]
    flat[:, :, : len(CORNERS)] = edges
    return flat.view(count, channels, height, width)


def close(fast: Tensor, reference: list[np.ndarray], atol: float = 1e-5) -> None:
    torch.testing.assert_close(fast.double(), torch.from_numpy(np.stack(reference)), atol=atol, rtol=0)


def arrays(images: Tensor) -> list[np.ndarray]:
    return list(images.double().numpy())


def when(order: tuple[int, ...]) -> Tensor:
    return torch.tensor([0.1 + order.index(operation) / 5 for operation in range(4)])


def boxes_in(height: int, width: int, count: int, seed: int = 0) -> Tensor:
    return fast.crop_boxes(count, height, width, (0.1, 1.0), (0.5, 2.0), "clamp", seeded(seed))


def chi_square_z(seen: Counter[Any], expected: dict[Any, float]) -> float:
    """Standard deviations by which chi-square exceeds its mean. Rare cells are counted together."""
    total = sum(seen.values())
    assert sum(expected.values()) == pytest.approx(1)
    common = {cell: p * total for cell, p in expected.items() if p * total >= 10}
    terms = [(seen[cell] - mean) ** 2 / mean for cell, mean in common.items()]
    rest = total - sum(common.values())
    if rest > 1:
        terms.append((total - sum(seen[cell] for cell in common) - rest) ** 2 / rest)
    freedom = len(terms) - 1
    return (sum(terms) - freedom) / math.sqrt(2 * freedom)


def fraction_is(chosen: Tensor, probability: float) -> None:
    bound = 5 * math.sqrt(probability * (1 - probability) / chosen.numel())
    assert abs(chosen.double().mean().item() - probability) <= bound


# One operation at a time


def test_a_box_that_does_not_fit_is_drawn_ten_times() -> None:
    """As in kornia 0.4.1. With nine tenths of the area a ratio from 0.9 to 1 / 0.9 fits into a square image."""
    ratio, generator = (1 / 2, 2.0), torch.Generator().manual_seed(0)
    boxes = fast.crop_boxes(4000, 8, 8, (0.9, 0.9), ratio, "reject", generator)
    whole = (boxes == torch.tensor([0, 0, 7, 7])).all(1).double().mean()
    assert float(whole) == pytest.approx((1 + math.log(0.9) / math.log(2)) ** 10, abs=0.015)


@pytest.mark.parametrize(("channels", "height", "width"), [(3, 8, 8), (1, 8, 8), (3, 5, 11), (1, 12, 3)])
def test_crop(channels: int, height: int, width: int) -> None:
    images = torch.rand(12, channels, height, width, generator=seeded())
    boxes = boxes_in(height, width, 12)
    boxes[0] = torch.tensor([0, 0, height - 1, width - 1])
    boxes[1] = torch.tensor([height - 2, 0, height - 1, 1])
    boxes[2] = torch.tensor([1, 1, 1, 1])
    expected = [slow.crop(image, tuple(box)) for image, box in zip(arrays(images), boxes.int().tolist(), strict=True)]
    close(fast.crop(images, boxes), expected)


def test_whole_image_stays_as_it_is() -> None:
    images = torch.rand(4, 3, 32, 32, generator=seeded())
    whole = torch.tensor([[0.0, 0.0, 31.0, 31.0]])
    assert torch.equal(fast.crop(images, whole), images)


def test_box_at_the_border_gets_a_dark_edge() -> None:
    views = fast.crop(torch.ones(1, 1, 32, 32), torch.tensor([[0.0, 4.0, 27.0, 31.0]]))[0, 0]
    light = 0.5 + 0.5 * 27 / 31  # half of what the zoom takes away lies outside
    torch.testing.assert_close(views[0, 1:-1], torch.full((30,), light))
    torch.testing.assert_close(views[1:-1, -1], torch.full((30,), light))
    torch.testing.assert_close(views[0, -1].item(), light**2)
    torch.testing.assert_close(views[1:, :-1], torch.ones(31, 31))


def test_box_inside_has_no_dark_edge() -> None:
    views = fast.crop(torch.ones(1, 1, 32, 32), torch.tensor([[1.0, 2.0, 29.0, 28.0]]))
    torch.testing.assert_close(views, torch.ones(1, 1, 32, 32))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_jitter(order: tuple[int, ...], channels: int) -> None:
    images = pictures(6, channels, seed=ORDERS.index(order))
    u = torch.rand(4, 6, generator=seeded(ORDERS.index(order)))
    factors = torch.stack((2 * u[0] - 1, 2 * u[1], 3 * u[2], u[3] - 0.5))
    factors[:, 0] = torch.tensor([0, 1, 1, 0])  # nothing changes
    factors[:, 1] = torch.tensor([1, 0, 0, 0.5])
    expected = [slow.jitter(image, factors[:, i].tolist(), order) for i, image in enumerate(arrays(images))]
    brightness, contrast, saturation, hue = factors
    close(fast.jitter(images, brightness, contrast, saturation, hue, when(order)), expected)


def test_hsv_agrees_with_colorsys_and_comes_back() -> None:
    images = pictures(5, height=12)
    hue, saturation, value = fast.to_hsv(images)
    expected = np.stack([slow.hsv(image) for image in arrays(images)])
    turns = hue[:, 0].double().numpy() - expected[:, 0]
    assert np.abs(turns - np.round(turns)).max() < 1e-6  # a hue of 0 and of 1 are the same
    close(torch.cat((saturation, value), 1), list(expected[:, 1:]), 1e-6)
    torch.testing.assert_close(fast.to_rgb(hue, saturation, value), images, atol=2e-6, rtol=0)
    torch.testing.assert_close(fast.to_rgb(hue - 3, saturation, value), images, atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    st.tuples(*[st.floats(0, 1, width=32)] * 3),
    st.tuples(st.floats(-1, 1), st.floats(0, 5), st.floats(0, 5), st.floats(-0.5, 0.5)),
    st.permutations(range(4)),
)
def test_jitter_of_any_pixel(pixel: tuple[float, ...], factors: tuple[float, ...], order: list[int]) -> None:
    image = torch.tensor(pixel).view(1, 3, 1, 1)
    brightness, contrast, saturation, hue = torch.tensor(factors).view(4, 1)
    view = fast.jitter(image, brightness, contrast, saturation, hue, when(tuple(order)))
    assert 0 <= view.min() <= view.max() <= 1
    # A pixel that is almost gray has no sure hue, and a large contrast multiplies what is unsure.
    close(view, [slow.jitter(image[0].double().numpy(), factors, order)], 1e-4)


def test_gray() -> None:
    images = pictures(3)
    close(fast.gray(images), [slow.gray(image) for image in arrays(images)], 1e-6)


# The whole of it


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 2, 1), (2, 1, 3, 0)])
def test_pipeline_with_given_parameters(order: tuple[int, ...]) -> None:
    images = pictures(8, seed=1)
    numbers = torch.rand(4, 8, generator=seeded(1))
    factors = torch.stack((numbers[0] - 0.5, numbers[1] + 0.5, numbers[2] + 0.5, (numbers[3] - 0.5) / 5))
    flipped, jittered, grayed = torch.tensor(list(itertools.product((False, True), repeat=3))).T
    brightness, contrast, saturation, hue = factors
    boxes = boxes_in(7, 9, 8)
    draw = Draw(boxes, flipped, Jitter(jittered, brightness, contrast, saturation, hue, when(order)), grayed)
    expected = []
    for i, image in enumerate(arrays(images)):
        view = slow.crop(image, tuple(boxes[i].int().tolist()))
        view = slow.flip(view) if flipped[i] else view
        view = slow.jitter(view, factors[:, i].tolist(), order) if jittered[i] else view
        expected.append(slow.gray(view) if grayed[i] else view)
    close(RandomViews().apply(images, draw), expected, 2e-5)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(32, 32), (20, 41)])
@pytest.mark.parametrize("rule", ["reject", "clamp"])
@pytest.mark.parametrize("per_batch", [False, True])
def test_call(channels: int, size: tuple[int, int], rule: Any, per_batch: bool) -> None:
    images = torch.rand(10, channels, *size, generator=seeded()).round(decimals=1)
    make_views = RandomViews(crop_rule=rule, gray=0.2, per_batch=per_batch)
    views = make_views(images, seeded(3))
    assert views.shape == images.shape
    assert views.dtype == torch.float32
    assert 0 <= views.min() <= views.max() <= 1
    assert torch.equal(views, make_views(images, seeded(3)))
    assert not torch.equal(views, make_views(images, seeded(4)))
    last = make_views(images.to(memory_format=torch.channels_last), seeded(3))
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, views, atol=1e-6, rtol=0)


def test_calls_move_the_generator_on_and_leave_the_images_alone() -> None:
    images, generator = torch.rand(6, 3, 16, 16, generator=seeded()), seeded()
    before = images.clone()
    assert not torch.equal(RandomViews()(images, generator), RandomViews()(images, generator))
    assert torch.equal(images, before)


def test_each_image_has_its_own_parameters_or_all_have_the_same() -> None:
    same = torch.rand(1, 3, 32, 32, generator=seeded()).repeat(40, 1, 1, 1)
    views = RandomViews(gray=0.2)(same, seeded())
    assert len({view.numpy().tobytes() for view in views}) == 40
    seen = set()
    for seed in range(20):
        views = RandomViews(gray=0.2, per_batch=True)(same, seeded(seed))
        assert torch.equal(views, views[:1].expand_as(views))
        seen.add(views[0].numpy().tobytes())
    assert len(seen) == 20


def test_everything_off_is_the_image_itself() -> None:
    images = torch.rand(3, 3, 8, 8, generator=seeded())
    generator = seeded()
    off = RandomViews(crop_scale=None, flip=0, jitter=0, gray=0)
    assert torch.equal(off(images, generator), images)
    assert torch.equal(generator.get_state(), seeded().get_state())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"flip": 1.5}, "flip = 1.5 must be a probability from 0 to 1."),
        ({"gray": math.nan}, "gray = nan must be a probability"),
        ({"jitter": -0.1}, "jitter = -0.1 must be a probability"),
        ({"brightness": 1.1}, "brightness = 1.1 must be a number from 0 to 1"),
        ({"contrast": -1}, "contrast = -1 must be"),
        ({"saturation": math.inf}, "saturation = inf must be"),
        ({"hue": 0.6}, "hue = 0.6 must be a number from 0 to 0.5"),
        ({"crop_scale": (0.0, 1.0)}, "crop_scale = (0.0, 1.0) must be"),
        ({"crop_scale": (0.8, 0.7)}, "crop_scale = (0.8, 0.7) must be"),
        ({"crop_ratio": (2.0, 1.0)}, "crop_ratio = (2.0, 1.0) must be"),
        ({"crop_rule": "centre"}, "crop_rule = centre must be 'reject' or 'clamp'"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(OcilError, match=re.escape(said)):
        RandomViews(**changes)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 4, 8, 8),
        torch.zeros(3, 8, 8),
        torch.zeros(2, 3, 1, 8),
        torch.zeros(2, 3, 8, 8, dtype=torch.uint8),
    ],
)
def test_other_images_are_refused(images: Tensor) -> None:
    with pytest.raises(OcilError, match="random views need float32 images"):
        RandomViews()(images, seeded())


# What is drawn


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (32, 32, (0.75, 1.0), (3 / 4, 4 / 3)),
        (32, 32, (0.2, 1.0), (3 / 4, 4 / 3)),
        (12, 12, (0.96, 1.0), (0.8, 1.25)),
        (12, 12, (1.0, 1.0), (0.8, 1.25)),
        (20, 33, (0.6, 1.0), (0.5, 1.5)),
        (10, 30, (0.85, 1.0), (0.45, 2.0)),
        (30, 10, (0.85, 1.0), (0.5, 2.2)),
    ],
)
def test_sizes_of_boxes(height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]) -> None:
    boxes = fast.crop_boxes(60_000, height, width, scale, ratio, "reject", seeded()).int()
    top, left, bottom, right = boxes.T
    assert top.min() >= 0
    assert left.min() >= 0
    assert bottom.max() < height
    assert right.max() < width
    seen = Counter(zip((bottom - top + 1).tolist(), (right - left + 1).tolist(), strict=True))
    expected = slow.size_probabilities(height, width, scale, ratio)
    assert set(seen) <= set(expected)
    if len(expected) > 1:
        assert chi_square_z(seen, expected) < 5


def test_places_of_boxes_are_uniform() -> None:
    boxes = fast.crop_boxes(60_000, 32, 32, (0.75, 1.0), (3 / 4, 4 / 3), "reject", seeded()).int()
    sized = [(t, le) for t, le, b, r in boxes.tolist() if (b - t, r - le) == (27, 27)]  # 28 x 28: five places a side
    assert len(sized) > 1000
    places = Counter(sized)
    assert chi_square_z(places, dict.fromkeys(itertools.product(range(5), repeat=2), 1 / 25)) < 5


def test_clamp_takes_one_trial_and_cuts_it() -> None:
    boxes = fast.crop_boxes(20_000, 32, 32, (0.75, 1.0), (3 / 4, 4 / 3), "clamp", seeded()).int()
    high, wide = boxes[:, 2] - boxes[:, 0] + 1, boxes[:, 3] - boxes[:, 1] + 1
    assert high.max() == wide.max() == 32
    # A side of the first trial is at least the image's with this probability; area and log ratio are uniform.
    area = torch.linspace(0.75, 1, 100_001, dtype=torch.double)
    full = ((math.log(4 / 3) + area.log()) / (2 * math.log(4 / 3))).mean().item()
    fraction_is(high == 32, full)
    fraction_is(wide == 32, full)


def test_fractions_and_ranges() -> None:
    images = torch.empty(1).expand(40_000, 3, 8, 8)
    draw = RandomViews(flip=0.3, jitter=0.8, gray=0.2, contrast=1.5).draw(images, seeded())
    assert draw.flipped is not None
    assert draw.jitter is not None
    assert draw.grayed is not None
    fraction_is(draw.flipped, 0.3)
    fraction_is(draw.jitter.chosen, 0.8)
    fraction_is(draw.grayed, 0.2)
    fraction_is(draw.flipped & draw.jitter.chosen & draw.grayed, 0.3 * 0.8 * 0.2)
    ranges = {"brightness": (-0.4, 0.4), "contrast": (0, 2.5), "saturation": (0.6, 1.4), "hue": (-0.1, 0.1)}
    for name, (low, high) in ranges.items():
        share = (getattr(draw.jitter, name) - low) / (high - low)
        assert -1e-6 <= share.min() < 0.001
        assert 0.999 < share.max() <= 1 + 1e-6
        fraction_is(share < 0.25, 0.25)
        fraction_is(share < 0.5, 0.5)
    always = RandomViews(flip=1, jitter=1, gray=1).draw(images, seeded())
    assert always.flipped is not None
    assert always.jitter is not None
    assert always.grayed is not None
    assert (always.flipped & always.jitter.chosen & always.grayed).all()


def test_orders_are_uniform() -> None:
    images, generator, make_views = torch.empty(1, 3, 8, 8), seeded(), RandomViews(crop_scale=None)
    seen: Counter[Any] = Counter()
    for _ in range(4800):
        jitter = make_views.draw(images, generator).jitter
        assert jitter is not None
        seen[tuple(jitter.when.argsort().tolist())] += 1
    assert chi_square_z(seen, dict.fromkeys(ORDERS, 1 / 24)) < 5


# Ready for the device


class NothingLeavesTheDevice(TorchDispatchMode):
    """Fails on what reads back to the host, has a shape that depends on data, or brings constants from the host."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "randperm")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not any(name in str(func) for name in self.forbidden), func
        if "aten.index" in str(func):
            assert not any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1]), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "make_views", [RandomViews(gray=0.2), RandomViews(crop_rule="clamp", gray=0.2, per_batch=True)]
)
def test_nothing_is_read_back(channels: int, make_views: RandomViews) -> None:
    images, generator = torch.rand(4, channels, 8, 8, generator=seeded()), seeded()
    with NothingLeavesTheDevice():
        make_views(images, generator)


@pytest.mark.gpu
def test_a_call_can_be_captured_as_a_cuda_graph() -> None:
    images = torch.rand(100, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    make_views, generator = RandomViews(gray=0.2), torch.Generator("cuda").manual_seed(0)
    make_views(images, generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        captured = make_views(images, generator)
    generator.manual_seed(1)
    expected = [make_views(images, generator) for _ in range(3)]
    generator.manual_seed(1)
    for views in expected:
        graph.replay()
        torch.testing.assert_close(captured, views, atol=0, rtol=0)
    boxes, flipped, jitter, grayed = make_views.draw(images, generator)
    assert boxes is not None
    assert flipped is not None
    assert jitter is not None
    assert grayed is not None
    views = make_views.apply(images, Draw(boxes, flipped, jitter, grayed))
    host = Draw(boxes.cpu(), flipped.cpu(), Jitter._make(t.cpu() for t in jitter), grayed.cpu())
    torch.testing.assert_close(views.cpu(), make_views.apply(images.cpu(), host), atol=2e-5, rtol=0)
