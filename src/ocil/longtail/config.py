"""The configuration of a long-tailed run: every setting, with the published value as its default."""

import shlex
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from ocil import precision
from ocil.data import CATALOG, DEFAULT
from ocil.errors import OcilError, suggest
from ocil.limits import check
from ocil.precision import Precision
from ocil.rng import check_seed
from ocil.runs.config import with_settings
from ocil.runs.naming import as_formerly, cell_name, distinct, short_digest
from ocil.runs.settings import fill, refuse_unknown, restored

Loss = Literal["ce", "balanced", "focal", "revised", "dynamic"]

VARIANTS: dict[str, str] = {
    "ce": "the plain network after stage 1: cross-entropy, images as they come",
    "bs": "the plain network with balanced softmax (logit adjustment) from the start, in the epochs of stage 1",
    "oltr": "OLTR: stage 2 with cross-entropy",
    "oltr-fl": "OLTR with focal loss in stage 2",
    "oltr-rfl": "OLTR with revised focal loss in stage 2",
    "oltr-rfld": "OLTR with revised focal loss whose mu follows each class's scores",
}
LOSSES: dict[str, Loss] = {
    "ce": "ce",
    "bs": "balanced",
    "oltr": "ce",
    "oltr-fl": "focal",
    "oltr-rfl": "revised",
    "oltr-rfld": "dynamic",
}
ONE_STAGE = ("ce", "bs")
"""Variants of the plain network, which have no stage 2."""
OF_LOSSES: dict[str, tuple[Loss, ...]] = {
    "adjustment": ("balanced",),
    "alpha": ("focal", "revised", "dynamic"),
    "gamma": ("focal",),
    "mu": ("revised",),
    "sigma": ("revised", "dynamic"),
    "bins": ("dynamic",),
    "share": ("dynamic",),
}
"""Settings that only some losses have."""
SMALL_IMAGE = 48  # pixels: up to here the stem keeps the size of the image
SMALL_CROP = 0.5  # the published 0.08 would keep a twelfth of the image, which shows nothing at 32x32

NOT_SETTINGS = {"variant", "dataset", "fingerprint", "seed"}
CUTTING = ("imbalance", "open_share", "validation")
"""How a long tail is cut from a balanced dataset. A dataset that is long-tailed by itself has no such settings."""
BOTH_STAGES = ("width", "batch_size", "crop_scale", "flip", "jitter", "momentum", "weight_decay", "decay")
STAGE1 = ("dataset", "fingerprint", "seed", *CUTTING, *BOTH_STAGES, "epochs1", "lr1", "decay_every1", "precision")
"""The settings that stage 1 depends on. Runs that agree on them share it."""
COUNTS = ("width", "batch_size", "epochs1", "epochs2", "decay_every1", "decay_every2", "bins", "samples_per_class")


