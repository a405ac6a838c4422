"""Features of a dataset's images: computed once by a network, kept on disk, and learned from as vectors.

    DATA/features/cifar100-timm_tf_efficientnet_lite0-1a2b3c4d/train-0000000.safetensors, ...

The folder's name ends in a digest of all that the vectors depend on: the images, the network with its options, the
plugin file that it comes from, its weights, and the version of the rule that turns stored images into its inputs. Code
of a package or a module is known by its name alone: delete the folder after a change of it.

Vectors are float32, as the network computed them. They are written in parts, each whole or not at all and with a
checksum: a computation that was stopped goes on where it was, and a damaged part is computed again. Whoever comes
second waits for the first.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil import tensorfile
from ocil.data import Dataset
from ocil.data.mapped import RowReader
from ocil.data.places import data_dir as data_folder
from ocil.data.samples import OnProgress
from ocil.errors import InUseError, OcilError
from ocil.files import locked
from ocil.methods.config import LearnerConfig
from ocil.networks import InputShape, Network, build, has_random_weights, pretrained, to_float
from ocil.networks.registry import origin_of, untrained
from ocil.networks.spec import Spec
from ocil.precision import numerics
from ocil.runs.naming import readable, short_digest
from ocil.runs.protocol import Interrupted
from ocil.tensorfile import DamagedFileError
from ocil.text import escaped

RULE = 1
"""The version of how stored images become inputs: scaled to [0, 1], resized and normalised by the network's record."""
FREEZE = "backbone"  # such a network never trains, so its dropout is off
PART = 1000  # images; a kill loses the part that is under way
BATCH = {"cpu": 20, "cuda": 500}  # images in a pass
LINE_SECONDS = 60.0  # between two lines of a process that has no bar
POLL_SECONDS = 0.5  # between two looks at a folder that another process works in


@dataclass(frozen=True, eq=False)
class Features(Dataset):
    """The vectors of a dataset's images. They keep the fingerprint of the images."""

    images_fingerprint: str = ""
    """Of the dataset that the vectors were computed from."""

    @cached_property
    def fingerprint(self) -> str:
        return self.images_fingerprint


@dataclass(frozen=True)
class Encoder:
    """The network that computes features, and its weights."""

    network: str
    pretrained: str = ""

    @classmethod
    def of(cls, config: LearnerConfig) -> "Encoder | None":
        """The encoder that a learner's settings name; None if it learns from the inputs as they are."""
        return cls(config.features, config.pretrained) if config.features else None

    def check(self) -> None:
        """Raise an ``OcilError`` if the weights would be random."""
        if has_random_weights(self.network, self.pretrained):
            raise OcilError(
                f"features = {self.network} would have random weights: name a file of weights with pretrained=FILE, "
                f"or pretrained={pretrained.OWN} for those that timm offers."
            )

    def build(self, input_shape: InputShape, device: torch.device | str = "cpu") -> Network:
        """The network in evaluation mode. It computes in float32, on a GPU as well."""
        made = build(
            input_shape,
            1,
            device=device,
            precision="fp32",
            spec=self.network,
            pretrained=self.pretrained,
            freeze=FREEZE,
        )
        return made.requires_grad_(False).eval()

    def vector_shape(self, input_shape: InputShape) -> InputShape:
        """The shape of the features of an image."""
        return (untrained(self.network, input_shape, freeze=FREEZE).feature_size,)

    def multiply_adds(self, input_shape: InputShape) -> int:
        """What the features of one image cost."""
        return untrained(self.network, input_shape, freeze=FREEZE).multiply_adds

    def folder(self, dataset: Dataset, data_dir: Path | None = None) -> Path:
        """Where the features of a dataset are kept."""
        spec = Spec.parse(self.network, "features")
        weights = pretrained.digest(self.pretrained) or self.pretrained
        made_of = {"images": dataset.fingerprint, "network": str(spec), "weights": weights, "rule": RULE}
        if code := origin_of(self.network).digest:
            made_of["code"] = code
        name = f"{readable(dataset.name)}-{readable(spec.name)}-{short_digest(made_of)}"
        return data_folder(data_dir) / "features" / name


