"""Learn a folder CLASS/IMAGE.png in random order, save the model, load it and classify the images again.

Run it: python examples/folder.py photos my-model
"""

import random
import sys
from pathlib import Path

import ocil


def main(folder: Path, model: Path, **options: object) -> float:
    files = [path for path in sorted(folder.glob("*/*")) if path.suffix.lower() in (".png", ".jpg", ".jpeg")]
    random.Random(0).shuffle(files)
    labels = [path.parent.name for path in files]

    learner = ocil.OnlineClassifier("afs", image_shape=(32, 32, 3), random_state=0, **options)
    for first in range(0, len(files), 100):  # as they would arrive
        learner.partial_fit(files[first : first + 100], labels[first : first + 100])
        learner.save(model)  # if the process is killed, at most the last hundred images are lost
    learner.review()
    learner.save(model)

    loaded = ocil.OnlineClassifier.load(model)
    accuracy = float(loaded.score(files, labels))
    print(f"{len(files)} images, {len(loaded.classes_)} classes, accuracy on what was learned {accuracy:.2f}")
    return accuracy


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
