"""Evaluates a learner: accuracy per class group, and how much it favours new classes."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from ocil.errors import OcilError
from ocil.evaluation.calibration import MOST_CLASSES, calibration_of, confusion_of
from ocil.evaluation.record_types import EASY, HARD, CalibrationRecord
from ocil.evaluation.subset import kinds_of
from ocil.methods.base import Learner
from ocil.networks import NOT_MET
from ocil.streams import Stream
from ocil.threads import default_if_free

BATCH = {"cpu": 500, "cuda": 2500}  # images: what fits a CPU's cache; few launches on a GPU
COUNTS = ("correct", "correct_by_domain", "confusion", "calibration")  # left out of JSON where there are none
LARGE_IMAGE = 84 * 84  # pixels; batches of larger images are smaller


@dataclass(frozen=True)
class Evaluation:
    """One row of the accuracy matrix and the numbers behind the paper's figures on task-recency bias.

    Logits are averaged over the test samples of all classes so far. Weights are those of the last layer, with its bias.
    ``hard``, ``ambiguous`` and ``easy`` count the training samples of the new classes by the score of their true class:
    those that come at some time of the stream.
    What does not apply (no old class yet, no linear layer, scores that are distances) is None.
    ``correct`` counts test images that are classified correctly among all classes, by class, and ``correct_by_domain``
    by domain and class. ``confusion`` and ``calibration`` are there at the last point alone: see ``Result``.
    """

    accuracy: list[float]
    mean_logit_old: float | None = None
    mean_logit_new: float | None = None
    mean_weight_old: float | None = None
    mean_weight_new: float | None = None
    hard: int | None = None
    ambiguous: int | None = None
    easy: int | None = None
    correct: list[int] | None = None
    correct_by_domain: list[list[int]] | None = None
    confusion: list[list[int]] | None = None
    calibration: CalibrationRecord | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields by name. Lists are not copied: a run with many classes saves very many counts, again and again."""
        return {name: value for name, value in vars(self).items() if value is not None or name not in COUNTS}


def tested_per_group(stream: Stream) -> list[int]:
    """How many test images each group of classes has. ``OcilError`` if a group has none."""
    counts = np.bincount(stream.test_groups, minlength=len(stream.groups))
    if not counts.all():
        names = stream.group_name(int(counts.argmin()))
        raise OcilError(f"{stream.data.name} has no test image of {names}: add some, or use fewer tasks.")
    return [int(count) for count in counts]


