"""What a cell costs: images that pass through the network per stream batch, and bytes that are kept."""

import math

from ocil.data import CATALOG
from ocil.evaluation.measures import mean_of
from ocil.methods.passes import FORWARD_WEIGHT, weighted_images
from ocil.report.cells import FinishedRun, MeasuredCell
from ocil.runs.config import RunConfig
from ocil.runs.schedule import Schedule, expected_batches


def images_per_batch(cell: MeasuredCell) -> float | None:
    """Images that pass forward and backward per stream batch. An image that only passes forward counts
    ``FORWARD_WEIGHT``.

    The number is the recorded one, else it follows from the passes that the method states for a step. Reviews and task
    ends are included where their share is known.
    """
    recorded = [_recorded_per_batch(run) for run in cell.runs]
    known = [value for value in recorded if value is not None]
    if len(known) == len(recorded):
        return mean_of(known)
    return _stated(cell.config)


def run_images(run: FinishedRun) -> float | None:
    """The same for a whole run, as recorded. (The measure ``images_passed`` counts every image as one.)"""
    cost = run.result.cost
    return cost["images"] + FORWARD_WEIGHT * cost["forward"] if cost else None


def bytes_kept(run: FinishedRun) -> float | None:
    """Bytes of stored samples and of all else that a learner keeps, as recorded."""
    cost = run.result.cost
    return float(cost["memory_bytes"] + cost["state_bytes"]) if cost else None


def stream_batches(run: FinishedRun) -> int | None:
    """How many batches the stream had: where its last task ended, else from the number of its samples, if known."""
    ends = run.result.anytime.get("tasks")
    return int(ends[-1]) if ends and ends[-1] else _batches(run.result.config)


def _batches(config: RunConfig) -> int | None:
    samples = _known_samples(config)
    return None if samples is None else max(1, expected_batches(config.stream, samples))


def _known_samples(config: RunConfig) -> int | None:
    """How many samples take part in the stream, by its settings or by the catalog; None if that is not known.

    With a long tail or an order file it is not, nor with shuffled counts: a class may have fewer samples than its
    count.
    """
    known, stream = CATALOG.get(config.dataset), config.stream
    if stream.class_counts:
        return sum(stream.class_counts) if stream.imbalance_order == "arrival" else None
    return None if known is None or stream.imbalance_factor != 1 or stream.order_digest else known.train


def _recorded_per_batch(run: FinishedRun) -> float | None:
    images, batches = run_images(run), stream_batches(run)
    return None if images is None or batches is None else images / batches


def _stated(config: RunConfig) -> float | None:
    kind, learner, known = config.learner_class, config.learner, CATALOG.get(config.dataset)
    classes = known.classes if known else config.stream.tasks
    try:
        images = weighted_images(kind.passes(learner, config.stream.batch_size, classes))
        if (samples := _known_samples(config)) and (batches := _batches(config)):
            on_memory = Schedule.expected(config, samples).passes_on_memory(kind, learner, classes)
            if more := sum(weighted_images(passes) * times for passes, times in on_memory):
                images += more / batches
    except Exception:  # a method from outside may state anything; no cost is shown for it
        return None
    return images if math.isfinite(images) and images > 0 else None
