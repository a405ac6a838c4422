"""Heads and buffers that grow as classes arrive."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn

from ocil.rng import derive

NOT_MET = -1e4  # the score of a class not met: its exp is 0 in any precision, yet it is finite


class Growing(nn.Module):
    """Tensors with one row per class, named in ``class_rows``, for classes that are not known in advance.

    A row is 0 until its class is met. Then it is drawn from the seed and the class's number alone: it does not depend
    on when that was, on the classes before, or on how the tensors grew.
    """

    class_rows: ClassVar[tuple[str, ...]] = ("met", "weight")
    met: Tensor

    def start(self, classes: int, seed: int, bound: float) -> None:
        """Call this once, when the head is made. Rows will be drawn uniformly from ``-bound`` to ``bound``."""
        self.seed, self.bound = seed, bound
        self.register_buffer("met", torch.zeros(classes, dtype=torch.bool))

    @torch.no_grad()
    def meet(self, classes: Iterable[int]) -> None:
        for number in classes:
            generator = torch.Generator().manual_seed(derive(self.seed, str(number)))
            for name in self.class_rows:
                row: Tensor = getattr(self, name)[number]
                if name == "met":
                    row.fill_(True)
                else:
                    row.copy_(torch.empty(row.shape).uniform_(-self.bound, self.bound, generator=generator))


class GrowingHead(Growing, nn.Linear):
    """A linear layer with one row per class, each with PyTorch's default initialisation. A class not met scores
    -10,000, without a gradient, so it has no effect in a softmax.
    """

    class_rows = ("met", "weight", "bias")

    def __init__(self, features: int, classes: int, seed: int) -> None:
        super().__init__(features, classes)
        self.start(classes, seed, features**-0.5)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).masked_fill(~self.met, NOT_MET)


def meet(module: nn.Module, classes: Iterable[int]) -> None:
    """Draw the rows of these classes in every ``Growing`` part of ``module``."""
    classes = list(classes)
    for part in module.modules():
        if isinstance(part, Growing):
            part.meet(classes)


def grow(module: nn.Module, classes: int) -> None:
    """Make room for ``classes`` classes in all that ``module`` and its parts name in ``class_rows``; new rows are 0."""
    for part in module.modules():
        for name in getattr(part, "class_rows", ()):
            setattr(part, name, with_rows(getattr(part, name), classes))
        if isinstance(part, GrowingHead):
            part.out_features = classes


def with_rows(tensor: Tensor, count: int) -> Tensor:
    """The first ``count`` rows, filled up with zeros; the tensor itself if it has ``count`` rows."""
    if len(tensor) == count:
        return tensor
    rows = tensor.new_zeros((count, *tensor.shape[1:]))
    rows[: len(tensor)] = tensor.detach()[:count]
    return nn.Parameter(rows, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else rows
