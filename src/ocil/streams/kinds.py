"""The kinds of streams by name: what the setting ``boundary`` chooses among, and how each draws its order of arrival.

A new kind is a file beside this one with a function from a ``Material`` to an ``Order``, its name in ``Boundary``
(``choices``), and an entry in ``KINDS``. Settings that it adds are fields of ``StreamConfig``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ocil.data import Dataset
from ocil.streams.blurry import blurry
from ocil.streams.choices import Boundary
from ocil.streams.config import StreamConfig
from ocil.streams.fading import fading
from ocil.streams.i_blurry import i_blurry
from ocil.streams.label_noise import with_noise
from ocil.streams.long_tail import is_long_tailed
from ocil.streams.material import Material
from ocil.streams.mixed import mixed
from ocil.streams.order import Order
from ocil.streams.repeated import repeated
from ocil.streams.si_blurry import si_blurry
from ocil.streams.tasks import clear


@dataclass(frozen=True)
class StreamKind:
    """A kind of stream: in which order the samples of a dataset arrive, task by task or without tasks."""

    draw: Callable[[Material], Order]
    """Draws the order from the samples that take part, their classes and a random generator."""
    summary: str
    """One line, as ``ocil stream kinds`` shows it."""
    settings: tuple[str, ...] = ()
    """The settings of ``StreamConfig`` that only this kind uses, or few others; with all other kinds they are refused.
    """
    paper: str = "-"
    """The paper that it comes from, or ``-``."""
    same_sizes: bool = False
    """Whether a task of the same classes has equally many samples with every seed."""


KINDS: Mapping[Boundary, StreamKind] = {
    "clear": StreamKind(clear, "one task after the other", same_sizes=True),
    "blurry": StreamKind(
        blurry,
        "a share of each task's samples changes places with other tasks",
        ("blurry_share",),
        "after Bang et al., CVPR 2021",
        same_sizes=True,
    ),
    "none": StreamKind(
        fading,
        "classes fade in and out, without tasks",
        ("fade",),
        "after Shanahan et al., 2021",
        same_sizes=True,
    ),
    "iid": StreamKind(mixed, "all classes mixed: the upper bound", ("epochs",), same_sizes=True),
    "i-blurry": StreamKind(
        i_blurry,
        "disjoint classes come in one task, blurry ones also in a few samples of others",
        ("disjoint_share", "blurry_share"),
        "Koh et al., ICLR 2022",
    ),
    "si-blurry": StreamKind(
        si_blurry,
        "i-Blurry with random task sizes and blurry shares",
        ("disjoint_share", "blurry_share"),
        "Moon et al., ICCV 2023",
    ),
    "repeated": StreamKind(
        repeated,
        "classes return in later tasks with new samples",
        ("return_share",),
        "after Hemati et al., CoLLAs 2023",
    ),
}
"""By the value of ``boundary``."""


def settings_of_others(boundary: Boundary) -> set[str]:
    """The settings that other kinds use and this one does not: with it they would do nothing."""
    every = {name for kind in KINDS.values() for name in kind.settings}
    return every - set(KINDS[boundary].settings)


def draw(data: Dataset, config: StreamConfig, seed: int) -> Order:
    """The order of arrival for a configuration and a seed, with wrong labels if ``label_noise`` asks for them."""
    material = Material.of(data, config, seed)
    order = KINDS[config.boundary].draw(material)
    return with_noise(order, data, config, material.samples, seed)


def sizes_vary(config: StreamConfig) -> bool:
    """Whether the streams of two seeds may differ in the number of their batches, or in the samples of a task."""
    if config.order:
        return False
    shuffled = is_long_tailed(config) and config.imbalance_order == "seeded"
    return shuffled or config.class_order == "seeded" or not KINDS[config.boundary].same_sizes
