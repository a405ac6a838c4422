"""The kinds of streams by name. A new kind is a file with a function that returns an ``Order``, and an entry here."""

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
    """A kind of stream."""

    draw: Callable[[Material], Order]
    summary: str
    settings: tuple[str, ...] = ()
    """The settings that only this kind has, or few others."""
    paper: str = "-"
    same_sizes: bool = False
    """Whether the tasks of all seeds have equally many samples where their classes have."""


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
    """The settings that other kinds have and this one has not: here they do nothing."""
    every = {name for kind in KINDS.values() for name in kind.settings}
    return every - set(KINDS[boundary].settings)


def draw(data: Dataset, config: StreamConfig, seed: int) -> Order:
    """The order of a configuration and a seed."""
    material = Material.of(data, config, seed)
    order = KINDS[config.boundary].draw(material)
    return with_noise(order, data, config, material.samples, seed)


def sizes_vary(config: StreamConfig) -> bool:
    """Whether the streams of two seeds may differ in the number of their batches or in the sizes of their tasks."""
    if config.order:
        return False
    shuffled = is_long_tailed(config) and config.imbalance_order == "seeded"
    return shuffled or config.class_order == "seeded" or not KINDS[config.boundary].same_sizes
