"""Samples of a service that are corrected and forgotten, and reviews that are asked for."""

import errno
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ocil.errors import OcilError, WriteError
from ocil.online.model import FILE, Model, Recipe
from ocil.runs.environment import digest
from ocil.serve.catalogue import FILE as CATALOGUE
from ocil.serve.catalogue import Catalogue
from ocil.serve.corrections import numbers_of
from ocil.serve.labelling_store import Store
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.log import Log
from ocil.serve.records import Change, Cut, SampleRecord, parsed
from ocil.serve.segment import DamagedError
from ocil.serve.service import Service
from ocil.serve.snapshot import Snapshots
from ocil.serve.trainer import _TooLateError
from tests.serving import FORM, SECONDS, picture, relearned, running

pytestmark = pytest.mark.usefixtures("quick_convolution")


def send(service: Service, count: int, first: int = 1, key: str | None = None, wait: bool = True) -> int:
    """Samples of two classes, no two alike. Returns the number of the last."""
    places = range(first, first + count)
    inputs = FORM.read(np.stack([picture(40 * (place % 2), place) for place in places]))
    last = service.writer.submit(inputs, ["ab"[place % 2] for place in places], key).result(SECONDS).last
    if wait:
        assert service.trainer.waiters.wait_for(last).result(SECONDS)
    return last


def make(service: Service, receipt: Any) -> Any:
    number = receipt.result(SECONDS).first
    assert service.wait_for_change(number).result(SECONDS)
    return service.trainer.outcomes[number]


def labels_in_memory(service: Service) -> dict[int, Any]:
    def look() -> dict[int, Any]:
        memory, model = service.model.learner.memory, service.model
        numbers = numbers_of(model).of_slot[: len(memory)].tolist()
        return {n: model.labels[label] for n, label in zip(numbers, memory.labels.tolist(), strict=False)}

    return service.trainer.between_steps(look).result(SECONDS)


def refused(call: Callable[[], Any], status: int, words: str) -> None:
    with pytest.raises(RefusedError, match=words) as caught:
        call().result(SECONDS)
    assert caught.value.status == status


@contextmanager
def held_up(service: Service) -> Iterator[None]:
    """Nothing is learned or changed inside the block."""
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        done.wait(SECONDS)

    service.trainer.between_steps(hold)
    begun.wait(SECONDS)
    try:
        yield
    finally:
        done.set()


def test_correct_and_forget_what_was_learned(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 8)
        before = labels_in_memory(service)
        assert before == {n: "ab"[n % 2] for n in range(1, 9)}
        outcome = make(service, service.correct(3, "new"))
        assert (outcome.learned, outcome.stored) == (True, True)
        assert labels_in_memory(service) == before | {3: "new"}
        assert service.statistics.labels == ("b", "a", "new")  # a class that only the memory knows yet
        assert service.predictor.ask(FORM.read(picture(1)[None])).result(SECONDS).labels == ("b", "a", "new")
        outcome = make(service, service.forget(4))
        assert (outcome.learned, outcome.stored) == (True, True)
        assert labels_in_memory(service) == {n: label for n, label in (before | {3: "new"}).items() if n != 4}
        one, other = service.sample(3), service.sample(4)
        assert (one.label, one.first_label, one.forgotten) == ("new", "b", False)
        assert (other.label, other.first_label, other.forgotten) == (None, None, True)
        make(service, service.review())
        send(service, 4, first=9)
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)
    with running(tmp_path) as service:  # the memory still knows
        assert 3 in labels_in_memory(service)
        assert service.sample(3).label == "new"


def test_what_waits_is_changed_before_it_is_learned(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 2)
        with held_up(service):
            send(service, 6, first=3, wait=False)
            changes = [service.correct(4, "c"), service.forget(5), service.forget(6)]
            numbers = [change.result(SECONDS).first for change in changes]
        refused(lambda: service.correct(6, "e"), 409, "was forgotten")
        assert service.wait_for_change(numbers[-1]).result(SECONDS)
        for number in numbers:
            outcome = service.trainer.outcomes[number]
            assert (outcome.learned, outcome.stored) == (False, False)
        assert service.trainer.waiters.wait_for(8).result(SECONDS)
        assert labels_in_memory(service) == {1: "b", 2: "a", 3: "b", 4: "c", 7: "b", 8: "a"}
        assert service.statistics.samples == 6
        with held_up(service):  # a batch of which nothing is left
            send(service, 1, first=9, wait=False)
            service.forget(9).result(SECONDS)
        assert service.trainer.waiters.wait_for(9).result(SECONDS)
    saved = Model.load(tmp_path, "cpu")
    assert saved.samples == 6
    assert digest(saved.learner) == digest(relearned(tmp_path).learner)


