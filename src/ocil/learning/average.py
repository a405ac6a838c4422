"""A moving average of a network's weights, to be tested in the network's place.

The weights of an online learner swing with the last few batches; their average over some hundred steps swings less and
often classifies better, at no cost in training, which never sees it.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ocil.networks import Network

COUNTER = "num_batches_tracked"  # of batch normalisation
EARLY = 9  # the average of step t counts the new weights by at least 9 / (10 + t): so it is right from the start


class WeightAverage(nn.Module):
    """A copy of a network whose weights and running statistics are exponential moving averages of the original's.

    Step t, from 0, moves it by ``average = d · average + (1 - d) · now`` with ``d = min(decay, (1 + t) / (10 + t))``:
    a small decay at the start, where the weights of the first steps mean nothing yet. What is frozen is shared with
    the original, not copied, and not part of the state. Rows per class grow like those of the original.
    """

    network: Network
    """The averaged network, in evaluation mode."""

    def __init__(self, network: Network, decay: float) -> None:
        super().__init__()
        self.least = 1 - decay
        device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
        self.steps: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=device))
        self._copied: list[nn.Module] = []
        self._averaged: list[tuple[Tensor, Tensor]] = []
        self._taken: list[tuple[Tensor, Tensor]] = []
        self.follow(network)

    def follow(self, network: Network) -> None:
        """Call this when tensors of the network have been replaced: its rows per class have grown, or a method has
        given it another head. If it has other modules now, the average begins anew.
        """
        modules = list(network.modules())
        if len(modules) != len(self._copied) or any(a is not b for a, b in zip(modules, self._copied, strict=True)):
            self._copied, self.network = modules, _copy_of(network)
        pairs = list(_pairs(network, self.network))
        self._averaged = [(mine, its) for mine, its, averages in pairs if averages]
        self._taken = [(mine, its) for mine, its, averages in pairs if not averages]

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights of a step into the average: a few operations on lists of tensors, which can be captured."""
        share = (EARLY / (self.steps + EARLY + 1)).clamp_min(self.least)
        mine, its = ([pair[number] for pair in self._averaged] for number in range(2))
        moves = list(torch._foreach_sub(its, mine))
        torch._foreach_mul_(moves, share)
        torch._foreach_add_(mine, moves)
        if self._taken:
            torch._foreach_copy_([mine for mine, _ in self._taken], [its for _, its in self._taken])
        self.steps += 1

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the steps so far, in place: the average is the network as it is now."""
        for mine, its in (*self._averaged, *self._taken):
            mine.copy_(its)
        self.steps.zero_()


def _copy_of(network: Network) -> Network:
    """A copy that shares what is frozen. Shared tensors become buffers that are not part of its state."""
    frozen = {
        name: value
        for name, value in network.state_dict(keep_vars=True).items()
        if network.is_frozen(name) and not name.endswith(COUNTER)  # PyTorch looks for it in every state
    }
    made = copy.deepcopy(network, {id(value): value for value in frozen.values()}).requires_grad_(False).eval()
    for name, value in frozen.items():
        path, _, own = name.rpartition(".")
        module = made.get_submodule(path)
        module._parameters.pop(own, None)
        module.register_buffer(own, value, persistent=False)
    return made


def _pairs(network: Network, averaged: Network) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """The tensors that change in a step: the averaged network's, the network's, and whether they are averaged.

    Weights and running statistics are; other buffers have the network's present values. Counters of batches are of no
    use in a test, and rows of classes that were met are drawn in both networks (see ``networks.meet``).
    """
    seen: set[int] = set()
    for (prefix, its), mine in zip(network.named_modules(), averaged.modules(), strict=True):
        for name, value in its.named_parameters(recurse=False):
            if value.requires_grad and id(value) not in seen:  # layers may share weights
                seen.add(id(value))
                yield getattr(mine, name), value, True
        for name, value in its.named_buffers(recurse=False):
            kept = name not in its._non_persistent_buffers_set and not network.is_frozen(f"{prefix}.{name}".lstrip("."))
            if kept and name not in (COUNTER, "met"):
                yield getattr(mine, name), value, isinstance(its, _NormBase) and value.is_floating_point()
