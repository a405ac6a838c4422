"""The service behind ``ocil serve``: what it acknowledges it learns, in order, once, and predicts meanwhile."""

import asyncio
import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ocil.errors import OcilError, WriteError
from ocil.methods import METHODS
from ocil.online.images import ImageFormat
from ocil.online.model import FILE, Model, Recipe, has_model
from ocil.online.vectors import VectorFormat
from ocil.runs.environment import digest
from ocil.serve.futures import Waiters
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.metrics import Metrics
from ocil.serve.predictor import Prediction
from ocil.serve.records import Change, Cut, Record, SampleRecord
from ocil.serve.service import Service
from ocil.serve.snapshot import Snapshots
from ocil.serve.statistics import UNKNOWN, WINDOW, Counts
from ocil.serve.writer import Receipt
from tests.conftest import Call, one_error
from tests.networks_to_try import TINY
from tests.serving import FORM, RECIPE, SECONDS, batches_of, picture, relearned, running

pytestmark = pytest.mark.usefixtures("quick_convolution")


def pixels(*brightness: int) -> np.ndarray:
    return FORM.read(np.stack([picture(value, number) for number, value in enumerate(brightness)]))


def send(service: Service, *labels: Any, key: str | None = None, start: int = 0) -> Receipt:
    """Samples whose brightness follows from their label's place in the alphabet."""
    known = sorted(set(map(str, labels)))
    x = pixels(*((start + 37 * known.index(str(label))) % 200 for label in labels))
    return service.writer.submit(x, labels, key, digest=f"{labels}{start}").result(SECONDS)


