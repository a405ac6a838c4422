"""Losses against plain-Python versions and against gradients derived by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ocil.learning import losses
from tests.reference import losses as slow

quick = settings(max_examples=35, deadline=None, derandomize=True, database=None)
ALPHA, MU, SIGMA = 0.25, 0.3, 0.5
BETA, TEMPERATURE, EPSILON = 0.1, 20.0, 0.01

LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": losses.cross_entropy,
    "focal": losses.focal,
    "revised_focal": losses.revised_focal,
    "smu": lambda z, y, **kw: losses.revised_focal(z, y, value="smu", **kw),
    "gini": lambda z, y, **kw: losses.revised_focal(z, y, value="gini", **kw),
    "entropy": lambda z, y, **kw: losses.revised_focal(z, y, value="entropy", **kw),
    "gen": lambda z, y, **kw: losses.revised_focal(z, y, value="gen", features=z.detach(), **kw),
    "virtual_distillation": losses.virtual_distillation,
    "label_smoothing": losses.label_smoothing,
}
# name -> (slow value, slow gradient) of one sample with default settings
SLOW: dict[str, tuple[Callable[..., float], Callable[..., list[float]]]] = {
    "cross_entropy": (slow.cross_entropy, slow.cross_entropy_gradient),
    "focal": (lambda z, y: slow.focal(z, y, 0.25, 2.0), lambda z, y: slow.focal_gradient(z, y, 0.25, 2.0)),
    "revised_focal": (
        lambda z, y: slow.revised_focal(z, y, ALPHA, MU, SIGMA),
        lambda z, y: slow.revised_focal_gradient(z, y, ALPHA, MU, SIGMA),
    ),
    "virtual_distillation": (
        lambda z, y: slow.virtual_distillation(z, y, BETA, TEMPERATURE, EPSILON),
        lambda z, y: slow.virtual_distillation_gradient(z, y, BETA, TEMPERATURE, EPSILON),
    ),
    "label_smoothing": (
        lambda z, y: slow.label_smoothing(z, y, EPSILON),
        lambda z, y: slow.label_smoothing_gradient(z, y, EPSILON),
    ),
}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_slow = pytest.mark.parametrize("name", SLOW)


def batch_of(rows: int = 6, classes: int = 5, spread: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (rows,), generator=generator)


def gradient(loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
    """Of the sum over samples, so that each row is that sample's own gradient."""
    leaf = logits.detach().clone().requires_grad_()
    (result,) = torch.autograd.grad(loss(leaf, labels, reduction="none", **kwargs).sum(), leaf)
    return result


def two_class_logits(p: float) -> Tensor:
    """One sample whose class 0 has score p."""
    return torch.tensor([[math.log(p) - math.log1p(-p), 0.0]], dtype=torch.float64)


def slow_rows(function: Callable[..., Any], logits: Tensor, labels: Tensor) -> Tensor:
    rows = [function(z, y) for z, y in zip(logits.tolist(), labels.tolist(), strict=True)]
    return torch.tensor(rows, dtype=torch.float64)