@dataclass(frozen=True)
class LongTailConfig:
    """All settings of one run. The defaults are those published for ImageNet-LT."""

    variant: str = "oltr-rfld"
    dataset: str = DEFAULT
    """A name, or the path of a prepared .npz file."""
    seed: int = 0
    fingerprint: str = ""
    """Digest of a dataset outside the catalog: other images under the same name make another run."""
    imbalance: float = 100.0
    """Images of the largest class for each one of the smallest. 0: the dataset is long-tailed by itself."""
    open_share: float = 0.2
    """Share of the classes that is kept out of training: their test images are the open set."""
    validation: int = 20
    """Images per class, balanced, to choose the best epoch with. They are held out before the long-tailed cut."""
    width: int = 64
    """Channels of the network's first stage; features are eight times as many."""
    batch_size: int = 128
    """Images per step; an incomplete last batch is dropped."""
    crop_scale: float = 0.08
    """Smallest share of the image that a random crop keeps. Default for images of up to 48 pixels: 0.5."""
    flip: float = 0.5
    """Probability of a mirrored image."""
    jitter: float = 0.4
    """Strength of the jitter of brightness, contrast and saturation."""
    momentum: float = 0.9
    """Momentum of all optimisers."""
    weight_decay: float = 5e-4
    """Weight decay of all optimisers, also that of the centroids."""
    decay: float = 0.1
    """Factor of the learning rates at each decay."""
    epochs1: int = 30
    """Epochs of stage 1."""
    lr1: float = 0.1
    """Learning rate of stage 1."""
    decay_every1: int = 10
    """Epochs of stage 1 between two decays."""
    epochs2: int = 60
    """Epochs of stage 2."""
    lr2: float = 0.01
    """Stage 2: learning rate of the network up to its features."""
    lr_classifier: float = 0.1
    """Stage 2: learning rate of the classifier."""
    lr_centroids: float = 0.01
    """Stage 2: learning rate of the centroids."""
    decay_every2: int = 20
    """Epochs of stage 2 between two decays."""
    adjustment: float = 1.0
    """Balanced softmax: factor of the logarithm of a class's share of the images, added to its logit in training."""
    samples_per_class: int = 4
    """Stage 2: images taken each time a class is drawn."""
    alpha: float = 1.0
    """Factor of the focal losses. The paper's for long-tailed data is not known; 1 keeps the centroids' weight."""
    gamma: float = 2.0
    """Exponent of the focal loss."""
    mu: float = 0.3
    """Score that the revised focal loss weights most. The dynamic one finds its own for each class."""
    sigma: float = 0.5
    """Width of the revised focal losses."""
    bins: int = 25
    """Dynamic: bins of the scores from 0 to 1."""
    share: float = 0.25
    """Dynamic: mu is the lower edge of the bin in which this share of a class's scores is reached (the paper's b)."""
    centroid_weight: float = 0.01
    """Weight of the disc-centroids loss."""
    repel_weight: float = 0.01
    """Weight of the repelling part within it."""
    margin: float = 10.0
    """Mean squared distance to other classes' centroids from which nothing repels."""
    weighted_centroids: bool = False
    """Whether ``centroid_weight`` also scales the centroids' own attraction; the released code leaves it out."""
    cosine_scale: float = 16.0
    """Factor of the cosine classifier."""
    reach: float = 10.0
    """Reachability is this over the distance to the nearest centroid."""
    reject_below: float = 0.1
    """Open set: an image whose largest probability is smaller is rejected as of no known class."""
    precision: Precision = "tf32"
    """fp32 (deterministic), tf32 or bf16, on a GPU; bf16 by default where there is one that has it. A CPU computes in
    float32."""
    capture: bool = True
    """On a GPU: record the step as a CUDA graph. It changes the speed only and is no part of a cell's name."""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise OcilError(f"there is no variant '{self.variant}'.{suggest(self.variant, VARIANTS)}")
        for name in COUNTS:
            check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("lr1", "lr2", "lr_classifier", "lr_centroids", "sigma", "reach", "cosine_scale", "alpha"):
            check(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        weights = ("weight_decay", "centroid_weight", "repel_weight", "adjustment")
        for name in (*weights, "validation", "gamma", "margin", "decay"):
            check(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        for name in ("share", "flip", "jitter", "reject_below", "mu"):
            check(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        check_seed(self.seed)
        check(0 <= self.momentum < 1, "momentum", self.momentum, "from 0 to less than 1")
        check(0 < self.crop_scale <= 1, "crop_scale", self.crop_scale, "more than 0 and at most 1")
        check(0 <= self.open_share < 1, "open_share", self.open_share, "from 0 to less than 1")
        check(self.imbalance == 0 or 1 <= self.imbalance <= 1e6, "imbalance", self.imbalance, "from 1 to a million")
        if self.batch_size % self.samples_per_class:
            raise OcilError(
                f"batch_size = {self.batch_size} is not a multiple of samples_per_class = {self.samples_per_class}."
            )

    @property
    def loss(self) -> Loss:
        return LOSSES[self.variant]

    @property
    def has_stage2(self) -> bool:
        return self.variant not in ONE_STAGE

    @property
    def dataset_label(self) -> str:
        """The dataset and its imbalance: ``cifar100-lt100``."""
        return f"{Path(self.dataset).stem}{self._cut}"

    @property
    def identity(self) -> dict[str, Any]:
        """What distinguishes the run: images, seed, variant, and the changed settings that it depends on."""
        images = {"images": self.fingerprint} if self.fingerprint else {"dataset": self.dataset}
        variant = {"variant": self.variant} if "variant" in self._depends_on else {}
        names = self._depends_on - NOT_SETTINGS
        settings = {name: value for name, value in distinct(self).items() if name in names}
        return settings | images | {"seed": self.seed} | variant

    @property
    def stage1(self) -> "Stage1Config":
        """The configuration of its stage 1, which the variants share."""
        return Stage1Config(**{f.name: getattr(self, f.name) for f in fields(LongTailConfig)})

    def in_precision(self, chosen: Precision) -> Self:
        """The same run, computed in another precision."""
        return replace(self, precision=chosen)

    @property
    def _words(self) -> str:
        return self.variant

    @property
    def _depends_on(self) -> Set[str]:
        every = {f.name for f in fields(self)} - {"capture"}
        names = every if self.has_stage2 else {*STAGE1, "reject_below", "adjustment", "variant"}
        return names - {name for name, losses in OF_LOSSES.items() if self.loss not in losses}

    @property
    def cell(self) -> str:
        """The folder of all seeds: a name for everything but the seed that this variant depends on."""
        return cell_name(self.dataset, f"{self._cut}-{self._words}", self.identity)

    @property
    def former_cell(self) -> str:
        """The name that ``cell`` had when its digest covered every setting and the path of the images."""
        content = {name: value for name, value in as_formerly(self).items() if name in self._depends_on}
        return f"{self.dataset_label}-{self._words}-{short_digest(content | {'seed': None})}"

    @property
    def _cut(self) -> str:
        return f"-lt{self.imbalance:g}" if self.imbalance else "-lt"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return restored(cls, content)


@dataclass(frozen=True)
class Stage1Config(LongTailConfig):
    """Stage 1 of a configuration. The settings of ``STAGE1`` identify it."""

    @property
    def _words(self) -> str:
        return "stage1"

    @property
    def _depends_on(self) -> Set[str]:
        return set(STAGE1)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STAGE1}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return restored(cls, {"samples_per_class": 1} | dict(content))  # 1 divides every batch_size


def setting_names() -> set[str]:
    return {f.name for f in fields(LongTailConfig)} - NOT_SETTINGS


def resolve(
    variant: str,
    dataset: str = DEFAULT,
    *,
    seed: int = 0,
    image_side: int | None = None,
    fingerprint: str = "",
    settings: Mapping[str, Any] | None = None,
) -> LongTailConfig:
    """Fill in every setting; one that is None has its default.

    ``image_side`` is the longer side of the images in pixels, if known: small images are cropped less.
    """
    given = dict(settings or {})
    refuse_unknown(variant, given, setting_names())
    chosen: dict[str, Any] = {"variant": variant, "dataset": dataset, "seed": seed, "fingerprint": fingerprint}
    if given.get("precision") is None:
        chosen["precision"] = precision.usual()
    if image_side is not None and image_side <= SMALL_IMAGE:
        chosen["crop_scale"] = SMALL_CROP
    return fill(LongTailConfig, chosen | {name: value for name, value in given.items() if value is not None})


def changed(config: LongTailConfig) -> dict[str, Any]:
    """Settings that differ from ``resolve``'s choice for the same variant and dataset, on a machine without a GPU."""
    known = CATALOG.get(config.dataset)
    usual = resolve(
        config.variant,
        config.dataset,
        seed=config.seed,
        image_side=max(known.image_shape[:2]) if known else None,
        fingerprint=config.fingerprint,
        settings={"precision": precision.DEFAULT},
    )
    return {f.name: value for f in fields(config) if (value := getattr(config, f.name)) != getattr(usual, f.name)}


def command(config: LongTailConfig) -> str:
    """The command that runs a configuration, without its seeds."""
    different = changed(config)
    if not config.imbalance:  # the dataset is not cut
        different = {name: value for name, value in different.items() if name not in CUTTING}
    different["precision"] = config.precision  # its default depends on the machine
    return with_settings(
        ["ocil", "longtail", "run", config.variant, "--dataset", shlex.quote(config.dataset)], different
    )
