"""What our methods have in common beyond ``ocil.testing``; and ER and AFS steps against steps written out by hand."""

import copy
import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ocil
import ocil.kernels.convolution
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.methods import METHODS, method
from ocil.methods._frozen import FrozenLearner
from ocil.methods.afs import AFS
from ocil.methods.base import Learner
from ocil.methods.config import LearnerConfig, Problem
from ocil.methods.fine_tune import FineTune
from ocil.networks import to_float
from ocil.rng import Rng, derive
from ocil.runs.build import build
from ocil.runs.environment import digest
from ocil.runs.protocol import Interrupted
from ocil.runs.stream_run import run
from ocil.testing.subject import changed, end_task, frozen
from ocil.testing.watch import HostWatch
from tests.networks_to_try import TINY
from tests.reference.datasets import noise, patterned
from tests.test_runner import stop_at

NOISE = noise()
BATCH, MEMORY, REPLAY = 5, 12, 8
every_entry = pytest.mark.parametrize("name", METHODS)
# Two entries may share a class, as fine-tune and iid-offline do: its behaviour is tested once.
DISTINCT = list({info.target: name for name, info in reversed(list(METHODS.items()))}.values())[::-1]
every_method = pytest.mark.parametrize("name", DISTINCT)
WITH_MEMORY = [name for name in DISTINCT if METHODS[name].memory]
with_memory = pytest.mark.parametrize("name", WITH_MEMORY)
# A-GEM uses its memory as a constraint only, so it learns from no stored image and forgets like fine-tuning.
# Strong crops and colours leave little of a tiny image: what suits photographs needs thousands of steps here.
GENTLE: dict[str, dict[str, Any]] = {
    "dvc": {"crop": 1.0, "flip": 0.0, "jitter": 0.0, "gray": 0.0},
    "ocm": {"crop": 1.0, "gray": 0.0},
    "er-ace": {"pad": 0},  # of 8 pixels, a shift by 4 leaves too little
    "derpp": {"pad": 0},
    "rar": {"operations": 0},
    "mose": {"crop": 1.0, "gray": 0.0},
    "gsa": {"crop": 1.0, "gray": 0.0},
    "ccl-dc": {"crop": 1.0, "flip": 0.0, "jitter": 0.0, "gray": 0.0, "chain_crop": 1.0, "operations": 0},
    "mkd": {"crop": 1.0, "flip": 0.0, "jitter": 0.0, "gray": 0.0, "alpha": 0.2},
    "stride": {"lr": 0.2},
}
QUICK: dict[str, dict[str, Any]] = {
    "ranpac": {"projection": 30},
    "rar": {"repeats": 2},
    "ccl-dc": {"optimizer": "sgd"},
    "mkd": {"optimizer": "sgd"},
    "mose": {"optimizer": "sgd", "current_batch": 3},
    "gsa": {"optimizer": "sgd", "current_batch": 3},
}
REPLAYS = [name for name in WITH_MEMORY if name != "agem"]
# GDumb learns nothing from the stream, only from its memory when a task ends.
REHEARSES = [name for name in DISTINCT if METHODS[name].load().task_end_batches is not Learner.task_end_batches]
FROZEN = [name for name in DISTINCT if issubclass(METHODS[name].load(), FrozenLearner)]  # they train nothing
every_online_method = pytest.mark.parametrize("name", [name for name in DISTINCT if name not in REHEARSES])


pytestmark = pytest.mark.usefixtures("quick_convolution")


def make(name: str, seed: int = 0, data: Dataset = NOISE, **settings: Any) -> Learner:
    if METHODS[name].memory:
        settings = {"memory": MEMORY, "memory_batch": REPLAY} | settings
    else:
        settings = {key: value for key, value in settings.items() if key not in ("memory", "memory_batch")}
    network = {} if "width" in settings else {"network": TINY}
    usual: dict[str, Any] = network | {"batch_size": BATCH} | QUICK.get(name, {})
    sizes: dict[str, Any] = {"classes": data.num_classes, "train": len(data.train_y)}
    # Not by make_learner, which refuses random weights where they would never be trained.
    return build(ocil.resolve(name, data.name, seed=seed, settings=usual | settings, **sizes), data)


def batch(number: int, data: Dataset = NOISE) -> tuple[Tensor, Tensor]:
    """Stream batches without end: the dataset over and over."""
    index = torch.arange(number * BATCH, (number + 1) * BATCH) % len(data.train_y)
    return torch.from_numpy(data.train_x)[index], torch.from_numpy(data.train_y)[index]


def learn(learner: Learner, numbers: range) -> None:
    for number in numbers:
        learner.learn(*batch(number))


