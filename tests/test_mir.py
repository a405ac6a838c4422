"""MIR: scores against a copy of the network that really takes the step, and steps by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods.base import Learner
from ocil.methods.mir import MIR
from ocil.networks import to_float
from tests.reference.datasets import patterned
from tests.test_methods import BATCH, SlowStep, batch, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")

both_statistics = pytest.mark.parametrize("statistics", ["batch", "running"])


def mir(steps: int = 4, **settings: float | str) -> MIR:
    learner = warm("mir", steps, **{"memory": 20, "memory_batch": 3, "candidates": 9, **settings})
    assert isinstance(learner, MIR)
    return learner


def scores_by_hand(network: torch.nn.Module, rate: float, x: Tensor, y: Tensor, statistics: str) -> list[float]:
    """Loss of each image after a real step of a copy, less its loss before; ``network`` has the gradients."""
    losses = []
    for step in (rate, 0.0):
        other = copy.deepcopy(network)
        with torch.no_grad():
            for moved, parameter in zip(other.parameters(), network.parameters(), strict=True):
                assert parameter.grad is not None
                moved.sub_(step * parameter.grad)
            other.train(statistics == "batch")
            logits = other(to_float(x))
        losses.append([float(F.cross_entropy(row[None], label[None])) for row, label in zip(logits, y, strict=True)])
    return [after - before for after, before in zip(*losses, strict=True)]


def with_gradients(learner: Learner) -> None:
    x, y = batch(4)
    learner.optimizer.zero_grad()
    F.cross_entropy(learner.network(to_float(x)), y).backward()


def arrays(network: torch.nn.Module) -> dict[str, Tensor]:
    found = dict(network.state_dict()) | {f"{name}.grad": p.grad for name, p in network.named_parameters()}
    return {name: value.clone() for name, value in found.items()}


@both_statistics
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_interference_is_what_a_real_step_would_do(statistics: str, rate: float) -> None:
    learner = mir(candidate_statistics=statistics, lr=rate)
    with_gradients(learner)
    x, y = learner.memory.images[:9], learner.memory.labels[:9]
    expected = scores_by_hand(learner.network, rate, x, y, statistics)
    got = learner.interference(to_float(x), y)
    assert not got.requires_grad
    torch.testing.assert_close(got, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert got.max() - got.min() > 1e-3


@both_statistics
def test_scoring_leaves_weights_and_gradients_alone(statistics: str) -> None:
    """Running statistics move by the one pass of the real network, or not at all."""
    learner = mir(candidate_statistics=statistics)
    with_gradients(learner)
    slow = copy.deepcopy(learner.network)
    before = arrays(learner.network)
    images = to_float(learner.memory.images[:9])
    learner.interference(images, learner.memory.labels[:9])
    changed = {name for name, value in arrays(learner.network).items() if not torch.equal(value, before[name])}
    assert learner.network.training
    if statistics == "running":
        assert changed == set()
    else:
        slow(images)
        for name, value in slow.named_buffers():
            torch.testing.assert_close(learner.network.get_buffer(name), value)
        assert changed == {name for name, _ in slow.named_buffers()}


@both_statistics
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_a_step_by_hand(statistics: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to replay; fewer images than candidates; as many as there are; a steady step."""
    learner = mir(steps, candidate_statistics=statistics, lr=0.07)
    slow = SlowStep(learner)
    draws = record(learner.memory, "retrieve", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)
    slow.minimise(F.cross_entropy(slow.logits(to_float(x)), y))
    (draw,) = draws
    if steps == 0:
        assert draw is None
    else:
        memory_x, memory_y = draw
        assert len(memory_y) == min(9, BATCH * steps)
        for parameter, slope in zip(slow.network.parameters(), slow.gradients, strict=True):
            parameter.grad = slope
        scores = scores_by_hand(slow.network, 0.07, memory_x, memory_y, statistics)
        worst = sorted(range(len(scores)), key=lambda i: -scores[i])[:3]
        if statistics == "batch":
            with torch.no_grad():
                slow.logits(to_float(memory_x))
        slow.minimise(F.cross_entropy(slow.logits(to_float(memory_x[worst])), memory_y[worst]))
    slow.agrees()


def test_all_are_replayed_while_there_are_fewer_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make("mir", memory=20, memory_batch=7)
    sizes: list[int] = []
    forward = learner.network.forward

    def watched(images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            sizes.append(len(images))
        logits: Tensor = forward(images)
        return logits

    monkeypatch.setattr(learner.network, "forward", watched)
    for number in range(3):
        learner.learn(*batch(number))
    assert sizes == [5, 5, 5, 5, 7]


def test_steady_once_there_are_more_images_than_candidates() -> None:
    learner = make("mir", memory=20, memory_batch=3, candidates=9)
    steady = []
    for number in range(3):
        steady.append(learner.shapes_are_static())
        learner.learn(*batch(number))
    assert [*steady, learner.shapes_are_static()] == [False, False, True, True]


@pytest.mark.slow
def test_replay_remembers() -> None:
    """Accuracy on the first of two tasks, over the last steps of the second: fine-tuning has lost most of it."""
    data = patterned(per_class=40)
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=2, batch_size=BATCH), seed=0)
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    old = y < 2
    accuracy = {}
    for name, settings in (("mir", {"candidates": 20}), ("fine-tune", {})):
        learner = make(name, data=data, width=4, memory=40, lr=0.01, **settings)
        hits = []
        for number, part in enumerate(stream):
            learner.learn(part.x, part.y)
            if number >= len(stream) - 8:
                hits.append((learner.scores(x[old]).argmax(1) == y[old]).double().mean())
        accuracy[name] = float(torch.stack(hits).mean())
    assert accuracy["mir"] > 0.7
    assert accuracy["mir"] > accuracy["fine-tune"] + 0.2


def test_settings() -> None:
    config = ocil.resolve("mir", "cifar100", memory=5000).learner
    assert (config.lr, config.memory_batch, config.candidates) == (0.1, 10, 50)  # type: ignore[attr-defined]
    assert config.candidate_statistics == "batch"  # type: ignore[attr-defined]
    with pytest.raises(OcilError, match=r"candidates = 4 .* memory_batch = 5"):
        make("mir", candidates=4, memory_batch=5)
    with pytest.raises(OcilError, match="candidate_statistics"):
        make("mir", candidate_statistics="none")
