"""Each check of ``ocil.testing`` can fail: one broken method or network per check. And how it reports."""

import copy
import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ocil
from ocil.learning import losses
from ocil.learning.memory import Memory
from ocil.methods.config import Problem
from ocil.methods.er import ER, ERConfig
from ocil.methods.fine_tune import FineTune
from ocil.methods.passes import Pass
from ocil.networks import to_float
from ocil.testing import ContractError, check_method, check_network, method_checks, network_checks
from ocil.testing.methods import promise as method_promise
from ocil.testing.networks import promise as network_promise
from ocil.testing.watch import watched
from tests.forking import Forked

pytestmark = pytest.mark.usefixtures("quick_convolution")


class Fine(ER):
    """Keeps every promise."""


@dataclass(frozen=True)
class LaxConfig(ERConfig):
    def __post_init__(self) -> None:
        pass


@dataclass(frozen=True)
class SetConfig(ERConfig):
    some: frozenset[int] = frozenset({1})


class Counting(Fine):
    count = 0

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.count += 1  # a later step depends on it, and it is not in the state
        self.optimizer.lr = 0.1 / self.count
        super().learn(x, y)


def broken(name: str) -> "type[ocil.Learner] | ocil.MethodInfo":
    """A method that breaks the promise of this name."""

    class Broken(Fine):
        """Breaks a promise."""

    def learning(step: Callable[[Any, Tensor, Tensor], None]) -> type[ocil.Learner]:
        return type("Broken", (Broken,), {"learn": step, "__doc__": "Broken."})

    plain = ER.learn

    def before(do: Callable[[Any, Tensor, Tensor], Any]) -> type[ocil.Learner]:
        """Does something before each step."""
        return learning(lambda self, x, y: (do(self, x, y), plain(self, x, y))[1])

    def having(**parts: Any) -> type[ocil.Learner]:
        return type("Broken", (Broken,), {"__doc__": "Broken.", **parts})

    if name == "complete-entry":
        return ocil.MethodInfo("broken", Broken, " ", "-")
    if name == "impossible-settings":
        return having(Config=LaxConfig)
    if name == "settings-as-json":
        return having(Config=SetConfig)
    if name in ("every-weight-learns", "easy-patterns"):
        return learning(lambda self, x, y: self.record_loss(losses.cross_entropy(self.network(to_float(x)), y)))
    if name == "a-smaller-batch":
        return before(lambda self, x, y: y.view(5))
    if name == "inputs-are-left-alone":
        return before(lambda self, x, y: x.zero_())
    if name == "reasons-as-text":
        return having(why_task_ends=classmethod(lambda cls, config: True))
    if name == "seeds":
        number = itertools.count()
        return before(lambda self, x, y: self.last_loss.fill_(next(number)) and self.steps.add_(next(number)))
    if name == "own-generators":
        return before(lambda self, x, y: torch.rand(1))
    if name == "scores-of-each-image":
        return having(scorer=lambda self: lambda x: self.network(to_float(x)) - self.network(to_float(x)).mean(0))
    if name == "scores-are-pure":
        return having(scorer=lambda self: (self.steps.add_(1), ER.scorer(self))[1])
    if name == "test-images-teach-nothing":

        def teaching(self: Any) -> Callable[[Tensor], Tensor]:
            scores = ER.scorer(self)
            return lambda x: (self.memory.add(x, scores(x).argmax(1)), scores(x))[1]

        return having(scorer=teaching)
    if name == "failed-scores":

        class Swapping(Broken):
            """Scores with a copy of its network, which stays in the place of it."""

            def scorer(self) -> Callable[[Tensor], Tensor]:
                def scores(x: Tensor) -> Tensor:
                    self.network = copy.deepcopy(self.network)
                    found: Tensor = self.network(to_float(x))
                    return found

                return scores

        return Swapping
    if name == "plain-state":
        return having(state=lambda self: {**ER.state(self), "count": 3})
    if name == "resumed-bit-for-bit":
        return Counting
    if name == "resumed-after-a-task":

        class Late(Broken):
            """Forgets what it was told at a task's end."""

            late = False

            def task_ended(self) -> None:
                super().task_ended()
                self.late = True

            def learn(self, x: Tensor, y: Tensor) -> None:
                plain(self, x, y.flip(0) if self.late else y)

        return Late
    if name == "states-are-copied":

        class Sharing(Broken):
            """Shares the memory with the state that it loaded."""

            def load_state(self, state: dict[str, Tensor], generators: bool = True) -> None:
                super().load_state(state, generators)
                self.memory.images = state["memory.images"]

        return Sharing
    if name == "memory-of-the-stream":
        return learning(lambda self, x, y: plain(self, x // 2, y))
    if name == "no-memory":

        class Hoarding(FineTune):
            """Keeps images although its entry denies it."""

            def __init__(self, config: Any, problem: Any, seed: int = 0, device: Any = "cpu") -> None:
                super().__init__(config, problem, seed, device)
                self.memory = Memory(4, problem.input_shape, self.rng["memory"])

            def learn(self, x: Tensor, y: Tensor) -> None:
                self.memory.add(x, y)
                super().learn(x, y)

        return ocil.MethodInfo("hoarding", Hoarding, "keeps images", "-", memory=False)
    if name == "reviews":
        return having(review_batches=lambda self: [torch.tensor([1, 1])])
    if name == "task-end-in-one-call":
        return having(task_ended=lambda self: None)
    if name == "lost-losses":
        return having(record_loss=lambda self, loss, *a, **parts: ER.record_loss(self, loss.nan_to_num(), *a))
    if name == "losses-add-up":
        return having(record_loss=lambda self, loss, *a, **parts: ER.record_loss(self, loss, *a, twice=2 * loss))
    if name == "passes-of-a-step":
        return having(passes=classmethod(lambda cls, config, batch_size, classes: [Pass(1)]))
    if name == "steady-steps":
        return before(lambda self, x, y: float(y.sum()))
    if name == "steady-steps-on-the-memory":
        return having(review_loss=lambda self, x, y: int(y[0]) + ER.review_loss(self, x, y))
    if name == "vectors":
        return before(lambda self, x, y: x.permute(0, 3, 1, 2))
    if name == "met-classes":
        return having(scorer=lambda self: lambda x: torch.zeros(len(x), self.problem.classes))
    if name == "growth-alone":
        return having(grow=lambda self, room: (ER.grow(self, room), self.network.head.weight.data.add_(1))[0])
    if name == "growth-in-steps":
        return before(lambda self, x, y: setattr(self.optimizer, "lr", 0.1 * self.problem.classes))
    if name == "grown-states":
        return having(load_classes=lambda self, met: ER.grow(self, len(met)))
    raise KeyError(name)


@pytest.mark.parametrize("promise", method_promise.all, ids=lambda promise: promise.name)
def test_a_broken_method_is_found(promise: Any) -> None:
    target = broken(promise.name)
    (check,) = [check for check in method_checks(target) if check.promise is promise]
    with pytest.raises(ContractError) as found:
        check()
    text = str(found.value)
    assert "\n" not in text
    assert re.search(rf"^[\w-]+: {promise.name}: {re.escape(promise.text)} But: .", text), text


class Body(nn.Module):
    """Keeps every promise of a network for vectors."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(input_shape[0], 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


def broken_bodies(name: str) -> Iterator[type[Body]]:
    """Networks of which one at least breaks the promise of this name."""

    def computing(forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> type[Body]:
        return type("Broken", (Body,), {"forward": forward, **parts})

    def starting(start: Callable[[Any], Any]) -> type[Body]:
        def init(self: Any, input_shape: tuple[int, ...]) -> None:
            Body.__init__(self, input_shape)
            start(self)

        return type("Broken", (Body,), {"__init__": init})

    number = itertools.count()
    if name == "shapes":
        yield computing(lambda self, x: self.layer(x)[:1])
    elif name == "seeds":
        yield starting(lambda self: nn.init.constant_(self.layer.bias, next(number)))
    elif name == "no-random-numbers":
        yield computing(lambda self, x: nn.functional.dropout(self.layer(x), training=self.training))
    elif name == "evaluation-is-pure":
        yield computing(lambda self, x: self.layer(x) - self.layer(x).mean(0))
    elif name == "gradients":
        yield starting(lambda self: setattr(self, "unused", nn.Linear(2, 2)))
    elif name == "steady-passes":
        yield computing(lambda self, x: self.layer(x) * float(x.mean()))
    elif name == "states":
        yield starting(lambda self: setattr(self, "scale", random.random()))
        yield computing(lambda self, x: self.layer(x) * (1 + next(number)))
    elif name == "copies":
        yield starting(lambda self: setattr(self, "lock", threading.Lock()))
    elif name == "frozen-backbone":
        moving = starting(lambda self: self.register_buffer("seen", torch.zeros(())))
        yield type("Broken", (moving,), {"forward": lambda self, x: (self.seen.add_(1), self.layer(x))[1]})
    elif name == "growing-head":
        yield from (computing(lambda self, x, s=s: self.layer(x) * 0 + s) for s in (1e9, -1e9))  # type: ignore[misc]
    elif name == "a-learner":
        yield computing(lambda self, x: self.layer(x) / (1 + (next(number) if self.training else 0)))


@pytest.mark.parametrize("promise", network_promise.all, ids=lambda promise: promise.name)
def test_a_broken_network_is_found(promise: Any) -> None:
    found = []
    for body in broken_bodies(promise.name):
        (check,) = [check for check in network_checks(body, (7,)) if check.promise is promise]
        try:
            check()
        except ContractError as error:
            found.append(str(error))
    assert found
    assert f"checked: {promise.name}: {promise.text} But: " in found[0]


def test_a_good_network_of_a_stranger() -> None:
    check_network(Body, (7,))
    check_network(ocil.NetworkInfo("body", Body, "a layer", "vectors"), (7,))
    assert "body" not in ocil.networks.NETWORKS


class Teacher(ER):
    """Keeps the network of a task's end, made anew each time."""

    teacher: nn.Module | None

    def __init__(self, config: Any, problem: Any, seed: int = 0, device: Any = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.teacher = None

    def learn(self, x: Tensor, y: Tensor) -> None:
        super().learn(x, y)
        if self.teacher is not None:
            self.last_loss.add_(self.teacher(to_float(x)).sum())

    def task_ended(self) -> None:
        super().task_ended()
        self.teacher = copy.deepcopy(self.network).requires_grad_(requires_grad=False)


class Replacing(ER):
    """Puts another tensor in the place of one that its steps read, and says that its steps are the same."""

    scale: Tensor

    def __init__(self, config: Any, problem: Any, seed: int = 0, device: Any = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.register_buffer("scale", torch.ones(()))

    def task_ended(self) -> None:
        super().task_ended()
        self.scale = self.scale / 2

    def step_variant(self) -> int:
        return 0


class Careless(ER):
    """Scores as it learns, with a head of its own that normalises by batches."""

    def __init__(self, config: Any, problem: Any, seed: int = 0, device: Any = "cpu") -> None:
        super().__init__(config, problem, seed, device)
        self.norm = nn.BatchNorm1d(self.network.feature_size)
        self.still = nn.BatchNorm1d(3).eval()

    def scorer(self) -> Callable[[Tensor], Tensor]:
        assert not self.norm.training  # class means may be computed here
        return lambda x: self.network.head(self.norm(self.network.features(to_float(x))))


@pytest.mark.parametrize("name", ["scores-are-pure", "test-images-teach-nothing", "failed-scores"])
def test_a_scorer_that_does_not_think_of_evaluation_mode(name: str) -> None:
    (check,) = [check for check in method_checks(Careless) if str(check) == name]
    check()
    learner = Careless(ERConfig(memory=10, width=2), Problem((8, 8, 3), 2))
    scores = learner.scores(torch.zeros((3, 8, 8, 3), dtype=torch.uint8))
    assert not scores.requires_grad
    assert learner.norm.training
    assert not learner.still.training


def test_a_teacher_made_at_a_task_end() -> None:
    """By default steps are captured again after it; that a new learner has none is said in words."""
    checks = {str(check): check for check in method_checks(Teacher)}
    checks["steady-steps"]()
    with pytest.raises(ContractError, match=r"what was saved has teacher, which a new Teacher does not have: .*init"):
        checks["resumed-after-a-task"]()


def test_steps_that_change_at_a_task_end_are_found() -> None:
    """A captured step would go on as before."""
    same = type("Same", (Teacher,), {"step_variant": lambda self: 0})
    once = type("Once", (Teacher,), {"step_variant": lambda self: min(self.task_number, 1)})
    wrong = {
        same: "steps are others after a task's end",
        once: "puts another tensor in the place of teacher.conv1.weight",
        Replacing: "puts another tensor in the place of scale: copy into it",
    }
    for kind, words in wrong.items():
        (check,) = [check for check in method_checks(kind) if str(check) == "steady-steps"]
        with pytest.raises(ContractError, match=words):
            check()


def test_all_broken_promises_in_one_error() -> None:
    with pytest.raises(ContractError) as found:
        check_network(
            type("Odd", (Body,), {"forward": lambda self, x: self.layer(x) * float(x.mean() + torch.rand(1))}), (7,)
        )
    lines = str(found.value).splitlines()
    assert len(lines) > 1
    assert {"no-random-numbers", "steady-passes"} <= {line.split(": ")[1] for line in lines}


def test_an_error_that_stops_many_checks_is_said_once() -> None:
    class Failing(Fine):
        """Cannot learn."""

        def learn(self, x: Tensor, y: Tensor) -> None:
            raise RuntimeError("the first line\n and the second.")

    with pytest.raises(ContractError) as found:
        check_method(ocil.MethodInfo("failing", Failing, " ", "-"))
    entry, error = str(found.value).splitlines()
    assert entry.startswith("failing: complete-entry: ")
    stopped = error.removeprefix("failing: RuntimeError: the first line and the second. This stopped 26 checks: ")
    names = stopped.rstrip(".").split(", ")
    assert len(names) == 26
    assert set(names) < {str(check) for check in method_checks(Failing)}

    def narrow(input_shape: tuple[int, ...]) -> nn.Module:
        return nn.Linear(1, 2)

    with pytest.raises(ContractError, match=r"^checked: OcilError: .* This stopped 11 checks: shapes, .*\.$") as one:
        check_network(narrow, (7,))
    assert "\n" not in str(one.value)
    assert isinstance(one.value.__cause__, ContractError)


def test_settings_of_the_checks() -> None:
    (check, *_) = method_checks(Fine, memory=30)
    assert check.subject.make().config.memory == 30
    with pytest.raises(ocil.OcilError, match="unknown setting 'memmory'"):
        check_method(Fine, memmory=3)
    (vectors,) = [check for check in method_checks("er", test_flip=True) if str(check) == "vectors"]
    vectors()  # which have no mirror image
    assert str(method_checks("ER")[0].subject) == "er"
    assert [str(c) for c in method_checks(Fine)] == [str(c) for c in method_checks("er")]


@pytest.mark.slow
def test_pytest_is_not_needed(fork_python: Callable[..., Forked]) -> None:
    script = "import sys, ocil.testing; assert not {'pytest', '_pytest', 'hypothesis'} & set(sys.modules)"
    _, err = (process := fork_python("-c", script)).communicate()
    assert process.returncode == 0, err


def test_a_check_names_the_line_that_breaks_a_promise() -> None:
    """PyTorch's name of an operator says nothing to somebody who has called ``retrieve``."""

    class Greedy(Fine):
        """Draws more than it says."""

        def learn(self, x: Tensor, y: Tensor) -> None:
            self.memory.retrieve(15)
            super().learn(x, y)

    checks = {str(check): check for check in method_checks(Greedy)}
    with pytest.raises(
        ContractError, match=r"`shapes_are_static\(\)` is true.* in test_testing\.py, line \d+: self\.mem"
    ):
        checks["steady-steps"]()


def test_what_a_check_of_passes_says_can_be_copied_into_the_method() -> None:
    class Silent(Fine):
        """Does not say what it costs."""

        @classmethod
        def passes(cls, config: Any, batch_size: int, classes: int) -> list[Pass]:
            return [Pass(batch_size), Pass(3, trains=False)]

    checks = {str(check): check for check in method_checks(Silent)}
    said = (
        r"lists \[Pass\(5\), Pass\(3, trains=False\)\]; measured are \[Pass\(5\), Pass\(8\)\] with a full memory of 12"
    )
    with pytest.raises(ContractError, match=said):
        checks["passes-of-a-step"]()


@pytest.mark.parametrize(
    ("write", "passes"),
    [
        (lambda y: F.one_hot(y, 9), True),
        (lambda y: F.one_hot(y, num_classes=9), True),
        (lambda y: F.one_hot(y), False),
        (lambda y: F.one_hot(y, -1), False),
        (lambda y: F.one_hot(y, num_classes=-1), False),
        (lambda y: F.one_hot(y, 9) * int(y.max()), False),
    ],
)
def test_one_hot_needs_the_number_of_classes(write: Callable[[Tensor], Tensor], passes: bool) -> None:
    """With it, PyTorch reads the labels on a CPU alone, to check them; on a GPU a step that is captured may have it."""

    class Hot(Fine):
        """Weighs the stream by class."""

        def learn(self, x: Tensor, y: Tensor) -> None:
            assert write(y).shape[0] == len(y)
            super().learn(x, y)

    (check,) = [check for check in method_checks(Hot) if str(check) == "steady-steps"]
    if passes:
        check()
    else:
        with pytest.raises(ContractError, match=r"reads back to the host in test_testing\.py, line \d+: .*\(y"):
            check()


def test_one_hot_still_refuses_labels_that_are_no_classes() -> None:
    with pytest.raises(RuntimeError, match="Class values must be smaller"):
        watched(lambda: F.one_hot(torch.tensor([4]), 4))
