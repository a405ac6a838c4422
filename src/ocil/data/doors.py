"""The doors by which data of other libraries come in: arrays, torch datasets, Hugging Face datasets.

Each makes ``Samples``, which become a dataset in memory or, a few at a time, a folder of raw arrays on a disk.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

from ocil.data.inputs import ArraySource, ItemSource, Layout, Source
from ocil.data.samples import Note, Samples
from ocil.errors import OcilError

TEST_SPLITS = ("test", "validation", "valid", "val")


class CommonOptions(TypedDict, total=False):
    """The options of every door. ``Dataset.from_arrays`` explains them."""

    name: str
    layout: Layout | None
    test_share: float | None
    seed: int
    note: Note | None


class ArrayOptions(CommonOptions, total=False):
    """The options of ``Dataset.from_arrays`` that ``from_torch`` and ``Stream.from_batches`` have too."""

    classes: Sequence[str] | None


class DomainOptions(ArrayOptions, total=False):
    """The options of ``Dataset.from_arrays``."""

    train_domain: Any | None
    test_domain: Any | None


class TorchOptions(ArrayOptions, total=False):
    """The options of ``Dataset.from_torch``."""

    size: int | None


class HuggingFaceOptions(CommonOptions, total=False):
    """The options of ``Dataset.from_huggingface``."""

    size: int | None
    train: str
    test: str | None


def from_arrays(
    train_x: Any,
    train_y: Any,
    test_x: Any | None = None,
    test_y: Any | None = None,
    *,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    layout: Layout | None = None,
    train_domain: Any | None = None,
    test_domain: Any | None = None,
    test_share: float | None = None,
    seed: int = 0,
    note: Note | None = None,
) -> Samples:
    """See ``Dataset.from_arrays``."""
    if (test_x is None) != (test_y is None):
        raise OcilError("give both test_x and test_y, or neither.")
    train = ArraySource(train_x, "train_x", layout), train_y
    test = None if test_x is None else (ArraySource(test_x, "test_x", layout), test_y)
    if test_domain is not None and train_domain is None:
        raise OcilError("give train_domain together with test_domain.")
    domains = None if train_domain is None else (train_domain, test_domain)
    return Samples.split(
        name, train, test, classes=classes, domains=domains, test_share=test_share, seed=seed, note=note
    )


def from_torch(
    train: Any,
    test: Any | None = None,
    *,
    classes: Sequence[str] | None = None,
    name: str = "torch",
    layout: Layout | None = None,
    size: int | None = None,
    test_share: float | None = None,
    seed: int = 0,
    note: Note | None = None,
) -> Samples:
    """See ``Dataset.from_torch``."""

    def opened(dataset: Any, what: str) -> tuple[Source, Any]:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            kind = type(dataset).__name__
            raise OcilError(f"{what} is {kind}, which is not a map-style dataset with len() and []. Use from_batches.")
        source = ItemSource(lambda number: _pair(dataset, number, what)[0], len(dataset), what, layout, size)
        return source, _torch_labels(dataset, what)

    names = _torch_names(train)
    if test is not None and classes is None:
        _refuse_other_numbers(names, _torch_names(test))
    learned, tested = opened(train, "train"), None if test is None else opened(test, "test")
    return Samples.split(
        name, learned, tested, classes=classes, names=names, test_share=test_share, seed=seed, note=note
    )


def from_huggingface(
    ds: Any,
    image: str | None = None,
    label: str | None = None,
    *,
    train: str = "train",
    test: str | None = None,
    name: str = "huggingface",
    layout: Layout | None = None,
    size: int | None = None,
    test_share: float | None = None,
    seed: int = 0,
    note: Note | None = None,
) -> Samples:
    """See ``Dataset.from_huggingface``."""
    is_dict = hasattr(ds, "keys") and hasattr(ds, "values")
    splits = dict(ds) if is_dict else {train: ds}
    for option, split in (("train", train), ("test", test)):
        if split is not None and split not in splits:
            raise OcilError(f"there is no split '{split}'. Name one with {option}=: {', '.join(map(str, splits))}.")
    held = test or next((part for part in TEST_SPLITS if part in splits and part != train), None)
    features = getattr(splits[train], "features", None)
    if hasattr(splits[train], "features") and not hasattr(splits[train], "__len__"):
        advice = "Load it without streaming=True, or give its batches to Stream.from_batches."
        raise OcilError(f"{train} is streamed, so its samples can neither be counted nor drawn. {advice}")
    if not features:
        raise OcilError("this is not a dataset of the library datasets: it has no features.")
    image = _column(features, image, "image", ("Image",))
    label = _column(features, label, "label", ("ClassLabel",))

    def opened(part: str) -> tuple[Source, Any]:
        rows = splits[part]
        source = ItemSource(lambda number: rows[number][image], len(rows), part, layout, size)
        return source, list(rows[label])

    names = getattr(features[label], "names", None)
    if held is not None:
        _refuse_other_numbers(names, getattr((getattr(splits[held], "features", None) or {}).get(label), "names", None))
    learned, tested = opened(train), None if held is None else opened(held)
    return Samples.split(
        name,
        learned,
        tested,
        names=names,
        test_share=test_share,
        seed=seed,
        note=note,
    )


def _pair(dataset: Any, number: int, what: str) -> tuple[Any, Any]:
    item = dataset[number]
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise OcilError(f"sample {number} of {what} is not a pair of image and label but {type(item).__name__}.")
    return item[0], item[1]


def _torch_labels(dataset: Any, what: str) -> Any:
    """All labels: from where torchvision keeps them, unless they are transformed; else sample by sample."""
    for attribute in ("targets", "labels"):
        found = getattr(dataset, attribute, None)
        untouched = getattr(dataset, "target_transform", None) is None
        if found is not None and untouched and hasattr(found, "__len__") and len(found) == len(dataset):
            return found
    return [_pair(dataset, number, what)[1] for number in range(len(dataset))]


def _torch_names(dataset: Any) -> Sequence[str] | None:
    """The names of the classes, also of a dataset that ``torch.utils.data.Subset`` has wrapped.

    None if it has none, or numbers its labels otherwise by a ``target_transform``.
    """
    for _ in range(8):
        if getattr(dataset, "target_transform", None) is not None:
            return None
        found = getattr(dataset, "classes", None)
        if isinstance(found, list | tuple):
            return [str(each) for each in found]
        if (dataset := getattr(dataset, "dataset", None)) is None:
            return None
    return None


def _refuse_other_numbers(names: Sequence[str] | None, others: Sequence[str] | None) -> None:
    """Raise if one number stands for another class in the test samples, as where their folder lacks a class."""
    for number, (ours, theirs) in enumerate(zip(names or (), others or (), strict=False)):
        if ours != theirs:
            raise OcilError(
                f"the label {number} is '{ours}' in train and '{theirs}' in test: number the classes of both alike."
            )


def _column(features: Any, given: str | None, what: str, kinds: tuple[str, ...]) -> str:
    """The column of that name; by default the only one whose type is one of ``kinds``, or the one called ``what``."""
    names = ", ".join(map(str, features))
    if given is not None:
        if given not in features:
            raise OcilError(f"there is no column '{given}'. Name one with {what}=: {names}.")
        return given
    found = [str(name) for name in features if type(features[name]).__name__ in kinds]
    if len(found) == 1 or what in features:
        return what if what in features else found[0]
    raise OcilError(f"it is not clear which column is the {what}. Name one with {what}=: {names}.")
