"""A linear probe of the representation: how well a linear classifier reads the classes from the final features.

It is ridge regression from standardised features (and a constant) onto one-hot labels, in closed form: deterministic,
without a learning rate or a number of epochs to choose. The network stays as it is.
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil.evaluation.evaluator import batch_for, pixel_count
from ocil.evaluation.record_types import ProbeRecord
from ocil.methods.base import Learner
from ocil.networks import evaluating
from ocil.precision import widest
from ocil.streams import Stream

PENALTY = 1e-3  # on squared weights, relative to the mean squared features per sample, which are 1 each


def probe(learner: Learner, stream: Stream) -> ProbeRecord:
    """Train a probe on the features of all training samples that arrive, and test it on all test images.

    Returns the accuracy and the correct test images per class. Features come from the network that scores come from:
    the averaged one with ``average``.
    """
    data, device_data, classes = stream.data, stream.device_data, stream.data.num_classes
    size = batch_for(stream.device.type, pixel_count(data.input_shape))
    index = torch.from_numpy(stream.arrivals.arriving)
    samples = index.to(device_data.index_device)
    labels = device_data.train_y[index.to(stream.device)]
    encode = encoder_of(learner)
    features = (encode(x) for x in device_data.parts("train", size, samples))
    weights, mean, scale = fit(features, labels.split(size), classes)
    correct = torch.zeros(classes, dtype=torch.int64, device=stream.device)
    for x, y in zip(device_data.parts("test", size), device_data.test_y.split(size), strict=True):
        predicted = (_with_one((encode(x) - mean) / scale) @ weights).argmax(1)
        correct.index_add_(0, y, (predicted == y).long())
    found = correct.tolist()
    return {"accuracy": sum(found) / len(data.test_y), "correct": found}


def encoder_of(learner: Learner) -> Callable[[Tensor], Tensor]:
    """The features ``[B, d]`` of inputs, in the widest type of the device."""
    network = learner.scoring_network

    @torch.no_grad()
    def encode(x: Tensor) -> Tensor:
        with evaluating(network):
            return network.features(learner.inputs(x)).to(widest(x.device))

    return encode


def fit(features: Iterable[Tensor], labels: Iterable[Tensor], classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ridge regression of one-hot labels. Returns weights ``[d + 1, classes]`` for standardised features with a
    constant 1 behind them, and the mean and scale ``[d]`` that standardise.

    Sums of products are all that is kept of the training samples.
    """
    products: Tensor | None = None
    for x, y in zip(features, labels, strict=True):
        rows = torch.cat([_with_one(x), F.one_hot(y, classes).to(x.dtype)], dim=1)
        part = rows.T @ rows
        products = part if products is None else products + part
    if products is None:
        raise ValueError("there are no samples")
    size = len(products) - classes - 1
    count, sums = products[size, size], products[:size, size]
    mean = sums / count
    variance = (products.diagonal()[:size] / count - mean**2).clamp(min=0)
    scale = torch.where(variance > 0, variance, 1).sqrt()
    # The sums of products as they are for standardised features, which are a linear map of the raw ones.
    change = torch.zeros(size + 1, size + 1, dtype=products.dtype, device=products.device)
    change[:size, :size] = torch.diag(1 / scale)
    change[:size, size] = -mean / scale
    change[size, size] = 1
    gram = change @ products[: size + 1, : size + 1] @ change.T
    targets = change @ products[: size + 1, size + 1 :]
    penalty = torch.full((size + 1,), PENALTY, dtype=gram.dtype, device=gram.device)
    penalty[size] = 0
    # The rows of classes without a sample are 0, and so are their weights.
    weights = torch.linalg.solve((gram / count + torch.diag(penalty)).cpu(), (targets / count).cpu())
    return weights.to(gram.device), mean, scale


def _with_one(x: Tensor) -> Tensor:
    return F.pad(x, (0, 1), value=1.0)
