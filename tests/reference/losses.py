"""The losses one sample at a time, in plain Python floats, with their gradients derived by hand."""

import math
from collections.abc import Sequence

Row = Sequence[float]


def log_softmax(logits: Row) -> list[float]:
    largest = max(logits)
    normaliser = math.log(math.fsum(math.exp(z - largest) for z in logits))
    return [z - largest - normaliser for z in logits]


def softmax(logits: Row) -> list[float]:
    return [math.exp(value) for value in log_softmax(logits)]


def weight(u: float, mu: float, sigma: float) -> float:
    return math.exp(-((u - mu) ** 2) / sigma)


def cross_entropy(logits: Row, label: int) -> float:
    return -log_softmax(logits)[label]


def focal(logits: Row, label: int, alpha: float, gamma: float) -> float:
    log_p = log_softmax(logits)[label]
    return -alpha * (1 - math.exp(log_p)) ** gamma * log_p


def revised_focal(logits: Row, label: int, alpha: float, mu: float, sigma: float, u: float | None = None) -> float:
    log_p = log_softmax(logits)[label]
    return -alpha * weight(math.exp(log_p) if u is None else u, mu, sigma) * log_p


def smoothed(classes: int, label: int, epsilon: float) -> list[float]:
    return [1 - epsilon if c == label else epsilon / (classes - 1) for c in range(classes)]


def virtual_distillation(logits: Row, label: int, beta: float, temperature: float, epsilon: float) -> float:
    teacher = softmax([v / temperature for v in smoothed(len(logits), label, epsilon)])
    student = log_softmax([z / temperature for z in logits])
    return beta * temperature**2 * math.fsum(-q * s for q, s in zip(teacher, student, strict=True))


def label_smoothing(logits: Row, label: int, epsilon: float) -> float:
    target = smoothed(len(logits), label, epsilon)
    return math.fsum(-t * s for t, s in zip(target, log_softmax(logits), strict=True))


def smu(logits: Row) -> float:
    second, first = sorted(softmax(logits))[-2:]
    return first - second


def gini(logits: Row) -> float:
    return math.fsum(p * p for p in softmax(logits))


def entropy(logits: Row) -> float:
    disorder = math.fsum(-math.exp(s) * s for s in log_softmax(logits))
    return 1 - disorder / math.log(len(logits))


def gen(batch: Sequence[Row], features: Sequence[Row]) -> list[float]:
    """Relative to the batch: the norm of the whole outer product (p - e) h', entry by entry."""
    norms = []
    for logits, feature in zip(batch, features, strict=True):
        p = softmax(logits)
        predicted = p.index(max(p))
        residual = [value - (c == predicted) for c, value in enumerate(p)]
        norms.append(math.sqrt(math.fsum((r * h) ** 2 for r in residual for h in feature)))
    largest = max(norms)
    return [1 - norm / largest for norm in norms]


# Gradients with respect to every logit. A loss that is a function of log p_t alone has the gradient
# slope · ([c = t] - p_c), where slope is its derivative by log p_t.


def slope_to_gradient(slope: float, logits: Row, label: int) -> list[float]:
    log_p = log_softmax(logits)
    # 1 - p_t by expm1: the digits near p_t = 1 are what these tests are about
    return [slope * (-math.expm1(s) if c == label else -math.exp(s)) for c, s in enumerate(log_p)]


def cross_entropy_gradient(logits: Row, label: int) -> list[float]:
    return slope_to_gradient(-1.0, logits, label)


def focal_gradient(logits: Row, label: int, alpha: float, gamma: float) -> list[float]:
    log_p = log_softmax(logits)[label]
    p, q = math.exp(log_p), -math.expm1(log_p)
    slope = -alpha * (q**gamma - gamma * p * q ** (gamma - 1) * log_p)
    return slope_to_gradient(slope, logits, label)


def revised_focal_gradient(logits: Row, label: int, alpha: float, mu: float, sigma: float) -> list[float]:
    log_p = log_softmax(logits)[label]
    p = math.exp(log_p)
    slope = -alpha * weight(p, mu, sigma) * (1 - 2 * p * (p - mu) * log_p / sigma)
    return slope_to_gradient(slope, logits, label)


def virtual_distillation_gradient(
    logits: Row, label: int, beta: float, temperature: float, epsilon: float
) -> list[float]:
    teacher = softmax([v / temperature for v in smoothed(len(logits), label, epsilon)])
    student = softmax([z / temperature for z in logits])
    return [beta * temperature * (p - q) for p, q in zip(student, teacher, strict=True)]


def label_smoothing_gradient(logits: Row, label: int, epsilon: float) -> list[float]:
    target = smoothed(len(logits), label, epsilon)
    return [p - t for p, t in zip(softmax(logits), target, strict=True)]
