"""Images standardised by fixed numbers, for the methods that were published with them."""

import torch
from torch import Tensor, nn

MEAN, STD = (125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)  # CIFAR-10's, as released


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
        """Of images ``[B, C, H, W]`` from 0 to 1."""
        if not self.active:
            return images
        return (images - self.mean.expand(images.shape[1:])) / self.std
