"""The settings of a run that nobody gave: the published ones for a method and a dataset, and what fits other data."""

from collections.abc import Mapping
from typing import Any

from ocil import precision
from ocil.data import CATALOG
from ocil.data.derived import base_of
from ocil.learning import optimizers
from ocil.methods import MethodInfo
from ocil.networks.registry import FOR_VECTORS
from ocil.runs.settings import read_as
from ocil.streams import StreamConfig

DEFAULT_MEMORY = 5000  # images, for a dataset outside the catalog of which the length is not known
OFFLINE = {"boundary": "iid", "epochs": 50, "batch_size": 128}
REVIEW_EVERY = 500


def usual_settings(
    info: MethodInfo,
    dataset: str,
    given: Mapping[str, Any],
    classes: int | None = None,
    train: int | None = None,
    vectors: bool = False,
) -> dict[str, Any]:
    """The settings of a method, for a dataset and a memory size, that differ from the defaults of the config classes.

    ``classes``, ``train`` and ``vectors``: see ``resolve``.
    """
    dataset, learner_class = base_of(dataset), info.learner_class
    entry = CATALOG.get(dataset)
    defaults: dict[str, Any] = {"memory": _usual_memory(info, dataset, given, classes, train)}
    if entry and entry.width:
        defaults["width"] = entry.width
    if info.offline:
        defaults |= OFFLINE
    if info.memory:
        memory = read_as("memory", given.get("memory", defaults["memory"]), int)
        defaults |= learner_class.settings_for(dataset, memory, entry.classes if entry else classes)
    if vectors or given.get("features"):
        defaults |= {"network": FOR_VECTORS} | learner_class.vector_settings
    return defaults


def _usual_memory(
    info: MethodInfo, dataset: str, given: Mapping[str, Any], classes: int | None, train: int | None
) -> int:
    if not info.memory:
        return 0
    if (entry := CATALOG.get(dataset)) is not None:
        return entry.memory
    if train is None:
        return DEFAULT_MEMORY
    usual = {"batch_size": StreamConfig().batch_size, "memory_batch": info.learner_class.Config().memory_batch}
    least: int = max(read_as(name, given.get(name, value), int) for name, value in usual.items())
    # A tenth of the training images, at least one per class, and no more than the catalog's datasets have.
    return max(least, classes or 1, min(DEFAULT_MEMORY, train // 10))


def usual_precision(info: MethodInfo, given: Mapping[str, Any]) -> dict[str, Any]:
    """The default that depends on the machine, except for a method whose own settings have another one. Where it is
    given, the GPU is not asked, which would take it into use."""
    depends = "precision" not in given and info.learner_class.Config().precision == precision.DEFAULT
    return {"precision": precision.usual()} if depends else {}


def usual_lr(given: Mapping[str, Any]) -> dict[str, Any]:
    """The default that depends on the optimiser."""
    if "optimizer" in given and (lr := optimizers.default_lr(str(given["optimizer"]))) is not None:
        return {"lr": lr}
    return {}


def lower_lr(lr: float) -> float:
    """The learning rate to propose where the loss is not finite at ``lr``."""
    return min(0.1, lr / 10)


def reviews_every(batches: int, stream: StreamConfig) -> int:
    """The default of ``review_every`` for a stream of so many batches that announces no tasks."""
    return max(1, min(REVIEW_EVERY, batches // stream.tasks))


def usual_reviews(info: MethodInfo, stream: StreamConfig, train: int | None) -> int:
    """The default of ``review_every`` as far as it is known before the stream is: 0 at task ends, and where only the
    run will know how long the stream is."""
    shorter = stream.imbalance_factor != 1 or bool(stream.class_counts or stream.order)
    if stream.announces_tasks or not info.memory or train is None or shorter:
        return 0
    return reviews_every(train // stream.batch_size, stream)
