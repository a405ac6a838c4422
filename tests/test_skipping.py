"""Nothing is skipped in silence."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import browsing, skipping
from tests.skipping import packages_of

ROOT = Path(__file__).parents[1]
SKIPS = """
import pytest

@pytest.mark.parametrize("number", range(3))
@pytest.mark.skipif(True, reason="needs a printer")
def test_printing(number): ...

@pytest.mark.gpu
def test_gpu(): ...

@pytest.mark.gpu(optional=True)
def test_gpu_or_not(): ...
"""

Start = Callable[..., "subprocess.Popen[str]"]


def run_tests(start_python: Start, folder: Path, second: str, *words: str) -> tuple[str, str]:
    """What pytest prints of two files of tests, without a GPU: ``SKIPS``, and one of the content ``second``."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: see pyproject.toml\n")
    (folder / "test_one.py").write_text(SKIPS)
    (folder / "test_two.py").write_text(second)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "OCIL_NO_SKIP": ""}
    process = start_python("-m", "pytest", "-p", "tests.skipping", *words, cwd=folder, env=environment)
    return process.communicate(timeout=600)


@pytest.mark.slow
def test_what_was_skipped_is_listed_by_its_reason(start_python: Start, tmp_path: Path) -> None:
    second = "import pytest\npytest.importorskip('not_there')\n"
    out, err = run_tests(start_python, tmp_path, second, "-p", "xdist", "-n", "2")
    *_, listed = out.partition("skipped, and why")
    assert [line.split(maxsplit=2) for line in listed.splitlines()[1:4]] == [
        ["3", "tests", "needs a printer"],
        ["1", "test", "needs a GPU"],
        ["1", "file", "not_there is not installed: make test installs it"],
    ], out + err
    assert "1 passed, 5 skipped" in out


@pytest.mark.slow
def test_tests_of_a_gpu_are_found_without_importing_the_others(start_python: Start, tmp_path: Path) -> None:
    out, _ = run_tests(start_python, tmp_path, "import not_there\n", "-m", "gpu")
    assert "1 passed, 1 skipped, 3 deselected" in out
    out, _ = run_tests(start_python, tmp_path, "import not_there\n")
    assert "No module named 'not_there'" in out


def test_files_with_tests_of_a_gpu_are_known_by_their_text(request: pytest.FixtureRequest) -> None:
    files = {item.path for item in request.session.items if item.get_closest_marker("gpu")}
    assert all("mark.gpu" in path.read_text() for path in files)


def test_what_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCIL_NO_SKIP", "packages,browser")
    monkeypatch.setattr(skipping, "is_installed", lambda name: name != "ray")
    with pytest.raises(pytest.UsageError, match="but ray is not installed: run make test"):
        skipping.pytest_configure()
    monkeypatch.setattr(skipping, "is_installed", lambda name: True)
    skipping.pytest_configure()
    monkeypatch.setattr(browsing, "BROWSER", None)
    with pytest.raises(RuntimeError, match="apt-get install chromium"):
        browsing.needs_browser()
    monkeypatch.setenv("OCIL_NO_SKIP", "printer")
    with pytest.raises(pytest.UsageError, match="OCIL_NO_SKIP names 'printer'"):
        skipping.pytest_configure()


def test_without_a_browser_the_reason_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCIL_NO_SKIP", raising=False)
    monkeypatch.setattr(browsing, "BROWSER", None)
    monkeypatch.setattr(browsing, "find_spec", lambda name: True)
    mark = browsing.needs_browser().mark
    assert mark.args == (True,)
    assert "apt-get install chromium" in mark.kwargs["reason"]


def test_the_packages_of_the_extra() -> None:
    found = list(packages_of("test"))
    assert {"ray", "scikit-learn", "onnx", "fastapi", "schemathesis", "playwright", "pytest"} <= {*found}
    assert "ocil" not in found
    assert not {"ray", "triton", "playwright"} & {*packages_of("dev")}, "`make setup` stays light"
