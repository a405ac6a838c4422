"""How a learner's steps are taken: by calling its methods here, by replaying CUDA graphs in ``captured``."""

from torch import Tensor

from ocil.methods.base import Learner
from ocil.streams import Stream


class Stepper:
    """Takes a learner's steps by calling its methods. A subclass may take the same steps in a faster way."""

    def __init__(self, learner: Learner, stream: Stream) -> None:
        self.learner, self.stream = learner, stream
        self.arrivals = arrivals(stream) if learner.config.growing else {}
        learner.classes_announced = True

    def meet(self, number: int) -> None:
        """Announce the classes that appear for the first time in a batch."""
        self.learner.meet(self.arrivals.get(number, ()))

    def learn(self, number: int) -> None:
        self.meet(number)
        self.learner.learn(*self.stream.fetch(number))

    def review(self, slots: Tensor) -> None:
        """One batch of a review: the images in these slots of the memory."""
        self.learner.review_step(slots)

    def rehearse(self, slots: Tensor) -> None:
        """One batch of the training that a method does at the end of a task."""
        self.learner.task_end_step(slots)


def arrivals(stream: Stream) -> dict[int, set[int]]:
    """The classes that appear for the first time, by the number of the batch. Labels are read on the host, once."""
    labels = stream.given_labels[stream.arrivals.samples]
    seen: set[int] = set()
    found: dict[int, set[int]] = {}
    for number, (first, last) in enumerate(stream.bounds):
        if new := set(labels[first:last].tolist()) - seen:
            found[number] = new
            seen |= new
    return found