def test_a_sample_that_the_memory_has_lost(tmp_path: Path) -> None:
    with running(tmp_path, Recipe("er", memory=4, width=1, batch_size=4)) as service:
        send(service, 12)
        gone = next(n for n in range(1, 13) if n not in labels_in_memory(service))
        outcome = make(service, service.correct(gone, "other"))
        assert (outcome.learned, outcome.stored) == (True, False)
        assert service.sample(gone).label == "other"
        assert "other" not in service.statistics.labels  # nothing of that class was learned
        assert make(service, service.forget(gone)).stored is False
        assert make(service, service.forget(gone)).stored is False  # again: no error
        refused(lambda: service.correct(gone, "a"), 409, f"sample {gone} was forgotten: send it anew")


def test_samples_that_never_came(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 1)
        for number in (0, 2, 2**63, 2**70):
            refused(partial(service.correct, number, "a"), 404, "never came")
            refused(partial(service.forget, number), 404, "never came")
        assert service.log.last_change == 0  # nothing was written


def test_limits_and_keys(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(batch=4, queue=4, classes=2)) as service:
        send(service, 3, key="samples")
        refused(lambda: service.correct(1, "third"), 422, "more than 2 classes")
        first = service.correct(1, "a", key="k").result(SECONDS)
        assert (first.first, first.repeated) == (1, False)
        make(service, service.correct(1, "b"))
        again = service.correct(1, "a", key="k").result(SECONDS)
        assert (again.first, again.repeated) == (1, True)
        assert service.sample(1).label == "b"  # what was repeated is not made again
        refused(lambda: service.forget(1, key="k"), 409, "came before with another request")
        refused(lambda: service.forget(1, key="samples"), 409, "came before with another request")
        with pytest.raises(RefusedError, match="came before"):
            send(service, 1, key="k")
        with held_up(service):
            for _ in range(4):
                service.review()
            refused(service.review, 429, "4 changes wait")
    with running(tmp_path, limits=Limits(batch=4, queue=4, classes=2)) as service:
        assert service.correct(1, "a", key="k").result(SECONDS).repeated
        assert service.forget(1, key="k2").result(SECONDS).first == 7


