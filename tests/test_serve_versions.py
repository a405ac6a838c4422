"""Versions of a served model: saved, compared, pinned, restored, deleted; and backups of a live one."""

import errno
import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocil.errors import OcilError, WriteError
from ocil.online.folder import check_folder
from ocil.online.model import FILE, Model
from ocil.runs.environment import digest
from ocil.serve.audit import FILE as AUDIT
from ocil.serve.audit import Audit
from ocil.serve.backup import backup
from ocil.serve.checkpoints import Note
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.log import Log
from ocil.serve.newest import newest_file
from ocil.serve.records import Change
from ocil.serve.service import Service
from ocil.serve.versions import DESCRIPTION
from tests.conftest import left_over
from tests.serving import FORM, SECONDS, picture, relearned, running
from tests.test_serve_changes import held_up, labels_in_memory, make, refused, send

pytestmark = pytest.mark.usefixtures("quick_convolution")


def bits(service: Service) -> str:
    return service.trainer.between_steps(lambda: digest(service.model.learner)).result(SECONDS)


def test_restored_bit_for_bit(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 6)
        make(service, service.save_version("good"))
        before = bits(service)
        inputs = FORM.read(picture(40)[None])
        answer = service.predictor.ask(inputs).result(SECONDS)
        service.writer.submit(FORM.read(picture(90)[None]), ["new class"]).result(SECONDS)
        send(service, 4, first=8)
        assert "new class" in service.statistics.labels
        make(service, service.restore_version("good"))
        assert bits(service) == before
        assert service.statistics.labels == ("b", "a")
        assert service.statistics.position == service.writer.acknowledged == 11  # nothing acknowledged is lost
        assert np.array_equal(service.predictor.ask(inputs).result(SECONDS).probabilities, answer.probabilities)
        send(service, 4, first=12)  # and on it goes
        assert service.sample(9).label == "b"
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)
    with running(tmp_path) as service:
        assert [one.name for one in service.versions] == ["good"]


def test_what_was_forgotten_stays_forgotten(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("v"))
        make(service, service.forget(2))
        make(service, service.correct(3, "c"))
        send(service, 2, first=5)
        make(service, service.restore_version("v"))
        assert labels_in_memory(service) == {1: "b", 3: "c", 4: "a"}
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


@pytest.mark.parametrize("lost", ["a record", "the end", "the file"])
def test_what_was_forgotten_stays_forgotten_where_the_log_is_damaged(tmp_path: Path, lost: str) -> None:
    """A part of the log that only versions need is not read at the start."""
    options: dict[str, Any] = {"keep_log": False, "save_seconds": 1e9}
    with running(tmp_path, **options) as service:
        send(service, 4)
        make(service, service.save_version("v"))
    with running(tmp_path, **options) as service:
        make(service, service.forget(2))
        send(service, 2, first=5)
    with running(tmp_path, **options) as service:
        send(service, 2, first=7)
    segment = sorted((tmp_path / "log").glob("*.log"))[1]
    whole = segment.read_bytes()
    if lost == "the file":
        segment.unlink()
    else:
        segment.write_bytes(whole[:60] if lost == "the end" else whole[:60] + b"?" + whole[61:])
    with running(tmp_path, **options) as service:
        before = bits(service)
        outcome = make(service, service.restore_version("v"))
        assert outcome.refused is not None
        reason = "the log has lost 1 of the changes that were made after the version"
        assert outcome.refused.startswith(reason if lost == "the file" else f"{segment} is damaged at byte ")
        assert bits(service) == before
    segment.write_bytes(whole)
    with running(tmp_path, **options) as service:
        assert make(service, service.restore_version("v")).refused is None
        assert labels_in_memory(service) == {1: "b", 3: "b", 4: "a"}


