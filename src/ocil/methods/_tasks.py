"""Which task a memory image is from, for the methods that replay the current task and earlier ones apart."""

import torch
from torch import Tensor, nn

from ocil.learning.memory import Memory


class StoredTasks(nn.Module):
    """The number of the task in which each memory image was stored. It lies beside a memory and has its slots."""

    slot_rows = ("numbers",)

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.numbers: Tensor = nn.Buffer(torch.zeros(memory.size + 1, dtype=torch.int64, device=memory.labels.device))

    @torch.no_grad()
    def keep(self, slots: Tensor, task: Tensor) -> None:
        """Store the task of images that ``Memory.add`` has put into ``slots``."""
        self.numbers.index_copy_(0, slots, task.expand(len(slots)))
        self.numbers[-1].zero_()  # which of several images ends up in the spare slot is undefined

    def are(self, task: Tensor) -> Tensor:
        """Whether each slot ``[size]`` was filled in this task. Empty slots may be true."""
        return self.numbers[:-1] == task


def drawn_among(memory: Memory, wanted: Tensor, count: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``count`` random memory images and labels among the ``wanted`` slots ``[size]``.

    Where fewer are stored they repeat; where none is, the batch ``x``, ``y`` does. So shapes do not depend on it.
    """
    place = torch.arange(count, device=y.device)
    wanted = wanted & (torch.arange(memory.size, device=y.device) < memory.seen)
    key = torch.rand(memory.size, generator=memory.generator, device=y.device)
    most = min(count, memory.size)
    order = torch.where(wanted, key, 2.0).topk(most, largest=False).indices
    found = wanted.sum()
    slots = order[place % found.clamp(1, most)]
    images = torch.where(found > 0, memory.images[slots], x[place % len(y)])
    return images, torch.where(found > 0, memory.labels[slots], y[place % len(y)])
