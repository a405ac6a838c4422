"""Datasets made from others by their names: ``cifar10+cifar100`` joins two, ``cifar100:noise`` has domains of stronger
and stronger noise.

A name is a dataset or several, names or .npz files, with ``+`` between them. Behind a dataset may stand ``:noise``,
``:blur`` or ``:occlusion``, with options such as ``:noise,domains=5,strongest=2``. What a name stands for depends on
nothing else: not on the seed of a run, so that all runs on a device share the images. It is one copy of the images, in
memory.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ocil.data.changes import CHANGES, changed
from ocil.data.dataset import Dataset, shape_text
from ocil.errors import OcilError
from ocil.seeds import derive

MAX_DOMAINS = 1000
_PLAIN = re.compile(r"[\w-]+|.+\.npz", re.IGNORECASE | re.DOTALL)
"""What may be joined: a name or an .npz file. A folder may have a ``+`` in its path."""
_CHANGED = re.compile(rf"(?P<base>.+):(?P<kind>{'|'.join(CHANGES)})(?P<options>(?:,[^,:+]*)*)", re.DOTALL)


@dataclass(frozen=True)
class ImageChange:
    """The parts of a text such as ``:noise,domains=5,strongest=2``."""

    kind: str
    domains: int = 10
    strongest: float = 0.0
    """How strong the change of the last domain is; the first one has none, and it grows evenly between them."""

    @property
    def strengths(self) -> list[float]:
        last = max(1, self.domains - 1)
        return [self.strongest * number / last for number in range(self.domains)]


def parts_of(name: str) -> list[str]:
    """The names of the datasets that a name joins, in their order; the name itself if it joins none."""
    parts = [part.strip() for part in name.split("+")]
    return parts if len(parts) > 1 and all(_PLAIN.fullmatch(_base(part)) for part in parts) else [name]


def base_of(name: str) -> str:
    """The dataset whose images are changed; the name itself if it is not of this form."""
    return _base(name) if len(parts_of(name)) == 1 else name


def _base(part: str) -> str:
    found = _CHANGED.fullmatch(part)
    return part if found is None else found["base"]


def bases_of(name: str) -> list[str]:
    """The datasets that are loaded for a name."""
    return [base_of(part) for part in parts_of(name)]


def is_derived(name: str) -> bool:
    return bases_of(name) != [name]


def renamed_bases(name: str, rename: Callable[[str], str]) -> str:
    """The same name with other names for the datasets in it."""
    return "+".join(f"{rename(base_of(part))}{part[len(base_of(part)) :]}" for part in parts_of(name))


def short_name(name: str) -> str:
    """A name without the folders of its files."""
    return renamed_bases(name, lambda base: Path(base).stem)


def make(name: str, load: Callable[[str], Dataset]) -> Dataset:
    """The dataset that a derived name stands for. ``load`` loads those in it."""
    changed_parts = [_part(part, load) for part in parts_of(name)]
    if len(changed_parts) == 1:
        return changed_parts[0]
    return joined(changed_parts)


def joined(datasets: Sequence[Dataset]) -> Dataset:
    """Datasets one after the other. Their classes stay apart, also those of the same name; each is a domain."""
    names = [Path(dataset.name).stem if Path(dataset.name).suffix == ".npz" else dataset.name for dataset in datasets]
    if again := next((name for name in names if names.count(name) > 1), None):
        raise OcilError(f"'{again}' stands there twice. Join each dataset once.")
    first = datasets[0]
    for other, name in zip(datasets, names, strict=True):
        if other.input_shape != first.input_shape or other.train_x.dtype != first.train_x.dtype:
            here, there = (f"{shape_text(one.input_shape)} {one.train_x.dtype}" for one in (other, first))
            raise OcilError(
                f"{name} has inputs of {here} and {names[0]} of {there}: datasets are joined if these are equal. "
                "Import one of them again with another size (--size)."
            )
    offsets = np.cumsum([0, *(dataset.num_classes for dataset in datasets)])

    def both(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y = [getattr(dataset, f"{split}_y") for dataset in datasets]
        labels = np.concatenate([one + offset for one, offset in zip(y, offsets[:-1], strict=True)])
        x = np.concatenate([getattr(dataset, f"{split}_x") for dataset in datasets])
        return x, labels, np.repeat(np.arange(len(datasets)), [len(one) for one in y])

    train_x, train_y, train_domain = both("train")
    test_x, test_y, test_domain = both("test")
    classes = tuple(f"{name}/{each}" for name, dataset in zip(names, datasets, strict=True) for each in dataset.classes)
    domains = train_domain, test_domain, tuple(names)
    return Dataset(
        "+".join(dataset.name for dataset in datasets), train_x, train_y, test_x, test_y, classes, 0, *domains
    )


def with_domains(data: Dataset, change: ImageChange, name: str) -> Dataset:
    """The images of a dataset in domains of equal size and classes, each changed more strongly than the one before.

    Each image is in one domain. The images of a class are dealt out at random, always in the same way.
    """
    if data.domains:
        raise OcilError(f"{data.name} has domains already: leave out ':{change.kind}'.")
    _ = data.image_shape  # raises for vectors
    if not 2 <= change.domains <= min(MAX_DOMAINS, len(data.test_y), len(data.train_y)):
        most = min(MAX_DOMAINS, len(data.test_y), len(data.train_y))
        raise OcilError(f"{name}: domains = {change.domains} must be from 2 to {most}.")
    train, test = (_dealt(y, change.domains, split) for split, y in (("train", data.train_y), ("test", data.test_y)))
    x = [
        changed(images, domain, change.kind, change.strengths, split)
        for split, images, domain in (("train", data.train_x, train), ("test", data.test_x, test))
    ]
    names = tuple(f"{number}: {change.kind} {each:.3g}" for number, each in enumerate(change.strengths, 1))
    return Dataset(name, x[0], data.train_y, x[1], data.test_y, data.classes, data.unseen, train, test, names)


def _part(name: str, load: Callable[[str], Dataset]) -> Dataset:
    base = base_of(name)
    data = load(base)
    if base == name:
        return data
    change = _change(name)
    return with_domains(data, change, f"{data.name}{name[len(base) :]}")


def _change(name: str) -> ImageChange:
    found = _CHANGED.fullmatch(name)
    if found is None:
        raise ValueError(name)
    kind = found["kind"]
    given = {"domains": 10.0, "strongest": CHANGES[kind].strongest}
    options = found["options"].split(",")[1:]  # behind the kind, each after a comma
    keys = [option.partition("=")[0].strip() for option in options]
    if again := next((key for key in keys if keys.count(key) > 1), None):
        raise OcilError(f"'{name}': {again!r} stands there twice.")
    for option in options:
        key, equals, text = option.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if key.strip() not in given or not equals or not math.isfinite(value):
            raise OcilError(f"'{name}': write domains=N and strongest=NUMBER behind {kind}, not '{option}'.")
        given[key.strip()] = value
    if given["domains"] != int(given["domains"]):
        raise OcilError(f"'{name}': domains = {given['domains']:g} is not a whole number.")
    most = CHANGES[kind].most
    if not 0 < given["strongest"] <= most:
        raise OcilError(f"'{name}': strongest = {given['strongest']:g} must be more than 0 and at most {most:g}.")
    return ImageChange(kind, int(given["domains"]), given["strongest"])


def _dealt(labels: np.ndarray, domains: int, split: str) -> np.ndarray:
    """The domain of each sample. The samples of a class are shuffled and dealt out to the domains; the next class
    continues with the next domain.
    """
    rng = np.random.default_rng(derive(0, f"domains of {split} samples"))
    found = np.empty(len(labels), dtype=np.int64)
    dealt = 0
    for label in np.unique(labels):
        own = rng.permutation(np.flatnonzero(labels == label))
        found[own] = (dealt + np.arange(len(own))) % domains
        dealt += len(own)
    return found