@pytest.mark.parametrize(
    ("verb", "instead"), [("scores", "`scorer`"), ("review", "`review_loss`"), ("end_task", "`task_ended`")]
)
def test_a_verb_that_runs_take_apart_is_not_overridden(verb: str, instead: str) -> None:
    with pytest.raises(OcilError, match=f"^Mine overrides `{verb}`, which runs do not call: override {instead}"):
        type("Mine", (FineTune,), {verb: lambda self, *x: None})
    mixin = type("Mixin", (), {verb: lambda self, *x: None})
    with pytest.raises(OcilError, match=f"^Mine overrides `{verb}`"):
        type("Mine", (mixin, FineTune), {})


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("rehearsal", "task_end_batches"),
        ("rehearsal_step", "task_end_step"),
        ("review_slots", "review_batches"),
        ("steady", "shapes_are_static"),
        ("form", "step_variant"),
        ("needs_images", "why_not_vectors"),
        ("needs_vectors", "why_not_images"),
        ("needs_task_ends", "why_task_ends"),
    ],
)
def test_an_override_by_its_former_name_is_refused_not_ignored(former: str, name: str) -> None:
    assert hasattr(Learner, name)
    with pytest.raises(OcilError, match=f"^Mine has a method `{former}`, .* it is called `{name}`. Rename it.$"):
        type("Mine", (FineTune,), {former: lambda self, *x: None})
    type("Mine", (FineTune,), {former: "an attribute of one's own"})


NUMBERED = "which count from 0: give their numbers, or growing=True if classes are not known in advance."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x / 255, y), "inputs must be torch.uint8 [B, 8, 8, 3], not torch.float32 [4, 8, 8, 3]."),
        (lambda x, y: (x.mT, y), "inputs must be torch.uint8 [B, 8, 8, 3], not torch.uint8 [4, 8, 3, 8]."),
        (lambda x, y: (x, y.int()), "labels must be torch.int64 [B], not torch.int32 [4]."),
        (lambda x, y: (x, y[:, None]), "labels must be torch.int64 [B], not torch.int64 [4, 1]."),
        (lambda x, y: (x, y[0]), "labels must be torch.int64 [B], not torch.int64 []."),
        (lambda x, y: (x.numpy(), y), "inputs must be a tensor, not a ndarray: torch.from_numpy makes one."),
        (lambda x, y: (x, y[:3]), "4 inputs came with 3 labels: give one label for each."),
        (lambda x, y: (x[:0], y[:0]), "a batch without samples has no loss: leave it out."),
        (lambda x, y: (x, y - 1), f"label -1 is none of the 2 classes, {NUMBERED}"),
        (lambda x, y: (x, y + torch.tensor([0, 1, 2, 0])), f"label 2 is none of the 2 classes, {NUMBERED}"),
    ],
)
def test_a_batch_of_another_form_changes_nothing(change: Callable[[Tensor, Tensor], Any], words: str) -> None:
    learner = FineTune(LearnerConfig(width=1), Problem((8, 8, 3), 2))
    before = frozen(learner)
    with pytest.raises(OcilError, match=f"^{re.escape(words)}$"):
        learner.learn(*change(torch.zeros((4, 8, 8, 3), dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)))
    assert not changed(before, learner.state())


def test_scores_refuse_inputs_of_another_form() -> None:
    learner = FineTune(LearnerConfig(width=1), Problem((8, 8, 3), 2))
    images = torch.zeros((4, 8, 8, 3), dtype=torch.uint8)
    wrong: tuple[tuple[Any, str], ...] = (
        (images.numpy(), "inputs must be a tensor, not a ndarray: torch.from_numpy makes one."),
        (images.mT, "inputs must be torch.uint8 [B, 8, 8, 3], not torch.uint8 [4, 8, 3, 8]."),
        (images[0], "inputs must be torch.uint8 [B, 8, 8, 3], not torch.uint8 [8, 8, 3]."),
    )
    for x, words in wrong:
        with pytest.raises(OcilError, match=f"^{re.escape(words)}$"):
            learner.scores(x)


@pytest.mark.parametrize("name", ["scr", "gdumb", "ncm", "ranpac", "stride"])
def test_no_method_learns_from_nothing_or_from_labels_that_are_no_classes(name: str) -> None:
    """Some methods index by a label late in their step, or never: they would drop a sample, or fail half-way."""
    learner = make(name)
    learn(learner, range(2))
    before = frozen(learner)
    x, y = batch(2)
    for odd in (-1, 6):
        with pytest.raises(OcilError, match=f"^label {odd} is none of the 6 classes"):
            learner.learn(x, torch.where(torch.arange(BATCH) == 3, odd, y))
    with pytest.raises(OcilError, match=r"^a batch without samples"):
        learner.learn(x[:0], y[:0])
    assert not changed(before, learner.state())


