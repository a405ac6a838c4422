"""Tensors and text in one safetensors file with a checksum.

A flipped byte in a weight is still a number, so safetensors alone would load it. The file's metadata therefore hold a
SHA-256 of all its bytes, in which the digest itself counts as zeros.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from ocil.files import atomic_write, read_regular

DIGEST = "sha256"
BLANK = "0" * 64


class DamagedFileError(ValueError):
    """A file whose content is not what was written."""


def write(path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Write ``path`` whole or not at all. ``texts`` go to the file's metadata."""
    header, body = _split(safetensors.torch.save(on_host(tensors), {**texts, DIGEST: BLANK}))
    sha = hashlib.sha256(header)
    sha.update(body)
    with atomic_write(path) as file:
        file.write(header.replace(_entry(BLANK), _entry(sha.hexdigest()), 1))
        file.write(body)


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, contiguous and apart, as safetensors needs them. Those that are so already are not copied."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        place = here.untyped_storage().data_ptr()
        found[name] = here.clone() if place in places else here  # layers of a network may share their weights
        places.add(place)
    return found


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and texts of a file. ``DamagedFileError`` if a byte of it has changed, ``OSError`` if it cannot be read.

    Files without a digest, of early versions or other programs, are read without this check.
    """
    content = read_regular(path)
    texts = _texts(content)
    given = texts.pop(DIGEST, None)
    lost = given is None and any(re.fullmatch("[0-9a-f]{64}", text) for text in texts.values())  # under another name
    if lost or (given is not None and _digest(content, given) != given):
        raise DamagedFileError("it is damaged: its content does not match its checksum")
    try:
        return safetensors.torch.load(content), texts
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(f"it is damaged or no safetensors file: {error}") from error


def _split(content: bytes) -> tuple[bytes, memoryview]:
    """Header and tensors. The entries of the header are sorted, so that equal content makes equal files."""
    end = 8 + int.from_bytes(content[:8], "little")
    text = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text, memoryview(content)[end:]


def _digest(content: bytes, given: str) -> str:
    """The digest of a file's content, in which the digest ``given`` counts as zeros."""
    end = 8 + int.from_bytes(content[:8], "little")
    if len(given) != len(BLANK) or _entry(given) not in content[:end]:
        raise DamagedFileError("it is damaged: its checksum cannot be found")
    sha = hashlib.sha256(content[:end].replace(_entry(given), _entry(BLANK), 1))
    sha.update(memoryview(content)[end:])
    return sha.hexdigest()


def _entry(digest: str) -> bytes:
    """The digest as it is written in the header."""
    return f'"{DIGEST}":"{digest}"'.encode()


def _texts(content: bytes) -> dict[str, str]:
    """The metadata, from the header alone."""
    try:
        length = int.from_bytes(content[:8], "little")
        if len(content) < 8 or length > len(content) - 8:
            raise ValueError("it is cut short")
        found = json.loads(content[8 : 8 + length]).get("__metadata__") or {}
        if not all(isinstance(value, str) for value in found.values()):
            raise ValueError("its header is not a safetensors header")
    except (ValueError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"it is damaged or no safetensors file: {error}") from error
    return dict(found)
