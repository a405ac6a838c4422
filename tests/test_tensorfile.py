"""A file of tensors that knows whether it is whole, and files that are what they seem."""

import os
import random
from pathlib import Path

import pytest
import safetensors.torch
import torch

from ocil import tensorfile
from ocil.files import open_regular, read_regular
from ocil.tensorfile import DamagedFileError

TENSORS = {"weight": torch.arange(12.0).reshape(3, 4), "count": torch.tensor(7)}
TEXTS = {"progress": '{"batch": 3}', "note": "sha256 é"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensorfile.write(path, TENSORS, TEXTS)
    tensors, texts = tensorfile.read(path)
    assert texts == TEXTS
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert safetensors.torch.load_file(path).keys() == TENSORS.keys()  # others can read it too


def test_tensors_that_share_their_numbers_are_written_apart(tmp_path: Path) -> None:
    tied = {"first": TENSORS["weight"], "same": TENSORS["weight"], "part": TENSORS["weight"][1:]}
    tensorfile.write(tmp_path / "a.safetensors", tied, TEXTS)
    tensors, _ = tensorfile.read(tmp_path / "a.safetensors")
    assert all(torch.equal(tensors[name], tied[name]) for name in tied)


def test_equal_content_makes_equal_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    texts = {f"text {number}": str(number) for number in range(20)}
    tensorfile.write(first, TENSORS, texts)
    tensorfile.write(second, dict(reversed(TENSORS.items())), dict(reversed(texts.items())))
    assert first.read_bytes() == second.read_bytes()


def test_any_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensorfile.write(path, TENSORS, TEXTS)
    content = bytearray(path.read_bytes())
    for place in range(len(content)):
        bit = 1 << random.Random(place).randrange(8)
        content[place] ^= bit
        path.write_bytes(content)
        with pytest.raises(DamagedFileError):
            tensorfile.read(path)
        content[place] ^= bit


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x08" + bytes(7) + b"[[[[[[[["])
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError):
        tensorfile.read(path)


def test_a_file_without_a_digest_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file(TENSORS, path, {"progress": "{}"})
    assert tensorfile.read(path)[1] == {"progress": "{}"}


def test_links_and_fifos_are_no_regular_files(tmp_path: Path) -> None:
    target, link, fifo = tmp_path / "target", tmp_path / "link", tmp_path / "fifo"
    target.write_text("precious")
    link.symlink_to(target)
    os.mkfifo(fifo)
    for path in (link, fifo, tmp_path):
        with pytest.raises(OSError, match=r"symbolic|regular|directory|levels"):
            read_regular(path)
    with pytest.raises(ValueError, match="truncate"):
        open_regular(target, os.O_WRONLY | os.O_TRUNC)
    assert read_regular(target) == b"precious"
