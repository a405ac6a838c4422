"""What is counted once, at the end of a run: which classes are confused, and how far confidence can be trusted."""

import torch
from torch import Tensor

from ocil.precision import widest

BINS = 15
MOST_CLASSES = 200  # a confusion matrix of more would make results large


def confusion_of(predicted: Tensor, y: Tensor, classes: int) -> Tensor:
    """Counts ``[classes, classes]`` by true class (rows) and predicted class (columns)."""
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=y.device)
    return counts.index_add_(0, y * classes + predicted, torch.ones_like(y)).view(classes, classes)


def calibration_of(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """In ``BINS`` bins of confidence of equal width: images and correct images ``[2, BINS]``, and the sum of their
    confidences ``[BINS]``. The confidence is the largest softmax probability; bin b holds (b / BINS, (b + 1) / BINS].
    """
    confidence, predicted = logits.softmax(1).max(1)
    bins = (confidence * BINS).ceil().long().clamp_(1, BINS) - 1
    one_hot = torch.nn.functional.one_hot(bins, BINS).to(widest(y.device))
    hits = (predicted == y).to(one_hot.dtype)
    # A product: index_add_ adds fractions in no fixed order on a GPU.
    sums = torch.stack([torch.ones_like(hits), hits, confidence.to(one_hot.dtype)]) @ one_hot
    return sums[:2].long(), sums[2]
