"""Measures of a long-tailed test: pure functions of predictions, labels and training counts. All are shares, 0 to 1."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

UNKNOWN = -1
MANY, FEW = 100, 20  # training images per class: at least 100 are many, at most 20 are few, others are medium
GROUPS = ("many", "medium", "few")
MEASURES = ("many", "medium", "few", "overall", "open_many", "open_medium", "open_few", "f_measure", "auroc", "fpr95")
LATER = ("auroc", "fpr95")
"""Measures that older results lack."""
KNOWN_KEPT = 0.95  # share of the known images that a threshold must keep, for the false positive rate


def shots(counts: ArrayLike) -> dict[str, NDArray[np.bool_]]:
    """Masks of the many-, medium- and few-shot classes, by their numbers of training images."""
    counts = np.asarray(counts)
    many, few = counts >= MANY, counts <= FEW
    return {"many": many, "medium": ~many & ~few, "few": few}


def class_accuracies(predicted: ArrayLike, labels: ArrayLike, classes: int) -> NDArray[np.float64]:
    """Accuracy on each class's test images; nan for a class without one."""
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    right = np.bincount(labels[predicted == labels], minlength=classes)
    total = np.bincount(labels, minlength=classes)
    found = np.full(classes, np.nan)
    np.divide(right, total, out=found, where=total > 0)
    return found


def by_shots(predicted: ArrayLike, labels: ArrayLike, counts: ArrayLike) -> dict[str, float | None]:
    """Mean of the class accuracies in each group, and the accuracy on all images."""
    counts = np.asarray(counts)
    each = class_accuracies(predicted, labels, len(counts))
    found: dict[str, float | None] = {}
    for name, chosen in shots(counts).items():
        values = each[chosen & ~np.isnan(each)]
        found[name] = float(values.mean()) if len(values) else None
    found["overall"] = float(np.mean(np.asarray(predicted) == np.asarray(labels)))
    return found


def f_measure(known: ArrayLike, labels: ArrayLike, unknown: ArrayLike) -> float | None:
    """F-measure on the open set; None without unknown images.

    ``known``: predictions for images of known classes, ``unknown``: for the others; -1 is a rejection. A known image is
    right if its class is predicted, else wrong; an unknown one is missed if it is not rejected. The F-measure is the
    harmonic mean of right / (right + wrong) and right / (right + missed).
    """
    known, labels, unknown = np.asarray(known), np.asarray(labels), np.asarray(unknown)
    if not len(unknown):
        return None
    right = int((known == labels).sum())
    wrong, missed = len(labels) - right, int((unknown != UNKNOWN).sum())
    return 2 * right / (2 * right + wrong + missed)


def auroc(known: ArrayLike, unknown: ArrayLike) -> float | None:
    """Area under the ROC curve of telling known from unknown images by their confidence; None if one set is empty.

    ``known`` and ``unknown`` are the largest probabilities of the images. It is the probability that a random known
    image has the larger one, where equal ones count half: no threshold is needed. Chance is 0.5.
    """
    known, unknown = np.asarray(known, np.float64), np.sort(np.asarray(unknown, np.float64))
    if not len(known) or not len(unknown):
        return None
    below = np.searchsorted(unknown, known, "left")  # unknown images that are less sure than each known one
    not_above = np.searchsorted(unknown, known, "right")
    return float((below.sum() + not_above.sum()) / (2 * len(known) * len(unknown)))


def fpr95(known: ArrayLike, unknown: ArrayLike) -> float | None:
    """Share of the unknown images that are kept by the largest threshold which keeps 95 % of the known ones; None if
    one set is empty. An image is kept if its largest probability reaches the threshold. Smaller is better.
    """
    known, unknown = np.asarray(known, np.float64), np.asarray(unknown, np.float64)
    if not len(known) or not len(unknown):
        return None
    kept = math.ceil(KNOWN_KEPT * len(known) - 1e-9)  # 0.95 * 20 is a little more than 19 in binary
    threshold = np.sort(known)[len(known) - kept]
    return float(np.mean(unknown >= threshold))


def rejected(predicted: ArrayLike, confidence: ArrayLike, below: float) -> NDArray[np.int64]:
    """The predictions, with -1 where the largest probability is below the threshold."""
    return np.where(np.asarray(confidence) < below, UNKNOWN, np.asarray(predicted))


def measure(
    predicted: ArrayLike,
    confidence: ArrayLike,
    labels: ArrayLike,
    counts: ArrayLike,
    open_predicted: ArrayLike,
    open_confidence: ArrayLike,
    below: float,
) -> dict[str, float | None]:
    """All measures of a run: closed set, then open set."""
    kept = rejected(predicted, confidence, below)
    opened = by_shots(kept, labels, counts)
    return {
        **by_shots(predicted, labels, counts),
        **{f"open_{name}": opened[name] for name in GROUPS},
        "f_measure": f_measure(kept, labels, rejected(open_predicted, open_confidence, below)),
        "auroc": auroc(confidence, open_confidence),
        "fpr95": fpr95(confidence, open_confidence),
    }
