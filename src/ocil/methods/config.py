"""What a learner is made from: the shape of the data, and the settings that methods share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from inspect import get_annotations
from operator import ge, gt, le, lt
from types import NoneType
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch

from ocil.errors import OcilError
from ocil.learning import optimizers
from ocil.learning.views import RandomViews, crop_range
from ocil.limits import MAX_WIDTH, use_python_values
from ocil.networks import InputShape, is_image
from ocil.networks.registry import REDUCED, spec_of
from ocil.precision import Precision

MEMORY: Mapping[str, str] = {"concerns": "memory"}
"""Metadata of a field that has no effect without a memory, see ``ocil.runs.config.concerns``."""
REVIEW: Mapping[str, str] = {"concerns": "review"}
"""Metadata of a field that has no effect without the review trick."""

hints_of = cache(get_type_hints)  # a report makes thousands of configurations of a few classes


@dataclass(frozen=True)
class Problem:
    """What a learner knows about the data."""

    input_shape: InputShape
    """Height, width and channels of an image, or the length of a vector."""
    classes: int
    """The number of classes. For a growing learner: of those that it has room for."""
    dtype: torch.dtype = torch.uint8
    """How inputs are stored: uint8 images, float16 or float32 vectors."""

    @property
    def is_images(self) -> bool:
        return is_image(self.input_shape)


@dataclass(frozen=True)
class LearnerConfig:
    """The settings of every method; a method's own config class adds to them. The defaults are the AFS paper's.

    ``minimum``, ``maximum``, ``above`` and ``below`` map the name of a field to its bound; those of a subclass add to
    them. A value out of bounds, or one that is not among the choices of a ``Literal``, raises an ``OcilError``. The
    metadata of a field may say ``needs``, the name of a setting without which this one has no effect: giving it then
    raises too.

    Examples:
        >>> ocil.LearnerConfig(memory=100, lr=0.05).memory_batch
        10
        >>> ocil.LearnerConfig(lr=-1)
        Traceback (most recent call last):
        ocil.errors.OcilError: ...
    """

    memory: int = field(default=0, metadata=MEMORY)
    """Images kept for replay (0 for methods without a memory)."""
    memory_batch: int = field(default=10, metadata=MEMORY)
    """Images drawn from the memory for each stream batch."""
    lr: float = 0.1
    """Learning rate. For an ``optimizer`` other than ``sgd`` the default is PyTorch's for it, 0.001 for adam."""
    momentum: float = 0.0
    """Momentum of ``sgd``."""
    weight_decay: float = 0.0
    """0 leaves it to the optimiser: none for ``sgd`` and ``adam``, 0.01 for ``adamw``."""
    optimizer: str = "sgd"
    """``sgd``, ``adam``, ``adamw``, or the name of any class in torch.optim, with its options: ``adamw(eps=1e-6)``."""
    network: str = REDUCED
    """A name with options: ``resnet18``, ``mlp(hidden=512)``, ``timm:NAME``, ``module:PACKAGE.MODULE:FACTORY``. For
    vectors the default is ``linear``."""
    pretrained: str = ""
    """Weights that the network starts with: a .safetensors or .pth file, or ``own`` for those that timm offers."""
    freeze: str = "none"
    """What keeps its weights: ``none``, ``backbone`` (all but the head), or all up to a stage, by the stage's name."""
    features: str = ""
    """A network, named as for ``network``, that turns all images into vectors before the stream begins. They are
    computed once and kept on disk. ``pretrained`` then names its weights."""
    width: int = 20
    """Channels of the reduced ResNet-18's first stage; the next ones have 2, 4 and 8 times as many."""
    average: float = 0.0
    """Decay per step of an average of the weights, which takes the network's place in a test; 0: none. 0.99 averages
    over about 100 steps. The first steps have a smaller decay, ``(1 + t) / (10 + t)`` in step t."""
    average_restarts: bool = False
    """Whether that average begins anew with each review, so that no steps of the stream before it count."""
    test_flip: bool = False
    """Whether the scores of an image are the mean of its own and of its mirror image's, which takes twice the time."""
    precision: Precision = "tf32"
    """Precision on a GPU; the default on one that has it is ``bf16``. A CPU computes in float32. ``fp32``: exact and
    repeatable bit for bit (your own loop needs ``precision.numerics``). ``tf32``: convolutions round their factors to
    TF32, as PyTorch does by default. ``bf16``: the network computes in bfloat16, its head and the losses in float32."""
    review: bool = field(default=False, metadata=REVIEW)
    """The review trick: a pass over the memory at a small learning rate."""
    review_every: int = field(default=0, metadata=REVIEW)
    """Stream batches between two reviews of a run; 0: at task ends (every 500 where the stream announces none). A model
    of ``ocil learn`` has a setting of its own with this name, whose 0 means none."""
    review_batch: int = field(default=10, metadata=REVIEW)
    """Images in each batch of a review."""
    review_lr_scale: float = field(default=0.1, metadata=REVIEW)
    """The learning rate of a review as a share of ``lr``: 0.1 at lr 0.1 is the paper's 0.01. ``sgd`` multiplies its
    gradients by it; with another optimiser the weights go this part of the way."""
    review_keep_last: bool = field(default=False, metadata=REVIEW)
    """Whether a review keeps the incomplete last batch (the base harness drops it, AFS keeps it)."""
    growing: bool = False
    """Whether classes are not known in advance. Then the head and all else that is kept per class grows, and every
    softmax runs over the classes met so far."""

    minimum: ClassVar[dict[str, float]] = {
        "memory": 0,
        "memory_batch": 1,
        "momentum": 0,
        "weight_decay": 0,
        "width": 1,
        "average": 0,
        "review_every": 0,
        "review_batch": 1,
        "review_lr_scale": 0,
    }
    maximum: ClassVar[dict[str, float]] = {"width": MAX_WIDTH}
    above: ClassVar[dict[str, float]] = {"lr": 0}
    below: ClassVar[dict[str, float]] = {"momentum": 1, "average": 1}

    def __post_init__(self) -> None:
        use_python_values(self)
        object.__setattr__(self, "network", spec_of(self.network))  # Python users may give the factory itself
        optimizers.check(self.optimizer, self.momentum, self.weight_decay)
        kind: Any = type(self)
        for check in _checks_of(kind):
            check(getattr(self, check.name))

    @property
    def reviews_at_task_ends(self) -> bool:
        """Whether a review follows each task end."""
        return self.review and not self.review_every

    def refuse_less(self, name: str, than: str) -> None:
        """Raise an ``OcilError`` if the setting ``name`` is smaller than the setting ``than``."""
        mine, least = getattr(self, name), getattr(self, than)
        if mine < least:
            raise OcilError(f"{name} = {mine} must be at least {than} = {least}.")


