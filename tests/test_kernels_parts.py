"""The kernels of views and losses against their PyTorch versions: on a GPU, else in Triton's interpreter."""

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported and when kernels are defined
pytest.importorskip("triton", reason="Triton comes with PyTorch's CUDA builds only")

from ocil import kernels  # noqa: E402
from ocil.kernels.loss_kernel import Kind  # noqa: E402
from ocil.learning import losses  # noqa: E402
from ocil.learning.memory import Memory  # noqa: E402
from ocil.learning.views import RandomViews  # noqa: E402
from tests.test_kernels import quick_interpreter  # noqa: E402, F401  (a fixture)

pytestmark = [pytest.mark.gpu(optional=True), pytest.mark.slow]
AUGMENTS: list[dict[str, Any]] = [
    {},
    {"gray": 0.5},
    {"per_batch": True, "crop_scale": (0.2, 1.0), "jitter": 1.0, "gray": 0.2},
    {"crop_scale": None},
    {"jitter": 0.0},
    {"flip": 0.0, "crop_rule": "clamp"},
    {"hue": 0.5, "saturation": 1.0, "jitter": 1.0},
]


@pytest.mark.parametrize(
    ("shape", "settings"),
    # A program has 256 pixels: a part of one; a whole one; one and a part.
    [*(((3, 9, 13), settings) for settings in AUGMENTS), ((3, 16, 16), {}), ((1, 17, 16), AUGMENTS[2])],
    ids=str,
)
def test_views_are_those_of_the_plain_version(settings: dict[str, Any], shape: tuple[int, int, int]) -> None:
    augment = RandomViews(**settings)
    for seed in range(2):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        images = torch.rand((8, *shape), device=DEVICE, generator=generator)
        images[0], images[1] = 0, 1
        images[2], images[3] = images[2, :1], (images[3] > 0.5).float()  # gray, and pure colours
        images = images.contiguous(memory_format=torch.channels_last)
        draw = augment.draw(images, generator)
        torch.testing.assert_close(kernels.views(images, draw), augment.apply(images, draw), rtol=0, atol=2e-5)


def drawn_slowly(views: RandomViews, height: int, width: int, numbers: list[float]) -> dict[str, Any]:
    """The parameters of one view from its uniform numbers, in the order of ``Ranges.numbers``."""
    given = iter(numbers)

    def between(low: float, high: float) -> float:
        return low + next(given) * (high - low)

    found: dict[str, Any] = {}
    box = (height, width)
    if views.crop_scale is not None:
        trials = 10 if views.crop_rule == "reject" else 1
        areas = [between(*(share * height * width for share in views.crop_scale)) for _ in range(trials)]
        ratios = [math.exp(between(*map(math.log, views.crop_ratio))) for _ in range(trials)]
        sides = [(int((a * r) ** 0.5), int((a / r) ** 0.5)) for a, r in zip(areas, ratios, strict=True)]
        if trials == 1:
            box = min(max(sides[0][0], 1), height), min(max(sides[0][1], 1), width)
        else:
            largest = min(height, round(width * views.crop_ratio[1])), min(width, round(height / views.crop_ratio[0]))
            box = next((s for s in sides if 0 < s[0] < height and 0 < s[1] < width), largest)
    top, left = int(next(given) * (height + 1 - box[0])), int(next(given) * (width + 1 - box[1]))
    found["box"] = [top, left, top + box[0] - 1, left + box[1] - 1]
    found["amounts"] = [
        between(-views.brightness, views.brightness),
        between(max(0, 1 - views.contrast), 1 + views.contrast),
        between(max(0, 1 - views.saturation), 1 + views.saturation),
        between(-views.hue, views.hue),
    ]
    found["choices"] = [next(given) < probability for probability in (views.flip, views.jitter, views.gray)]
    assert next(given, None) is None
    return found


@pytest.mark.parametrize(
    "settings", [{"gray": 0.3}, {"crop_rule": "clamp", "contrast": 1.5}, {"crop_scale": (0.02, 1.0)}], ids=str
)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (9, 30)])
def test_parameters_are_those_that_uniform_numbers_stand_for(settings: Any, height: int, width: int) -> None:
    """On a wide image no box of a high ratio fits, and the largest one is taken."""
    from ocil.kernels.draw_kernel import draw

    views = RandomViews(**{"gray": 0.5, **settings})
    ranges, rows = views.ranges(height, width), 70
    numbers = torch.rand(ranges.numbers, rows, generator=torch.Generator().manual_seed(height)).to(DEVICE)
    when = torch.rand(4).to(DEVICE)
    boxes, flipped, jitter, grayed = draw(ranges, numbers, when)
    assert boxes is not None
    assert flipped is not None
    assert jitter is not None
    assert grayed is not None
    slow = [drawn_slowly(views, height, width, row) for row in numbers.double().T.tolist()]
    assert boxes.tolist() == [each["box"] for each in slow]
    expected = torch.tensor([each["amounts"] for each in slow]).T
    torch.testing.assert_close(torch.stack(jitter[1:5]).cpu(), expected)
    choices = [[*map(bool, row)] for row in zip(*(t.tolist() for t in (flipped, jitter.chosen, grayed)), strict=True)]
    assert choices == [each["choices"] for each in slow]
    assert jitter.when is when


