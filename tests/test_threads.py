"""How many CPU threads work takes, how they wait, and what is left behind in the temporary folder."""

import json
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest
import torch

from ocil import threads, variables
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluation.evaluator import Evaluator
from ocil.methods.er import ER
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.runs.build import make_learner
from ocil.streams import Stream, StreamConfig
from tests.conftest import Call, one_error

Start = Callable[..., "Popen[str]"]

SMALL, LARGE = 144 * 14 * 14 * 8**2, 144 * 32 * 32 * 20**2  # multiply-adds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine of so many cores, whose PyTorch is set to so many threads."""

    def made(cores: int, set_to: int) -> None:
        monkeypatch.setattr(threads, "cores", lambda: cores)
        monkeypatch.setattr(torch, "get_num_threads", lambda: set_to)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    return made


@pytest.mark.parametrize(
    ("cores", "set_to", "small", "large"),
    [
        (1, 1, 1, 1),
        (2, 2, 1, 1),  # a core is left to others
        (3, 3, 1, 2),
        (16, 16, 1, 4),
        (16, 8, 1, 4),  # PyTorch begins with half of the cores where each counts twice
        (16, 3, 3, 3),  # set by the user
        (16, 12, 12, 12),
        (2, 1, 1, 1),
    ],
)
def test_the_default(machine: Callable[..., None], cores: int, set_to: int, small: int, large: int) -> None:
    machine(cores, set_to)
    assert [threads.default_threads(work) for work in (SMALL, LARGE)] == [small, large]


def test_the_variable_wins(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(16, 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert threads.default_threads(SMALL) == 16


def test_a_block_around_it_wins(machine: Callable[..., None]) -> None:
    with threads.using(2):
        machine(2, 2)
        assert threads.default_threads(SMALL) == 2
    assert threads.default_threads(SMALL) == 1


def test_threads_are_put_back_also_after_an_error() -> None:
    scheduler = threads._arm_scheduler()
    before = torch.get_num_threads(), scheduler and scheduler.count

    def fail() -> None:
        with threads.using(3):
            assert torch.get_num_threads() == 3
            assert scheduler is None or scheduler.count == 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert before == (torch.get_num_threads(), scheduler and scheduler.count)


def test_a_model_computes_on_its_threads_and_leaves_the_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    learn = ER.learn

    def watched(self: ER, *batch: torch.Tensor) -> None:
        seen.append(torch.get_num_threads())
        learn(self, *batch)

    monkeypatch.setattr(ER, "learn", watched)
    recipe = Recipe("er", memory=20, width=2)
    model = Model(recipe, ImageFormat((14, 14, 1)), threads=2)
    x = np.zeros((10, 14, 14, 1), np.uint8)
    model.learn(x, ["a", "b"] * 5)
    copied = model.copy("cpu")
    copied.learn(x, ["a", "b"] * 5)
    copied.threads = None
    copied.learn(x, ["a", "b"] * 5)
    assert seen == [2, 2, 1]
    assert torch.get_num_threads() == 1


def test_a_learner_of_ones_own_computes_on_the_default(
    tiny: Dataset, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever verb is called, also of a class that the user wrote, unless a block around it settles the number."""
    seen: list[int] = []
    using = threads.using

    class Mine(ER):
        def learn(self, x: torch.Tensor, y: torch.Tensor) -> None:
            super().learn(x, y)

    learner = make_learner("er", tiny, memory=20, width=2, memory_batch=5, review=True)
    learner.__class__ = Mine
    x, y = torch.from_numpy(tiny.train_x[::8]), torch.from_numpy(tiny.train_y[::8])
    evaluate = Evaluator(Stream(tiny, StreamConfig(tasks=2)))

    def verbs() -> None:
        learner.learn(x, y)
        learner.scores(x)
        learner.end_task()
        evaluate(learner, 0)

    machine(16, 16)
    monkeypatch.setattr(threads, "using", lambda count: seen.append(count) or using(count))
    verbs()
    assert seen == [1] * 4
    with threads.using(2):
        verbs()
    assert seen == [1] * 4 + [2]
    threads.set_threads(1)


@pytest.mark.parametrize("count", [0, -1])
def test_too_few_are_refused(ocil_command: Call, tmp_path: Path, count: int) -> None:
    with pytest.raises(OcilError, match=rf"threads = {count} must be a whole number from 1"):
        Model(Recipe("er"), ImageFormat((8, 8, 1)), threads=count)
    model = ("--model", tmp_path / "model", "--threads", count)
    for words in (
        ("learn", tmp_path, *model),
        ("predict", tmp_path, *model),
        ("export", "--out", "a.onnx", *model),
        ("bench", "er", "--threads", count),
    ):
        assert "must be a whole number from 1" in one_error(ocil_command(*words))
    assert not list(tmp_path.iterdir())


def test_variables_that_somebody_set_are_kept() -> None:
    found: dict[str, str] = {}
    variables.prepare(found, "aarch64")
    assert found == {"OMP_WAIT_POLICY": "passive", "ONEDNN_JIT_PROFILE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    for chosen in (
        {"GOMP_SPINCOUNT": "9", "DNNL_JIT_PROFILE": "2", "CUDA_DEVICE_MAX_CONNECTIONS": "4"},
        {"OMP_WAIT_POLICY": "active", "ONEDNN_JIT_PROFILE": "6", "CUDA_DEVICE_MAX_CONNECTIONS": "32"},
    ):
        found = dict(chosen)
        variables.prepare(found, "aarch64")
        assert found == chosen
    found = {}
    variables.prepare(found, "x86_64")
    assert "ONEDNN_JIT_PROFILE" not in found


CONVOLUTION = """
import json, os, pathlib
pathlib.Path(f"/tmp/perf-{{os.getpid()}}.map").unlink(missing_ok=True)  # of an earlier process with the same number
{first}
import ocil
data = ocil.load_dataset()
ocil.make_learner("er", data, width=2).scores(__import__("torch").from_numpy(data.test_x[:2]))
print(json.dumps({{"pid": os.getpid(), "waiting": os.environ["OMP_WAIT_POLICY"]}}))
"""


def computed(start_python: Start, first: str = "") -> tuple[Path, str]:
    """Where a process that computed a convolution would leave its file, and how its threads waited."""
    process = start_python("-c", CONVOLUTION.format(first=first))
    out, err = process.communicate()
    assert process.returncode == 0, err
    found = json.loads(out)
    return Path(f"/tmp/perf-{found['pid']}.map"), found["waiting"]


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "aarch64", reason="written on ARM Linux only")
def test_no_file_is_left_in_the_temporary_folder(start_python: Start) -> None:
    path, _ = computed(start_python, 'os.environ["ONEDNN_JIT_PROFILE"] = "2"')
    if not path.exists():
        pytest.skip("this build of PyTorch writes none")
    path.unlink()
    path, waiting = computed(
        start_python, '[os.environ.pop(name, None) for name in ("ONEDNN_JIT_PROFILE", "OMP_WAIT_POLICY")]'
    )
    assert not path.exists()
    assert waiting == "passive"


def test_blocks_of_several_threads_may_overlap() -> None:
    scheduler = threads._arm_scheduler()
    if scheduler is None:
        pytest.skip("PyTorch's convolutions have no number of threads of their own here")
    before = scheduler.count
    first, second = threads.using(2), threads.using(1)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(first.__enter__).result()
        other.submit(second.__enter__).result()
        one.submit(first.__exit__, None, None, None).result()
        assert scheduler.count == 1
        other.submit(second.__exit__, None, None, None).result()
    assert scheduler.count == before
