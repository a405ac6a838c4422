"""The log of ``ocil serve``: what was appended is there, what was never finished is cut off, damage is refused."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from ocil.errors import OcilError, WriteError
from ocil.online.model import Model
from ocil.serve.catalogue import FILE as CATALOGUE
from ocil.serve.checkpoints import NOTE
from ocil.serve.log import Log
from ocil.serve.newest import Newest, newest_file, write_newest
from ocil.serve.records import BODY, Change, Cut, Record, SampleRecord
from ocil.serve.segment import HEAD, HEADER, MARK, OLD_HEADER, OLD_MAGIC, DamagedError, Segment, framed, read
from tests.conftest import Call, one_error
from tests.serving import FORM, SECONDS, picture, running

SHAPE = (3, 4, 1)


def samples(first: int, count: int = 2, key: str | None = None) -> SampleRecord:
    pixels = np.random.default_rng(first).integers(0, 256, (count, *SHAPE)).astype(np.uint8)
    return SampleRecord(first, tuple(f"class {first + n}" for n in range(count)), pixels, key, "d" if key else "")


def plain(records: list[Record]) -> list[Any]:
    return [
        (r.first, r.labels, r.inputs.tolist(), r.key, r.digest) if isinstance(r, SampleRecord) else r for r in records
    ]


def left(folder: Path, position: int = 0) -> list[Any]:
    return plain(list(Log(folder, position).replay()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model" / "log"


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
    assert plain(list(log.replay())) == plain(RECORDS)
    assert log.last == 6
    assert log.recovered.keys == {"k": (3, 3, "d")}
    assert log.recovered.labels == {f"class {n}" for n in range(1, 7)}


def test_a_replay_begins_behind_the_position_even_within_a_record(folder: Path) -> None:
    filled(folder)
    log = Log(folder, 4)
    rest = list(log.replay())
    assert [record.last for record in rest if not isinstance(record, Change)] == [5, 6, 6]
    assert isinstance(rest[0], SampleRecord)
    assert rest[0].first == 5
    assert rest[0].labels == ("class 5",)
    assert np.array_equal(rest[0].inputs, samples(3, 3).inputs[2:])
    assert log.recovered.keys == {"k": (3, 3, "d")}


def test_labels_of_all_kinds_come_back(folder: Path) -> None:
    labels = ("a", 7, 1.5, True, None, ("x", 2), "日本 <b>")
    Log(folder, 0).append([SampleRecord(1, labels, np.zeros((len(labels), *SHAPE), np.uint8))])
    (record,) = Log(folder, 0).replay()
    assert isinstance(record, SampleRecord)
    assert record.labels == labels
    assert [type(label) for label in record.labels] == [type(label) for label in labels]


def ends_of(content: bytes) -> list[int]:
    """Where the header and each record of ``RECORDS`` end, in the format of the content."""
    old = content.startswith(OLD_MAGIC)
    around = HEAD.size if old else len(framed(b"", b""))
    sizes = [around + len(record.body()) for record in RECORDS]
    ends = list(accumulate([OLD_HEADER.size if old else HEADER.size, *sizes]))
    assert ends[-1] == len(content)
    return ends


def in_old_format(content: bytes) -> bytes:
    """The same records as an earlier version wrote them."""
    salt = random.Random(3).randbytes(16)
    bodies = [record.body() for record in RECORDS]
    return OLD_HEADER.pack(OLD_MAGIC, salt) + b"".join(
        HEAD.pack(MARK, len(body), crc32(body, crc32(salt))) + body for body in bodies
    )


FORMATS: dict[str, Callable[[bytes], bytes]] = {"new": bytes, "old": in_old_format}


@pytest.fixture(params=FORMATS)
def written(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A segment with all of ``RECORDS``, in either format."""
    path = filled(folder)
    path.write_bytes(FORMATS[request.param](path.read_bytes()))
    return path


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that open a log thousands of times."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def as_if_never_acknowledged(path: Path) -> None:
    """A crash can take records from a segment that were not acknowledged."""
    write_newest(path.parent, Newest(path))


