"""``ocil.OnlineClassifier``: a model as a scikit-learn estimator."""

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocil.data.inputs import tensors_as_arrays
from ocil.errors import InUseError, optional

with optional("OnlineClassifier needs scikit-learn", "sklearn", "sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import NotFittedError
    from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import assert_all_finite, check_is_fitted, validate_data

from ocil.devices import pick_device
from ocil.files import folder_path, is_locked, sweep
from ocil.limits import check_threads
from ocil.networks.base import Factory
from ocil.networks.registry import spec_of
from ocil.online.formats import format_of
from ocil.online.header import entry, reading_note
from ocil.online.images import ImageFormat, is_pictures
from ocil.online.inputs import InputError
from ocil.online.labels import ClassLabel, decoded, encoded, plain_label
from ocil.online.model import SCORED_TOGETHER, Model, Recipe

STALE_SECONDS = 3600.0
"""No save takes as long as this."""
OWN_PARAMETERS = ("network", "pretrained", "freeze", "optimizer")
"""Settings of the learner that are parameters of the estimator."""
OF_THE_BEGINNING = (
    *("method", "memory", "width", "review_every", "image_shape", "pixel_range", "settings"),
    *OWN_PARAMETERS,
)
"""Parameters that a model begins with, and keeps."""


class OnlineClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns to classify images or vectors one batch after the other, while new classes appear.

    ``partial_fit`` learns the samples it is given in their order, ``batch_size`` at a time, all of them before it
    returns: what is left over makes a smaller last batch. ``fit`` forgets everything first, goes over the data once,
    and ends with a review if the method has reviews.

    Rows of numbers [N,D] are vectors, for example embeddings, and are kept as float16 or float32 as they are given;
    other numbers become float32. What needs views of an image refuses them.

    Images are arrays [N,H,W] or [N,H,W,C] with one or three channels, lists of files or of Pillow images, or, with an
    ``image_shape``, rows of pixels [N,D]. Files and Pillow images are brought to the shape of the first one; arrays
    must have it. uint8 numbers are taken as they are. Others are mapped to 0..255 from ``pixel_range``, which the first
    images fix for good if it is not given: 0 to 1 if all their values lie in it, 0 to 255 if the smallest is not below
    0 and the largest from 100 to 255, else from their smallest to their largest value. Values outside are clipped.

    Parameters
    ----------
    method : a name from ``ocil.METHODS``
    memory : inputs kept for replay (methods without a memory ignore it)
    batch_size : samples learned together
    width : channels of the default network's first stage
    network : a name with options, such as ``mlp(hidden=512)`` or ``timm:NAME``, or a factory. None: reduced-resnet18
        for images, linear for vectors
    pretrained : weights that the network starts with, a .safetensors or .pth file; None: none
    freeze : what keeps its weights: ``backbone`` is all but the head; None: nothing
    optimizer : a name with options, such as ``adamw(eps=1e-6)``; None: sgd
    review_every : batches between two reviews; 0: none; None: 500 if the method has reviews or needs task ends.
        To a method that needs task ends each of these is one.
    image_shape : (height, width) or (height, width, channels). For rows of pixels: how to fold them; without it they
        are vectors, and one side may be -1, which then follows from D. For files: what to resize to (else the first
        one's size).
    pixel_range : the values of black and white
    random_state : None, a number or a RandomState
    device : auto, cpu, cuda or mps
    threads : CPU threads to compute on; None: one for a small network, some for others (docs/performance.md)
    settings : any other field of the method's config, by name

    Attributes
    ----------
    classes_ : the labels met so far, and those announced, sorted (in order of appearance if they cannot be sorted)
    model_ : the ``ocil.online.model.Model`` behind it
    n_features_in_ : values per image or vector
    """

    model_: Model
    classes_: NDArray[Any]
    _began_with: dict[str, Any]
    """The values that ``OF_THE_BEGINNING`` had then, as ``_plain`` has them."""
    _columns: NDArray[np.int64]
    """The column in ``classes_`` of each label that was met, in the order of the model's."""

    def __init__(
        self,
        method: str = "afs",
        *,
        memory: int = 1000,
        batch_size: int = 10,
        width: int = 20,
        network: str | Factory | None = None,
        pretrained: str | None = None,
        freeze: str | None = None,
        optimizer: str | None = None,
        review_every: int | None = None,
        image_shape: tuple[int, ...] | None = None,
        pixel_range: tuple[float, float] | None = None,
        random_state: Any = None,
        device: str = "auto",
        threads: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.memory = memory
        self.batch_size = batch_size
        self.width = width
        self.network = network
        self.pretrained = pretrained
        self.freeze = freeze
        self.optimizer = optimizer
        self.review_every = review_every
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        self.random_state = random_state
        self.device = device
        self.threads = threads
        self.settings = settings

    def set_params(self, **params: Any) -> Self:
        """Set parameters. ``settings__lr=0.1`` sets one of the settings, as a search over a grid does."""
        one_by_one = {name: params.pop(name) for name in tuple(params) if name.startswith("settings__")}
        super().set_params(**params)
        if one_by_one:
            settings = self.settings or {}
            self.settings = {**settings, **{name.removeprefix("settings__"): v for name, v in one_by_one.items()}}
        return self

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Forget everything, then learn these samples in their order, once."""
        inputs, labels = self._samples(X, y, first=True)
        self._learn(self._new_model(inputs), inputs, labels, [])
        if self.model_.review_every:
            self.review()
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:  # noqa: N803
        """Learn these samples too. ``classes`` may announce labels that are to come, at any call; it need not."""
        if hasattr(self, "model_"):
            return self._learn_more(X, y, classes)
        with self.__dict__.setdefault("_beginning", threading.RLock()):  # one thread begins, others wait and go on
            return self._learn_more(X, y, classes)

    def _learn_more(self, X: Any, y: Any, classes: Any) -> Self:  # noqa: N803
        first = not hasattr(self, "model_")
        inputs, labels = self._samples(X, y, first)
        announced = [] if classes is None else _announced(classes)
        if not first:
            self._warn_of_idle_parameters()
        self._learn(self._new_model(inputs) if first else self._ready_model(), inputs, labels, announced)
        return self

    def review(self) -> Self:
        """One pass over the memory now, at a small learning rate; a task end if the method needs task ends."""
        check_is_fitted(self)
        model = self._ready_model()
        with model.lock:
            model.review_or_end_task()
            model.check_loss()
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """[N, classes], columns as in ``classes_``. An announced class that was not met yet has probability 0."""
        return self._scored(X)[0]

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The likeliest label of each input."""
        found, classes = self._scored(X)
        if not len(classes):
            raise NotFittedError("the model has learned nothing yet: give it labelled samples first.")
        likeliest: NDArray[Any] = classes[found.argmax(1)]
        return likeliest

    def _scored(self, X: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:  # noqa: N803
        """The probabilities [N, classes], and the classes of their columns."""
        check_is_fitted(self)
        inputs = self._inputs(X, first=False)
        model = self._ready_model()
        parts = []
        for first in range(0, len(inputs), SCORED_TOGETHER):
            x = model.input_format.read(inputs[first : first + SCORED_TOGETHER])
            with model.lock:  # another thread may learn between two parts
                parts.append(model.probabilities(x))
                classes, columns = self.classes_, self._columns
        found = np.zeros((len(inputs), len(classes)))
        done = 0
        for part in parts:
            found[done : done + len(part), columns[: part.shape[1]]] = part
            done += len(part)
        return found, classes

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """The share of inputs whose likeliest label is theirs."""
        check_is_fitted(self)
        right = [a == b for a, b in zip(_labels(self.predict(X)), _labels(y), strict=True)]
        return float(np.average(right, weights=sample_weight))

    def save(self, folder: Path | str) -> None:
        """Write the model to a folder: one file, replaced whole or not at all.

        ``InUseError`` while `ocil serve` or `ocil learn` works in that folder: it would soon replace the file by its
        own.
        """
        check_is_fitted(self)
        folder = folder_path("folder", folder)
        if is_locked(folder):
            raise InUseError(
                f"another process is learning in {folder}: stop it first, or save to another folder.", folder
            )
        with self.model_.lock:
            waiting = [encoded(label) for label in _labels(self.classes_) if label not in self.model_.numbers]
            given = {"image_shape": self.image_shape, "pixel_range": self.pixel_range, "announced": waiting}
            self.model_.note["classifier"] = given
            self.model_.save(folder)
        sweep(folder, STALE_SECONDS)  # a process that is killed while it saves leaves a file as large as the model

    def export(self, path: Path | str) -> None:
        """Write the model as one file for serving elsewhere, as ``ocil export`` does: .onnx (extra ``onnx``) or .pt2.

        The columns of its output are the classes met, in the order of the labels in the file, not of ``classes_``.
        """
        from ocil.online.export import export

        check_is_fitted(self)
        if not isinstance(path, str | PathLike):
            raise InputError(f"path = {path!r} must be that of a file, such as 'model.onnx'.")
        model = self._ready_model()
        with model.lock, model.computing():
            export(model, Path(path))

    @classmethod
    def load(
        cls, folder: Path | str, device: str = "auto", threads: int | None = None, trust: bool | str = False
    ) -> Self:
        """A saved model, also one made by ``ocil learn``. Learning goes on exactly where it stopped.

        The pretrained weights that it began with are in it: ``pretrained`` is None then. ``trust``: whether the file
        may name Python code as its network (``module:...``), or the one network that it may name.
        """
        check_threads(threads)
        model = Model.load(folder_path("folder", folder), device, trust)
        recipe = model.recipe
        image_shape, pixel_range, announced = _noted(model)
        given = {name: getattr(recipe, name) for name in ("method", "memory", "batch_size", "width", "review_every")}
        given |= {"image_shape": image_shape, "pixel_range": pixel_range, "random_state": recipe.seed}
        settings = dict(recipe.settings)
        given |= {name: settings.pop(name, None) for name in OWN_PARAMETERS}
        classifier = cls(**given, device=device, threads=threads, settings=settings or None)
        classifier.n_features_in_ = int(np.prod(model.input_format.shape))
        classifier._show(model, announced)
        return classifier

    def _warn_of_idle_parameters(self) -> None:
        began_with = getattr(self, "_began_with", {})  # an older version may have pickled this estimator
        idle = [name for name, old in began_with.items() if _plain(getattr(self, name)) != old]
        if idle:
            warnings.warn(
                f"{' and '.join(idle)} of a model cannot change: it goes on as it began. `fit` begins anew.",
                stacklevel=4,
            )

    def _new_model(self, inputs: Any) -> Model:
        if not isinstance(self.method, str):
            raise InputError(f"method = {self.method!r} must be the name of a method, such as 'er'.")
        seed = self.random_state
        if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
            seed = check_random_state(seed).randint(2**31)
        sizes = _whole("memory", self.memory), self._batch_size(), _whole("width", self.width)
        review_every = None if self.review_every is None else _whole("review_every", self.review_every)
        recipe = Recipe(self.method, *sizes, review_every, int(seed), self._settings())
        input_format = format_of(inputs, self.image_shape, self.pixel_range)
        model = Model(recipe, input_format, pick_device(self.device), threads=self._threads())
        self.n_features_in_ = int(np.prod(input_format.shape))
        return model

    def _settings(self) -> dict[str, Any]:
        """All settings of the learner that were given, also those that are parameters here."""
        given: Any = {} if self.settings is None else self.settings
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InputError(f"settings = {given!r} must be a dictionary, such as {{'lr': 0.05}}.")
        settings: dict[str, Any] = dict(given)
        for name in OWN_PARAMETERS:
            value = getattr(self, name)
            if value is None:
                continue
            if name in settings:
                raise InputError(f"{name} is given twice, as a parameter and among the settings.")
            settings[name] = spec_of(value) if name == "network" else str(value)
        return settings

    def _ready_model(self) -> Model:
        """The model, about to compute on as many threads as the parameter asks for by now."""
        self.model_.threads = self._threads()
        return self.model_

    def _threads(self) -> int | None:
        threads = None if self.threads is None else _whole("threads", self.threads)
        check_threads(threads)
        return threads

    def _batch_size(self) -> int:
        """The parameter, which may have been set anew since the model began."""
        size = _whole("batch_size", self.batch_size)
        if size < 1:
            raise InputError(f"batch_size = {size} must be at least 1.")
        return size

    def _learn(self, model: Model, inputs: Any, labels: Sequence[ClassLabel], announced: Sequence[ClassLabel]) -> None:
        size = self._batch_size()
        for first in range(0, len(labels), size):
            batch = slice(first, first + size)
            x = model.input_format.read(inputs[batch])  # if a file cannot be read, what came before it was learned
            with model.lock:
                model.learn(x, labels[batch])
                self._show(model, announced)
        with model.lock:
            model.check_loss()

    def _show(self, model: Model, announced: Sequence[ClassLabel]) -> None:
        """Predict with this model from now on, with all classes that it has met and those announced."""
        same = getattr(self, "model_", None) is model
        if same and not announced and len(self._columns) == len(model.labels):
            return
        known = dict.fromkeys(_labels(self.classes_) if same else ())
        if not same or any(label not in known for label in (*model.labels, *announced)):
            self.classes_ = _sorted_array([*model.labels, *known, *announced])
        places = {label: column for column, label in enumerate(_labels(self.classes_))}
        self._columns = np.array([places[label] for label in model.labels], np.int64)
        if not same:
            self._began_with = {name: _plain(getattr(self, name)) for name in OF_THE_BEGINNING}
        self.model_ = model

    def _samples(self, X: Any, y: Any, first: bool) -> tuple[Any, list[ClassLabel]]:  # noqa: N803
        inputs = self._inputs(X, first)
        labels = [plain_label(label) for label in _labels(y, check=True)]
        if len(labels) == 1 and isinstance(inputs, np.ndarray) and inputs.ndim == 3 and len(inputs) > 1:
            size = "x".join(map(str, inputs.shape))
            raise InputError(
                f"X of {size} is {len(inputs)} gray images, with one label. If it is one image, give X[None]."
            )
        check_consistent_length(inputs, labels)
        return inputs, labels

    def _inputs(self, X: Any, first: bool) -> Any:  # noqa: N803
        """Files and Pillow images as they are, else an array of finite numbers."""
        X = _listed(X)  # noqa: N806
        if is_pictures(X):
            return X
        X = tensors_as_arrays(X, "X")  # noqa: N806
        if not first and self._is_plain(X):
            array = X
        elif (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) > 2:
            array = check_array(X, dtype=None, allow_nd=True, estimator=self)
        else:
            array = validate_data(self, X, reset=first)
        if not first and self.pixel_range is None and isinstance(self.model_.input_format, ImageFormat):
            self.model_.input_format.warn_of_another_range(array)
        return array

    def _is_plain(self, X: Any) -> bool:  # noqa: N803
        """Whether these are inputs in which scikit-learn would find nothing. Its checks take longer than a small step.

        What is of another form than the first inputs is left to the checks, which say what is wrong.
        """
        if type(X) is not np.ndarray or X.ndim < 2 or not len(X) or hasattr(self, "feature_names_in_"):
            return False
        if X.dtype.char not in "efdB" or (X.ndim == 2 and X.shape[1] != self.n_features_in_):
            return False
        return X.dtype.kind != "f" or bool(np.isfinite(X).all())

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_beginning", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "model_"):
            with self.model_.lock:
                self._show(self.model_, [])  # another thread may have learned while the model was copied

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _listed(given: Any) -> Any:
    """A column of a data frame as a list, and all else as it is. One file or image, which is no list, is refused."""
    if isinstance(given, str | Path):
        raise InputError(f"X is one file, {str(given)!r}: give a list of files, [{str(given)!r}].")
    if isinstance(given, Image.Image):
        raise InputError("X is one image: give a list of images, [image].")
    if isinstance(given, list | tuple) and len({np.shape(each) for each in given if isinstance(each, np.ndarray)}) > 1:
        raise InputError("the arrays of X differ in shape: resize them, or give files or Pillow images instead.")
    is_column = getattr(given, "ndim", 0) == 1 and hasattr(given, "to_numpy")
    return given.tolist() if is_column and is_pictures(given.to_numpy()) else given


def _labels(y: Any, check: bool = False) -> list[ClassLabel]:
    """Labels as plain Python values. Tuples stay what they are; numpy would make a table of them."""
    if type(y) is list and y and (kind := type(y[0])) in (str, int) and all(type(label) is kind for label in y):
        return list(y)
    y = tensors_as_arrays(y, "y")
    plain = isinstance(y, np.ndarray) and y.dtype != object  # has no tuples
    if not plain and isinstance(y, list | tuple | np.ndarray) and any(isinstance(label, tuple) for label in y):
        return list(y)
    if isinstance(y, list | tuple) and (len({isinstance(label, str) for label in y}) == 2 or _rounded(y)):
        y = np.array(y, dtype=object)  # else numpy would turn all of them into text, or large whole numbers into floats
    if check:
        y = column_or_1d(y, warn=True)
        if any(type(label).__name__ == "NAType" for label in (y if y.dtype == object else ())):
            raise InputError("y contains a missing value (NA): leave these samples out.")
        assert_all_finite(y, input_name="y")
        if y.dtype.kind == "f":  # refuses measurements; of others it would warn where many classes are new
            check_classification_targets(y)
    labels: list[ClassLabel] = np.asarray(y).tolist()
    return labels


def _announced(classes: Any) -> list[ClassLabel]:
    labels: Any = _labels(classes)
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):  # each letter would be a class
        raise InputError(f"classes = {classes!r} must be a list of labels, such as ['cat', 'dog'].")
    return [plain_label(label) for label in labels]


def _whole(name: str, value: Any) -> int:
    """A parameter as a number of Python. 20.0 is whole too, as a search over a grid may write it."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return int(value)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"{name} = {value!r} must be a whole number.")
    return index(value)


def _plain(value: Any) -> Any:
    """The value of a parameter, such that equal ones compare as equal, whatever types they have."""
    value = value.tolist() if hasattr(value, "tolist") else value  # of NumPy or PyTorch
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, PathLike) else value


def _rounded(labels: Sequence[ClassLabel]) -> bool:
    """Whether numpy would make floats of whole numbers: it does if only some of them need all 64 bits."""
    whole = all(isinstance(label, int | np.integer) for label in labels)
    return whole and len(labels) > 0 and np.asarray(labels).dtype.kind == "f"


def _noted(model: Model) -> tuple[tuple[int, ...] | None, tuple[float, float] | None, list[ClassLabel]]:
    """Image shape, pixel range and announced classes, as they were saved with a model."""
    note: dict[str, Any] = {"image_shape": None, "pixel_range": None, "announced": []}
    with reading_note("its estimator"):
        form = model.input_format
        own_shape = {"image_shape": list(form.shape)} if isinstance(form, ImageFormat) else {}
        note |= model.note.get("classifier", own_shape)
        shape, bounds = (entry(note, name, list, type(None)) for name in ("image_shape", "pixel_range"))
        announced = [decoded(label) for label in entry(note, "announced", list)]
        for label in announced:
            encoded(label)  # raises if it can be none
        if bounds is not None:
            ImageFormat((1, 1, 1), *bounds)
        return None if shape is None else tuple(shape), None if bounds is None else (bounds[0], bounds[1]), announced


def _sorted_array(labels: list[ClassLabel]) -> NDArray[Any]:
    """Each label once, sorted if that is possible."""
    labels = list(dict.fromkeys(labels))
    with suppress(TypeError):
        labels = sorted(labels)
    if len({type(label) for label in labels}) == 1 and not isinstance(labels[0], tuple):
        for dtype in (None, np.uint64):
            with suppress(TypeError, ValueError, OverflowError):
                array = np.array(labels, dtype)
                if array.tolist() == labels:  # not if it rounds large whole numbers, or cuts a null character off
                    return array
    array = np.empty(len(labels), object)
    array[:] = labels
    return array
