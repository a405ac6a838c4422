"""The mu of the dynamic revised focal loss (RFL^d): one per class, from the scores of the last epoch."""

import torch
from torch import Tensor


class DynamicMu:
    """Counts the scores of the images' true classes during an epoch; ``update`` sets ``mu`` from them and starts again.

    ``mu_k`` is the lower edge of the bin in which a share ``share`` of class k's scores is reached, counting from 0:
    a class with many low scores gets a small mu, so that its hard images count. In the first epoch mu is 0. A class
    without a score keeps its mu. All stays on the device.
    """

    def __init__(self, classes: int, bins: int = 25, share: float = 0.25, device: torch.device | str = "cpu") -> None:
        self.bins, self.share = bins, share
        self.mu = torch.zeros(classes, device=device)
        self.counts = torch.zeros(classes, bins, dtype=torch.int64, device=device)

    @torch.no_grad()
    def collect(self, logits: Tensor, labels: Tensor) -> None:
        """Count the scores of a training batch."""
        score = logits.float().softmax(1).gather(1, labels[:, None]).squeeze(1)
        place = labels * self.bins + (score * self.bins).long().clamp_(0, self.bins - 1)
        self.counts.view(-1).index_add_(0, place, torch.ones_like(place))

    @torch.no_grad()
    def update(self) -> None:
        """Called at the end of an epoch."""
        total = self.counts.sum(1)
        below = (self.counts.cumsum(1) < self.share * total[:, None]).sum(1)  # bins before the one that reaches it
        self.mu.copy_(torch.where(total > 0, below / self.bins, self.mu))
        self.counts.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"mu": self.mu, "counts": self.counts}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.mu.copy_(state["mu"])
        self.counts.copy_(state["counts"])
