"""Where a dataset lies while it is learned: on the device as a whole, or on the host, from where parts of it come."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil.data import Dataset
from ocil.data.dataset import pieces
from ocil.data.mapped import RowReader, is_mapped
from ocil.devices import pick_device

GPU_SHARE = 0.5  # of a GPU's free memory: a dataset that takes more stays on the host
MAPPED_BYTES = 2**30  # a mapped dataset that takes more is read batch by batch, not through its mapping


class DeviceData:
    """A dataset for streams on a device, to be shared by all of them.

    If it is ``resident``, its inputs are tensors on the device: uploaded once, and on a CPU not even copied. If not,
    ``train_x`` and ``test_x`` are None, and inputs are brought to the device a few at a time. Labels are always there.
    ``resident`` decides it in place of the dataset's size.
    """

    def __init__(self, data: Dataset, device: torch.device | str, resident: bool | None = None) -> None:
        self.device, self.data = pick_device(device), data
        self.resident = fits(data, self.device) if resident is None else resident
        self.train_y, self.test_y = (_upload(array, self.device) for array in (data.train_y, data.test_y))
        self.train_x = _upload(data.train_x, self.device) if self.resident else None
        self.test_x = _upload(data.test_x, self.device) if self.resident else None

    def parts(self, split: Literal["train", "test"], size: int, index: Tensor | None = None) -> Iterator[Tensor]:
        """Inputs on the device, ``size`` at a time: all of a split, or those of these numbers.

        ``index`` lies where ``index_device`` says.
        """
        x = self.train_x if split == "train" else self.test_x
        if x is not None:
            yield from x.split(size) if index is None else (x[chunk] for chunk in index.split(size))
            return
        rows = RowReader(self.data.train_x if split == "train" else self.data.test_x)
        numbers = torch.arange(len(rows)) if index is None else index
        for chunk in numbers.split(size):
            yield torch.from_numpy(rows.take(chunk.numpy())).to(self.device)

    def inputs(self, index: Tensor) -> Tensor:
        """These training inputs of a dataset that is on the device."""
        if self.train_x is None:
            raise RuntimeError("the inputs are not on the device")
        return self.train_x[index]

    @property
    def index_device(self) -> torch.device:
        """Where numbers of samples are looked up: beside the inputs."""
        return self.device if self.resident else torch.device("cpu")


def fits(data: Dataset, device: torch.device) -> bool:
    """Whether a dataset is kept on a device as a whole."""
    size = data.train_x.nbytes + data.test_x.nbytes
    if device.type == "cuda":
        return size <= GPU_SHARE * torch.cuda.mem_get_info(device)[0]
    return size <= MAPPED_BYTES or not is_mapped(data.train_x)


def _upload(array: NDArray[Any], device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    target = torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, device=device)
    done = 0
    for piece in pieces(array):  # so that a mapped array is not read into memory as a whole
        target[done : done + len(piece)] = torch.from_numpy(piece).to(device)
        done += len(piece)
    return target
