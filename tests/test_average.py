"""The setting ``average``: scores come from an average of the weights, and training never sees it."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ocil.errors import OcilError
from ocil.learning import optimizers
from ocil.learning.average import WeightAverage
from ocil.methods import METHODS
from ocil.methods.base import Learner
from ocil.methods.config import Problem
from ocil.networks import Network, evaluating
from ocil.online.export import _frozen_copy, export
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.runs.build import check
from ocil.runs.config import resolve
from ocil.runs.fit import run_bytes
from ocil.serve.snapshot import Snapshots
from ocil.testing import method_checks
from ocil.testing.subject import changed, frozen
from tests.networks_to_try import TINY
from tests.reference.datasets import noise
from tests.test_methods import BATCH, DISTINCT, batch, learn, make

pytestmark = pytest.mark.usefixtures("quick_convolution")

REFUSE = ["aaer", "ccl-dc", "mkd", "mose", "ncm", "slda", "ranpac"]
TAKE = [name for name in DISTINCT if name not in REFUSE]


def weights(network: nn.Module) -> dict[str, Tensor]:
    """What is averaged: parameters and running statistics."""
    found = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {n: v.detach().clone() for n, v in found.items() if v.is_floating_point()}


def averaged(learner: Learner) -> Network:
    assert learner.average is not None
    return learner.average.network


def watched(learner: Learner) -> list[dict[str, Tensor]]:
    """The weights now, and after each step from now on."""
    seen = [weights(learner.network)]
    assert learner.optimizer.after_step is not None
    update = learner.optimizer.after_step

    def noted() -> None:
        update()
        seen.append(weights(learner.network))

    learner.optimizer.after_step = noted
    return seen


def is_weighted_sum(learner: Learner, seen: list[dict[str, Tensor]], decay: float) -> None:
    """Against the explicit sum: the weights of step s count by 1 - d_s times all later d."""
    decays = [min(decay, (1 + t) / (10 + t)) for t in range(len(seen) - 1)]
    assert decays[0] == 0.1
    shares = [np.prod(decays), *((1 - d) * np.prod(decays[t + 1 :]) for t, d in enumerate(decays))]
    assert sum(shares) == pytest.approx(1)
    found = weights(averaged(learner))
    for name, value in found.items():
        expected = sum(float(share) * step[name].double() for share, step in zip(shares, seen, strict=True))
        torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-5, msg=name)
    assert {"bn1.running_mean", "blocks.0.bn2.running_var", "head.bias"} <= found.keys()


def test_it_is_the_weighted_sum_of_all_steps() -> None:
    learner = make("er", average=0.7, review=True, width=2)
    seen = watched(learner)
    learn(learner, range(30))
    learner.review()
    assert len(seen) > 31  # the steps of a review count too
    is_weighted_sum(learner, seen, 0.7)


def test_one_that_restarts_is_the_weighted_sum_of_the_steps_since_the_review_began() -> None:
    learner = make("er", average=0.9, average_restarts=True, review=True, review_batch=5, width=2)
    seen = watched(learner)
    learn(learner, range(6))
    for _ in range(2):  # the second review begins anew too
        learner.review()
        reviewed = seen[-3:]  # the weights before it, and after its two steps
        is_weighted_sum(learner, reviewed, 0.9)
    learn(learner, range(6, 9))
    is_weighted_sum(learner, seen[-6:], 0.9)  # later steps of the stream count


@pytest.mark.parametrize("name", TAKE)
def test_training_never_sees_it_and_scores_do(name: str) -> None:
    plain, learner = make(name), make(name, average=0.9)
    for each in (plain, learner):
        learn(each, range(4))
        each.end_task()
    mine, theirs = learner.state(), plain.state()
    extra = {key for key in mine if key.startswith("average.")}
    assert mine.keys() - extra == theirs.keys()
    assert not changed(theirs, {key: mine[key] for key in theirs})
    x = batch(7)[0]
    assert not torch.equal(plain.scores(x), learner.scores(x))
    twin = make(name)
    twin.load_state({key: value for key, value in frozen(learner).items() if key not in extra})
    twin.network.load_state_dict(averaged(learner).state_dict())
    torch.testing.assert_close(learner.scores(x), twin.scores(x))  # class means too come from the averaged network


@pytest.mark.parametrize("name", REFUSE)
def test_methods_that_cannot_be_tested_by_it_refuse(name: str) -> None:
    memory: dict[str, Any] = {"memory": 20, "memory_batch": 5} if METHODS[name].memory else {}
    settings = {"average": 0.9, "network": "resnet18", "tasks": 2, **memory}
    with pytest.raises(OcilError, match=r"average = 0\.9 does not suit \w+: its "):
        check(resolve(name, settings=settings), noise())
    with pytest.raises(OcilError, match="does not suit"):
        Recipe(name, memory=20, settings={"average": 0.9}).config()
    config = METHODS[name].load().Config(average=0.9, **memory)
    with pytest.raises(OcilError, match="does not suit"):
        METHODS[name].load()(config, Problem((8, 8, 3), 4))


@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5])
def test_a_decay_out_of_bounds_is_refused(value: float) -> None:
    with pytest.raises(OcilError, match="average = "):
        make("er", average=value)


CHECKED = {
    "er": ("resumed-bit-for-bit", "states-are-copied", "steady-steps", "growth-alone", "growth-in-steps"),
    "scr": ("scores-are-pure", "resumed-after-a-task", "met-classes"),
    "er-ace": ("growth-alone", "grown-states"),
    "gdumb": ("steady-steps-on-the-memory",),
}


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{name}-{check}", marks=pytest.mark.slow)
        for name, chosen in CHECKED.items()
        for check in method_checks(name, network=TINY, average=0.9, **({"head": "cosine"} if name == "er-ace" else {}))
        if str(check) in chosen
    ],
)
def test_the_promises_of_a_method_hold_with_it(check: Any) -> None:
    check()


def test_a_new_network_begins_a_new_average() -> None:
    learner = make("gdumb", average=0.99)
    learn(learner, range(4))
    learner.end_task()
    assert learner.average is not None
    learner.task_ended()  # the network is drawn anew, and not trained yet
    assert int(learner.average.steps) == 0
    assert not changed(weights(learner.network), weights(averaged(learner)))


def test_it_has_only_reviewed_weights_if_it_restarts() -> None:
    """Against a learner whose average is made to begin at the review."""
    learner = make("er", average=0.9, average_restarts=True, review=True, width=2)
    learn(learner, range(6))
    begun = frozen(learner)
    learner.review()
    late = make("er", average=0.9, review=True, width=2)
    late.load_state(begun)
    assert late.average is not None
    late.average.restart()
    late.review()
    assert not changed(learner.state(), late.state())
    assert learner.average is not None
    assert int(learner.average.steps) == len(learner.memory) // learner.config.review_batch


def test_it_grows_with_the_head() -> None:
    learner = make("er", average=0.9, growing=True)
    x, y = batch(0)
    learner.learn(x, y % 2)
    learner.learn(x, y % 2 + 30)
    scores = learner.scores(x)
    assert scores.shape == (BATCH, 32)
    assert averaged(learner).head.weight.shape == learner.network.head.weight.shape
    with evaluating(averaged(learner)), torch.no_grad():
        torch.testing.assert_close(scores, averaged(learner)(learner.inputs(x)))


def test_only_what_trains_is_averaged_and_kept() -> None:
    learner = make("er", average=0.9, freeze="blocks.0", momentum=0.9, width=2)
    learn(learner, range(3))
    kept = {name.removeprefix("average.network.") for name in learner.state() if name.startswith("average.network.")}
    shared = {name for name in kept if name.startswith(("conv1.", "bn1.", "blocks.0."))}
    assert all(name.endswith("num_batches_tracked") for name in shared)
    assert {"blocks.1.bn1.running_mean", "head.weight"} <= kept
    copied = copy.deepcopy(learner)
    for each in (learner, copied):
        mine = each.network.get_submodule("blocks.0.conv1").weight
        assert averaged(each).get_submodule("blocks.0.conv1").weight is mine
    assert averaged(copied).get_submodule("conv1").weight is not learner.network.get_submodule("conv1").weight
    other = make("er", average=0.9, freeze="blocks.0", momentum=0.9, width=2)
    other.load_state(frozen(learner))
    for each in (learner, other, copied):
        learn(each, range(3, 5))
    assert not changed(learner.state(), other.state())
    assert not changed(learner.state(), copied.state())


def test_other_buffers_and_shared_weights() -> None:
    class Odd(Network):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(2, 2)
            self.two = nn.Linear(2, 2)
            self.two.weight = self.one.weight
            self.register_buffer("clock", torch.zeros(1))
            self.register_buffer("mask", torch.full((1,), -torch.inf), persistent=False)
            self.head = nn.Linear(2, 2)

    network = Odd()
    average = WeightAverage(network, 0.5)
    before = network.one.weight.detach().clone()
    with torch.no_grad():
        network.one.weight += 1
        network.get_buffer("clock").fill_(3)
    average.update()
    assert average.network.get_buffer("clock").item() == 3
    torch.testing.assert_close(average.network.get_submodule("two").weight, before + 0.9)
    assert average.network.get_buffer("mask").item() == -torch.inf


def test_a_review_of_another_optimizer_is_averaged_where_it_ends() -> None:
    """Its steps go a part of the way: the average takes the weights after that, once."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = optimizers.make("adam", [parameter], 0.1)
    seen: list[Tensor] = []
    optimizer.after_step = lambda: seen.append(parameter.detach().clone())
    parameter.grad = torch.ones(3)
    with optimizer.scaled(0.5):
        optimizer.step()
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], torch.full((3,), 0.95))
    optimizer.step()
    assert len(seen) == 2