def opens_unchanged_or_refuses(path: Path, content: bytes) -> bool:
    """Whether the log opens with this content. If not, with one line that names the file, which stays as it was."""
    path.write_bytes(content)
    try:
        Log(path.parent, 0)
    except DamagedError as error:
        message = str(error)
    else:
        return True
    assert str(path) in message
    assert "\n" not in message
    assert path.read_bytes() == content
    return False


def test_both_formats_are_read(written: Path) -> None:
    assert left(written.parent) == plain(RECORDS)


@pytest.mark.usefixtures("no_sync")
def test_a_torn_end_is_cut_at_every_byte(folder: Path) -> None:
    path = filled(folder)
    newest_file(folder).unlink()  # a segment whose header is torn was not named yet
    content = path.read_bytes()
    ends = ends_of(content)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends) - 1
        assert left(folder) == plain(RECORDS[: max(0, whole)])
        assert [p.stat().st_size for p in folder.iterdir()] == ([ends[whole]] if whole >= 0 else [])


@pytest.mark.usefixtures("no_sync")
def test_a_torn_end_of_the_old_format_is_cut_only_where_no_record_can_have_been(folder: Path) -> None:
    path = filled(folder)
    newest_file(folder).unlink()  # the version that wrote this format had no such file
    content = in_old_format(path.read_bytes())
    ends = ends_of(content)
    for length in range(len(content)):
        whole = sum(end <= length for end in ends) - 1
        opened = opens_unchanged_or_refuses(path, content[:length])
        assert opened == (whole < 0 or length - ends[whole] < HEAD.size)
        if opened and whole >= 0:
            assert left(folder) == plain(RECORDS[:whole])


@pytest.mark.usefixtures("no_sync")
def test_blocks_that_were_never_written_are_cut_at_every_byte(folder: Path) -> None:
    """Some file systems leave a file of full length after a crash, with zeros where nothing was written."""
    path = filled(folder)
    as_if_never_acknowledged(path)
    content = path.read_bytes()
    ends = ends_of(content)
    for length in range(len(content)):
        opened = opens_unchanged_or_refuses(path, content[:length].ljust(len(content), b"\0"))
        assert opened == (length >= HEADER.size)  # the header is synced before anything follows it
        if opened:
            whole = sum(end <= length for end in ends) - 1
            assert left(folder) == plain(RECORDS[:whole])
            assert path.stat().st_size == ends[whole]


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("last", range(len(RECORDS) + 1))
def test_a_flipped_bit_is_never_cut_off(written: Path, last: int) -> None:
    """In the header and every part of every record, the last one too, with and without a cut behind it."""
    as_if_never_acknowledged(written)
    whole = written.read_bytes()
    content = whole[: ends_of(whole)[last]]
    for at in range(len(content)):
        for bit in range(8) if at == len(content) - 1 else (at % 8,):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            opened = opens_unchanged_or_refuses(written, bytes(flipped))
            assert not opened or last == 0  # of the old format, a salt alone may be any
    assert opens_unchanged_or_refuses(written, content)
    assert left(written.parent) == plain(RECORDS[:last])


def test_a_black_image_is_not_taken_for_one_that_was_never_written(folder: Path) -> None:
    log = Log(folder, 0)
    log.append([SampleRecord(1, ("night",), np.zeros((1, *SHAPE), np.uint8))])
    log.close()
    (path,) = folder.iterdir()
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[content.index(b"night")] ^= 1
    assert not opens_unchanged_or_refuses(path, bytes(flipped))
    assert opens_unchanged_or_refuses(path, content)


@pytest.mark.parametrize("tail", [b"\0" * 300, MARK + b"\0" * 40, MARK], ids=["zeros", "mark and zeros", "mark"])
def test_what_was_begun_behind_the_last_record_is_cut_off(folder: Path, tail: bytes) -> None:
    path = filled(folder)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + tail)
    assert left(folder) == plain(RECORDS)
    assert path.stat().st_size == size


def test_other_bytes_behind_the_last_record_are_damage(written: Path) -> None:
    noise = random.Random(0).randbytes(100)
    assert not opens_unchanged_or_refuses(written, written.read_bytes() + noise)


