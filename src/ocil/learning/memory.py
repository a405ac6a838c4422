"""The replay memory: images or vectors and their labels, in tensors on the device."""

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ocil import kernels
from ocil.errors import OcilError
from ocil.files import machine_memory
from ocil.networks import InputShape, is_image
from ocil.text import bytes_text


class Memory(nn.Module):
    """``size`` inputs as they are stored, with their labels, filled by reservoir sampling.

    All that changes is in buffers on the device, and once the memory is filled no step reads one back. There is one
    spare row: a sample that is not kept is written there, so that shapes do not depend on what is kept.

    ``slot_rows`` names the tensors with one row per slot, here and in what other modules keep beside a memory
    (``slot_columns``: those with one column per slot), so that a sample is moved with all that belongs to it.
    """

    slot_rows: ClassVar[tuple[str, ...]] = ("images", "labels")

    def __init__(
        self, size: int, input_shape: InputShape, generator: torch.Generator, dtype: torch.dtype = torch.uint8
    ) -> None:
        super().__init__()
        device = generator.device
        refuse_what_cannot_fit(size, input_shape, [device], dtype)
        self.size = size
        self.generator = generator
        self._at_least = 0  # a lower bound of the filled slots, known to the host
        self.images: Tensor = nn.Buffer(torch.zeros((size + 1, *input_shape), dtype=dtype, device=device))
        self.labels: Tensor = nn.Buffer(torch.zeros(size + 1, dtype=torch.int64, device=device))
        self.seen: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=device))
        self.numbers: SlotNumbers | None = None
        """Which sample of its source is in which slot. It is not part of the state, and no step depends on it."""

    def __len__(self) -> int:
        """The number of filled slots. Reads the counter back: not for use inside a step."""
        return min(int(self.seen), self.size)

    def recount(self) -> None:
        """Call this after the buffers were written from outside."""
        self._at_least = 0

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Reservoir sampling of a batch: afterwards each of the n samples seen is stored with probability size / n.

        Returns the slot of each sample, ``size`` for those that were not kept.
        """
        drawn = torch.randint(2**62, y.shape, generator=self.generator, device=y.device)
        slot = kernels.reservoir_slots(self.seen, drawn, self.size) if kernels.present(y) else None
        if slot is None:
            position = self.seen + torch.arange(len(y), device=y.device)
            slot = torch.where(position < self.size, position, drawn % (position + 1))
            slot = torch.where(_hit_again(slot), self.size, slot).clamp_(max=self.size)
            self.seen += len(y)
        self.put(slot, x, y)
        return slot

    def put(self, slot: Tensor, x: Tensor, y: Tensor) -> None:
        """Write samples to slots; slots below ``size`` must differ."""
        if self.numbers is not None:
            self.numbers.put(slot)
        if len(y) and kernels.present(x):
            kernels.put(self.images, self.labels, slot, x, y)
            return
        self.images.index_copy_(0, slot, x)
        self.labels.index_copy_(0, slot, y)
        self.images[self.size].zero_()  # which of several samples ends up in the spare row is undefined
        self.labels[self.size].zero_()

    def relabel(self, slot: int, label: int) -> None:
        """Give the sample in a filled slot another label. Not for use inside a step."""
        self.labels[slot] = label

    def count_out(self, slot: int, also: Sequence[int] = ()) -> "RowsToMove":
        """Count the sample of a filled slot out. Not for use inside a step.

        No row is moved: the caller does with each tensor of ``slot_rows``, here and elsewhere, what is returned.

        While every sample seen is stored, the last one moves to the free slot, and the next sample of the stream finds
        a slot. Later the slot gets a copy of another sample, drawn at random: a free slot would be given to the next
        sample for certain, however many were seen, and the memory would no longer be a fair draw from all of them.
        ``also``: slots that are about to be counted out too, which are not copied.
        """
        if int(self.seen) > self.size:
            others = torch.ones(self.size, dtype=torch.bool, device=self.labels.device)
            others[[slot, *also]] = False
            if bool(others.any()):
                self.seen -= 1
                key = torch.rand(self.size, generator=self.generator, device=self.labels.device)
                return RowsToMove(int(key.masked_fill(~others, 2.0).argmin()), None)
            self.seen.fill_(self.size)
        self.seen -= 1
        self.recount()
        return RowsToMove(len(self), len(self))

    def retrieve(self, count: int) -> tuple[Tensor, Tensor] | None:
        """``count`` distinct random samples; all samples, in slot order, while there are no more; None if empty."""
        index = self.draw(count)
        return None if index is None else (self.images[index], self.labels[index])

    def draw(self, count: int) -> Tensor | None:
        """The slots that ``retrieve`` reads."""
        drawn = self.draws(1, count)
        return None if drawn is None else drawn[0]

    def draws(self, times: int, count: int, classes: int = 0) -> Tensor | None:
        """What ``draw`` gives so many times in a row, ``[times, count]``, in the kernels of one: each row is drawn
        anew from the whole memory.

        Each sample is as likely as another, or, if the number of ``classes`` is given, each stored class.
        """
        if self._at_least < min(count + 1, self.size):  # only in the first steps: ask how many there are
            self._at_least = len(self)
        if self._at_least <= count:
            all_slots = torch.arange(self._at_least, device=self.labels.device)
            return all_slots.expand(times, -1) if self._at_least else None
        return self.shuffled(count, classes, times)

    def shuffled(self, count: int, classes: int = 0, times: int = 1) -> Tensor:
        """``times`` times ``count`` distinct filled slots in random order, ``[times, count]``. At least as many as
        ``count`` must be filled.

        With ``classes`` they are drawn one after the other, a slot's weight being 1 / the samples of its class.
        """
        device, shape = self.labels.device, (times, self.size)
        empty = torch.arange(self.size, device=device) >= self.seen
        if not classes:
            key = torch.rand(shape, generator=self.generator, device=device)
            return key.masked_fill(empty, 2.0).topk(count, largest=False).indices
        labels = self.labels[: self.size]
        members = torch.zeros(classes, dtype=torch.int64, device=device).index_add_(0, labels, (~empty).long())
        # The smallest of exponential draws at these rates are such a sequence.
        clock = torch.empty(shape, device=device).exponential_(generator=self.generator) * members[labels]
        return clock.masked_fill(empty, torch.inf).topk(count, largest=False).indices

    def holds_more_than(self, count: int) -> bool:
        """Whether ``draw(count)`` keeps its shape from now on: more slots are filled, or the memory has no more."""
        self._at_least = max(self._at_least, len(self))
        return self._at_least >= min(count + 1, self.size)

    def epoch(self) -> Tensor:
        """All filled slots in random order."""
        return torch.randperm(len(self), generator=self.generator, device=self.labels.device)


class RowsToMove(NamedTuple):
    """What becomes of the rows of a memory when the sample of a slot was counted out, see ``Memory.count_out``."""

    source: int
    """The slot whose row is copied to the slot that was counted out."""
    empty: int | None
    """The slot whose row is 0 from then on; None if all stay filled."""


class SlotNumbers:
    """The number of the sample in each slot of a memory, for those who correct or remove samples later.

    Samples have the numbers that their source gave them; 0 is a sample of unknown number. Before each step announce
    the numbers of its batch. They are written as the samples are, on the device, also by a captured step: the tensors
    stay where they are.
    """

    def __init__(self, memory: Memory, batch_size: int) -> None:
        """``batch_size``: of the largest batch."""
        device = memory.labels.device
        self.of_slot = torch.zeros(memory.size + 1, dtype=torch.int64, device=device)
        """[size + 1]: as ``Memory.labels``, with the spare row."""
        self._batch = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self._count = self._place = 0

    def announce(self, numbers: Sequence[int]) -> None:
        """The samples of the next batch, in its order."""
        self._batch[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        self._count, self._place = len(numbers), 0

    def put(self, slot: Tensor) -> None:
        """``Memory.put`` writes samples to these slots: the next ones of the batch, from its start after its end."""
        first, self._place = self._place, self._place + len(slot)
        if self._place <= self._count:
            self.of_slot.index_copy_(0, slot, self._batch[first : self._place])
        else:  # not a part of the batch announced
            self.of_slot.index_fill_(0, slot, 0)
        self.of_slot[-1].zero_()
        if self._place >= self._count:
            self._place = 0

    def slots_of(self, number: int) -> list[int]:
        """The slots that hold this sample: none, one, or several if it was copied to fill a slot."""
        found: list[int] = (self.of_slot[:-1] == number).nonzero().flatten().tolist()
        return found


def refuse_what_cannot_fit(
    size: int, input_shape: InputShape, devices: Sequence[torch.device], dtype: torch.dtype = torch.uint8
) -> None:
    """Raise an ``OcilError`` if inputs and labels fit on none of the devices: the system would grant the memory and
    kill the process much later, without a message.
    """
    needed = size * (math.prod(input_shape) * dtype.itemsize + torch.int64.itemsize)  # a sample and its label
    if any(needed <= _bytes_of(device) for device in devices):  # usually the first, so that no GPU is initialised
        return
    there = bytes_text(max(map(_bytes_of, devices)))
    kind = "images" if is_image(input_shape) else "vectors"
    raise OcilError(f"memory = {size} {kind} need {bytes_text(needed)}, and there are {there}: give a smaller memory.")


def _bytes_of(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()


def _hit_again(slot: Tensor) -> Tensor:
    """Which samples of a batch draw a slot that a later sample draws too. The later one gets it."""
    same = slot[:, None] == slot[None, :]
    return same.triu(diagonal=1).any(dim=1)
