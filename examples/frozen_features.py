"""Learn from features of a network that was trained elsewhere, without a memory and without forgetting.

Run it: python examples/frozen_features.py cifar100 timm:tf_efficientnet_lite0 efficientnet-lite0.pth
"""

import sys
from pathlib import Path

import ocil
from ocil.runs.features import Encoder, features_of


def main(dataset: str, network: str, weights: str = "", method: str = "slda", data_dir: Path | None = None) -> float:
    images = ocil.load_dataset(dataset, data_dir)
    # Computed once, with a checksum, in the data folder: the next program that asks for them reads them.
    vectors = features_of(
        images,
        Encoder(network, weights),
        data_dir=data_dir,
        on_progress=lambda done, total: print(f"\rfeatures: {done} of {total}", end="", file=sys.stderr),
    )
    learner = ocil.make_learner(method, vectors)
    stream = ocil.Stream(vectors)
    evaluate = ocil.Evaluator(stream)
    row: list[float] = []
    for batch in stream:
        learner.learn(batch.x, batch.y)
        if batch.evaluation_point is not None:
            row = evaluate(learner, batch.evaluation_point).accuracy
            shown = row[: batch.evaluation_point + 1]
            print(f"after task {batch.evaluation_point + 1}: accuracy {100 * sum(shown) / len(shown):.1f} %")
    return sum(row) / len(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
