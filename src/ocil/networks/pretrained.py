"""Weights that were trained elsewhere: read from a file, checked, and put into a network."""

import hashlib
import pickle
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocil import tensorfile
from ocil.errors import OcilError

OWN = "own"
"""The value of the setting ``pretrained`` that asks a library for the weights that it offers."""
PREFIXES = ("module.", "model.", "backbone.", "encoder.", "network.")
COUNTERS = "num_batches_tracked"  # of batch normalisation: no weights; some files have them, some do not
LARGEST = 8 * 2**30  # bytes


def load(module: nn.Module, path: str) -> None:
    """Put the weights of a safetensors or ``.pth`` file into a module.

    Tensors are matched by name; or, where the names are another library's, by their order, if all shapes agree. What
    the module lacks, such as the head of the former classifier, is left out; what the file lacks raises an
    ``OcilError``, except for the module's own ``head``.
    """
    found = _without_prefix(read(Path(path).expanduser()))
    wanted = {name: value for name, value in module.state_dict().items() if not name.startswith("head.")}
    matched = _by_name(wanted, found) or _by_order(wanted, found)
    if matched is None:
        raise OcilError(f"{path} does not fit the network: {_difference(wanted, found)}.")
    module.load_state_dict(matched, strict=False)


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name. Nothing in the file is run: pickled code is refused."""
    advice = "Give a .safetensors file, or a .pth file that holds tensors alone"
    found: Any
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise OcilError(f"pretrained = {path} has {size / 2**30:.0f} GiB, more than any weights have.")
        if path.suffix.lower() == ".safetensors":
            found, _ = tensorfile.read(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise OcilError(f"cannot read pretrained = {path}: {error.strerror or error}.") from error
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise OcilError(f"cannot read pretrained = {path}: {reason}. {advice}.") from error
    for wrapper in ("state_dict", "model", "model_state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise OcilError(f"pretrained = {path} holds no tensors by name. {advice}.")
    tensors = {name: value for name, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise OcilError(f"pretrained = {path} holds no tensors. {advice}.")
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise OcilError(f"pretrained = {path}: {name} has numbers that are not finite.")
    return tensors


def digest(path: str) -> str:
    """A short digest of a file of weights: it stands for the file in the name of a run. Empty if there is no file."""
    if not path or path == OWN:
        return ""
    file = Path(path).expanduser()
    try:
        state = file.stat()
        return _digest(str(file.resolve()), state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise OcilError(f"cannot read pretrained = {path}: {error.strerror or error}.") from error


@lru_cache
def _digest(path: str, *state: int) -> str:
    """``state`` serves the cache alone: it changes when the file does."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _without_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without what a training library puts in front of all of them."""
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return _without_prefix({name.removeprefix(prefix): value for name, value in tensors.items()})
    return tensors


def _by_name(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    needed = [name for name in wanted if not name.endswith(COUNTERS)]
    if all(name in found and found[name].shape == wanted[name].shape for name in needed):
        return {name: found[name] for name in wanted if name in found}
    return None


def _by_order(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The file may have more tensors at its end, those of a classifier."""
    needed = [name for name in wanted if not name.endswith(COUNTERS)]
    given = [value for name, value in found.items() if not name.endswith(COUNTERS)]
    if not set(wanted).isdisjoint(found) or len(given) < len(needed) or len(given) > len(needed) + 2:
        return None  # names that agree in part are a damaged or another network, not another library's words
    matched = dict(zip(needed, given, strict=False))
    return matched if all(value.shape == wanted[name].shape for name, value in matched.items()) else None


def _difference(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    for name, value in wanted.items():
        if name in found and found[name].shape != value.shape:
            return f"{name} has shape {list(found[name].shape)}, and the network needs {list(value.shape)}"
    missing = [name for name in wanted if name not in found and not name.endswith(COUNTERS)]
    few = ", ".join(missing[:3])
    return f"it lacks {len(missing)} of {len(wanted)} tensors, such as {few}"