class Evaluator:
    """Evaluates a learner after each class group, on the test set of the stream's dataset.

    Calling it with a learner and the number of an evaluation point (``batch.evaluation_point``) returns an evaluation:
    ``accuracy`` is a row of the accuracy matrix, one share from 0 to 1 per group of classes, future ones among them.

    Raises:
        OcilError: A group of classes has no test image, or this is no stream.

    Examples:
        >>> data = ocil.load_dataset()
        >>> stream = ocil.Stream(data, seed=0)
        >>> evaluate = ocil.Evaluator(stream)
        >>> learner = ocil.make_learner("er", data, memory=50, width=1)
        >>> len(evaluate(learner, 0).accuracy)
        5
    """

    def __init__(self, stream: Stream) -> None:
        if not isinstance(stream, Stream):
            raise OcilError(f"an evaluator needs an ocil.Stream, not a {type(stream).__name__}: ocil.Stream(data).")
        self.stream = stream
        self.y = stream.device_data.test_y
        data, device = stream.data, stream.device
        self.group_sizes = tested_per_group(stream)
        self.group = torch.from_numpy(stream.test_groups).to(device)
        self.domains = data.num_domains
        self.kinds = torch.from_numpy(kinds_of(data)).to(device)
        self.tested = np.bincount(kinds_of(data), minlength=max(1, self.domains) * data.num_classes)

        def numbers(values: ArrayLike) -> Tensor:
            return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(device)

        # All of it is uploaded now: an upload in the middle of a run would wait for the device.
        self.points, arriving = [], stream.arrivals.arriving
        for point in range(stream.evaluation_points):
            old, new = stream.old_classes(point), stream.new_classes(point)
            tested = np.flatnonzero(np.isin(data.test_y, old + new))
            trained = numbers(arriving[np.isin(data.train_y[arriving], new)])
            self.points.append(_Point(numbers(old), numbers(new), numbers(tested), trained))

    def __call__(self, learner: Learner, evaluation_point: int) -> Evaluation:
        with default_if_free(learner.network.multiply_adds):
            return self.start(learner, evaluation_point).result()

    def start(
        self, learner: Learner, evaluation_point: int, after_batch: Callable[[], None] = lambda: None
    ) -> "StartedEvaluation":
        """Start an evaluation on the device. What is returned waits for it only when it is asked for its ``result``, so
        that many learners can share a device. ``after_batch`` is called after each batch of images and may raise to
        stop.
        """
        data, classes = self.stream.data, self.stream.data.num_classes
        scorer = scorer_of(learner, classes)

        def scores_of_split(split: Literal["train", "test"], index: Tensor | None = None) -> Tensor:
            size = batch_for(self.stream.device.type, pixel_count(data.input_shape))
            return scores_of_parts(scorer, self.stream.device_data.parts(split, size, index), after_batch)

        scores = scores_of_split("test")
        hits = (scores.argmax(1) == self.y).long()
        is_last, are_logits = evaluation_point == len(self.points) - 1, learner.scores_are_logits
        point = self.points[evaluation_point]
        return StartedEvaluation(
            self,
            type(learner).__name__,
            evaluation_point,
            has_nan=scores.isnan().any(),
            by_group=hits.new_zeros(len(self.group_sizes)).index_add_(0, self.group, hits),
            correct=hits.new_zeros(len(self.tested)).index_add_(0, self.kinds, hits),
            confusion=confusion_of(scores, self.y, classes) if is_last and classes <= MOST_CLASSES else None,
            calibration=calibration_of(scores, self.y) if is_last and are_logits else None,
            # With domains, no class is newer than another.
            bias=self._bias(learner, point, scores, scores_of_split) if are_logits and len(point.new) else {},
        )

    def _bias(
        self, learner: Learner, point: "_Point", scores: Tensor, scores_of_split: Callable[..., Tensor]
    ) -> dict[str, Tensor | None]:
        """How much new classes are favoured, given the scores of the test images: fields of ``Evaluation``."""
        device_data, logits, weights = self.stream.device_data, scores[point.tested], None
        y, p = device_data.train_y[point.trained], scores.new_empty(0, 1)
        if len(y):  # an order file may leave out a class
            index = point.trained.to(device_data.index_device)
            p = scores_of_split("train", index).softmax(1).gather(1, y[:, None])
        head = learner.scoring_network.head
        if isinstance(head, torch.nn.Linear):
            weights = torch.cat([head.weight, head.bias[:, None]], dim=1).detach().T
            weights = F.pad(weights, (0, max(0, self.stream.data.num_classes - weights.shape[1])))
        hard, easy = (p < HARD).sum(), (p > EASY).sum()
        return {
            "mean_logit_old": _mean(logits, point.old),
            "mean_logit_new": _mean(logits, point.new),
            "mean_weight_old": _mean(weights, point.old),
            "mean_weight_new": _mean(weights, point.new),
            "hard": hard,
            "ambiguous": len(p) - hard - easy,
            "easy": easy,
        }

    def facts(self) -> dict[str, Any]:
        """What a result says of the test set: test images per class, and by domain if there are domains, and the
        classes of each group if groups are of classes."""
        tested = self.tested.reshape(-1, self.stream.data.num_classes)
        by_domain = {"tested_by_domain": tested.tolist()} if self.domains else {}
        by_class = self.stream.arrivals.scenario == "class"
        groups = {"groups": [list(map(int, group)) for group in self.stream.groups]} if by_class else {}
        return {"tested": tested.sum(axis=0).tolist(), **by_domain, **groups}


