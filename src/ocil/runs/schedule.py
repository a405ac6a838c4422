"""How often a run learns from its stream and from its memory, and what the memory holds then."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig
from ocil.methods.passes import Pass
from ocil.runs.config import RunConfig
from ocil.runs.defaults import reviews_every
from ocil.streams import StreamConfig


class Schedule(NamedTuple):
    """How often a whole run learns. What a run costs is counted from it: in estimates, in results and in reports."""

    batches: int
    """Stream batches, of all epochs."""
    reviews: Sequence[int]
    """How many samples the memory holds at each review."""
    task_ends: Sequence[int]
    """How many samples it holds at each task end that the method hears of."""

    @classmethod
    def expected(cls, config: RunConfig, samples: int) -> "Schedule":
        """The schedule of a run that has not begun, with so many samples in its stream and tasks of equal length."""
        stream, learner = config.stream, config.learner
        batches = expected_batches(stream, samples)

        def stored(count: int) -> list[int]:
            """At ``count`` moments at equal distances, the last one at the end of the stream."""
            return [min(learner.memory, samples * (number + 1) // count) for number in range(count)]

        ends = (1 if stream.boundary == "iid" else stream.tasks) if stream.announces_tasks else 0
        every = learner.review_every or (0 if stream.announces_tasks else reviews_every(batches, stream))
        reviews = batches // every if every else ends
        return cls(batches, stored(reviews) if learner.review else [], stored(ends))

    def passes_on_memory(
        self, learner: Learner | type[Learner], settings: LearnerConfig, classes: int
    ) -> Iterator[tuple[list[Pass], float]]:
        """The passes of a batch of each review, and how many such batches it has; the passes of each task end."""
        size = settings.review_batch
        for stored in self.reviews:
            reviewed = stored if settings.review_keep_last else stored - stored % size
            yield learner.review_passes(settings, classes), reviewed / size
        for stored in self.task_ends:
            yield learner.task_end_passes(settings, classes, stored), 1


def expected_batches(stream: StreamConfig, samples: int) -> int:
    """About how many batches a stream of so many samples has: the incomplete last one of a task may be left out."""
    return stream.epochs * samples // stream.batch_size
