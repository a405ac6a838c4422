import re
import runpy
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cyclopts import App

import ocil
import ocil.cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python[^\n]*\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
HEAVY = ("torch", "numpy", "matplotlib")  # what takes long to import

Start = Callable[..., "subprocess.Popen[str]"]


def spoken(process: "subprocess.Popen[str]", seconds: float = 600) -> str:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, err
    return out


def test_every_public_name_resolves() -> None:
    assert ocil.__all__ == sorted(ocil.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    for name in ocil.__all__:
        assert getattr(ocil, name) is not None
    assert set(ocil.__all__) == {*ocil._HOMES, "OcilError"}


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'ocil' has no attribute 'lerner'"):
        ocil.lerner  # noqa: B018


def test_star_import_brings_all_names() -> None:
    names: dict[str, object] = {}
    exec("from ocil import *", names)
    assert set(ocil.__all__) <= names.keys()


def test_the_version_is_said_once() -> None:
    assert 'version = { attr = "ocil.__version__" }' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {ocil.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_import_brings_nothing_heavy(start_python: Start) -> None:
    script = f"import sys, ocil; print([name for name in {(*HEAVY, 'rich', 'cyclopts')} if name in sys.modules])"
    assert spoken(start_python("-c", script)).strip() == "[]"


def commands(app: App) -> Iterator[list[str]]:
    """The words that lead to every command of an application, and to the application itself."""
    yield []
    for name in app:
        if not name.startswith("-"):  # --help and --version are commands too
            yield from ([name, *more] for more in commands(app[name]))


def test_no_command_is_missed() -> None:
    found = [" ".join(words) for words in commands(ocil.cli.app)]
    assert {"run", "sweep", "tune", "report", "show", "bench", "data import", "longtail run", "serve"} <= {*found}
    assert len(found) == len({*found}) > 20


def test_help_of_every_command_without_torch(start_python: Start) -> None:
    calls = [[*words, flag] for words in commands(ocil.cli.app) for flag in ("--help", "-h")]
    script = f"""
import sys
from ocil.cli import main
for words in {[*calls, ["--version"]]}:
    try:
        main(words)
    except SystemExit as stopped:
        assert stopped.code == 0, words
    loaded = [name for name in {HEAVY} if name in sys.modules]
    assert not loaded, f"{{words}} imports {{loaded}}"
"""
    shown = spoken(start_python("-c", script))
    for word in (
        "ocil run afs",
        "--dataset",
        "--memory",
        "--seeds",
        "--review",
        "--json",
        "--config",
        ocil.__version__,
    ):
        assert word in shown


def test_typos_of_commands_without_torch(start_python: Start) -> None:
    script = """
import sys
from ocil.cli import main
try:
    main(["rnu", "afs"])
except SystemExit as stopped:
    assert stopped.code == 2
assert "torch" not in sys.modules
"""
    spoken(start_python("-c", script))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_python_blocks_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in this process, each as a script that shares no name with the others."""
    data = ocil.load_dataset()
    few = replace(data, train_x=data.train_x[::20], train_y=data.train_y[::20])  # the blocks as they are, in less time
    monkeypatch.setattr(ocil, "load_dataset", lambda: few)
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(BLOCKS):
        script = tmp_path / f"block_{number}.py"
        script.write_text(block)
        runpy.run_path(str(script), run_name="__main__")


def test_no_python_block_of_the_readme_is_missed() -> None:
    assert len(BLOCKS) == len(re.findall(r"^\s*(?:```|~~~) *(?:python|py)\b", README, flags=re.MULTILINE))
