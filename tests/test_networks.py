"""The network against one written as a plain function, and its sizes against arithmetic."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ocil import networks
from ocil.networks import ReducedResNet18, bn_momentum, build, to_float
from tests.reference import networks as slow

CPU = torch.device("cpu")
Shape = tuple[int, int, int]


def small(shape: Shape = (16, 16, 3), classes: int = 5, width: int = 2, seed: int = 0) -> ReducedResNet18:
    network = build(shape, classes, width, seed, CPU)
    assert isinstance(network, ReducedResNet18)
    return network


def images(shape: Shape, count: int = 6, seed: int = 0) -> Tensor:
    pixels = torch.randint(256, (count, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return to_float(pixels)


def scrambled(network: ReducedResNet18) -> ReducedResNet18:
    """Norms whose scale, shift and running statistics are not the neutral ones of the start."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.dim() == 1 and value.dtype == torch.float32:
                value.copy_(torch.rand(value.shape, generator=generator) + (0.5 if "mean" not in name else -0.5))
    return network


# Sizes


def test_parameters_of_the_papers_network() -> None:
    """Stem 580; stages 14,560, 51,600, 205,600 and 820,800, norms and shortcuts included."""
    network = ReducedResNet18((32, 32, 3), 100)
    head = sum(p.numel() for p in network.head.parameters())
    assert head == 160 * 100 + 100
    assert sum(p.numel() for p in network.parameters()) - head == 1_093_140


@pytest.mark.parametrize(("width", "channels"), [(2, 1), (3, 3), (8, 1)])
def test_parameters_by_formula(width: int, channels: int) -> None:
    def convolution(inputs: int, outputs: int, kernel: int) -> int:
        return inputs * outputs * kernel**2 + 2 * outputs  # no bias; scale and shift of the norm behind it

    expected, inputs = convolution(channels, width, 3), width
    for outputs in (width, 2 * width, 4 * width, 8 * width):
        expected += convolution(inputs, outputs, 3) + 3 * convolution(outputs, outputs, 3)
        expected += convolution(inputs, outputs, 1) if inputs != outputs else 0
        inputs = outputs
    network = small((16, 16, channels), classes=7, width=width)
    assert sum(p.numel() for p in network.parameters()) == expected + 8 * width * 7 + 7


@pytest.mark.parametrize(("side", "size"), [(32, 160), (84, 640), (28, 160), (64, 640), (96, 1440)])
def test_feature_size_of_the_papers_width(side: int, size: int) -> None:
    with torch.device("meta"):
        assert ReducedResNet18((side, side, 3), 10).feature_size == size


@pytest.mark.parametrize(
    "shape", [(32, 32, 3), (84, 84, 3), (14, 14, 1), (28, 28, 1), (33, 21, 3), (8, 8, 3), (1, 1, 1), (5, 40, 3)]
)
def test_any_image_size(shape: Shape) -> None:
    network = small(shape)
    found = network.features(images(shape, count=2))
    assert found.shape == (2, network.feature_size)
    assert network(images(shape, count=2)).shape == (2, 5)


def test_structure() -> None:
    network = small()
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 1 + 8 * 2 + 3
    assert all(m.bias is None for m in convolutions)
    assert sum(m.stride == (2, 2) for m in convolutions) == 6  # three stages, block and shortcut
    assert not any(isinstance(m, torch.nn.MaxPool2d | torch.nn.Dropout) for m in network.modules())
    assert network.head.bias is not None


# Values


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(16, 16, 3), (14, 14, 1), (33, 21, 3), (40, 64, 1)])
def test_against_the_slow_network(shape: Shape, training: bool) -> None:
    network = scrambled(small(shape)).train(training)
    x = images(shape)
    weights = {name: value.clone().double() for name, value in network.state_dict().items()}
    expected = slow.features(weights, x.double(), training)
    torch.testing.assert_close(network.features(x).double(), expected, rtol=1e-4, atol=1e-5)
    weights = {name: value.clone().double() for name, value in network.state_dict().items()}
    expected = slow.logits(weights, x.double(), training)
    torch.testing.assert_close(network(x).double(), expected, rtol=1e-4, atol=1e-4)


def test_gradients_against_the_slow_network() -> None:
    network = scrambled(small())
    x = images((16, 16, 3))
    (network(x) ** 2).sum().backward()
    weights = {name: value.detach().clone().double() for name, value in network.state_dict().items()}
    names = [name for name, _ in network.named_parameters()]
    for name in names:
        weights[name].requires_grad_()
    (slow.logits(weights, x.double(), training=True) ** 2).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        expected = weights[name].grad
        assert expected is not None
        torch.testing.assert_close(
            parameter.grad.double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()), msg=name
        )


