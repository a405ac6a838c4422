"""Plain SGD.

PyTorch's optimiser loads PyTorch's compiler on the first step, which costs seconds per process. Its function
``torch.optim.sgd.sgd`` reads a learning rate that is a tensor back to the host, so a step could not be captured.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ocil.networks import with_rows


class SGD:
    """What ``torch.optim.SGD`` computes, for one learning rate, momentum and weight decay.

    If the learning rate is a tensor on the device, it may change while a captured step is replayed.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float | Tensor, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.parameters = list(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.velocity: dict[int, Tensor] = {}
        self.after_step: Callable[[], None] | None = None

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step for all parameters that have a gradient, by operations on lists of tensors."""
        numbers = [number for number, parameter in enumerate(self.parameters) if parameter.grad is not None]
        weights: list[Tensor] = [self.parameters[number] for number in numbers]
        steps = [grad for parameter in self.parameters if (grad := parameter.grad) is not None]
        if not steps:
            return
        if self.weight_decay:
            steps = list(torch._foreach_add(steps, weights, alpha=self.weight_decay))
        if self.momentum:
            steps = self._with_momentum(dict(zip(numbers, steps, strict=True)))
        if isinstance(self.lr, Tensor):
            torch._foreach_sub_(weights, list(torch._foreach_mul(steps, self.lr)))
        else:
            torch._foreach_add_(weights, steps, alpha=-self.lr)
        if self.after_step is not None:
            self.after_step()

    def _with_momentum(self, steps: dict[int, Tensor]) -> list[Tensor]:
        """The steps, by number of the parameter, after the momentum of the steps before."""
        if moving := [number for number in steps if number in self.velocity]:
            velocity = [self.velocity[number] for number in moving]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, [steps[number] for number in moving])
        for number, step in steps.items():
            if number not in self.velocity:  # the first step of a parameter is its gradient
                self.velocity[number] = step.clone()
        return [self.velocity[number] for number in steps]

    def scaled(self, scale: float) -> AbstractContextManager[float]:
        """Inside the block a step goes ``scale`` times as far: the gradients of a loss with this factor do it."""
        return nullcontext(scale)

    def reset(self) -> None:
        """Set the momentum to zero, in place: captured steps use these tensors."""
        for value in self.velocity.values():
            value.zero_()

    def go_on_from(self, former: "SGD") -> None:
        """Take over the momentum of an optimiser of the same parameters, some of which have more or fewer rows now.

        New rows have no momentum.
        """
        for number, value in former.velocity.items():
            self.velocity[number] = with_rows(value, len(self.parameters[number])) if value.ndim else value

    def state(self) -> dict[str, Tensor]:
        return {f"{number}.momentum_buffer": value for number, value in self.velocity.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.velocity = {}
        for name, value in state.items():
            number = int(name.split(".")[0])
            self.velocity[number] = value.clone().to(self.parameters[number].device)
