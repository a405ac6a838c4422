"""A learner together with what its user sees: labels of any kind, a format of inputs, one file on disk."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from ocil import files, tensorfile
from ocil.devices import pick_device
from ocil.errors import OcilError
from ocil.learning.views import RandomViews
from ocil.limits import check, check_threads
from ocil.methods import method
from ocil.methods.config import LearnerConfig
from ocil.methods.growth import capacity_for
from ocil.methods.verbs import check_batch
from ocil.networks import networks_in, pretrained, unsaved_buffers
from ocil.networks.registry import refuse_what_is_not_kept
from ocil.online.formats import InputFormat
from ocil.online.header import (
    FORMAT,
    Header,
    HeaderError,
    MissingMethodError,
    NewerFormatError,
    OtherSettingsError,
    UntrustedError,
    check_tensors,
    format_problem,
    parsed,
)
from ocil.online.images import ImageFormat
from ocil.online.inputs import InputError
from ocil.online.labels import ClassLabel, encoded, plain_label
from ocil.online.recipe import Recipe as Recipe
from ocil.precision import numerics, widest
from ocil.runs.batch_stepper import batch_stepper_for
from ocil.runs.defaults import REVIEW_EVERY, lower_lr
from ocil.threads import default_threads, using

FILE = "model.safetensors"
ENTRY = "ocil"  # the file's metadata that hold the header
SCORED_TOGETHER = 256  # inputs in one pass


class Model:
    """A learner with class labels: it learns from batches, predicts probabilities, and is saved in a folder.

    Classes are numbered as they appear; ``labels[number]`` is what the user calls them. A model that began with
    pretrained weights has them in its file like all others: ``weights`` is their digest, and their path is forgotten.
    """

    def __init__(
        self,
        recipe: Recipe,
        input_format: InputFormat,
        device: torch.device | str = "cpu",
        config: LearnerConfig | None = None,
        threads: int | None = None,
    ) -> None:
        """``threads``: CPU threads to compute on. None: what ``ocil.threads.default_threads`` finds."""
        check_threads(threads)
        config = config or recipe.config(vectors=not isinstance(input_format, ImageFormat))
        settings = {name: value for name, value in recipe.settings.items() if name != "pretrained"}
        if "network" in settings:
            settings["network"] = config.network
        self.recipe = replace(recipe, method=method(recipe.method).name, settings=settings)
        self.input_format = input_format
        check((self.recipe.review_every or 0) >= 0, "review_every", self.recipe.review_every, "at least 0")
        self.learner = method(recipe.method).learner_class(
            config, format_problem(input_format, capacity_for(0)), recipe.seed, device
        )
        self.stepper = batch_stepper_for(self.learner, recipe.batch_size, method(recipe.method).capturable)
        """Takes the learner's steps, on a GPU by replaying CUDA graphs."""
        self.config = replace(config, pretrained="")
        self.weights = pretrained.digest(config.pretrained) or config.pretrained
        self.threads = threads
        self.learner.classes_announced = True
        self._refuse_small_images()
        if self.learner.trains_network:
            refuse_what_is_not_kept(config.network, self.learner.problem.input_shape, config.width, config.freeze)
        self.labels: list[ClassLabel] = []
        self.numbers: dict[ClassLabel, int] = {}
        self.batches = 0
        self.samples = 0
        self.lock = threading.RLock()
        """For callers with several threads: a model learns, predicts or is saved, one of these at a time."""
        self.note: dict[str, Any] = {}
        """What the command line, the estimator and the service save with the model, as JSON, each by its own name."""

    def _refuse_small_images(self) -> None:
        """Raise if images are too small for views of them, or for a network to learn from one alone."""
        size = "x".join(map(str, self.input_format.shape[:2]))
        crops = isinstance(getattr(self.learner, "random_views", None), RandomViews)
        if isinstance(self.input_format, ImageFormat) and crops and min(self.input_format.network_shape[:2]) < 2:
            raise InputError(f"{self.recipe.method} crops its images, which must be larger than {size} pixels.")
        trains = self.learner.trains_network and self.config.freeze != "backbone"
        if trains and self.learner.network.smallest_batch > 1:
            raise InputError(
                f"network = {self.config.network} cannot learn from a single input of {size}, which has no batch "
                "statistics: give larger images, freeze = backbone, or another network."
            )

    @property
    def device(self) -> torch.device:
        return self.learner.device

    @property
    def review_every(self) -> int:
        """Batches between two reviews or, for a method that needs task ends, two task ends; 0: neither."""
        if self.recipe.review_every is not None:
            return self.recipe.review_every
        return REVIEW_EVERY if self.config.review or method(self.recipe.method).needs_task_ends else 0

    def learn(
        self, x: NDArray[Any], labels: Sequence[ClassLabel], after_batch: Callable[[], None] = lambda: None
    ) -> None:
        """Learn from one batch; new labels become new classes.

        ``x``: as ``input_format.read`` gives it. ``labels``: N of them. A batch that is refused (``OcilError``) adds no
        class. ``after_batch``: see ``review_or_end_task``, which may follow.
        """
        labels = [plain_label(label) for label in labels]
        inputs = on_device(x, self.device)
        check_batch(self.learner.problem, inputs, torch.empty(len(labels), dtype=torch.int64))
        numbers = [self._number(label) for label in labels]
        with self.computing():
            self.learner.meet(numbers)
            self.stepper.learn(inputs, torch.tensor(numbers, device=self.device))
        if self.review_or_task_end_next:
            self.review_or_end_task(after_batch)
        self.batches += 1
        self.samples += len(labels)

    @property
    def review_or_task_end_next(self) -> bool:
        """Whether a review, or a task end, follows the next batch."""
        return bool(self.review_every) and (self.batches + 1) % self.review_every == 0

    def review_or_end_task(self, after_batch: Callable[[], None] = lambda: None) -> None:
        """Review or, with a method that needs task ends, end a task as ``Learner.end_task`` does.

        A review is one pass over the memory at a small learning rate. A task end has one if the settings ask for it.
        ``after_batch`` is called after each batch of both. If it raises, the model is of no more use: load it again.
        """
        reviews = True
        with self.computing():
            if method(self.recipe.method).needs_task_ends:
                for _ in self.stepper.task_end_steps():
                    after_batch()
                reviews = self.config.reviews_at_task_ends
            if reviews:
                for _ in self.stepper.review_steps():
                    after_batch()

    def relabel(self, slots: Sequence[int], label: ClassLabel) -> None:
        """Give the samples in these memory slots another label, which may be that of a new class.

        The network does not change: what it has learned of them stays until later steps change it.
        """
        if slots:
            number = self._number(plain_label(label))
            with self.computing():
                self.learner.meet([number])
                self.learner.relabel(slots, number)

    def forget(self, slots: Sequence[int]) -> None:
        """Remove the samples in these memory slots. The network does not change."""
        with self.computing():
            self.learner.forget(slots)
            self.stepper.memory_changed()

    def _number(self, label: ClassLabel) -> int:
        """The number of a class, which is new if the label is."""
        if label not in self.numbers:
            self.numbers[label] = len(self.labels)
            self.labels.append(label)
        return self.numbers[label]

    def check_loss(self) -> None:
        """Raise if a loss was not finite. Reads from the device: not after every batch."""
        if int(self.learner.failed_at) >= 0:
            lower = lower_lr(self.config.lr)
            raise OcilError(f"the loss is not finite any more: begin again with a lower learning rate, lr = {lower:g}.")

    def probabilities(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """[N, classes], columns as in ``labels``: the softmax of the scores, or of negative distances to class means.

        ``x``: as ``input_format.read`` gives it.
        """
        if not self.labels or not len(x):
            return np.zeros((len(x), len(self.labels)))
        with self.computing():
            return probabilities(self.learner.scorer(), x, len(self.labels), self.device)

    @property
    def threads_used(self) -> int:
        """CPU threads that the model computes on."""
        return self.threads or default_threads(self.learner.network.multiply_adds)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """PyTorch's precision and threads as this model needs them: the rest of the process may need others."""
        with numerics(self.config.precision), using(self.threads_used):
            yield

    def check_weights(self) -> None:
        """Raise if a weight or a running statistic is not finite. Buffers that are not saved, such as a mask of minus
        infinities, never change. Reads from the device."""
        running: list[Tensor] = []
        for network in networks_in(self.learner):
            unsaved = unsaved_buffers(network)
            running += [buffer for name, buffer in network.named_buffers() if name not in unsaved]
        weights = (*self.learner.parameters(), *running)
        if weights and not bool(torch.stack([value.isfinite().all() for value in weights]).all()):
            raise OcilError("the weights are not finite any more: begin again with a lower learning rate.")

    def save(self, folder: Path | str) -> None:
        """Write the model to its file in ``folder``, whole or not at all.

        ``OcilError`` if a loss or a weight is not finite, or if the file could not be loaded again. ``WriteError`` if
        it cannot be written.
        """
        self.check_loss()
        self.check_weights()
        header, tensors = self._header(), self.learner.state()
        with _savable():
            check_tensors(parsed(header), tensors, trusted=True)
        tensorfile.write(Path(folder) / FILE, tensors, {ENTRY: header})

    @classmethod
    def load(cls, folder: Path | str, device: torch.device | str = "auto", trust: bool | str = False) -> "Model":
        """The model of a folder. On another kind of device than it was saved on, its random numbers begin anew.

        ``trust``: whether the file may name Python code as its network (``module:...``), which is then run; or the one
        network that it may name. ``OcilError`` if the file is missing, damaged, of a later version, or not a model.
        """
        path = Path(folder) / FILE
        if not has_model(path.parent):
            if Path(folder).is_file():
                its_own = f", {Path(folder).parent}" if Path(folder).name == FILE else ""
                raise OcilError(f"{folder} is a file: give the folder of a model{its_own}.")
            is_run = (Path(folder) / "config.json").is_file()
            hint = f" It is the folder of a run: in Python, ocil.load_learner({str(folder)!r}) loads its learner."
            raise OcilError(f"there is no model in {folder}: it has no file {FILE}.{hint if is_run else ''}")
        chosen_device = pick_device(device)
        try:
            tensors, texts = tensorfile.read(path)
        except (tensorfile.DamagedFileError, OSError) as error:
            reason = "it is a symbolic link" if path.is_symlink() else getattr(error, "strerror", None) or error
            raise OcilError(f"{path} cannot be read: {reason}. Restore it from a copy, or learn anew.") from error
        if ENTRY not in texts:
            raise OcilError(f"{path} was not written by ocil.")
        try:
            header = parsed(texts[ENTRY])
            check_tensors(header, tensors, trust is True or trust == header.config.network)
            model = cls._from_parts(header, tensors, chosen_device)
            model.check_weights()
            return model
        except UntrustedError as error:
            advice = "If you trust the file, name this network again, or give --trust (trust=True)"
            raise OcilError(f"{path} {error}. {advice}.") from error
        except MissingMethodError as error:
            advice = "If it comes from a plugin, load that first (--plugin FILE, ocil.plugins.load)"
            raise OcilError(f"{path}: {error} {advice}.") from error
        except NewerFormatError as error:
            raise OcilError(f"{path} {error}: update ocil.") from error
        except OtherSettingsError as error:
            raise OcilError(f"{path} {error}.") from error
        except (OcilError, LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise OcilError(f"{path} is not a whole model of this version of ocil: {reason}.") from error

    def _header(self) -> str:
        """The header of the model's file. ``OcilError`` if it could not be read again."""
        content = {
            "format": FORMAT,
            "recipe": asdict(self.recipe),
            "config": asdict(self.config),
            "images" if isinstance(self.input_format, ImageFormat) else "vectors": asdict(self.input_format),
            "weights": self.weights,
            "labels": [encoded(label) for label in self.labels],
            "batches": self.batches,
            "samples": self.samples,
            "device": self.device.type,
            "note": self.note,
        }
        with _savable():
            text = json.dumps(content, default=_plain)
            again = json.loads(json.dumps(asdict(parsed(text).config), default=_plain))
            for name, value in json.loads(text)["config"].items():
                if again[name] != value:
                    raise HeaderError(f"{name} = {value!r} would be read as {again[name]!r}")
        return text

    @classmethod
    def _from_parts(cls, header: Header, tensors: dict[str, Tensor], device: torch.device) -> "Model":
        model = cls(Recipe(**header.recipe), header.input_format, device, header.config)
        model.weights = header.weights
        model.learner.load_state(tensors, generators=header.device == device.type)
        model.labels = header.labels
        model.numbers = {label: number for number, label in enumerate(model.labels)}
        model.batches, model.samples, model.note = header.batches, header.samples, header.note
        return model

    def copy(self, device: torch.device | str) -> "Model":
        """A copy of the model on a device."""
        state = tensorfile.on_host(self.learner.state())
        made = self._from_parts(parsed(self._header()), state, torch.device(device))
        made.threads = self.threads
        return made

    def adopt(self, other: "Model") -> None:
        """Become another model, which must not be used any more: all that refer to this object have the other one."""
        self.__dict__.update(other.__dict__)

    def __reduce__(self) -> tuple[Any, ...]:
        """How ``copy`` and ``pickle`` copy a model, also to other processes. To keep a model, use ``save``."""
        with self.lock:
            tensors = safetensors.torch.save(tensorfile.on_host(self.learner.state()))
            return _unpickled, (self._header(), tensors, str(self.device)), {"threads": self.threads}


def on_device(x: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(x)).to(device)  # a copy: what is given may be read-only


def probabilities(
    scorer: Callable[[Tensor], Tensor], x: NDArray[Any], classes: int, device: torch.device
) -> NDArray[np.float64]:
    """[N, classes]: the softmax of the scores of the first ``classes`` classes, some inputs at a time."""
    found = np.zeros((len(x), classes))
    for first in range(0, len(x) if classes else 0, SCORED_TOGETHER):
        part = slice(first, first + SCORED_TOGETHER)
        scores = scorer(on_device(x[part], device))[:, :classes]
        found[part] = scores.to(widest(device)).softmax(1).cpu().numpy()
    return found


def _unpickled(header: str, tensors: bytes, device: str) -> Model:
    there = device if device == "cpu" or torch.cuda.is_available() else "cpu"
    return Model._from_parts(parsed(header), safetensors.torch.load(tensors), torch.device(there))


@contextmanager
def _savable() -> Iterator[None]:
    """Turn every error that ``load`` would have into an ``OcilError``, before a file is written."""
    try:
        yield
    except (OcilError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise OcilError(f"this model could not be loaded again, so it is not saved: {reason}.") from error


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as JSON can represent them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} is of type {type(value).__name__}, which JSON does not have")


def has_model(folder: Path) -> bool:
    """Whether a folder has a file of a model's name. ``Model.load`` checks whether it is a model."""
    return os.path.lexists(folder / FILE)


def locked(folder: Path) -> AbstractContextManager[None]:
    """The lock of a model's folder: one process at a time learns in it."""
    taken = f"another process is learning in {folder}: wait for it, or choose another one."
    return files.locked(folder, "Choose another folder.", taken)
