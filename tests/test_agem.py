"""A-GEM: the projection in exact fractions, a step by hand, and what the constraint promises."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods.agem import AGEM, flat, project
from ocil.methods.base import Learner
from ocil.networks import to_float
from ocil.testing.watch import HostWatch
from tests.reference.datasets import patterned
from tests.test_methods import BATCH, SlowStep, batch, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")

quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)
whole = st.integers(-9, 9)
pairs = st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(whole, min_size=n, max_size=n)] * 2))


def after_a_task(**changes: float) -> AGEM:
    learner = warm("agem", 4, **changes)
    learner.task_ended()
    assert isinstance(learner, AGEM)
    return learner


def two_tasks(learner: Learner, *wanted: bool) -> None:
    """Two classes, then two others: the tasks that are wanted."""
    stream = ocil.Stream(DATA, ocil.StreamConfig(tasks=2, batch_size=BATCH), seed=0)
    tasks_ended = 0
    for part in stream:
        if wanted[tasks_ended]:
            learner.learn(part.x, part.y)
            if part.ends_task:
                learner.task_ended()
        tasks_ended += part.ends_task


DATA = patterned(per_class=30)
TEST_X, TEST_Y = torch.from_numpy(DATA.test_x), torch.from_numpy(DATA.test_y)


# The projection


@quick
@given(pairs)
def test_projection_in_exact_fractions(vectors: tuple[list[int], list[int]]) -> None:
    gradient, reference = ([Fraction(value) for value in vector] for vector in vectors)
    inner = sum(a * b for a, b in zip(gradient, reference, strict=True))
    expected = gradient
    if inner < 0:
        square = Fraction(sum(b * b for b in reference))
        expected = [a - inner / square * b for a, b in zip(gradient, reference, strict=True)]
        assert sum(a * b for a, b in zip(expected, reference, strict=True)) == 0
    got = project(*(torch.tensor(vector, dtype=torch.float64) for vector in vectors))
    torch.testing.assert_close(got, torch.tensor([float(value) for value in expected], dtype=torch.float64))


@quick
@given(st.integers(0, 2**32), st.floats(-1, 1))
def test_projection_is_the_nearest_vector_that_agrees(seed: int, lean: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    reference, noise, other = torch.randn(3, 20, generator=draw, dtype=torch.float64)
    gradient = noise + 3 * lean * reference
    projected = project(gradient, reference)
    assert projected @ reference >= -1e-9
    if gradient @ reference >= 0:
        assert torch.equal(projected, gradient)
    else:
        allowed = other if other @ reference >= 0 else -other
        assert (projected - gradient).norm() <= (allowed - gradient).norm() + 1e-9
        torch.testing.assert_close(project(projected, reference), projected)


@pytest.mark.parametrize("size", [0.0, 1e-30])
def test_a_reference_without_a_gradient_constrains_nothing(size: float) -> None:
    gradient = torch.tensor([1.0, -2.0])
    assert torch.equal(project(gradient, torch.tensor([-size, 0.0])), gradient)


# The step


def gradient_by_hand(slow: SlowStep, x: Tensor, y: Tensor) -> list[Tensor]:
    loss = F.cross_entropy(slow.logits(to_float(x)), y)
    slow.total = float(loss.detach())
    return list(torch.autograd.grad(loss, list(slow.network.parameters())))


def test_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and running statistics: the reference batch passes in training mode too. Both cases have to come up."""
    learner = after_a_task(lr=0.07)
    draws = record(learner.memory, "retrieve", monkeypatch)
    conflicts = set()
    for number in range(4, 12):
        slow = SlowStep(learner)
        x, y = batch(number)
        learner.learn(x, y)
        stream = gradient_by_hand(slow, x, y)
        loss = slow.total
        reference = gradient_by_hand(slow, *draws[-1])
        inner = sum(float((a * b).sum()) for a, b in zip(stream, reference, strict=True))
        square = sum(float((b * b).sum()) for b in reference)
        share = inner / square if inner < 0 else 0.0
        slow.gradients = [a - share * b for a, b in zip(stream, reference, strict=True)]
        slow.total = loss
        slow.agrees()
        conflicts.add(inner < 0)
    assert conflicts == {True, False}


