"""What the network said of each memory image when the image was stored, for the methods that distil from it."""

import torch
from torch import Tensor, nn

from ocil.learning.memory import Memory


class StoredOutputs(nn.Module):
    """The logits, and with ``feature_size`` also the features, that memory images had when they were stored.

    It lies beside a memory and has its slots, the spare one included. Logits have one row per class, so that they grow
    with the classes. It takes 5 bytes per class and image, and 4 per feature and image.
    """

    class_rows = ("logits", "known")
    slot_rows = ("features",)
    slot_columns = ("logits", "known")

    def __init__(self, memory: Memory, classes: int, feature_size: int = 0) -> None:
        super().__init__()
        slots, device = memory.size + 1, memory.labels.device
        self.logits: Tensor = nn.Buffer(torch.zeros(classes, slots, device=device))
        self.known: Tensor = nn.Buffer(torch.zeros(classes, slots, dtype=torch.bool, device=device))
        """Which classes had been met when an image was stored: the others had no logit."""
        self.features: Tensor = nn.Buffer(torch.zeros(slots, feature_size, device=device))

    @staticmethod
    def bytes_held(memory: int, classes: int, feature_size: int = 0) -> int:
        return (memory + 1) * (5 * classes + 4 * feature_size)

    @torch.no_grad()
    def keep(self, slots: Tensor, logits: Tensor, met: Tensor | None, features: Tensor | None = None) -> None:
        """Store the logits ``[B, C]`` and features ``[B, D]`` of images that ``Memory.add`` has put into ``slots``."""
        known = torch.ones_like(logits, dtype=torch.bool) if met is None else met.expand(logits.shape)
        for stored, new in ((self.logits, logits.masked_fill(~known, 0)), (self.known, known)):
            stored.index_copy_(1, slots, new.T.contiguous())
            stored[:, -1].zero_()  # which of several images ends up in the spare slot is undefined
        if features is not None:
            self.features.index_copy_(0, slots, features)
            self.features[-1].zero_()

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The stored logits ``[B, C]`` of the images in these slots, and which of them are known."""
        return self.logits[:, slots].T.contiguous(), self.known[:, slots].T.contiguous()


def squared_difference(now: Tensor, then: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean of the squared differences of ``[B, C]``, for weights of the same shape that are not all 0."""
    return (weight * (now - then).square()).sum() / weight.sum()
