"""A whole run, with checkpoints and a result, on batches that a generator yields.

Run it: python examples/from_generator.py
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import ocil

ANIMALS = ("cat", "dog", "owl", "wren")


def sensor(batches: int, seed: int = 0) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Stands for your source: vectors of eight numbers with a label each. New classes replace the old ones half-way."""
    rng = np.random.default_rng(seed)
    for number in range(batches):
        known = ANIMALS[:2] if number < batches // 2 else ANIMALS[2:]
        labels = [str(label) for label in rng.choice(known, 10)]
        centres = np.stack([4 * np.eye(8)[ANIMALS.index(label)] for label in labels])
        yield (centres + rng.standard_normal((10, 8))).astype(np.float32), labels


def main(batches: int = 60, root: Path | None = None, **settings: object) -> float:
    x, y = zip(*sensor(20, seed=1), strict=True)
    test = np.concatenate(x), np.concatenate(y)
    stream = ocil.Stream.from_batches(sensor(batches), test, name="sensor")
    data = stream.data
    print(f"{len(stream)} batches, tasks: {[[data.classes[label] for label in group] for group in stream.groups]}")

    config = ocil.resolve("er", data, settings={"memory": 50} | settings)
    result = ocil.run(config, root or Path(tempfile.mkdtemp()), stream=stream, device="cpu")
    print(f"{result.headline} on all four classes, in {result.wall_seconds:.1f} s")
    return ocil.metrics.average_accuracy(result.matrix)


if __name__ == "__main__":
    main()
