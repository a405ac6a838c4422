"""A list of images that is learned: stopping inside a review, and going on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocil.data.label_file import LabelledFile
from ocil.errors import OcilError
from ocil.online.feed import Feed
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.online.sources import LabelledImages, read_list
from ocil.runs.environment import digest

pytestmark = pytest.mark.usefixtures("quick_convolution")
FORM = ImageFormat((10, 10, 1))
RECIPES = {
    "a review": Recipe("er", memory=12, width=1, batch_size=4, review_every=2, settings={"review_batch": 4}),
    "a task end": Recipe("gdumb", memory=12, width=1, batch_size=4, review_every=2, settings={"rehearsal_epochs": 1}),
}


@pytest.fixture
def samples(tmp_path: Path) -> list[LabelledFile]:
    rng = np.random.default_rng(0)
    for name in "abc":
        (tmp_path / "images" / name).mkdir(parents=True)
        for image in range(6):
            Image.fromarray(rng.integers(0, 256, (10, 10), np.uint8)).save(tmp_path / "images" / name / f"{image}.png")
    return read_list(tmp_path / "images", shuffle=0)


def test_a_folder_of_images_below_each_class(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "train" / name / "images").mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "train" / name / "images" / "0.png")
    found = [(sample.name, sample.label) for sample in read_list(tmp_path)]
    assert found == [("cat/images/0.png", "cat"), ("dog/images/0.png", "dog")]


def test_names_that_are_not_text(samples: list[LabelledFile], tmp_path: Path) -> None:
    """A name on Linux may have a byte that is no UTF-8, which Python reads as half of a pair."""
    odd = [file._replace(name=f"\udcff{file.name}") for file in samples]
    model = Model(RECIPES["a review"], FORM)
    assert Feed(model, LabelledImages(odd)).run(tmp_path / "model")
    assert Feed(Model.load(tmp_path / "model", "cpu"), LabelledImages(odd)).position == len(odd)
    with pytest.raises(OcilError, match="this list is not the one"):
        Feed(Model.load(tmp_path / "model", "cpu"), LabelledImages(samples))


def learned(folder: Path) -> tuple[Any, ...]:
    model = Model.load(folder, "cpu")
    return digest(model.learner), model.labels, model.batches, model.samples, model.note


class StoppedInside(Feed):
    """Is asked to stop inside the review of this number."""

    asked = stopped = False

    def run_until(self, folder: Path, review: int) -> bool:
        name = "task_end_step" if self.model.recipe.method == "gdumb" else "review_step"
        step, end, reviews = getattr(self.model.learner, name), self.model.review_or_end_task, 0

        def counted(after_batch: Callable[[], None] = lambda: None) -> None:
            nonlocal reviews
            reviews += 1
            end(after_batch)

        def asking(slots: Any) -> None:
            self.asked |= reviews == review
            assert not self.asked or not self.stopped, "a batch of the review followed"
            self.stopped = self.asked
            step(slots)

        self.model.review_or_end_task = counted
        setattr(self.model.learner, name, asking)
        return self.run(folder, should_stop=lambda: self.asked)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize(("review", "position"), [(1, 4), (2, 12), (3, 18)])
def test_learning_stops_inside_a_review(
    samples: list[LabelledFile], tmp_path: Path, recipe: Recipe, review: int, position: int
) -> None:
    """After the batches 2 and 4 of 5, and at the end of the list. The same command then ends with the same bits."""
    assert Feed(Model(recipe, FORM), LabelledImages(samples)).run(tmp_path / "whole")
    feed = StoppedInside(Model(recipe, FORM), LabelledImages(samples))
    assert not feed.run_until(tmp_path / "parts", review)
    assert feed.asked
    again = Feed(Model.load(tmp_path / "parts", "cpu"), LabelledImages(samples))
    assert again.position == feed.position == position
    assert (again.scored, again.correct, again.model.samples) == (feed.scored, feed.correct, feed.model.samples)
    assert not again.reviewed
    assert again.run(tmp_path / "parts")
    assert learned(tmp_path / "parts") == learned(tmp_path / "whole")
