"""What a service finds in its log when it starts, and how it treats the end of a log that was being written.

Samples are numbered without gaps, and so are changes: a gap means that acknowledged ones were lost. Gaps that the user
has accepted with ``--set-aside-damage`` are listed in a file next to the segments: a later start goes on without these,
and still refuses a log in which others are missing.
"""

import logging
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import torch

from ocil import tensorfile
from ocil.errors import OcilError, WriteError
from ocil.files import open_regular, read_regular, sync_folder, write_bytes
from ocil.online.formats import InputFormat
from ocil.online.labels import ClassLabel
from ocil.serve.idempotency import KeyedRequest
from ocil.serve.newest import Newest, read_newest, write_newest
from ocil.serve.records import Change, SampleRecord
from ocil.serve.segment import Condition, DamagedError, Segment, damage, examine, needed_segments, read, segments_of
from ocil.tensorfile import DamagedFileError

MISSING, MISSING_CHANGES = "missing", "changes"  # the tensors of the list's file, which has the first one's name

Gaps = tuple[range, ...]

logger = logging.getLogger("ocil.serve")


@dataclass
class Recovered:
    """What is left of a log for a model on disk that has learned all samples up to ``position``."""

    position: int
    last: int
    """The number of the last sample in the log; ``position`` if there is none behind it."""
    keys: dict[str, KeyedRequest] = field(default_factory=dict)
    """Requests by their key, as far as their records are still there."""
    labels: set[ClassLabel] = field(default_factory=set)
    """Labels of the samples that the model on disk has not learned."""
    last_change: int = 0
    """The number of the last change in the log; that of the last one made to the model if there is none behind it."""
    change_keys: dict[str, KeyedRequest] = field(default_factory=dict)
    """Changes by their key, as far as their records are still there."""
    unlearned: set[int] = field(default_factory=set)
    """Samples that were forgotten after learning had stopped at them."""
    missing: Gaps = ()
    """Gaps among the samples that the user has accepted."""
    missing_changes: Gaps = ()
    """The same among the changes."""
    newest: Path | None = None
    """The segment that ``ocil.serve.newest`` names."""
    segments: list[tuple[Segment, int]] = field(default_factory=list)
    """What a replay has to read: segments, and where their last whole record ends."""


def recover(
    folder: Path,
    position: int,
    input_format: InputFormat | None,
    set_aside: bool,
    changes: int = 0,
    newest_is_named: bool = True,
) -> Recovered:
    """Read the log in ``folder``, which is made if it is not there.

    All segments are read before any is changed, so an error leaves them as they were; then a record that was never
    finished is cut off. ``DamagedError`` for anything else that cannot be read, unless ``set_aside`` asks to go on
    without it. ``input_format``: what the model takes, if the log is to be checked for it. ``changes``: the number of
    the last change that was made to the model on disk. ``newest_is_named``: False if an earlier version saved it.
    """
    _make_folder(folder)
    found = Recovered(position, last=position, last_change=changes)
    try:
        listed = _listed(folder, set_aside)
        found.missing, found.missing_changes = listed or ((), ())
        if not newest_is_named:
            write_newest(folder, None)
        newest = _newest(folder, set_aside)
        found.newest = newest.segment if newest else None
        conditions = _conditions(folder, found, set_aside)
        following: int | None = None
        for segment, condition in conditions.items():
            if condition.end:
                following = _add_segment(found, segment, condition.end, following, input_format, set_aside)
                found.segments.append((segment, condition.end))
        end_is_lost = newest is not None and _end_is_lost(found, newest, set_aside)
        # Numbers behind the last one are given to new ones.
        found.missing = tuple(gap for gap in found.missing if gap.stop <= found.last)
        found.missing_changes = tuple(gap for gap in found.missing_changes if gap.stop <= found.last_change)
        if (found.missing, found.missing_changes) != listed:
            write_missing(folder, found.missing, found.missing_changes)
        _mend_ends(conditions, end_is_lost)
        if end_is_lost and found.newest is not None:
            write_newest(folder, Newest(found.newest, found.last, found.last_change))
    except OSError as error:
        raise WriteError(f"cannot open the log {folder}: {error.strerror or error}.") from error
    return found


def _listed(folder: Path, set_aside: bool) -> tuple[Gaps, Gaps] | None:
    """The gaps that are listed; None if the list is damaged, which ``set_aside`` must allow, and is written anew."""
    try:
        return read_missing(folder)
    except DamagedError:
        if not set_aside:
            raise
    return None