def test_no_step_raises_the_reference_loss_to_first_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The move of the weights has no part along the reference gradient, where fine-tuning's has a large one."""
    learner, plain = (make(name, data=DATA, memory=40, width=4) for name in ("agem", "fine-tune"))
    two_tasks(learner, True, False)
    draws = record(learner.memory, "retrieve", monkeypatch)
    risen = []
    for number in range(5):
        part = torch.arange(4 * number * BATCH, 4 * (number + 1) * BATCH)
        x, y = (torch.from_numpy(array)[part] for array in (DATA.train_x, DATA.train_y))
        x, y = x[y >= 2][:BATCH], y[y >= 2][:BATCH]
        plain.network.load_state_dict(learner.network.state_dict())
        slow = SlowStep(learner)
        before = flat(slow.network.parameters()).detach()
        learner.learn(x, y)
        plain.learn(x, y)
        gradient_by_hand(slow, x, y)
        reference = flat(gradient_by_hand(slow, *draws[-1]))
        unit = reference / reference.norm()
        constrained, free = (
            float((flat(each.network.parameters()).detach() - before) @ unit) for each in (learner, plain)
        )
        assert constrained < 1e-5
        risen.append(free)
    assert max(risen) > 1e-3


def test_the_first_task_is_fine_tuning_while_the_memory_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, plain = (make(name, data=DATA, memory=40) for name in ("agem", "fine-tune"))
    draws = record(learner.memory, "retrieve", monkeypatch)
    for each in (learner, plain):
        two_tasks(each, True, False)
    assert draws == []
    assert len(learner.memory) == 40
    assert torch.equal(flat(learner.network.parameters()), flat(plain.network.parameters()))
    for each in (learner, plain):
        two_tasks(each, False, True)
    assert not torch.equal(flat(learner.network.parameters()), flat(plain.network.parameters()))


def test_the_form_changes_once() -> None:
    learner = make("agem")
    forms = []
    for _ in range(4):
        forms.append(learner.step_variant())
        learner.task_ended()
    assert forms == [0, 1, 1, 1]


def test_a_constrained_step_reads_nothing() -> None:
    learner = after_a_task()
    learner.learn(*batch(4))
    traces = []
    for number in (5, 6):
        x, y = batch(number)
        with HostWatch() as watch:
            learner.learn(x, y)
        traces.append(watch.trace)
    assert traces[0] == traces[1]


def test_a_state_after_a_task_goes_on_with_the_constraint() -> None:
    learner, other = after_a_task(), make("agem")
    other.load_state({name: value.clone() for name, value in learner.state().items()})
    assert other.step_variant() == 1
    for each in (learner, other):
        each.learn(*batch(5))
    assert torch.equal(flat(learner.network.parameters()), flat(other.network.parameters()))


# What it is for


def test_the_current_task_is_learned() -> None:
    """It hardly remembers, by design: the constraint is one inequality for the mean of ten samples."""
    learner = make("agem", data=DATA, memory=40, width=4)
    two_tasks(learner, True, True)
    new = TEST_Y >= 2
    assert (learner.scores(TEST_X[new]).argmax(1) == TEST_Y[new]).double().mean() > 0.8


def test_streams_without_task_ends_are_refused() -> None:
    with pytest.raises(OcilError, match="task ends"):
        ocil.resolve("agem", settings={"boundary": "none"})


def test_published_settings() -> None:
    config = ocil.resolve("agem", "cifar100", memory=5000).learner
    assert (config.lr, config.memory_batch, config.weight_decay, config.review) == (0.1, 10, 0.0, False)