def extreme_logits(size: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Right and sure, wrong and sure, undecided, and two classes sharing the first place."""
    rows = [[size, -size, -size], [-size, size, -size], [size, size, size], [-size] * 3, [size, size, -size]]
    return torch.tensor(rows, dtype=dtype), torch.zeros(len(rows), dtype=torch.int64)


# Values


@every_slow
@given(data=st.data())
@quick
def test_value_and_gradient_of_random_logits(name: str, data: st.DataObject) -> None:
    classes = data.draw(st.integers(2, 6))
    row = st.lists(st.floats(-60, 60), min_size=classes, max_size=classes)
    logits = torch.tensor(data.draw(st.lists(row, min_size=1, max_size=4)), dtype=torch.float64)
    labels = torch.tensor([data.draw(st.integers(0, classes - 1)) for _ in logits])
    value, slow_gradient = SLOW[name]
    got = LOSSES[name](logits, labels, reduction="none")
    torch.testing.assert_close(got, slow_rows(value, logits, labels), rtol=1e-9, atol=1e-12)
    expected = slow_rows(slow_gradient, logits, labels)
    torch.testing.assert_close(gradient(LOSSES[name], logits, labels), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.0, 3.5])
@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_focal_settings(alpha: float, gamma: float) -> None:
    logits, labels = batch_of()
    got = losses.focal(logits, labels, alpha, gamma, "none")
    torch.testing.assert_close(got, slow_rows(lambda z, y: slow.focal(z, y, alpha, gamma), logits, labels))
    expected = slow_rows(lambda z, y: slow.focal_gradient(z, y, alpha, gamma), logits, labels)
    torch.testing.assert_close(gradient(losses.focal, logits, labels, alpha=alpha, gamma=gamma), expected)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("mu", [0.0, 0.3, 0.9])
def test_revised_focal_settings(mu: float, sigma: float) -> None:
    logits, labels = batch_of()
    got = losses.revised_focal(logits, labels, 0.7, mu, sigma, reduction="none")
    torch.testing.assert_close(got, slow_rows(lambda z, y: slow.revised_focal(z, y, 0.7, mu, sigma), logits, labels))
    expected = slow_rows(lambda z, y: slow.revised_focal_gradient(z, y, 0.7, mu, sigma), logits, labels)
    torch.testing.assert_close(gradient(losses.revised_focal, logits, labels, alpha=0.7, mu=mu, sigma=sigma), expected)


@pytest.mark.parametrize("temperature", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3])
def test_virtual_distillation_settings(temperature: float, epsilon: float) -> None:
    logits, labels = batch_of()
    got = losses.virtual_distillation(logits, labels, 0.15, temperature, epsilon, "none")
    arguments = (0.15, temperature, epsilon)
    torch.testing.assert_close(got, slow_rows(lambda z, y: slow.virtual_distillation(z, y, *arguments), logits, labels))
    expected = slow_rows(lambda z, y: slow.virtual_distillation_gradient(z, y, *arguments), logits, labels)
    kwargs = {"beta": 0.15, "temperature": temperature, "epsilon": epsilon}
    torch.testing.assert_close(gradient(losses.virtual_distillation, logits, labels, **kwargs), expected)


def test_cross_entropy_is_torchs() -> None:
    logits, labels = batch_of()
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(losses.cross_entropy(logits, labels), expected)
    torch.testing.assert_close(losses.cross_entropy(logits, labels, scale=0.25), expected / 4)


def test_label_smoothing_is_torchs_up_to_its_definition_of_epsilon() -> None:
    """torch spreads epsilon over all classes, the label's too; ours gives the label 1 - epsilon exactly."""
    logits, labels = batch_of(classes=5)
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1 * 5 / 4)
    torch.testing.assert_close(losses.label_smoothing(logits, labels, epsilon=0.1), expected)
    torch.testing.assert_close(losses.label_smoothing(logits, labels, epsilon=0.1, scale=0.05), expected * 0.05)
    torch.testing.assert_close(
        losses.label_smoothing(logits, labels, epsilon=0.0), losses.cross_entropy(logits, labels)
    )


# The paper's three equations for the derivative by the target's logit


