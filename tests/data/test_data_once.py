"""Large .npz files: mapped where they lie, and hashed once per machine."""

import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
from tests.data.tiny_sources import tiny_dataset

from ocil.data import Dataset, digests, load
from ocil.data.check import check
from ocil.data.mapped import is_mapped
from ocil.errors import OcilError

LONG_AGO = time.time() - 1000


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as large."""
    monkeypatch.setenv("OCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("ocil.data.dataset.MAP_FROM", 1)
    path = tmp_path / "large.npz"
    tiny_dataset().save(path)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the datasets whose fingerprint was computed."""
    found: list[str] = []
    compute: Any = Dataset.__dict__["fingerprint"].func

    def counted(self: Dataset) -> Any:
        found.append(self.name)
        return compute(self)

    monkeypatch.setattr(Dataset.__dict__["fingerprint"], "func", counted)
    return found


def test_it_is_mapped_and_equal(large: Path) -> None:
    data, expected = load(large), tiny_dataset()
    assert is_mapped(data.train_x)
    for key in ("train_x", "train_y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(data, key), getattr(expected, key))
    assert data.fingerprint == expected.fingerprint
    assert check(str(large)).ok


def test_it_is_hashed_once(large: Path, hashed: list[str]) -> None:
    before = load(large).fingerprint
    assert load(large).fingerprint == before
    assert hashed == ["large"]
    os.utime(large, (LONG_AGO + 1, LONG_AGO + 1))
    assert load(large).fingerprint == before
    assert hashed == ["large", "large"]
    tiny_dataset(classes=4).save(large)
    assert load(large).fingerprint != before


def test_another_process_does_not_hash_it_again(large: Path, start_python: Callable[..., "Popen[str]"]) -> None:
    code = (
        "import sys, ocil; from ocil.data import dataset; dataset.MAP_FROM = 1\n"
        "if sys.argv[2] == 'never': dataset.pieces = dataset.check_sums = None\n"
        "print(ocil.load_dataset(sys.argv[1]).fingerprint)"
    )
    environment = {"env": os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}}
    answers = []
    for hashes in ("first", "never"):
        out, err = start_python("-c", code, large, hashes, **environment).communicate(timeout=120)
        answers.append(out.strip())
        assert not err
    assert answers[0] == answers[1] == tiny_dataset().fingerprint


def test_a_file_that_was_just_written_is_not_remembered(large: Path, hashed: list[str]) -> None:
    os.utime(large)  # it may be written again within the resolution of its time
    load(large)
    load(large)
    assert hashed == ["large", "large"]


def test_records_that_cannot_be_read_or_written_do_no_harm(large: Path, hashed: list[str], tmp_path: Path) -> None:
    load(large)
    (record,) = (tmp_path / "cache" / "digests").glob("*.json")
    for content in (b"{", b"[]", b"\xff", b"{}", b"null"):
        record.write_bytes(content)
        load(large)
    assert len(hashed) == 6


def test_a_cache_that_cannot_be_used(
    large: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCIL_CACHE", str(tmp_path / "file"))
    assert load(large).fingerprint == load(large).fingerprint
    assert hashed == ["large", "large"]


def test_processes_wait_for_the_one_that_hashes(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    begun, answers = threading.Event(), []
    count = 0

    def compute() -> str:
        nonlocal count
        count += 1
        begun.set()
        time.sleep(0.05)
        return "abc"

    threads = [threading.Thread(target=lambda: answers.append(digests.remembered(large, compute))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["abc"] * 3
    assert count == 1


def test_a_damaged_file_is_noticed_when_it_is_first_opened(large: Path) -> None:
    content = bytearray(large.read_bytes())
    place = content.find(tiny_dataset().train_x.tobytes()[:50])
    content[place + 100] ^= 1
    large.write_bytes(content)
    with pytest.raises(OcilError, match=r"cannot read .*large\.npz: .*(check sum|CRC)"):
        load(large)


def test_compressed_files_and_odd_arrays_are_read(large: Path, tmp_path: Path) -> None:
    tiny_dataset().save(tmp_path / "packed.npz", compressed=True)
    assert not is_mapped(load(tmp_path / "packed.npz").train_x)
    data = tiny_dataset()
    arrays = {key: getattr(data, key) for key in ("train_x", "train_y", "test_x", "test_y")}
    np.savez(
        tmp_path / "columns.npz",
        **arrays | {"train_x": np.asfortranarray(data.train_x)},
        classes=np.array(data.classes),
    )
    found = load(tmp_path / "columns.npz")
    assert not is_mapped(found.train_x)
    np.testing.assert_array_equal(found.train_x, data.train_x)


@pytest.mark.parametrize("change", ["short", "header", "shape"])
def test_archives_that_lie_are_refused(change: str, large: Path) -> None:
    content = bytearray(large.read_bytes())
    with zipfile.ZipFile(large) as archive:
        member = archive.getinfo("train_x.npy")
    if change == "short":
        content = content[: len(content) // 2]
    elif change == "header":
        content[member.header_offset : member.header_offset + 4] = b"none"
    else:
        at = content.find(b"(12, 5, 4, 3)")
        content[at : at + 13] = b"(99, 5, 4, 3)"
    large.write_bytes(content)
    with pytest.raises(OcilError, match="cannot read") as error:
        load(large)
    assert "\n" not in str(error.value)