@dataclass(frozen=True, eq=False)
class StartedEvaluation:
    """An evaluation that is queued on the device."""

    evaluator: Evaluator
    method: str
    evaluation_point: int
    has_nan: Tensor
    """Whether a score is NaN, which would count as a prediction of the first class."""
    by_group: Tensor
    """Correct test images by group."""
    correct: Tensor
    """Correct test images by class, or by domain and class. See ``subset.kinds_of``."""
    confusion: Tensor | None
    calibration: tuple[Tensor, Tensor] | None
    bias: dict[str, Tensor | None]

    def result(self) -> Evaluation:
        """The evaluation. Waits for the device. ``OcilError`` if a score is NaN."""
        if self.has_nan:
            raise OcilError(
                f"{self.method} has scores that are NaN at evaluation point {self.evaluation_point}: "
                "its weights have become NaN, or its scorer makes them. Look there, or lower the learning rate."
            )
        sizes, classes = self.evaluator.group_sizes, self.evaluator.stream.data.num_classes
        bias: dict[str, Any] = {name: _number(value) for name, value in self.bias.items()}
        accuracy = [right / size for right, size in zip(self.by_group.tolist(), sizes, strict=True)]
        by_domain = self.correct.view(-1, classes)
        counts: dict[str, Any] = {"correct": by_domain.sum(0).tolist()}
        if self.evaluator.domains:
            counts["correct_by_domain"] = by_domain.tolist()
        if self.confusion is not None and not self.confusion[:, classes:].any():  # of classes without images
            counts["confusion"] = self.confusion[:, :classes].tolist()
        if self.calibration is not None:
            (count, right), confidence = (each.tolist() for each in self.calibration)
            counts["calibration"] = {"count": count, "correct": right, "confidence": confidence}
        return Evaluation(accuracy, **bias, **counts)

    def __call__(self) -> Evaluation:
        """``result``, by the name that it had up to version 0.1.0."""
        warnings.warn(
            "call .result() of what Evaluator.start returns: calling it goes away in 0.5.0",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.result()


class _Point(NamedTuple):
    """Index tensors of one evaluation point."""

    old: Tensor
    """Classes of earlier groups."""
    new: Tensor
    """Classes of the group that is complete."""
    tested: Tensor
    """Test images of the old and new classes."""
    trained: Tensor
    """Training images of the new classes that arrive at some time."""


def scores_of(scorer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The scores of inputs that are on the device."""
    return scores_of_parts(scorer, x.split(batch_for(x.device.type, pixel_count(tuple(x.shape[1:])))))


def scores_of_parts(
    scorer: Callable[[Tensor], Tensor], parts: Iterable[Tensor], after_batch: Callable[[], None] = lambda: None
) -> Tensor:
    """The scores of inputs that come a few at a time. ``after_batch`` is called after each part and may raise."""
    found = []
    for part in parts:
        found.append(scorer(part))
        after_batch()
    return torch.cat(found).float()


def pixel_count(input_shape: tuple[int, ...]) -> int:
    """The number of pixels of an image; 1 for a vector."""
    return input_shape[0] * input_shape[1] if len(input_shape) == 3 else 1


def batch_for(device: str, pixels: int) -> int:
    """How many images of ``pixels`` pixels are scored at once."""
    size = BATCH.get(device, 500)
    return max(1, min(size, size * LARGE_IMAGE // pixels))


def scorer_of(learner: Learner, classes: int) -> Callable[[Tensor], Tensor]:
    """The function that scores all classes of a dataset by the learner as it is now. A class that a growing learner has
    not met has the score -inf.

    The function raises an ``OcilError`` if the method gives scores of another shape.
    """
    scorer = learner.scorer()

    def scores(x: Tensor) -> Tensor:
        found: Any = scorer(x)
        wanted = [len(x), learner.problem.classes]
        if not isinstance(found, Tensor) or list(found.shape) != wanted:
            given = f"{list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            name = type(learner).__name__
            raise OcilError(f"the scorer of {name} must return a tensor [images, classes] = {wanted}, not {given}.")
        known = found.detach()  # a scorer of one's own may forget it
        if learner.met is None:
            return known
        known = known.masked_fill(known == NOT_MET, -torch.inf)
        return F.pad(known, (0, max(0, classes - known.shape[1])), value=-torch.inf)

    return scores


def _number(value: Tensor | None) -> float | None:
    """A number, or None if there is no finite value: a class that cannot be predicted yet has a score of -inf."""
    number = math.nan if value is None else value.item()
    return number if math.isfinite(number) else None


def _mean(values: Tensor | None, columns: Tensor) -> Tensor | None:
    return values[:, columns].mean() if values is not None and len(columns) else None