def test_a_label_means_the_class_that_reads_like_it(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        service.writer.submit(FORM.read(np.stack([picture(1), picture(90)])), [1, "x"]).result(SECONDS)
        make(service, service.correct(2, "1"))
        assert service.sample(2).label == 1
        assert [one.number for one in service.samples("1")] == [1, 2]


def test_search(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 3)
        middle = time.time()
        send(service, 3, first=4)
        make(service, service.forget(2))
        assert [one.number for one in service.samples()] == [1, 3, 4, 5, 6]
        assert [one.number for one in service.samples("a")] == [4, 6]
        assert [one.number for one in service.samples("b", until=middle)] == [1, 3]
        assert [one.number for one in service.samples(since=middle, limit=2)] == [4, 5]
        assert [one.number for one in service.samples(after=4)] == [5, 6]
        assert service.samples("nothing") == []


def test_changes_survive_a_crash_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is never saved, so the next start replays all."""
    folder = tmp_path / "a"
    with running(folder, save_seconds=1e9) as service:
        send(service, 6)
        make(service, service.correct(1, "c"))
        make(service, service.review())
        send(service, 3, first=7)
        make(service, service.forget(2))
        make(service, service.correct(3, "c"))
        bits = digest(service.model.learner)
        monkeypatch.setattr(service.checkpoints, "save", lambda *_: None)
        monkeypatch.setattr(service.catalogue, "close", lambda: service.catalogue._base.close())  # nothing committed
    assert Model.load(folder, "cpu").samples == 0
    with running(folder) as service:
        assert service.wait_for_change(4).result(SECONDS)
        assert digest(service.model.learner) == bits
        assert service.sample(3).label == "c"
        assert service.sample(2).forgotten
        assert labels_in_memory(service)[1] == "c"
        assert 2 not in labels_in_memory(service)
    assert digest(relearned(folder).learner) == bits


def test_changes_that_are_replayed_are_published_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are when they wait: a snapshot takes far longer than a correction."""
    folder, killed = tmp_path / "a", tmp_path / "b"
    with running(folder, save_seconds=1e9) as service:
        send(service, 4)
        with held_up(service):
            for n in range(50):
                service.correct(1 + n % 4, "abc"[n % 3]).result(SECONDS)
        send(service, 1, first=5)
        shutil.copytree(folder, killed)
    published: list[int] = []
    publish = Snapshots.publish

    def counted(snapshots: Snapshots, probe: Any) -> Any:
        published.append(snapshots.model.samples)
        return publish(snapshots, probe)

    monkeypatch.setattr(Snapshots, "publish", counted)
    with running(killed) as service:
        assert service.wait_for_change(50).result(SECONDS)
        assert service.trainer.waiters.wait_for(5).result(SECONDS)
        make(service, service.correct(5, "c"))
        assert labels_in_memory(service)[5] == "c"
    assert len(published) < 10


def test_the_list_is_never_behind_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is killed right after the model was saved. A start reads only what follows the model in the log."""
    folder, killed = tmp_path / "a", tmp_path / "b"
    with running(folder, keep_log=False, save_seconds=1e9) as service:
        service.log.segment_bytes = 1
        send(service, 1)
        service.trainer.between_steps(service.trainer.save).result(SECONDS)
        for first in (2, 4):
            send(service, 2, first=first)
        send(service, 1, first=6)
        save = service.model.save
        monkeypatch.setattr(service.model, "save", lambda place: (save(place), shutil.copytree(folder, killed)))
    with running(killed, keep_log=False) as service:
        assert service.statistics.position == 6
        assert [one.number for one in service.samples()] == [1, 2, 3, 4, 5, 6]


def test_the_list_is_mended_when_the_disk_has_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit for which there is no space is taken back by SQLite: the log is kept until the list has all of it."""

    def unreadable(path: Path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with running(tmp_path, keep_log=False, save_seconds=1e9) as service:
        send(service, 4)
        base = service.catalogue._base

        class Full:
            def __getattr__(self, name: str) -> Any:
                return getattr(base, name)

            def execute(self, statement: str, *values: Any) -> Any:
                if statement != "commit":
                    return base.execute(statement, *values)
                base.execute("rollback")
                raise sqlite3.OperationalError("database or disk is full")

        service.catalogue._base = Full()  # type: ignore[assignment]
        service.trainer.between_steps(service.trainer.save).result(SECONDS)
        assert str(service.problem).count("disk is full") == 1
        assert service.samples() == []
        service.catalogue._base = base
        with monkeypatch.context() as patch:  # the log cannot be read at the next attempt
            patch.setattr("ocil.serve.segment.open_regular", unreadable)
            service.trainer.between_steps(service.trainer.save).result(SECONDS)
        assert "the list of samples cannot be mended: " in str(service.problem)
        send(service, 2, first=5)
        service.trainer.between_steps(service.trainer.save).result(SECONDS)
        assert service.problem is None
        assert [one.number for one in service.samples()] == [1, 2, 3, 4, 5, 6]
        assert not list((tmp_path / "log").glob("*.log"))


def test_a_change_that_waits_keeps_its_segment(tmp_path: Path) -> None:
    """The log before a checkpoint is deleted, but not with a change that the checkpoint does not have."""
    log = Log(tmp_path / "log", 0)
    log.append([SampleRecord(1, ("a",), np.zeros((1, 2, 2, 1), np.uint8))])
    log.append([Change(1, "forget", sample=1)])
    log.delete_covered_segments(1, 0)
    log.append([SampleRecord(2, ("a",), np.zeros((1, 2, 2, 1), np.uint8))])
    found = list(Log(tmp_path / "log", 1).replay())
    assert [type(record) for record in found] == [Change, SampleRecord]
    log.delete_covered_segments(1, 1)
    assert len(log.segments()) == 1
    assert [type(record) for record in Log(tmp_path / "log", 1, changes=1).replay()] == [SampleRecord]


def test_a_missing_change_is_an_error(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", 0)
    log.append([Change(2, "review")])
    log.close()
    with pytest.raises(DamagedError, match="goes on with change 2 where 1 should be"):
        Log(tmp_path / "log", 0)
    assert Log(tmp_path / "log", 0, set_aside=True).last_change == 2


def test_changes_that_were_given_up_are_not_asked_for_again(tmp_path: Path) -> None:
    """A service that was killed before its first checkpoint asked for ``--set-aside-damage`` at every start."""
    folder, listed = tmp_path / "log", tmp_path / "log" / "missing.safetensors"
    log = Log(folder, 0)
    log.append([Change(1, "review"), Change(3, "review")])
    log.close()
    Log(folder, 0, set_aside=True).close()
    log = Log(folder, 0)  # killed, and started without the option
    log.append([Change(4, "review"), Change(6, "review")])
    log.close()
    with pytest.raises(DamagedError, match="goes on with change 6 where 5 should be"):  # others are not excused
        Log(folder, 0)
    Log(folder, 0, set_aside=True).delete_covered_segments(0, 4)
    log = Log(folder, 0, changes=4)
    assert [record.number for record in log.replay() if isinstance(record, Change)] == [6]
    log.delete_covered_segments(0, 6)
    assert not listed.exists()


@pytest.mark.parametrize(
    "record",
    [
        Change(7, "correct", sample=3, label=("a", 1), time=1.5, key="k"),
        Change(8, "forget", sample=2**62),
        Change(9, "restore", version=4, relearn=True),
        Change(10, "correct", sample=1, label=0),
        Change(11, "save", name="before lunch"),
        Cut(5, 3),
        Cut(5),
    ],
)
def test_records_are_read_as_they_were_written(record: Change | Cut) -> None:
    assert parsed(record.body()) == record


def test_records_of_a_later_version_are_refused() -> None:
    body = Change(1, "review").body().replace(b'"review"', b'"revise"')
    with pytest.raises(ValueError, match="revise"):
        parsed(body)
    with pytest.raises(ValueError, match="unexpected keyword"):
        parsed(Change(1, "review").body().replace(b'"action"', b'"actiom"'))


def test_a_model_from_before_changes(tmp_path: Path) -> None:
    """Its note has no numbers, and there is no list: what it has learned cannot be named, what comes can."""
    with running(tmp_path, keep_log=False) as service:
        send(service, 4)
    (tmp_path / CATALOGUE).unlink()
    model = Model.load(tmp_path, "cpu")
    for name in ("changes", "change_keys", "numbers", "learned"):
        del model.note["serve"][name]
    model.save(tmp_path)
    with running(tmp_path) as service:
        refused(lambda: service.correct(1, "a"), 404, "came before the service kept a list")
        send(service, 2, first=5)
        assert make(service, service.correct(5, "c")).stored is True
        with service.trainer._changed:  # as if the memory had lost it
            numbers_of(service.model).of_slot[:] = 0
        assert make(service, service.correct(6, "c")).stored is None


def test_a_model_that_learned_elsewhere_does_not_trust_its_numbers(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 4)
    model = Model.load(tmp_path, "cpu")
    model.learn(FORM.read(picture(5)[None]), ["a"])
    model.save(tmp_path)
    with running(tmp_path) as service:
        assert set(labels_in_memory(service)) == {0}


def test_a_list_that_is_lost_is_made_from_a_kept_log(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 3)
        make(service, service.forget(2))
    (tmp_path / CATALOGUE).unlink()
    with running(tmp_path) as service:
        assert [one.number for one in service.samples()] == [1, 3]


@pytest.mark.parametrize("content", [b"not a list of samples at all, but long enough for a header" * 20, "link"])
def test_a_list_that_is_none(tmp_path: Path, content: Any) -> None:
    path = tmp_path / CATALOGUE
    if content == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(content)
    with pytest.raises(Exception, match=r"cannot be used|not a regular file"):
        Catalogue(path, 0, 0)


@pytest.mark.parametrize("opened", [lambda path: Catalogue(path, 0, 0), Store])
def test_a_full_disk_is_no_reason_to_move_a_database_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], Any]
) -> None:
    real = sqlite3.connect

    def full(*where: Any, **options: Any) -> sqlite3.Connection:
        base = real(*where, **options)
        base.execute("pragma max_page_count = 1")
        return base

    with pytest.raises(WriteError, match=r"cannot write .*unable to open database file\. Free some space"):
        opened(tmp_path / "missing" / "file.sqlite")
    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(WriteError, match=r"cannot write .*disk is full\. Free some space"):
        opened(tmp_path / "file.sqlite")