def test_forward_is_head_of_features() -> None:
    network = small().eval()
    x = images((16, 16, 3))
    assert torch.equal(network(x), network.head(network.features(x)))
    assert (network.features(x) >= 0).all()


@pytest.mark.parametrize("spec", ["reduced-resnet18", "resnet18"])
def test_outputs_of_batches_are_those_of_passes_one_after_the_other(spec: str) -> None:
    """Each has its own batch statistics, and the running ones move batch by batch; gradients add up."""
    x, labels = torch.rand(5, 3, 16, 16), torch.tensor([0, 1, 2, 0, 1])
    together, apart = (build((16, 16, 3), 3, 4, seed=1, spec=spec) for _ in range(2))
    parts = list(zip(x.split((2, 3)), labels.split((2, 3)), strict=True))
    found = together.outputs_of([part for part, _ in parts])
    each = [F.cross_entropy(outputs.scores, y) for outputs, (_, y) in zip(found, parts, strict=True)]
    (each[0] + each[1]).backward()
    for (features, scores), (part, y) in zip(found, parts, strict=True):
        expected = apart.features(part)
        assert torch.equal(features, expected)
        assert torch.equal(scores, apart.head(expected))
        F.cross_entropy(apart.head(expected), y).backward()
    assert all(map(torch.equal, together.buffers(), apart.buffers()))
    for one, other in zip(together.parameters(), apart.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_evaluation_treats_images_one_by_one_and_training_does_not() -> None:
    network = scrambled(small())
    x = images((16, 16, 3))
    apart = torch.cat([network.eval()(x[i : i + 1]) for i in range(len(x))])
    torch.testing.assert_close(network.eval()(x), apart)
    together = network.train()(x)
    assert (together[:3] - network(x[:3])).abs().max() > 1e-3


def test_pooling_drops_what_fills_no_window() -> None:
    """84x84 gives an 11x11 map: two windows of four a side, and the last three rows and columns count for nothing."""
    network = small((84, 84, 3))
    assert network.window == (4, 4)
    deep = torch.zeros(1, 16, 11, 11)
    deep[0, :, 8:], deep[0, :, :, 8:] = 99.0, 99.0
    deep[0, :, :4, :4], deep[0, :, :4, 4:8], deep[0, :, 4:8, :4], deep[0, :, 4:8, 4:8] = 1.0, 2.0, 3.0, 4.0
    for name in ("blocks", "conv1", "bn1"):
        setattr(network, name, torch.nn.Identity())
    assert network.features(deep).tolist() == [[1.0, 2.0, 3.0, 4.0] * 16]


def test_to_float() -> None:
    pixels = torch.arange(2 * 3 * 4 * 3).view(2, 3, 4, 3).to(torch.uint8)
    x = to_float(pixels)
    assert x.shape == (2, 3, 3, 4)
    assert x.dtype == torch.float32
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x[1, 2, 0, 3], pixels[1, 0, 3, 2] / 255)
    assert torch.equal(
        to_float(torch.tensor([[[[0]], [[255]]]], dtype=torch.uint8)).flatten(), torch.tensor([0.0, 1.0])
    )
    assert torch.equal(pixels, torch.arange(72).view(2, 3, 4, 3).to(torch.uint8)), "the images themselves stay"


# Start


