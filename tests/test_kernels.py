"""The Triton kernels against PyTorch: on a GPU if there is one, else on the CPU in Triton's interpreter."""

import copy
import functools
import math
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported and when kernels are defined
pytest.importorskip("triton", reason="Triton comes with PyTorch's CUDA builds only")

from ocil import kernels  # noqa: E402
from ocil.kernels import launch, tiles  # noqa: E402
from ocil.kernels.network import plan_for  # noqa: E402
from ocil.networks import ReducedResNet18, build  # noqa: E402

pytestmark = [pytest.mark.gpu(optional=True), pytest.mark.slow]
Shape = tuple[int, int, int, int, int]
"""Batch, height, width, channels, width of the network."""


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes two thirds of the interpreter's time, and changes nothing.

    It would compute sums and products of whole numbers twice, to see whether they fit in 32 bits, and no number here
    is large. For each function that a kernel calls it would replace all functions of ``triton.language``, which it has
    done for the kernel. It would broadcast tensors that have the same shape, copy their types, describe the shape of
    each anew, look for lists in numbers, and write the table of NumPy's types anew for every number.
    """
    if DEVICE == "cpu":
        from triton.language import core
        from triton.runtime import interpreter

        builder = interpreter.interpreter_builder
        monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        patch, nothing = interpreter._patch_lang, interpreter._LangPatchScope()

        @functools.cache
        def languages(function: Any) -> list[Any]:
            return [value for value in function.__globals__.values() if hasattr(value, "load")]

        def patch_once(function: Any) -> Any:
            is_new = any(core.is_builtin(language.load) for language in languages(function))
            return patch(function) if is_new else nothing

        semantic = interpreter.interpreter_semantic
        broadcast = semantic.broadcast_impl_value

        def broadcast_if_needed(left: Any, right: Any) -> Any:
            shapes = [one.type.shape.values for one in (left, right) if one.type.is_block()]
            return (left, right) if len(shapes) == 2 and shapes[0] == shapes[1] else broadcast(left, right)

        type_of_number = functools.cache(interpreter._get_np_dtype)
        type_of_any = interpreter._get_np_dtype

        def numpy_type(kind: Any) -> Any:
            return type_of_any(kind) if kind.scalar.is_ptr() else type_of_number(kind.scalar)

        with_other = core.block_type.with_element_ty

        def with_element(kind: Any, element: Any) -> Any:
            return kind if element is kind.element_ty else with_other(kind, element)

        @functools.cache
        def shape_of(sizes: tuple[int, ...]) -> tuple[Any, Any]:
            return core.constexpr(math.prod(sizes)), core.tuple([core.constexpr(size) for size in sizes])

        def make_tensor(tensor: Any, handle: Any, kind: Any) -> None:
            tensor.handle, tensor.type, tensor.dtype = handle, kind, kind.scalar
            tensor.numel, tensor.shape = shape_of(tuple(kind.shape.values) if kind.is_block() else ())

        unwrap_all = core._unwrap_if_constexpr

        def unwrap(value: Any) -> Any:
            if isinstance(value, core.constexpr):
                return value.value
            return unwrap_all(value) if isinstance(value, list | tuple | core.tuple) else value

        monkeypatch.setattr(core, "_unwrap_if_constexpr", unwrap)
        monkeypatch.setattr(core.tensor, "__init__", make_tensor)
        monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
        monkeypatch.setattr(semantic, "broadcast_impl_value", broadcast_if_needed)
        monkeypatch.setattr(interpreter, "_get_np_dtype", numpy_type)
        monkeypatch.setattr(core.block_type, "with_element_ty", with_element)
        monkeypatch.setattr(core.block_type, "to_ir", lambda kind, builder: kind)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store float32 instead of bfloat16: then nothing but the order of sums differs from PyTorch."""
    if DEVICE == "cuda":
        pytest.skip("the matrix units take bfloat16")
    monkeypatch.setattr(tiles, "DTYPE", torch.float32)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach().double()).norm() / expected.detach().double().norm())


def errors(found: ReducedResNet18, expected: ReducedResNet18) -> dict[str, float]:
    """Of gradients and running statistics."""
    theirs = dict(expected.named_parameters())
    result = {}
    for name, parameter in found.named_parameters():
        other = theirs[name].grad
        if not name.startswith("head"):
            assert parameter.grad is not None
            assert other is not None
            result[name] = error(parameter.grad, other)
    buffers = dict(expected.named_buffers())
    return result | {name: error(buffer, buffers[name]) for name, buffer in found.named_buffers()}


