"""What other systems lack is not needed: Linux-only modules and functions are hidden in another process."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ocil
from ocil import devices, files, precision
from ocil.data.lookup import _is_path
from ocil.methods.er import ER
from ocil.runs import build
from ocil.runs.config import resolve
from tests.conftest import SMALL
from tests.forking import Forked
from tests.test_methods import QUICK

Fork = Callable[..., Forked]

HIDE = """
import os, pkgutil, signal, socket, sys

ABSENT = {"fcntl", "resource", "grp", "pwd", "termios", "pty", "tty", "syslog", "readline"}

class Windows:
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

import torch, numpy, rich.console, filelock  # what others import is their business
for name in ABSENT:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Windows())
for name in ("fork", "sched_getaffinity", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "pread", "pwrite", "sysconf",
             "geteuid", "getuid", "fchmod", "statvfs"):
    vars(os).pop(name, None)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "pthread_sigmask", "pthread_kill"):
    vars(signal).pop(name, None)
"""
IMPORT_ALL = """
import ocil
broken = {}
for module in pkgutil.walk_packages(ocil.__path__, "ocil."):
    if module.name.endswith("__main__"):
        continue
    try:
        __import__(module.name)
    except Exception as error:
        broken[module.name] = f"{type(error).__name__}: {error}"
print(broken)
"""
RUN = """
from ocil.cli import main
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_every_module_without_what_linux_has(fork_python: Fork) -> None:
    out, err = (process := fork_python("-c", HIDE + IMPORT_ALL)).communicate()
    assert process.returncode == 0, err
    found: dict[str, str] = eval(out)
    extras = {name: why for name, why in found.items() if "triton" in why}  # kernels: their package is for Linux
    assert found == extras


@pytest.mark.slow
def test_a_run_without_what_linux_has(fork_python: Fork, tiny_npz: Path, tmp_path: Path) -> None:
    words = ("run", "er", "--dataset", tiny_npz, "--memory", 20, "--seeds", 1, "--no-reference", "--device", "cpu")
    process = fork_python("-c", HIDE + RUN, *words, "--out", tmp_path / "runs", "--json", "--set", *SMALL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert '"failed": []' in out


def test_a_folder_is_synced_only_where_it_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.sync_folder(tmp_path)
    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("Windows cannot open a folder"))
    files.sync_folder(tmp_path)


def test_a_file_that_is_open_elsewhere_is_replaced_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where a virus scanner may hold the former file."""
    path, usual = tmp_path / "result.json", Path.replace
    tries: list[Path] = []

    def refuse(self: Path, target: Path) -> Any:
        tries.append(target)
        if len(tries) < 3:
            raise PermissionError(13, "Access is denied")
        return usual(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(files, "RENAME_SECONDS", 0.0)
    with pytest.raises(ocil.OcilError, match="Access is denied"):
        files.write_bytes(path, b"new")
    assert len(tries) == 1  # elsewhere it does not help to wait
    monkeypatch.setattr(files, "OPEN_FILES_STAY", True)
    files.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_stays_open_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(13, "Access is denied")

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(files, "RENAME_SECONDS", 0.0)
    monkeypatch.setattr(files, "OPEN_FILES_STAY", True)
    with pytest.raises(ocil.OcilError, match="Access is denied"):
        files.write_bytes(tmp_path / "result.json", b"new")
    assert list(tmp_path.iterdir()) == []


def test_paths_with_backslashes() -> None:
    assert _is_path("C:\\data\\birds")
    cell = resolve("er", "C:\\data\\my birds.npz").cell
    assert not set(cell) & set('<>:"/\\|?*')


# Apple GPUs


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_order_of_devices(mps: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "computes_correctly", lambda device: True)
    assert devices.pick_device().type == "mps"
    monkeypatch.setattr(devices, "computes_correctly", lambda device: False)
    assert devices.pick_device().type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.pick_device().type == "cuda"


def test_a_device_is_compared_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices.computes_correctly.cache_clear()
    assert devices.computes_correctly("cpu")
    assert not devices.computes_correctly("vulkan")  # it is not there
    wrong = torch.nn.functional.conv2d

    def conv2d(x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        found: torch.Tensor = wrong(x, *rest, **options)
        return found * next(factors)

    factors = iter((1.1, 1.0))
    devices.computes_correctly.cache_clear()
    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    assert not devices.computes_correctly("cpu")
    devices.computes_correctly.cache_clear()


def test_a_device_that_is_not_there(mps: None) -> None:
    with pytest.raises(ocil.OcilError, match="device 'vulkan' is not there: use auto, cpu or mps"):
        devices.pick_device("vulkan")


def test_no_double_precision_on_apple_gpus() -> None:
    assert precision.widest(torch.device("mps")) is torch.float32
    assert precision.widest(torch.device("cpu")) is precision.widest(torch.device("cuda")) is torch.float64


def test_a_method_that_cannot_run_there_is_refused_before_the_start(
    tiny: ocil.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve("er", "tiny.npz", settings={"memory": 20, "memory_batch": 5})
    build.refuse_missing_operators(config, tiny, torch.device("cpu"))  # nothing is tried

    def step(self: ER, x: torch.Tensor, y: torch.Tensor) -> None:
        raise NotImplementedError("The operator 'aten::index_copy.out' is not\nimplemented for the MPS device.")

    monkeypatch.setattr(ER, "learn", step)
    tried, here = build._try_steps, torch.device("cpu")
    monkeypatch.setattr(build, "_try_steps", lambda name, learner, problem, device: tried(name, learner, problem, here))
    with pytest.raises(ocil.OcilError) as found:
        build.refuse_missing_operators(config, tiny, torch.device("mps"))
    assert "er cannot run on " in str(found.value)
    assert "'aten::index_copy.out' is not implemented for the MPS device. Use the CPU (--" in str(found.value)


@pytest.mark.parametrize("name", sorted({info.name for info in ocil.METHODS.values() if not info.offline}))
def test_the_trial_of_a_method_works_where_nothing_is_missing(name: str, tiny: ocil.Dataset) -> None:
    config = resolve(name, "tiny.npz", settings=QUICK.get(name, {}), classes=4, train=80)
    build._try_steps(name, replace(config.learner, width=1), build.problem_of(tiny, 2), torch.device("cpu"))