@pytest.mark.parametrize("p", [1e-9, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1 - 1e-9])
def test_target_derivatives_of_the_paper(p: float) -> None:
    logits, labels = two_class_logits(p), torch.tensor([0])
    q = 1 - p

    def target(loss: Callable[..., Tensor], **kwargs: float) -> float:
        by_target, by_other = gradient(loss, logits, labels, **kwargs)[0].tolist()
        assert by_other == pytest.approx(-by_target, rel=1e-6, abs=1e-15)  # two classes: the rest is one class
        return by_target

    assert target(losses.cross_entropy) == pytest.approx(-q, rel=1e-6)
    for alpha in (1.0, 0.25):
        for gamma in (1.0, 2.0):
            expected = alpha * q**gamma * (gamma * p * math.log(p) + p - 1)
            assert target(losses.focal, alpha=alpha, gamma=gamma) == pytest.approx(expected, rel=1e-6, abs=1e-15)
        for mu, sigma in ((0.3, 0.5), (0.6, 0.1)):
            bell = math.exp(-((p - mu) ** 2) / sigma)
            expected = alpha * bell * (2 * p * (p - mu) * math.log(p) / sigma - 1) * q
            got = target(losses.revised_focal, alpha=alpha, mu=mu, sigma=sigma)
            assert got == pytest.approx(expected, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize(
    ("p", "relative"), [(0.01, 0.80), (0.1, 0.75), (0.3, 1.0), (0.5, 1.18), (0.7, 1.02), (0.9, 0.60)]
)
def test_pull_relative_to_scaled_cross_entropy(p: float, relative: float) -> None:
    logits, labels = two_class_logits(p), torch.tensor([0])
    pull = gradient(losses.revised_focal, logits, labels)[0, 0]
    control = gradient(losses.cross_entropy, logits, labels, scale=0.25)[0, 0]
    assert float(pull / control) == pytest.approx(relative, abs=0.005)


def test_defaults_are_the_papers() -> None:
    logits, labels = batch_of()
    same = [
        (losses.focal(logits, labels), losses.focal(logits, labels, alpha=0.25, gamma=2.0)),
        (losses.revised_focal(logits, labels), losses.revised_focal(logits, labels, alpha=0.25, mu=0.3, sigma=0.5)),
        (losses.virtual_distillation(logits, labels), losses.virtual_distillation(logits, labels, 0.1, 20.0, 0.01)),
    ]
    for default, spelled_out in same:
        assert default == spelled_out


# Virtual distillation's teacher, seen through the gradient: it is beta · T · (p - q), and p = 1/C at zero logits


@pytest.mark.parametrize(("classes", "target", "other"), [(10, 0.1045, 0.0995), (100, 0.0105, 0.00999)])
def test_teacher(classes: int, target: float, other: float) -> None:
    logits, labels = torch.zeros(1, classes, dtype=torch.float64), torch.tensor([3])
    q = 1 / classes - gradient(losses.virtual_distillation, logits, labels)[0] / (BETA * TEMPERATURE)
    assert float(q.sum()) == pytest.approx(1)
    assert float(q[3]) == pytest.approx(target, abs=6e-5)
    assert float(q[0]) == pytest.approx(other, abs=6e-5 if classes == 10 else 6e-6)
    assert torch.equal(q[:3], q[4:7])


def test_distillation_rests_at_the_virtual_logits_and_holds_a_constant() -> None:
    virtual = torch.tensor([slow.smoothed(100, 7, EPSILON)], dtype=torch.float64)
    labels = torch.tensor([7])
    at_rest = gradient(losses.virtual_distillation, virtual, labels)
    torch.testing.assert_close(at_rest, torch.zeros_like(at_rest), rtol=0, atol=1e-12)
    assert float(losses.virtual_distillation(virtual, labels)) == pytest.approx(0.1 * 400 * math.log(100), rel=1e-3)


# Sample values


def test_sample_values_against_slow() -> None:
    logits, _ = batch_of(rows=8, classes=6, spread=3.0)
    features = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for value, function in (("smu", slow.smu), ("gini", slow.gini), ("entropy", slow.entropy)):
        expected = torch.tensor([function(row) for row in logits.tolist()], dtype=torch.float64)
        torch.testing.assert_close(losses.sample_value(logits, value), expected)  # type: ignore[arg-type]
    expected = torch.tensor(slow.gen(logits.tolist(), features.tolist()), dtype=torch.float64)
    torch.testing.assert_close(losses.sample_value(logits, "gen", features), expected)
    assert float(expected.min()) == 0


@pytest.mark.parametrize("value", ["smu", "gini", "entropy", "gen"])
def test_one_class_alone_is_certain(value: Any) -> None:
    logits = torch.tensor([[1.0], [-2.0]])
    assert losses.sample_value(logits, value, features=torch.ones(2, 3)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", ["smu", "gini", "entropy", "gen"])
def test_sample_values_run_from_unsure_to_sure(value: Any) -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0], [90.0, 0.0, 0.0, 0.0]])
    u = losses.sample_value(logits, value, torch.ones(4, 3))
    assert torch.all(u.diff() > 0)
    assert float(u[0]) == pytest.approx(0.25 if value == "gini" else 0.0, abs=1e-6)
    assert float(u[3]) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("value", ["smu", "gini", "entropy", "gen"])