def test_what_is_switched_off_is_not_drawn() -> None:
    views = RandomViews(crop_scale=None, flip=0, jitter=0, gray=0)
    assert kernels.draw(views.ranges(8, 8), 3, torch.Generator(DEVICE)) == (None, None, None, None)
    drawn = kernels.draw(RandomViews().ranges(8, 8), 5, torch.Generator(DEVICE))
    again = kernels.draw(RandomViews().ranges(8, 8), 5, torch.Generator(DEVICE))
    assert drawn.grayed is None
    assert drawn.boxes is not None
    assert again.boxes is not None
    assert torch.equal(drawn.boxes, again.boxes)


@pytest.mark.parametrize(
    ("values", "first"), [([1.0, 2.0], -1), ([1.0, math.inf, math.nan], 1), ([math.nan], 0), ([0.0, -math.inf, 1.0], 1)]
)
def test_a_loss_is_recorded_and_the_first_that_is_not_finite(values: list[float], first: int) -> None:
    last, failed_at, steps = torch.zeros(()), torch.tensor(-1), torch.tensor(0)
    last, failed_at, steps = last.to(DEVICE), failed_at.to(DEVICE), steps.to(DEVICE)
    for value in values:
        kernels.record_loss(torch.tensor(value, device=DEVICE), last, failed_at, steps)
        assert float(last) == value or math.isnan(value)
    assert (int(failed_at), int(steps)) == (first, len(values))


@pytest.mark.parametrize(("size", "seen", "count"), [(6, 0, 4), (6, 4, 5), (3, 9, 10), (40, 100, 64), (5, 2, 1)])
@pytest.mark.parametrize(("shape", "dtype"), [((5, 3, 1), torch.uint8), ((1030,), torch.float16)], ids=str)
def test_a_memory_stores_what_the_plain_version_stores(
    size: int, seen: int, count: int, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that fits, one that fills the memory, and ones that hit slots more than once."""
    x = torch.randint(0, 256, (seen + count, *shape), dtype=torch.uint8).to(dtype)
    y = torch.randint(100, (seen + count,))
    plain, fused = (Memory(size, shape, torch.Generator(), dtype) for _ in range(2))
    for memory in (plain, fused):
        memory.generator.manual_seed(1)
        memory.add(x[:seen], y[:seen])
    drawn = torch.randint(2**62, (count,), generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(torch, "randint", lambda *arguments, **options: drawn)
    monkeypatch.setattr(kernels, "present", lambda tensor: False)
    expected = plain.add(x[seen:], y[seen:])
    fused.to(DEVICE)
    monkeypatch.setattr(torch, "randint", lambda *arguments, **options: drawn.to(DEVICE))
    monkeypatch.setattr(kernels, "present", lambda tensor: True)
    found = fused.add(x[seen:].to(DEVICE), y[seen:].to(DEVICE))
    assert found.tolist() == expected.tolist()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, fused.state_dict()[name].cpu()), name


PLAIN: dict[Kind, Callable[..., Tensor]] = {
    "cross_entropy": lambda z, y: losses.cross_entropy(z, y, 0.3, reduction="none"),
    "focal": lambda z, y: losses.focal(z, y, 0.25, 2.0, reduction="none"),
    "revised_focal": lambda z, y: losses.revised_focal(z, y, 0.25, 0.3, 0.5, reduction="none"),
    "distillation": lambda z, y: losses.virtual_distillation(z, y, 0.1, 20.0, 0.01, reduction="none"),
}
PARAMETERS: dict[Kind, dict[str, Any]] = {
    "cross_entropy": {"scale": 0.3},
    "focal": {"scale": 0.25, "gamma": 2.0},
    "revised_focal": {"scale": 0.25, "mu": 0.3, "sigma": 0.5},
    "distillation": {"scale": 0.1, "temperature": 20.0, "epsilon": 0.01},
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_losses_and_their_gradients_are_those_of_the_plain_version(
    name: Kind, classes: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = spread * torch.randn(21, classes, generator=generator)
    labels = torch.randint(classes, (21,), generator=generator)
    logits[0, labels[0]] += 80  # scores of nearly one and nearly zero
    logits[1, labels[1]] -= 80
    weights = torch.rand(21, generator=generator)
    exact = logits.double().requires_grad_()  # in double precision the plain version runs, also on a GPU
    wanted = PLAIN[name](exact, labels)
    (slope,) = torch.autograd.grad((wanted * weights).sum(), exact)
    ours = logits.to(DEVICE).requires_grad_()
    apart = torch.stack([labels, -labels], 1).to(DEVICE)[:, 0]  # not one behind the other in memory
    values = kernels.loss(name, ours, apart, **PARAMETERS[name])
    (grad,) = torch.autograd.grad((values * weights.to(DEVICE)).sum(), ours)
    torch.testing.assert_close(values.cpu(), wanted.float(), rtol=2e-4, atol=1e-6)
    torch.testing.assert_close(grad.cpu(), slope.float(), rtol=1e-3, atol=2e-6)
    (slope,) = torch.autograd.grad(3 * PLAIN[name](exact, labels).mean(), exact)
    for alone in (1 << 20, 0):  # one program for all samples, or some
        monkeypatch.setattr("ocil.kernels.loss_kernel.ALONE", alone)
        mean = kernels.loss(name, ours, apart, mean=True, **PARAMETERS[name])
        (grad,) = torch.autograd.grad(3 * mean, ours)
        torch.testing.assert_close(mean, values.detach().mean())
        torch.testing.assert_close(grad.cpu(), slope.float(), rtol=1e-3, atol=2e-6)