def test_same_seed_same_start_whatever_the_global_generator_does() -> None:
    torch.manual_seed(1)
    first = small(seed=5).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = small(seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    third = small(seed=6).state_dict()
    assert not torch.equal(first["conv1.weight"], third["conv1.weight"])
    assert not torch.equal(first["head.weight"], third["head.weight"])


def test_weights_do_not_depend_on_what_another_thread_makes() -> None:
    """The other one begins while this one is made, unless it waits, and ends later."""
    first_begun, second_begun, first_made = (threading.Event() for _ in range(3))

    def layers(begun: threading.Event, until: threading.Event) -> torch.nn.Module:
        first = torch.nn.Linear(3, 3)
        begun.set()
        until.wait(0.3)
        return torch.nn.Sequential(first, torch.nn.Linear(3, 3))

    def other() -> None:
        first_begun.wait(10)
        networks.seeded(lambda: layers(second_begun, first_made), 6)

    torch.manual_seed(1)
    before = torch.get_rng_state()
    thread = threading.Thread(target=other)
    thread.start()
    beside = networks.seeded(lambda: layers(first_begun, second_begun), 5).state_dict()
    first_made.set()
    thread.join(10)
    assert torch.equal(torch.get_rng_state(), before)
    alone = networks.seeded(lambda: layers(first_begun, first_made), 5).state_dict()
    assert all(torch.equal(beside[name], alone[name]) for name in alone)


def test_a_start_leaves_the_generators_of_other_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    small(seed=5)
    assert seeded == []


def test_start_is_pytorchs_default() -> None:
    """Uniform within 1 / sqrt(fan in), for convolutions and for the head; norms start neutral."""
    network = small(width=8)
    for name, parameter in network.named_parameters():
        if parameter.dim() > 1:
            bound = parameter[0].numel() ** -0.5
            assert parameter.abs().max() <= bound, name
            assert float(parameter.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.25), name
        elif "head" not in name:
            assert torch.equal(parameter, torch.full_like(parameter, float("weight" in name))), name


def test_convolution_weights_are_channels_last() -> None:
    network = small()
    assert network.get_parameter("blocks.0.conv1.weight").is_contiguous(memory_format=torch.channels_last)


# Running statistics


def norms(network: ReducedResNet18) -> list[torch.nn.BatchNorm2d]:
    return [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]


def test_bn_momentum_holds_inside_only() -> None:
    network = small()
    norms(network)[3].momentum = 0.5
    before = [m.momentum for m in norms(network)]
    with bn_momentum(network, 0.19):
        assert {m.momentum for m in norms(network)} == {0.19}
        with bn_momentum(network, 1.0):
            assert {m.momentum for m in norms(network)} == {1.0}
        assert {m.momentum for m in norms(network)} == {0.19}
    assert [m.momentum for m in norms(network)] == before
    with pytest.raises(KeyError), bn_momentum(network, 0.3):
        raise KeyError
    assert [m.momentum for m in norms(network)] == before


def test_one_pass_at_momentum_019_is_two_passes_at_01() -> None:
    x = images((16, 16, 3))
    once, twice = scrambled(small()), scrambled(small())
    with torch.no_grad():
        with bn_momentum(once, 0.19):
            once(x)
        twice(x)
        twice(x)
    for a, b in zip(norms(once), norms(twice), strict=True):
        assert a.running_mean is not None
        assert a.running_var is not None
        torch.testing.assert_close(a.running_mean, b.running_mean)
        torch.testing.assert_close(a.running_var, b.running_var)


def test_stem_statistics_by_hand() -> None:
    network = small()
    x = images((16, 16, 3))
    stem = torch.nn.functional.conv2d(x, network.conv1.weight, padding=1).detach()
    with torch.no_grad(), bn_momentum(network, 0.19):
        network(x)
    mean, variance = network.bn1.running_mean, network.bn1.running_var
    assert mean is not None
    assert variance is not None
    torch.testing.assert_close(mean, 0.19 * stem.mean((0, 2, 3)))
    torch.testing.assert_close(variance, 0.81 + 0.19 * stem.var((0, 2, 3), unbiased=True))


# Precision


@pytest.mark.parametrize(
    "patches",
    [
        False,
        True,
    ],
)
def test_bf16_inside_float32_outside(monkeypatch: pytest.MonkeyPatch, patches: bool) -> None:
    monkeypatch.setattr("ocil.kernels.convolution.SLOW_BACKWARD", patches)
    exact = small()
    rough = networks.build((16, 16, 3), 5, 2, 0, CPU, "bf16")
    x = images((16, 16, 3))
    logits = rough(x)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact(x), rtol=0.1, atol=0.1)
    logits.square().sum().backward()
    for name, parameter in rough.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


# Virtual steps


def test_a_virtual_step_is_sgd_and_leaves_no_trace() -> None:
    network = small()
    x = images((16, 16, 3))
    network(x).square().mean().backward()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    twin = small()
    twin.load_state_dict(before)
    with torch.no_grad():
        for there, here in zip(twin.parameters(), network.parameters(), strict=True):
            assert here.grad is not None
            there.sub_(0.3 * here.grad)
        expected = twin(x)
        with networks.virtual_step(network, 0.3):
            found = network(x)
    torch.testing.assert_close(found, expected)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_a_virtual_step_that_fails_leaves_no_trace() -> None:
    network = small()
    network(images((16, 16, 3))).sum().backward()
    before = [value.clone() for value in network.state_dict().values()]
    with pytest.raises(ZeroDivisionError), networks.virtual_step(network, 1.0):
        raise ZeroDivisionError
    assert all(map(torch.equal, before, network.state_dict().values()))
