"""A run that will not fit says so before it starts."""

from dataclasses import replace

import pytest

from ocil.config import resolve
from ocil.engine.fit import RESERVE, dataset_bytes, how_many_fit, run_bytes
from ocil.errors import OcilError
from tests.reference.datasets import noise

CONFIG = resolve("afs", "cifar100", memory=5000)


def test_what_a_run_takes_grows_with_what_it_keeps() -> None:
    data = noise(60, 6, (32, 32, 3))
    base = run_bytes(CONFIG, data)
    for bigger in ({"memory": 6000}, {"memory_batch": 200}, {"width": 40}):
        assert run_bytes(replace(CONFIG, learner=replace(CONFIG.learner, **bigger)), data) > base
    grown = replace(CONFIG, learner=replace(CONFIG.learner, memory=6000))
    assert run_bytes(grown, data) - base == 1000 * (32 * 32 * 3 + 8)


def test_as_many_as_fit_and_a_line_if_none_does() -> None:
    data = noise(60, 6, (32, 32, 3))
    each = run_bytes(CONFIG, data)
    assert how_many_fit(CONFIG, data, RESERVE + dataset_bytes(data) + 3 * each) == 3
    with pytest.raises(OcilError, match=r"needs about .* GB on the GPU and 1\.0 GB are free: use a smaller memory"):
        how_many_fit(CONFIG, data, 10**9)
