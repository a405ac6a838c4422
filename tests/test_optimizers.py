"""Optimisers by name against PyTorch's own, and what learners and engines ask of them."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ocil
from ocil.errors import OcilError
from ocil.learning import optimizers
from ocil.learning.optimizers import TorchOptimizer
from ocil.learning.sgd import SGD
from ocil.methods import METHODS, MethodInfo
from ocil.methods.base import Learner
from ocil.methods.er import ER
from ocil.runs.build import make_learner
from ocil.runs.captured import can_be_captured
from ocil.runs.config import resolve
from ocil.testing.watch import HostWatch
from tests.conftest import Call, one_error
from tests.networks_to_try import MODULE, TINY
from tests.reference.datasets import noise
from tests.test_networks_any import IMAGES, batch, learn, make

SPECS = [
    ("adam", torch.optim.Adam, {}),
    ("Adam(betas=(0.8, 0.95), amsgrad=True)", torch.optim.Adam, {"betas": (0.8, 0.95), "amsgrad": True}),
    ("adamw", torch.optim.AdamW, {}),
    ("adamw(eps=1e-6, weight_decay=0.1)", torch.optim.AdamW, {"eps": 1e-6, "weight_decay": 0.1}),
    ("sgd(momentum=0.9, nesterov=True)", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    ("rmsprop(momentum=0.9)", torch.optim.RMSprop, {"momentum": 0.9}),
    ("nadam", torch.optim.NAdam, {}),
    ("radam", torch.optim.RAdam, {}),
    ("adagrad(initial_accumulator_value=0.5)", torch.optim.Adagrad, {"initial_accumulator_value": 0.5}),
    ("adadelta", torch.optim.Adadelta, {}),
    ("adamax", torch.optim.Adamax, {}),
    ("asgd", torch.optim.ASGD, {}),
    ("rprop", torch.optim.Rprop, {}),
    ("adafactor", torch.optim.Adafactor, {}),
]
every_optimizer = pytest.mark.parametrize("spec", [spec for spec, *_ in SPECS])


def start() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (4,))]


def slopes(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def made(spec: str, parameters: list[nn.Parameter], lr: float = 0.01) -> TorchOptimizer:
    optimizer = optimizers.make(spec, parameters, lr)
    assert isinstance(optimizer, TorchOptimizer)
    return optimizer


def take(optimizer: optimizers.Optimizer, seeds: range) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        slopes(optimizer.parameters, seed)
        optimizer.step()


def same(ours: list[nn.Parameter], theirs: list[nn.Parameter]) -> bool:
    return all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(("spec", "kind", "options"), SPECS, ids=[spec for spec, *_ in SPECS])
def test_the_steps_of_pytorch(spec: str, kind: Any, options: dict[str, Any]) -> None:
    ours, theirs = start(), start()
    take(made(spec, ours), range(5))
    other = kind(theirs, lr=0.01, **options)
    for seed in range(5):
        slopes(theirs, seed)
        other.step()
    assert same(ours, theirs)


def test_sgd_without_options_is_ours() -> None:
    for spec in ("sgd", "SGD", " sgd ", "sgd()"):
        assert isinstance(optimizers.make(spec, start(), 0.1, 0.9), SGD)


def test_weight_decay_is_a_setting_and_an_option_wins() -> None:
    def decay(spec: str, setting: float) -> float:
        optimizer = optimizers.make(spec, start(), 0.1, weight_decay=setting)
        assert isinstance(optimizer, TorchOptimizer)
        return float(optimizer.optimizer.defaults["weight_decay"])

    assert decay("adamw", 0) == 0.01  # PyTorch's own
    assert decay("adamw", 0.2) == 0.2
    assert decay("adamw(weight_decay=0)", 0.2) == 0
    assert decay("adam", 0) == 0


@every_optimizer
def test_goes_on_from_its_state(spec: str) -> None:
    first = made(spec, start())
    take(first, range(3))
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in first.parameters]
    second = made(spec, copies)
    second.load_state({name: value.clone() for name, value in first.state().items()})
    for optimizer in (first, second):
        take(optimizer, range(3, 6))
    assert same(first.parameters, second.parameters)
    assert first.state().keys() == second.state().keys()
    wrong = {name: torch.zeros(7, 7) if value.ndim else value for name, value in first.state().items()}
    with pytest.raises(ValueError, match="has shape"):
        second.load_state(wrong)
    with pytest.raises((LookupError, ValueError)):
        second.load_state({"9.step": torch.zeros(())})


@every_optimizer
def test_a_reset_forgets_everything_in_place(spec: str) -> None:
    used, new = made(spec, start()), made(spec, start())
    take(used, range(3))
    tensors = used.state()
    used.reset()
    with torch.no_grad():
        for parameter, fresh in zip(used.parameters, new.parameters, strict=True):
            parameter.copy_(fresh)
    for optimizer in (used, new):
        take(optimizer, range(7, 9))
    assert same(used.parameters, new.parameters)
    assert all(used.state()[name] is value for name, value in tensors.items())  # captured steps use these tensors


@pytest.mark.parametrize("spec", [spec for spec, *_ in SPECS if "adafactor" not in spec])
def test_growth_keeps_states_and_new_rows_begin_anew(spec: str) -> None:
    """As if the new rows had always been there, with gradients of 0."""
    small, large = start(), start()
    with torch.no_grad():
        large = [nn.Parameter(torch.cat([one, torch.zeros_like(one)])) for one in large]
    first, whole = made(spec, small), made(spec, large)
    for seed in range(3):
        slopes(small, seed)
        for a, b in zip(small, large, strict=True):
            assert a.grad is not None
            b.grad = torch.cat([a.grad, torch.zeros_like(a)])
        first.step()
        whole.step()
    grown = made(spec, [nn.Parameter(torch.cat([one.detach(), torch.zeros_like(one)])) for one in small])
    grown.go_on_from(first)
    for optimizer in (grown, whole):
        take(optimizer, range(3, 5))
    for a, b in zip(grown.parameters, whole.parameters, strict=True):
        torch.testing.assert_close(a[:4], b[:4])
        if "rprop" not in spec:  # its step size also grows where a gradient is 0
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("adan", "unknown optimizer 'adan'. Did you mean 'adam'?"),
        ("adam(beta=(0.9, 0.99))", ": Adam got an unexpected keyword argument 'beta'"),
        ("adam(betas=(2, 3))", "Invalid beta"),
        ("adam(betas=0.9)", "optimizer = adam(betas=0.9): "),
        ("adam(eps='x')", "optimizer = adam(eps='x'): "),
        ("adam(lr=0.1)", "use the setting lr"),
        ("adam(capturable=True)", "ocil sets it on a GPU"),
        ("adam(differentiable=True)", "cannot have the option differentiable"),
        ("adam(maximize=True)", "it would make the loss larger"),
        ("adam(foreach=True, fused=True)", "fused"),
        ("lbfgs", "evaluates the loss several times"),
        ("sparseadam", "needs sparse gradients"),
        ("muon", "takes matrices alone"),
        ("optimizer", "unknown optimizer"),
        ("adam(", "is not a NAME"),
        ("adam(0.9)", "cannot be read"),
        ("", "is not a NAME"),
    ],
)
def test_wrong_optimisers_are_one_line(spec: str, reason: str) -> None:
    with pytest.raises(OcilError) as raised:
        make("er", TINY, IMAGES, optimizer=spec)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_optimiser_of_pytorch_as_it_is_is_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(ER):
        def make_optimizer(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    monkeypatch.setitem(METHODS, "mine", MethodInfo("mine", Mine, "mine", "-"))
    with pytest.raises(OcilError, match="the optimiser of mine comes from "):
        make_learner("mine", noise(classes=2), memory=20, width=1)


def test_wrong_optimisers_on_the_command_line(run_tiny: Call) -> None:
    said = one_error(run_tiny("er", settings=("optimizer=adam(betas=(2, 3))",)))
    assert said.startswith("optimizer = adam(betas=(2, 3)): Invalid beta")
    assert "momentum = 0.9 is for sgd alone" in one_error(run_tiny("er", settings=("optimizer=adam", "momentum=0.9")))
    assert "weight_decay" in one_error(run_tiny("er", settings=("optimizer=rprop", "weight_decay=0.1")))


def test_the_learning_rate_is_pytorchs_unless_it_is_given() -> None:
    def rate(**settings: Any) -> float:
        return resolve("er", "cifar100", settings=settings).learner.lr

    assert rate() == 0.1
    assert rate(optimizer="sgd") == 0.1
    assert rate(optimizer="adamw(eps=1e-6)") == 0.001
    assert rate(optimizer="nadam") == 0.002
    assert rate(optimizer="adam", lr=0.02) == 0.02


# Reviews


def test_a_review_at_a_tenth_of_the_rate_moves_a_tenth_as_far() -> None:
    """Adam divides by the size of the gradients: a tenth of the loss alone would change nothing."""

    def moved(spec: str, scale: float) -> Tensor:
        learner = make("er", TINY, IMAGES, optimizer=spec, lr=0.01, review_lr_scale=scale)
        learn(learner, IMAGES, range(4))
        before = torch.cat([p.detach().flatten() for p in learner.optimizer.parameters])
        learner.review_step(torch.arange(8))
        return torch.cat([p.detach().flatten() for p in learner.optimizer.parameters]) - before

    for spec in ("sgd", "adam", "adamw", "rprop"):
        torch.testing.assert_close(moved(spec, 0.1), 0.1 * moved(spec, 1.0), rtol=1e-2, atol=2e-7)
    assert not moved("adam", 0.0).any()


@pytest.mark.parametrize("spec", ["adam", "adamw(weight_decay=0.1)", "sgd(momentum=0.9)", "adagrad"])
def test_a_scaled_step_is_one_at_that_learning_rate(spec: str) -> None:
    scaled, plain = made(spec, start(), 0.01), made(spec, start(), 0.01)
    for optimizer in (scaled, plain):
        take(optimizer, range(3))
    for group in plain.optimizer.param_groups:
        group["lr"] = 0.001
    slopes(scaled.parameters, 3)
    with scaled.scaled(0.1) as factor:
        assert factor == 1
        scaled.step()
    take(plain, range(3, 4))
    for a, b in zip(scaled.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, plain.state()[name]) for name, value in scaled.state().items())


def test_the_scale_of_sgd_is_in_its_gradients() -> None:
    """As released and as before, bit for bit."""
    parameter = nn.Parameter(torch.tensor([0.3, 0.7]))
    optimizer = SGD([parameter], 0.1)
    with optimizer.scaled(0.1) as factor:
        (factor * parameter.square().sum()).backward()
        assert parameter.grad is not None
        wanted = parameter.detach() + parameter.grad * -0.1
        optimizer.step()
    assert torch.equal(parameter.detach(), wanted)
    assert factor == 0.1


# Captured steps


def test_which_steps_can_be_captured() -> None:
    def captured(spec: str, name: str = "er") -> bool:
        return can_be_captured(resolve(name, "cifar100", settings={"optimizer": spec}))

    assert all(captured(spec) for spec in ("sgd", "sgd(momentum=0.9)", "adam", "adamw(eps=1e-6)", "rmsprop", "nadam"))
    assert not captured("adagrad")  # its counter is on the host: a replayed step would always be the same one
    assert not captured("adafactor")


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimisers take the way that they take where steps are captured, on a CPU."""
    monkeypatch.setattr(TorchOptimizer, "_captures", lambda self: True)
    for name in ("adam", "nadam", "rmsprop"):
        module = sys.modules[f"torch.optim.{name}"]  # torch.optim does not show its modules
        monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda supports_xla=True: ["cpu"])