@pytest.mark.parametrize("torn", ["body", "head"])
def test_opening_hashes_no_byte_more_than_a_few_times(
    written: Path, torn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels that a client chose look like the heads of many records; the record that holds them is torn or damaged."""
    old = written.read_bytes().startswith(OLD_MAGIC)
    heads = b"".join(HEAD.pack(MARK, 40_000 - HEAD.size * n, n) for n in range(3000))
    image = SampleRecord(7, ("a",), np.frombuffer(heads, np.uint8).reshape(1, -1, 1, 1))
    if old:
        body, salt = image.body(), written.read_bytes()[len(OLD_MAGIC) : OLD_HEADER.size]
        frame = HEAD.pack(MARK, len(body), crc32(body, crc32(salt))) + body
        content = bytearray(written.read_bytes() + frame)
    else:
        Log(written.parent, 0).append([image])
        written.unlink()
        (written,) = written.parent.iterdir()
        content = bytearray(written.read_bytes())
    content[content.rindex(b'{"labels"') - BODY.size - HEAD.size] ^= torn == "head"
    del content[-1:]
    hashed = 0

    def counted(data: bytes, value: int = 0) -> int:
        nonlocal hashed
        hashed += len(data)
        return crc32(data, value)

    monkeypatch.setattr("ocil.serve.segment.crc32", counted)
    opens_unchanged_or_refuses(written, bytes(content))
    assert hashed <= 3 * len(content)


def test_a_segment_that_changes_while_the_service_runs_is_not_replayed(folder: Path) -> None:
    path = filled(folder)
    log = Log(folder, 0)
    content = bytearray(path.read_bytes())
    content[ends_of(bytes(content))[1] - 9] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="has changed at byte"):
        list(log.replay())


@pytest.fixture
def damaged(folder: Path) -> Path:
    """A flipped bit in the second of ``RECORDS``."""
    path = filled(folder)
    content = bytearray(path.read_bytes())
    content[ends_of(bytes(content))[2] - 20] ^= 1
    path.write_bytes(content)
    return path


def test_damage_is_set_aside_only_on_demand(damaged: Path) -> None:
    folder, content = damaged.parent, damaged.read_bytes()
    with pytest.raises(DamagedError, match="--set-aside-damage"):
        Log(folder, 0)
    assert [path.name for path in folder.iterdir()] == [damaged.name]
    log = Log(folder, 0, set_aside=True)
    assert plain(list(log.replay())) == plain([RECORDS[0], *RECORDS[2:]])
    (kept,) = folder.glob("*.damaged-1")
    assert kept.read_bytes() == content
    log.append([samples(7)])
    assert left(folder) == plain([RECORDS[0], *RECORDS[2:], samples(7)])  # killed, and started without the option
    again = Log(folder, 0, set_aside=True)
    assert plain(list(again.replay())) == plain([RECORDS[0], *RECORDS[2:], samples(7)])
    assert len(list(folder.glob("*.damaged-*"))) == 1
    assert left(folder, 6) == plain([samples(7)])  # once the model has learned what is there


def with_flipped_bit(path: Path, at: int) -> bytes:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    return bytes(content)


def test_samples_that_were_given_up_do_not_excuse_others(damaged: Path) -> None:
    folder = damaged.parent
    log = Log(folder, 0, set_aside=True)
    for first in (7, 9, 11):
        log.append([samples(first)])
    log.close()
    later = max(folder.glob("*.log"))
    content = with_flipped_bit(later, later.read_bytes().index(b"class 9"))
    with pytest.raises(DamagedError, match="is damaged at byte"):
        Log(folder, 0)
    assert later.read_bytes() == content
    Log(folder, 0, set_aside=True)
    kept = plain([RECORDS[0], *RECORDS[2:], samples(7), samples(11)])
    assert left(folder) == kept
    later.unlink()
    newest_file(folder).unlink()
    Log(folder, 19).append([samples(20)])
    with pytest.raises(DamagedError, match="goes on with sample 20 where 7 should be"):
        Log(folder, 0)


def test_samples_that_were_given_up_are_known_to_a_log_that_is_learned_again(damaged: Path) -> None:
    """Of the lost record of samples 3 to 5, the model had learned a part when it was set aside."""
    Log(damaged.parent, 4, set_aside=True)
    assert left(damaged.parent) == plain([RECORDS[0], *RECORDS[2:]])


def test_numbers_that_are_given_again_are_not_missing(damaged: Path) -> None:
    """All behind the first gap is lost as well, so that its numbers are given to other samples."""
    folder = damaged.parent
    Log(folder, 0, set_aside=True)
    with_flipped_bit(damaged, damaged.read_bytes().index(b"class 6"))
    log = Log(folder, 0, set_aside=True)
    assert log.last == 2
    log.append([samples(3, 3)])
    log.close()
    Log(folder, 0).append([samples(6)])
    (folder / f"{3:020d}-0000.log").unlink()
    with pytest.raises(DamagedError, match="goes on with sample 6 where 3 should be"):
        Log(folder, 0)


def test_the_list_of_missing_samples_goes_once_a_checkpoint_covers_them(damaged: Path) -> None:
    log = Log(damaged.parent, 0, set_aside=True)
    log.delete_covered_segments(2)
    assert left(damaged.parent) == plain([RECORDS[0], *RECORDS[2:]])
    log.delete_covered_segments(6)
    assert [path.name for path in damaged.parent.iterdir()] == [f"{damaged.name}.damaged-1"]


def test_a_damaged_list_of_missing_samples_is_refused(damaged: Path) -> None:
    folder = damaged.parent
    Log(folder, 0, set_aside=True)
    (listed,) = folder.glob("missing*")
    whole = listed.read_bytes()
    for at in range(len(whole)):
        listed.write_bytes(whole)
        with_flipped_bit(listed, at)
        with pytest.raises(DamagedError, match="--set-aside-damage"):
            Log(folder, 0)
    Log(folder, 0, set_aside=True)
    assert left(folder) == plain([RECORDS[0], *RECORDS[2:]])


def test_what_follows_a_lost_end_is_replayed_behind_the_cuts_before_it(folder: Path) -> None:
    """A segment of cuts alone was begun behind samples whose numbers are given again."""
    log = Log(folder, 0)
    log.append([samples(1), samples(3)])
    log.close()
    Log(folder, 0).append([Cut(4)])
    first = min(folder.glob("*.log"))
    with_flipped_bit(first, first.read_bytes().index(b"class 3"))
    Log(folder, 0, set_aside=True).append([samples(3, 1)])
    assert left(folder) == plain([samples(1), Cut(4), samples(3, 1)])


@pytest.mark.parametrize("at", [0, 12, 27])
def test_a_segment_with_a_damaged_header_is_set_aside_as_a_whole(folder: Path, at: int) -> None:
    path = filled(folder)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    log = Log(folder, 0, set_aside=True)
    assert list(log.replay()) == []
    assert [kept.read_bytes() for kept in folder.iterdir()] == [content]
    path.write_bytes(content)
    Log(folder, 0, set_aside=True)
    assert sorted(kept.name for kept in folder.iterdir()) == [f"{path.name}.damaged-{n}" for n in (1, 2)]


def test_the_end_of_an_earlier_segment_is_set_aside_too(folder: Path) -> None:
    path = filled(folder)
    Log(folder, 0).append([samples(7)])
    path.write_bytes(path.read_bytes()[:-3])
    log = Log(folder, 0, set_aside=True)
    assert plain(list(log.replay())) == plain([*RECORDS[:4], samples(7)])
    assert left(folder) == plain([*RECORDS[:4], samples(7)])


@pytest.fixture(params=["link", "dangling link", "fifo", "folder"])
def elsewhere(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Path]:
    """Something in the place of a segment; the file it may lead to."""
    target = tmp_path / "precious"
    target.write_bytes(b"a file of somebody else, which is no log, and longer than a header")
    folder.mkdir(parents=True)
    path = folder / "00000000000000000001-0000.log"
    match request.param:
        case "link":
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    before = target.read_bytes()
    yield path
    assert target.read_bytes() == before
    assert not (tmp_path / "nowhere").exists()
    assert os.path.lexists(path)


@pytest.mark.parametrize("position", [0, 5])
@pytest.mark.parametrize("set_aside", [False, True])
def test_only_regular_files_are_segments(elsewhere: Path, position: int, set_aside: bool) -> None:
    with pytest.raises(DamagedError, match="is not a regular file: take it out") as caught:
        Log(elsewhere.parent, position, set_aside=set_aside)
    assert str(elsewhere) in str(caught.value)


@pytest.mark.parametrize("there", [True, False])
def test_the_folder_of_the_log_must_not_be_a_link(tmp_path: Path, there: bool) -> None:
    """Segments that a checkpoint covers are deleted: not those of another model."""
    other = tmp_path / "other"
    content = filled(other).read_bytes()
    link = tmp_path / "model" / "log"
    link.parent.mkdir()
    link.symlink_to(other if there else tmp_path / "nowhere")
    with pytest.raises(OcilError, match="is a symbolic link or a file"):
        Log(link, 10)
    assert [path.read_bytes() for path in other.iterdir()] == [content]
    assert not (tmp_path / "nowhere").exists()


def test_a_log_that_is_refused_is_one_line(damaged: Path, ocil_command: Call) -> None:
    model = ("--model", damaged.parent.parent, "--method", "er", "--memory", 20, "--width", 1, "--port", 0)
    assert f"{damaged} is damaged at byte" in one_error(ocil_command("serve", *model))
    elsewhere = damaged.parent.parent.parent / "elsewhere"
    damaged.parent.rename(elsewhere)
    damaged.parent.symlink_to(elsewhere)
    assert "is a symbolic link or a file" in one_error(ocil_command("serve", *model))


def test_segments_are_read_in_the_order_in_which_they_were_begun(tmp_path: Path) -> None:
    names = [f"{1:020d}-9999.log", f"{1:020d}-10000.log", f"{2:020d}-0000.log"]
    for name in reversed(names):
        (tmp_path / name).touch()
    assert [segment.path.name for segment in sorted(map(Segment.of, tmp_path.iterdir()))] == names


def test_writing_goes_on_behind_a_torn_end(folder: Path) -> None:
    path = filled(folder)
    path.write_bytes(path.read_bytes()[:-3])  # the last cut
    log = Log(folder, 0)
    log.append([samples(7)])
    assert left(folder) == plain([*RECORDS[:4], samples(7)])


def test_damage_in_an_earlier_segment_is_an_error_even_at_its_end(folder: Path) -> None:
    path = filled(folder)
    Log(folder, 0).append([samples(7)])
    path.write_bytes(path.read_bytes()[:-3])
    for position in (0, 6):  # a change may follow the last sample that was learned
        with pytest.raises(DamagedError, match="is damaged at byte"):
            Log(folder, position)
    assert left(folder, 8) == plain([])  # but not if the model has learned more than all of it


@pytest.mark.parametrize("damage", ["a record", "the end"])
def test_damage_in_a_segment_that_the_model_has_learned_is_an_error_where_it_is_read(folder: Path, damage: str) -> None:
    path = filled(folder)
    for first in (7, 9):
        log = Log(folder, first - 1)
        log.append([samples(first)])
        log.close()
    content = with_flipped_bit(path, path.stat().st_size - 9) if damage == "a record" else path.read_bytes()[:-3]
    path.write_bytes(content)
    log = Log(folder, 9)
    with pytest.raises(DamagedError, match=rf"^{path} is damaged at byte .*--set-aside-damage"):
        list(log.records())
    assert path.read_bytes() == content
    assert plain(list(Log(folder, 9, set_aside=True).records())) == plain([*RECORDS[:4], samples(7), samples(9)])
    (kept,) = folder.glob("*.damaged-1")
    assert kept.read_bytes() == content


def test_a_new_list_of_samples_needs_the_whole_log(tmp_path: Path) -> None:
    """It is not begun with a part of the log, which a later start would take for all of it."""
    for _ in range(2):
        with running(tmp_path) as service:
            service.writer.submit(FORM.read(np.stack([picture(9), picture(90)])), ["a", "b"]).result(SECONDS)
    first = min((tmp_path / "log").glob("*.log"))
    with_flipped_bit(first, first.stat().st_size - 9)
    with running(tmp_path) as service:  # the list has them
        assert [one.number for one in service.samples()] == [1, 2, 3, 4]
    (tmp_path / CATALOGUE).unlink()
    for _ in range(2):
        with pytest.raises(DamagedError, match=f"^{first} is damaged at byte"), running(tmp_path):
            pass
    with running(tmp_path, set_aside_damage=True) as service:
        assert {3, 4} <= {one.number for one in service.samples()}


def test_an_image_cannot_pass_for_a_record(folder: Path) -> None:
    """One that holds a record, in a record that is torn: it must not look as if something followed the damage."""
    inside = framed(Cut(9).body(), b"not the salt")
    pixels = np.frombuffer((inside * 2).ljust(120, b"\0")[:120], np.uint8).reshape(10, *SHAPE)
    log = Log(folder, 0)
    log.append([samples(1)])
    log.append([SampleRecord(3, tuple("abcdefghij"), pixels)])
    (path,) = folder.iterdir()
    as_if_never_acknowledged(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert left(folder) == plain([samples(1)])


def test_missing_samples_are_an_error(folder: Path) -> None:
    filled(folder)
    Log(folder, 0).append([samples(7)])
    first, second = sorted(folder.iterdir())
    first.unlink()
    with pytest.raises(DamagedError, match="goes on with sample 7 where 1 should be"):
        Log(folder, 0)
    second.rename(folder / "00000000000000000003-0000.log")
    newest_file(folder).unlink()
    with pytest.raises(DamagedError, match="where 3 should be"):
        Log(folder, 2)


@pytest.mark.parametrize("cuts", [False, True], ids=["nothing after it", "cuts after it"])
@pytest.mark.parametrize("loss", ["file", "content", "folder"])
def test_a_start_notices_that_the_newest_segment_is_gone(folder: Path, loss: str, cuts: bool) -> None:
    newest = filled(folder)
    if cuts:  # as after a crash: what was not learned before it is
        Log(folder, 4).append([Cut(6)])
    if loss == "content":
        newest.write_bytes(b"")
    else:
        shutil.rmtree(folder) if loss == "folder" else newest.unlink()
    there = sorted(folder.glob("*"))
    with pytest.raises(DamagedError, match="and acknowledged samples may be") as error:
        Log(folder, 0)
    assert str(newest) in str(error.value)
    assert "--set-aside-damage" in str(error.value)
    assert sorted(folder.glob("*")) == there
    log = Log(folder, 0, set_aside=True)
    assert log.last == 0
    assert not newest.exists()
    Log(folder, 0)  # the option is needed once
    log.append([samples(1)])
    assert left(folder)[-1:] == plain([samples(1)])


@pytest.mark.usefixtures("no_sync")
def test_a_start_notices_at_every_byte_that_acknowledged_samples_were_cut_off(folder: Path) -> None:
    """As a copy does that was not finished. Only a cut may be missing, which nobody was told of."""
    path = filled(folder)
    content, named = path.read_bytes(), newest_file(folder).read_bytes()
    ends = ends_of(content)
    for length in range(HEADER.size, len(content)):
        opened = opens_unchanged_or_refuses(path, content[:length])
        assert opened == (length >= ends[4])
        assert newest_file(folder).read_bytes() == named


@pytest.mark.parametrize("between_records", [True, False])
def test_a_log_that_lost_its_end_is_used_only_on_demand(folder: Path, between_records: bool) -> None:
    path = filled(folder)
    Log(folder, 0).append([Change(1, "review")])
    path = max(folder.iterdir())
    Log(folder, 0).append([Cut(6)])  # a later segment without requests
    path.write_bytes(path.read_bytes()[: HEADER.size if between_records else -1])
    with pytest.raises(DamagedError, match="change 1, which had been acknowledged" if between_records else "byte"):
        Log(folder, 0)
    log = Log(folder, 0, set_aside=True)
    assert plain(list(log.replay())) == plain([*RECORDS, Cut(6)])
    Log(folder, 0)  # the option is needed once
    log.append([Change(1, "review")])
    assert left(folder)[-1] == Change(1, "review")


def test_a_torn_end_with_an_acknowledged_sample_is_kept_when_it_is_set_aside(folder: Path) -> None:
    path = filled(folder)
    content = path.read_bytes()[: ends_of(path.read_bytes())[2] - 3]
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="has lost its end: samples 3 to 6, which had been acknowledged"):
        Log(folder, 0)
    assert plain(list(Log(folder, 0, set_aside=True).replay())) == plain(RECORDS[:1])
    assert (folder / f"{path.name}.damaged-1").read_bytes() == content
    assert left(folder) == plain(RECORDS[:1])


def test_a_sample_that_the_saved_model_has_learned_may_be_cut_off(folder: Path) -> None:
    path = filled(folder)
    path.write_bytes(path.read_bytes()[: HEADER.size])
    assert left(folder, 6) == []


def test_a_file_of_an_earlier_version_names_the_newest_segment_alone(folder: Path) -> None:
    path = filled(folder)
    newest_file(folder).write_text(f"{path.name}\n")
    path.write_bytes(path.read_bytes()[: HEADER.size])
    assert left(folder) == []


def test_a_segment_that_the_saved_model_has_learned_may_be_gone(folder: Path) -> None:
    log = Log(folder, 0)
    log.append([samples(1)])
    log.append([Change(1, "review")])
    for position, changes, gone in ((1, 1, False), (2, 0, False), (2, 1, True)):
        log.forget_newest_if_saved(position, changes)
        assert newest_file(folder).exists() != gone
    log.append([samples(3)])  # in the same segment
    assert newest_file(folder).exists()
    log.forget_newest_if_saved(4, 1)
    (segment,) = folder.iterdir()
    segment.unlink()
    assert left(folder, 4) == []


def test_the_name_does_not_count_after_a_rollback_to_an_earlier_version(tmp_path: Path) -> None:
    """It learns the segment and deletes it, and does not know that the segment is named."""
    with running(tmp_path):
        pass
    name = newest_file(tmp_path / "log")
    name.write_text("00000000000000000001-0000.log\n")
    with pytest.raises(DamagedError, match="the newest file of the log, is missing"), running(tmp_path):
        pass
    model = Model.load(tmp_path, "cpu")
    del model.note[NOTE]["newest_is_named"]  # as an earlier version saves it
    model.save(tmp_path)
    for _ in range(2):  # the first one saves
        with running(tmp_path) as service:
            service.writer.submit(FORM.read(picture(60)[None]), ["a"], None).result(SECONDS)
    assert not name.exists()


def test_a_damaged_name_of_the_newest_segment_is_refused(folder: Path) -> None:
    filled(folder)
    for content in (b"", b"\xff\0", b"../../etc/passwd"):
        newest_file(folder).write_bytes(content)
        with pytest.raises(DamagedError, match=r"log\.newest, .*--set-aside-damage"):
            Log(folder, 0)
    assert plain(list(Log(folder, 0, set_aside=True).replay())) == plain(RECORDS)
    assert left(folder) == plain(RECORDS)


class CrashError(BaseException):
    """The process is gone: nothing handles this."""


class Disk:
    """What of two folders survives a crash after a number of operations.

    A killed process leaves all that it did. After a power failure a folder may be as it was when it was last synced,
    and then a file is what was last synced of it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, ...], operations: int) -> None:
        self.folders, self.left = folders, operations
        self.synced: dict[int, bytes] = {}  # content by inode
        self.names: dict[Path, dict[str, int]] = {folder: {} for folder in folders}  # inodes of what was synced
        self.held: list[int] = []  # descriptors, so that no inode is used again
        for place, name in ((os, "open"), (os, "write"), (Path, "unlink"), (Path, "replace")):
            monkeypatch.setattr(place, name, self.counted(getattr(place, name)))
        monkeypatch.setattr(os, "fsync", self.counted(self.sync))

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not self.left:
                raise CrashError
            self.left -= 1
            return function(*arguments, **options)

        return call

    def sync(self, descriptor: int) -> None:
        self.held.append(os.dup(descriptor))
        inode = os.fstat(descriptor).st_ino
        for folder in self.folders:
            files = {path.name: path.stat().st_ino for path in folder.iterdir() if path.is_file()}
            if folder.stat().st_ino == inode:
                self.names[folder] = files
            self.synced |= {one: (folder / name).read_bytes() for name, one in files.items() if one == inode}

    def close(self) -> None:
        for descriptor in self.held:
            os.close(descriptor)

    def lose_power(self, folder: Path) -> None:
        for path in folder.iterdir():
            if path.is_file():
                path.unlink()
        for name, inode in self.names[folder].items():
            (folder / name).write_bytes(self.synced.get(inode, b""))


