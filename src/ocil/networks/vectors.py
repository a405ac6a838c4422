"""Networks for vectors, such as embeddings of a network that was trained elsewhere."""

from itertools import pairwise

from torch import Tensor, nn

from ocil.errors import OcilError
from ocil.networks.inputs import InputShape


class Linear(nn.Module):
    """No layer at all: the vector is its own feature, and the head is the classifier."""

    def __init__(self, input_shape: InputShape, normalise: bool = False) -> None:
        """``normalise``: bring every vector to length 1."""
        super().__init__()
        self.normalise = normalise

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x) if self.normalise else x


class MLP(nn.Sequential):
    """Linear layers with ReLU between them."""

    def __init__(self, input_shape: InputShape, hidden: int | tuple[int, ...] = (256, 256)) -> None:
        """``hidden``: the size of the layer before the head, or the sizes of several."""
        sizes = (hidden,) if isinstance(hidden, int) else tuple(hidden)
        if not sizes or not all(isinstance(size, int) and 0 < size <= 65536 for size in sizes):
            raise OcilError(f"mlp(hidden={hidden!r}): give one size or several, each from 1 to 65,536.")
        layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise((*input_shape, *sizes))]
        super().__init__(*(part for layer in layers for part in layer))
