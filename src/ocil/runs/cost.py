"""What a run costs: images passed through the network, and bytes that are kept between two batches."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

from ocil.learning.memory import Memory
from ocil.methods.base import Learner
from ocil.methods.passes import Pass
from ocil.runs.config import RunConfig
from ocil.runs.schedule import Schedule
from ocil.streams import Stream


class PassedImages(NamedTuple):
    """How many images a method has passed through the network, evaluations not counted."""

    trained: float = 0
    """Forward and backward."""
    forward: float = 0
    """Forward only."""

    def plus(self, passes: Iterable[Pass], times: float = 1) -> "PassedImages":
        counted = list(passes)
        trained = sum(each.images for each in counted if each.trains)
        return PassedImages(
            self.trained + times * trained, self.forward + times * (sum(each.images for each in counted) - trained)
        )


def images_passed(
    learner: Learner, config: RunConfig, stream: Stream, reviews: Sequence[int], ends: Sequence[int]
) -> PassedImages:
    """How many images have passed through the network, counted by the ``passes`` that the method states for each step,
    and by what the memory holds in reviews and at task ends.

    ``reviews`` and ``ends`` are the numbers of the batches after which there is a review, or a task ends. The first
    steps, while the memory fills, count like the later ones.
    """
    settings, classes, total = config.learner, stream.data.num_classes, PassedImages()
    sizes = [last - first for first, last in stream.bounds]
    for size, batches in Counter(sizes).items():
        total = total.plus(learner.passes(settings, size, classes), batches)
    stored_after = [min(settings.memory, seen) for seen in accumulate(sizes)]
    at_reviews, at_ends = ([stored_after[batch - 1] for batch in after] for after in (reviews, ends))
    for passes, times in Schedule(len(sizes), at_reviews, at_ends).passes_on_memory(learner, settings, classes):
        total = total.plus(passes, times)
    return total


def cost_of(
    learner: Learner, config: RunConfig, stream: Stream, reviews: Sequence[int], ends: Sequence[int]
) -> dict[str, int]:
    """What a result holds: ``images`` passed forward and backward, ``forward`` only, ``memory_bytes`` of the stored
    samples with their labels, ``state_bytes`` of all else that the learner keeps but its random generators: weights,
    optimiser, copies of the network, stored outputs."""
    images = images_passed(learner, config, stream, reviews, ends)
    memories = [part for part in learner.modules() if isinstance(part, Memory)]
    samples = sum(len(memory) * (_row_bytes(memory.images) + _row_bytes(memory.labels)) for memory in memories)
    sample_tensors = {tensor.data_ptr() for memory in memories for tensor in (memory.images, memory.labels)}
    others: dict[int, int] = {}
    for name, tensor in learner.state().items():
        if not name.startswith("rng.") and tensor.data_ptr() not in sample_tensors:
            others[tensor.data_ptr()] = max(others.get(tensor.data_ptr(), 0), tensor.nbytes)
    return {
        "images": round(images.trained),
        "forward": round(images.forward),
        "memory_bytes": samples,
        "state_bytes": sum(others.values()),
    }


def _row_bytes(rows: Tensor) -> int:
    return rows[0].numel() * rows.element_size()
