"""CCL-DC: a step of both networks by hand, its views, and the mean of both that predicts."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods.ccl_dc import CCLDC
from ocil.networks import to_float
from tests.test_methods import BATCH, REPLAY, batch, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")


def ccl_dc(steps: int, **changes: Any) -> CCLDC:
    learner = warm("ccl-dc", steps, **changes)
    assert isinstance(learner, CCLDC)
    return learner


def distance(own: Tensor, other: Tensor, temperature: float) -> Tensor:
    """T² KL(other ‖ own), by PyTorch."""
    taught = (other.detach() / temperature).softmax(1)
    return temperature**2 * F.kl_div((own / temperature).log_softmax(1), taught, reduction="batchmean")


def loss_by_hand(own: list[Tensor], other: list[Tensor], labels: Tensor, weight: float, temperature: float) -> Tensor:
    """As the authors' code has it, with views in the order in which they pass."""
    entropies = [F.cross_entropy(logits, labels) for logits in own]
    if len(own) == 1:
        return 0.5 * entropies[0] + weight * distance(own[0], other[0], temperature)
    _, hardest, raw, cropped, hard = own
    _, other_hardest, _, other_cropped, other_hard = other
    pairs = [(hardest, other_hardest), (raw, other_cropped), (cropped, other_hard), (hard, other_hardest)]
    return 0.5 * sum(entropies, torch.zeros(())) + weight * sum(
        (distance(mine, theirs, temperature) for mine, theirs in pairs), torch.zeros(())
    )


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("settings", [{}, {"augment": False, "distillation": 0.7, "temperature": 2.0}], ids=str)
def test_a_step_by_hand(settings: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = ccl_dc(steps, lr=0.07, weight_decay=0.0, **settings)
    former, config = [copy.deepcopy(each) for each in (learner.network, learner.peer)], learner.config
    draws, views = record(learner.memory, "retrieve", monkeypatch), record(learner, "views", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)
    (draw,) = draws
    if draw is None:
        assert steps == 0
        for net, old in zip((learner.network, learner.peer), former, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(net.parameters(), old.parameters(), strict=True))
        return
    assert len(draw[1]) == min(REPLAY, BATCH * steps)
    labels = torch.cat([draw[1], y])
    (shown,) = views
    assert len(shown) == (5 if config.augment else 1)
    assert torch.equal(shown[2 if config.augment else 0], to_float(torch.cat([draw[0], x])))
    logits = [[net(view) for view in shown] for net in former]
    losses = []
    for number, net in enumerate(former):
        mine, theirs = logits[number], [each.detach() for each in logits[1 - number]]
        loss = loss_by_hand(mine, theirs, labels, config.distillation, config.temperature)
        slopes = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
        with torch.no_grad():
            wanted = [weight - 0.07 * slope for weight, slope in zip(net.parameters(), slopes, strict=True)]
        got = (learner.network, learner.peer)[number]
        for weight, value in zip(got.parameters(), wanted, strict=True):
            torch.testing.assert_close(weight.detach(), value, rtol=1e-4, atol=2e-6)
        losses.append(float(loss.detach()))
    assert float(learner.last_loss) == pytest.approx(sum(losses), rel=1e-5)


def test_views_are_harder_and_harder() -> None:
    learner = make("ccl-dc", optimizer="sgd", operations=2, magnitude=15.0)
    assert isinstance(learner, CCLDC)
    x = torch.randint(256, (40, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    augmented, hardest, raw, cropped, hard = learner.views(x)
    assert torch.equal(raw, to_float(x))
    assert len({view.numpy().tobytes() for view in (augmented, raw, cropped, hard, hardest)}) == 5
    for view in (augmented, cropped, hard, hardest):
        assert view.shape == raw.shape
        assert 0 <= float(view.min()) <= float(view.max()) <= 1
    levels = 255 * hard
    torch.testing.assert_close(levels, levels.round(), atol=1e-4, rtol=0)
    plain: Any = make("ccl-dc", optimizer="sgd", operations=0, chain_crop=1.0, flip=0.0)
    _, _, raw, cropped, hard = plain.views(x)
    assert float((hard - cropped).abs().max()) < 1 / 255
    for one, same, other in zip(cropped, raw, raw.flip(3), strict=True):
        assert min(float((one - same).abs().max()), float((one - other).abs().max())) < 1e-6


@pytest.mark.parametrize("growing", [False, True])
def test_the_mean_of_both_predicts(growing: bool) -> None:
    learner = make("ccl-dc", growing=growing, lr=0.05, optimizer="sgd")
    assert isinstance(learner, CCLDC)
    for number in range(5):
        learner.learn(*batch(number))
    x = batch(7)[0]
    first, second = (copy.deepcopy(net).eval() for net in (learner.network, learner.peer))
    one, other = first(to_float(x)).detach(), second(to_float(x)).detach()
    assert not torch.allclose(one, other, atol=1e-3)
    torch.testing.assert_close(learner.scores(x), (one + other) / 2, rtol=1e-4, atol=1e-4)


def test_the_networks_start_apart_and_one_step_moves_both() -> None:
    learner = ccl_dc(0)
    weights = [dict(net.named_parameters()) for net in (learner.network, learner.peer)]
    assert not torch.equal(weights[0]["head.weight"], weights[1]["head.weight"])
    before = [net["head.weight"].detach().clone() for net in weights]
    for number in range(2):
        learner.learn(*batch(number))
    assert not any(torch.equal(net["head.weight"], old) for net, old in zip(weights, before, strict=True))


def test_published_settings() -> None:
    config: Any = ocil.resolve("ccl-dc", "cifar100").learner
    assert (config.memory_batch, config.optimizer, config.lr, config.weight_decay) == (64, "adamw", 0.0005, 0.0001)
    assert (config.distillation, config.temperature, config.chain_crop) == (2, 4, 0.6)
    assert (config.operations, config.magnitude, config.per_batch) == (3, 15, True)
    assert (config.crop, config.flip, config.jitter, config.gray) == (0.2, 0.5, 0.8, 0.2)
    refused: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"distillation": -1.0},
        {"chain_crop": 0.0},
        {"magnitude": 31.0},
        {"operations": -1},
    ]
    for wrong in refused:
        with pytest.raises(OcilError, match=next(iter(wrong))):
            make("ccl-dc", **wrong)
