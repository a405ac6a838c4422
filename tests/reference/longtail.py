"""Long-tailed recognition one number at a time."""

import math
from collections.abc import Sequence

import numpy as np

Matrix = np.ndarray


def disc_centroids(
    features: Matrix, labels: Sequence[int], centroids: Matrix, margin: float, repel_weight: float
) -> float:
    batch, classes = len(features), len(centroids)
    near = far = 0.0
    for f, y in zip(features, labels, strict=True):
        for j in range(classes):
            distance = sum((a - b) ** 2 for a, b in zip(f, centroids[j], strict=True))
            if j == y:
                near += distance
            else:
                far += distance
    return near / (2 * batch) + repel_weight * max(0.0, margin - far / (batch * classes))


def pull_on_centroids(features: Matrix, labels: Sequence[int], centroids: Matrix) -> Matrix:
    """Σ (c - f) / (1 + count) / B over the images of each class."""
    found = np.zeros_like(centroids)
    for j in range(len(centroids)):
        own = [f for f, y in zip(features, labels, strict=True) if y == j]
        for f in own:
            found[j] += (centroids[j] - f) / (1 + len(own)) / len(features)
    return found


def repel_on_centroids(features: Matrix, labels: Sequence[int], centroids: Matrix, margin: float) -> Matrix:
    """Derivative of max(0, margin - mean squared distance to the others) by the centroids."""
    batch, classes = len(features), len(centroids)
    far = sum(
        float(((f - centroids[j]) ** 2).sum())
        for f, y in zip(features, labels, strict=True)
        for j in range(classes)
        if j != y
    )
    found = np.zeros_like(centroids)
    if far / (batch * classes) < margin:
        for f, y in zip(features, labels, strict=True):
            for j in range(classes):
                if j != y:
                    found[j] -= 2 * (centroids[j] - f) / (batch * classes)
    return found


def slopes(function: object, x: Matrix, step: float = 1e-6) -> Matrix:
    """Derivatives by differences."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            found[place] += sign * function(moved) / (2 * step)  # type: ignore[operator]
    return found


def dynamic_mu(scores: Sequence[float], bins: int, share: float) -> float:
    """The definition: the smallest M with Σ_{i=0}^{M} bin_i >= share · count; mu = M / bins."""
    counts = [0] * bins
    for score in scores:
        counts[min(bins - 1, math.floor(score * bins))] += 1
    reached = 0
    for number, count in enumerate(counts):
        reached += count
        if reached >= share * len(scores):
            return number / bins
    raise AssertionError


def attention(x: Matrix, weights: dict[str, Matrix]) -> Matrix:
    """Modulated attention of one map [C, H, W]."""
    channels, height, width = x.shape
    pixels = [x[:, i, j] for i in range(height) for j in range(width)]

    def one_by_one(name: str, value: Matrix) -> Matrix:
        return weights[f"{name}.weight"][:, :, 0, 0] @ value + weights[f"{name}.bias"]

    query, key, value = ([one_by_one(name, p) for p in pixels] for name in ("query", "key", "value"))
    place = softmax(weights["place.weight"] @ x.reshape(-1) + weights["place.bias"])
    found = np.zeros_like(x)
    for number in range(len(pixels)):
        similar = softmax(np.array([query[number] @ k for k in key]))
        seen = sum(s * v for s, v in zip(similar, value, strict=True))
        found[:, number // width, number % width] = pixels[number] + place[number] * one_by_one("out", seen)
    assert channels == len(found)
    return found


def meta_embedding(f: Matrix, centroids: Matrix, weights: dict[str, Matrix], scale: float, reach: float) -> Matrix:
    """Logits of one feature."""
    share = softmax(weights["hallucinator.weight"] @ f + weights["hallucinator.bias"])
    memory = sum(s * c for s, c in zip(share, centroids, strict=True))
    selector = np.tanh(weights["selector.weight"] @ f + weights["selector.bias"])
    nearest = min(math.sqrt(((f - c) ** 2).sum()) for c in centroids)
    x = reach / nearest * (f + selector * memory)
    shrunk = x / (1 + math.sqrt((x**2).sum()))
    return np.array([scale * shrunk @ w / math.sqrt((w**2).sum()) for w in weights["classifier.weight"]])


def auroc(known: Sequence[float], unknown: Sequence[float]) -> float:
    """Pair by pair: how often the known image is the surer one; a tie is half."""
    won = sum(1.0 if k > u else 0.5 if k == u else 0.0 for k in known for u in unknown)
    return won / (len(known) * len(unknown))


def fpr95(known: Sequence[float], unknown: Sequence[float]) -> float:
    """Threshold by threshold, from the largest: the first that keeps 95 % of the known images."""
    for threshold in sorted(known, reverse=True):
        if 100 * sum(k >= threshold for k in known) >= 95 * len(known):
            return sum(u >= threshold for u in unknown) / len(unknown)
    raise AssertionError


def balanced_softmax(logits: Matrix, labels: Sequence[int], counts: Sequence[int]) -> float:
    """Mean of -log(n_y e^{z_y} / Σ_j n_j e^{z_j}), as it was published."""
    lost = [
        -math.log(counts[y] * math.exp(z[y]) / sum(n * math.exp(v) for n, v in zip(counts, z, strict=True)))
        for z, y in zip(logits, labels, strict=True)
    ]
    return sum(lost) / len(lost)


def softmax(values: Matrix) -> Matrix:
    e = np.exp(values - values.max())
    return e / e.sum()
