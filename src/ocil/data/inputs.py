"""What a dataset is made of, wherever it comes from: inputs in one form, read a few at a time, and labels from 0.

Images become uint8 ``[H, W, C]``. Rows of numbers stay vectors: float16 and float32 as they are, others as float32.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocil.data.class_names import in_order
from ocil.data.images import GRAY_MODES, upright
from ocil.data.mapped import RowReader
from ocil.errors import OcilError
from ocil.limits import whole

EXACT = 2.0**53
"""Up to here a float is one whole number; larger ones would be taken for each other, or for none."""
Layout = Literal["HWC", "CHW"]
Indices = NDArray[np.int64]
CHANNELS = (1, 3)
ROUNDING = 1e-3  # how far a float image may leave [0, 1]: resizing and arithmetic in float16 do


class Source(Protocol):
    """Samples without their labels, in the form in which they are stored."""

    def __len__(self) -> int: ...

    def take(self, index: Indices) -> NDArray[Any]:
        """The samples of these numbers, stacked."""


class ArraySource:
    """Samples in an array or a tensor: images in either layout, or vectors."""

    def __init__(self, x: Any, what: str, layout: Layout | None = None) -> None:
        self.rows, self.what = RowReader(as_array(x, what)), what
        self.form = form_of(self.rows.array.shape[1:], self.rows.array.dtype, what, layout)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Indices) -> NDArray[Any]:
        return self.form.convert(self.rows.take(index), self.what)

    @property
    def as_it_is(self) -> NDArray[Any] | None:
        """The array itself, if it has the form in which samples are stored."""
        array = self.rows.array
        return array if self.form.keeps(array) and array.flags.c_contiguous else None


class ItemSource:
    """Samples that a dataset returns one at a time: Pillow images, arrays or tensors.

    ``get`` returns the sample of a number. With ``size``, images become squares of that side. What the first sample is
    decides how all are read.
    """

    def __init__(
        self,
        get: Callable[[int], Any],
        count: int,
        what: str,
        layout: Layout | None = None,
        size: int | None = None,
    ) -> None:
        self.get, self.count, self.what, self.size = get, count, what, size
        if size is not None:
            whole("size", size, least=1)
        if not count:
            raise OcilError(f"{what} has no samples. Give at least one.")
        first = get(0)
        self.gray = isinstance(first, Image.Image) and first.mode in GRAY_MODES
        array = self._array(first)
        self.shape, self.form = array.shape, form_of(array.shape, array.dtype, what, layout)
        if size is not None and self.form.axes is None:
            raise OcilError(f"{what} has vectors, which have no image size. Leave out size.")

    def __len__(self) -> int:
        return self.count

    def take(self, index: Indices) -> NDArray[Any]:
        arrays = [self._array(self.get(int(number))) for number in index]
        if self.size is not None:
            return np.stack([self._resized(array, self.size) for array in arrays])
        for number, array in zip(index, arrays, strict=True):
            if array.shape != self.shape:
                here, there = list(array.shape), list(self.shape)
                raise OcilError(f"{self.what}: sample {number} is {here} but the first is {there}. Resize: size=N.")
        return self.form.convert(np.stack(arrays), self.what)

    def _array(self, sample: Any) -> NDArray[Any]:
        if not isinstance(sample, Image.Image):
            return as_array(sample, self.what)
        if self.gray and sample.mode not in GRAY_MODES:
            advice = "Convert all of them: image.convert('RGB')."
            raise OcilError(
                f"{self.what} has images in colour (mode {sample.mode}), but its first one is gray. {advice}"
            )
        if self.size is not None and sample.size != (self.size, self.size):
            sample = upright(sample, self.gray).resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.asarray(upright(sample, self.gray))

    def _resized(self, array: NDArray[Any], size: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self.form.convert(array[None], self.what)[0]
        if image.shape[:2] == (size, size):
            return image
        pixels = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        resized = np.asarray(pixels.resize((size, size), Image.Resampling.BILINEAR))
        return resized[:, :, None] if image.shape[2] == 1 else resized


@dataclass(frozen=True)
class InputForm:
    """How samples are turned into the form in which they are stored."""

    axes: tuple[int, ...] | None
    """How the axes of a batch of images are ordered; None for vectors."""
    gray: bool = False
    """Images without an axis of channels."""

    def keeps(self, x: NDArray[Any]) -> bool:
        """Whether ``convert`` would change nothing."""
        if self.axes is None:
            return x.dtype in (np.float16, np.float32)
        return x.dtype == np.uint8 and not self.gray and self.axes == (0, 1, 2, 3)

    def convert(self, x: NDArray[Any], what: str) -> NDArray[Any]:
        if self.axes is None:
            if x.dtype.kind == "f" and not np.isfinite(x).all():
                raise OcilError(f"{what} has values that are not finite. Leave those samples out.")
            return x if self.keeps(x) else _as_float32(x, what)
        x = x[..., None] if self.gray else x.transpose(self.axes)
        return np.ascontiguousarray(as_pixels(x, what))


def form_of(shape: tuple[int, ...], dtype: np.dtype[Any], what: str, layout: Layout | None = None) -> InputForm:
    """The form of samples of this shape, without the axis that counts them. ``OcilError`` if it cannot be found out."""
    if layout not in (None, "HWC", "CHW"):
        raise OcilError(f"layout = {layout!r} is not a choice: HWC or CHW.")
    if dtype.kind not in "uifb":
        raise OcilError(f"{what} must hold numbers, but it is {dtype}.")
    if len(shape) == 1:
        return InputForm(None)
    if len(shape) == 2:
        return InputForm((0, 1, 2), gray=True)
    text = f"{what} is [N, {', '.join(map(str, shape))}]"
    if len(shape) != 3:
        raise OcilError(f"{text}. Images are [N, H, W, C], [N, C, H, W] or [N, H, W], vectors are [N, D].")
    last, first = shape[2] in CHANNELS, shape[0] in CHANNELS
    if layout is None and first and last:
        raise OcilError(f"{text}, which may be HWC or CHW. Say which: layout='HWC' or layout='CHW'.")
    if not (last if layout == "HWC" else first if layout == "CHW" else first or last):
        raise OcilError(f"{text}: images must have 1 or 3 channels, first or last. Drop an alpha channel.")
    return InputForm((0, 1, 2, 3) if layout == "HWC" or (layout is None and last) else (0, 2, 3, 1))


def as_pixels(x: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Images as uint8. Floats must lie in [0, 1], whole numbers in 0..255."""
    if x.dtype == np.uint8:
        return x
    if x.dtype == np.bool_:
        return x.astype(np.uint8) * 255
    low, high = (x.min(), x.max()) if x.size else (0, 0)
    if x.dtype.kind in "iu":
        if low < 0 or high > 255:
            advice = " Divide 16 bits by 257." if low >= 0 and 4095 < high < 65536 else ""
            raise OcilError(f"{what} has whole numbers from {low} to {high}. Pixels must lie in 0..255.{advice}")
        return x.astype(np.uint8)
    if np.isnan(low):
        raise OcilError(f"{what} has pixels that are not a number (NaN). Leave out these images, or mend their pixels.")
    if not -ROUNDING <= low <= high <= 1 + ROUNDING:
        advice = "Divide them by 255, or undo their normalisation."
        raise OcilError(f"{what} has floats from {low:.4g} to {high:.4g}. Float images must lie in [0, 1]. {advice}")
    scaled: NDArray[np.float32] = x.astype(np.float32).clip(0, 1) * 255
    return np.rint(scaled).astype(np.uint8)