@pytest.mark.parametrize("lost", [(), (0,), (1,), (0, 1)], ids=["killed", "log lost", "name lost", "both lost"])
def test_no_crash_makes_a_start_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]) -> None:
    for operations in range(1000):
        folder = tmp_path / str(operations) / "log"
        folder.mkdir(parents=True)
        learned, acknowledged = 0, 0
        with monkeypatch.context() as patch:
            disk = Disk(patch, (folder, folder.parent), operations)
            try:
                log = Log(folder, 0)
                for first in (1, 3, 5, 7):
                    log.append([samples(first)])
                    acknowledged = first + 1
                    log.append([Cut(first)], sync=False)
                    log.forget_newest_if_saved(learned := first - (first == 3), 0)
                    log.delete_covered_segments(learned)
                log.append([Cut(8)], sync=False)
                log.forget_newest_if_saved(learned := 8, 0)
                log.append([Cut(8)], sync=False)
                log.delete_covered_segments(8)
                log.append([samples(9)])
                acknowledged = 10
                log.close()
            except CrashError:
                pass
            else:
                assert operations > 50
                return
            finally:
                disk.close()
        for number in lost:
            disk.lose_power(disk.folders[number])
        assert Log(folder, learned).last >= acknowledged


def test_a_file_that_is_no_log(folder: Path) -> None:
    folder.mkdir(parents=True)
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
    log.delete_covered_segments(0)  # a checkpoint of a model that has learned nothing yet
    assert len(log.segments()) == 1
    log.append([samples(3)])
    log.append([Cut(2)])
    assert [s.first for s in log.segments()] == [1, 3]
    log.delete_covered_segments(2)
    assert [s.first for s in log.segments()] == [3]
    assert left(folder, 2) == plain([samples(3)])
    log.append([Cut(4)], sync=False)
    log.delete_covered_segments(3)  # in the middle of a record
    assert left(folder, 3)[-1] == Cut(4)
    log.delete_covered_segments(4)
    log.append([samples(5)])
    log.delete_covered_segments(6)
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
    assert left(folder) == plain([samples(1, 4), Cut(1), Cut(2), Cut(3), samples(5)])
    log = Log(folder, 2)
    assert plain(list(log.replay()))[1:] == plain([Cut(3), samples(5)])


