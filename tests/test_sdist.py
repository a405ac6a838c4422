"""The source distribution holds what its tests need."""

import os
import runpy
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import ocil
from tests.forking import Forked

ROOT = Path(__file__).parents[1]
WRITTEN = {"PKG-INFO", "setup.cfg"}  # by setuptools itself, beside a folder ocil.egg-info

pytestmark = pytest.mark.slow

Start = Callable[..., "subprocess.Popen[str]"]


def tracked() -> list[str]:
    """The files that git knows and that are there, new ones that it does not ignore among them."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


@pytest.fixture
def unpacked(start_python: Start, tmp_path: Path) -> Path:
    """The sdist of a copy of this tree, built without a network and unpacked."""
    pytest.importorskip("setuptools", minversion="77")
    for name in tracked():
        copy = tmp_path / "tree" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("results/"):
            copy.touch()  # it would take seconds to compress them all, and their names are enough
        else:
            shutil.copy2(ROOT / name, copy)
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    process = start_python("-c", code, tmp_path, cwd=tmp_path / "tree")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    with tarfile.open(tmp_path / out.split()[-1]) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    return folder


def test_the_sdist_holds_every_tracked_file_and_its_tests_are_found(
    unpacked: Path, fork_python: Callable[..., Forked]
) -> None:
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert {name for name in files if ".egg-info/" not in name} == {*tracked()} | WRITTEN
    # They are the same files as here: that some are found shows that settings and what they import are there too.
    some = ("tests/data", "tests/test_conformance.py", "tests/test_scripts.py")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = inherited | {"PYTHONPATH": str(unpacked / "src"), "OMP_NUM_THREADS": "1"}
    words = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--assert=plain")  # nothing is rewritten
    process = fork_python(*words, *some, cwd=unpacked, env=environment)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    found = {line.partition("::")[0] for line in out.splitlines() if "::" in line}
    here = {str(path.relative_to(ROOT)) for name in some for path in (ROOT / name).glob("**/test_*.py")} | {*some[1:]}
    skipped = {name for name in here if "importorskip" in (ROOT / name).read_text()}
    assert here - skipped <= found <= here


def test_readme_has_whole_links_in_a_package_with_an_address() -> None:
    tool = runpy.run_path(str(ROOT / "tools/check_package.py"), run_name="check_package")
    text = (ROOT / "README.md").read_text()
    relative = {path for _, _, path in tool["LINK"].findall(text)}
    assert {"docs/start.md", "docs/images/cifar100-accuracy.png"} <= relative
    assert all((ROOT / path).exists() for path in relative)
    whole = tool["whole_links"](text, "https://example.org/us/ocil", "v1")
    assert tool["LINK"].findall(whole) == []
    assert "](https://example.org/us/ocil/blob/v1/docs/start.md)" in whole
    assert "](https://example.org/us/ocil/raw/v1/docs/images/cifar100-accuracy.png)" in whole
    assert "git clone https://example.org/us/ocil" in whole
    other = "[a](https://example.org) [b](#part) [c](mailto:a@example.org)"
    assert tool["whole_links"](other, "https://example.org/us/ocil", "v1") == other


def test_the_wheel_holds_every_file_of_the_package(start_python: Start, tmp_path: Path) -> None:
    """`make package` also installs it into a fresh environment: tools/check_package.py."""
    pytest.importorskip("setuptools", minversion="77")
    source = [name for name in tracked() if name.startswith("src/ocil/")]
    for name in (*source, "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / "tree" / name)
    code = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    process = start_python("-c", code, tmp_path, cwd=tmp_path / "tree")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    wheel = tmp_path / out.split()[-1]
    assert wheel.name.startswith(f"ocil-{ocil.__version__}-")
    assert wheel.stat().st_size < 4 * 2**20
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.startswith(f"ocil-{ocil.__version__}.dist-info/")}
    assert names == {name.removeprefix("src/") for name in source}
