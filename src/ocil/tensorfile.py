"""Tensors and text in one safetensors file that knows whether it is whole.

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

from ocil.files import read_regular, write_bytes

DIGEST = "sha256"
BLANK = "0" * 64


class DamagedFileError(ValueError):
    """A file that is not what was written."""


def write(path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Write ``path`` whole or not at all. ``texts`` go to the file's metadata."""
    host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, sealed(safetensors.torch.save(host, {**texts, DIGEST: BLANK})))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and texts of a file. ``DamagedFileError`` if a byte of it has changed, ``OSError`` if it cannot be read.

    Files of before there was a digest, or by others, are read as they are.
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


def sealed(content: bytes) -> bytes:
    """A safetensors file whose digest is blank, with its digest."""
    place = _place(content, BLANK)
    return content[:place] + hashlib.sha256(content).hexdigest().encode() + content[place + len(BLANK) :]


def _digest(content: bytes, given: str) -> str:
    """What the digest of a file should be, which claims to be ``given``."""
    place = _place(content, given)
    sha = hashlib.sha256(content[:place])
    sha.update(BLANK.encode())
    sha.update(memoryview(content)[place + len(BLANK) :])
    return sha.hexdigest()


def _place(content: bytes, digest: str) -> int:
    """Where the digest stands in the header."""
    key = f'"{DIGEST}":"'.encode()
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    found = header.find(key + digest.encode() + b'"')
    if found < 0 or len(digest) != len(BLANK):
        raise DamagedFileError("it is damaged: its checksum cannot be found")
    return found + len(key)


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
