"""Learners that are not told how many classes there are: what growth keeps, swept over the registry."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocil
from ocil import networks
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluation.evaluator import Evaluator
from ocil.learning import losses
from ocil.learning.sgd import SGD
from ocil.methods import METHODS, growth, method
from ocil.methods.base import Learner
from ocil.methods.config import Problem
from ocil.methods.dvc import GrowingPair, dvc_loss
from ocil.methods.er import ER
from ocil.methods.growth import capacity_for
from ocil.networks import NOT_MET, GrowingHead, to_float
from ocil.runs.config import RunConfig, resolve
from ocil.runs.environment import digest
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted
from ocil.runs.results import Result
from ocil.runs.stepper import Stepper, classes_to_meet
from ocil.runs.stream_run import ActiveStreamRun
from ocil.streams import DeviceData
from ocil.testing.subject import changed, end_task, frozen
from ocil.testing.watch import HostWatch
from tests.networks_to_try import MODULE, TINY
from tests.reference.datasets import noise, patterned
from tests.test_engine_gpu import FakeCapture, Replayed
from tests.test_methods import DISTINCT, FROZEN, GENTLE, QUICK, REHEARSES

pytestmark = pytest.mark.slow
CLASSES, BATCH = 6, 5
DATA = noise(60, CLASSES)
every_method = pytest.mark.parametrize("name", DISTINCT)
# More room for classes means more random numbers a step, and so other draws of the same kind.
DRAWS_BY_CAPACITY = {"aser"}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capacities 2, 4, 8, ..."""
    monkeypatch.setattr(growth, "FIRST_CAPACITY", 2)


def make(name: str, capacity: int = 2, data: Dataset = DATA, growing: bool = True, **chosen: Any) -> Learner:
    memory = {"memory": 12, "memory_batch": 6} if METHODS[name].memory else {}
    if name == "gdumb":
        memory["rehearsal_epochs"] = 2
    chosen = QUICK.get(name, {}) | memory | chosen
    network = {} if "width" in chosen else {"network": TINY}  # growth is that of the head
    config = resolve(name, "none", settings=network | {"batch_size": BATCH, "growing": growing} | chosen)
    return method(name).load()(config.learner, Problem(data.image_shape, capacity), seed=3)


def batch(number: int, classes: list[int], data: Dataset = DATA) -> tuple[Tensor, Tensor]:
    """Images of some classes only, over and over."""
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    mine = torch.isin(y, torch.tensor(classes)).nonzero().flatten()
    index = mine[torch.arange(number * BATCH, (number + 1) * BATCH) % len(mine)]
    return x[index], y[index]


def learn(learner: Learner, numbers: range, classes: list[int], data: Dataset = DATA) -> None:
    for number in numbers:
        x, y = batch(number, classes, data)
        learner.meet(y.tolist())
        learner.learn(x, y)


def grown(name: str, **chosen: Any) -> Learner:
    """Two tasks; it grows before the first, in the middle of the second, and has room for two more."""
    learner = make(name, **chosen)
    learn(learner, range(3), [0, 2])
    end_task(learner)
    learn(learner, range(2), [1])
    learn(learner, range(3), [1, 5])
    return learner


# What there is room for


def test_capacities_double() -> None:
    assert [capacity_for(n) for n in (0, 1, 2, 3, 4, 5, 9)] == [2, 2, 2, 4, 4, 8, 16]


@every_method
def test_meeting_marks_classes_and_makes_room(name: str) -> None:
    learner = make(name)
    assert learner.classes_met == []
    learner.meet([1])
    assert (learner.problem.classes, learner.classes_met) == (2, [1])
    before = frozen(learner)
    learner.meet(iter([1, 1]))
    learner.meet([])
    assert changed(before, learner.state()) == set()
    learner.meet({4, 2})
    assert (learner.problem.classes, learner.classes_met) == (8, [1, 2, 4])
    assert learner.met is not None
    assert learner.met.tolist() == [False, True, True, False, True, False, False, False]
    assert learner.scores(batch(0, [0])[0]).shape == (BATCH, 8)
    assert learner.class_count == 3
    with pytest.raises(OcilError, match="class -1"):
        learner.meet([-1])
    with pytest.raises(TypeError):
        learner.meet([0.5])  # type: ignore[list-item]