@pytest.mark.parametrize("spec", ["adam", "adamw", "nadam", "rmsprop"])
def test_steady_steps_read_nothing(spec: str, as_on_a_gpu: None) -> None:
    learner = make("er", f"{MODULE}Tiny(channels=4)", IMAGES, optimizer=spec)
    learn(learner, IMAGES, range(4))
    assert isinstance(learner.optimizer, TorchOptimizer)
    assert all(group["capturable"] for group in learner.optimizer.optimizer.param_groups)
    learner.review_step(torch.arange(8))
    traces: list[Any] = []
    for number in (4, 5):
        x, y = batch(IMAGES, number)
        with HostWatch() as watch:
            learner.learn(x, y)
            learner.review_step(torch.arange(8))
        traces.append(watch.trace)
    assert traces[0] == traces[1]


def test_the_captured_way_computes_the_same(as_on_a_gpu: None) -> None:
    ours, theirs = start(), start()
    take(made("adam", ours), range(5))
    other = torch.optim.Adam(theirs, lr=0.01)
    for seed in range(5):
        slopes(theirs, seed)
        other.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


# Learners


@pytest.mark.parametrize("spec", ["adam", "adamw", "nadam"])
def test_a_growing_learner_with_states_per_class(spec: str) -> None:
    """What is learned does not depend on how much room there was."""

    def start() -> Learner:
        # Adam makes whole steps of rounding errors where a gradient is 0, as that of a bias before a BatchNorm.
        return make("er", f"{MODULE}smooth", IMAGES, optimizer=spec, growing=True, lr=0.01)

    def trained(first: list[int]) -> Learner:
        learner = start()
        learner.meet(first)
        learn(learner, IMAGES, range(3))
        learner.meet([20])
        learn(learner, IMAGES, range(3, 6))
        return learner

    late, early = trained([]), trained([0])
    early_again = start()
    early_again.grow(32)
    for number in range(6):
        early_again.learn(*batch(IMAGES, number))
        if number == 2:
            early_again.meet([20])
    assert late.problem.classes == early_again.problem.classes == 32
    for learner in (early, early_again):
        for (name, a), b in zip(late.state().items(), learner.state().values(), strict=True):
            torch.testing.assert_close(a, b, msg=name)  # products of other sizes round differently on some processors


def test_mir_looks_ahead_with_plain_sgd() -> None:
    learner = make("mir", TINY, IMAGES, optimizer="adam", candidates=10)
    learn(learner, IMAGES, range(6))
    assert learner.last_loss.isfinite()
    assert learner.config.lr == 0.001


def test_adam_learns() -> None:
    learner = ocil.make_learner("er", IMAGES, network=TINY, memory=30, optimizer="adam", lr=0.01)
    lost = learn(learner, IMAGES, range(30))
    assert sum(lost[-5:]) < 0.6 * sum(lost[2:7])
