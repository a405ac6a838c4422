"""Embeddings of a network that was trained elsewhere, as a stream: learned, saved, loaded, and learned on.

Run it: python examples/embeddings.py my-model
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import ocil


def embeddings(classes: int, each: int, size: int = 384, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Stands for yours: float32 [N, size] of length 1, class after class."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), each)
    x = rng.normal(size=(classes, size))[y] + rng.normal(scale=0.5, size=(len(y), size))
    labels = np.array([f"class {label}" for label in y])
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


def main(folder: Path, method: str = "er", **options: object) -> float:
    x, y = embeddings(classes=20, each=60)
    seen, new = np.arange(len(y)) % 6 > 0, np.arange(len(y)) % 6 == 0
    first, last = np.flatnonzero(seen)[:500], np.flatnonzero(seen)[500:]

    learner = ocil.OnlineClassifier(method, memory=200, settings={"lr": 1.0}, random_state=0, **options)
    learner.partial_fit(x[first], y[first])
    learner.save(folder)
    learner = ocil.OnlineClassifier.load(folder)  # another day, another process
    learner.partial_fit(x[last], y[last])
    learner.review()

    accuracy = float(learner.score(x[new], y[new]))
    print(f"{learner.model_.input_format}, {len(learner.classes_)} classes, accuracy {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
