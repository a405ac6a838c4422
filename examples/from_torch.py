"""Learn from a dataset of torch or torchvision: any dataset with len() and [] that returns (image, label).

Run it: python examples/from_torch.py
"""

import torch

import ocil


class Blobs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Stands for your dataset: float images [C, H, W] in [0, 1], a spot at another place for each of four classes."""

    classes = ("north-west", "north-east", "south-west", "south-east")

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.arange(count) % 4
        self.images = 0.3 * torch.rand(count, 3, 16, 16, generator=generator)
        for image, label in zip(self.images, self.targets.tolist(), strict=True):
            top, left = 8 * (label // 2), 8 * (label % 2)
            image[:, top + 2 : top + 6, left + 2 : left + 6] += 0.6

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.images[number], int(self.targets[number])


def main(count: int = 400, **settings: object) -> float:
    data = ocil.Dataset.from_torch(Blobs(count, 0), Blobs(100, 1), name="blobs")
    print(f"{len(data.train_y)} images of {', '.join(data.classes)}, {data.image_shape}")

    stream = ocil.Stream(data, ocil.StreamConfig(tasks=2), seed=0)
    learner = ocil.make_learner("er", data, **{"memory": 50, "width": 4} | settings)
    evaluate, row = ocil.Evaluator(stream), []
    for batch in stream:
        learner.learn(batch.x, batch.y)
        if batch.evaluation_point is not None:
            row = evaluate(learner, batch.evaluation_point).accuracy
            print(f"after task {batch.evaluation_point + 1}: accuracy per task {[round(each, 2) for each in row]}")
    return sum(row) / len(row)


if __name__ == "__main__":
    main()