def _conditions(folder: Path, found: Recovered, set_aside: bool) -> dict[Segment, Condition]:
    """The segments that a model at this position needs, each with what can be read of it. With ``set_aside`` older ones
    are mended too: a version or a new list of samples reads them later."""
    # One sample back: a change that was not made yet may follow the last one that was learned.
    needed = needed_segments(folder, found.position - 1)
    if set_aside:
        for older in sorted(set(segments_of(folder)) - set(needed)):
            _examined(older, last=False, newest=False, set_aside=True)
    conditions = {
        segment: _examined(segment, segment is needed[-1], segment.path == found.newest, set_aside)
        for segment in needed
    }
    if found.newest is not None and not found.newest.exists():  # it was set aside as a whole
        found.newest = None
        write_newest(folder, None)
    return conditions


def _mend_ends(conditions: Mapping[Segment, Condition], end_is_lost: bool) -> None:
    """Cut off what was not written to its end; keep a copy of it if more is lost than what a crash may leave."""
    for segment, condition in conditions.items():
        if condition.unfinished and end_is_lost and condition.end:
            _set_aside(segment.path, replace(condition, damaged=(range(condition.end, condition.size),)))
        elif condition.unfinished:
            _cut_off(segment.path, condition)


def _newest(folder: Path, set_aside: bool) -> Newest | None:
    """What must be there. ``DamagedError`` if its segment is not, unless ``set_aside``."""
    try:
        newest = read_newest(folder)
        if newest is None or os.path.lexists(newest.segment):
            return newest
        raise DamagedError(
            f"{newest.segment}, the newest file of the log, is missing, and acknowledged samples may be in it. Restore "
            "it from a copy, or start with --set-aside-damage to go on without them."
        )
    except DamagedError:
        if not set_aside:
            raise
    write_newest(folder, None)
    logger.warning("%s: its newest file is missing, or its name is not known any more.", folder)
    return None


def _end_is_lost(found: Recovered, newest: Newest, set_aside: bool) -> bool:
    """Whether the model and the log end before what was acknowledged. ``DamagedError`` then, unless ``set_aside``."""
    samples = _numbers("sample", range(found.last + 1, newest.sample + 1))
    changes = _numbers("change", range(found.last_change + 1, newest.change + 1))
    if not samples + changes:
        return False
    lost = " and ".join(samples + changes)
    message = f"{newest.segment}, the newest file of the log, has lost its end: {lost}"
    if not set_aside:
        raise DamagedError(
            f"{message}, which had been acknowledged. Restore the whole folder from one and the same copy, or start "
            "with --set-aside-damage to go on without them."
        )
    logger.warning("%s. The service goes on without them.", message)
    return True


def _numbers(kind: str, lost: range) -> list[str]:
    """A text about the numbers of what was lost; none if nothing was."""
    if len(lost) < 2:
        return [f"{kind} {number}" for number in lost]
    return [f"{kind}s {lost[0]} to {lost[-1]}"]


def _examined(segment: Segment, last: bool, newest: bool, set_aside: bool) -> Condition:
    """``last``: no segment was begun after it. ``newest``: it holds the newest requests, so its header was finished."""
    condition = examine(segment.path)
    whole_before = not last or (newest and condition.end == 0)  # it was, before what followed was written
    if condition.unfinished and whole_before:
        condition = replace(condition, damaged=(*condition.damaged, range(condition.end, condition.size)))
    if not condition.damaged:
        return condition
    if not set_aside:
        raise damage(segment.path, condition.damaged[0].start)
    return _set_aside(segment.path, condition)


def _add_segment(
    found: Recovered,
    segment: Segment,
    end: int,
    following: int | None,
    input_format: InputFormat | None,
    set_aside: bool,
) -> int | None:
    """Add what a segment holds. ``following``: the number that its first sample should have; None: not known yet.

    With ``set_aside``, samples may be missing that are not known to be. Returns the number after its last sample.
    """
    for record in read(segment.path, end):
        if isinstance(record, Change):
            _add_change(found, record, segment, set_aside)
        if not isinstance(record, SampleRecord):
            continue
        expected = found.position + 1 if following is None else following
        gap = range(expected, record.first)
        if set_aside:
            new = range(min(expected, segment.first), record.first) if following is None else gap
            found.missing = _with_gap(found.missing, new)
        if (gap and not is_known(gap, found.missing)) or (following is not None and record.first < expected):
            raise DamagedError(
                f"{segment.path} goes on with sample {record.first} where {expected} should be. Restore the whole "
                "folder from one and the same copy, or start with --set-aside-damage to go on with what is there."
            )
        if input_format is not None and record.last > found.position and not _fits(record, input_format):
            has = "x".join(map(str, record.inputs.shape[1:]))
            raise DamagedError(
                f"{segment.path} holds inputs of {has} ({record.inputs.dtype}), but the model takes {input_format}."
            )
        following = record.last + 1
        found.last = max(found.last, record.last)
        if record.key is not None:
            found.keys[record.key] = KeyedRequest.of(record)
        if record.last > found.position:
            found.labels.update(record.labels)
    return following