def test_scores_refuse_images_that_are_floats() -> None:
    learner = FineTune(LearnerConfig(width=1), Problem((8, 8, 3), 2))
    with pytest.raises(OcilError, match=r"^images must be uint8 \[N, H, W, C\] from 0 to 255, not torch.float32"):
        learner.scores(torch.zeros(4, 8, 8, 3))


def test_a_method_without_a_step_says_so() -> None:
    class Empty(Learner):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty has no `learn\(self, x, y\)`"):
        Empty(LearnerConfig(width=1), Problem((8, 8, 1), 2)).learn(
            torch.zeros(2, 8, 8, 1).byte(), torch.zeros(2).long()
        )


@functools.cache
def _warm(name: str, steps: int, settings: tuple[tuple[str, Any], ...]) -> Learner:
    learner = make(name, **dict(settings))
    learn(learner, range(steps))
    return learner


def warm(name: str, steps: int, **settings: Any) -> Learner:
    """A learner after some steps: a copy, so that these steps are taken once for all tests."""
    return copy.deepcopy(_warm(name, steps, tuple(settings.items())))


def weights_of(learner: Learner) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in learner.network.parameters()]


def record(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """From now on, everything that ``owner.name`` returns."""
    results: list[Any] = []
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        results.append(copy.deepcopy(result))
        return result

    monkeypatch.setattr(owner, name, wrapped)
    return results


# The registry


@every_entry
def test_registry_entry_is_complete(name: str) -> None:
    info = METHODS[name]
    assert info.name == name == name.lower()
    assert len(info.summary.split()) > 2
    no_paper = name in ("fine-tune", "iid-offline", "stride")  # nobody's method, or ours
    assert info.paper == "-" if no_paper else re.fullmatch(r"(after )?\S+ et al\., .+ 20\d\d", info.paper)
    assert issubclass(info.load(), Learner)
    assert info.load().learn is not Learner.learn
    assert (info.load().__doc__ or "").strip()


def test_names_are_forgiving_and_unknown_ones_are_refused() -> None:
    assert method("Fine_Tune") is METHODS["fine-tune"]
    with pytest.raises(OcilError, match=r"afss.*afs"):
        method("afss")


def test_impossible_choices_are_refused() -> None:
    for settings in ({"forward": "both"}, {"loss": "mse"}, {"views": "none"}, {"regulariser": "l2"}, {"sigma": 0.0}):
        with pytest.raises(OcilError, match=next(iter(settings))):
            make("afs", **settings)


# Learning


@functools.cache
def old_task_accuracy(name: str, per_class: int, seed: int) -> float:
    """Two tasks of two easy classes: at the end, accuracy on the first task."""
    data = patterned(per_class=per_class)
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    old = y < 2
    learner = make(name, seed, data, memory=40, **{"lr": 0.1} | GENTLE.get(name, {}))
    for part in ocil.Stream(data, ocil.StreamConfig(tasks=2, batch_size=BATCH), seed):
        learner.learn(part.x, part.y)
        if part.ends_task:
            end_task(learner)
    return float((learner.scores(x[old]).argmax(1) == y[old]).double().mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYS)
def test_replay_remembers_what_fine_tuning_forgets(name: str) -> None:
    """Mean over seeds: a single short run depends on how the last digits are rounded."""
    per_class, seeds = 40 if name == "stride" else 20, range(3)
    assert sum(old_task_accuracy("fine-tune", 40, seed) for seed in seeds) / len(seeds) < 0.1
    total = 0.0
    for seed in seeds:
        if total / len(seeds) <= 0.25:  # else no accuracy of the seeds that are left could change what is found
            total += old_task_accuracy(name, per_class, seed)
    assert total / len(seeds) > 0.25


# No news from the device


@pytest.mark.parametrize(
    "reads",
    [
        lambda x: float(x[0]),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: bool(x.any()),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: torch.where(x > 0),
        lambda x: int(x.argmax()),
        lambda x: len(x.long().bincount()),
        lambda x: torch.equal(x, x + 1),
    ],
)
def test_the_watch_sees_reads(reads: Callable[[Tensor], Any]) -> None:
    with pytest.raises(AssertionError), HostWatch():
        reads(torch.rand(4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"forward": "joint"},
        {"views": "raw"},
        {"views": "augmented", "crop_rule": "clamp"},
        {"gray": 0.2},
        {"loss": "ce", "regulariser": "none"},
        {"loss": "focal", "regulariser": "lsr"},
        *({"sample_value": value} for value in ("smu", "gini", "entropy", "gen")),
    ],
)
def test_afs_reads_nothing_with_any_setting(settings: dict[str, Any]) -> None:
    learner = warm("afs", 3, **settings)
    x, y = batch(3)
    with HostWatch() as watch:
        learner.learn(x, y)
    assert len(watch.trace) > 100


