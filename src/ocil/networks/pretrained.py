"""Weights that were trained elsewhere: read from a file, checked, and put into a network."""

import hashlib
import pickle
import stat
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ocil.errors import OcilError

OWN = "own"
"""The value of the setting ``pretrained`` that asks a library for the weights that it offers."""
WRAPPERS = ("state_dict", "model", "model_state_dict")
"""Names under which programs save the weights, beside an optimiser and counters."""
PREFIXES = ("module.", "model.", "backbone.", "encoder.", "network.", "body.")
"""What programs, ocil among them, put in front of the names of a network's tensors."""
DEEPEST = 3  # prefixes in front of one name
COUNTERS = "num_batches_tracked"  # of batch normalisation: no weights; some files have them, some do not
LARGEST = 8 * 2**30  # bytes
NO_WEIGHTS = "it is damaged or not a file of weights"
ADVICE = "Give a .safetensors file, or a .pth file that holds tensors alone"


def load(module: nn.Module, path: str) -> None:
    """Put the weights of a safetensors or ``.pth`` file into a module.

    Tensors are matched by name; or, in a ``.pth`` file whose names are another library's, by their order, if all shapes
    agree. What the module lacks, such as the head of the former classifier, is left out; what the file lacks raises an
    ``OcilError``, except for the module's own ``head``.
    """
    file = Path(path).expanduser()
    found = read(file)
    wanted = {name: value for name, value in module.state_dict().items() if not name.startswith("head.")}
    needed = {name: value for name, value in wanted.items() if not name.endswith(COUNTERS)}
    if not needed:
        raise OcilError(f"pretrained = {path}: this network has no weights before its head. Leave out pretrained.")
    candidates = list(_without_prefixes(found))
    matched = next((match for each in candidates if (match := _by_name(wanted, needed, each)) is not None), None)
    foreign = all(needed.keys().isdisjoint(each) for each in candidates)
    if matched is None and foreign and not _is_safetensors(file):  # safetensors keeps no order
        matched = _by_order(needed, found)
    if matched is None:
        raise OcilError(f"pretrained = {path} does not fit the network: {_difference(needed, candidates)}.")
    module.load_state_dict(matched, strict=False)


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, in the file's order. Nothing in the file is run: pickled code is refused."""
    try:
        size = _checked_size(path)
        found: Any = _safetensors(path) if _is_safetensors(path) else _pth(path)
    except OSError as error:
        raise OcilError(f"cannot read pretrained = {path}: {error.strerror or error}.") from error
    except OcilError:
        raise
    except Exception as error:  # both readers raise many kinds for a file that is damaged or something else
        reason = _why_unreadable(error)
        raise OcilError(f"cannot read pretrained = {path}: {reason.rstrip('.')}. {ADVICE}.") from error
    for wrapper in WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise OcilError(f"pretrained = {path} holds no tensors by name. {ADVICE}.")
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise OcilError(f"pretrained = {path} holds no tensors. {ADVICE}.")
    for name, value in tensors.items():
        if reason := _what_is_wrong(value, size):
            raise OcilError(f"pretrained = {path}: {name[:80]} {reason}.")
    return tensors


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError) and "weights_only" in str(error).lower():
        return "it holds more than tensors"
    said = " ".join(str(error).split())[:120]
    if isinstance(error, ValueError | RuntimeError | pickle.UnpicklingError) and " " in said:
        return said
    return NO_WEIGHTS  # what the reader stumbled over means nothing to a user


def digest(path: str) -> str:
    """A short digest of a file of weights: it stands for the file in the name of a run. Empty if there is no file."""
    if not path or path == OWN:
        return ""
    file = Path(path).expanduser()
    try:
        _checked_size(file)
        state = file.stat()
        return _digest(str(file.resolve()), state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise OcilError(f"cannot read pretrained = {path}: {error.strerror or error}.") from error


@lru_cache
def _digest(path: str, *state: int) -> str:
    """``state`` serves the cache alone: it changes when the file does."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _checked_size(path: Path) -> int:
    """The size of a file in bytes. Raises if it is none, or too large to be read."""
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise OcilError(f"cannot read pretrained = {path}: it is not a file. {ADVICE}.")
    if state.st_size > LARGEST:
        raise OcilError(
            f"pretrained = {path} has {state.st_size / 2**30:.0f} GiB: at most {LARGEST >> 30} GiB can be read."
        )
    return state.st_size


def _is_safetensors(path: Path) -> bool:
    return path.suffix.lower() == ".safetensors"


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"it is damaged or no safetensors file: {error}") from error


def _pth(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is compressed, which PyTorch's files are not")  # its content may be of any size
    else:
        with path.open("rb") as file:
            if file.read(1) != pickle.PROTO:
                raise ValueError(NO_WEIGHTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the file's form: what is wrong is an error
        return torch.load(path, map_location="cpu", weights_only=True)


def _what_is_wrong(value: Tensor, size: int) -> str:
    """Why a tensor of a file of ``size`` bytes cannot be used; empty if it can."""
    if value.layout != torch.strided or value.is_quantized or value.is_complex() or value.is_meta:
        return "is not a plain tensor"
    if value.numel() * value.element_size() > size or value.untyped_storage().nbytes() > size:
        return f"has shape {list(value.shape)}, which is more than the file holds"
    if value.is_floating_point() and not bool(value.isfinite().all()):
        return "has numbers that are not finite"
    return ""


def _without_prefixes(tensors: dict[str, Tensor], depth: int = DEEPEST) -> Iterator[dict[str, Tensor]]:
    """The tensors as they are named, and those below each prefix without it."""
    yield tensors
    for prefix in PREFIXES if depth else ():
        below = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if below:
            yield from _without_prefixes(below, depth - 1)


def _by_name(
    wanted: Mapping[str, Tensor], needed: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> dict[str, Tensor] | None:
    if all(name in found and _alike(found[name], value) for name, value in needed.items()):
        return {name: found[name] for name, value in wanted.items() if name in found and _alike(found[name], value)}
    return None


def _by_order(needed: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The file may have two more tensors at its end, those of a classifier."""
    given = [value for name, value in found.items() if not name.endswith(COUNTERS)]
    if not len(needed) <= len(given) <= len(needed) + 2:
        return None
    matched = dict(zip(needed, given, strict=False))
    return matched if all(_alike(matched[name], value) for name, value in needed.items()) else None


def _alike(given: Tensor, wanted: Tensor) -> bool:
    return given.shape == wanted.shape and given.is_floating_point() == wanted.is_floating_point()


def _difference(needed: Mapping[str, Tensor], candidates: list[dict[str, Tensor]]) -> str:
    """The first difference between a file and what the network needs, by the naming that fits best."""
    found = max(candidates, key=lambda each: len(needed.keys() & each.keys()))
    for name, value in needed.items():
        if name in found and found[name].shape != value.shape:
            return f"{name} has shape {list(found[name].shape)}, and the network needs {list(value.shape)}"
        if name in found and not _alike(found[name], value):
            return f"{name} has numbers of type {found[name].dtype}, and the network needs {value.dtype}"
    missing = [name for name in needed if name not in found]
    if len(missing) == len(needed):
        return f"none of its {len(found)} tensors has a name that the network knows, such as {missing[0]}"
    return f"it lacks {len(missing)} of {len(needed)} tensors, such as {', '.join(missing[:3])}"