def test_changes_that_were_given_up_do_not_keep_a_version_from_being_restored(tmp_path: Path) -> None:
    with running(tmp_path, save_seconds=1e9) as service:
        send(service, 4)
        make(service, service.save_version("v"))
    log = Log(tmp_path / "log", 4, changes=1)
    log.append([Change(3, "forget", sample=2)])
    log.close()
    options: dict[str, Any] = {"keep_log": False, "save_seconds": 1e9}
    with running(tmp_path, set_aside_damage=True, **options) as service:
        assert service.wait_for_change(3).result(SECONDS)
    with running(tmp_path, **options) as service:
        assert make(service, service.restore_version("v")).refused is None
        assert labels_in_memory(service) == {1: "b", 3: "b", 4: "a"}


def test_a_version_of_a_model_that_was_given_no_sample_yet_is_restored(tmp_path: Path) -> None:
    """The changes after it stay in the log, although no sample keeps them there."""
    with running(tmp_path, keep_log=False) as service:
        make(service, service.save_version("v"))
        make(service, service.save_version("w"))
        make(service, service.drop_version("w"))
    with running(tmp_path, keep_log=False) as service:
        assert make(service, service.restore_version("v")).refused is None


def test_a_name_that_was_used_twice_is_replayed(tmp_path: Path) -> None:
    """From the log alone, while the folder has the second version of that name."""
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("v"))
        send(service, 4, first=5)
        make(service, service.restore_version("v"))
        make(service, service.drop_version("v"))
        make(service, service.save_version("v"))
    found = digest(Model.load(tmp_path, "cpu").learner)
    (tmp_path / FILE).unlink()
    with running(tmp_path) as service:
        assert service.wait_for_change(4).result(SECONDS)
        assert [version.number for version in service.versions] == [4]
    assert digest(Model.load(tmp_path, "cpu").learner) == found


def test_relearned_with_the_labels_as_they_are_now(tmp_path: Path) -> None:
    with running(tmp_path, keep_log=False, save_seconds=1e9) as service:
        send(service, 4)
        make(service, service.save_version("v"))
        for first in (5, 8):
            send(service, 3, first=first)
        service.trainer.between_steps(service.trainer.save).result(SECONDS)  # the log would go, but for the version
        make(service, service.forget(5))
        make(service, service.correct(6, "c"))
        make(service, service.restore_version("v", relearn=True))
        held = labels_in_memory(service)
        assert held == {n: "ab"[n % 2] for n in range(1, 11) if n != 5} | {6: "c"}
        last = bits(service)
    assert digest(relearned(tmp_path).learner) == last
    for segment in (tmp_path / "log").glob("*.log"):
        segment.unlink()
    with running(tmp_path, keep_log=False) as service:
        outcome = make(service, service.restore_version("v", relearn=True))
        assert outcome.refused == "6 samples that came after the version are no longer in the log."
        make(service, service.drop_version("v"))
    with running(tmp_path, keep_log=False, save_seconds=0.01) as service:
        send(service, 1, first=20)
    assert not list((tmp_path / "log").glob("*.log"))  # no version needs it any more


def test_what_waited_when_a_version_was_saved(tmp_path: Path) -> None:
    """Samples that were corrected and forgotten before the version, and learned after it."""
    with running(tmp_path) as service:
        send(service, 4)
        with held_up(service):
            send(service, 3, first=5, wait=False)
            for change in (service.correct(5, "c"), service.forget(6), service.save_version("v")):
                change.result(SECONDS)
        assert service.trainer.waiters.wait_for(7).result(SECONDS)
        assert service.versions[0].position == 4
        before = labels_in_memory(service)
        make(service, service.restore_version("v", relearn=True))
        assert labels_in_memory(service) == before == {1: "b", 2: "a", 3: "b", 4: "a", 5: "c", 7: "b"}
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


def test_pinned_while_learning_goes_on(tmp_path: Path) -> None:
    inputs = FORM.read(picture(40)[None])
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("v"))
        before = service.predictor.ask(inputs).result(SECONDS)
        make(service, service.pin_version("v"))
        send(service, 8, first=5)
        assert np.array_equal(service.predictor.ask(inputs).result(SECONDS).probabilities, before.probabilities)
        assert make(service, service.drop_version("v")).refused == "predictions are pinned to it."
    with running(tmp_path) as service:  # also after a restart
        assert service.pinned is not None
        assert service.predictor.ask(inputs).result(SECONDS).samples == 4
        make(service, service.pin_version(None))
        assert service.predictor.ask(inputs).result(SECONDS).samples == 12
        make(service, service.drop_version("v"))
        assert service.versions == ()
        refused(lambda: service.restore_version("v"), 404, "no version of this name")