def made(batch: int, height: int, width: int, channels: int, base: int) -> tuple[ReducedResNet18, Tensor, Tensor]:
    network = build((height, width, channels), 3, base, seed=1, device=torch.device(DEVICE), precision="bf16")
    assert isinstance(network, ReducedResNet18)
    generator = torch.Generator().manual_seed(batch)
    for name, value in network.named_parameters():
        if "bn" in name or "shortcut.1" in name:  # the defaults, one and zero, would hide mistakes
            value.data.add_(torch.rand(value.shape, generator=generator).to(DEVICE) * 0.5)
    for number, norm in enumerate(m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.momentum = 0.1 + 0.01 * number
    images = torch.rand((batch, channels, height, width), generator=generator).to(DEVICE)
    direction = torch.randn((batch, network.feature_size), generator=generator).to(DEVICE)
    return network, images.to(memory_format=torch.channels_last), direction


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("shape", "pad_from"),
    # Some maps with zeros beside them; all, and channels filled up; pixels in groups of three, with one and three lines
    # of zeros.
    [((2, 9, 10, 3, 4), 20), ((3, 12, 7, 1, 3), 1), ((2, 9, 11, 3, 6), 60), ((2, 9, 12, 3, 6), 60)],
)
def test_same_as_pytorch(shape: Shape, pad_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "PAD_FROM", pad_from)
    monkeypatch.setattr(tiles, "PAD_AT_MOST", 2.0 if pad_from == 60 else 1.1)
    network, images, direction = made(*shape)
    network.precision = "fp32"
    plain = copy.deepcopy(network)
    found, expected = kernels.features(network, images, into_grad=True), plain.plain_features(images)
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert error(found, expected) < 1e-4
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    found_errors = errors(network, plain)
    assert max(found_errors.values()) < 1e-4, max(found_errors.items(), key=lambda item: item[1])
    if pad_from == 60:
        layers = plan_for(network, images).layers
        assert [layer.group for layer in layers[:5]] == [1, 3, 3, 3, 3]
        assert {layer.shape.pad for layer in layers[1:5]} == {3 if shape[2] == 12 else 1}
    if pad_from == 20:  # a second pass adds to the gradients in place
        grads = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
        once = {name: grad.clone() for name, grad in grads.items()}
        assert len({grad.untyped_storage().data_ptr() for grad in grads.values()}) == 1
        (kernels.features(network, images, into_grad=True) * direction).sum().backward()
        for name, parameter in network.named_parameters():
            if name in grads:
                assert parameter.grad is grads[name]
                torch.testing.assert_close(grads[name], 2 * once[name])


def body(network: ReducedResNet18) -> list[Tensor]:
    return [parameter for name, parameter in network.named_parameters() if not name.startswith("head")]


@pytest.fixture
def pair() -> tuple[ReducedResNet18, ReducedResNet18, Callable[..., Tensor]]:
    """A network, the same again for PyTorch's own kernels, and a loss of the one (fused) or of the other."""
    network, images, direction = made(2, 9, 9, 1, 2)
    network.precision = "fp32"
    plain = copy.deepcopy(network)

    def loss(of: ReducedResNet18) -> Tensor:
        return (
            (of.plain_features(images) if of is plain else kernels.features(of, images, into_grad=True)) * direction
        ).sum()

    return network, plain, loss


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("before", [False, True], ids=["no gradients", "gradients in place"])
def test_gradients_that_are_asked_for_are_returned(pair: Any, before: bool) -> None:
    """As a method may ask with ``torch.autograd.grad``: nothing may reach ``.grad`` then."""
    network, plain, loss = pair
    if before:
        loss(network).backward()
    there = [None if p.grad is None else p.grad.clone() for p in body(network)]
    found, expected = torch.autograd.grad(loss(network), body(network)), torch.autograd.grad(loss(plain), body(plain))
    assert max(map(error, found, expected)) < 1e-4
    for parameter, grad in zip(body(network), there, strict=True):
        assert (parameter.grad is None) == (grad is None)
        assert grad is None or torch.equal(gradient_of(parameter), grad)


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.usefixtures("exact")
def test_gradients_of_some_parameters_only(pair: Any) -> None:
    network, plain, loss = pair
    for each in (network, plain):
        loss(each).backward(inputs=body(each)[3:5])
    assert [p.grad is None for p in body(network)] == [p.grad is None for p in body(plain)]
    assert (
        max(error(gradient_of(a), gradient_of(b)) for a, b in zip(body(network)[3:5], body(plain)[3:5], strict=True))
        < 1e-4
    )
    for each in (network, plain):
        each.zero_grad()
        body(each)[0].requires_grad_(False)
        loss(each).backward()
    assert body(network)[0].grad is None
    assert error(gradient_of(body(network)[1]), gradient_of(body(plain)[1])) < 1e-4


@pytest.mark.usefixtures("exact")
def test_hooks_on_parameters_run(pair: Any) -> None:
    network, plain, loss = pair
    seen: dict[tuple[int, str], Tensor] = {}
    for number, each in enumerate((network, plain)):
        first, second = body(each)[:2]
        first.register_hook(lambda grad, number=number: seen.update({(number, "grad"): grad}))
        second.register_post_accumulate_grad_hook(lambda p, number=number: seen.update({(number, "post"): p.grad}))
        loss(each).backward()
    assert len(seen) == 4
    assert all(error(seen[0, kind], seen[1, kind]) < 1e-4 for kind in ("grad", "post"))