class _Check(NamedTuple):
    """What the value of a setting must be."""

    name: str
    choices: tuple[Any, ...] | None
    """Those of a ``Literal``."""
    may_be_none: bool
    limits: list[tuple[Callable[[Any, Any], bool], str, float]]
    """Whether a value keeps to a bound, what it must be in words, and the bound."""

    def __call__(self, value: Any) -> None:
        if self.choices is not None and value not in self.choices:
            raise OcilError(f"{self.name} = {value!r} is not one of {', '.join(map(str, self.choices))}.")
        for holds, wanted, bound in self.limits:
            if value is None:
                if self.may_be_none:
                    continue
                raise OcilError(f"{self.name} = None must be a number {wanted} {bound}.")
            if not holds(value, bound):
                raise OcilError(f"{self.name} = {value} must be {wanted} {bound}.")


@cache
def _checks_of(kind: Any) -> list[_Check]:
    """The checks of the settings of a config class that have choices or bounds. Bounds of the classes that it derives
    from hold too: whoever bounds a setting of their own keeps the others."""
    kinds = {
        "minimum": (ge, "at least"),
        "maximum": (le, "at most"),
        "above": (gt, "more than"),
        "below": (lt, "less than"),
    }
    bounds = {
        title: {name: bound for each in reversed(kind.__mro__) for name, bound in vars(each).get(title, {}).items()}
        for title in kinds
    }
    found = []
    for each in fields(kind):
        hint = hints_of(kind)[each.name]
        choices = get_args(hint) if get_origin(hint) is Literal else None
        limits = [(*kinds[title], by_name[each.name]) for title, by_name in bounds.items() if each.name in by_name]
        if choices is not None or limits:
            found.append(_Check(each.name, choices, NoneType in get_args(hint), limits))
    return found


def check_config_class(kind: Any, owner: str) -> None:
    """Raise an ``OcilError`` if a config class of someone's own would not do what it seems to say."""
    if not (isinstance(kind, type) and issubclass(kind, LearnerConfig)):
        raise OcilError(f"{owner}.Config must be a class derived from ocil.LearnerConfig.")
    names = {setting.name for setting in fields(kind)}
    for each in kind.__mro__[: kind.__mro__.index(LearnerConfig)]:
        typed = get_annotations(each)
        settings = [name for name, hint in typed.items() if "ClassVar" not in str(hint)]
        if settings and "__dataclass_params__" not in vars(each):
            raise OcilError(f"{each.__name__} has settings, and the line @dataclass(frozen=True) is missing above it.")
        for name in sorted(names & vars(each).keys() - typed.keys() - set(vars(each).get("__slots__", ()))):
            raise OcilError(f"{each.__name__}: {name} = ... does not change the default: write {name}: TYPE = ...")
    for bounds in ("minimum", "maximum", "above", "below"):
        for name in sorted(getattr(kind, bounds).keys() - names):
            raise OcilError(f"{kind.__name__}: {bounds} has a bound of '{name}', which is not one of its settings.")


@dataclass(frozen=True)
class AugmentedConfig(LearnerConfig):
    """Settings of the methods that learn from random views of images, of the memory or of the stream too."""

    crop: float = 0.75
    """Smallest area of the random crop, as a share of the image; 1 switches the crop off."""
    flip: float = 0.5
    """Probability that an image is mirrored."""
    brightness: float = 0.4
    """Largest change of the brightness; 0: none."""
    contrast: float = 0.4
    """Largest change of the contrast; 0: none."""
    saturation: float = 0.4
    """Largest change of the saturation; 0: none."""
    hue: float = 0.1
    """Largest turn of the hue, as a share of the colour circle; 0: none."""
    jitter: float = 0.8
    """Probability that an image's colours are changed."""
    gray: float = 0.0
    """Probability that an image turns gray."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.random_views()  # raises if a value is out of its bounds

    def random_views(self) -> RandomViews:
        return RandomViews(
            crop_scale=crop_range(self.crop),
            flip=self.flip,
            jitter=self.jitter,
            brightness=self.brightness,
            contrast=self.contrast,
            saturation=self.saturation,
            hue=self.hue,
            gray=self.gray,
        )
