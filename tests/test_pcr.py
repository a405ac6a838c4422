"""PCR and HPCR: their losses against loops over images, the gradient by hand, steps by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.learning.views import RandomViews
from ocil.methods._stored_outputs import squared_difference
from ocil.methods.pcr import PCR, counts, proxy_contrast, relation_change
from ocil.networks import NOT_MET, to_float
from ocil.testing import method_checks
from tests.networks_to_try import TINY
from tests.test_methods import BATCH, MEMORY, REPLAY, SlowStep, batch, learn, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")

CLASSES, TAU = 6, 0.09
quick = settings(max_examples=10, deadline=None, derandomize=True, database=None)
HYBRID: dict[str, Any] = {"hybrid": True, "distil_from": "start"}


def pcr(steps: int, **changes: Any) -> PCR:
    learner = warm("pcr", steps, **changes)
    assert isinstance(learner, PCR)
    return learner


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a, b) / ((a.square().sum().sqrt() + 1e-6) * (b.square().sum().sqrt() + 1e-6))


def by_loops(features: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
    """The formula of the paper: for each image, the proxies of all images of the batch, however often they repeat."""
    terms = []
    for feature, label in zip(features, labels.tolist(), strict=True):
        alike = [cosine(feature, proxies[other]) / TAU for other in labels.tolist()]
        terms.append(torch.stack(alike).exp().sum().log() - cosine(feature, proxies[label]) / TAU)
    return torch.stack(terms).mean()


def relations_by_loops(now: Tensor, then: Tensor) -> Tensor:
    """For each image, the cross-entropy between its similarities to all others then and now."""
    rows = []
    for i in range(len(now)):
        others = [j for j in range(len(now)) if j != i]
        p, q = (torch.stack([torch.exp(cosine(side[i], side[j]) / TAU) for j in others]) for side in (then, now))
        rows.append(-((p / p.sum()) * (q / q.sum()).log()).sum())
    return torch.stack(rows).mean()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The loss


@quick
@given(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=9), st.integers(0, 10**6))
def test_the_loss_counts_every_image_of_the_batch(drawn: list[int], seed: int) -> None:
    features, proxies, labels = random(len(drawn), 4, seed=seed), random(CLASSES, 4, seed=seed + 1), torch.tensor(drawn)
    logits = torch.stack([torch.stack([cosine(f, w) / TAU for w in proxies]) for f in features])
    torch.testing.assert_close(proxy_contrast(logits, labels), by_loops(features, proxies, labels))


def test_its_gradient_by_hand() -> None:
    """dL / dz_ic = (n_c exp(z_ic) / Σ_k n_k exp(z_ik) - [c = y_i]) / N, in numpy."""
    logits, labels = 3 * random(7, CLASSES), torch.tensor([1, 4, 4, 1, 1, 3, 1])
    logits.requires_grad_()
    (slope,) = torch.autograd.grad(proxy_contrast(logits, labels), [logits])
    number = np.bincount(labels.numpy(), minlength=CLASSES)
    weighted = number * np.exp(logits.detach().numpy())
    expected = weighted / weighted.sum(1, keepdims=True)
    expected[np.arange(7), labels.numpy()] -= 1
    np.testing.assert_allclose(slope.numpy(), expected / 7, atol=1e-12)
    assert not slope[:, [0, 2, 5]].any()  # a class that is not in the batch is left alone


def test_an_image_alone_teaches_nothing() -> None:
    logits = random(4, CLASSES).requires_grad_()
    loss = proxy_contrast(logits, torch.full((4,), 2))
    (slope,) = torch.autograd.grad(loss, [logits])
    assert float(loss.detach()) == pytest.approx(math.log(4), abs=1e-6)  # one class, four times
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classes_outside_the_batch_are_left_out_at_any_temperature(dtype: torch.dtype) -> None:
    """Cosines over a temperature of 1e-6 reach a million: a class outside the batch must stay out of the softmax."""
    cosines = torch.tensor([[-0.9, -0.8, 1.0], [-0.3, -0.7, 0.9]], dtype=dtype)
    logits, labels = (cosines / 1e-6).requires_grad_(), torch.tensor([0, 1])
    loss = proxy_contrast(logits, labels)
    (slope,) = torch.autograd.grad(loss, [logits])
    assert float(loss.detach()) == pytest.approx((0.1e6 + 0.4e6) / 2, rel=1e-5)  # of two classes, the other one wins
    torch.testing.assert_close(slope, torch.tensor([[-0.5, 0.5, 0], [0.5, -0.5, 0]], dtype=dtype))


# HPCR's parts


def test_the_difference_of_logits_has_a_column_per_image() -> None:
    now, then, labels = random(4, CLASSES), random(4, CLASSES, seed=1), torch.tensor([2, 5, 2, 2, 0])
    expected = np.mean([(float(now[i, c]) - float(then[i, c])) ** 2 for i in range(4) for c in labels.tolist()])
    weight = counts(labels, CLASSES) * torch.ones(4, CLASSES)
    assert float(squared_difference(now, then, weight)) == pytest.approx(expected, rel=1e-6)


def test_the_change_of_relations_in_loops() -> None:
    now, then = random(5, 3), random(5, 3, seed=1)
    torch.testing.assert_close(relation_change(now, then, TAU), relations_by_loops(now, then))
    now.requires_grad_()
    (slope,) = torch.autograd.grad(relation_change(now, now.detach(), TAU), [now])
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-9)  # least where nothing has changed


def test_a_single_memory_image_has_no_relations() -> None:
    now = random(1, 3).requires_grad_()
    change = relation_change(now, random(1, 3, seed=1), TAU)
    (slope,) = torch.autograd.grad(change, [now])
    assert change == 0  # not NaN, which a softmax over nothing would be
    assert not slope.any()


def test_the_cycle() -> None:
    learner = pcr(1, hybrid=True)
    found = []
    for number in (0, 125, 250, 500, 750):
        learner.batches_of_task.fill_(number)
        found.append(float(learner.cycle()))
    assert found == pytest.approx([0.5625, (0.5625 + 1.8) / 2, 1.8, 0.5625, 1.8], abs=1e-5)
    learner.task_ended()
    assert float(learner.cycle()) == pytest.approx(0.5625)


def test_outputs_are_those_of_the_raw_image_when_it_was_stored() -> None:
    learner = pcr(0, **HYBRID)
    learner.random_views = RandomViews(None, flip=1.0, jitter=0.0)
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    for number in range(6):
        slow = SlowStep(learner)
        x, y = batch(number)
        learner.learn(x, y)
        features = slow.network.features(torch.cat([to_float(x), to_float(x).flip(3)]))[:BATCH].detach()
        for image, feature, logit in zip(x, features, slow.network.head(features).detach(), strict=True):
            kept[hash(image.numpy().tobytes())] = feature, logit
    assert learner.outputs is not None
    then, known = learner.outputs.read(torch.arange(MEMORY))
    assert bool(known.all())
    for slot in range(MEMORY):
        feature, logit = kept[hash(learner.memory.images[slot].numpy().tobytes())]
        torch.testing.assert_close(learner.outputs.features[slot], feature)
        torch.testing.assert_close(then[slot], logit)
    assert not learner.outputs.features[MEMORY].any()  # the spare slot


# The step


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("settings", [{}, {"views": "raw"}, HYBRID, {"hybrid": True}], ids=str)
def test_a_step_by_hand(settings: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = pcr(steps, lr=0.07, **settings)
    slow, tensors = SlowStep(learner), {name: value.clone() for name, value in learner.state().items()}
    draws, views = record(learner.memory, "draw", monkeypatch), record(learner, "random_views", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)

    def pixels(images: Tensor) -> Tensor:
        return torch.cat([to_float(images), views.pop(0)]) if learner.config.views == "both" else to_float(images)

    copies = 2 if learner.config.views == "both" else 1
    features, labels = slow.network.features(pixels(x)), y.repeat(copies)
    (slots,) = draws
    if steps == 0:
        assert slots is None
        assert float(learner.last_loss) == 0
        slow.agrees()  # only running statistics have moved
        return
    memory_x, memory_y = tensors["memory.images"][slots], tensors["memory.labels"][slots]
    assert len(slots) == min(REPLAY, BATCH * steps)
    memory_features, memory_labels = slow.network.features(pixels(memory_x)), memory_y.repeat(copies)
    proxies = slow.network.get_parameter("head.weight")
    everyone = torch.cat([labels, memory_labels])
    loss = by_loops(torch.cat([features, memory_features]), proxies, everyone)
    if learner.config.hybrid:
        loss = loss * (0.5625 + (1.8 - 0.5625) * (1 - math.cos(2 * math.pi * steps / 500)) / 2)
    if settings == HYBRID:
        logits = slow.network.head(memory_features)[:, everyone]
        then = tensors["outputs.logits"].T[slots].repeat(copies, 1)[:, everyone]
        loss = loss + 0.1 * (logits - then).square().mean()
        loss = loss + 0.5 * relations_by_loops(memory_features, tensors["outputs.features"][slots].repeat(copies, 1))
    slow.minimise(loss)
    slow.agrees()


def test_distillation_begins_with_the_second_task() -> None:
    learner = pcr(4, hybrid=True)
    learner.learn(*batch(4))
    assert learner.recorded_losses.take().keys() >= {"stream/contrast"}
    assert learner.step_variant() == 0
    learner.task_ended()
    assert learner.step_variant() == 1
    learner.learn(*batch(5))
    assert learner.recorded_losses.take().keys() == {"stream", "stream/contrast", "stream/logits", "stream/relations"}


def test_classes_that_were_not_seen_are_not_predicted() -> None:
    learner = make("pcr")
    x, _ = batch(0)
    for _ in range(2):
        learner.learn(x, torch.tensor([4, 1, 1, 4, 4]))
    scores = learner.scores(x)
    assert scores.ne(NOT_MET).any(0).nonzero().flatten().tolist() == [1, 4]
    assert float(scores.max()) <= 1 / TAU


def test_a_review_contrasts_a_memory_batch_with_itself() -> None:
    learner = pcr(3, views="raw")
    slow, slots = SlowStep(learner), torch.arange(6)
    learner.review_step(slots)
    features = slow.network.features(to_float(learner.memory.images[slots]))
    slow.minimise(by_loops(features, slow.network.get_parameter("head.weight"), learner.memory.labels[slots]))
    slow.rate *= 0.1
    slow.agrees()


STATE = ("resumed-bit-for-bit", "growth-alone", "growth-in-steps", "grown-states", "steady-steps", "losses-add-up")


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [each for each in method_checks("pcr", network=TINY, **HYBRID) if str(each) in STATE], ids=str
)
def test_hybrid_keeps_what_every_method_promises(check: Any) -> None:
    check()


def test_published_settings() -> None:
    config: Any = ocil.resolve("pcr", "cifar100", memory=1000).learner
    assert (config.memory_batch, config.temperature, config.lr, config.review) == (10, 0.09, 0.1, False)
    assert (config.crop, config.flip, config.jitter, config.gray) == (0.2, 0.5, 0.8, 0.2)
    assert (config.hybrid, config.logit_weight, config.relation_weight) == (False, 0.1, 0.5)
    assert ocil.resolve("pcr", "cifar10", memory=1000).learner.logit_weight == 0.01  # type: ignore[attr-defined]
    with pytest.raises(OcilError, match="temperature"):
        make("pcr", temperature=0.0)
    learn(make("pcr", hybrid=True, logit_weight=0.0, relation_weight=0.0), range(2))


def test_settings_of_hpcr_need_it() -> None:
    for setting in (
        "cycle=3",
        "cycle_low=0.5",
        "cycle_high=2",
        "logit_weight=1",
        "relation_weight=1",
        "distil_from=start",
    ):
        name, value = setting.split("=")
        with pytest.raises(OcilError, match=f"^{name} has no effect without hybrid = true: give both, or neither.$"):
            ocil.resolve("pcr", "cifar10", settings={name: value})
        assert ocil.resolve("pcr", "cifar10", settings={name: value, "hybrid": "true"}).learner
    assert ocil.resolve("pcr", "cifar10").learner  # where the published logit_weight is another


def test_hpcr_that_would_never_distil_is_refused() -> None:
    quiet: dict[str, Any] = {"boundary": "none"}
    for settings_ in (quiet, quiet | HYBRID):
        ocil.resolve("pcr", "fashion-mini", settings=settings_)
    with pytest.raises(OcilError, match=r"^pcr needs task ends, .* or with distil_from=start at once\.$"):
        ocil.resolve("pcr", "fashion-mini", settings=quiet | {"hybrid": True})
