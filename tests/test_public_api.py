import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import ocil

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python[^\n]*\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = (
    [], ["run"], ["compare"], ["methods"], ["datasets"], ["data"],
    ["data", "list"], ["data", "import"], ["data", "download"], ["data", "check"], ["learn"], ["predict"], ["export"],
    ["longtail"], ["longtail", "run"], ["longtail", "compare"], ["longtail", "table"], ["longtail", "prepare"],
    ["longtail", "settings"],
    ["serve"],
)  # fmt: skip

Start = Callable[..., "subprocess.Popen[str]"]


def spoken(process: "subprocess.Popen[str]", seconds: float = 60) -> str:
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
    assert f'version = "{ocil.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_import_is_quick_and_without_torch(start_python: Start) -> None:
    script = """
import json, sys, time
start = time.perf_counter()
import ocil
seconds = time.perf_counter() - start
print(json.dumps([seconds, [name for name in ("torch", "numpy", "matplotlib", "rich") if name in sys.modules]]))
"""
    seconds, loaded = json.loads(spoken(start_python("-c", script)))
    assert seconds < 0.5
    assert loaded == []


def test_help_of_every_command_without_torch(start_python: Start) -> None:
    script = f"""
import json, sys
from ocil.cli import main
for command in {list(COMMANDS)}:
    for flag in ("--help", "-h"):
        try:
            main([*command, flag])
        except SystemExit as stopped:
            assert stopped.code == 0, command
try:
    main(["--version"])
except SystemExit as stopped:
    assert stopped.code == 0
print(json.dumps([name for name in ("torch", "matplotlib") if name in sys.modules]))
"""
    *text, loaded = spoken(start_python("-c", script)).splitlines()
    assert json.loads(loaded) == []
    shown = "\n".join(text)
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


def test_python_blocks_of_the_readme_run(start_python: Start, tmp_path: Path) -> None:
    for number, block in enumerate(BLOCKS):
        script = tmp_path / f"block_{number}.py"
        script.write_text(block)
        spoken(start_python(script, cwd=tmp_path), seconds=120)


def test_no_python_block_of_the_readme_is_missed() -> None:
    assert len(BLOCKS) == len(re.findall(r"^\s*(?:```|~~~) *(?:python|py)\b", README, flags=re.MULTILINE))