# State


@every_method
def test_states_are_plain_tensors(name: str) -> None:
    learner = warm(name, 2, momentum=0.9)
    end_task(learner)
    state = learner.state()
    assert all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items())
    assert {f"optimizer.{i}.momentum_buffer" for i in range(len(learner.optimizer.parameters))} <= set(state)


@pytest.mark.slow
@every_method
def test_a_used_learner_goes_back_to_its_own_state(name: str) -> None:
    """Also to one taken before a generator was first used."""
    learner = make(name, momentum=0.9)
    learner.learn(*batch(0))
    state = frozen(learner)
    learn(learner, range(1, 5))
    first = digest(learner)
    learner.load_state({key: value.clone() for key, value in state.items()})
    learn(learner, range(1, 5))
    assert digest(learner) == first


# Memory


@pytest.mark.slow
@with_memory
def test_memory_holds_raw_images_of_the_stream(name: str) -> None:
    learner = warm(name, 6)
    assert name in REHEARSES or int(learner.memory.seen) == 6 * BATCH
    known = {(x.tobytes(), int(y)) for x, y in zip(NOISE.train_x, NOISE.train_y, strict=True)}
    assert len(known) == len(NOISE.train_y)
    assert learner.memory.images.dtype == torch.uint8
    held = zip(learner.memory.images[:MEMORY].numpy(), learner.memory.labels[:MEMORY].tolist(), strict=True)
    held_set = {(x.tobytes(), y) for x, y in held}
    assert held_set <= known
    assert len(held_set) == MEMORY


@pytest.mark.parametrize("name", [name for name in WITH_MEMORY if name not in REHEARSES])
def test_memory_is_updated_after_the_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make(name)
    seen_at_step: list[int] = []
    step = learner.optimizer.step

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen_at_step.append(int(learner.memory.seen))
        return step(*args, **kwargs)

    monkeypatch.setattr(learner.optimizer, "step", watched)
    learn(learner, range(4))
    first = dict.fromkeys(("scr", "pcr", "ccl-dc", "mkd", "mose"), 1).get(name, 0)  # a contrast needs a memory
    # One entry per batch, though some methods take several steps with each.
    assert list(dict.fromkeys(seen_at_step)) == [number * BATCH for number in range(first, 4)]
    assert int(learner.memory.seen) == 4 * BATCH


@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if not info.memory])
def test_methods_without_memory_keep_nothing(name: str) -> None:
    learner = warm(name, 2)
    assert len(learner.memory) == 0
    before = weights_of(learner)
    learner.review()
    assert all(map(torch.equal, before, weights_of(learner)))
    with pytest.raises(OcilError, match="memory"):
        ocil.make_learner(name, NOISE, memory=10)


# Reviews


