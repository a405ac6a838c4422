"""Predictions with folded weights and Winograd's convolution give what the modules give."""

import pytest
import torch

from ocil.kernels import folded
from ocil.kernels.folded import FoldedResNet
from ocil.networks.reduced_resnet18 import ReducedResNet18


def trained(shape: tuple[int, int, int], width: int) -> ReducedResNet18:
    """A network whose batch statistics, scales and shifts are those of no fresh one."""
    torch.manual_seed(0)
    network = ReducedResNet18(shape, 5, width)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            torch.nn.init.uniform_(module.weight, 0.5, 2)
            torch.nn.init.uniform_(module.bias, -1, 1)
            torch.nn.init.uniform_(module.running_mean, -1, 1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    return network.eval()


@pytest.mark.parametrize("shape", [(32, 32, 3), (12, 12, 1), (9, 30, 3), (84, 84, 3), (5, 7, 1)])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("traced", [True, False])
def test_features_are_those_of_the_modules(
    shape: tuple[int, int, int], count: int, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = trained(shape, 4)
    x = torch.rand(count, shape[2], shape[0], shape[1])
    with torch.no_grad():
        expected = network.plain_features(x)
    monkeypatch.setattr(folded, "_passes", {})
    if not traced:
        monkeypatch.setattr(torch.jit, "trace", lambda *_, **__: 1 / 0)
    prepared = FoldedResNet(network)
    assert len(folded._passes) == traced
    found = prepared(x)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 11])
def test_a_convolution_by_hand(width: int) -> None:
    """In double precision only the method's own error would be left."""
    x, weight, bias = torch.randn(2, 3, 4, width).double(), torch.randn(6, 3, 3, 3).double(), torch.randn(6).double()
    expected = torch.nn.functional.conv2d(x, weight, bias, padding=1)
    by_winograd = folded._winograd(x, *folded._for_winograd(weight, bias))
    by_patches = folded._patches(x, *folded._for_patches(weight, bias), stride=1)
    for found in (by_winograd, by_patches):
        torch.testing.assert_close(found, expected)


@pytest.mark.skipif(not torch._nnpack_available(), reason="this PyTorch has no NNPACK")
@pytest.mark.parametrize(("height", "width"), [(32, 32), (10, 10), (11, 20)])
def test_a_convolution_by_nnpack(height: int, width: int) -> None:
    assert folded._suits_nnpack(height, width)
    x, weight, bias = torch.randn(2, 3, height, width), torch.randn(6, 3, 3, 3), torch.randn(6)
    found = folded._nnpack(x, *folded._for_nnpack(weight, bias))
    expected = torch.nn.functional.conv2d(x, weight, bias, padding=1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (4, 4), (7, 40), (2, 2)])
def test_maps_that_nnpack_does_not_suit(height: int, width: int) -> None:
    assert not folded._suits_nnpack(height, width)


def test_a_pass_is_traced_once_and_takes_new_weights() -> None:
    network, other = trained((12, 12, 1), 3), trained((12, 12, 1), 3)
    with torch.no_grad():
        other.conv1.weight.mul_(2)
    first, second = FoldedResNet(network), FoldedResNet(other)
    assert first.form == second.form
    assert first.form in folded._passes
    x = torch.rand(4, 1, 12, 12)
    with torch.no_grad():
        for prepared, expected in ((first, network), (second, other)):
            torch.testing.assert_close(prepared(x), expected.plain_features(x), rtol=1e-4, atol=1e-5)


def test_only_a_prepared_network_in_evaluation_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded, "PAYS", True)
    monkeypatch.setattr(folded, "LARGE_WORK", 0)
    network, x = trained((12, 12, 1), 2), torch.rand(2, 1, 12, 12)
    with torch.no_grad():
        before = network.features(x)
        network.prepare()
        assert network._folded is not None
        monkeypatch.setattr(FoldedResNet, "__call__", lambda *_: "folded")
        assert network.features(x) == "folded"
        network.conv1.weight.mul_(2)  # the next call of prepare sees it
        assert torch.equal(network.train().features(x) * 0, before * 0)
    network.eval()
    assert network.features(x).requires_grad
    monkeypatch.setattr(folded, "PAYS", False)
    network.prepare()
    assert network._folded is None