def test_a_model_predicts_saves_and_is_copied_with_it(tmp_path: Path) -> None:
    model = Model(
        Recipe("er", memory=20, width=2, settings={"average": 0.9}),
        ImageFormat((12, 12, 3)),
    )
    x = noise(40, 4, (12, 12, 3)).train_x
    for first in range(0, 40, 10):
        model.learn(x[first : first + 10], [str(number % 4) for number in range(10)])
    found = model.probabilities(x[:5])
    learner = model.learner
    with torch.no_grad(), evaluating(averaged(learner)):
        expected = averaged(learner)(learner.inputs(torch.from_numpy(x[:5])))[:, :4].softmax(1)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5)
    model.save(tmp_path)
    np.testing.assert_array_equal(Model.load(tmp_path).probabilities(x[:5]), found)
    snapshots = Snapshots(model)
    with snapshots.reading() as snapshot:
        np.testing.assert_allclose(snapshot.probabilities(x[:5]), found, rtol=1e-6)
    for _ in range(4):  # the copies are written over in turn
        model.learn(x[:10], [str(number % 4) for number in range(10)])
        np.testing.assert_allclose(snapshots.publish(x[:5]).probabilities(x[:5]), model.probabilities(x[:5]), rtol=1e-6)


@pytest.mark.slow
def test_an_exported_program_is_the_averaged_network(tmp_path: Path) -> None:
    model = Model(
        Recipe("er", memory=20, settings={"average": 0.9, "precision": "bf16", "network": TINY}),
        ImageFormat((12, 12, 3)),
    )
    x = noise(40, 4, (12, 12, 3)).train_x
    for first in range(0, 40, 10):
        model.learn(x[first : first + 10], [str(number % 4) for number in range(10)])
    exported = _frozen_copy(model).learner
    assert exported.scoring_network.precision == "fp32"
    export(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    expected = exported.scores(torch.from_numpy(x[:3]))[:, :4].softmax(1)
    torch.testing.assert_close(program(torch.from_numpy(x[:3])), expected, rtol=1e-4, atol=1e-5)


def test_it_counts_in_the_memory_that_a_run_needs() -> None:
    data = noise()
    plain, more = (resolve("er", data.name, memory=20, settings={"average": value}) for value in (0, 0.9))
    assert run_bytes(more, data) > run_bytes(plain, data)
    assert plain.cell == resolve("er", data.name, memory=20).cell != more.cell