@pytest.mark.slow
@with_memory
@pytest.mark.parametrize("keep_last", [True, False])
def test_a_review_is_one_pass_over_the_memory(name: str, keep_last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = warm(name, 4, review_batch=5, review_keep_last=keep_last)
    parts: list[list[int]] = []
    step = learner.review_step
    monkeypatch.setattr(learner, "review_step", lambda slots: (parts.append(slots.tolist()), step(slots)))
    before = frozen(learner)
    learner.review()
    assert [len(part) for part in parts] == ([5, 5, 2] if keep_last else [5, 5])
    visited = list(itertools.chain(*parts))
    assert len(set(visited)) == len(visited)
    assert set(visited) <= set(range(MEMORY))
    assert visited != sorted(visited)
    moved = changed(before, learner.state())
    assert not any(key.startswith("memory.") for key in moved)
    weights = {f"network.{key}" for key, _ in learner.network.named_parameters()}
    assert {key for key in weights if not key.endswith(".0.bias")} <= moved  # batch normalisation cancels that bias
    assert int(learner.steps) == 4 + len(parts)


@pytest.mark.parametrize(("side", "stored", "sizes"), [(8, 6, [5, 1]), (4, 6, [5]), (4, 7, [5, 2])])
def test_a_review_leaves_out_a_last_batch_without_statistics_alone(side: int, stored: int, sizes: list[int]) -> None:
    """Images of 4x4 pixels end as one place, of which a single image has no batch statistics."""
    data = noise(shape=(side, side, 3))
    learner = make("er", data=data, memory=20, review_batch=5, review_keep_last=True)
    learner.memory.add(torch.from_numpy(data.train_x[:stored]), torch.from_numpy(data.train_y[:stored]))
    assert [len(slots) for slots in learner.review_batches()] == sizes


@with_memory
def test_a_review_of_nothing(name: str) -> None:
    learner = make(name)
    before = weights_of(learner)
    learner.review()
    assert all(map(torch.equal, before, weights_of(learner)))


@pytest.mark.slow
@with_memory
@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_a_review_step_is_sgd_at_a_scaled_rate(name: str, scale: float) -> None:
    learner, twin = (make(name, lr=0.2, review_lr_scale=scale) for _ in range(2))
    learn(learner, range(3))
    twin.load_state(frozen(learner))
    slots = torch.tensor([3, 0, 7, 5])
    loss = twin.review_loss(twin.memory.images[slots], twin.memory.labels[slots])
    slopes = torch.autograd.grad(loss, list(twin.network.parameters()))
    learner.review_step(slots)
    for old, slope, new in zip(twin.network.parameters(), slopes, learner.network.parameters(), strict=True):
        torch.testing.assert_close(new, old - 0.2 * scale * slope, rtol=1e-4, atol=1e-5)
    assert torch.equal(learner.last_loss, loss)


def test_review_defaults_are_the_papers() -> None:
    afs, er = make("afs").config, make("er").config
    assert (afs.lr, afs.review_lr_scale, afs.review_batch, afs.momentum, afs.weight_decay) == (0.1, 0.1, 10, 0, 0)
    assert (er.lr, er.review_lr_scale, er.review_batch, er.momentum, er.weight_decay) == (0.1, 0.1, 10, 0, 0)
    assert (afs.review, afs.review_keep_last, er.review, er.review_keep_last) == (True, True, False, False)


# Failures


@every_online_method
def test_the_first_loss_that_is_not_finite_is_remembered(name: str) -> None:
    learner = warm(name, 2)
    good = [parameter.detach().clone() for parameter in learner.parameters()]
    with torch.no_grad():
        for parameter in learner.network.parameters():
            parameter.fill_(float("nan"))
    learner.learn(*batch(2))
    assert int(learner.failed_at) == 2
    if name in (*FROZEN, "derpp"):
        return  # what was added to a sum, or stored with an image, stays there
    with torch.no_grad():
        for parameter, value in zip(learner.parameters(), good, strict=True):
            parameter.copy_(value)
    for norm in learner.network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.reset_running_stats()
    learn(learner, range(3, 5))
    assert learner.last_loss.isfinite()
    assert int(learner.failed_at) == 2
    assert int(learner.steps) == 5


@pytest.mark.parametrize("name", REHEARSES)
def test_a_rehearsal_whose_loss_is_not_finite_is_remembered(name: str) -> None:
    learner = warm(name, 2)
    learner.task_ended()
    with torch.no_grad():
        for parameter in learner.network.parameters():
            parameter.fill_(float("nan"))
    learner.task_end_step(next(learner.task_end_batches()))
    assert int(learner.failed_at) == 2


PARTS = {
    "afs": {"revised focal", "virtual distillation"},
    "dvc": {"stream", "memory"},
    "aaer": {"stream", "memory"},
    "ocm": {"contrast", "cross entropy"},
    "pcr": {"contrast"},
    "gsa": {"task", "balanced"},
    "mose": {"contrast", "cross entropy", "distillation"},
    "ccl-dc": {"cross entropy", "distillation"},
    "mkd": {"cross entropy", "distillation"},
    "derpp": {"stream", "logits", "memory"},
    **{name: {"stream", "memory"} for name in ("er", "er-ace", "mir", "gss", "rar", "stride")},
}


@every_method
def test_losses_of_stream_and_memory_are_watched_apart(name: str) -> None:
    learner, unwatched = make(name, review_batch=6), make(name, review_batch=6)
    for each in (learner, unwatched):
        learn(each, range(3))
    seen = learner.recorded_losses.take()
    assert seen.keys() == {"stream", *(f"stream/{part}" for part in PARTS.get(name, ()))}
    assert seen["stream"] == float(learner.last_loss)
    if name in PARTS:
        assert sum(seen[f"stream/{part}"] for part in PARTS[name]) == pytest.approx(seen["stream"], rel=1e-5)
    assert learner.recorded_losses.take() == {}  # nothing since
    for each in (learner, unwatched):
        end_task(each)
        if METHODS[name].memory:
            each.review()
    seen = learner.recorded_losses.take()
    phases = {"review"} if METHODS[name].memory else set()
    assert seen.keys() == phases | ({"rehearsal"} if name in REHEARSES else set())
    assert "review" not in seen or seen["review"] == float(learner.last_loss)
    learner.learn(*batch(3))
    unwatched.learn(*batch(3))
    assert learner.recorded_losses.take().keys() >= {"stream"}
    assert digest(learner) == digest(unwatched)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"loss": "ce", "regulariser": "none"}, {"cross entropy"}),
        ({"loss": "focal", "regulariser": "lsr", "forward": "joint"}, {"focal", "label smoothing"}),
    ],
)
def test_parts_are_named_by_what_they_are(settings: dict[str, Any], parts: set[str]) -> None:
    seen = warm("afs", 3, **settings).recorded_losses.take()
    assert seen.keys() == {"stream", *(f"stream/{part}" for part in parts)}
    assert sum(seen[f"stream/{part}"] for part in parts) == pytest.approx(seen["stream"], rel=1e-5)


