"""The setting ``test_flip``: scores are the mean over an image and its mirror image, and training never sees it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.methods.ranpac import RanPAC
from ocil.online.export import export
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.runs.build import check
from ocil.runs.config import resolve
from ocil.testing.subject import frozen
from tests.networks_to_try import TINY
from tests.reference.datasets import noise
from tests.test_methods import DISTINCT, batch, learn, make

pytestmark = pytest.mark.usefixtures("quick_convolution")


def mirror(x: Tensor) -> Tensor:
    """Each row of pixels backwards, one by one."""
    columns = [x[:, :, column] for column in range(x.shape[2])]
    return torch.stack(columns[::-1], dim=2)


@pytest.mark.parametrize("name", DISTINCT)
def test_scores_are_the_mean_of_both(name: str) -> None:
    plain, flipped = (make(name, test_flip=flip) for flip in (False, True))
    for learner in (plain, flipped):
        learn(learner, range(3))
    x, _ = batch(9)
    expected = (plain.scores(x) + plain.scores(mirror(x))) / 2
    assert torch.equal(flipped.scores(x), expected)
    assert not torch.equal(plain.scores(x), expected)


def test_training_is_the_same() -> None:
    plain, flipped = (make("er", review=True, test_flip=flip) for flip in (False, True))
    for learner in (plain, flipped):
        learn(learner, range(3))
        learner.end_task()
    before, after = frozen(plain), frozen(flipped)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_scorer_that_calls_its_parent_scores_each_image_twice_and_not_four_times() -> None:
    learner = make("rar", readout="head", test_flip=True)
    learn(learner, range(2))
    passed: list[int] = []
    learner.network.register_forward_hook(lambda network, inputs, outputs: passed.append(len(outputs)))
    learner.scores(batch(9)[0][:5])
    assert passed == [5, 5]


def test_an_equation_is_solved_once_for_many_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction of ``ranpac`` took six seconds instead of a hundredth: each one solved its equation anew."""
    learner = make("ranpac", projection=20, test_flip=True)
    learn(learner, range(2))
    solved: list[Tensor] = []
    solve = RanPAC.weight

    def noted(self: RanPAC) -> Tensor:
        solved.append(solve(self))
        return solved[-1]

    monkeypatch.setattr(RanPAC, "weight", noted)
    x, _ = batch(9)
    scores = learner.scores(x)
    assert torch.equal(learner.scores(x), scores)
    assert len(solved) == 1
    assert learner.config.test_flip
    learn(learner, range(2, 3))
    assert not torch.equal(learner.scores(x), scores)
    assert len(solved) == 2


def test_the_averaged_network_is_flipped_too() -> None:
    plain, flipped = (make("er", average=0.9, test_flip=flip) for flip in (False, True))
    for learner in (plain, flipped):
        learn(learner, range(3))
    x, _ = batch(9)
    assert torch.equal(flipped.scores(x), (plain.scores(x) + plain.scores(mirror(x))) / 2)


def test_classes_that_are_not_seen_stay_out() -> None:
    learner = make("stride", test_flip=True)
    x, y = batch(0)
    learner.learn(x, y % 2)
    assert set(learner.scores(x).argmax(1).tolist()) <= {0, 1}
    assert not learner.scores(x).isnan().any()


def test_an_exported_program_flips(tmp_path: Path) -> None:
    data = noise(40, 4, (12, 12, 3))
    settings = {"test_flip": True, "network": TINY}
    model = Model(Recipe("er", memory=20, settings=settings), ImageFormat((12, 12, 3)))
    model.learn(data.train_x[:8], ["a", "b"] * 4)
    export(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.from_numpy(data.train_x[:3])
    expected = model.learner.scores(x)[:, :2].softmax(1)
    torch.testing.assert_close(program(x), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(program(mirror(x)), expected, atol=1e-5, rtol=1e-5)


def test_vectors_have_no_mirror_image() -> None:
    images = noise()
    x, test_x = (each.reshape(len(each), -1).astype(np.float32) for each in (images.train_x, images.test_x))
    data = Dataset("vectors", x, images.train_y, test_x, images.test_y, images.classes)
    config = resolve("er", data, settings={"test_flip": True})
    with pytest.raises(OcilError, match="test_flip = true needs images"):
        check(config, data)
