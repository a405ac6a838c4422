"""How much device memory a run takes, before it starts."""

import math
import sys
from typing import NamedTuple

import torch

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluation.evaluator import batch_for, pixel_count
from ocil.learning import optimizers
from ocil.methods.passes import images_held
from ocil.networks import ReducedResNet18, WrappedNetwork
from ocil.runs.build import network_of, problem_of
from ocil.runs.config import RunConfig
from ocil.streams.device import GPU_SHARE
from ocil.text import bytes_text

RESERVE = 1 << 30  # CUDA's own, the libraries' workspaces, fragments
MAPS = 3  # feature maps that an evaluation holds at a time: a layer's input, its output, and the skip connection
COPIES = 4  # of each activation: itself, its gradient, and what the layers before and after keep of it


def dataset_bytes(dataset: Dataset) -> int:
    return sum(array.nbytes for array in (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y))


def bytes_on_device(dataset: Dataset, free: int) -> int:
    """What a dataset takes of a device with ``free`` bytes: its labels, and its inputs unless they stay on the host."""
    inputs = dataset.train_x.nbytes + dataset.test_x.nbytes
    return dataset_bytes(dataset) - (inputs if inputs > GPU_SHARE * free else 0)


def run_bytes(config: RunConfig, dataset: Dataset) -> int:
    """An upper estimate: memory, weights with gradients, the method's own state, activations of the largest batch of a
    step or evaluation.
    """
    learner, stream = config.learner, config.stream
    size = math.prod(dataset.input_shape)
    batch = _images_held(config, dataset.num_classes)
    need = _network_needs(config, dataset)
    order = 8 * len(dataset.train_y) * (stream.epochs + bool(stream.label_noise))  # wrong labels are the run's own
    step = COPIES * 4 * batch * (need.written + size)
    scored = min(batch_for("cuda", pixel_count(dataset.input_shape)), max(len(dataset.train_y), len(dataset.test_y)))
    evaluation = 4 * (scored * size + min(scored, need.together) * need.largest)
    stored = (learner.memory + 1) * (size * dataset.train_x.itemsize + 8)
    forward = 4 * batch * (size + need.largest)  # more than the step's own, if most of the network is frozen
    problem = problem_of(dataset, dataset.num_classes + dataset.unseen, learner)
    extra = config.learner_class.extra_state(learner, problem, network_of(learner, problem.input_shape))
    # Of each weight: itself, its gradient, the optimiser's numbers, its average and the move of it.
    copies = 2 + optimizers.numbers_kept(learner.optimizer) + (2 if learner.average else 0)
    computing = max(step, forward, evaluation + extra.scoring)
    return stored + 4 * copies * need.weights + extra.kept + computing + order


class _Needs(NamedTuple):
    """What a network takes, in numbers."""

    weights: int
    written: int
    """Written in a pass of one input forward, by all layers that are trained."""
    largest: int
    """Held at a time in a pass of one input without a backward pass."""
    together: int
    """Inputs that such a pass takes at a time."""


def _network_needs(config: RunConfig, dataset: Dataset) -> _Needs:
    learner = config.learner
    network = network_of(learner, dataset.input_shape)
    if not isinstance(network, ReducedResNet18):
        assert isinstance(network, WrappedNetwork)  # noqa: S101
        weights = sum(parameter.numel() for parameter in network.parameters())
        weights += network.feature_size * dataset.num_classes
        largest = MAPS * max(network.numbers_written.values(), default=0)
        return _Needs(weights, network.trained_numbers_written, largest, network.largest_batch)
    pixels, written, weights = pixel_count(dataset.input_shape), 0, network.width * 8 * 4 * dataset.num_classes
    for factor in (1, 2, 4, 8):
        written += 5 * factor * network.width * max(1, pixels // factor**2)
        weights += 4 * 9 * (factor * network.width) ** 2
    return _Needs(weights, written, MAPS * network.width * pixels, sys.maxsize)


def _images_held(config: RunConfig, classes: int) -> int:
    """Images whose activations a step holds at a time, on the stream, in a review or at a task's end."""
    kind, learner = config.learner_class, config.learner
    at_task_end = [each.images for each in kind.task_end_passes(learner, classes, learner.memory) if each.trains]
    return max(
        images_held(kind.passes(learner, config.stream.batch_size, classes)),
        images_held(kind.review_passes(learner, classes)) if learner.memory else 0,
        *at_task_end,
    )


def how_many_fit(config: RunConfig, dataset: Dataset, free: int) -> int:
    """How many runs like this one fit into ``free`` bytes. Raises ``OcilError`` if not even one does."""
    shared, each = RESERVE + bytes_on_device(dataset, free), run_bytes(config, dataset)
    left = free - shared
    if left < each:
        raise OcilError(
            f"{config.cell} needs about {bytes_text(shared + each)} on the GPU and {bytes_text(free)} are free: "
            "use a smaller memory, memory_batch or width, or the CPU (--device cpu)."
        )
    return left // each


def free_bytes(device: torch.device) -> int:
    """Free memory of a GPU, before runs on it start; practically unlimited on a CPU, which only tests ask for.

    What PyTorch keeps of runs that have ended is given back first: it would count as taken.
    """
    if device.type != "cuda":
        return 1 << 60
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]