def features_of(
    dataset: Dataset,
    encoder: Encoder,
    *,
    data_dir: Path | None = None,
    device: torch.device | str = "cpu",
    on_progress: OnProgress = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Features:
    """The images of a dataset as vectors: from the data folder, or computed now and kept there.

    ``should_stop`` is asked after every batch; once it returns True, ``Interrupted`` is raised, and the next call goes
    on from there.

        vectors = features_of(ocil.load_dataset("cifar100"), Encoder("timm:tf_efficientnet_lite0", "weights.pth"))
        learner = ocil.make_learner("slda", vectors)
    """
    if not dataset.is_images:
        raise OcilError(f"{dataset.name} holds vectors already: leave out features = {encoder.network}.")
    encoder.check()
    work = _Work(dataset, encoder, encoder.folder(dataset, data_dir), torch.device(device), on_progress, should_stop)
    return work.features()


def features_once(dataset: Dataset, encoder: Encoder, data_dir: Path | None, device: torch.device) -> Features:
    """``features_of``, except that those this process asked for last are not read again."""
    return _features_in(encoder.folder(dataset, data_dir), dataset, encoder, data_dir, device)


@lru_cache(maxsize=1)  # features may be large, and runs come sorted by dataset
def _features_in(
    folder: Path, dataset: Dataset, encoder: Encoder, data_dir: Path | None, device: torch.device
) -> Features:
    """``folder`` is only a part of the cache's key: it changes when the weights or the plugin do."""
    what = f"features of {dataset.name} by {encoder.network}"
    return features_of(dataset, encoder, data_dir=data_dir, device=device, on_progress=_Lines(what))


class _Lines:
    """Prints from time to time how far a long computation is. A worker process has no progress bar, and what it prints
    is in the log of its node.
    """

    def __init__(self, what: str) -> None:
        self.what, self.last = what, -LINE_SECONDS

    def __call__(self, done: int, total: int) -> None:
        if done < total and time.monotonic() - self.last >= LINE_SECONDS:
            self.last = time.monotonic()
            print(f"ocil: {escaped(self.what)} are computed: {done}/{total}", file=sys.stderr, flush=True)


def missing(dataset: Dataset, encoder: Encoder, data_dir: Path | None = None) -> int:
    """How many images have no vector yet. Only the names of the files are looked at."""
    folder = encoder.folder(dataset, data_dir)
    return sum(len(part) for part in _parts(dataset) if not (folder / part.name).is_file())


@dataclass(frozen=True)
class _Part:
    """A stretch of the training or test images, and the file of its vectors."""

    split: str
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def name(self) -> str:
        return f"{self.split}-{self.first:07d}.safetensors"


def _parts(dataset: Dataset) -> Iterator[_Part]:
    for split, labels in (("train", dataset.train_y), ("test", dataset.test_y)):
        for first in range(0, len(labels), PART):
            yield _Part(split, first, min(first + PART, len(labels)))


@dataclass
class _Work:
    """The features of one dataset in the making."""

    dataset: Dataset
    encoder: Encoder
    folder: Path
    device: torch.device
    on_progress: OnProgress
    should_stop: Callable[[], bool]
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Those of the training and of the test images."""

    def features(self) -> Features:
        data, parts = self.dataset, list(_parts(self.dataset))
        absent = [part for part in parts if not self.read(part)]
        if absent:
            with ExitStack() as held:
                self.lock(held)
                for number, part in enumerate(absent):
                    if not self.read(part):  # another process may have computed it meanwhile
                        self.compute(part, self.total - sum(map(len, absent[number:])))
        self.on_progress(self.total, self.total)
        train, test = self.vectors["train"], self.vectors["test"]
        labels = data.train_domain, data.test_domain, data.domains
        return Features(
            data.name,
            train,
            data.train_y,
            test,
            data.test_y,
            data.classes,
            data.unseen,
            *labels,
            images_fingerprint=data.fingerprint,
        )

    @property
    def total(self) -> int:
        return len(self.dataset.train_y) + len(self.dataset.test_y)

    def read(self, part: _Part) -> bool:
        """Read the vectors of a part. Returns False if they are not there, or damaged."""
        try:
            tensors, _ = tensorfile.read(self.folder / part.name)
        except (OSError, DamagedFileError):
            return False
        found = tensors.get("features")
        if found is None or found.dtype != torch.float32 or found.ndim != 2 or len(found) != len(part):
            return False
        return self.keep(part, found)

    def keep(self, part: _Part, found: Tensor) -> bool:
        """Put the vectors of a part in their place. Returns False if they are longer or shorter than the others."""
        labels = self.dataset.train_y if part.split == "train" else self.dataset.test_y
        if part.split not in self.vectors:
            self.vectors[part.split] = np.empty((len(labels), found.shape[1]), dtype=np.float32)
        there = self.vectors[part.split]
        if there.shape[1] != found.shape[1]:
            return False
        there[part.first : part.last] = found.numpy()
        return True

    def lock(self, held: ExitStack) -> None:
        """Take the folder's lock. Waits for another process that computes the same features."""
        elsewhere = "Name another data folder (--data-dir or OCIL_DATA)."
        while True:
            try:
                held.enter_context(locked(self.folder, elsewhere, f"another process works in {self.folder}."))
                return
            except InUseError:
                self.stop_if_asked()
                time.sleep(POLL_SECONDS)

    @torch.inference_mode()
    def compute(self, part: _Part, done: int) -> None:
        """Compute the vectors of a part and write them. ``done``: images that have theirs."""
        images = RowReader(self.dataset.train_x if part.split == "train" else self.dataset.test_x)
        size, batches = BATCH.get(self.device.type, BATCH["cuda"]), []
        with numerics("fp32"):
            for first in range(part.first, part.last, size):
                self.stop_if_asked()
                self.on_progress(done + first - part.first, self.total)
                batch = images.part(first, min(first + size, part.last))
                batches.append(self.network.features(to_float(torch.from_numpy(batch).to(self.device))).cpu())
        found = torch.cat(batches)
        if not bool(found.isfinite().all()):
            raise OcilError(f"features = {self.encoder.network} gives numbers that are not finite: use other weights.")
        if not self.keep(part, found):
            raise OcilError(
                f"features = {self.encoder.network} gives vectors of {found.shape[1]} now, and {self.folder} has "
                "others: the network has changed. Delete that folder."
            )
        tensorfile.write(self.folder / part.name, {"features": found}, {})

    @cached_property
    def network(self) -> Network:
        return self.encoder.build(self.dataset.input_shape, self.device)

    def stop_if_asked(self) -> None:
        if self.should_stop():
            raise Interrupted(str(self.folder))


def inputs_of(
    config: LearnerConfig, dataset: Dataset, data_dir: Path | None, device: torch.device | str = "cpu"
) -> Dataset:
    """The dataset that a learner with these settings sees: the given one, or the features of its images."""
    encoder = Encoder.of(config)
    return dataset if encoder is None else features_once(dataset, encoder, data_dir, torch.device(device))
