"""Optimisers by name: our own SGD, or any of PyTorch's.

All offer what learners and engines need: a step that can be captured as a CUDA graph, a state of plain tensors, and
growth by class.
"""

import inspect
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ocil.errors import OcilError, suggest
from ocil.learning.sgd import SGD
from ocil.networks import with_rows
from ocil.networks.spec import Spec


class Optimizer(Protocol):
    parameters: list[nn.Parameter]
    lr: float | Tensor

    def zero_grad(self) -> None: ...

    def step(self) -> None: ...

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
    if chosen.name.lower() == "sgd" and not chosen.options:
        return SGD(parameters, lr, momentum, weight_decay)
    return TorchOptimizer(chosen, parameters, lr, weight_decay)


def check(spec: str, momentum: float) -> None:
    """Raise an ``OcilError`` if a setting names no optimiser, or options that it does not take."""
    if spec == "sgd":
        return
    if momentum:
        raise OcilError(
            f"momentum = {momentum} is for sgd: give {spec} its own options, as in adam(betas=(0.9, 0.99))."
        )
    TorchOptimizer(Spec.parse(spec, "optimizer"), [nn.Parameter(torch.zeros(1))], 0.1, 0.0)


class TorchOptimizer:
    """An optimiser of ``torch.optim``. Its first step loads PyTorch's compiler, which takes seconds."""

    def __init__(self, spec: Spec, parameters: Iterable[nn.Parameter], lr: float | Tensor, weight_decay: float) -> None:
        self.spec, self.lr, self.weight_decay = spec, lr, weight_decay
        self.parameters = list(parameters)
        self.optimizer = self._made()

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        self.optimizer.step()

    def reset(self) -> None:
        for entry in self.optimizer.state.values():
            for name, value in entry.items():
                if isinstance(value, Tensor):
                    value.fill_(1.0 if name == "mu_product" else 0.0)  # NAdam's is a product, the others are sums

    def go_on_from(self, former: "TorchOptimizer") -> None:
        kept = former.state()
        for name, value in kept.items():
            number = int(name.split(".")[0])
            before, now = former.parameters[number], self.parameters[number]
            if value.ndim == now.ndim > 0 and len(value) == len(before):
                kept[name] = with_rows(value, len(now))
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
            counter = (
                value.ndim == 0 and not self._captures()
            )  # PyTorch keeps step counters on the host, unless captured
            place = torch.device("cpu") if counter else parameter.device
            self.optimizer.state[parameter][name] = value.detach().clone().to(place)

    def _captures(self) -> bool:
        return bool(self.parameters) and self.parameters[0].device.type == "cuda"

    def _made(self) -> torch.optim.Optimizer:
        kind = _kind(self.spec.name)
        options = {"lr": self.lr, **self.spec.options}
        if self.weight_decay:
            options["weight_decay"] = self.weight_decay
        if self._captures() and "capturable" in inspect.signature(kind).parameters:
            options["capturable"] = True
        try:
            made: torch.optim.Optimizer = kind(self.parameters, **options)
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).replace("__init__() ", "").split())
            raise OcilError(f"optimizer = {self.spec}: {reason}.") from None
        return made


def _kind(name: str) -> Any:
    """A class of ``torch.optim``, by its name in any case."""
    kinds = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    if name.lower() not in kinds:
        raise OcilError(f"unknown optimizer '{name}'.{suggest(name, kinds)}")
    if name.lower() in ("lbfgs", "sparseadam"):
        raise OcilError(f"optimizer = {name} does not fit: it needs a closure or sparse gradients.")
    return kinds[name.lower()]