def test_revised_focal_of_another_value(value: Any) -> None:
    logits, labels = batch_of()
    features = logits.flip(1)
    u = losses.sample_value(logits, value, features)
    log_p = logits.log_softmax(1).gather(1, labels[:, None]).squeeze(1)
    expected = -0.4 * torch.exp(-((u - 0.2) ** 2) / 0.7) * log_p
    got = losses.revised_focal(logits, labels, 0.4, 0.2, 0.7, value, features, "none")
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("value", ["entropy", "gen"])
def test_entropy_and_gen_weigh_without_gradient(value: Any) -> None:
    logits, labels = batch_of()
    logits.requires_grad_()
    features = (2 * logits).detach().requires_grad_()
    assert not losses.sample_value(logits, value, features).requires_grad
    loss = losses.revised_focal(logits, labels, value=value, features=features, reduction="none").sum()
    by_logits, by_features = torch.autograd.grad(loss, (logits, features), allow_unused=True)
    assert by_features is None
    weight = ALPHA * torch.exp(-((losses.sample_value(logits, value, features) - MU) ** 2) / SIGMA)
    residual = logits.softmax(1) - torch.nn.functional.one_hot(labels, logits.shape[1])
    torch.testing.assert_close(by_logits, weight[:, None] * residual)


@pytest.mark.parametrize("value", ["p_t", "smu", "gini"])
def test_the_others_weigh_with_gradient(value: Any) -> None:
    """Finite differences of the whole loss agree, and differ from what a detached weight would give."""
    logits, labels = batch_of(rows=3, classes=4)

    def loss(z: Tensor) -> Tensor:
        return losses.revised_focal(z, labels, value=value, reduction="none")

    assert torch.autograd.gradcheck(loss, logits.requires_grad_())
    p = logits.softmax(1)
    u = p.gather(1, labels[:, None]).squeeze(1) if value == "p_t" else losses.sample_value(logits, value)
    residual = p - torch.nn.functional.one_hot(labels, 4)
    detached = ALPHA * torch.exp(-((u - MU) ** 2) / SIGMA)[:, None] * residual
    assert (gradient(losses.revised_focal, logits, labels, value=value) - detached).abs().max() > 1e-3


def test_gen_needs_features_and_unknown_values_are_refused() -> None:
    logits, labels = batch_of()
    with pytest.raises(ValueError, match="features"):
        losses.revised_focal(logits, labels, value="gen")
    with pytest.raises(ValueError, match="margin"):
        losses.revised_focal(logits, labels, value="margin")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'p_t': use smu, gini, entropy, gen, or p_t where there are labels"):
        losses.sample_value(logits, "p_t")  # type: ignore[arg-type]


# One mu a class


def test_mu_of_each_class() -> None:
    logits, labels = batch_of(rows=10)
    mu = torch.tensor([0.0, 0.1, 0.3, 0.6, 0.9], dtype=torch.float64)

    def at(row: list[float], label: int) -> float:
        return slow.revised_focal(row, label, ALPHA, float(mu[label]), SIGMA)

    def gradient_at(row: list[float], label: int) -> list[float]:
        return slow.revised_focal_gradient(row, label, ALPHA, float(mu[label]), SIGMA)

    assert len(labels.unique()) > 2
    torch.testing.assert_close(
        losses.revised_focal(logits, labels, mu=mu, reduction="none"), slow_rows(at, logits, labels)
    )
    torch.testing.assert_close(
        gradient(losses.revised_focal, logits, labels, mu=mu), slow_rows(gradient_at, logits, labels)
    )
    constant = losses.revised_focal(logits, labels, mu=torch.full((5,), 0.3, dtype=torch.float64))
    torch.testing.assert_close(constant, losses.revised_focal(logits, labels, mu=0.3))


