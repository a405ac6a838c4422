"""Measures of an accuracy matrix, as pure functions.

``matrix[i][j]`` is the accuracy, 0 to 1, on the test samples of class group j after the stream has shown group i.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def average_accuracy(matrix: ArrayLike) -> float:
    """Mean accuracy over all groups at the end."""
    return float(np.asarray(matrix)[-1].mean())


def average_forgetting(matrix: ArrayLike) -> float | None:
    """As in the paper: best earlier accuracy less the final one, averaged over the first T-1 groups; may be < 0."""
    a = _square(matrix)
    if a is None or len(a) < 2:
        return None
    return float((a[:-1, :-1].max(axis=0) - a[-1, :-1]).mean())


def average_forgetting_common(matrix: ArrayLike) -> float | None:
    """As most code computes it: the best includes the final row, and the mean is over all T groups."""
    a = _square(matrix)
    return None if a is None else float((a.max(axis=0) - a[-1]).mean())


def average_intransigence(matrix: ArrayLike, reference: ArrayLike) -> float | None:
    """Accuracy of a fine-tuned reference on a group just learned, less that of this learner, averaged over groups."""
    a, r = _square(matrix), _square(reference)
    if a is None or r is None or a.shape != r.shape:
        return None
    return float((np.diagonal(r) - np.diagonal(a)).mean())


def accuracy_curve(matrix: ArrayLike) -> list[float]:
    """Mean accuracy over the groups shown so far, after each group."""
    a = np.asarray(matrix)
    if _square(a) is None:
        return [average_accuracy(a)]
    return [float(row[: i + 1].mean()) for i, row in enumerate(a)]


def average_incremental_accuracy(matrix: ArrayLike) -> float | None:
    """The mean of ``accuracy_curve``; None for a matrix with one row for many groups."""
    a = _square(matrix)
    return None if a is None else float(np.mean(accuracy_curve(a)))


def backward_transfer(matrix: ArrayLike) -> float | None:
    """BWT: final accuracy on a group less that just after it was shown, averaged over the first T-1 groups."""
    a = _square(matrix)
    if a is None or len(a) < 2:
        return None
    return float((a[-1, :-1] - np.diagonal(a)[:-1]).mean())


def forward_transfer(matrix: ArrayLike, chance: float) -> float | None:
    """FWT: accuracy on a group just before it is shown, less chance (1 / classes), averaged over groups 2 to T.

    The definition subtracts the accuracy of a network with random weights, of which chance is the expected value.
    """
    a = _square(matrix)
    if a is None or len(a) < 2:
        return None
    return float((np.diagonal(a, 1) - chance).mean())


def _square(matrix: ArrayLike) -> NDArray[np.float64] | None:
    a = np.asarray(matrix, dtype=float)
    return a if a.shape[0] == a.shape[1] else None
