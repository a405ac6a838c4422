"""DER++: what is stored with an image, and steps by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

import ocil
import ocil.methods.derpp
from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.methods.config import Problem
from ocil.methods.derpp import DERPlusPlus
from ocil.methods.er_ace import shift_and_flip
from ocil.networks import to_float
from tests.test_methods import BATCH, MEMORY, REPLAY, SlowStep, batch, make, record, warm

pytestmark = pytest.mark.usefixtures("quick_convolution")


def derpp(steps: int, **changes: Any) -> DERPlusPlus:
    learner = warm("derpp", steps, **changes)
    assert isinstance(learner, DERPlusPlus)
    return learner


def surprise(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of -log p, written out."""
    p = [row[label].exp() / row.exp().sum() for row, label in zip(logits, labels.tolist(), strict=True)]
    return -torch.stack(p).log().mean()


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("settings", [{}, {"augment": False, "alpha": 0.7, "beta": 0.2}], ids=str)
def test_a_step_by_hand(settings: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = derpp(steps, lr=0.07, **settings)
    slow, config = SlowStep(learner), learner.config
    stored = {name: value.clone() for name, value in learner.state().items()}
    draws = record(learner.memory, "draw", monkeypatch)
    views = record(ocil.methods.derpp, "shift_and_flip", monkeypatch)
    x, y = batch(steps)
    learner.learn(x, y)

    def logits(images: Tensor) -> Tensor:
        return slow.logits(to_float(views.pop(0) if config.augment else images))

    slow.minimise(surprise(logits(x), y))
    first, second = draws
    if steps:
        assert len(first) == len(second) == min(REPLAY, BATCH * steps)
        assert steps == 1 or first.tolist() != second.tolist()  # two draws
        now, then = logits(stored["memory.images"][first]), stored["outputs.logits"].T[first]
        squares = [(a - b) ** 2 for row, old in zip(now, then, strict=True) for a, b in zip(row, old, strict=True)]
        slow.minimise(config.alpha * torch.stack(squares).mean())
        slow.minimise(config.beta * surprise(logits(stored["memory.images"][second]), stored["memory.labels"][second]))
    assert views == []
    slow.agrees()


def test_a_review_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = derpp(3)
    slow, views = SlowStep(learner), record(ocil.methods.derpp, "shift_and_flip", monkeypatch)
    slots = torch.tensor([4, 1, 9])
    learner.review_step(slots)
    (shown,) = views
    slow.minimise(surprise(slow.logits(to_float(shown)), learner.memory.labels[slots]))
    slow.rate *= 0.1
    slow.agrees()


@pytest.mark.parametrize("growing", [False, True])
def test_logits_are_those_of_the_step_that_stored_the_image(growing: bool) -> None:
    learner = make("derpp", augment=False, growing=growing)
    assert isinstance(learner, DERPlusPlus)
    kept: dict[bytes, tuple[Tensor, list[int]]] = {}
    for number in range(8):
        x, y = batch(number)
        learner.meet(y.tolist())
        network = SlowStep(learner).network
        learner.learn(x, y)
        for image, logits in zip(x, network(to_float(x)).detach(), strict=True):
            kept[image.numpy().tobytes()] = logits, learner.classes_met
    logits, known = learner.outputs.read(torch.arange(MEMORY))
    for slot, image in enumerate(learner.memory.images[:MEMORY]):
        expected, classes = kept[image.numpy().tobytes()]
        assert known[slot].nonzero().flatten().tolist() == classes
        torch.testing.assert_close(logits[slot, classes], expected[classes])
    assert not learner.outputs.logits[:, MEMORY].any()  # the spare slot


def test_classes_that_had_not_come_are_left_out() -> None:
    learner = make("derpp", augment=False, growing=True)
    assert isinstance(learner, DERPlusPlus)
    x, _ = batch(0)
    learner.learn(x, torch.tensor([0, 1, 0, 1, 1]))
    learner.learn(x, torch.tensor([0, 1, 4, 1, 5]))
    assert float(learner.last_loss) < 50  # a score of -10,000 would show
    assert learner.outputs.known.sum(1).tolist()[:6] == [10, 10, 0, 0, 5, 5]


@pytest.mark.parametrize("method", ["derpp", "er-ace"])
def test_tiny_images_are_not_shifted_out_of_sight(method: str) -> None:
    """A border of 4 pixels around images of 2 x 2: most windows would be black, and a batch of them gives NaN."""
    kind = METHODS[method].load()
    learner = kind(kind.Config(memory=20, width=2), Problem((2, 2, 3), 4))
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        x = torch.randint(256, (10, 2, 2, 3), generator=generator, dtype=torch.uint8)
        learner.learn(x, torch.randint(4, (10,), generator=generator))
    assert int(learner.failed_at) == -1
    white = torch.full((500, 2, 3, 1), 255, dtype=torch.uint8)
    shown = shift_and_flip(white, 4, generator).double().mean((1, 2, 3)) / 255
    assert float(shown.min()) == pytest.approx(1 / 3)  # by at most a pixel down and aside: 1 x 2 of 2 x 3 pixels remain


def test_published_settings() -> None:
    config: Any = ocil.resolve("derpp", "cifar100").learner
    assert (config.alpha, config.beta, config.memory_batch, config.lr) == (0.1, 0.5, 10, 0.1)
    for wrong in ({"alpha": -1.0}, {"beta": -1.0}, {"pad": -1}):
        with pytest.raises(OcilError, match=next(iter(wrong))):
            make("derpp", **wrong)