def _as_float32(x: NDArray[Any], what: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        small: NDArray[np.float32] = x.astype(np.float32)
    if not np.isfinite(small).all():
        raise OcilError(f"{what} has values that are too large for float32. Scale them, or leave those samples out.")
    return small


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor of PyTorch, which need not be loaded to recognise one."""
    return callable(getattr(x, "detach", None))


def tensors_as_arrays(x: Any, what: str) -> Any:
    """A tensor on any device as an array; anything else as it is. bfloat16, which numpy does not have, is float32."""
    if not is_tensor(x):
        return x
    x = x.detach().cpu()
    x = x.float() if str(x.dtype) == "torch.bfloat16" else x
    if str(x.layout) != "torch.strided":
        raise OcilError(f"{what} is a sparse tensor: give {what}.to_dense().")
    return x.numpy()


def as_array(x: Any, what: str) -> NDArray[Any]:
    """An array, a tensor on any device, or nested lists as an array. Nothing is copied without need."""
    x = tensors_as_arrays(x, what)
    try:
        array = np.asarray(x)
    except (ValueError, TypeError) as error:
        raise OcilError(
            f"{what} cannot be read as an array: its samples differ in shape. Give them one shape."
        ) from error
    if array.ndim == 0:
        raise OcilError(f"{what} is not an array but {type(x).__name__}.")
    return array


@dataclass(frozen=True)
class Labels:
    """Labels that count from 0, and the names of the classes."""

    train: Indices
    test: Indices | None
    classes: tuple[str, ...]


def number_labels(
    train: Any,
    test: Any | None,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    what: str = "y",
) -> Labels:
    """Number labels of any kind: whole numbers, text, truth values, what tensors hold.

    ``classes``: the names of all classes, in order; labels are then their numbers or these names. ``names``: names for
    labels that are numbers; classes that have no training sample are left out. With neither, the distinct labels in
    ascending order are the classes. ``what``: y, or domain, as errors name it.
    """
    y = plain_labels(train, f"train_{what}")
    held = None if test is None else plain_labels(test, f"test_{what}")
    if classes is not None:
        given = tuple(map(str, classes))
        known: dict[Any, int] = {name: label for label, name in enumerate(given)}
        known |= {label: label for label in range(len(given))} if y.dtype.kind in "iu" else {}
        return Labels(_numbered(y, known, "train_y"), _maybe_numbered(held, known, what), given)
    try:
        values = set(y.tolist())
        is_text = all(isinstance(value, str) for value in values)
        distinct: list[Any] = in_order(values) if is_text else sorted(values)
    except TypeError as error:
        raise OcilError(f"train_{what} mixes labels of different types. Use numbers or text for all.") from error
    if names is not None and y.dtype.kind in "iu" and len(y) and not 0 <= distinct[0] <= distinct[-1] < len(names):
        worst = distinct[0] if distinct[0] < 0 else distinct[-1]
        raise OcilError(
            f"train_{what} has the label {worst}, and there are names for 0 to {len(names) - 1}: number "
            "the labels as the names are."
        )
    known = {value: label for label, value in enumerate(distinct)}
    texts = tuple(_name(value, names) for value in distinct)
    return Labels(_numbered(y, known, f"train_{what}"), _maybe_numbered(held, known, what), texts)


def plain_labels(y: Any, what: str) -> NDArray[Any]:
    """Labels of any kind as an array: whole numbers, text or truth values, one per sample."""
    y = tensors_as_arrays(y, what)
    if isinstance(y, str | bytes) or getattr(y, "ndim", 1) == 0 or not isinstance(y, Iterable):
        raise OcilError(f"{what} has one label, {y!r}, and no list of labels. There must be one label per sample.")
    if not isinstance(y, np.ndarray):
        y = [value.item() if getattr(value, "ndim", None) == 0 else value for value in y]
        numbers = {str(value) for value in y if isinstance(value, int | float)}
        if numbers and (twice := numbers.intersection(value for value in y if isinstance(value, str))):
            raise OcilError(f"{what} has the label {min(twice)} as a number and as text. Use one of them for all.")
    array = as_array(y, what)
    if array.dtype.kind == "f" and all(isinstance(value, int) for value in y):
        array = np.array(y, dtype=object)  # numpy makes floats of whole numbers if only some need all 64 bits
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise OcilError(f"{what} is {list(array.shape)}. There must be one label per sample.")
    if array.dtype.kind == "f":
        return _as_integers(array, what)
    return _as_text(array, what) if array.dtype.kind in "SO" else array


def _as_integers(labels: NDArray[Any], what: str) -> NDArray[np.int64]:
    """Whole numbers that came as floats, which is how many tables hold them."""
    if not np.isfinite(labels).all():
        raise OcilError(f"{what} has labels that are NaN or infinite. Leave those samples out.")
    if not (labels == np.rint(labels)).all():
        raise OcilError(f"{what} has fractions. Labels are whole numbers or text.")
    if (np.abs(labels) > EXACT).any():
        raise OcilError(f"{what} has whole numbers that floats of 64 bits round. Give them as integers or text.")
    return labels.astype(np.int64)


def _as_text(labels: NDArray[Any], what: str) -> NDArray[Any]:
    """Labels of bytes, which is how HDF5 files hold text, as text. Others stay as they are."""
    values = labels.tolist()
    if not values or not all(isinstance(value, bytes) for value in values):
        return labels
    try:
        return np.array([value.decode() for value in values])
    except UnicodeDecodeError:
        raise OcilError(f"{what} has labels of bytes that are not text in UTF-8. Use numbers or text.") from None


def _maybe_numbered(y: NDArray[Any] | None, known: dict[Any, int], what: str) -> Indices | None:
    return None if y is None else _numbered(y, known, f"test_{what}")


def _numbered(y: NDArray[Any], known: dict[Any, int], what: str) -> Indices:
    try:
        return np.fromiter((known[value] for value in y.tolist()), np.int64, len(y))
    except (KeyError, TypeError) as error:
        value = error.args[0] if isinstance(error, KeyError) else "?"
        where = "the classes" if what == "train_y" else "the training labels"
        raise OcilError(f"{what} has the label {value!r}, which is not among {where}.") from None


def _name(value: Any, names: Sequence[str] | None) -> str:
    if names is not None and isinstance(value, int) and 0 <= value < len(names):
        return str(names[value])
    return str(value)
