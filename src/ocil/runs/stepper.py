"""How the steps of a run are taken: by calling the learner's methods here, by replaying CUDA graphs in ``captured``."""

from collections.abc import Iterator

from torch import Tensor

from ocil.evaluation.prequential import Prequential
from ocil.methods.base import Learner
from ocil.streams import Stream


class MemorySteps:
    """Takes the steps that a learner makes on its memory, by calling its methods."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def review_step(self, slots: Tensor) -> None:
        """One batch of a review: the inputs in these slots of the memory."""
        self.learner.review_step(slots)

    def task_end_step(self, slots: Tensor) -> None:
        """One batch of the training that a method does at the end of a task."""
        self.learner.task_end_step(slots)

    def review_steps(self) -> Iterator[None]:
        """A review, one batch with each iteration. ``Learner.review`` does the same in one piece."""
        for slots in self.learner.review_batches():
            self.review_step(slots)
            yield

    def task_end_steps(self) -> Iterator[None]:
        """The end of a task without its review: the learner hears of it, then trains, one batch with each iteration.
        ``Learner.end_task`` does the same in one piece."""
        self.learner.task_ended()
        for slots in self.learner.task_end_batches():
            self.task_end_step(slots)
            yield


class Stepper(MemorySteps):
    """Takes a learner's steps on a stream by calling its methods. A subclass may take the same steps faster."""

    def __init__(self, learner: Learner, stream: Stream) -> None:
        super().__init__(learner)
        self.stream = stream
        self.to_meet = classes_to_meet(stream) if learner.config.growing else {}
        self.fetched: tuple[int, tuple[Tensor, Tensor]] | None = None
        """A batch that was predicted and is learned next, with its number."""
        learner.classes_announced = True

    def meet(self, number: int) -> None:
        """Announce the classes that appear for the first time in a batch."""
        self.learner.meet(self.to_meet.get(number, ()))

    def fetch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a batch. One that was fetched to be predicted is not read again."""
        fetched, self.fetched = self.fetched, None
        return fetched[1] if fetched is not None and fetched[0] == number else self.stream.fetch(number)

    def predict(self, number: int, prequential: Prequential) -> None:
        """Classify a batch before it is learned, and before its new classes are announced."""
        x, y = self.fetch(number)
        self.fetched = (number, (x, y))
        prequential.begin(number)
        self.count(prequential, x, y)

    def count(self, prequential: Prequential, x: Tensor, y: Tensor) -> None:
        """The part of ``predict`` that a subclass may capture."""
        prequential.count(self.learner, x, y)

    def learn(self, number: int) -> None:
        """Announce the new classes of a batch, and learn it."""
        self.meet(number)
        self.learner.learn(*self.fetch(number))


def classes_to_meet(stream: Stream) -> dict[int, set[int]]:
    """The classes that appear for the first time, by the number of the batch. Labels are read on the host, once."""
    labels = stream.given_labels[stream.arrivals.samples]
    seen: set[int] = set()
    found: dict[int, set[int]] = {}
    for number, (first, last) in enumerate(stream.bounds):
        if new := set(labels[first:last].tolist()) - seen:
            found[number] = new
            seen |= new
    return found
