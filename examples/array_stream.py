"""A stream of arrays whose classes are not announced. Each batch is first predicted, then learned.

Run it: python examples/array_stream.py
"""

from collections.abc import Iterator

import numpy as np

import ocil

NAMES = ("circle", "cross", "square", "stripes")


def draw(name: str, rng: np.random.Generator) -> np.ndarray:
    """A noisy gray image, 16x16."""
    y, x = np.mgrid[-8:8, -8:8] + rng.integers(-2, 3, (2, 1, 1))
    shape = {
        "circle": np.abs(np.hypot(x, y) - 5) < 1.5,
        "cross": np.minimum(abs(x), abs(y)) < 2,
        "square": np.maximum(abs(x), abs(y)) < 5,
        "stripes": x % 4 < 2,
    }[name]
    return (200 * shape + rng.integers(0, 55, (16, 16))).astype(np.uint8)


def stream(batches: int, seed: int = 0) -> Iterator[tuple[np.ndarray, list[str]]]:
    """In every quarter of the stream one more class appears."""
    rng = np.random.default_rng(seed)
    for number in range(batches):
        known = NAMES[: 1 + 4 * number // batches]
        labels = [str(label) for label in rng.choice(known, 10)]
        yield np.stack([draw(label, rng) for label in labels]), labels


def main(batches: int = 80, **options: object) -> float:
    usual = {"memory": 200, "width": 8, "review_every": 20, "random_state": 0}
    learner = ocil.OnlineClassifier("er", **usual | options)
    right: list[float] = []
    for x, y in stream(batches):
        right += [learner.score(x, y)] if right else [0.0]
        learner.partial_fit(x, y)
    print(f"classes met: {', '.join(learner.classes_)}; accuracy before learning {np.mean(right):.2f}")
    return float(np.mean(right))


if __name__ == "__main__":
    main()
