"""The benchmark counts and reports what it says; how fast anything is, is not asserted."""

import json
from typing import Any

import pytest
import torch

from ocil.engines import bench
from ocil.engines.bench import Timing, _cost, made_up, measure
from ocil.evaluation.evaluator import batch_for
from ocil.runs.config import RunConfig, resolve
from tests.conftest import Call, one_error


@pytest.mark.slow
def test_a_step_of_afs_passes_stream_and_both_views() -> None:
    settings = {"width": 2, "memory": 30, "memory_batch": 6, "tasks": 2}
    config = resolve("afs", "made-up", settings=settings)
    timing = measure([config], made_up(4, (8, 8, 3), 30), torch.device("cpu"), repeats=3, seconds=0.02)
    assert timing.images_per_step == 10 + 2 * 6
    assert timing.seeds == 1
    assert timing.ms_per_review_step is not None
    assert timing.steps_per_second == pytest.approx(1000 / timing.ms_per_step)
    assert timing.images_per_second == pytest.approx(timing.images_per_step * timing.steps_per_second)
    assert timing.share_of_floor == pytest.approx(timing.floor_ms / timing.ms_per_step)


@pytest.mark.slow
def test_a_review_batch_larger_than_the_memory() -> None:
    settings = {"width": 2, "memory": 20, "memory_batch": 6, "tasks": 2, "review": True, "review_batch": 50}
    data = made_up(4, (8, 8, 3), 30)
    timing = measure([resolve("er", "made-up", settings=settings)], data, torch.device("cpu"), repeats=3, seconds=0.02)
    assert timing.ms_per_review_step is not None


def test_bare_passes_are_timed_for_half_as_long_as_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(bench, "_time", lambda steps, device, repeats, seconds: (asked.append(seconds) or 1.0, 0.0))
    config = resolve("fine-tune", "made-up", settings={"width": 1, "tasks": 2})
    measure([config], made_up(4, (8, 8, 3), 30), torch.device("cpu"), seconds=0.02)
    assert asked == [0.02, 0.01]


def test_large_images_are_scored_fewer_at_a_time() -> None:
    assert [batch_for("cuda", side * side) for side in (32, 84, 168, 10_000)] == [2500, 2500, 625, 1]
    assert batch_for("cpu", 32 * 32) == batch_for("mps", 84 * 84) == 500


def test_cost_of_the_paper_network() -> None:
    operations, written = _cost(resolve("er", "cifar100"), made_up(2, (32, 32, 3), 1))
    assert written == 1024 * 20 * 5 + 256 * 40 * 5 + 64 * 80 * 5 + 16 * 160 * 5
    stem, stages = 2 * 9 * 3 * 20 * 1024, 0
    for channels, pixels, into in ((20, 1024, 20), (40, 256, 20), (80, 64, 40), (160, 16, 80)):
        stages += 2 * pixels * channels * 9 * (into + 3 * channels)
        stages += 2 * pixels * channels * into if into != channels else 0
    assert operations == stem + stages


@pytest.mark.slow
def test_bench_command(ocil_command: Call) -> None:
    said = ocil_command("bench", "er", "--device", "cpu", "--seconds", 0.02, "--json", "--set", "width=2")
    (row,) = json.loads(said.out)["timings"]
    assert said.code == 0
    assert (row["method"], row["device"], row["precision"], row["images_per_step"]) == ("er", "cpu", "fp32", 20)
    table = ocil_command("bench", "fine-tune", "--device", "cpu", "--seconds", 0.02, "--set", "width=2")
    assert "fine-tune" in table.out
    assert "trained weights" not in table.out
    assert "Did you mean 'er'" in one_error(ocil_command("bench", "err", "--device", "cpu"))


def test_bench_shows_what_a_network_costs(ocil_command: Call) -> None:
    words = ("--device", "cpu", "--seconds", 0.02, "--set", "memory=20", "network=mlp(hidden=3)")
    (row,) = json.loads(ocil_command("bench", "er", *words, "--json").out)["timings"]
    assert (row["network"], row["parameters"], row["multiply_adds"]) == ("mlp(hidden=3)", 512 * 3 + 3, 512 * 3)
    said = ocil_command("bench", "er", "scr", *words)
    assert "1,539" in said.out
    assert said.code == 1
    assert "scr cannot learn from vectors" in said.errors[0]


def test_bench_leaves_out_settings_that_a_method_lacks(ocil_command: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[RunConfig] = []

    def pretend(configs: list[RunConfig], *_: Any, **__: Any) -> Timing:
        timed.append(configs[0])
        if configs[0].method == "mir":
            raise RuntimeError("can't allocate memory")
        return Timing(
            configs[0].label,
            "cpu",
            "tf32",
            1,
            1.0,
            0.0,
            None,
            None,
            1.0,
            1.0,
            20,
            1.0,
            1.0,
            None,
            "reduced-resnet18",
            0,
            0,
        )

    monkeypatch.setattr("ocil.engines.bench.measure", pretend)
    words = ("--device", "cpu", "--set", "beta=0.2", "width=3")
    said = ocil_command("bench", "afs", "er", "fine-tune", *words, "memory=300", "--json")
    assert said.code == 0, said
    assert [config.learner.width for config in timed] == [3, 3, 3]
    assert timed[0].learner.beta == 0.2  # type: ignore[attr-defined]
    assert [config.learner.memory for config in timed] == [300, 300, 0]
    assert len(json.loads(said.out)["timings"]) == 3

    timed.clear()
    assert "unknown setting 'beta' for er or mir" in one_error(ocil_command("bench", "er", "mir", *words))
    assert not timed

    said = ocil_command("bench", "er", "mir", "fine-tune", "--device", "cpu")
    assert said.code == 1
    assert all(name in said.out for name in ("er", "fine-tune"))
    (message,) = said.errors
    assert "mir" in message
    assert "does not fit on the device" in message


def test_methods_shows_every_setting_of_one(ocil_command: Call) -> None:
    rows = {row["name"]: row for row in json.loads(ocil_command("methods", "afs", "--json").out)["settings"]}
    assert rows["beta"]["default"] == 0.1
    assert rows["memory_batch"]["default"] == 100
    assert "memory" in rows["memory_batch"]["meaning"]
    assert "replay" in rows["memory"]["meaning"]
    assert rows["boundary"]["meaning"].startswith("``clear``")
    assert rows["memory"]["by_dataset"]["cifar100"] == 5000
    assert rows["memory_batch"]["by_dataset"]["cifar10"] == 100 != rows["memory_batch"]["by_dataset"]["fashion-mini"]
    assert "by_dataset" not in rows["lr"]
    text = ocil_command("methods", "afs").out
    assert "beta" in text
    assert "5000  cifar100" in text
    assert "``" not in text
    assert "Did you mean 'afs'" in one_error(ocil_command("methods", "afss"))
