"""What is counted once, at the end of a run: which classes are confused, and how far confidence can be trusted."""

import torch
from torch import Tensor

from ocil.precision import widest

BINS = 15
MOST_CLASSES = 200  # a confusion matrix of more would make results large


def confusion_of(scores: Tensor, y: Tensor, classes: int) -> Tensor:
    """Counts ``[classes, scored]`` by true class (rows) and predicted class (columns): scores ``[N, scored]`` may be of
    more classes than the dataset has."""
    scored = scores.shape[1]
    counts = torch.zeros(classes * scored, dtype=torch.int64, device=y.device)
    return counts.index_add_(0, y * scored + scores.argmax(1), torch.ones_like(y)).view(classes, scored)


def calibration_of(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """In ``BINS`` bins of confidence of equal width: images and correct images ``[2, BINS]``, and the sum of their
    confidences ``[BINS]``. The confidence is the largest softmax probability; bin b holds (b / BINS, (b + 1) / BINS].
    """
    confidence, predicted = logits.softmax(1).max(1)
    bins = (confidence * BINS).ceil().long().clamp_(1, BINS) - 1
    one_hot = (bins[:, None] == torch.arange(BINS, device=bins.device)).to(widest(y.device))
    hits = (predicted == y).to(one_hot.dtype)
    # A product: index_add_ adds fractions in no fixed order on a GPU.
    sums = torch.stack([torch.ones_like(hits), hits, confidence.to(one_hot.dtype)]) @ one_hot
    return sums[:2].long(), sums[2]
