"""A run that will not fit says so before it starts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.methods.passes import images_held
from ocil.runs.build import build, network_of
from ocil.runs.config import resolve
from ocil.runs.fit import RESERVE, dataset_bytes, free_bytes, how_many_fit, run_bytes
from tests.networks_to_try import TINY
from tests.reference.datasets import noise
from tests.test_methods import QUICK

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
    usual: dict[str, Any] = {"network": TINY, "tasks": 2} | QUICK.get(name, {})
    settings = usual | ({"review": False, "memory": 120} if METHODS[name].memory else {})
    config = resolve(name, "cifar10", settings=settings)
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
    for number in range(14):
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
    with pytest.raises(OcilError, match=r"needs about .* GB on the GPU and 1 GB are free: use a smaller memory"):
        how_many_fit(CONFIG, data, 10**9)


def test_what_pytorch_keeps_of_ended_runs_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [60]
    monkeypatch.setattr(torch.cuda, "empty_cache", kept.clear)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 - sum(kept), 100))
    assert free_bytes(torch.device("cuda")) == 100


@pytest.mark.parametrize("name", METHODS)
def test_a_method_states_the_tensors_of_its_own(name: str) -> None:
    data = noise(40, 6, (16, 16, 3))
    settings = {"width": 4} | ({"projection": 90} if name == "ranpac" else {})
    learner = build(resolve(name, "cifar10", settings=settings), data)
    own = {
        key: value
        for key, value in (*learner.named_parameters(), *learner.named_buffers())
        if not key.startswith(("network.", "memory.")) and value.ndim
    }
    held = sum(value.numel() * value.element_size() for value in own.values())
    held += 2 * sum(value.numel() * value.element_size() for key, value in own.items() if key.startswith("qnet."))
    # MOSE's branches and CCL-DC's other network: their gradients and Adam's three numbers.
    branches = ("experts.", "heads.", "projections.", "adapter.", "peer.")
    held += 4 * sum(4 * weight.numel() for key, weight in learner.named_parameters() if key.startswith(branches))
    network = network_of(learner.config, data.input_shape)
    stated = learner.extra_state(learner.config, learner.problem, network).kept
    assert stated * 0.95 - 100 <= held <= stated + 100  # a few flags per class are not counted
    if name in ("ncm", "slda", "ranpac"):
        assert held == stated


def vectors(size: int) -> Dataset:
    x = np.random.default_rng(0).standard_normal((60, size)).astype(np.float32)
    return Dataset.from_arrays(x, np.arange(60) % 6, x[:6], np.arange(6))


def test_matrices_count_for_whether_a_run_fits() -> None:
    data = vectors(32)
    few, many = (resolve("ranpac", "own.npz", settings={"projection": n}, classes=6, vectors=True) for n in (100, 1100))
    more = run_bytes(many, data) - run_bytes(few, data)
    assert more > 8 * 2 * (1100**2 - 100**2)
    learner = build(many, data)
    held = sum(each.numel() * each.element_size() for each in learner.buffers())
    assert held < run_bytes(many, data) < 5 * held


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["slda", "ranpac"])
def test_scoring_takes_no_more_than_is_estimated(name: str) -> None:
    data = vectors(1500)
    config = resolve(name, "own.npz", classes=6, vectors=True)
    before = torch.cuda.memory_allocated()  # what earlier tests still hold
    learner = build(config, data, "cuda")
    x, y = torch.from_numpy(data.train_x).cuda(), torch.from_numpy(data.train_y).cuda()
    for first in range(0, 60, 10):
        learner.learn(x[first : first + 10], y[first : first + 10])
    torch.cuda.reset_peak_memory_stats()
    learner.scores(x)
    assert torch.cuda.max_memory_allocated() - before < RESERVE // 4 + run_bytes(config, data)