def test_a_full_segment_is_followed_by_another(folder: Path) -> None:
    log = Log(folder, 0, segment_bytes=200)
    for first in range(1, 21, 2):
        log.append([samples(first)])
    assert len(log.segments()) > 3
    assert left(folder) == plain([samples(first) for first in range(1, 21, 2)])


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
    assert left(folder) == plain([samples(1)])
    log.append([samples(3)])  # there is room again
    assert left(folder) == plain([samples(1), samples(3)])


def test_too_many_open_files_refuse_requests_for_as_long_as_they_are_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections take files too: anybody who can reach the service can use them up for a moment."""
    log = Log(folder, 0)
    log.append([samples(1)])

    def full(*_: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(WriteError, match="Too many open files"):
            log.append([samples(3)])
    assert log.broken is None
    log.append([samples(3, 1)])
    log.close()
    assert left(folder) == plain([samples(1), samples(3, 1)])


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
    assert left(folder) == plain([samples(1)])


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
            log.delete_covered_segments(1) if end == "covered" else log.append([samples(3)])
    with pytest.raises(WriteError, match="Restart the service"):
        log.append([samples(3)])
    assert len(log.segments()) == 1


def test_reading_stops_at_what_is_not_whole(folder: Path) -> None:
    path = filled(folder)
    path.write_bytes(path.read_bytes()[:-1])
    assert plain(list(read(path))) == plain(RECORDS[:4])
