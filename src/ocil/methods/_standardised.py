"""Images cropped, turned gray and standardised by fixed numbers, for the methods that were published so."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ocil.learning.views import RandomViews, crop_range
from ocil.methods.config import LearnerConfig

MEAN, STD = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)  # CIFAR-10's, as released


@dataclass(frozen=True)
class StandardisedConfig(LearnerConfig):
    """Settings of the methods that standardise images, and whose random views are crops, some of them gray."""

    normalise: bool = True
    """Standardise images by CIFAR-10's mean and deviation, on every dataset, as released."""
    crop: float = 0.3
    """Smallest area of the random crop, as a share of the image; 1 switches the crop off."""
    gray: float = 0.25
    """Probability that an image turns gray."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.random_views()  # raises if a value is out of its bounds

    def random_views(self) -> RandomViews:
        return RandomViews(crop_scale=crop_range(self.crop), flip=0.0, jitter=0.0, gray=self.gray)


class Standardise(nn.Module):
    """Subtracts CIFAR-10's mean and divides by its deviation, whatever the dataset. Images with one channel get the
    average of the three numbers. Unless it is ``active``, images stay as they are.
    """

    def __init__(self, channels: int, device: torch.device, active: bool) -> None:
        super().__init__()
        self.active = active
        mean, std = (torch.tensor(values, device=device) for values in (MEAN, STD))
        if channels != 3:
            mean, std = mean.mean(0, keepdim=True), std.mean(0, keepdim=True)
        self.mean: Tensor = nn.Buffer(mean.view(-1, 1, 1), persistent=False)
        self.std: Tensor = nn.Buffer(std.view(-1, 1, 1), persistent=False)

    def __call__(self, images: Tensor) -> Tensor:  # not forward: calls of a module have no type
        """Standardise images ``[B, C, H, W]`` with values from 0 to 1."""
        if not self.active:
            return images
        return (images - self.mean.expand(images.shape[1:])) / self.std
