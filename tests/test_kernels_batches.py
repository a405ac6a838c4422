"""Two batches in one pass of the Triton kernels against two passes: on a GPU, else in Triton's interpreter."""

import copy

import pytest
import torch
from torch import Tensor

from tests.test_kernels import (
    Shape,
    body,
    error,
    errors,
    exact,  # noqa: F401  (a fixture)
    gradient_of,
    made,
    quick_interpreter,  # noqa: F401  (a fixture)
)

from ocil import kernels  # isort: skip
from ocil.kernels import launch, tiles  # isort: skip
from ocil.kernels.network import plan_for  # isort: skip
from ocil.networks import ReducedResNet18, build  # isort: skip

pytestmark = [pytest.mark.gpu(optional=True), pytest.mark.slow]


SMALL = tiles.Tile(32, 16, 16, programs=6)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("shape", "first", "pad_from"),
    [((4, 9, 9, 1, 2), 2, 20), ((3, 9, 11, 1, 6), 2, 60)],
    ids=["small tiles, some maps with zeros beside them", "pixels in groups of three"],
)
def test_two_batches_in_one_pass(shape: Shape, first: int, pad_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small tiles a batch ends inside of a tile in every layer, and parts of a weight's gradient end there too."""
    monkeypatch.setattr(tiles, "PAD_FROM", pad_from)
    monkeypatch.setattr(tiles, "PAD_AT_MOST", 2.0 if pad_from == 60 else 1.1)
    if pad_from == 20:
        monkeypatch.setattr(tiles, "tile", lambda *key: SMALL)
    network, images, direction = made(*shape)
    network.precision = "fp32"
    plain = copy.deepcopy(network)
    found = kernels.features_of_both(network, images[:first], images[first:], into_grad=True)
    expected = torch.cat([plain.plain_features(images[:first]), plain.plain_features(images[first:])])
    assert error(found, expected) < 1e-4
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    off = errors(network, plain)
    assert max(off.values()) < 1e-4, max(off.items(), key=lambda item: item[1])
    assert {int(b) for name, b in network.named_buffers() if name.endswith("tracked")} == {2}
    layers = plan_for(network, images, first).layers
    assert [layer.group for layer in layers[:3]] == ([1, 3, 3] if pad_from == 60 else [1, 1, 1])
    assert pad_from == 60 or max(layer.splits for layer in layers) > 2


@pytest.mark.usefixtures("exact")
def test_statistics_have_the_bits_of_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "tile", lambda *key: SMALL)
    network, images, _ = made(3, 9, 9, 1, 1)
    apart = copy.deepcopy(network)
    with torch.no_grad():
        both = kernels.features_of_both(network, images[:2], images[2:])
        assert torch.equal(both, torch.cat([kernels.features(apart, part) for part in (images[:2], images[2:])]))
    assert all(map(torch.equal, network.buffers(), apart.buffers()))


def test_two_batches_take_the_launches_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    network, images, _ = made(5, 9, 9, 1, 2)
    launched: list[str] = []
    monkeypatch.setattr(launch, "_call", lambda kernel, *arguments, **options: launched.append(kernel.fn.__name__))
    monkeypatch.setattr("ocil.kernels.network._compile", lambda plan, images: None)
    monkeypatch.setattr(kernels, "present", lambda tensor: True)
    monkeypatch.setattr("ocil.kernels.network._compile", lambda *arguments: None)  # it would need real launches
    for batches, passes in (([images[:2], images[2:]], 1), ([images], 1), ([images[:1], images[1:3], images[3:]], 3)):
        launched.clear()
        torch.cat([outputs.scores for outputs in network.outputs_of(batches)]).sum().backward()
        assert len(launched) == 77 * passes


def test_both_batches_must_fit() -> None:
    network, images, _ = made(4, 8, 8, 3, 4)
    assert kernels.fits(network, images[:2], images[2:])
    assert not kernels.fits(network, images[:1], images[1:])  # one value a channel in the last stage
    assert not kernels.fits(network, images[:2], images[2:].double())
    assert not kernels.fits(network, images[:2], torch.zeros(2, 3, 9, 9))
    wide = build((224, 224, 3), 3, 20, seed=1, device=torch.device("cpu"), precision="bf16")
    large = torch.empty(1000, 3, 224, 224, device="meta")
    assert kernels.fits(wide, large)
    assert not kernels.fits(wide, large, large)  # more elements than 32 bits can count


def norms_of(network: ReducedResNet18) -> dict[str, Tensor]:
    """Gradients of gamma and beta, by name."""
    return {
        name: gradient_of(value)
        for name, value in network.named_parameters()
        if value.ndim == 1 and not name.startswith("head")
    }


def assert_passes_agree(network: ReducedResNet18, images: Tensor, direction: Tensor, first: int) -> None:
    """One pass of two batches gives what two passes of the kernels give. Only the order of the sums of
    gradients differs, so features and statistics agree bit for bit."""
    apart = copy.deepcopy(network)
    a, b = images[:first], images[first:]
    both = kernels.features_of_both(network, a, b, into_grad=True)
    (both * direction).sum().backward()
    alone = []
    for part, towards in ((a, direction[:first]), (b, direction[first:])):
        alone.append(kernels.features(apart, part, into_grad=True))
        (alone[-1] * towards).sum().backward()
    assert torch.equal(both, torch.cat(alone))
    assert all(map(torch.equal, network.buffers(), apart.buffers()))
    worst = max(map(error, norms_of(network).values(), norms_of(apart).values()))
    assert worst < 1e-5
    worst = max(error(gradient_of(x), gradient_of(y)) for x, y in zip(body(network), body(apart), strict=True))
    assert worst < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(10, 200), (10, 50), (1, 7)], ids=str)
def test_on_a_gpu_statistics_have_the_bits_of_two_passes(sizes: tuple[int, int]) -> None:
    network, images, direction = made(sum(sizes), 32, 32, 3, 20)
    assert_passes_agree(network, images, direction, sizes[0])


@pytest.mark.gpu
def test_one_captured_pass_of_two_batches_is_two_captured_passes() -> None:
    network, images, direction = made(60, 32, 32, 3, 20)
    apart = copy.deepcopy(network)
    stream = torch.cuda.Stream()

    def together() -> None:
        (kernels.features_of_both(network, images[:10], images[10:], into_grad=True) * direction).sum().backward()

    def separate() -> None:
        for rows in (slice(0, 10), slice(10, 60)):
            (kernels.features(apart, images[rows], into_grad=True) * direction[rows]).sum().backward()

    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for work, each in ((together, network), (separate, apart)):
            for _ in range(2):
                each.zero_grad()
                work()
            each.zero_grad()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                work()
            for _ in range(3):
                graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, network.buffers(), apart.buffers()))
    assert int(network.bn1.num_batches_tracked) == 2 * 5  # type: ignore[arg-type]
    assert max(error(gradient_of(x), gradient_of(y)) for x, y in zip(body(network), body(apart), strict=True)) < 1e-5
