"""Networks, which turn an image or a vector into features and class scores.

``base``        what every network has; ``inputs``: what it takes
``registry``    the networks by name, and how one is built; ``spec``: ``NAME(option=value)``
``reduced_resnet18``  the paper's network, which has kernels of its own
``wrapped``     a network around any other module
``resnet18``, ``vectors``, ``timm_models``  such modules: ResNet-18, layers for vectors, models of timm
``pretrained``  weights from files
``growth``      heads that grow as classes arrive
``modes``       evaluation, virtual steps and the like, inside a block
"""

from ocil.networks.base import Network, Outputs, networks_in, unsaved_buffers
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
    "unsaved_buffers",
    "virtual_step",
    "with_rows",
]
