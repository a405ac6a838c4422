"""The log of ``ocil serve``: what was appended is there, a torn end is cut off, other damage is said."""

import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocil.errors import WriteError
from ocil.serve.log import HEAD, MAGIC, MARK, SALT, Cut, DamagedError, Log, Record, Samples, framed, read

SHAPE = (3, 4, 1)


def samples(first: int, count: int = 2, key: str | None = None) -> Samples:
    pixels = np.random.default_rng(first).integers(0, 256, (count, *SHAPE)).astype(np.uint8)
    return Samples(first, tuple(f"class {first + n}" for n in range(count)), pixels, key, "d" if key else "")


def told(records: list[Record]) -> list[Any]:
    return [r if isinstance(r, Cut) else (r.first, r.labels, r.pixels.tolist(), r.key, r.digest) for r in records]


def left(folder: Path, position: int = 0) -> list[Any]:
    return told(list(Log(folder, position).replay()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "log"


RECORDS: list[Record] = [samples(1), samples(3, 3, key="k"), Cut(4), samples(6, 1), Cut(6)]


def filled(folder: Path) -> Path:
    """One segment with all of ``RECORDS``."""
    log = Log(folder, 0)
    for record in RECORDS:
        log.append([record])
    log.close()
    (path,) = folder.iterdir()
    return path


def test_what_is_appended_is_replayed(folder: Path) -> None:
    filled(folder)
    log = Log(folder, 0)
    assert told(list(log.replay())) == told(RECORDS)
    assert log.last == 6
    assert log.keys == {"k": (3, 3, "d")}
    assert log.labels == {f"class {n}" for n in range(1, 7)}


def test_a_replay_begins_behind_the_position_even_within_a_record(folder: Path) -> None:
    filled(folder)
    log = Log(folder, 4)
    rest = list(log.replay())
    assert [record.last for record in rest] == [5, 6, 6]
    assert isinstance(rest[0], Samples)
    assert rest[0].first == 5
    assert rest[0].labels == ("class 5",)
    assert np.array_equal(rest[0].pixels, samples(3, 3).pixels[2:])
    assert log.keys == {"k": (3, 3, "d")}


def test_labels_of_all_kinds_come_back(folder: Path) -> None:
    labels = ("a", 7, 1.5, True, None, ("x", 2), "日本 <b>")
    Log(folder, 0).append([Samples(1, labels, np.zeros((len(labels), *SHAPE), np.uint8))])
    (record,) = Log(folder, 0).replay()
    assert isinstance(record, Samples)
    assert record.labels == labels
    assert [type(label) for label in record.labels] == [type(label) for label in labels]


def test_a_torn_end_is_cut_at_every_byte(folder: Path, tmp_path: Path) -> None:
    path = filled(folder)
    content = path.read_bytes()
    ends = [len(MAGIC) + SALT]
    for record in RECORDS:
        ends.append(ends[-1] + HEAD.size + len(record.body()))
    assert ends[-1] == len(content)
    for length in range(len(content)):
        torn = tmp_path / "torn"
        shutil.rmtree(torn, ignore_errors=True)
        torn.mkdir()
        (torn / path.name).write_bytes(content[:length])
        whole = sum(end <= length for end in ends) - 1
        assert left(torn) == told(RECORDS[: max(0, whole)])
        assert [p.stat().st_size for p in torn.iterdir()] == ([ends[whole]] if whole >= 0 else [])


@pytest.mark.parametrize(
    "tail", [b"\0" * 300, MARK + b"\0" * 40, random.Random(0).randbytes(100)], ids=["zeros", "mark", "noise"]
)
def test_rubbish_behind_the_last_record_is_cut_off(folder: Path, tail: bytes) -> None:
    path = filled(folder)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + tail)
    assert left(folder) == told(RECORDS)
    assert path.stat().st_size == size


def test_writing_goes_on_behind_a_torn_end(folder: Path) -> None:
    path = filled(folder)
    path.write_bytes(path.read_bytes()[:-3])  # the last cut
    log = Log(folder, 0)
    log.append([samples(7)])
    assert left(folder) == told([*RECORDS[:4], samples(7)])


def test_damage_in_the_middle_is_an_error(folder: Path) -> None:
    path = filled(folder)
    content = bytearray(path.read_bytes())
    for at in (len(MAGIC) + SALT, len(MAGIC) + SALT + 5, len(MAGIC) + SALT + 40, len(content) // 2):
        damaged = bytearray(content)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match="is damaged at byte") as caught:
            Log(folder, 0)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == damaged  # nothing was cut off


def test_damage_in_an_earlier_segment_is_an_error_even_at_its_end(folder: Path) -> None:
    path = filled(folder)
    Log(folder, 0).append([samples(7)])
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedError, match="is damaged at byte"):
        Log(folder, 0)
    assert left(folder, 6) == told([samples(7)])  # but not if the model has learned all of it


