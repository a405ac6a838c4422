"""The patch convolution against torch's own, with the ARM path forced on whatever the tests run on."""

import copy
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import ocil.kernels.convolution
from ocil.kernels.convolution import Conv2d, patches
from ocil.networks import WrappedNetwork
from tests.forking import Forked

CASES = [
    (kernel, stride, height, width)
    for kernel, stride, (height, width) in itertools.product((1, 3), (1, 2), ((8, 8), (7, 5), (1, 1), (2, 9)))
]
every_case = pytest.mark.parametrize(("kernel", "stride", "height", "width"), CASES)


@pytest.fixture(autouse=True)
def patch_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ocil.kernels.convolution, "SLOW_BACKWARD", True)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def layer(kernel: int, stride: int, dtype: torch.dtype = torch.float64, inputs: int = 3, outputs: int = 4) -> Conv2d:
    convolution = Conv2d(inputs, outputs, kernel, stride).to(dtype)
    with torch.no_grad():
        convolution.weight.copy_(normal(*convolution.weight.shape, dtype=dtype, seed=1))
    return convolution


def test_no_image_has_no_patch() -> None:
    assert patches(torch.zeros(0, 3, 8, 8), 3, 2).shape == (0, 16, 27)


def uses_patches(y: Tensor) -> bool:
    return y.grad_fn is not None and "PatchConvolution" in type(y.grad_fn).__name__


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("channels_last", [False, True])
@every_case
def test_output_and_gradients(
    kernel: int, stride: int, height: int, width: int, channels_last: bool, dtype: torch.dtype
) -> None:
    convolution = layer(kernel, stride, dtype)
    x = normal(2, 3, height, width, dtype=dtype)
    if channels_last:
        x, convolution = x.to(memory_format=torch.channels_last), convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x.requires_grad_()
    y = convolution(x)
    assert uses_patches(y)
    weight = convolution.weight.detach().clone().requires_grad_()
    plain = x.detach().clone().requires_grad_()
    expected = F.conv2d(plain, weight, stride=stride, padding=kernel // 2)
    assert y.shape == expected.shape
    torch.testing.assert_close(y, expected)
    upstream = normal(*y.shape, dtype=dtype, seed=2)
    got = torch.autograd.grad(y, (x, convolution.weight), upstream)
    for mine, theirs in zip(got, torch.autograd.grad(expected, (plain, weight), upstream), strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, theirs, rtol=1e-4 if dtype == torch.float32 else 1e-10, atol=1e-5)


@pytest.mark.slow
@every_case
def test_gradcheck(kernel: int, stride: int, height: int, width: int) -> None:
    convolution = layer(kernel, stride, inputs=2, outputs=2)
    x = normal(2, 2, min(height, 5), min(width, 5), dtype=torch.float64).requires_grad_()

    def apply(x: Tensor, weight: Tensor) -> Tensor:
        return functional_call(convolution, {"weight": weight}, (x,))

    weight = convolution.weight.detach().clone().requires_grad_()
    assert uses_patches(apply(x, weight))
    assert torch.autograd.gradcheck(apply, (x, weight))


def test_kernel_of_five() -> None:
    convolution = layer(5, 2)
    x = normal(2, 3, 9, 6, dtype=torch.float64).requires_grad_()
    got = torch.autograd.grad(convolution(x).square().sum(), (x, convolution.weight))
    expected = F.conv2d(x, convolution.weight, stride=2, padding=2).square().sum()
    for mine, theirs in zip(got, torch.autograd.grad(expected, (x, convolution.weight)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_upstream_gradients_of_any_layout() -> None:
    """Sums hand back an expanded gradient, transposes a strided one."""
    convolution = layer(3, 1)
    x = normal(2, 3, 6, 6, dtype=torch.float64)
    for use in (lambda y: y.sum(), lambda y: (y.transpose(2, 3) * normal(*y.shape, dtype=y.dtype)).sum()):
        (mine,) = torch.autograd.grad(use(convolution(x)), convolution.weight)
        plain = F.conv2d(x, convolution.weight, padding=1)
        torch.testing.assert_close(mine, torch.autograd.grad(use(plain), convolution.weight)[0])


def test_the_first_layer_needs_no_gradient_of_its_input() -> None:
    convolution = layer(3, 1)
    x = normal(2, 3, 6, 6, dtype=torch.float64)
    convolution(x).sum().backward()
    assert x.grad is None
    assert convolution.weight.grad is not None


def test_gradients_add_up_over_two_backward_passes() -> None:
    convolution = layer(3, 2)
    a, b = normal(2, 3, 6, 6, dtype=torch.float64), normal(5, 3, 6, 6, dtype=torch.float64, seed=3)
    convolution(a).square().sum().backward()
    convolution(b).square().sum().backward()
    together = sum(F.conv2d(x, convolution.weight, stride=2, padding=1).square().sum() for x in (a, b))
    assert isinstance(together, Tensor)
    (expected,) = torch.autograd.grad(together, convolution.weight)
    torch.testing.assert_close(convolution.weight.grad, expected)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_gradients_of_gradients(kernel: int, stride: int) -> None:
    convolution = layer(kernel, stride, inputs=2, outputs=2)
    x = normal(1, 2, 4, 3, dtype=torch.float64).requires_grad_()
    weight = convolution.weight.detach().clone().requires_grad_()

    def apply(x: Tensor, weight: Tensor) -> Tensor:
        return functional_call(convolution, {"weight": weight}, (x,))

    assert torch.autograd.gradgradcheck(apply, (x, weight))


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_per_sample_gradients(kernel: int, stride: int) -> None:
    first, second = layer(3, 1), layer(kernel, stride, inputs=4, outputs=2)
    model = torch.nn.Sequential(first, torch.nn.Tanh(), second)  # the second also hands a gradient to its input
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    x = normal(5, 3, 6, 7, dtype=torch.float64)

    def loss(weights: dict[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(model, weights, (image[None],)).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    for i in range(len(x)):
        alone = torch.autograd.grad(model(x[i : i + 1]).square().sum(), list(model.parameters()))
        for name, expected in zip(weights, alone, strict=True):
            torch.testing.assert_close(together[name][i], expected)


def test_many_models_at_once() -> None:
    """vmap over weights, as for several seeds in one call."""
    convolution = layer(3, 2)
    weights = normal(3, *convolution.weight.shape, dtype=torch.float64, seed=4)
    x = normal(2, 3, 6, 6, dtype=torch.float64)

    def loss(weight: Tensor) -> Tensor:
        return functional_call(convolution, {"weight": weight}, (x,)).square().sum()

    together = vmap(grad(loss))(weights)
    for weight, got in zip(weights, together, strict=True):
        leaf = weight.clone().requires_grad_()
        plain = F.conv2d(x, leaf, stride=2, padding=1).square().sum()
        torch.testing.assert_close(got, torch.autograd.grad(plain, leaf)[0])


def test_switched_off_without_gradients_and_on_other_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    convolution = layer(3, 1)
    x = normal(2, 3, 6, 6, dtype=torch.float64)
    with torch.no_grad():
        assert convolution(x).grad_fn is None
    monkeypatch.setattr(ocil.kernels.convolution, "SLOW_BACKWARD", False)
    y = convolution(x)
    assert y.requires_grad
    assert not uses_patches(y)


def test_frozen_weights_still_pass_gradients_on() -> None:
    convolution = layer(3, 2)
    convolution.weight.requires_grad_(False)
    x = normal(2, 3, 6, 6, dtype=torch.float64).requires_grad_()
    (got,) = torch.autograd.grad(convolution(x).square().sum(), x)
    plain = F.conv2d(x, convolution.weight, stride=2, padding=1).square().sum()
    torch.testing.assert_close(got, torch.autograd.grad(plain, x)[0])


def test_padding_keeps_the_map_and_there_is_no_bias() -> None:
    for kernel, stride in ((1, 1), (3, 1), (1, 2), (3, 2)):
        convolution = layer(kernel, stride)
        assert convolution.bias is None
        assert convolution(normal(1, 3, 7, 10, dtype=torch.float64)).shape[2:] == (-(-7 // stride), -(-10 // stride))


@pytest.mark.parametrize(
    "made",
    [
        "Conv2d(8, 16, 1, 2)",
        "torch.nn.Conv2d(8, 16, 1, 2, bias=False)",
        "type('Own', (torch.nn.Conv2d,), {})(8, 16, 1, 2, bias=False)",
    ],
)
def test_gradients_of_a_shortcut_where_pytorch_overwrites_memory(made: str, fork_python: Callable[..., Forked]) -> None:
    """In a process of its own: with AVX-512, PyTorch's own convolution ends it here."""
    code = """
import torch
from ocil.kernels.convolution import Conv2d, subsample_first
torch.manual_seed(0)
shortcut = MADE.to(memory_format=torch.channels_last)
subsample_first(shortcut)
x = torch.rand(10, 8, 64, 64).contiguous(memory_format=torch.channels_last)
for _ in range(3):
    (got,) = torch.autograd.grad(shortcut(x).square().sum(), shortcut.weight)
y = torch.einsum("nchw,dc->ndhw", x[:, :, ::2, ::2].double(), shortcut.weight[:, :, 0, 0].double())
expected = 2 * torch.einsum("ndhw,nchw->dc", y, x[:, :, ::2, ::2].double())
torch.testing.assert_close(got[:, :, 0, 0].double(), expected, rtol=1e-4, atol=1e-3)
"""
    process = fork_python("-c", code.replace("MADE", made))
    _, err = process.communicate()
    assert process.returncode == 0, err


class Doubling(nn.Conv2d):
    """Computes in a way of its own."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return 2 * super()._conv_forward(x, weight, bias)


def test_a_network_of_ones_own_is_subsampled_first_and_computes_the_same() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1, (1, 2)))
    shortcuts = [nn.Conv2d(3, 8, 1, (2, 3)), normed, nn.Conv2d(8, 4, 1, 2, groups=2, padding="valid")]
    others = [nn.Conv2d(4, 16, 1), nn.Conv2d(16, 4, 1, 2), Doubling(4, 4, 1, 2)]  # of 16 channels all is well
    body = nn.Sequential(*shortcuts, *others, nn.Conv2d(4, 4, 3, 2, padding=1)).double()
    x = normal(2, 3, 31, 40, dtype=torch.float64)
    expected = torch.autograd.grad(body(x).square().sum(), list(body.parameters()))
    network = WrappedNetwork(body.float(), (31, 40, 3), 2, "fp32").double()
    found = torch.autograd.grad(network.body(x).square().sum(), list(body.parameters()))
    for each in (body, again := copy.deepcopy(body)):
        assert ["_conv_forward" in vars(layer) for layer in each] == [True] * 3 + [False] * 4
    assert type(body[0]) is nn.Conv2d
    for value in again[0].parameters():
        nn.init.constant_(value, 0)
    assert (again[0].forward(x) == 0).all()  # a copy computes with its own weights
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        assert network.body(x).grad_fn is None
