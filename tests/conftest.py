"""A dataset that learns in a moment, and ways to call the command line and scripts."""

import functools
import gc
import importlib
import importlib.util
import io
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import re
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ocil import plugins
from ocil.data import Dataset
from tests.browsing import Pages, launched, visits
from tests.forking import ANY, Forked, Forks
from tests.parsing import find_options_once
from tests.skipping import (  # noqa: F401  (hooks)
    pytest_configure,
    pytest_ignore_collect,
    pytest_runtest_setup,
    pytest_terminal_summary,
)

with suppress(ImportError):  # some machines that run a few tests have no hypothesis
    import hypothesis

    # The same examples in every run: a change is never blamed for a rare one that it did not touch.
    hypothesis.settings.register_profile("ocil", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("ocil")


SMALL = ("width=2", "memory_batch=5", "tasks=2")
TRAIN, TEST, CLASSES = 20, 10, 4


class Said(NamedTuple):
    """What a call of the command line left behind."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("ocil: error: ")]


Call = Callable[..., Said]
Script = Callable[..., str]


gc.disable()  # until all is collected: of what is imported until then, nothing is garbage


def pytest_collection_finish() -> None:
    """What was imported and collected stays: no later search for garbage, of half a second each, looks at it again."""
    gc.freeze()
    gc.enable()
    hand_on_what_torch_logs()


def hand_on_what_torch_logs() -> None:
    """pytest puts its handlers on every logger that hands nothing on, six times in each test, and PyTorch has fifty of
    them. From now on they hand on, and the root's handlers hear the same.
    """
    for name, logger in logging.Logger.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "torch":
            logger.propagate = True


searches = 0


def pytest_runtest_logfinish() -> None:
    """What a full search for garbage leaves, such as libraries that a test loaded, the next one does not look at."""
    global searches
    if (now := gc.get_stats()[2]["collections"]) > searches:
        searches = now
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Results depend on the number of threads in their last digits, and small networks gain nothing from a second."""
    from ocil.threads import set_threads

    set_threads(1)


@pytest.fixture(scope="session", autouse=True)
def usual_precision() -> Iterator[None]:
    """Defaults are those of a machine without a GPU, whatever this one has."""
    from ocil import precision

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "usual", lambda: precision.DEFAULT)
        yield


@pytest.fixture(autouse=True)
def own_plugins() -> Iterator[None]:
    """What a test registers or loads as a plugin is unknown to the next one."""
    with plugins.preserved():
        yield


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is kept for later lies in a folder of the tests, also for the processes that they start."""
    os.environ["OCIL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def set_convolution(ours: bool, one_dnn: bool) -> tuple[bool, bool]:
    """Whether our own convolution and oneDNN's may be used; what held before."""
    import torch

    import ocil.kernels.convolution as module

    before = module.SLOW_BACKWARD, torch._C._get_mkldnn_enabled()
    module.SLOW_BACKWARD = ours
    torch._C._set_mkldnn_enabled(one_dnn)
    return before


@pytest.fixture(scope="session", autouse=True)
def quick_convolution() -> Iterator[tuple[bool, bool]]:
    """What is fast for large images takes most of the time of a network of a few channels. What is usual."""
    usual = set_convolution(ours=False, one_dnn=False)
    yield usual
    set_convolution(*usual)


@pytest.fixture(scope="module")
def usual_convolution(quick_convolution: tuple[bool, bool]) -> Iterator[None]:
    """For tests that expect the same bits in this process and in one that they start."""
    quick = set_convolution(*quick_convolution)
    yield
    set_convolution(*quick)