def test_an_image_cannot_pass_for_a_record(folder: Path) -> None:
    """One that holds a record, in a record that is torn: it must not look as if something followed the damage."""
    inside = framed(Cut(9).body(), b"not the salt")
    pixels = np.frombuffer((inside * 2).ljust(120, b"\0")[:120], np.uint8).reshape(10, *SHAPE)
    log = Log(folder, 0)
    log.append([samples(1)])
    log.append([Samples(3, tuple("abcdefghij"), pixels)])
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert left(folder) == told([samples(1)])


def test_missing_samples_are_an_error(folder: Path) -> None:
    filled(folder)
    Log(folder, 0).append([samples(7)])
    first, second = sorted(folder.iterdir())
    first.unlink()
    with pytest.raises(DamagedError, match="goes on with sample 7 where 1 should be"):
        Log(folder, 0)
    second.rename(folder / "00000000000000000003-0000.log")
    with pytest.raises(DamagedError, match="where 3 should be"):
        Log(folder, 2)


def test_a_file_that_is_no_log(folder: Path) -> None:
    folder.mkdir()
    (folder / "00000000000000000001-0000.log").write_bytes(b"something else entirely, and long enough")
    with pytest.raises(DamagedError, match="does not begin like a log"):
        Log(folder, 0)


@pytest.mark.parametrize("name", ["old-copy.log", "00000000000000000001-0000 copy.log"])
def test_a_file_of_another_name(folder: Path, name: str) -> None:
    filled(folder)
    (folder / name).write_bytes(b"")
    with pytest.raises(DamagedError, match="take it out of the folder"):
        Log(folder, 0)


def test_segments_go_once_a_checkpoint_covers_them(folder: Path) -> None:
    log = Log(folder, 0)
    log.append([samples(1)])
    log.covered(0)  # a checkpoint of a model that has learned nothing yet
    assert len(log.segments()) == 1
    log.append([samples(3)])
    log.append([Cut(2)])
    assert [s.first for s in log.segments()] == [1, 3]
    log.covered(2)
    assert [s.first for s in log.segments()] == [3]
    assert left(folder, 2) == told([samples(3)])
    log.append([Cut(4)], sync=False)
    log.covered(3)  # in the middle of a record
    assert left(folder, 3)[-1] == Cut(4)
    log.covered(4)
    log.append([samples(5)])
    log.covered(6)
    assert log.segments() == []
    assert left(folder, 6) == []


def test_a_segment_of_cuts_alone_is_never_written_over(folder: Path) -> None:
    log = Log(folder, 0)
    log.append([samples(1, 4)])
    log.close()
    for cut in (1, 2, 3):  # killed after each cut
        Log(folder, 0).append([Cut(cut)])
    Log(folder, 0).append([samples(5)])
    assert [s.first for s in log.segments()] == [1, 5, 5, 5, 5]
    assert left(folder) == told([samples(1, 4), Cut(1), Cut(2), Cut(3), samples(5)])
    log = Log(folder, 2)
    assert told(list(log.replay()))[1:] == told([Cut(3), samples(5)])


def test_a_full_segment_is_followed_by_another(folder: Path) -> None:
    log = Log(folder, 0, segment_bytes=200)
    for first in range(1, 21, 2):
        log.append([samples(first)])
    assert len(log.segments()) > 3
    assert left(folder) == told([samples(first) for first in range(1, 21, 2)])


@pytest.mark.parametrize("written", [0, 1, 50])
def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    log = Log(folder, 0)
    log.append([samples(1)])
    real, room = os.write, [written]

    def write(descriptor: int, content: Any) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(descriptor, bytes(content)[: room[0]])
        room[0] -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(WriteError, match=r"No space left on device\. Free some space"):
            log.append([samples(3), samples(5)])
    assert log.last == 2
    assert log.broken is None
    assert left(folder) == told([samples(1)])
    log.append([samples(3)])  # there is room again
    assert left(folder) == told([samples(1), samples(3)])


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_after_a_failed_sync_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Also where a disk is full that says so late: cuts that were written before may be gone."""
    log = Log(folder, 0)
    log.append([samples(1)])

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(WriteError, match="Restart the service"):
            log.append([samples(3)])
    with pytest.raises(WriteError, match=os.strerror(number)):
        log.append([samples(3)])
    assert left(folder) == told([samples(1)])


@pytest.mark.parametrize("end", ["full", "covered"])
def test_after_a_failed_sync_at_the_end_of_a_segment_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Another segment behind a damaged one could never be read."""
    log = Log(folder, 0, segment_bytes=50 if end == "full" else 10**6)
    log.append([samples(1)])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(WriteError, match="Restart the service"):
            log.covered(1) if end == "covered" else log.append([samples(3)])
    with pytest.raises(WriteError, match="Restart the service"):
        log.append([samples(3)])
    assert len(log.segments()) == 1


def test_reading_stops_at_what_is_not_whole(folder: Path) -> None:
    path = filled(folder)
    path.write_bytes(path.read_bytes()[:-1])
    assert told(list(read(path))) == told(RECORDS[:4])