@every_method
def test_classes_that_nobody_announces_are_met_by_learning(name: str) -> None:
    alone, announced = make(name), make(name)
    before = frozen(alone)
    for number, classes in enumerate(([0, 2], [0, 2], [1, 5], [1, 5])):
        alone.learn(*batch(number, classes))
        learn(announced, range(number, number + 1), classes)
    for each in (alone, announced):
        end_task(each)
    assert alone.classes_met == [0, 1, 2, 5]
    kept = "sums" if name in FROZEN else "network."
    assert any(key.startswith(kept) for key in changed(before, alone.state()))
    assert digest(alone) == digest(announced)


def test_a_step_of_a_mixin_meets_classes_and_takes_names() -> None:
    class Step:
        def learn(self, x: Tensor, y: Tensor) -> None:
            super().learn(x=x, y=y)  # type: ignore[misc]

    class Mixed(Step, ER):
        pass

    learner = Mixed(ER.Config(memory=20, memory_batch=5, width=2, growing=True), make("er").problem)
    x, y = batch(0, [0, 2])
    learner.learn(x=x, y=y)
    assert learner.classes_met == [0, 2]
    assert torch.equal(learner.scores(x=x), learner.scores(x))


def test_a_step_does_not_look_at_labels_of_announced_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run promises it: on a GPU, reading them would wait for the device, and end a capture."""
    learner = make("er")
    learner.meet([0, 1])
    stepper = Stepper(learner, ocil.Stream(DATA, ocil.StreamConfig(tasks=2, batch_size=BATCH)))
    assert learner.classes_announced
    monkeypatch.setattr(Tensor, "tolist", lambda self: pytest.fail("the labels were read"))
    stepper.learn(0)
    learner.classes_announced = False
    with pytest.raises(pytest.fail.Exception, match="the labels were read"):
        stepper.learn(1)


@every_method
def test_without_growing_nothing_is_met(name: str) -> None:
    learner = make(name, CLASSES, growing=False)
    before = frozen(learner)
    learner.meet([99])
    assert changed(before, learner.state()) == set()
    assert learner.met is None
    assert learner.classes_met == list(range(CLASSES)) == list(range(int(learner.class_count)))
    assert not any("met" in key.split(".") for key in learner.state())


@every_method
def test_only_met_classes_are_predicted(name: str) -> None:
    learner = make(name)
    x = torch.from_numpy(DATA.test_x)
    learner.meet([3])
    assert learner.scores(x).argmax(1).tolist() == [3] * len(x)  # before anything was learned
    for classes in ([3], [3, 1], [5], [1, 5]):
        learn(learner, range(2), classes)
        scores = learner.scores(x)
        unmet = [c for c in range(learner.problem.classes) if c not in learner.classes_met]
        assert set(scores.argmax(1).tolist()) <= set(learner.classes_met)
        assert scores[:, unmet].eq(NOT_MET).all()
        end_task(learner)
    assert learner.classes_met == [1, 3, 5]
    assert int(learner.failed_at) == -1


@every_method
def test_an_unmet_class_is_not_predicted_where_logits_are_far_below_its_score(name: str) -> None:
    """As those of long vectors may be. Cosines and class means have no such scores."""
    learner = make(name)
    learner.meet([1, 3])
    with torch.no_grad():
        for network in networks.networks_in(learner):
            bias = getattr(network.head, "bias", None)
            if isinstance(bias, Tensor):
                bias.fill_(2 * NOT_MET)
    assert set(learner.scores(torch.from_numpy(DATA.test_x)).argmax(1).tolist()) <= {1, 3}


# Growth in steps and room from the start


def agree(a: Learner, b: Learner) -> None:
    one, other = a.state(), b.state()
    assert one.keys() == other.keys()
    for key in one.keys() - {"taken"}:  # AAER's holds features of a black image for a class without an anchor
        torch.testing.assert_close(one[key], other[key], rtol=2e-5, atol=2e-5, msg=f"{key}: {{}}".format)


# The experts of MOSE are not smooth: ocil.testing compares fewer of its steps.
@pytest.mark.parametrize("name", [name for name in DISTINCT if name not in {*DRAWS_BY_CAPACITY, "mose"}])
def test_growth_in_steps_equals_room_from_the_start(name: str) -> None:
    """Weights, momentum, memory, counts and scores. Only sums over more zeros are rounded elsewhere, which five steps
    of a tiny ResNet would enlarge ten million times, and those of a smooth network do not.
    """
    chosen: dict[str, Any] = {"network": f"{MODULE}smooth", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3}
    small, large = (make(name, capacity, **chosen) for capacity in (2, 8))
    for each in (small, large):
        learn(each, range(3), [0, 2])
        end_task(each)
        learn(each, range(2), [1, 5])
        each.review()
    assert (small.problem, small.classes_met) == (large.problem, large.classes_met)
    agree(small, large)
    x = torch.from_numpy(DATA.test_x)
    torch.testing.assert_close(small.scores(x)[:, :CLASSES], large.scores(x)[:, :CLASSES], rtol=1e-4, atol=1e-4)


@every_method
def test_growth_alone_changes_nothing(name: str) -> None:
    """Not one bit of what was there; new rows are 0, also those of momentum."""
    learner = make(name, 4, lr=0.01, momentum=0.9)  # at a larger rate, some processors' rounding leads to NaN
    learn(learner, range(3), [0, 2])
    end_task(learner)
    learn(learner, range(1), [2])
    before, x = frozen(learner), torch.from_numpy(DATA.test_x)
    scores = learner.scores(x)
    learner.grow(32)
    # AAER's anchors, one per class, are one batch: how their features are rounded depends on its size.
    near = 1e-5 if name == "aaer" else 0.0
    torch.testing.assert_close(learner.scores(x)[:, :4], scores, rtol=near, atol=near)
    after = learner.state()
    assert before.keys() == after.keys()
    resized = {key for key in after if after[key].shape != before[key].shape}
    own = {"scr": (), **dict.fromkeys(FROZEN, ("sums", "counts"))}.get(name, ("network.head.weight",))
    assert {"met", *own} <= resized
    assert any(key.startswith("optimizer.") for key in resized) == (name not in ("scr", *FROZEN))
    for key, value in after.items():
        assert torch.equal(value[:4] if key in resized else value, before[key]), key
        assert key not in resized or (len(value) == 32 and not value[4:].any()), key
    assert [id(p) for p in learner.optimizer.parameters] == [id(p) for p in learner.parameters() if p.requires_grad]
    learn(learner, range(1), [31 % CLASSES])


@settings(max_examples=25, deadline=None)
@given(
    st.permutations(range(CLASSES)),
    st.lists(st.integers(1, 3), max_size=CLASSES),
    st.sampled_from(["er-ace", "dvc", "ocm"]),
)
def test_the_order_in_which_classes_are_met_does_not_matter(order: list[int], sizes: list[int], name: str) -> None:
    learner, at_once = make(name, 2), make(name, capacity_for(CLASSES))
    waiting = list(order)
    for size in [*sizes, CLASSES]:
        learner.meet(waiting[:size])
        waiting = waiting[size:]
    at_once.meet(range(CLASSES))
    assert learner.problem == at_once.problem
    assert digest(learner) == digest(at_once)


def test_rows_are_drawn_like_pytorchs() -> None:
    head, other = GrowingHead(100, 400, seed=1), GrowingHead(100, 400, seed=2)
    for each in (head, other):
        each.meet(range(399))
    usual = networks.seeded(lambda: torch.nn.Linear(100, 400), 0)
    assert not torch.equal(head.weight, other.weight)
    pairs = ((head.weight, usual.weight), (head.bias, usual.bias))
    for mine, theirs in ((a.detach(), b.detach()) for a, b in pairs):
        assert float(mine.abs().max()) <= 0.1
        assert float(mine[:399].std()) == pytest.approx(float(theirs.std()), rel=0.1)
        assert not mine[399].any()
    assert len(torch.unique(head.weight[:399].flatten())) > 39000


def start_of(plain: Learner, key: str) -> Tensor:
    """What a learner keeps that was told the number of classes, as a growing one keeps it."""
    value = plain.state()[key]
    # DVC's joint network: [units, 2 C] there, [C, 2, units] here.
    return value.unflatten(1, (2, CLASSES)).permute(2, 1, 0) if key == "qnet.0.weight" else value


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in DISTINCT if name not in REHEARSES),  # those begin anew with other rows
        ("er-ace", {"head": "linear", "future": "unseen"}),
        ("afs", {"regulariser": "lsr"}),
        ("afs", {"loss": "ce"}),
        *(("afs", {"sample_value": value}) for value in ("smu", "gini", "entropy", "gen")),
    ],
)
def test_all_classes_met_from_the_start_is_no_growth(name: str, settings: dict[str, Any]) -> None:
    """Bit for bit, but for the first weights of the rows, which are drawn in another way: here they are copied."""
    plain, learner = make(name, CLASSES, growing=False, **settings), make(name, CLASSES, **settings)
    learner.meet(range(CLASSES))
    start = {key: start_of(plain, key) for key in plain.state_dict()}
    assert learner.load_state_dict(start, strict=False).unexpected_keys == []
    for each in (plain, learner):
        learn(each, range(2), list(range(CLASSES)))
        each.task_ended()
        learn(each, range(2, 5), list(range(CLASSES)))
        each.review()
    for key, value in learner.state().items():
        if key.split(".")[-1] != "met":
            assert torch.equal(value, start_of(plain, key)), key


# State


@every_method
def test_a_grown_learner_goes_on_exactly(name: str) -> None:
    """In fresh learners of other capacities."""
    learner = grown(name, momentum=0.9, weight_decay=1e-3)
    others = [make(name, capacity, momentum=0.9, weight_decay=1e-3) for capacity in (2, 32)]
    for other in others:
        other.load_state({key: value.contiguous() for key, value in frozen(learner).items()})
        assert (other.problem, other.classes_met) == (learner.problem, [0, 1, 2, 5])
        assert digest(other) == digest(learner)
    for each in (learner, *others):
        learn(each, range(2), [4, 0])
        end_task(each)
        each.review()
        learn(each, range(1), [3])
        each.meet([9])
    assert len({digest(each) for each in (learner, *others)}) == 1
    assert learner.problem.classes == 16


@every_method
def test_a_grown_learner_goes_back_to_a_small_state(name: str) -> None:
    learner = make(name)
    learn(learner, range(2), [0, 1])
    state = frozen(learner)
    learn(learner, range(3), [0, 4])
    first = digest(learner)
    learner.load_state({key: value.clone() for key, value in state.items()})
    assert (learner.problem.classes, learner.classes_met) == (2, [0, 1])
    learn(learner, range(3), [0, 4])
    assert digest(learner) == first


@pytest.mark.parametrize("name", [name for name in DISTINCT if name not in (*REHEARSES, *FROZEN)])
def test_momentum_survives_growth(name: str) -> None:
    learner = make(name, momentum=0.9)
    learn(learner, range(4), [0, 1])
    assert isinstance(learner.optimizer, SGD)
    velocity = {number: value.clone() for number, value in learner.optimizer.velocity.items()}
    assert velocity
    learner.meet([7])
    assert isinstance(learner.optimizer, SGD)
    for number, value in velocity.items():
        now = learner.optimizer.velocity[number]
        assert now.shape == learner.optimizer.parameters[number].shape
        assert torch.equal(now[: len(value)], value)
        assert not now[len(value) :].any()


@every_method
def test_global_generators_stay(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    grown(name).review()
    assert torch.equal(torch.get_rng_state(), before)


# Steps


@pytest.mark.parametrize("name", [name for name in DISTINCT if METHODS[name].capturable])
def test_steps_after_growth_read_nothing_and_keep_their_shapes(name: str) -> None:
    learner = make(name, memory=20) if METHODS[name].memory else make(name)
    learner.classes_announced = True
    for classes in ([0, 2], [1, 2, 5]):
        learn(learner, range(4), classes)
        assert learner.shapes_are_static()
        traces = []
        for number in range(2):
            x, y = batch(number, classes)
            with HostWatch() as watch:
                learner.learn(x, y)
            traces.append(watch.trace)
        assert len(traces[0]) > (10 if name in REHEARSES else 30)
        assert traces[0] == traces[1]
        end_task(learner)
    if METHODS[name].memory:
        learner.review_step(torch.arange(6))
        with HostWatch():
            learner.review_step(torch.arange(6))


@pytest.mark.parametrize(
    "settings", [{"regulariser": "lsr"}, *({"sample_value": value} for value in ("smu", "gini", "entropy", "gen"))]
)
def test_afs_reads_nothing_with_any_setting(settings: dict[str, Any]) -> None:
    learner = grown("afs", **settings)
    x, y = batch(3, [1, 5])
    with HostWatch():
        learner.learn(x, y)
    assert learner.last_loss.isfinite()


@every_method
def test_one_class_alone_can_be_learned(name: str) -> None:
    learner = make(name)
    learn(learner, range(4), [1])
    end_task(learner)
    learner.review()
    assert learner.last_loss.isfinite()
    assert int(learner.failed_at) == -1


@pytest.mark.parametrize("value", ["p_t", "smu", "gini", "entropy", "gen"])
def test_one_class_alone_has_a_finite_afs_loss(value: str) -> None:
    learner = make("afs", sample_value=value)
    learn(learner, range(4), [0])
    assert int(learner.failed_at) == -1


@every_method
def test_a_growing_learner_learns(name: str) -> None:
    """Four easy classes that appear one after the other and then mixed: far better than chance on test images."""
    data = patterned()
    needs: dict[str, dict[str, Any]] = {
        "gdumb": {"rehearsal_epochs": 20},
        **GENTLE,
    }
    memory = {"memory": 40} if METHODS[name].memory else {}
    settings: dict[str, Any] = {"lr": 0.1} | memory | needs.get(name, {})
    learner = make(name, data=data, **settings)
    for last in range(1, 4):
        learn(learner, range(4), list(range(last)), data)
    learn(learner, range(24), [0, 1, 2, 3], data)
    end_task(learner)
    assert learner.problem.classes == 4
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    assert (learner.scores(x).argmax(1) == y).double().mean() > 0.5


@pytest.mark.parametrize("name", [name for name in DISTINCT if METHODS[name].memory])
def test_a_review_when_asked_needs_no_task_end(name: str) -> None:
    learner = make(name, review_batch=5)
    for last in (1, 3, CLASSES):
        learn(learner, range(2), list(range(last)))
        before, steps = frozen(learner), int(learner.steps)
        learner.review()
        assert int(learner.steps) == steps + len(learner.memory) // 5 + (
            learner.config.review_keep_last and len(learner.memory) % 5 > 1
        )
        assert not any(key.startswith("memory.") for key in changed(before, learner.state()))
    assert learner.task_number == 0
    assert int(learner.failed_at) == -1


# Losses


MET = torch.tensor([True, False, True, True, False, True, False])


def masked_and_sliced(function: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(8, len(MET), generator=generator, dtype=dtype).mul_(3).requires_grad_()
    sliced = whole.detach()[:, MET].clone().requires_grad_()
    labels = torch.arange(8) % int(MET.sum())
    numbers = MET.nonzero().flatten()
    features = torch.randn(8, 3, generator=generator, dtype=dtype)
    values = (function(whole, numbers[labels], features, MET), function(sliced, labels, features, None))
    torch.testing.assert_close(*values)
    for value, logits in zip(values, (whole, sliced), strict=True):
        if value.requires_grad:
            (value * torch.linspace(1, 2, 8, dtype=value.dtype)).sum().backward()
            assert logits.grad is not None
    if whole.grad is not None and sliced.grad is not None:
        torch.testing.assert_close(whole.grad[:, MET], sliced.grad)
        assert not whole.grad[:, ~MET].any()


LOSSES: dict[str, Any] = {
    "vkd": lambda z, y, f, met: losses.virtual_distillation(z, y, reduction="none", met=met),
    "hot vkd": lambda z, y, f, met: losses.virtual_distillation(z, y, 1.0, 1.0, 0.3, reduction="none", met=met),
    "lsr": lambda z, y, f, met: losses.label_smoothing(z, y, 0.1, reduction="none", met=met),
    **{
        f"rfl {value}": lambda z, y, f, met, value=value: losses.revised_focal(
            z, y, value=value, features=f, reduction="none", met=met
        )
        for value in ("p_t", "smu", "gini", "entropy", "gen")
    },
    **{
        value: lambda z, y, f, met, value=value: losses.sample_value(z, value, f, met)
        for value in ("smu", "gini", "entropy", "gen")
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSSES)
def test_a_mask_is_as_if_the_logits_were_not_there(name: str, dtype: torch.dtype) -> None:
    masked_and_sliced(LOSSES[name], dtype)


@pytest.mark.parametrize("name", LOSSES)
def test_a_mask_of_all_changes_no_bit(name: str) -> None:
    z, f, y = torch.randn(9, 7, generator=torch.Generator().manual_seed(1)), torch.ones(9, 2), torch.arange(9) % 7
    assert torch.equal(LOSSES[name](z, y, f, torch.ones(7, dtype=torch.bool)), LOSSES[name](z, y, f, None))


def test_dvcs_loss_counts_met_classes_only() -> None:
    z = [torch.randn(4, len(MET), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    masked = [each.masked_fill(~MET, NOT_MET) for each in z]
    y = torch.tensor([0, 2, 3, 5])
    torch.testing.assert_close(
        dvc_loss(masked[0], masked[1], masked[2], y, 2.0, MET),
        dvc_loss(z[0][:, MET], z[1][:, MET], z[2][:, MET], torch.arange(4), 2.0),
    )


def test_dvcs_q_net_does_not_see_unmet_classes() -> None:
    pair = GrowingPair(4, 3, seed=0)
    pair.meet([1, 2])
    x = torch.randn(5, 8)
    other = x.clone()
    other[:, [0, 3, 4, 7]] = NOT_MET
    assert torch.equal(pair(x), pair(other))
    expected = x[:, 1:3] @ pair.weight[1:3, 0] + x[:, 5:7] @ pair.weight[1:3, 1] + pair.bias
    torch.testing.assert_close(pair(x), expected)


def test_an_unmet_class_has_no_gradient() -> None:
    learner = make("er", 4)
    learner.meet([0, 2])
    losses.cross_entropy(learner.network(to_float(batch(0, [0, 2])[0])), batch(0, [0, 2])[1]).backward()
    head = learner.network.head
    assert isinstance(head, GrowingHead)
    assert head.weight.grad is not None
    assert head.weight.grad.abs().sum(1).gt(0).tolist() == [True, False, True, False]
    assert head.out_features == 4


# Runs


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    data = patterned(per_class=6, classes=CLASSES)
    path = tmp_path_factory.mktemp("data") / "six.npz"
    data.save(path)
    return path, data


def config(path: Path, name: str, **chosen: Any) -> RunConfig:
    memory = {"memory": 16, "memory_batch": 6, "review": True, "review_batch": 8} if METHODS[name].memory else {}
    if name == "gdumb":
        memory["rehearsal_epochs"] = 2
    network = {"width": 2} if name == "er" else {"network": TINY}
    usual = network | {"tasks": 3, "batch_size": 4, "growing": True, "class_order": "seeded"}
    return resolve(name, str(path), settings=usual | QUICK.get(name, {}) | memory | chosen)


def test_growing_makes_another_cell(dataset: tuple[Path, Dataset]) -> None:
    growing, plain = config(dataset[0], "er"), config(dataset[0], "er", growing=False)
    assert growing.cell != plain.cell
    for each in (growing, plain):
        assert each.to_json()["learner"]["growing"] is each.learner.growing
        assert RunConfig.from_json(each.to_json()) == each


@pytest.mark.parametrize("boundary", ["clear", "blurry", "none", "iid"])
def test_classes_to_meet(dataset: tuple[Path, Dataset], boundary: str) -> None:
    stream = ocil.Stream(dataset[1], ocil.StreamConfig(tasks=3, batch_size=7, boundary=boundary))  # type: ignore[arg-type]
    found = classes_to_meet(stream)
    seen: set[int] = set()
    for part in stream:
        new = set(part.y.tolist()) - seen
        assert found.get(part.number, set()) == new
        seen |= new


class Watched(FakeCapture):
    """Says when a step is replayed after the tensors that it was recorded with have been replaced."""

    recorded: ClassVar[list[int]] = []

    def record(self, work: Callable[[], None]) -> Replayed:
        capacity = self.learner.problem.classes
        self.recorded.append(capacity)

        def checked() -> None:
            assert capacity == self.learner.problem.classes
            work()

        return super().record(checked)


@every_method
def test_captured_and_stopped_runs_come_to_the_same_end(
    name: str, dataset: tuple[Path, Dataset], tmp_path: Path
) -> None:
    """Captured steps are recorded again after growth. A stopped run goes on in a fresh learner that has to grow."""
    path, data = dataset
    chosen, resident = config(path, name, momentum=0.9, lr=0.01), DeviceData(data, "cpu")

    def begin(folder: str, stepper: type[Stepper] = Stepper) -> ActiveStreamRun:
        work = ActiveStreamRun(chosen, RunFolder(tmp_path / folder), data, resident, stepper)
        assert work.cursor or work.learner.problem.classes == 2
        return work

    def end(work: ActiveStreamRun) -> Result:
        for _ in work.steps():
            pass
        assert (work.learner.problem.classes, work.learner.classes_met) == (8, list(range(CLASSES)))
        return work.finish()

    whole = end(begin("whole"))
    Watched.recorded.clear()
    captured = end(begin("captured", Watched if METHODS[name].capturable else Stepper))  # as an engine chooses
    assert (8 in Watched.recorded) == METHODS[name].capturable
    asked = iter([False] * 5)
    with pytest.raises(Interrupted):
        list(begin("parts").steps(should_stop=lambda: next(asked, True)))
    for each in (captured, end(begin("parts"))):
        assert (each.digest, each.matrix, each.evaluations) == (whole.digest, whole.matrix, whole.evaluations)


def test_a_run_whose_groups_are_not_all_met_is_evaluated(dataset: tuple[Path, Dataset]) -> None:
    """A stream without boundaries may be looked at before a class of the group has come."""
    data = dataset[1]
    stream = ocil.Stream(data, ocil.StreamConfig(tasks=3, batch_size=5))
    learner = make("er", data=data)
    learn(learner, range(3), [0, 1], data)
    row = Evaluator(stream)(learner, 2)
    assert row.accuracy[1:] == [0.0, 0.0]
    assert row.mean_logit_new is None
    assert row.mean_weight_new == 0.0
    assert row.hard == 10  # of 12 samples of the group: two are left over by batches of 5, and never arrive
    assert Evaluator(stream)(learner, 0).mean_logit_new is not None


def test_the_command_line_takes_it(run_tiny: Any, tmp_path: Path) -> None:
    said = run_tiny("afs", settings=("growing=true",))
    assert said.code == 0, said
    (path,) = (tmp_path / "runs").glob("*-afs-*/seed-0/result.json")
    assert json.loads(path.read_text())["config"]["learner"]["growing"] is True


def test_growing_learners_can_be_copied() -> None:
    learner = grown("ocm")
    twin = copy.deepcopy(learner)
    for each in (learner, twin):
        learn(each, range(2), [3, 4])
    assert digest(twin) == digest(learner)
