"""What a result holds besides its accuracy matrix, as it stands in ``result.json``. docs/measures.md explains it.

A record of what was not asked for is empty, so no entry is certain to be there.
"""

from typing import NotRequired, TypedDict

HARD, EASY = 0.3, 0.6
"""The AFS paper's bounds on the score of a sample's true class: below the first it is hard, above the second easy."""


class AnytimePoint(TypedDict):
    """The accuracy after some batches, on the test images of what has arrived by then."""

    batch: int
    """Stream batches that were learned."""
    samples: NotRequired[int]
    """Stream samples that were learned. Results of earlier versions lack it."""
    accuracy: float
    correct: NotRequired[list[int]]
    """Correct test images per class."""
    correct_by_domain: NotRequired[list[list[int]]]
    """The same by domain and class, if the dataset has domains."""


class AnytimeRecord(TypedDict, total=False):
    """Accuracy over time, with the setting ``evaluate_every``. ``AnytimeEvaluator`` writes it."""

    every: int
    """Stream batches between two points."""
    subset: int
    """Test images that points are measured on, if these are not all."""
    tested: list[int]
    """Test images per class."""
    arrived: list[int]
    """By class: the number of batches after which its first sample had arrived."""
    tested_by_domain: list[list[int]]
    """Test images by domain and class, if the dataset has domains."""
    domains_arrived: list[int]
    """By domain: the number of batches after which its first sample had arrived."""
    domain_groups: list[list[int]]
    """The domains of each task, if tasks are of domains."""
    reviews: list[int]
    """The numbers of batches after which reviews took place."""
    tasks: list[int]
    """The numbers of batches after which tasks ended."""
    points: list[AnytimePoint]


class CalibrationRecord(TypedDict, total=False):
    """At the end of a run, in bins of confidence: how far confidence can be trusted."""

    count: list[int]
    """Test images."""
    correct: list[int]
    """Correct ones among them."""
    confidence: list[float]
    """The sum of their confidences."""


class PrequentialRecord(TypedDict, total=False):
    """Stream samples that were classified before they were learned, with the setting ``prequential``."""

    every: int
    """Stream batches of a window."""
    seen: list[int]
    """Samples by window."""
    correct: list[int]
    """Correct ones among them."""


class ProbeRecord(TypedDict, total=False):
    """A linear probe of the final features, with the setting ``probe``."""

    accuracy: float
    correct: list[int]
    """Correct test images per class."""
