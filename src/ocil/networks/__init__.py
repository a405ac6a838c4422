"""Networks, which turn an image or a vector into features and class scores."""

from ocil.networks.base import Network, Outputs, networks_in
from ocil.networks.growth import NOT_MET, Growing, GrowingHead, grow, meet, with_rows
from ocil.networks.inputs import ImageShape, InputShape, image_shape, is_image, to_float
from ocil.networks.modes import bn_momentum, evaluating, seeded, virtual_step
from ocil.networks.reduced_resnet18 import Block, ReducedResNet18, smallest_batch
from ocil.networks.registry import NETWORKS, NetworkInfo, build, has_random_weights, network, register
from ocil.networks.wrapped import WrappedNetwork

__all__ = [
    "NETWORKS",
    "NOT_MET",
    "Block",
    "Growing",
    "GrowingHead",
    "ImageShape",
    "InputShape",
    "Network",
    "NetworkInfo",
    "Outputs",
    "ReducedResNet18",
    "WrappedNetwork",
    "bn_momentum",
    "build",
    "evaluating",
    "grow",
    "has_random_weights",
    "image_shape",
    "is_image",
    "meet",
    "network",
    "networks_in",
    "register",
    "seeded",
    "smallest_batch",
    "to_float",
    "virtual_step",
    "with_rows",
]
