"""A run that will not fit says so before it starts."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.methods.passes import images_held
from ocil.runs.build import build
from ocil.runs.config import resolve
from ocil.runs.fit import RESERVE, dataset_bytes, how_many_fit, run_bytes
from tests.reference.datasets import noise

CONFIG = resolve("afs", "cifar100", memory=5000)


def test_what_a_run_takes_grows_with_what_it_keeps() -> None:
    data = noise(60, 6, (32, 32, 3))
    base = run_bytes(CONFIG, data)
    for name, value in {"memory": 6000, "memory_batch": 200, "width": 40}.items():
        learner = replace(CONFIG.learner, **{name: value})  # type: ignore[arg-type]
        assert run_bytes(replace(CONFIG, learner=learner), data) > base
    grown = replace(CONFIG, learner=replace(CONFIG.learner, memory=6000))
    assert run_bytes(grown, data) - base == 1000 * (32 * 32 * 3 + 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, info in METHODS.items() if not info.offline])
def test_every_pass_of_a_step_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is estimated is no less than what a network is given at once, also before the memory is full."""
    data = noise(160, 4, (8, 8, 1))
    settings = {"width": 2, "tasks": 2, "review": False, "memory": 120} | ({"repeats": 2} if name == "rar" else {})
    config = resolve(name, "cifar10", settings=settings if METHODS[name].memory else {"width": 2, "tasks": 2})
    learner, seen = build(config, data), [0]
    plain = type(learner.network).features

    def counted(network: Any, x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        seen.append(len(x))
        found: torch.Tensor = plain(network, x, *args, **options)
        return found

    plain_maps = type(learner.network).stage_maps

    def counted_maps(network: Any, x: torch.Tensor) -> list[torch.Tensor]:
        seen.append(len(x))
        return plain_maps(network, x)

    monkeypatch.setattr(type(learner.network), "features", counted)
    monkeypatch.setattr(type(learner.network), "stage_maps", counted_maps)
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    for number in range(16):
        learner.learn(x[10 * number : 10 * number + 10], y[10 * number : 10 * number + 10])
    assert max(seen) <= images_held(learner.passes(config.learner, 10, data.num_classes))
    assert name == "gdumb" or max(seen) >= 10


def test_evaluations_are_counted() -> None:
    data = noise(300, 10, (84, 84, 3))
    config = resolve("er", "mini_imagenet", memory=1000)
    assert run_bytes(config, data) > 4 * len(data.train_y) * 84 * 84 * 20  # one map of one layer


def test_as_many_as_fit_and_a_line_if_none_does() -> None:
    data = noise(60, 6, (32, 32, 3))
    each = run_bytes(CONFIG, data)
    assert how_many_fit(CONFIG, data, RESERVE + dataset_bytes(data) + 3 * each) == 3
    with pytest.raises(OcilError, match=r"needs about .* GB on the GPU and 1\.0 GB are free: use a smaller memory"):
        how_many_fit(CONFIG, data, 10**9)
