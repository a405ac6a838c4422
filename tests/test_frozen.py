"""Learners of frozen features against the same statistics computed at once, by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import ocil
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.methods.base import Learner
from ocil.methods.ranpac import HOLD_OUT, RIDGES, RanPAC
from ocil.runs.environment import digest
from tests.reference.datasets import noise

FROZEN = ("ncm", "slda", "ranpac")
SMALL: dict[str, dict[str, Any]] = {"ranpac": {"projection": 24}}
every_learner = pytest.mark.parametrize("name", FROZEN)
Floats = NDArray[np.float64]


def clouds(length: int = 6, classes: int = 4, per_class: int = 40) -> Dataset:
    """Overlapping clouds of points with a covariance that is far from the identity."""
    rng = np.random.default_rng(0)
    centres, mixing = 2 * rng.normal(size=(classes, length)), rng.normal(size=(length, length))

    def draw(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        y = np.tile(np.arange(classes), count)
        return (centres[y] + 0.8 * rng.normal(size=(len(y), length)) @ mixing).astype(np.float32), y

    (x, y), (test_x, test_y) = draw(per_class), draw(20)
    return Dataset("clouds", x, y, test_x, test_y, tuple("abcd"[:classes]))


DATA = clouds()


def make(name: str, data: Dataset = DATA, **settings: Any) -> Learner:
    return ocil.make_learner(name, data, **SMALL.get(name, {}) | settings)


def taught(name: str, order: NDArray[np.int64] | None = None, size: int = 10, **settings: Any) -> Learner:
    learner = make(name, **settings)
    order = np.arange(len(DATA.train_y)) if order is None else order
    for first in range(0, len(order), size):
        index = order[first : first + size]
        learner.learn(torch.from_numpy(DATA.train_x[index]), torch.from_numpy(DATA.train_y[index]))
    return learner


def scores(learner: Learner, x: NDArray[Any] = DATA.test_x) -> Floats:
    return learner.scores(torch.from_numpy(x)).double().numpy()


def unit(x: Floats) -> Floats:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize(("metric", "form"), [("cosine", unit), ("euclidean", np.asarray)])
def test_nearest_class_mean_by_hand(metric: str, form: Callable[[Floats], Floats]) -> None:
    x, test = form(DATA.train_x.astype(float)), form(DATA.test_x.astype(float))
    means = form(np.stack([x[DATA.train_y == label].mean(0) for label in range(4)]))
    expected = -np.linalg.norm(test[:, None] - means, axis=2)
    np.testing.assert_allclose(scores(taught("ncm", metric=metric)), expected, atol=1e-5)


@pytest.mark.parametrize("shrinkage", [1e-4, 0.3])
def test_slda_is_batch_lda(shrinkage: float) -> None:
    x, y, test = DATA.train_x.astype(float), DATA.train_y, DATA.test_x.astype(float)
    means = np.stack([x[y == label].mean(0) for label in range(4)])
    within = sum(np.cov(x[y == label].T, bias=True) for label in range(4)) / 4  # as many of each class
    inverse = np.linalg.inv((1 - shrinkage) * within + shrinkage * np.eye(6))
    away = test[:, None] - means
    likelihood = -np.einsum("bcd,de,bce->bc", away, inverse, away) / 2
    found = scores(taught("slda", shrinkage=shrinkage))
    for measured, exact in ((found, likelihood),):  # up to what all classes share
        np.testing.assert_allclose(
            measured - measured.mean(1, keepdims=True), exact - exact.mean(1, keepdims=True), rtol=1e-3, atol=1e-3
        )
    assert (found.argmax(1) == DATA.test_y).mean() > 0.8


def test_slda_agrees_with_scikit_learn() -> None:
    analysis = pytest.importorskip("sklearn.discriminant_analysis", reason="scikit-learn is not installed")
    lda = analysis.LinearDiscriminantAnalysis(solver="lsqr").fit(DATA.train_x, DATA.train_y)
    learner = taught("slda", shrinkage=1e-9)
    found = learner.scores(torch.from_numpy(DATA.test_x)).softmax(1).numpy()
    np.testing.assert_allclose(found, lda.predict_proba(DATA.test_x), atol=1e-3)


@pytest.mark.parametrize("ridge", [1e-2, 10.0])
def test_ranpac_is_ridge_regression(ridge: float) -> None:
    learner = taught("ranpac", ridge=ridge)
    projection = learner.get_buffer("projection").double().numpy()
    random, test = (np.maximum(x.astype(float) @ projection, 0) for x in (DATA.train_x, DATA.test_x))
    system = np.vstack([random, np.sqrt(ridge) * np.eye(24)])  # least squares with rows for the penalty
    labels = np.vstack([np.eye(4)[DATA.train_y], np.zeros((24, 4))])
    weight = np.linalg.lstsq(system, labels, rcond=None)[0]
    np.testing.assert_allclose(scores(learner), test @ weight, atol=1e-4)


def test_ranpac_chooses_the_ridge_that_predicts_held_out_batches_best() -> None:
    learner = taught("ranpac")
    projection = learner.get_buffer("projection").double().numpy()
    random = np.maximum(DATA.train_x.astype(float) @ projection, 0)
    held = np.arange(len(random)) // 10 % HOLD_OUT == HOLD_OUT - 1
    labels = np.eye(4)[DATA.train_y]

    def weight(ridge: float, rows: NDArray[np.bool_]) -> Floats:
        x, y = random[rows], labels[rows]
        return np.linalg.solve(x.T @ x + ridge * np.eye(24), x.T @ y)

    errors = [np.square(random[held] @ weight(ridge, ~held) - labels[held]).sum() for ridge in RIDGES]
    chosen = RIDGES[int(np.argmin(errors))]
    assert RIDGES[0] < chosen < RIDGES[-1]
    every = np.ones(len(random), dtype=bool)
    test = np.maximum(DATA.test_x.astype(float) @ projection, 0)
    np.testing.assert_allclose(scores(learner), test @ weight(chosen, every), atol=1e-4)
    assert isinstance(learner, RanPAC)
    assert (HOLD_OUT, len(RIDGES), RIDGES[0], RIDGES[-1]) == (5, 17, 1e-8, 1e8)  # published
    np.testing.assert_allclose(learner.held_sums.numpy(), labels[held].T @ random[held], rtol=1e-4, atol=1e-4)


@every_learner
def test_order_and_batches_do_not_matter(name: str) -> None:
    settings: dict[str, Any] = {"ridge": 1.0} if name == "ranpac" else {}
    usual = scores(taught(name, **settings))
    by_class = np.argsort(DATA.train_y, kind="stable")
    for order, size in ((by_class, 10), (by_class[::-1].copy(), 7)):
        np.testing.assert_allclose(scores(taught(name, order, size, **settings)), usual, rtol=1e-3, atol=1e-3)


@every_learner
def test_what_grows_ends_where_all_classes_were_known(name: str) -> None:
    by_class = np.argsort(DATA.train_y, kind="stable")
    grown = taught(name, by_class, growing=True)
    assert grown.classes_met == [0, 1, 2, 3]
    np.testing.assert_allclose(scores(grown)[:, :4], scores(taught(name, by_class)), rtol=1e-3, atol=1e-3)
    assert scores(grown)[:, 4:].max() < -1000


def in_a_small_unit(scale: float = 1e5) -> Dataset:
    """The same clouds, so far from each other that all distances are more than 10,000."""
    return Dataset("far", scale * DATA.train_x, DATA.train_y, scale * DATA.test_x, DATA.test_y, DATA.classes)


@every_learner
def test_a_class_not_met_has_no_larger_score_than_one_far_away(name: str) -> None:
    data = in_a_small_unit()
    settings: dict[str, Any] = {"metric": "euclidean"} if name == "ncm" else {}
    known, grown = (make(name, data, growing=growing, **settings) for growing in (False, True))
    for learner in (known, grown):
        learner.learn(torch.from_numpy(data.train_x), torch.from_numpy(data.train_y))
    found = scores(grown, data.test_x).argmax(1)
    np.testing.assert_array_equal(found, scores(known, data.test_x).argmax(1))
    assert (found == data.test_y).mean() > 0.6


@pytest.mark.parametrize("growing", [False, True])
def test_predictions_by_large_distances_count_before_they_are_learned(tmp_path: Path, growing: bool) -> None:
    found = []
    for data in (DATA, in_a_small_unit()):
        settings = {"metric": "euclidean", "prequential": 2, "tasks": 2, "growing": growing}
        result = ocil.run(ocil.resolve("ncm", data, settings=settings), tmp_path, dataset=data, device="cpu")
        found.append(result.prequential["correct"])
    assert found[0] == found[1]
    assert sum(found[0]) > 60


@every_learner
def test_a_class_without_a_sample_is_never_predicted(name: str) -> None:
    learner = make(name)
    assert (scores(learner) == 0).all()
    only = np.flatnonzero(DATA.train_y != 2)
    learner = taught(name, only)
    assert (scores(learner).argmax(1) != 2).all()


@every_learner
def test_scores_follow_what_is_learned(name: str) -> None:
    learner = taught(name)
    before = scores(learner)
    np.testing.assert_array_equal(scores(learner), before)
    learner.learn(torch.from_numpy(DATA.train_x[:10] + 5), torch.from_numpy(DATA.train_y[:10]))
    assert not np.allclose(scores(learner), before)
    other = make(name)
    other.load_state({key: value.clone() for key, value in learner.state().items()})
    np.testing.assert_array_equal(scores(other), scores(learner))
    assert digest(other) == digest(learner)
    other.load_state({key: value.clone() for key, value in make(name).state().items()})
    assert (scores(other) == 0).all()


@every_learner
def test_vectors_of_half_precision(name: str) -> None:
    half = Dataset(
        "half", DATA.train_x.astype(np.float16), DATA.train_y, DATA.test_x.astype(np.float16), DATA.test_y, DATA.classes
    )
    learner = make(name, half)
    learner.learn(torch.from_numpy(half.train_x), torch.from_numpy(half.train_y))
    assert (scores(learner, half.test_x).argmax(1) == half.test_y).mean() > 0.6


class Flat(nn.Module):
    """A stranger's network, which may be trained."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(input_shape[2])

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).flatten(1)


@every_learner
def test_images_through_a_network_that_stays_as_it_is(name: str) -> None:
    data = noise()
    learner = make(name, data, network="module:tests.test_frozen:Flat")
    before = {key: value.clone() for key, value in learner.network.state_dict().items()}
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    learner.learn(x[:20], y[:20])
    assert learner.scores(x[:3]).shape == (3, data.num_classes)
    assert all(torch.equal(value, before[key]) for key, value in learner.network.state_dict().items())
    assert learner.network.training


@every_learner
@pytest.mark.parametrize("settings", [{}, {"network": "resnet18"}])
def test_random_weights_are_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(OcilError, match=r"random weights.*features=timm:NAME.*pretrained=FILE"):
        make(name, noise(), **settings)


@every_learner
def test_no_memory_and_nothing_to_train(name: str) -> None:
    assert not METHODS[name].memory
    learner = taught(name)
    assert len(learner.memory) == 0
    assert not [value for value in learner.parameters() if value.requires_grad]
    assert [each.trains for each in learner.passes(learner.config, 10, 4)] == [False]