def test_a_review_is_broken_off_by_a_stop_and_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise _TooLateError

    recipe = Recipe("er", memory=20, width=1, batch_size=4, settings={"review_batch": 1})
    with running(tmp_path, recipe) as service:
        send(service, 8)
        with held_up(service):
            service.review().result(SECONDS)
            monkeypatch.setattr(service.trainer, "stop_if_late", stop)
    assert Model.load(tmp_path, "cpu").note["serve"]["changes"] == 0  # half of a review is not saved
    with running(tmp_path) as service:
        assert service.wait_for_change(1).result(SECONDS)
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path, recipe).learner)


def test_a_checkpoint_between_a_change_and_its_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved model has the change; the sample that it concerns still waits, and waits again after a crash."""
    with running(tmp_path) as service:
        send(service, 2)
        with held_up(service):
            send(service, 3, first=3, wait=False)
            last = [change.result(SECONDS).first for change in (service.forget(4), service.correct(5, "c"))][1]
            monkeypatch.setattr(service.trainer, "_step", lambda batch: None)
        assert service.wait_for_change(last).result(SECONDS)
        service.trainer.between_steps(service.trainer.save).result(SECONDS)
        monkeypatch.setattr(service.checkpoints, "save", lambda *_: None)
    assert Model.load(tmp_path, "cpu").note["serve"]["changes"] == 2
    assert Model.load(tmp_path, "cpu").samples == 2
    with running(tmp_path) as service:
        assert service.trainer.waiters.wait_for(5).result(SECONDS)
        assert labels_in_memory(service) == {1: "b", 2: "a", 3: "b", 5: "c"}
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


def test_corrections_teach(tmp_path: Path) -> None:
    """After the labels of a class were corrected, a review moves predictions to the new label."""
    with running(tmp_path, Recipe("er", memory=20, width=4, batch_size=4)) as service:
        send(service, 16)
        for number in range(1, 17, 2):
            make(service, service.correct(number, "c"))
        for _ in range(30):
            service.review()
        make(service, service.review())
        seen = FORM.read(np.stack([picture(40, 100 + n) for n in range(5)]))
        found = service.predictor.ask(seen).result(SECONDS)
        assert found.probabilities[:, found.labels.index("c")].mean() > found.probabilities[:, 0].mean()


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """All connections to databases that were opened."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remembered(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remembered)
    return opened


def no_database(folder: Path) -> None:
    (folder / CATALOGUE).write_bytes(b"no database" * 100)


def later_format(folder: Path) -> None:
    with closing(sqlite3.connect(folder / CATALOGUE)) as base:
        base.execute("PRAGMA user_version = 1000")


def lost_log(folder: Path) -> None:
    shutil.rmtree(folder / "log")
    (folder / "log.newest").unlink(missing_ok=True)
    (folder / FILE).unlink()


def no_versions(folder: Path) -> None:
    (folder / "versions").write_text("a file")


@pytest.mark.parametrize("damage", [no_database, later_format, lost_log, no_versions])
def test_a_service_that_cannot_be_made_leaves_nothing_open(
    tmp_path: Path, connections: list[sqlite3.Connection], damage: Callable[[Path], None]
) -> None:
    with running(tmp_path) as service:
        send(service, 4)
    damage(tmp_path)
    connections.clear()
    before = torch.backends.cudnn.benchmark
    with pytest.raises(OcilError), running(tmp_path):
        pass
    assert torch.backends.cudnn.benchmark == before
    (connection,) = connections
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("select 1")