@pytest.fixture(scope="session")
def timm() -> Any:
    """timm, which imports torchvision. A torchvision of another build than PyTorch's, as PyPI has for ARM, lacks two
    operators of its own: no network uses them, so that naming them is enough.
    """
    import torch

    if importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision") is None:
        pytest.skip("timm is not installed: make test installs it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its image readers
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            assert "torchvision::" in str(error)  # noqa: PT017
            for name in ("nms", "qnms"):
                operator = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                torch.library.define(f"torchvision::{name}", operator)
        return importlib.import_module("timm")


@pytest.fixture(scope="session")
def quick_onnx() -> None:
    """PyTorch looks at hundreds of operators and their source code for each export: for tests it does so once."""
    if importlib.util.find_spec("onnxscript") is not None:
        registration: Any = importlib.import_module("torch.onnx._internal.exporter._registration")
        places = (
            (registration.onnxscript_apis, "get_torchlib_ops"),
            (registration._schemas, "op_signature_from_function"),
            (importlib.import_module("torch._export.utils"), "_materialize_cpp_cia_ops"),
        )
        for place, name in places:
            setattr(place, name, functools.cache(getattr(place, name)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for the whole session: tests of other files could not use asyncio while it is there."""
    yield from launched()


@pytest.fixture(scope="module")
def pages(browser: Any) -> Pages:
    return Pages(browser)


@pytest.fixture
def visit(pages: Pages) -> Iterator[Any]:
    yield from visits(pages)


@pytest.fixture(scope="session")
def tiny() -> Dataset:
    """Four classes of 8x8 gray images whose brightness tells them apart."""
    rng = np.random.default_rng(0)

    def images(labels: np.ndarray) -> np.ndarray:
        return (rng.integers(0, 60, (len(labels), 8, 8, 1)) + 60 * labels[:, None, None, None]).astype(np.uint8)

    train_y, test_y = (np.repeat(np.arange(CLASSES), n) for n in (TRAIN, TEST))
    return Dataset("tiny", images(train_y), train_y, images(test_y), test_y, ("a", "b", "c", "d"))


@pytest.fixture(scope="session")
def tiny_npz(tiny: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    tiny.save(path)
    return path


@pytest.fixture(scope="session")
def quick_parsing() -> None:
    """Most of the time of a call of the command line goes into finding its options, which are the same in each call."""
    find_options_once()


@pytest.fixture
def ocil_command(quick_parsing: None, capsys: pytest.CaptureFixture[str]) -> Call:
    """Call ``ocil`` in this process: exit code, standard output, standard error."""
    from ocil.cli import main

    def call(*words: object) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return Said(int(stopped.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def run_tiny(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> Call:
    """``ocil run METHOD`` on the tiny dataset, into ``tmp_path/runs``, one run after the other in this process."""

    def call(method: str, *words: object, settings: tuple[str, ...] = ()) -> Said:
        memory = () if method in ("fine-tune", "iid-offline") else ("--memory", 20)
        memory = () if {"--memory", "-m"} & set(map(str, words)) else memory
        workers = () if "--workers" in words else ("--workers", 1)
        out = () if {"--out", "-o"} & set(map(str, words)) else ("--out", tmp_path / "runs")
        dataset = () if {"--dataset", "-d"} & set(map(str, words)) else ("--dataset", tiny_npz)
        named = {setting.partition("=")[0] for setting in settings}
        small = (setting for setting in SMALL if setting.partition("=")[0] not in named)
        return ocil_command("run", method, *dataset, *memory, *workers, *out, *words, "--set", *small, *settings)

    return call


@pytest.fixture(scope="session")
def worker_source() -> None:
    """A process that has loaded what workers need, so that they are copies of it. It has no threads, and does without
    what a test changes in the environment.
    """
    needed = ["ocil.runs.stream_run", "ocil.longtail.runs", "ocil.methods.er", "ocil.report.rendering"]
    multiprocessing.set_forkserver_preload(needed)
    multiprocessing.forkserver.ensure_running()


@pytest.fixture
def quick_workers(worker_source: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are not about the start of workers: to load PyTorch or Matplotlib takes each of them a second
    or two.
    """
    monkeypatch.setattr("ocil.processes.START_METHOD", "forkserver")


@pytest.fixture(scope="session")
def start_python() -> Callable[..., "subprocess.Popen[str]"]:
    """Start another Python that finds ocil, in a session of its own, with one thread."""
    source = Path(__file__).parents[1] / "src"
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}

    def start(*words: object, **options: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, **({"env": environment} | options),
        )  # fmt: skip

    return start


@pytest.fixture(scope="session")
def forks(start_python: Callable[..., "subprocess.Popen[str]"]) -> Iterator[Forks]:
    with start_python("-c", ANY) as process:
        yield Forks(process)
        process.communicate()


@pytest.fixture
def fork_python(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Forked]:
    """As ``start_python``, in a copy of a process that has loaded PyTorch, which takes two seconds: for tests that are
    about something else.
    """

    def start(*words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Forked:
        env = os.environ | {"OMP_NUM_THREADS": "1"} if env is None else env
        return forks.start(words, tmp_path_factory.mktemp("forked"), env, cwd or Path.cwd())

    return start


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Run ``FOLDER/NAME.py`` with some words, in an empty folder; what it prints. In this process: a Python of its own
    would spend most of its time on loading PyTorch."""

    def run(name: str, *words: object, code: int = 0) -> str:
        import torch

        import ocil.kernels.convolution
        from ocil.threads import set_threads

        path = Path(__file__).parents[1] / f"{name}.py"
        said, stopped, loaded = io.StringIO(), 0, {*sys.modules}
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with monkeypatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
            patch.setattr(ocil.kernels.convolution, "SLOW_BACKWARD", ocil.kernels.convolution.SLOW_BACKWARD)
            if not torch.cuda.is_available():  # as in the tests of the kernels
                patch.setenv("TRITON_INTERPRET", "1")
            patch.setattr(sys, "argv", [str(path), *map(str, words)])
            patch.syspath_prepend(path.parent)
            patch.chdir(tmp_path)
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as ended:
                stopped = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
                print("" if isinstance(ended.code, int | None) else ended.code)
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                set_threads(1)
                for module in {*sys.modules} - loaded:  # a script that another one imports
                    if (getattr(sys.modules[module], "__file__", None) or "").startswith(str(path.parent)):
                        del sys.modules[module]
        assert stopped == code, said.getvalue()
        return said.getvalue()

    return run


def left_over(root: Path) -> list[Path]:
    """Temporary files that should not be there."""
    return [path for path in root.rglob("*") if path.suffix == ".tmp"]


def one_error(said: Said) -> str:
    """The only message of a call that failed because of its input."""
    assert said.code == 2, said
    assert len(said.errors) == 1, said.err
    assert "Traceback" not in said.err
    assert not re.search(r"\s{2,}|\n", said.errors[0])
    return said.errors[0].removeprefix("ocil: error: ")