def test_compared_on_a_held_out_set(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("v"))
        alone = service.held_out.compare()
        assert [(one.tested, one.correct) for one in alone] == [(0, 0), (0, 0)]
        inputs = FORM.read(np.stack([picture(40 * (n % 2), 500 + n) for n in range(10)]))
        labels = ["ab"[n % 2] for n in range(10)]
        service.held_out.put(inputs, labels)
        send(service, 20, first=5)
        version, now = service.held_out.compare()
        for one, model in ((version, Model.load(service.saved_versions.path(1), "cpu")), (now, service.model)):
            guesses = [model.labels[n] for n in model.probabilities(inputs).argmax(1)]
            assert (one.tested, one.correct) == (10, sum(a == b for a, b in zip(guesses, labels, strict=True)))
        counts = service.statistics.counts
        assert now.scored == (24, sum(counts.correct))
        assert version.scored.samples == 20
        assert service.held_out.compare()[0] == version
        service.held_out.path.write_bytes(b"no")
        with pytest.raises(OcilError, match="Send the held-out set again"):
            service.held_out.compare()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\0", "pinned", "compare", "x" * 65, "-a", "a b", "ä", "a\n", "%2e%2e"]
)
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    with running(tmp_path) as service:
        refused(lambda: service.save_version(name), 422, "a version's name has")


def test_limits_and_names(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(versions=2)) as service:
        send(service, 2)
        make(service, service.save_version("one", key="k"))
        assert service.save_version("one", key="k").result(SECONDS).repeated
        refused(lambda: service.save_version("one"), 409, "there is a version of this name")
        make(service, service.save_version("two"))
        refused(lambda: service.save_version("three"), 409, "there are 2 versions")
        make(service, service.drop_version("one"))
        make(service, service.save_version("one"))  # the name is free again
        assert [one.name for one in service.versions] == ["two", "one"]
    with running(tmp_path, limits=Limits(versions_bytes=1000)) as service:
        refused(lambda: service.save_version("more"), 409, "more than 1000 bytes")


def test_a_version_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise WriteError("No space left")

    with running(tmp_path) as service:
        send(service, 2)
        with monkeypatch.context() as patch:
            patch.setattr("ocil.serve.versions.write_bytes", full)
            refusal = make(service, service.save_version("v")).refused
        assert refusal == "the version could not be saved: No space left"
        assert service.versions == ()
        assert not list((tmp_path / "versions").iterdir())  # the model's file would take up space for good
        send(service, 2, first=3)
    with running(tmp_path) as service:
        assert service.versions == ()


