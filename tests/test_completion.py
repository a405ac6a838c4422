"""Completion in the shells themselves, each where it is installed."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DELETE_LINE = b"\x15"  # Ctrl-U
PATIENCE = 120  # seconds until a shell that says nothing is given up; a busy machine is slow

pytestmark = pytest.mark.slow


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"there is no {shell}: apt-get install {shell}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with an ``ocil`` in the path that is the one of this tree."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/ocil"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m ocil "$@"\n')
    command.chmod(0o755)
    for name in ("ZDOTDIR", "ZSH", "ZSH_CUSTOM", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ocil(*words: str) -> str:
    return subprocess.run(["ocil", *words], check=True, capture_output=True, text=True).stdout


def said(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


@needs("bash")
@pytest.mark.parametrize("installed", [False, True])
def test_bash(home: Path, installed: bool) -> None:
    script = home / ".local/share/bash-completion/completions/ocil"
    if installed:
        ocil("completion", "bash", "--install")
        assert str(script) in (home / ".bashrc").read_text() or "bash-completion" in (home / ".bashrc").read_text()
    else:
        script = home / "script"
        script.write_text(ocil("completion", "bash"))

    def completed(*words: str) -> list[str]:
        listed = " ".join(f"'{word}'" for word in words)
        code = (
            f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; COMP_LINE='{' '.join(words)}'; "
            "COMP_POINT=${#COMP_LINE}; name=$(complete -p ocil | sed 's/.*-F \\([^ ]*\\).*/\\1/'); $name; "
            "printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        return said("bash", "--norc", "-c", code).split()

    assert completed("ocil", "doc") == ["doctor"]
    assert completed("ocil", "run", "er-") == ["er-ace"]
    assert completed("ocil", "sweep", "table") == ["table1", "table2", "table3"]


@needs("fish")
@pytest.mark.parametrize("installed", [False, True])
def test_fish(home: Path, installed: bool) -> None:
    script = home / ".config/fish/completions/ocil.fish"
    if installed:
        ocil("completion", "fish", "--install")
    else:
        script = home / "script"
        script.write_text(ocil("completion", "fish"))

    def completed(line: str) -> list[str]:
        first = [] if installed else ["-C", f"source {script}"]  # what is installed, fish finds by itself
        lines = said("fish", *first, "-c", f"complete -C '{line}'").splitlines()
        return [found.partition("\t")[0] for found in lines]

    assert script.exists()
    assert "doctor" in completed("ocil doc")
    assert completed("ocil run er-") == ["er-ace"]
    assert completed("ocil sweep table") == ["table1", "table2", "table3"]
    assert "--dataset" in completed("ocil run afs --dat")


@needs("zsh")
@pytest.mark.parametrize("way", ["evaluated", "installed", "a file of the usual name"])
def test_zsh(home: Path, way: str) -> None:
    """zsh completes only what is typed: a terminal is opened for it."""
    start = "autoload -U compinit; compinit -u -D"
    if way == "installed":
        (home / ".zshrc").write_text(f"{start}\n")
        assert "if your .zshrc calls compinit" in ocil("completion", "zsh", "--install").replace("\n", " ")
        start = f"source {home / '.zshrc'}"
    elif way == "evaluated":
        start = f'{start}; eval "$(ocil completion zsh)"'
    else:
        (home / "functions").mkdir()
        (home / "functions/_ocil").write_text(ocil("completion", "zsh"))
        start = f"fpath=({home / 'functions'} $fpath); {start}"
    completed = {"ocil doc": "ocil doctor", "ocil run er-ac": "ocil run er-ace"}
    for shown, expected in zip(typed_in_zsh(start, completed), completed.values(), strict=True):
        assert expected in shown


def typed_in_zsh(start: str, completed: dict[str, str]) -> list[str]:
    """What a terminal shows after each of these words and a tabulator were typed, on an empty line."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], os.environ | {"TERM": "dumb"})
    try:
        os.write(terminal, f"PS1='> '; {start}; print -r -- rea''dy\n".encode())
        read_until(terminal, "ready\r\n")
        shown = []
        for typed, expected in completed.items():
            os.write(terminal, f"{typed}\t".encode())
            shown.append(read_until(terminal, expected))
            os.write(terminal, DELETE_LINE)
        return shown
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, expected: str) -> str:
    shown, end = "", time.monotonic() + PATIENCE
    while expected not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown
