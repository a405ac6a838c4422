"""Optimisers by name: our own SGD, or any of PyTorch's.

All offer what learners and engines need: a step that can be captured as a CUDA graph, steps at a fraction of the
learning rate, a state of plain tensors, and growth by class.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ocil.errors import OcilError, suggest
from ocil.learning.sgd import SGD
from ocil.networks import with_rows
from ocil.networks.spec import Spec

UNFIT = {
    "lbfgs": "it evaluates the loss several times in a step",
    "sparseadam": "it needs sparse gradients",
    "muon": "it takes matrices alone, and networks have other weights too",
}
GIVEN = {
    "lr": "use the setting lr",
    "capturable": "ocil sets it on a GPU",
    "differentiable": "a step is not trained",
    "maximize": "it would make the loss larger",
}
"""Options that a user cannot give, and why."""
WITHOUT_COUNTERS = ("sgd",)  # nothing of its state is on the host, so its step can be captured as it is
SURE = ("adam", "adamw", "adam(betas=(0.9, 0.99))")  # known to work: a trial would load PyTorch's compiler
SUMS = 0.0  # what most of a state starts from


class Optimizer(Protocol):
    """What a learner needs of an optimiser. ``SGD`` and ``TorchOptimizer`` have it."""

    parameters: list[nn.Parameter]
    lr: float | Tensor
    after_step: Callable[[], None] | None
    """Called after each step, when the weights are where they stay."""

    def zero_grad(self) -> None: ...

    def step(self) -> None: ...

    def scaled(self, scale: float) -> AbstractContextManager[float]:
        """Inside the block a step goes ``scale`` times as far. Yields the factor that the loss must have for it."""

    def reset(self) -> None:
        """Forget all gradients so far, in place: captured steps use these tensors."""

    def go_on_from(self, former: Any) -> None:
        """Take over the state of an optimiser of the same kind and parameters, some with more or fewer rows now."""

    def state(self) -> dict[str, Tensor]: ...

    def load_state(self, state: dict[str, Tensor]) -> None: ...


def make(
    spec: str, parameters: Iterable[nn.Parameter], lr: float | Tensor, momentum: float = 0.0, weight_decay: float = 0.0
) -> Optimizer:
    """The optimiser that a setting names, for these parameters."""
    chosen = Spec.parse(spec, "optimizer")
    if _is_ours(chosen):
        return SGD(parameters, lr, momentum, weight_decay)
    return TorchOptimizer(chosen, parameters, lr, weight_decay)


def check(spec: str, momentum: float, weight_decay: float) -> None:
    """Raise an ``OcilError`` if a setting names no optimiser, or options that it does not take."""
    chosen = Spec.parse(spec, "optimizer")
    if _is_ours(chosen):
        return
    if momentum:
        example = "sgd(momentum=0.9, nesterov=True)" if chosen.name.lower() == "sgd" else "adam(betas=(0.9, 0.99))"
        raise OcilError(f"momentum = {momentum} is for sgd alone: give {spec} its own options, as in {example}.")
    if str(chosen).lower() not in SURE:
        _check(str(chosen), weight_decay)


def default_lr(spec: str) -> float | None:
    """PyTorch's own default of the learning rate; None for our SGD, whose default a method knows better."""
    chosen = Spec.parse(spec, "optimizer")
    if _is_ours(chosen):
        return None
    value = inspect.signature(_kind(chosen.name)).parameters["lr"].default
    return float(value)


def can_be_captured(spec: str) -> bool:
    """Whether a step can be captured as a CUDA graph: whether nothing that changes from step to step is on the host."""
    chosen = Spec.parse(spec, "optimizer")
    return _is_ours(chosen) or chosen.name.lower() in WITHOUT_COUNTERS or _takes_capturable(_kind(chosen.name))


def numbers_kept(spec: str) -> int:
    """How many numbers an optimiser keeps per weight, at most: a velocity; averages, squares and their maximum."""
    return 1 if _is_ours(Spec.parse(spec, "optimizer")) else 3


class TorchOptimizer:
    """An optimiser of ``torch.optim``. To make the first one loads PyTorch's compiler, which takes seconds."""

    def __init__(self, spec: Spec, parameters: Iterable[nn.Parameter], lr: float | Tensor, weight_decay: float) -> None:
        self.spec, self.lr, self.weight_decay = spec, lr, weight_decay
        self.parameters = list(parameters)
        self.optimizer = self._made()
        self.after_step: Callable[[], None] | None = None

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        self.optimizer.step()
        if self.after_step is not None:
            self.after_step()

    @contextmanager
    def scaled(self, scale: float) -> Iterator[float]:
        """Most of these optimisers divide by the size of the gradients, so a smaller loss would change nothing. The
        parameters go a part of the way instead. For all whose step is in proportion to the learning rate, this is a
        smaller learning rate; and it can be captured.
        """
        before = [parameter.detach().clone() for parameter in self.parameters]
        after_step, self.after_step = self.after_step, None
        try:
            yield 1.0
        finally:
            self.after_step = after_step
        with torch.no_grad():
            after: list[Tensor] = [parameter.detach() for parameter in self.parameters]
            torch._foreach_copy_(after, list(torch._foreach_lerp(before, after, scale)))
        if after_step is not None:
            after_step()

    def reset(self) -> None:
        for entry in self.optimizer.state.values():
            for name, value in entry.items():
                if isinstance(value, Tensor):
                    value.fill_(self._start_of(name))

    def go_on_from(self, former: "TorchOptimizer") -> None:
        kept = former.state()
        for key, value in kept.items():
            number, _, name = key.partition(".")
            before, now = former.parameters[int(number)], self.parameters[int(number)]
            if value.ndim == now.ndim > 0 and len(value) == len(before):
                kept[key] = with_rows(value, len(now))
                kept[key][len(value) :] = self._start_of(name)
        self.load_state(kept)

    def state(self) -> dict[str, Tensor]:
        """Tensors by the parameter's number and the optimiser's own name for them."""
        numbers: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(self.parameters)}
        return {
            f"{numbers[parameter]}.{name}": value
            for parameter, entry in self.optimizer.state.items()
            for name, value in entry.items()
            if isinstance(value, Tensor)
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.optimizer = self._made()
        for key, value in state.items():
            number, _, name = key.partition(".")
            parameter = self.parameters[int(number)]
            if value.ndim and not _covers(value, parameter):
                raise ValueError(f"the optimiser's {key} has shape {list(value.shape)}, not {list(parameter.shape)}")
            on_host = value.ndim == 0 and not self._captures()  # where PyTorch keeps counters, unless it is captured
            place = torch.device("cpu") if on_host else parameter.device
            self.optimizer.state[parameter][name] = value.detach().clone().to(place)

    def _start_of(self, name: str) -> float:
        """What a tensor of the state is filled with before the first step."""
        own = {
            "mu_product": 1.0,  # NAdam
            "mu": 1.0,  # ASGD
            "eta": float(self.lr),  # ASGD
            "step_size": float(self.lr),  # Rprop
            "sum": float(self.optimizer.defaults.get("initial_accumulator_value", SUMS)),  # Adagrad
        }
        return own.get(name, SUMS)

    def _captures(self) -> bool:
        return bool(self.parameters) and self.parameters[0].device.type == "cuda" and _takes_capturable(self._kind)

    @property
    def _kind(self) -> Any:
        return _kind(self.spec.name)

    def _made(self) -> torch.optim.Optimizer:
        for option in self.spec.options.keys() & GIVEN.keys():
            raise OcilError(f"optimizer = {self.spec} cannot have the option {option}: {GIVEN[option]}.")
        options: dict[str, Any] = {"lr": self.lr}
        if self.weight_decay:
            options["weight_decay"] = self.weight_decay
        options |= self.spec.options
        if self._captures():
            options["capturable"] = True
        try:
            made: torch.optim.Optimizer = self._kind(self.parameters, **options)
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            reason = " ".join(str(error).replace(".__init__()", "").split())
            raise OcilError(f"optimizer = {self.spec}: {reason.rstrip('.')}.") from None
        made._warned_capturable_if_run_uncaptured = True  # the first steps are on purpose
        return made


@cache
def _check(spec: str, weight_decay: float) -> None:
    """Make an optimiser and take a step with it: some options raise only there."""
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer = TorchOptimizer(Spec.parse(spec, "optimizer"), [parameter], 0.1, weight_decay)
    parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise OcilError(f"optimizer = {spec}: {reason.rstrip('.')}.") from None


def _covers(value: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor has a number for each of a parameter's, or for each of its rows or columns."""
    return value.ndim == parameter.ndim and all(
        mine in (1, its) for mine, its in zip(value.shape, parameter.shape, strict=True)
    )


def _is_ours(spec: Spec) -> bool:
    return spec.name.lower() == "sgd" and not spec.options


def _takes_capturable(kind: Any) -> bool:
    return "capturable" in inspect.signature(kind).parameters


def _kind(name: str) -> Any:
    """A class of ``torch.optim``, by its name in any case."""
    kinds = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    if name.lower() not in kinds:
        raise OcilError(f"unknown optimizer '{name}'.{suggest(name, kinds.keys() - UNFIT.keys())}")
    if name.lower() in UNFIT:
        raise OcilError(f"optimizer = {name} does not fit: {UNFIT[name.lower()]}.")
    return kinds[name.lower()]
