"""Networks, which turn an image into features and class scores."""

from ocil.networks.growth import NOT_MET, Growing, GrowingHead, grow, meet, with_rows
from ocil.networks.inputs import ImageShape, smallest_batch, to_float
from ocil.networks.modes import bn_momentum, evaluating, seeded, virtual_step
from ocil.networks.reduced_resnet18 import Block, ReducedResNet18, build

__all__ = [
    "NOT_MET",
    "Block",
    "Growing",
    "GrowingHead",
    "ImageShape",
    "ReducedResNet18",
    "bn_momentum",
    "build",
    "evaluating",
    "grow",
    "meet",
    "seeded",
    "smallest_batch",
    "to_float",
    "virtual_step",
    "with_rows",
]
