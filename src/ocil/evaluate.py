"""What a learner knows at one moment: accuracy by class group, and how it leans to new classes."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ocil.errors import OcilError
from ocil.methods.base import Learner
from ocil.streams import Stream

HARD, EASY = 0.3, 0.6  # the paper's bounds on the true class's score: below is hard, above is easy
BATCH = 500


@dataclass(frozen=True)
class Evaluation:
    """One row of the accuracy matrix and the numbers behind the paper's figures on task-recency bias.

    Logits are averaged over the test samples of all classes shown so far. Weights are the last layer's, bias included.
    Sample types count the training samples of the new classes by the score of their true class. What does not apply
    (no old class yet, no linear layer) is None.
    """

    accuracy: list[float]
    mean_logit_old: float | None
    mean_logit_new: float | None
    mean_weight_old: float | None
    mean_weight_new: float | None
    hard: int
    ambiguous: int
    easy: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Evaluator:
    """Holds the test set on the device and looks at a learner after each class group."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.x = torch.from_numpy(stream.data.test_x).to(stream.device)
        self.y = torch.from_numpy(stream.data.test_y).to(stream.device)
        group_of = torch.empty(stream.data.num_classes, dtype=torch.int64)
        for number, classes in enumerate(stream.groups):
            group_of[classes] = number
        self.group = group_of.to(stream.device)[self.y]
        counts = torch.bincount(self.group, minlength=len(stream.groups)).tolist()
        if 0 in counts:
            names = ", ".join(stream.data.classes[c] for c in stream.groups[counts.index(0)])
            raise OcilError(f"{stream.data.name} has no test image of {names}: add some, or use fewer tasks.")

    def __call__(self, learner: Learner, checkpoint: int) -> Evaluation:
        new, old = self.stream.new_classes(checkpoint), self.stream.old_classes(checkpoint)
        scores = scores_of(learner, self.x)
        hits = (scores.argmax(1) == self.y).double()
        groups = len(self.stream.groups)
        correct = torch.zeros(groups, dtype=torch.float64, device=hits.device).index_add_(0, self.group, hits)
        total = torch.bincount(self.group, minlength=groups)
        shown = scores[torch.isin(self.y, torch.tensor(old + new, device=self.y.device))]

        x, y = self.stream.samples_of(new)
        p = scores_of(learner, x).softmax(1).gather(1, y[:, None])
        head = getattr(learner.network, "head", None)
        weights = None
        if isinstance(head, torch.nn.Linear):
            weights = torch.cat([head.weight, head.bias[:, None]], dim=1).detach().T
        return Evaluation(
            accuracy=(correct / total).tolist(),
            mean_logit_old=_mean(shown, old),
            mean_logit_new=_mean(shown, new),
            mean_weight_old=None if weights is None else _mean(weights, old),
            mean_weight_new=None if weights is None else _mean(weights, new),
            hard=int((p < HARD).sum()),
            ambiguous=int(((p >= HARD) & (p <= EASY)).sum()),
            easy=int((p > EASY).sum()),
        )


def scores_of(learner: Learner, x: Tensor) -> Tensor:
    return torch.cat([learner.scores(part) for part in x.split(BATCH)]).float()


def _mean(values: Tensor, columns: list[int]) -> float | None:
    return float(values[:, columns].mean()) if columns and len(values) else None