def _add_change(found: Recovered, change: Change, segment: Segment, set_aside: bool) -> None:
    gap = range(found.last_change + 1, change.number)
    if set_aside:
        found.missing_changes = _with_gap(found.missing_changes, gap)
    if gap and not is_known(gap, found.missing_changes):
        raise DamagedError(
            f"{segment.path} goes on with change {change.number} where {found.last_change + 1} should be. Restore the "
            "whole folder from one and the same copy, or start with --set-aside-damage to go on with what is there."
        )
    if change.number > found.last_change:
        found.last_change = change.number
    if change.action == "correct":
        found.labels.add(change.label)
    if change.unlearned:
        found.unlearned.add(change.sample)
    if change.key is not None:
        found.change_keys[change.key] = KeyedRequest.of(change)


def _fits(record: SampleRecord, input_format: InputFormat) -> bool:
    return (record.inputs.shape[1:], record.inputs.dtype) == (input_format.network_shape, input_format.dtype)


def _with_gap(known: Gaps, gap: range) -> Gaps:
    """Known gaps and this one, which replaces those within it."""
    if not gap or is_known(gap, known):
        return known
    return (*(one for one in known if not is_known(one, [gap])), gap)


def _cut_off(path: Path, condition: Condition) -> None:
    """Cut off a record that was never finished; delete a segment whose header was not."""
    if condition.end == 0:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
        return
    file = open_regular(path, os.O_WRONLY)
    try:
        os.ftruncate(file, condition.end)
        os.fsync(file)
    finally:
        os.close(file)


def _set_aside(path: Path, condition: Condition) -> Condition:
    """Keep a copy of the damaged segment under another name, and only what can be read of it under its own."""
    content = read_regular(path)
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    copy = next(name for name in names if not os.path.lexists(name))
    write_bytes(copy, content)
    sync_folder(path.parent)
    if condition.damaged[0].start == 0:  # without its header no record can be read
        path.unlink()
    else:
        edges = [0, *(edge for span in condition.damaged for edge in (span.start, span.stop)), condition.end]
        write_bytes(path, b"".join(content[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)))
    sync_folder(path.parent)
    lost = sum(map(len, condition.damaged))
    logger.warning("%s: %d bytes cannot be read. The file as it was is kept as %s.", path, lost, copy.name)
    return examine(path) if path.exists() else Condition(0, 0)


def _make_folder(folder: Path) -> None:
    """Make sure that the log is a folder and not a link to one: segments are deleted in it."""
    try:
        if not os.path.lexists(folder):
            folder.mkdir(parents=True)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise OcilError(f"{folder} is a symbolic link or a file: the log needs a folder of its own there.")
        sync_folder(folder.parent)
    except OSError as error:
        raise WriteError(f"cannot write to {folder}: {error.strerror}. Choose another folder.") from error


def read_missing(folder: Path) -> tuple[Gaps, Gaps]:
    """The gaps among samples and among changes that are listed; none without a file. ``DamagedError`` if the list
    cannot be trusted."""
    path = folder / f"{MISSING}.safetensors"
    try:
        tensors = tensorfile.read(path)[0]
        none = torch.zeros((0, 2), dtype=torch.int64)
        return _gaps(tensors.get(MISSING)), _gaps(tensors.get(MISSING_CHANGES, none))  # earlier versions list samples
    except FileNotFoundError:
        return (), ()
    except DamagedFileError as error:
        raise DamagedError(
            f"{path}, the list of what was given up, cannot be used: {error}. Restore it from a copy, or start with "
            "--set-aside-damage to list it anew."
        ) from error


def _gaps(ends: torch.Tensor | None) -> Gaps:
    if ends is None or ends.dtype != torch.int64 or ends.dim() != 2 or ends.shape[1] != 2:
        raise DamagedFileError("it does not list first and last numbers")
    return tuple(range(first, last + 1) for first, last in ends.tolist())


def write_missing(folder: Path, samples: Gaps, changes: Gaps) -> None:
    """List these gaps and no others, synced to the disk. An empty list has no file."""
    path = folder / f"{MISSING}.safetensors"
    if samples or changes:
        tensorfile.write(path, {MISSING: _ends(samples), MISSING_CHANGES: _ends(changes)}, {})
    else:
        path.unlink(missing_ok=True)
    sync_folder(folder)


def _ends(gaps: Gaps) -> torch.Tensor:
    return torch.tensor([(gap.start, gap.stop - 1) for gap in gaps], dtype=torch.int64).reshape(-1, 2)


def is_known(gap: range, known: Sequence[range]) -> bool:
    """Whether one of the known gaps has all of these samples."""
    return any(one.start <= gap.start and gap.stop <= one.stop for one in known)