def test_a_row_of_losses_is_never_replaced() -> None:
    """A recorded step goes on writing to it."""
    learner = make("er")
    learn(learner, range(2))
    rows = dict(learner.recorded_losses.rows)
    assert [len(row) for row in rows.values()] == [1, 3]  # the first batch finds no memory
    learner.recorded_losses.take()
    learn(learner, range(2, 4))
    assert all(learner.recorded_losses.rows[names] is row for names, row in rows.items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_watch(bad: float) -> None:
    learner = make("fine-tune")
    for loss in (1.0, 2.0, bad, 3.0, bad):
        learner.record_loss(torch.tensor(loss))
    assert (int(learner.failed_at), int(learner.steps)) == (2, 5)


# Steps written out by hand: separate passes, backward into a list of gradients, weights less rate times gradient


class SlowStep:
    """A copy of a learner's network whose step is taken by hand."""

    def __init__(self, learner: Learner) -> None:
        self.network = copy.deepcopy(learner.network)
        self.learner = learner
        self.rate = learner.config.lr
        self.gradients = [torch.zeros_like(p) for p in self.network.parameters()]
        self.total = 0.0

    def logits(self, images: Tensor) -> Tensor:
        result: Tensor = self.network(images)
        return result

    def minimise(self, loss: Tensor) -> None:
        found = torch.autograd.grad(loss, list(self.network.parameters()))
        self.gradients = [a + b for a, b in zip(self.gradients, found, strict=True)]
        self.total += float(loss.detach())

    def agrees(self) -> None:
        with torch.no_grad():
            for parameter, slope in zip(self.network.parameters(), self.gradients, strict=True):
                parameter.sub_(self.rate * slope)
        expected, got = self.network.state_dict(), self.learner.network.state_dict()
        for name, value in expected.items():
            if "num_batches" not in name:
                torch.testing.assert_close(got[name], value, rtol=1e-4, atol=2e-6, msg=f"{name}: {{}}".format)
        assert float(self.learner.last_loss) == pytest.approx(self.total, rel=1e-5)


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("forward", ["separate", "joint"])
def test_er_by_hand(forward: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """First step (nothing to replay), second (less than a replay batch), and a steady one."""
    learner = warm("er", steps, forward=forward, lr=0.07)
    slow = SlowStep(learner)
    draws = record(learner.memory, "retrieve", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)
    (draw,) = draws
    if steps == 0:
        assert draw is None
        slow.minimise(F.cross_entropy(slow.logits(to_float(x)), y))
    else:
        assert len(draw[1]) == min(REPLAY, BATCH * steps)
        if forward == "joint":
            slow.minimise(F.cross_entropy(slow.logits(to_float(torch.cat([x, draw[0]]))), torch.cat([y, draw[1]])))
        else:
            slow.minimise(F.cross_entropy(slow.logits(to_float(x)), y))
            slow.minimise(F.cross_entropy(slow.logits(to_float(draw[0])), draw[1]))
    slow.agrees()


@pytest.mark.parametrize("name", ["fine-tune", "iid-offline"])
def test_fine_tune_by_hand(name: str) -> None:
    learner = warm(name, 2, lr=0.03)
    slow = SlowStep(learner)
    x, y = batch(2)
    learner.learn(x, y)
    slow.minimise(F.cross_entropy(slow.logits(to_float(x)), y))
    slow.agrees()


def afs_classification(kind: str, logits: Tensor, y: Tensor, u: Tensor | None = None) -> Tensor:
    """The formulas of the paper with alpha 0.25, gamma 2, mu 0.3, sigma 0.5; p as exp(-CE)."""
    ce = F.cross_entropy(logits, y, reduction="none")
    p = torch.exp(-ce)
    if kind == "ce":
        return ce.mean()
    if kind == "focal":
        return (0.25 * (1 - p) ** 2 * ce).mean()
    return (0.25 * torch.exp(-(((p if u is None else u) - 0.3) ** 2) / 0.5) * ce).mean()


def afs_regulariser(kind: str, logits: Tensor, y: Tensor) -> Tensor:
    """beta 0.1, T 20, epsilon 0.01, with targets filled in one by one."""
    classes = logits.shape[1]
    target = torch.full_like(logits, 0.01 / (classes - 1))
    for row, label in enumerate(y.tolist()):
        target[row, label] = 0.99
    if kind == "vkd":
        return 0.1 * 400 * F.cross_entropy(logits / 20, F.softmax(target / 20, dim=1))
    return 0.1 * F.cross_entropy(logits, target)


def afs_step_by_hand(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, u: Callable[[Tensor, Tensor], Tensor] | None = None
) -> None:
    """As released: the regulariser passes the same images a second time, so running statistics move twice."""
    learner = warm("afs", 2, beta=0.1, **settings)
    assert isinstance(learner, AFS)
    slow, config = SlowStep(learner), learner.config
    draws = record(learner.memory, "retrieve", monkeypatch)
    views = record(learner, "random_views", monkeypatch)
    x, y = batch(2)
    learner.learn(x, y)
    ((memory_x, memory_y),) = draws
    raw = to_float(memory_x)
    assert len(raw) == REPLAY
    replay = {"raw": [raw], "augmented": views, "both": [raw, *views]}[config.views]
    assert len(views) == (0 if config.views == "raw" else 1)
    batches = [(to_float(x), y), (torch.cat(replay), torch.cat([memory_y] * len(replay)))]
    if config.forward == "joint":
        batches = [(torch.cat([a for a, _ in batches]), torch.cat([b for _, b in batches]))]
    twice = config.double_bn_update
    for images, labels in batches:
        features = slow.network.features(images)
        logits = slow.network.head(features)
        value = None if u is None else u(features, logits)
        loss = afs_classification(config.loss, logits, labels, value)
        if config.regulariser != "none":
            again = slow.logits(images) if config.regulariser == "vkd" and twice else logits
            loss = loss + afs_regulariser(config.regulariser, again, labels)
        slow.minimise(loss)
    slow.agrees()


@pytest.mark.parametrize(
    ("loss", "regulariser", "forward"),
    [
        *itertools.product(("rfl", "focal", "ce"), ("vkd", "lsr", "none"), ("separate",)),
        ("rfl", "vkd", "joint"),
        ("focal", "lsr", "joint"),
        ("ce", "none", "joint"),
    ],
)
def test_afs_by_hand(loss: str, regulariser: str, forward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    afs_step_by_hand({"loss": loss, "regulariser": regulariser, "forward": forward}, monkeypatch)


@pytest.mark.parametrize(
    "settings", [{"views": "raw"}, {"views": "augmented"}, {"double_bn_update": False}, {"lr": 0.02}]
)
def test_afs_settings_by_hand(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    afs_step_by_hand(settings, monkeypatch)


@pytest.mark.parametrize("value", ["smu", "gini", "entropy", "gen"])
def test_afs_sample_values_by_hand(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def u(features: Tensor, logits: Tensor) -> Tensor:
        p = F.softmax(logits, dim=1)
        ranked = p.sort(dim=1, descending=True).values
        if value == "smu":
            return ranked[:, 0] - ranked[:, 1]
        if value == "gini":
            return (p**2).sum(1)
        p = p.detach()
        if value == "entropy":
            return 1 + (p * p.log()).sum(1) / torch.tensor(float(p.shape[1])).log()
        gradient = (p - F.one_hot(p.argmax(1), p.shape[1]))[:, :, None] * features.detach()[:, None, :]
        norm = gradient.flatten(1).norm(dim=1)
        return 1 - norm / norm.max()

    afs_step_by_hand({"sample_value": value}, monkeypatch, u)


@pytest.mark.parametrize("loss", ["rfl", "focal", "ce"])
def test_afs_reviews_raw_images_without_regulariser_at_plain_momentum(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = warm("afs", 3, loss=loss)
    slow = SlowStep(learner)
    views = record(learner, "random_views", monkeypatch)
    slots = torch.arange(6)
    x, y = learner.memory.images[slots], learner.memory.labels[slots]
    learner.review_step(slots)
    assert views == []
    slow.minimise(afs_classification(loss, slow.logits(to_float(x)), y))
    slow.rate *= 0.1
    slow.agrees()


def test_er_reviews_with_cross_entropy() -> None:
    learner = warm("er", 3)
    slow = SlowStep(learner)
    slots = torch.tensor([4, 1, 9])
    learner.review_step(slots)
    x, y = learner.memory.images[slots], learner.memory.labels[slots]
    slow.minimise(F.cross_entropy(slow.logits(to_float(x)), y))
    slow.rate *= 0.1
    slow.agrees()


def test_afs_momentum_of_running_statistics() -> None:
    def momentum(**settings: Any) -> float:
        learner = make("afs", **settings)
        assert isinstance(learner, AFS)
        return learner.bn_momentum

    assert momentum() == pytest.approx(0.19)
    assert momentum(double_bn_update=False) == 0.1
    assert momentum(regulariser="lsr") == 0.1
    assert momentum(regulariser="none") == 0.1


@pytest.mark.parametrize(
    ("dataset", "memory", "beta", "gray"),
    [
        ("cifar10", 200, 0.05, 0.2),
        ("cifar10", 500, 0.05, 0.2),
        ("cifar10", 1000, 0.1, 0.2),
        ("cifar100", 1000, 0.15, 0.0),
        ("cifar100", 2000, 0.05, 0.0),
        ("cifar100", 5000, 0.1, 0.0),
        ("mini_imagenet", 1000, 0.05, 0.0),
        ("mini_imagenet", 2000, 0.1, 0.0),
        ("mini_imagenet", 5000, 0.05, 0.0),
    ],
)
def test_afs_published_settings(dataset: str, memory: int, beta: float, gray: float) -> None:
    learner = ocil.resolve("afs", dataset, memory=memory).learner
    assert (learner.beta, learner.gray, learner.memory_batch) == (beta, gray, 100)  # type: ignore[attr-defined]


# Generators


@pytest.mark.slow
@every_method
def test_a_run_of_every_method_that_is_stopped_ends_bit_for_bit_the_same(name: str, tmp_path: Path) -> None:
    """In each task and at the last moment: what a method keeps beside its tensors, on the host, must come back too."""
    data = noise(30, 6, (8, 8, 3))
    settings: dict[str, Any] = {"tasks": 2, "batch_size": BATCH, "network": TINY, **QUICK.get(name, {})}
    if name in FROZEN:  # a network that never learns must come with weights
        data = replace(data, train_x=_vectors(data.train_x), test_x=_vectors(data.test_x))
        settings |= {"network": "linear"}
    if METHODS[name].memory:
        settings |= {"memory": MEMORY, "memory_batch": REPLAY, "review": True, "review_batch": 5}
    sizes: dict[str, Any] = {"classes": 6, "train": 30, "vectors": name in FROZEN}
    config = ocil.resolve(name, data.name, settings=settings, **sizes)
    asked: list[int] = []
    whole = run(config, tmp_path / "a", dataset=data, device="cpu", should_stop=lambda: bool(asked.append(1)))
    for folder, stops in (
        ("b", (2, len(asked) // 2 - 2)),
        ("c", (len(asked) - 1,)),
    ):  # each counted from the one before
        for number in stops:
            with pytest.raises(Interrupted):
                run(config, tmp_path / folder, dataset=data, device="cpu", should_stop=stop_at(number))
        again = run(config, tmp_path / folder, dataset=data, device="cpu")
        assert (again.digest, again.matrix) == (whole.digest, whole.matrix), f"stopped at {stops}"


def _vectors(images: Any) -> Any:
    return (images.reshape(len(images), -1) / 255).astype("float32")


def test_named_generators_are_independent() -> None:
    seeds = {derive(seed, name) for seed in range(20) for name in ("memory", "augment", "init")}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**63 for seed in seeds)
    one, other = Rng(0, torch.device("cpu")), Rng(0, torch.device("cpu"))
    torch.rand(5, generator=other["augment"])  # use of one name, or its order, does not move another
    assert torch.equal(torch.rand(5, generator=one["memory"]), torch.rand(5, generator=other["memory"]))


def test_replay_draws_do_not_depend_on_augmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    histories = []
    for views in ("raw", "both"):
        learner = make("afs", views=views)
        draws = record(learner.memory, "draw", monkeypatch)
        learn(learner, range(5))
        histories.append([None if slots is None else slots.tolist() for slots in draws])
    assert histories[0] == histories[1]
