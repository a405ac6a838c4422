"""How much device memory a run takes, before it starts."""

import torch

from ocil.config import RunConfig
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluate import batch_for
from ocil.methods import method

RESERVE = 1 << 30  # CUDA's own, the libraries' workspaces, fragments
MAPS = 3  # that an evaluation holds at a time: a layer's input and output, and what is added to it
COPIES = 4  # of each activation: as it is, its gradient, and what the layers before and after keep of it


def dataset_bytes(dataset: Dataset) -> int:
    return sum(array.nbytes for array in (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y))


def run_bytes(config: RunConfig, dataset: Dataset) -> int:
    """Memory store, weights with gradients, and the activations of the largest batch that a step has or an evaluation
    keeps: an upper estimate.
    """
    learner, stream = config.learner, config.stream
    height, width, channels = dataset.image_shape
    image = height * width * channels
    batch = method(config.method).load().images_at_once(learner, stream.batch_size, dataset.num_classes)
    pixels, written, weights = height * width, 0, learner.width * 8 * 4 * dataset.num_classes
    for factor in (1, 2, 4, 8):
        written += 5 * factor * learner.width * max(1, pixels // factor**2)
        weights += 4 * 9 * (factor * learner.width) ** 2
    order = 8 * len(dataset.train_y) * stream.epochs
    step = COPIES * 4 * batch * (written + image)
    scored = min(batch_for("cuda", pixels), max(len(dataset.train_y), len(dataset.test_y)))
    evaluation = 4 * scored * (image + MAPS * learner.width * pixels)
    return (learner.memory + 1) * (image + 8) + 12 * weights + max(step, evaluation) + order


def how_many_fit(config: RunConfig, dataset: Dataset, free: int) -> int:
    """Runs of this kind that fit side by side; an OcilError that says so if not even one does."""
    left, each = free - RESERVE - dataset_bytes(dataset), run_bytes(config, dataset)
    if left < each:
        needed = (RESERVE + dataset_bytes(dataset) + each) / 1e9
        raise OcilError(
            f"{config.cell} needs about {needed:.1f} GB on the GPU and {free / 1e9:.1f} GB are free: "
            "use a smaller memory, memory_batch or width, or --device cpu."
        )
    return left // each


def free_bytes(device: torch.device) -> int:
    """Free memory of a GPU; on a CPU, where only tests come, as much as anybody wants."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 60
