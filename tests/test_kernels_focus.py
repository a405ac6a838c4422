"""The kernels of AFS's loss, of stride's label frequency and of views of several batches against their plain versions:
on a GPU, else in Triton's interpreter."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported and when kernels are defined
pytest.importorskip("triton", reason="Triton comes with PyTorch's CUDA builds only")

from ocil import kernels  # noqa: E402
from ocil.kernels.draw import Draw, Jitter  # noqa: E402
from ocil.learning import losses  # noqa: E402
from ocil.learning.views import RandomViews  # noqa: E402
from ocil.methods.config import Problem  # noqa: E402
from ocil.methods.stride import Stride, StrideConfig  # noqa: E402
from ocil.precision import numerics  # noqa: E402
from tests.test_kernels import quick_interpreter  # noqa: E402, F401  (a fixture)

pytestmark = [pytest.mark.gpu(optional=True), pytest.mark.slow]
NUMBERS: dict[str, Any] = {
    "alpha": 0.25, "mu": 0.3, "sigma": 0.5, "beta": 0.1, "temperature": 20.0, "epsilon": 0.01
}  # fmt: skip


def scores(sizes: tuple[int, ...], classes: int, spread: float) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(classes)
    found = []
    for size in sizes:
        logits = spread * torch.randn(size, classes, generator=generator)
        labels = torch.randint(classes, (size,), generator=generator)
        logits[0, labels[0]] += 80  # scores of nearly one and nearly zero
        logits[-1, labels[-1]] -= 80
        found.append((logits, labels))
    return found


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")  # where beta is 0
@pytest.mark.parametrize("sizes", [(10, 42), (3,), (70, 130), (1, 1)], ids=str)
@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize(
    "settings", [{}, {"focal": False}, {"beta": 0.0, "temperature": 1e-6}, {"offset": True}, {"met": True}], ids=str
)
def test_the_loss_of_batches_is_that_of_the_plain_version(
    sizes: tuple[int, ...], classes: int, settings: dict[str, Any]
) -> None:
    """Within one program, and over several; one batch, and two."""
    numbers = NUMBERS | {name: value for name, value in settings.items() if name in NUMBERS}
    focal = settings.get("focal", True)
    batches = scores(sizes, classes, 3.0)
    offset = torch.randn(classes, generator=torch.Generator().manual_seed(1)) if "offset" in settings else None
    met = None
    if "met" in settings:
        met = torch.zeros(classes, dtype=torch.bool)
        for _, labels in batches:
            met[labels] = True
    exact = [(logits.double().requires_grad_(), labels) for logits, labels in batches]
    more = {"focal": focal, "offset": None if offset is None else offset.double(), "met": met}
    wanted, parts = losses.focus(exact, **numbers, **more)  # in double precision the plain version, also on a GPU
    slopes = torch.autograd.grad(3 * wanted, [logits for logits, _ in exact])
    # Logits that are parts of one tensor, as a network gives them, and labels that are not contiguous.
    joined = torch.cat([logits for logits, _ in batches]).to(DEVICE).requires_grad_()
    apart = [torch.stack([labels, -labels], 1).to(DEVICE)[:, 0] for _, labels in batches]
    ours = list(zip(joined.split([*sizes]), apart, strict=True))
    offset, met = (None if each is None else each.to(DEVICE) for each in (offset, met))
    loss, found = kernels.focus(ours, offset, met, focal, **numbers)
    (grad,) = torch.autograd.grad(3 * loss, [joined])
    assert not found.requires_grad
    torch.testing.assert_close(loss.detach().cpu().double(), wanted.detach(), rtol=2e-4, atol=1e-6)
    torch.testing.assert_close(found[: len(sizes)].cpu().double(), parts, rtol=2e-4, atol=1e-6)
    assert not found[len(sizes) :].any()
    torch.testing.assert_close(grad.cpu().double(), torch.cat(slopes), rtol=1e-3, atol=2e-6)


def test_the_plain_loss_is_the_sum_of_its_parts() -> None:
    batches = scores((4, 6), 5, 1.0)
    offset = torch.linspace(-1, 1, 5)
    loss, parts = losses.focus(batches, **NUMBERS, offset=offset)
    for row, (logits, labels) in zip(parts, batches, strict=True):
        torch.testing.assert_close(row[0], losses.revised_focal(logits + offset, labels, 0.25, 0.3, 0.5))
        torch.testing.assert_close(row[1], losses.virtual_distillation(logits + offset, labels, 0.1, 20.0, 0.01))
    torch.testing.assert_close(loss, parts.sum())
    plain, parts = losses.focus(batches[:1], alpha=0.7, beta=0, focal=False)
    torch.testing.assert_close(plain, losses.cross_entropy(*batches[0], scale=0.7))
    assert parts.tolist() == [[float(plain), 0]]


@pytest.mark.parametrize("classes", [3, 100, 300])
@pytest.mark.parametrize("sizes", [(10, 42), (4,), (1, 17)], ids=str)
def test_label_frequencies_are_those_of_the_plain_version(classes: int, sizes: tuple[int, ...]) -> None:
    learner = Stride(StrideConfig(memory=50, width=1, adjustment=0.7), Problem((8, 8, 3), classes))
    frequency, seen = learner.frequency.to(DEVICE, copy=True), learner.seen_classes.to(DEVICE, copy=True)
    generator = torch.Generator().manual_seed(classes)
    for _ in range(3):
        labels = [torch.randint(classes // 2 + 1, (size,), generator=generator) for size in sizes]
        offset = kernels.label_offset(frequency, seen, [each.to(DEVICE) for each in labels], 0.95, 0.7, 1e-5)
        assert offset is not None
        torch.testing.assert_close(offset.cpu(), learner.count_labels(labels), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(frequency.cpu(), learner.frequency)
        assert seen.tolist() == learner.seen_classes.tolist()
    assert not seen.all()
    assert kernels.label_offset(torch.zeros(9000, device=DEVICE), seen, labels, 0.9, 0.7, 1e-5) is None  # too many


def test_each_batch_has_its_own_order_of_jitter() -> None:
    views, count = RandomViews(crop_scale=None, jitter=1.0), 5
    generator = torch.Generator(DEVICE).manual_seed(0)
    images = torch.rand((3 * count, 3, 9, 8), device=DEVICE, generator=generator)
    images = images.contiguous(memory_format=torch.channels_last)
    draw = kernels.draw(views.ranges(9, 8), len(images), generator, batches=3)
    assert draw.jitter is not None
    assert draw.jitter.when.shape == (12,)
    found = kernels.views(images, draw)
    orders = []
    for number in range(3):
        rows = slice(number * count, (number + 1) * count)
        when = draw.jitter.when[4 * number : 4 * number + 4]
        chosen, brightness, contrast, saturation, hue = (each[rows] for each in draw.jitter[:5])
        jitter = Jitter(chosen, brightness, contrast, saturation, hue, when)
        alone = Draw(None, None if draw.flipped is None else draw.flipped[rows], jitter, None)
        torch.testing.assert_close(found[rows], views.apply(images[rows], alone), rtol=0, atol=2e-5)
        orders.append(tuple(when.argsort().tolist()))
    assert len(set(orders)) > 1


def test_views_of_batches_at_once_are_those_one_after_the_other() -> None:
    """By the plain version, with the same draws; on a GPU only their shapes are the same."""
    for per_batch in (False, True):
        views = RandomViews(gray=0.2, per_batch=per_batch)
        images = torch.rand(8, 3, 9, 8).contiguous(memory_format=torch.channels_last)
        one, many = (torch.Generator().manual_seed(3) for _ in range(2))
        expected = torch.cat([views(part, one) for part in images.split(4)])
        found = views(images, many, batches=2)
        assert torch.equal(found, expected)
        assert torch.equal(one.get_state(), many.get_state())
        assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("growing", [False, True])
def test_a_step_of_stride_by_kernels_is_the_plain_one(growing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of loss and frequency in the place of PyTorch's operators, in a whole step: the same weights."""
    learners = []
    for fused in (False, True):
        usual: dict[str, Any] = {"memory": 30, "memory_batch": 6, "steps": 2, "width": 2, "precision": "fp32"}
        config = StrideConfig(**usual, growing=growing, lr=0.01)  # so small that rounding does not grow
        learner = Stride(config, Problem((8, 8, 3), 16 if growing else 6), device=DEVICE)
        generator = torch.Generator().manual_seed(0)
        with numerics("fp32"), monkeypatch.context() as patch:  # TF32 would round the same sums in two ways
            patch.setattr(losses, "_fused", lambda logits, fused=fused: fused)
            patch.setattr("ocil.methods.stride.kernels.present", lambda tensor, fused=fused: fused and tensor.ndim == 1)
            for _ in range(2):
                x = torch.randint(256, (5, 8, 8, 3), generator=generator, dtype=torch.uint8)
                y = torch.randint(6, (5,), generator=generator)
                learner.meet(y.tolist())
                learner.learn(x.to(DEVICE), y.to(DEVICE))
        learners.append(learner)
    plain, fused_one = (each.state() for each in learners)
    assert len(plain) == len(fused_one)
    for name, value in plain.items():
        if value.is_floating_point():
            torch.testing.assert_close(fused_one[name], value, rtol=2e-3, atol=2e-4, msg=name)
