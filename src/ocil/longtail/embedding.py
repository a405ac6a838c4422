"""Dynamic meta-embedding: an image's own feature, enriched by the centroids of the classes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NEAREST = 1e-6  # smallest distance, for a feature that lies on a centroid


class CosineClassifier(nn.Module):
    """``scale · x / (1 + |x|) · w / |w|`` for each class."""

    def __init__(self, features: int, classes: int, scale: float = 16.0) -> None:
        super().__init__()
        self.scale = scale
        bound = features**-0.5
        self.weight = nn.Parameter(torch.empty(classes, features).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        shrunk = x / (1 + torch.linalg.vector_norm(x, dim=1, keepdim=True))
        return F.linear(self.scale * shrunk, F.normalize(self.weight, dim=1))


class MetaEmbedding(nn.Module):
    """Logits from features and centroids (Liu et al., CVPR 2019).

    ``memory = softmax(hallucinator(f)) · centroids``, ``selector = tanh(linear(f))``,
    ``reachability = reach / distance to the nearest centroid``, and the cosine classifier sees
    ``reachability · (f + selector ⊙ memory)``. No gradient flows into the centroids here.
    """

    def __init__(self, features: int, classes: int, scale: float = 16.0, reach: float = 10.0) -> None:
        super().__init__()
        self.reach = reach
        self.hallucinator = nn.Linear(features, classes)
        self.selector = nn.Linear(features, features)
        self.classifier = CosineClassifier(features, classes, scale)

    def forward(self, features: Tensor, centroids: Tensor) -> Tensor:
        centroids = centroids.detach()
        memory = torch.softmax(self.hallucinator(features), dim=1) @ centroids
        selector = torch.tanh(self.selector(features))
        logits: Tensor = self.classifier(self.reachability(features, centroids) * (features + selector * memory))
        return logits

    def reachability(self, features: Tensor, centroids: Tensor) -> Tensor:
        """``[B, 1]``: small for an image that is far from everything known."""
        with torch.no_grad():  # only the distance to the nearest one needs a gradient
            nearest = torch.cdist(features, centroids, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        distance: Tensor = torch.linalg.vector_norm(features - centroids[nearest], dim=1, keepdim=True)
        return self.reach / distance.clamp_min(NEAREST)