def wait_for(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def settle(service: Service) -> None:
    assert service.trainer.waiters.wait_for(service.writer.acknowledged).result(SECONDS)


def state(folder: Path) -> tuple[Any, ...]:
    model = Model.load(folder, "cpu")
    note = model.note["serve"]
    return digest(model.learner), model.labels, model.samples, model.batches, note["counts"], note["position"]


def test_samples_are_numbered_learned_in_order_and_counted(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        assert (send(service, "a", "b").first, send(service, "a").last) == (1, 3)
        settle(service)
        receipt = send(service, "c", "a", "b", "c", "a", "b")
        assert (receipt.first, receipt.last, receipt.repeated) == (4, 9, False)
        settle(service)
        now = service.statistics
        assert (now.position, now.samples, now.labels) == (9, 9, ("a", "b", "c"))
        assert now.counts.learned == [4, 3, 2]
        assert sum(now.stored) == 9
    batches = batches_of(tmp_path)
    assert [number for batch in batches for number, _, _ in batch] == list(range(1, 10))
    assert max(len(batch) for batch in batches) == 4
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


def test_counts_are_of_predictions_made_before_learning(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        for _ in range(6):
            send(service, "a", "b", "a")
            settle(service)
        counts = service.statistics.counts
    model, correct, scored = Model(RECIPE, FORM), 0, 0
    for batch in batches_of(tmp_path):
        x, labels = np.stack([one for _, _, one in batch]), [label for _, label, _ in batch]
        if model.labels:
            best = model.probabilities(x).argmax(1)
            correct += sum(model.labels[b] == label for b, label in zip(best, labels, strict=True))
        scored += len(labels)
        model.learn(x, labels)
    assert (sum(counts.learned), sum(counts.correct)) == (scored, correct)
    assert counts.accuracy == correct / scored


def test_under_load_batches_fill_up_and_alone_a_sample_is_learned_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        gate = threading.Event()
        learn = service.model.learn
        service.model.learn = lambda *what: (gate.wait(SECONDS), learn(*what))[1]
        for number in range(9):
            send(service, "ab"[number % 2], start=number)
        assert (service.backlog, service.trainer.position) == (9, 0)  # acknowledged, though no step is done
        gate.set()
        settle(service)
        send(service, "a")
        settle(service)
    assert [len(batch) for batch in batches_of(tmp_path)] in ([1, 4, 4, 1], [2, 4, 3, 1], [3, 4, 2, 1], [4, 4, 1, 1])


def test_predictions_do_not_wait_for_a_step_and_never_see_half_of_one(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, "a", "b", "c")
        settle(service)
        before = service.predictor.ask(pixels(0, 90)).result(SECONDS)
        inside, gate = threading.Event(), threading.Event()
        learn = service.model.learner.learn

        def half(x: Any, y: Any) -> None:
            learn(x, y)
            for weight in service.model.learner.parameters():
                weight.data.mul_(1.5)
            inside.set()
            gate.wait(SECONDS)

        service.model.learner.learn = half
        send(service, "d", "e", "f")
        assert inside.wait(SECONDS)
        during = service.predictor.ask(pixels(0, 90)).result(SECONDS)
        assert during.labels == before.labels == ("a", "b", "c")
        assert during.samples == before.samples == 3
        assert np.array_equal(during.probabilities, before.probabilities)
        gate.set()
        settle(service)
        after = service.predictor.ask(pixels(0, 90)).result(SECONDS)
        assert after.labels == ("a", "b", "c", "d", "e", "f")
        assert not np.array_equal(after.probabilities[:, :3], before.probabilities)


def test_a_snapshot_stays_what_it_is_while_it_is_read(tmp_path: Path) -> None:
    model = Model(RECIPE, FORM)
    model.learn(pixels(0, 100), ["a", "b"])
    snapshots = Snapshots(model)
    x = pixels(10, 50, 100)
    with snapshots.reading() as snapshot:
        before = snapshot.probabilities(x)
        for number in range(20):  # beyond the first capacity: what is kept by class is allocated anew
            model.learn(pixels(number, 100), [f"new {number}", "b"])
            newest = snapshots.publish(x)
            assert np.array_equal(newest.probabilities(x), model.probabilities(x))
            assert len(newest.labels) == 3 + number
            assert np.array_equal(snapshot.probabilities(x), before)
        assert snapshot.labels == ("a", "b")
    assert len(snapshots._copies) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(set(METHODS) - {"iid-offline"}))
def test_every_method_can_be_served(tmp_path: Path, method: str) -> None:
    settings = {"network": TINY} | {"ranpac": {"projection": 30}, "rar": {"repeats": 2}}.get(method, {})
    recipe = Recipe(method, memory=12, batch_size=6, review_every=3, settings=settings)
    with running(tmp_path, recipe) as service:
        for number in range(4):
            send(service, *"abcdef"[: 2 + number], *"ab", start=number)
            settle(service)
        x = pixels(0, 60, 120)
        found = service.predictor.ask(x).result(SECONDS)
        assert service.failed is None
        assert np.allclose(found.probabilities, service.model.probabilities(x))
        assert np.allclose(found.probabilities.sum(1), 1)
        assert len(found.labels) == 5
    assert digest(Model.load(tmp_path, "cpu", trust=True).learner) == digest(relearned(tmp_path, recipe).learner)


@pytest.mark.parametrize("method", ["er", "scr", "aaer"])
def test_a_new_model_whose_first_request_makes_several_batches(tmp_path: Path, method: str) -> None:
    """A snapshot that is expensive to make is made after the first of them: the next one is predicted by it."""
    with running(tmp_path, Recipe(method, memory=12, width=1, batch_size=2)) as service:
        send(service, *"abcde")
        settle(service)
        assert service.failed is None
        assert service.statistics.batches == 3
        assert sum(service.statistics.counts.learned) == 5


@pytest.mark.slow
@pytest.mark.parametrize(("method", "published"), [("er", 26), ("scr", 4)])
def test_snapshots_that_are_expensive_are_made_now_and_then(tmp_path: Path, method: str, published: int) -> None:
    """While batches wait; the last one is always seen."""
    with running(tmp_path, Recipe(method, memory=12, width=1, batch_size=2)) as service:
        send(service, "a", "b")
        settle(service)
        gate, count = threading.Event(), 0
        learn, publish = service.model.learn, service.trainer.snapshots.publish
        service.model.learn = lambda *what: (gate.wait(SECONDS), learn(*what))[1]

        def counted(probe: Any) -> Any:
            nonlocal count
            count += 1
            return publish(probe)

        service.trainer.snapshots.publish = counted
        send(service, "a", "b")
        for number in range(25):
            send(service, "a", "b", start=number)
        gate.set()
        settle(service)
        assert count <= published
        assert count >= published - 1
        assert service.predictor.ask(pixels(0)).result(SECONDS).samples == 54
    with running(tmp_path, keep_log=False) as service:
        assert service.predictor.ask(pixels(0)).result(SECONDS).samples == 54


def test_a_restart_goes_on_as_if_there_had_been_none(tmp_path: Path) -> None:
    for _ in range(3):
        with running(tmp_path) as service:
            send(service, "a", "b", "c", "a", "b")
            settle(service)
            send(service, "a", "c")
    with running(tmp_path) as service:
        assert service.trainer.position == service.writer.acknowledged == 21
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


@pytest.mark.slow
def test_a_machine_that_stops_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """Copies of the folder, as a power cut would leave it, taken while it works; checkpoints come all the time."""
    copies, acknowledged, stop = [], [], threading.Event()
    with running(tmp_path / "live", save_seconds=0.01) as service:

        def feed() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                acknowledged.append(send(service, "abc"[number % 3], start=number).last)
                time.sleep(0.005)

        feeder = threading.Thread(target=feed)
        feeder.start()
        for number in range(4):
            time.sleep(0.15)
            reached, copy = acknowledged[-1] if acknowledged else 0, tmp_path / str(number)
            copy.mkdir()
            if number % 2:  # the model first, as the log may only be newer
                shutil.copy(tmp_path / "live" / FILE, copy / FILE)
            shutil.copytree(tmp_path / "live" / "log", copy / "log")
            copies.append((copy, reached))
        stop.set()
        feeder.join()
    for copy, reached in copies:
        with running(copy) as service:
            settle(service)
            assert service.trainer.position >= reached
        assert digest(Model.load(copy, "cpu").learner) == digest(relearned(copy).learner)
    assert acknowledged == list(range(1, len(acknowledged) + 1))


def test_without_keep_log_a_clean_stop_leaves_no_log(tmp_path: Path) -> None:
    with running(tmp_path, keep_log=False) as service:
        for number in range(5):
            send(service, "a", "b", start=number)
        settle(service)
    assert list((tmp_path / "log").iterdir()) == []
    before = state(tmp_path)
    with running(tmp_path, keep_log=False) as service:
        assert service.trainer.position == 10
        assert send(service, "c").first == 11
    assert state(tmp_path)[2] == before[2] + 1


def test_a_kept_log_makes_the_model_again(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        for number in range(6):
            send(service, "a", "b", "c", start=number)
        settle(service)
    before = state(tmp_path)
    (tmp_path / FILE).unlink()
    with running(tmp_path) as service:
        settle(service)
    assert state(tmp_path) == before


def test_what_is_not_learned_when_it_stops_is_learned_after_the_start(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, "a", "b")
        settle(service)
        learn = service.model.learn
        service.model.learn = lambda *what: (wait_for(lambda: service.trainer._stopping), learn(*what))[1]
        for number in range(10):
            send(service, "a", "b", "c", "d", start=number)
        service.close(finish_seconds=0)
        assert service.backlog >= 36  # at most the batch that it was learning
    with running(tmp_path) as service:
        settle(service)
        assert service.trainer.position == 42
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


def test_the_work_of_a_replay_grows_with_the_log_alone(tmp_path: Path) -> None:
    """Not with the samples that wait at each cut or change."""
    compared = 0

    class Counted(int):
        def __ge__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) >= other

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    inputs, most = pixels(0), 400
    records: list[Record] = [SampleRecord(number, ("a",), inputs) for number in range(1, most + 1)]
    records += [Change(n, "correct", sample=Counted(most + 1 - n), label="b") for n in range(1, most + 1)]
    records += [Cut(Counted(last), most) for last in range(4, most + 1, 4)]
    service = Service(Model(RECIPE, FORM), tmp_path)
    trainer = service.trainer
    service.log.replay = lambda: iter(records)
    batches = []
    for item in trainer._replay_log():
        if isinstance(item, Change):
            assert trainer._change_waiting(item)
        else:
            batches.append(item)
    service.close()
    assert [[sample.number for sample in batch] for batch in batches] == [
        list(range(last - 3, last + 1)) for last in range(4, most + 1, 4)
    ]
    assert {sample.label for batch in batches for sample in batch} == {"b"}
    assert compared < 5 * most


def test_a_request_that_is_being_written_when_it_stops_is_acknowledged_and_learned(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        append = service.log.append
        service.log.append = lambda *what, **how: (time.sleep(0.2), append(*what, **how))[1]
        receipts = [service.writer.submit(pixels(number), ["a"]) for number in range(3)]
        service.close(SECONDS)
        assert [receipt.result(0).first for receipt in receipts] == [1, 2, 3]
        assert service.backlog == 0
    assert Model.load(tmp_path, "cpu").samples == 3


def test_waiters_are_answered_once_their_sample_is_learned_or_nobody_may_wait() -> None:
    waiters = Waiters(3)
    assert waiters.wait_for(3).result(0) is True
    five, gone, four = waiters.wait_for(5), waiters.wait_for(4), waiters.wait_for(4)
    gone.cancel()
    waiters.advance(4)
    assert four.result(0) is True
    assert not five.done()
    waiters.close()
    assert five.result(0) is False
    assert waiters.wait_for(5).result(0) is False
    waiters.advance(5)
    assert waiters.wait_for(5).result(0) is True


def test_a_key_is_learned_once_also_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        assert send(service, "a", "b", key="one") == Receipt(1, 2)
        assert send(service, "a", "b", key="one") == Receipt(1, 2, repeated=True)
        assert send(service, "a", "b", key="two").first == 3
        with pytest.raises(RefusedError, match="another request"):
            send(service, "a", "c", key="one")
    for keep_log in (True, False, False):  # from the log, then from the model alone
        with running(tmp_path, keep_log=keep_log) as service:
            assert send(service, "a", "b", key="one") == Receipt(1, 2, repeated=True)
            settle(service)
            assert service.statistics.samples == 4


def test_requests_of_one_key_at_once_are_one(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        found: list[Receipt] = []
        start = threading.Barrier(8)

        def ask() -> None:
            start.wait()
            found.append(send(service, "a", "b", "c", key="same"))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {(receipt.first, receipt.last) for receipt in found} == {(1, 3)}
        assert sum(not receipt.repeated for receipt in found) == 1
        assert service.writer.acknowledged == 3


def test_only_so_many_keys_are_remembered(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(keys=3)) as service:
        for key in "vwxyz":
            send(service, "a", key=key)
        assert list(service.writer.keys.copy()) == ["x", "y", "z"]


def test_a_full_line_is_refused_with_a_time_to_come_back(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(queue=6, batch=6)) as service:
        gate = threading.Event()
        learn = service.model.learn
        service.model.learn = lambda *what: (gate.wait(SECONDS), learn(*what))[1]
        send(service, *"abcd")
        with pytest.raises(RefusedError, match="4 samples wait") as caught:
            send(service, *"abc")
        assert caught.value.status == 429
        assert caught.value.retry_after is not None
        assert 1 <= caught.value.retry_after <= 60
        send(service, *"ab")
        gate.set()
        settle(service)
        assert send(service, *"abc").last == 9


def test_too_many_classes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(classes=3)) as service:
        send(service, "a", "b")
        with pytest.raises(RefusedError, match="more than 3 classes") as caught:
            send(service, "c", "d")
        assert caught.value.status == 422
        send(service, "c", "a")
        assert service.writer.acknowledged == 4
    with running(tmp_path, limits=Limits(classes=1)) as service:  # what it has it keeps
        send(service, "c", "a")
        with pytest.raises(RefusedError, match="more than 1 classes"):
            send(service, "a", "d")


def test_no_sample_is_taken_for_a_new_model_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later start could not know the method to learn the log with."""

    def full(*_: Any) -> None:
        raise WriteError("the disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(Model, "save", full)
        with pytest.raises(WriteError, match="could not be saved: the disk is full"), running(tmp_path):
            pass
    assert not has_model(tmp_path)
    with running(tmp_path) as service:
        send(service, "a")


@pytest.mark.parametrize("seconds", [float("inf"), 1e12])
def test_saving_only_in_the_end(tmp_path: Path, seconds: float) -> None:
    with running(tmp_path, save_seconds=seconds) as service:
        time.sleep(0.05)  # the learner waits by now
        send(service, "a")
        settle(service)
    assert Model.load(tmp_path, "cpu").samples == 1


def test_those_who_wait_are_answered_before_it_stops(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        gate, learn = threading.Event(), service.model.learn
        service.model.learn = lambda *what: (gate.wait(SECONDS), learn(*what))[1]
        receipt = send(service, "a")
        waits = service.trainer.waiters.wait_for(receipt.last)
        service.trainer.waiters.close()
        assert waits.result(SECONDS) is False
        assert service.trainer.waiters.wait_for(receipt.last).result(0) is False
        gate.set()
    assert Model.load(tmp_path, "cpu").samples == 1


def test_a_full_disk_acknowledges_nothing_and_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, limits=Limits(classes=3), save_seconds=1000) as service:
        send(service, "a")
        settle(service)
        real = os.write

        def full(descriptor: int, content: Any) -> int:
            if len(content) > 5:
                real(descriptor, bytes(content)[:5])
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, content)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(RefusedError, match=r"nothing was learned.*No space left") as caught:
                send(service, "b", key="k")
            assert caught.value.status == 503
            assert service.predictor.ask(pixels(0)).result(SECONDS).samples == 1
        assert service.backlog == 0
        assert send(service, "c", "d", key="k") == Receipt(2, 2)  # b took no place, nor did its key
        settle(service)
        assert service.statistics.labels == ("a", "c", "d")
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


def test_a_failed_sync_is_logged_once_and_shown_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing waits to be learned, so that the learning thread notices nothing."""

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def gauge(service: Service) -> float:
        return {name: value for name, _, value in service.gauges()}["ocil_learning_failed"]

    with running(tmp_path, save_seconds=1000) as service:
        send(service, "a")
        settle(service)
        assert gauge(service) == 0
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(RefusedError, match="Input/output error"):
                send(service, "b")
        with pytest.raises(RefusedError, match="learning has stopped"):
            send(service, "b")
        assert gauge(service) == 1
        assert caplog.text.count("requests are refused: cannot write to log: Input/output error") == 1
    with running(tmp_path) as service:
        assert gauge(service) == 0
        assert send(service, "b").first == 2


def test_learning_waits_while_a_cut_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocil.serve.trainer.RETRY_SECONDS", 0.01)
    with running(tmp_path) as service:
        append, full = service.log.append, True

        def sometimes(records: Any, sync: bool = True) -> None:
            if full and not sync:
                raise WriteError("No space left on device.")
            append(records, sync)

        service.log.append = sometimes
        send(service, "a", "b")
        wait_for(lambda: service.problem is not None)
        assert service.problem is not None
        assert service.problem.startswith("learning waits")
        assert (service.trainer.position, service.failed) == (0, None)
        full = False
        settle(service)
        assert service.problem is None


def test_a_model_that_cannot_be_saved_is_saved_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, save_seconds=0.01, keep_log=False) as service:
        save = service.model.save

        def full(folder: Any) -> None:
            raise WriteError("cannot write: No space left on device.")

        service.model.save = full
        send(service, "a", "b")
        settle(service)
        wait_for(lambda: service.problem is not None)
        assert service.problem is not None
        assert "could not be saved" in service.problem
        assert len(service.log.segments()) == 1
        service.model.save = save
        send(service, "a")
        settle(service)
    assert service.problem is None
    assert Model.load(tmp_path, "cpu").samples == 3


def test_a_save_that_fails_is_not_tried_after_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not when more batches were learned since than there may be between two checkpoints."""
    monkeypatch.setattr("ocil.serve.checkpoints.MOST_BATCHES", 3)
    tried: list[int] = []
    with running(tmp_path, save_seconds=1000) as service:

        def full(folder: Any) -> None:
            tried.append(service.model.batches)
            raise WriteError("cannot write: No space left on device.")

        save, service.model.save = service.model.save, full
        for label in "abcdefgh":
            send(service, label)
            settle(service)
        service.trainer.between_steps(lambda: None).result(SECONDS)
        assert tried == [3, 6]
        service.model.save = save


def test_a_model_that_the_memory_is_too_small_to_save_is_saved_later(tmp_path: Path) -> None:
    with running(tmp_path, save_seconds=0.01) as service:
        save = service.model.save

        def too_large(folder: Any) -> None:
            raise MemoryError

        service.model.save = too_large
        send(service, "a")
        wait_for(lambda: service.problem is not None)
        assert (service.problem, service.failed) == ("the model could not be saved: MemoryError", None)
        service.model.save = save
        wait_for(lambda: service.problem is None)


def test_a_log_that_cannot_be_deleted_is_deleted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is saved, and no other request comes."""

    def failing(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with running(tmp_path, save_seconds=0.01, keep_log=False) as service:
        with monkeypatch.context() as patch:
            patch.setattr(service.log, "delete_covered_segments", failing)
            send(service, "a")
            wait_for(lambda: service.problem is not None)
            assert "the log of what the saved model has learned could not be deleted: " in str(service.problem)
            assert service.checkpoints.position == 1
        wait_for(lambda: service.problem is None)
        assert not service.log.segments()


@pytest.mark.parametrize("lr", [1e30, 1e6])
def test_a_loss_that_is_not_finite_stops_learning_alone(tmp_path: Path, lr: float) -> None:
    recipe = Recipe("er", memory=20, width=1, batch_size=4, settings={"lr": lr})
    with running(tmp_path, recipe) as service:
        for number in range(40):
            try:
                last = send(service, "a", "b", start=number).last
            except RefusedError as error:
                refused = error
                break
            service.trainer.waiters.wait_for(last).result(SECONDS)
        assert refused.status == 503
        assert "learning has stopped" in str(refused)
        assert "finite" in str(refused)
        assert not service.trainer.waiters.wait_for(last).result(SECONDS)
        assert np.isfinite(service.predictor.ask(pixels(0)).result(SECONDS).probabilities).all()
        position = service.trainer.position
    assert Model.load(tmp_path, "cpu").samples == 0  # nothing of it was saved
    with running(tmp_path, recipe) as service:  # the same samples, the same end
        assert not service.trainer.waiters.wait_for(last).result(SECONDS)
        assert service.trainer.position == position
        assert service.failed


@pytest.mark.parametrize("save_seconds", [0.0, 1000.0])
def test_learning_goes_on_without_a_sample_that_stops_it(tmp_path: Path, save_seconds: float) -> None:
    """The model is the one that never got it, also if it is learned anew from the log."""
    recipe, form, noise = Recipe("er", memory=20, batch_size=4), VectorFormat(6), np.random.default_rng(0)
    good = noise.normal(size=(7, 6)).astype(np.float32)
    broken = np.stack([good[3], np.full(6, 3e38, np.float32), good[4]])
    plain = Model(recipe, form)
    for inputs, labels in ((good[:3], "aba"), (good[3:5], "bb"), (good[5:], "ab")):
        plain.learn(inputs, list(labels))

    def learn(service: Service, inputs: np.ndarray, labels: str) -> bool:
        last = service.writer.submit(inputs, list(labels)).result(SECONDS).last
        return service.trainer.waiters.wait_for(last).result(SECONDS)

    with running(tmp_path, recipe, form, save_seconds=save_seconds) as service:
        assert learn(service, good[:3], "aba")
        assert not learn(service, broken, "bcb")
        assert "samples 4 to 6" in str(service.failed)
        with pytest.raises(RefusedError, match="learning has stopped"):
            service.forget(2)  # it is learned, and not to blame
        with pytest.raises(RefusedError, match="no sample"):
            service.forget(7)
        first = service.forget(5, key="once").result(SECONDS)
        assert service.forget(5, key="once").result(SECONDS) == replace(first, repeated=True)
        assert service.sample(5).forgotten
        assert not service.wait_for_change(first.first).result(SECONDS)  # the next start makes it
    with running(tmp_path, recipe, form, save_seconds=save_seconds) as service:
        assert service.wait_for_change(first.first).result(SECONDS)
        assert learn(service, good[5:], "ab")
        assert service.failed is None
        assert service.statistics.labels == ("a", "b")  # no class of it alone
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(plain.learner)
    (tmp_path / FILE).unlink()
    with running(tmp_path, recipe, form) as service:
        settle(service)
        assert service.failed is None
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(plain.learner)


def test_a_restore_that_waits_does_not_learn_what_stopped_learning(tmp_path: Path) -> None:
    """It was accepted while the batch was learned, and the sample was forgotten after that."""
    recipe, form = Recipe("er", memory=20, batch_size=4), VectorFormat(6)
    good = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    with running(tmp_path, recipe, form) as service:
        service.writer.submit(good, ["a", "b"]).result(SECONDS)
        settle(service)
        assert service.wait_for_change(service.save_version("sound").result(SECONDS).first).result(SECONDS)
        gate, learn = threading.Event(), service.model.learn
        service.model.learn = lambda *what: (gate.wait(SECONDS), learn(*what))[1]
        service.writer.submit(np.full((2, 6), 3e38, np.float32), ["a", "b"]).result(SECONDS)
        service.restore_version("sound", relearn=True).result(SECONDS)
        gate.set()
        wait_for(lambda: service.failed is not None)
        last = [service.forget(number).result(SECONDS).first for number in (3, 4)][-1]
    with running(tmp_path, recipe, form) as service:
        assert service.wait_for_change(last).result(SECONDS)
        assert service.failed is None
    assert Model.load(tmp_path, "cpu").samples == 2


def test_an_unexpected_error_stops_learning_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as service:
        send(service, "a", "b")
        settle(service)

        def broken(*_: Any) -> None:
            raise RuntimeError("boom")

        service.model.learn = broken  # type: ignore[assignment]
        assert not service.trainer.waiters.wait_for(send(service, "c").last).result(SECONDS)
        assert service.failed == "RuntimeError while learning."
        assert "boom" in caplog.text
        assert service.predictor.ask(pixels(0)).result(SECONDS).samples == 2
        assert service.stored(2, 0, 10, 20).result(SECONDS).samples == 2
    assert Model.load(tmp_path, "cpu").samples == 0
    with running(tmp_path) as service:  # it was acknowledged
        settle(service)
        assert service.statistics.samples == 3


@pytest.mark.parametrize(
    ("part", "method", "thread", "reason"),
    [
        ("trainer", "_run_calls", "ocil-learn", "learning has stopped"),
        ("writer", "_acknowledge", "ocil-write", "learning has stopped"),
        ("predictor", "_predicted", "ocil-predict", "predicting has stopped"),
    ],
)
def test_a_thread_that_breaks_says_so_and_leaves_nobody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str, method: str, thread: str, reason: str
) -> None:
    pytest.importorskip("fastapi")
    from ocil.serve.health import not_ready

    def broken(*_: Any) -> None:
        raise KeyError("boom")

    with running(tmp_path) as service:
        send(service, "a")
        settle(service)
        assert not_ready([service]) is None
        setattr(getattr(service, part), method, broken)
        asks: dict[str, list[Callable[[], Future[Any]]]] = {
            "trainer": [lambda: service.stored(1, 0, 1, 1), lambda: service.writer.submit(pixels(0), ["b"])],
            "writer": [lambda: service.writer.submit(pixels(0), ["b"]), service.review],
            "predictor": [lambda: service.predictor.ask(pixels(0))],
        }
        message = f"KeyError has ended the thread {thread}. Restart the service."
        for ask in asks[part] * 2:  # while it breaks, and after that
            with pytest.raises(RefusedError, match=message) as refused:
                ask().result(SECONDS)
            assert refused.value.status == 503
        assert service.problem == message
        assert not_ready([service]) == reason
        assert "boom" in caplog.text
    with running(tmp_path) as service:
        settle(service)
        assert service.statistics.samples == (2 if part == "writer" else 1)  # it was in the log


def test_the_memory_is_shown_between_two_steps(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, "a", "b", "a", "c")
        settle(service)
        found = service.stored(per_class=1, first=0, count=2, most=9).result(SECONDS)
        assert [(label, stored, len(images)) for label, stored, images in found.classes] == [("a", 2, 1), ("b", 1, 1)]
        sent = {sample.tobytes() for batch in batches_of(tmp_path) for _, label, sample in batch if label == "a"}
        assert found.classes[0][2][0].tobytes() in sent
        assert service.stored(per_class=1, first=2, count=9, most=9).result(SECONDS).classes[0][0] == "c"
        for most, shown in ((0, [0, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (6, [2, 1, 1])):
            found = service.stored(per_class=9, first=0, count=9, most=most).result(SECONDS)
            assert [len(images) for _, _, images in found.classes] == shown


def test_nothing_is_taken_once_it_stops(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        service.close()
        for ask in (
            lambda: send(service, "a"),
            lambda: service.predictor.ask(pixels(0)),
            lambda: service.stored(1, 0, 1, 1),
        ):
            with pytest.raises(RefusedError, match="stopping"):
                ask()


def test_predictions_have_a_limit_too(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(predictions=3, batch=3)) as service:
        gate = threading.Event()
        newest = service.trainer.snapshots.newest
        real = newest.probabilities
        object.__setattr__(newest, "probabilities", lambda x: (gate.wait(SECONDS), real(x))[1])
        waiting: list[Future[Any]] = [service.predictor.ask(pixels(0, 1)), service.predictor.ask(pixels(2))]
        with pytest.raises(RefusedError, match="3 inputs wait") as caught:
            service.predictor.ask(pixels(3))
        assert (caught.value.status, caught.value.retry_after) == (429, 1)
        gate.set()
        assert [len(one.result(SECONDS).probabilities) for one in waiting] == [2, 1]


def test_an_event_loop_is_woken_once_for_all_that_was_predicted_together(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, "a")
        settle(service)
        gate, woken = threading.Event(), list[Any]()
        newest = service.trainer.snapshots.newest
        real = newest.probabilities
        object.__setattr__(newest, "probabilities", lambda x: (gate.wait(SECONDS), real(x))[1])

        async def ask() -> list[Prediction]:
            loop = asyncio.get_running_loop()
            wake = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *call: (woken.append(call), wake(*call))[1]
            first = asyncio.ensure_future(service.predictor.predict(pixels(0)))
            while service.predictor._questions or not service.predictor.waiting:
                await asyncio.sleep(0.01)
            others = [asyncio.ensure_future(service.predictor.predict(pixels(n, n))) for n in range(1, 5)]
            await asyncio.sleep(0)
            others[3].cancel()  # its client went away
            gate.set()
            return [await first, *[await one for one in others[:3]]]

        found = asyncio.run(ask())
        assert [len(one.probabilities) for one in found] == [1, 2, 2, 2]
        assert len(woken) == 2


def test_the_learning_thread_is_nicer_than_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for less niceness than the process has is refused to most users, and would end learning."""
    monkeypatch.setattr("sys.platform", "linux")
    set_to: list[int] = []
    monkeypatch.setattr("os.getpriority", lambda *_: 17, raising=False)
    monkeypatch.setattr("os.setpriority", lambda _kind, _who, value: set_to.append(value), raising=False)
    with running(tmp_path) as service:
        send(service, "a")
        settle(service)
    assert set_to == [19]


def test_it_learns_where_no_priority_may_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.setpriority", forbidden, raising=False)
    monkeypatch.setattr("os.getpriority", lambda *_: 0, raising=False)
    with running(tmp_path) as service:
        send(service, "a")
        settle(service)


def test_limits_are_checked() -> None:
    with pytest.raises(OcilError, match="classes = 0 must be more than 0"):
        Limits(classes=0)
    with pytest.raises(OcilError, match="queue = 5 must not be below batch = 64"):
        Limits(queue=5)


def test_bias_compares_how_often_new_classes_occur_and_are_predicted() -> None:
    counts = Counts()
    counts.add([0, 1, 2, 3], [UNKNOWN] * 4, known=0)
    assert counts.bias(4) is None  # nothing was known
    counts.add([0, 0, 1, 1, 2, 3, 3, 3], [3, 0, 3, 2, 2, 3, 3, 1], known=4)
    bias = counts.bias(4)
    assert bias is not None
    assert (bias.scored, bias.new_classes, bias.occur, bias.predicted) == (8, 2, 4 / 8, 6 / 8)
    assert (bias.accuracy_old, bias.accuracy_new) == (1 / 4, 3 / 4)
    assert counts.accuracy == 4 / 12
    assert counts.recent_accuracy == 4 / 12
    assert Counts.from_json(json.loads(json.dumps(counts.to_json())), classes=4) == counts
    counts.add([0] * WINDOW, [0] * WINDOW, known=4)
    assert counts.recent_accuracy == 1
    assert counts.bias(1) is None


def test_metrics_escape_labels_and_add_up() -> None:
    metrics, other = Metrics(), Metrics()  # each counts for itself
    metrics.add_gauges(lambda: [("g", "Is.", 1.5)])
    metrics.requests.labels('a"b\\c\nd', "200").inc()
    metrics.requests.labels("x", "200").inc(2)
    for seconds in (0.0001, 0.001, 0.3, 99.0):
        metrics.step_seconds.observe(seconds)
    lines = metrics.text().decode().splitlines()
    at = lines.index("# HELP g Is.")
    assert lines[at : at + 3] == ["# HELP g Is.", "# TYPE g gauge", "g 1.5"]
    assert 'ocil_requests_total{path="a\\"b\\\\c\\nd",status="200"} 1.0' in lines
    assert 'ocil_requests_total{path="x",status="200"} 2.0' in lines
    assert 'ocil_step_seconds_bucket{le="0.001"} 2.0' in lines
    assert 'ocil_step_seconds_bucket{le="0.5"} 3.0' in lines
    assert 'ocil_step_seconds_bucket{le="+Inf"} 4.0' in lines
    assert "ocil_step_seconds_count 4.0" in lines
    assert "ocil_step_seconds_count 0.0" in other.text().decode().splitlines()
    assert not any("_created" in line for line in lines)


METRICS = {
    "ocil_model_samples": "gauge",
    "ocil_model_batches": "gauge",
    "ocil_samples_learned": "gauge",
    "ocil_classes": "gauge",
    "ocil_queue_samples": "gauge",
    "ocil_predict_queue_images": "gauge",
    "ocil_memory_images": "gauge",
    "ocil_samples_scored": "gauge",
    "ocil_samples_correct": "gauge",
    "ocil_learning_failed": "gauge",
    "ocil_unsaved_samples": "gauge",
    "ocil_samples_acknowledged": "counter",  # the text has _total behind it
    "ocil_images_predicted": "counter",
    "ocil_requests": "counter",
    "ocil_request_seconds": "histogram",
    "ocil_step_seconds": "histogram",
    "ocil_log_write_seconds": "histogram",
    "ocil_checkpoint_seconds": "histogram",
}


def test_every_metric_has_its_name_and_kind(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, "a", "b")
        settle(service)
        service.predictor.ask(pixels(0)).result(SECONDS)
        found = list(text_string_to_metric_families(service.metrics.text().decode()))
    assert {family.name: family.type for family in found} == METRICS
    values = {sample.name: sample.value for family in found for sample in family.samples if not sample.labels}
    assert values["ocil_samples_acknowledged_total"] == values["ocil_samples_learned"] == values["ocil_classes"] == 2
    assert values["ocil_step_seconds_count"] == values["ocil_model_batches"] == 1


def test_images_of_another_shape_in_the_log_are_an_error(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, "a")
        settle(service)
    (tmp_path / FILE).unlink()
    with (
        pytest.raises(OcilError, match=r"inputs of 12x12x1 \(uint8\), but the model takes images of 14x14x1"),
        running(tmp_path, form=ImageFormat((14, 14, 1))),
    ):
        pass


def test_a_service_starts_without_what_is_damaged_only_on_demand(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        send(service, "a", "b")
        send(service, "c")
        settle(service)
    (tmp_path / FILE).unlink()
    (segment,) = (tmp_path / "log").iterdir()
    content = bytearray(segment.read_bytes())
    content[content.index(b'"a"')] ^= 1
    segment.write_bytes(content)
    with pytest.raises(OcilError, match="is damaged at byte"), running(tmp_path):
        pass
    assert segment.read_bytes() == content
    with running(tmp_path, set_aside_damage=True) as service:
        settle(service)
        assert service.statistics.labels == ("c",)
        assert send(service, "d").first == 4
        settle(service)
    (tmp_path / FILE).unlink()
    with running(tmp_path) as service:  # as a supervisor would start it again
        settle(service)
        assert service.statistics.labels == ("c", "d")


@pytest.mark.parametrize("lost", ["b", "c"])
def test_the_key_of_a_lost_request_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The checkpoint knows keys of samples that it has not learned; their numbers may be given to others."""
    with running(tmp_path) as service:
        with monkeypatch.context() as patch:
            patch.setattr(service.trainer, "_next", list)  # nothing is learned
            receipts = {label: send(service, label, key=label) for label in "abc"}
            service.trainer.save()
        keys = Model.load(tmp_path, "cpu").note["serve"]["keys"]
        assert list(keys) == ["a", "b", "c"]
        saved = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(saved)
    segment = min((tmp_path / "log").glob("*.log"))
    content = bytearray(segment.read_bytes())
    content[content.index(f'["{lost}"]'.encode())] ^= 1
    segment.write_bytes(content)
    with running(tmp_path, set_aside_damage=True) as service:
        other = send(service, "other")
        again = {label: send(service, label, key=label) for label in "abc"}
        assert [label for label in "abc" if not again[label].repeated] == [lost]
        assert again[lost].first == other.last + 1
        assert all(again[label].first == receipts[label].first for label in "abc" if label != lost)


NOTES: dict[str, Any] = {
    "position of text": {"position": "7"},
    "position of a truth value": {"position": True},
    "position below zero": {"position": -1},
    "position beyond measure": {"position": 2**70},
    "keys in a list": {"keys": []},
    "a key without a digest": {"keys": {"a": [1, 2]}},
    "a key with a wrong digest": {"keys": {"a": [1, 2, 3]}},
    "a key with a wrong number": {"keys": {"a": ["1", 2, "d"]}},
    "a key that counts back": {"keys": {"a": [1, -2, "d"]}},
    "counts of text": {"counts": "many"},
    "counts with a part missing": {"counts": {"learned": [1, 1], "correct": [0, 0]}},
    "counts of fractions": {"counts": {"learned": [1.5, 1], "correct": [0, 0], "recent": []}},
    "counts of nothing": {"counts": {"learned": None, "correct": [0, 0], "recent": []}},
    "counts below zero": {"counts": {"learned": [1, -1], "correct": [0, -1], "recent": []}},
    "more correct than learned": {"counts": {"learned": [1, 1], "correct": [0, 2], "recent": []}},
    "counts of different length": {"counts": {"learned": [1, 1], "correct": [0], "recent": []}},
    "counts of more classes": {"counts": {"learned": [1, 1, 1], "correct": [0, 0, 0], "recent": []}},
    "recent of text": {"counts": {"learned": [1, 1], "correct": [0, 0], "recent": ["ab"]}},
    "recent of three": {"counts": {"learned": [1, 1], "correct": [0, 0], "recent": [[0, 0, 0]]}},
    "recent of another class": {"counts": {"learned": [1, 1], "correct": [0, 0], "recent": [[0, 2]]}},
}


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
def test_a_damaged_note_is_refused_at_the_start(tmp_path: Path, note: Any, ocil_command: Call) -> None:
    model = Model(RECIPE, FORM)
    model.learn(pixels(0, 100), ["a", "b"])
    model.note["serve"] = note
    model.save(tmp_path)
    assert "note of its service is damaged: " in one_error(ocil_command("serve", "--model", tmp_path, "--port", 0))
    assert not (tmp_path / "log").exists()


def test_labels_that_read_alike_are_one_class(tmp_path: Path) -> None:
    """Called by the one that came first, also after a restart and when the log is learned again."""
    with running(tmp_path) as service:
        for labels in (("1", 1), (1, "2"), (2, "1"), (7, "7"), ("7", "07"), ("e\u0301", "\u00e9"), ("-3", -3)):
            send(service, *labels)
        settle(service)
        expected = ("1", "2", 7, "07", "e\u0301", "-3")
        assert service.statistics.labels == expected
        assert [type(label) for label in service.statistics.labels] == [type(label) for label in expected]
    with running(tmp_path) as service:
        send(service, 1, 2, "7", "\u00e9")
        settle(service)
        assert service.statistics.labels == expected
    before = state(tmp_path)
    (tmp_path / FILE).unlink()
    with running(tmp_path) as service:
        settle(service)
    assert state(tmp_path) == before
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


def test_the_classes_of_a_model_keep_their_labels(tmp_path: Path) -> None:
    model = Model(RECIPE, FORM)
    known = [3, "3", 4, 1.5, True, ("x", 2)]
    model.learn(pixels(*range(6)), known)
    model.save(tmp_path)
    with running(tmp_path, limits=Limits(classes=6)) as service:
        send(service, "3", 3, "4", 4, "1.5", "true", '["x",2]')
        settle(service)
        assert service.statistics.labels == tuple(known)
        assert service.statistics.counts.learned == [1, 1, 2, 1, 1, 1]
        with pytest.raises(RefusedError, match="more than 6 classes"):
            send(service, "new")


def test_a_label_that_was_not_written_names_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as service:
        send(service, "a")
        settle(service)  # so that no cut is written below

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(service.log, "append", full)
            with pytest.raises(RefusedError, match="nothing was learned"):
                send(service, "5")
        send(service, 5)
        settle(service)
        assert service.statistics.labels == ("a", 5)