# Numerics


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("entropy", "gen")])
def test_gradcheck(name: str) -> None:
    logits, labels = batch_of(rows=3, classes=4)
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, labels, reduction="none"), logits.requires_grad_())


@pytest.mark.parametrize("size", [50.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_loss
def test_extreme_logits_stay_finite(name: str, dtype: torch.dtype, size: float) -> None:
    logits, labels = extreme_logits(size, dtype)
    values = LOSSES[name](logits, labels, reduction="none")
    assert values.isfinite().all()
    assert (values >= 0).all()
    assert gradient(LOSSES[name], logits, labels).isfinite().all()


@pytest.mark.parametrize("size", [50.0, 1e4])
@every_slow
def test_extreme_logits_are_right(name: str, size: float) -> None:
    logits, labels = extreme_logits(size, torch.float64)
    value, slow_gradient = SLOW[name]
    torch.testing.assert_close(LOSSES[name](logits, labels, reduction="none"), slow_rows(value, logits, labels))
    expected = slow_rows(slow_gradient, logits, labels)
    torch.testing.assert_close(gradient(LOSSES[name], logits, labels), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "gamma",
    [
        0.0,
        0.5,
        1.0,
        1.5,
        5.0,
    ],
)
def test_focal_of_any_exponent_where_p_is_one(gamma: float) -> None:
    logits, labels = extreme_logits(50.0)
    slopes = gradient(losses.focal, logits, labels, gamma=gamma)
    assert slopes.isfinite().all()
    torch.testing.assert_close(slopes[0], torch.zeros(3), rtol=0, atol=1e-6)


@every_loss
def test_half_precision_logits_are_computed_in_float32(name: str) -> None:
    logits, labels = batch_of(spread=5.0)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = logits.to(dtype)
        got = LOSSES[name](narrow, labels, reduction="none")
        assert got.dtype == torch.float32
        assert torch.equal(got, LOSSES[name](narrow.float(), labels, reduction="none"))


@every_loss
def test_float64_stays(name: str) -> None:
    logits, labels = batch_of()
    assert LOSSES[name](logits, labels).dtype == torch.float64
    assert LOSSES[name](logits.float(), labels).dtype == torch.float32


# Reductions


@every_loss
def test_reductions(name: str) -> None:
    logits, labels = batch_of()
    each = LOSSES[name](logits, labels, reduction="none")
    mean = LOSSES[name](logits, labels)
    assert each.shape == labels.shape
    assert mean.shape == ()
    torch.testing.assert_close(mean, each.mean())


@every_loss
def test_a_batch_stacked_on_itself_has_the_same_mean(name: str) -> None:
    logits, labels = batch_of()
    stacked = LOSSES[name](torch.cat([logits, logits]), torch.cat([labels, labels]))
    torch.testing.assert_close(stacked, LOSSES[name](logits, labels))


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "gen"])
def test_samples_do_not_see_each_other(name: str) -> None:
    logits, labels = batch_of()
    together = LOSSES[name](logits, labels, reduction="none")
    alone = [LOSSES[name](logits[i : i + 1], labels[i : i + 1]) for i in range(len(labels))]
    torch.testing.assert_close(together, torch.stack(alone))


@every_loss
def test_shifting_all_logits_changes_nothing_and_inputs_stay(name: str) -> None:
    logits, labels = batch_of()
    before = logits.clone(), labels.clone()
    loss = LOSSES[name] if name != "gen" else lambda z, y: losses.revised_focal(z, y, value="gen", features=before[0])
    torch.testing.assert_close(loss(logits + 7.0, labels), loss(logits, labels))
    assert torch.equal(logits, before[0])
    assert torch.equal(labels, before[1])