def test_a_crash_in_the_middle_of_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint after the start: all is replayed, and a version that is there already is not saved again."""
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("v"))
        send(service, 3, first=5)
        make(service, service.restore_version("v", relearn=True))
        send(service, 3, first=8)
        last = bits(service)
        saved = (service.saved_versions.path(1) / FILE).read_bytes()
        monkeypatch.setattr(service.checkpoints, "save", lambda *_: None)
    with running(tmp_path) as service:
        assert service.trainer.waiters.wait_for(10).result(SECONDS)
        assert bits(service) == last
        assert (service.saved_versions.path(1) / FILE).read_bytes() == saved
    (path,) = (tmp_path / "versions").iterdir()
    (path / "version.json").unlink()  # as if it had died before
    (path / f".{FILE}.0123456789ab.tmp").touch()
    (tmp_path / FILE).unlink()
    with running(tmp_path) as service:
        assert service.trainer.waiters.wait_for(10).result(SECONDS)
        assert bits(service) == last
        assert [one.name for one in service.versions] == ["v"]
        assert not left_over(tmp_path)
        assert digest(Model.load(path, "cpu").learner) == digest(service.saved_versions.load(1, service.model).learner)


def test_versions_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "versions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OcilError, match="symbolic link"), running(tmp_path):
        pass


def test_a_backup_of_a_live_model(tmp_path: Path) -> None:
    """What waits when it is made is in it, and learned when it is restored."""
    folder, copy = tmp_path / "a", tmp_path / "b"
    with running(folder, keep_log=False) as service:
        send(service, 4)
        make(service, service.save_version("v"))
        service.held_out.put(FORM.read(picture(40)[None]), ["a"])
        with held_up(service):
            send(service, 3, first=5, wait=False)
        chunks = backup(service)
        first = next(chunks)
        send(service, 5, first=8)  # it goes on while the archive is read
        content = first + b"".join(chunks)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(copy, filter="data")
    with running(copy) as service:
        count = service.writer.acknowledged
        assert 7 <= count < 12
        assert service.trainer.waiters.wait_for(count).result(SECONDS)
        assert set(labels_in_memory(service)) == set(range(1, count + 1))
        assert [one.name for one in service.versions] == ["v"]
        assert service.held_out.compare()[0].tested == 1
        assert len(service.samples()) == count


def test_a_backup_knows_what_was_acknowledged_when_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that come later are not missing in it."""
    folder, copy = tmp_path / "a", tmp_path / "b"
    with running(folder) as service:
        save = service.checkpoints.save

        def save_while_a_sample_comes(note: Note) -> None:
            save(note)
            send(service, 1, first=5, wait=False)

        send(service, 4)
        with monkeypatch.context() as patch:
            patch.setattr(service.checkpoints, "save", save_while_a_sample_comes)
            chunks = backup(service)
        send(service, 5, first=6)
        content = b"".join(chunks)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(copy, filter="data")
    assert newest_file(copy / "log").exists()
    with running(copy) as service:
        assert service.writer.acknowledged == 5
    part = tmp_path / "c"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:  # of which the end did not arrive
        names = archive.getnames()
        first = next(number for number, name in enumerate(names) if name.startswith("log/"))
        archive.extractall(part, archive.getmembers()[:first], filter="data")
    with pytest.raises(OcilError, match="the newest file of the log, is missing"), running(part):
        pass


def test_a_backup_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as service:
        send(service, 4)

        def full(*_: Any) -> None:
            raise WriteError("No space left")

        with monkeypatch.context() as patch:
            patch.setattr(service.model, "save", full)
            with pytest.raises(RefusedError, match="No space left"):
                backup(service)


def test_a_backup_without_room_for_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(tmp_path) as service:
        send(service, 2)
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "TemporaryDirectory", full)
            with pytest.raises(RefusedError, match=r"samples.sqlite cannot be copied to .*No space left") as error:
                backup(service)
        assert error.value.status == 503
        send(service, 1, first=3)  # learning goes on


def test_a_backup_has_the_audit(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        Audit(tmp_path / AUDIT).write({"sample": 1})
        with tarfile.open(fileobj=io.BytesIO(b"".join(backup(service)))) as archive:
            found = archive.extractfile(AUDIT)
            assert found is not None
            assert found.read() == (tmp_path / AUDIT).read_bytes()


def test_a_backup_after_learning_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that was broken off is not saved. The last checkpoint and the log have all that was acknowledged."""
    folder, copy = tmp_path / "a", tmp_path / "b"
    with running(folder, save_seconds=1e9) as service:
        send(service, 4)
        learn = service.model.learn

        def broken(*what: Any) -> None:
            learn(*what)
            raise RuntimeError

        monkeypatch.setattr(service.model, "learn", broken)
        number = service.writer.submit(FORM.read(picture(90)[None]), ["c"]).result(SECONDS).last
        assert not service.trainer.waiters.wait_for(number).result(SECONDS)
        before = (folder / FILE).read_bytes()
        content = b"".join(backup(service))
        assert (folder / FILE).read_bytes() == before
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(copy, filter="data")
    with running(copy) as service:
        assert service.trainer.waiters.wait_for(number).result(SECONDS)
        assert service.statistics.samples == number


def test_the_end_of_the_log_is_gone(tmp_path: Path) -> None:
    """The list of samples shows that they are missing. A version's number is not given to another one."""
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("v"))
        send(service, 2, first=5)
    for segment in (tmp_path / "log").glob("*.log"):
        segment.write_bytes(b"")
    (tmp_path / FILE).unlink()
    with pytest.raises(OcilError, match="lists sample 6, but the model and its log end with 0"), running(tmp_path):
        pass
    with running(tmp_path, set_aside_damage=True) as service:
        assert service.samples() == []
        assert [one.scored.samples for one in service.held_out.compare()] == [0, 0]
        assert "has its number" in str(make(service, service.save_version("w")).refused)
        assert make(service, service.save_version("w")).refused is None
    with running(tmp_path) as service:
        assert [one.name for one in service.versions] == ["v", "w"]