def test_a_gradient_of_a_gradient_is_refused() -> None:
    network, images, direction = made(2, 9, 9, 1, 2)
    loss = (kernels.features(network, images, into_grad=True) * direction).square().sum()
    (grad,) = torch.autograd.grad(loss, body(network)[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("side", "channels", "padding"),
    [(32, 20, 1), (84, 20, 3), (28, 20, 2), (84, 40, 1), (16, 20, 1), (10, 20, 1), (8, 20, 0), (42, 10, 3)],
)
def test_stored_lines_end_where_a_group_ends_if_that_is_cheap(side: int, channels: int, padding: int) -> None:
    assert tiles.padding(side, side, channels) == padding


@pytest.mark.parametrize(
    ("here", "on_a_gpu"),
    [((4, 9, 10, 3, 4), (16, 32, 32, 3, 20)), ((2, 21, 21, 3, 4), (16, 84, 84, 3, 20))],
    ids=["CIFAR", "Mini-ImageNet: odd sides, zeros beside every map"],
)
def test_as_near_to_float32_as_autocast(here: Shape, on_a_gpu: Shape) -> None:
    """On a GPU all of it; the interpreter cuts bfloat16 off instead of rounding, which the gradients would show."""
    network, images, direction = made(*(here if DEVICE == "cpu" else on_a_gpu))
    assert kernels.usable(network, images) == (DEVICE == "cuda")
    cast, plain = copy.deepcopy(network), copy.deepcopy(network)
    plain.precision = "fp32"
    exact = plain.plain_features(images)
    half, found = cast.plain_features(images), kernels.features(network, images)
    assert error(found, exact) < 2 * error(half, exact) + (0.02 if DEVICE == "cpu" else 0)
    if DEVICE == "cuda":
        for features in (exact, half, found):
            (features * direction).sum().backward()
        ours, theirs = sorted(errors(network, plain).values()), sorted(errors(cast, plain).values())
        assert ours[len(ours) // 2] < 2 * theirs[len(theirs) // 2]


def test_falls_back() -> None:
    network, images, _ = made(2, 8, 8, 3, 4)
    assert kernels.fits(network, images)
    assert not kernels.fits(network, images[:1])  # one value a channel in the last stage
    assert not kernels.fits(network, images.double())
    network.eval()
    assert not kernels.fits(network, images)  # no gradient by running statistics
    with torch.no_grad():
        assert kernels.fits(network, images[:1])
        assert not kernels.fits(network, images[:0])
    network.train()
    with torch.no_grad():
        assert kernels.fits(network, images)
    network.precision = "tf32"
    assert not kernels.fits(network, images)
    wide = build((224, 224, 3), 3, 20, seed=1, device=torch.device("cpu"), precision="bf16")
    for batch, fits in ((1000, True), (2500, False)):  # more elements than 32 bits can count
        assert kernels.fits(wide, torch.empty(batch, 3, 224, 224, device="meta")) is fits


def test_one_thread_may_launch_while_another_looks_what_to_compile() -> None:
    launched, looking, go_on = [], threading.Event(), threading.Event()

    class Kernel:
        fn = type("fn", (), {"__name__": "kernel"})

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *arguments, **options: launched.append(arguments)

        def warmup(self, *arguments: Any, grid: tuple[int, ...]) -> None:
            pass

    def look() -> None:
        launch._call(Kernel(), (1,), "asked")
        looking.set()
        go_on.wait(300)

    thread = threading.Thread(target=launch.compile_all, args=(look,))
    thread.start()
    assert looking.wait(300)
    launch._call(Kernel(), (1,), "meant")
    go_on.set()
    thread.join(300)
    assert launched == [("meant",)]


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("shape", "pad_from"),
    [((2, 9, 10, 3, 4), 20), ((1, 12, 7, 1, 3), 1), ((2, 9, 11, 3, 6), 60), ((2, 9, 12, 3, 6), 60)],
)
def test_running_statistics_give_what_pytorch_gives(
    shape: tuple[int, int, int, int, int], pad_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "PAD_FROM", pad_from)
    monkeypatch.setattr(tiles, "PAD_AT_MOST", 2.0 if pad_from == 60 else 1.1)
    network, images, _ = made(*shape)
    network.precision = "fp32"
    for norm in network.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.uniform_(-0.1, 0.1)
            norm.running_var.uniform_(0.05, 0.5)
    network.eval()
    before = copy.deepcopy(network.state_dict())
    with torch.no_grad():
        found, expected = kernels.features(network, images), network.plain_features(images)
    assert error(found, expected) < 1e-5
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_pass_without_gradient_is_the_same_pass() -> None:
    network, images, _ = made(2, 9, 9, 1, 2)
    other = copy.deepcopy(network)
    with torch.no_grad():
        found = kernels.features(network, images)
    assert torch.equal(found, kernels.features(other, images).detach())
    assert all(map(torch.equal, network.buffers(), other.buffers()))