@pytest.mark.parametrize("damage", ["no description", "no model", "bad model"])
def test_a_pinned_version_that_is_gone_is_not_replaced_silently(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("monday"))
        make(service, service.pin_version("monday"))
        place = service.saved_versions.path(service.versions[0].number)
    if damage == "no description":
        (place / DESCRIPTION).unlink()
    elif damage == "no model":
        (place / FILE).unlink()
    else:
        content = bytearray((place / FILE).read_bytes())
        content[-1] ^= 1
        (place / FILE).write_bytes(content)
    with pytest.raises(OcilError, match=r"pinned to the version in .* --set-aside-damage"), running(tmp_path):
        pass
    with running(tmp_path, set_aside_damage=True) as service:
        assert service.pinned is None
        assert "Predictions now come from the model that learns" in caplog.text
    with running(tmp_path) as service:
        assert service.pinned is None
        send(service, 1, first=5)


def test_a_damaged_description_of_a_version_says_how_to_go_on(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("monday"))
        place = service.saved_versions.path(service.versions[0].number)
        make(service, service.pin_version("monday"))
    (place / DESCRIPTION).write_bytes(b"{")
    with pytest.raises(OcilError, match="start with --set-aside-damage to go on without"), running(tmp_path):
        pass
    with running(tmp_path, set_aside_damage=True) as service:
        assert (service.versions, service.pinned) == ((), None)


def test_a_changed_description_of_a_version_is_not_used(tmp_path: Path) -> None:
    """Whatever number of it has changed: restoring the version would learn other samples again."""
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("monday"))
        path = service.saved_versions.path(service.versions[0].number) / DESCRIPTION
    written = json.loads(path.read_text())
    assert written["position"] == 4
    path.write_text(json.dumps({**written, "position": 5}))
    with pytest.raises(OcilError, match="which describes a version, is damaged"), running(tmp_path):
        pass
    path.write_text(json.dumps({**written, "schema": 3}))
    with pytest.raises(OcilError, match=r"is of a later version of ocil: .*\. Update ocil\."), running(tmp_path):
        pass
    former = {name: value for name, value in written.items() if name not in ("schema", "checksum")}
    path.write_text(json.dumps(former))
    with running(tmp_path) as service:
        assert service.versions[0].position == 4


def test_a_lost_model_is_learned_again_beside_its_versions(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, 4)
        make(service, service.save_version("monday"))
        service.held_out.put(FORM.read(picture(40)[None]), ["a"])
        send(service, 2, first=5)
    found = digest(Model.load(tmp_path, "cpu").learner)
    (tmp_path / FILE).unlink()
    with pytest.raises(OcilError, match="name a method"):
        check_folder(tmp_path, new=False)
    check_folder(tmp_path, new=True)  # the command with a method begins here
    with running(tmp_path) as service:
        assert service.trainer.waiters.wait_for(6).result(SECONDS)
        assert [one.name for one in service.versions] == ["monday"]
    assert digest(Model.load(tmp_path, "cpu").learner) == found
