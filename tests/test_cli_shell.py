"""What a new user meets first: the start page, help, completion, errors, `ocil doctor`."""

import errno
import gc
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App
from rich.console import Console

import ocil.__main__
from ocil.cli import COMMANDS, app, console, main
from ocil.cli.names import experiments
from ocil.experiments.named import find_file, shipped
from ocil.experiments.part import SweepPart
from tests.conftest import Call, one_error

ROOT = Path(__file__).parents[1]


def commands(of: App = app, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and subcommand, as words."""
    found = []
    for name in of:
        if not name.startswith("-"):
            found += [(*before, name), *commands(of[name], (*before, name))]
    return found


def test_without_arguments_the_first_steps_are_shown(ocil_command: Call) -> None:
    said = ocil_command()
    assert (said.code, said.err) == (0, "")
    assert "ocil run afs --seeds 1" in said.out
    assert ocil.__version__ in said.out
    for line in said.out.splitlines():
        if line.startswith("  ocil "):
            assert line.split()[1] in {name[0] for name in commands()} | {"--help"}


def test_every_command_is_in_a_group_and_its_help_has_an_example(ocil_command: Call) -> None:
    grouped = {name for _, *group in COMMANDS for name, _ in group}
    assert grouped == {name for name in app if not name.startswith("-")}
    for words in commands():
        said = ocil_command(*words, "--help")
        assert said.code == 0
        if len(words) == 1 and any(not name.startswith("-") for name in app[words[0]]):
            continue  # a group of commands
        assert f"ocil {' '.join(words)}" in said.out.partition("Usage")[2].partition("\n")[2].replace("\n", " ") or (
            words == ("datasets",)
        ), words
        assert "[default: ()]" not in said.out
        assert "xample" in said.out, words  # it goes missing if the parser takes the docstring for one of another style
        assert not re.search(r"^│ [A-Z]+ +│$", said.out, re.MULTILINE), words  # an argument without its meaning


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], 'Did you mean "run"?'),
        (["data", "lst"], "See: ocil data --help"),
        (["run", "--sed", "3"], "Did you mean --seed? See: ocil run --help"),
        (["sweep", "tabel1"], "Did you mean 'table1'?"),
        (["sweep", "table1", "--part", "9/8"], "K must lie between 1 and N"),
        (["sweep", "table1", "--part", "x"], "write K/N"),
        (["completion", "tcsh"], "bash"),
        (
            ["run", "er", "afs"],
            "'afs' is one word too many for ocil run. It takes one name; for several there is ocil comp",
        ),
        (["longtail", "run", "ce", "bs"], "for several there is ocil longtail compare."),
        (["run", "er", "lr=0.1", "width=4"], "A setting comes after --set: --set lr=0.1 width=4"),
        (["compare", "er", "lr=0.1", "afs"], "'lr=0.1' is no method. A setting comes after --set: --set lr=0.1"),
        (["bench", "er", "precision=bf16"], "A setting comes after --set: --set precision=bf16"),
        (["methods", "afs", "er=1"], "'er=1' is one word too many for ocil methods. See: ocil methods --help"),
        (["predict", "x.png"], "ocil predict needs the option --model. See: ocil predict --help"),
        (["predict", "x.png", "--model"], "--model needs a value. See: ocil predict --help"),
        (["tune"], "ocil tune needs METHOD. See: ocil tune --help"),
        (["data", "import", "x"], "ocil data import needs SOURCE. See: ocil data import --help"),
        (["run", "er", "--set", "seed=3"], "seed is an option of its own, --seed 3."),
        (["run", "er", "--set", "threads=2", "out=x", "seeds=3"], "--set threads=2: threads is an option"),
        (["compare", "er", "--set", "data_dir=x"], "data_dir is an option of its own, --data-dir x."),
        (["run", "er-rv", "--no-review"], "contradict each other: leave out --no-review, or name er."),
        (["run", "afs-no-rv", "--review"], "contradict each other: leave out --review, or name afs."),
    ],
)
def test_mistakes_have_the_nearest_name(words: list[str], message: str, ocil_command: Call) -> None:
    assert message in one_error(ocil_command(*words))


def completed(*words: str) -> list[str]:
    """What the shell gets for the last word, through the command that the script of cyclopts calls."""
    code = "from ocil.cli import main; import sys; main(sys.argv[1:])"
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code, "__complete", *words],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition("\t")[0] for line in done.stdout.partition("\x1fbegin\n")[2].splitlines()]


def test_methods_are_completed() -> None:
    assert {"er", "er-ace"} <= set(completed("run", "er"))
    assert "afs" not in completed("run", "er")


@pytest.mark.parametrize(("words", "expected"), [(("sweep", "table"), "table1"), (("run", "afs", "-d", ""), "cifar10")])
def test_names_are_completed_by_the_callbacks(words: tuple[str, ...], expected: str) -> None:
    from ocil.cli.names import DATASET, EXPERIMENT

    completer: Any = (EXPERIMENT if words[0] == "sweep" else DATASET).completer
    assert expected in completer(type("Context", (), {"incomplete": words[-1]}))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell: str, ocil_command: Call, tmp_path: Path) -> None:
    script = ocil_command("completion", shell).out
    assert all(name in script for name in ("compare", "dry-run", "doctor"))
    if shutil.which(shell):  # it has no syntax error
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([shell, "-n", file], check=True)


def test_doctor(ocil_command: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(ocil_command("doctor", "--quick", "--json").out)
    assert found["problems"] == []
    assert found["versions"]["ocil"].startswith(ocil.__version__)
    assert found["data"]["fashion-mini"] == "ready"
    assert {"serve", "timm", "sklearn"} <= set(found["extras"])
    assert not {"all", "track", "dev", "test"} & set(found["extras"])
    from ocil.cli import doctor

    monkeypatch.setattr(doctor, "speed", lambda: {"problem": "a training step fails: because"})
    said = ocil_command("doctor")
    assert said.code == 1
    assert "Extras" in said.out
    assert "a training step fails" in said.err


def test_no_color() -> None:
    """On a terminal, with NO_COLOR, no colours are sent."""

    def shown(**variables: str) -> bytes:
        parent, child = pty.openpty()
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); from ocil.cli import main; main(['--help'])"
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        environment |= {"TERM": "xterm-256color", **variables}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=child, env=environment)
        os.close(child)
        found = b""
        try:
            while part := os.read(parent, 65536):
                found += part
        except OSError:  # the other end is closed
            pass
        os.close(parent)
        assert process.wait() == 0
        return found

    assert b"\x1b[3" in shown()
    assert b"\x1b[3" not in shown(NO_COLOR="1")


def test_stopped_while_it_is_imported_the_command_is_quiet() -> None:
    """Importing takes half a second, or several from a slow disk: Ctrl-C then is no reason for a traceback."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"] == {"ocil": "ocil.__main__:main"}
    code = """
import sys

class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "ocil.cli.tune":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop())
from ocil.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [("methods",), ("methods", "--json"), ("--help",)])
def test_output_into_a_full_disk_is_an_error_in_one_line(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ocil", *words], stdout=full, stderr=subprocess.PIPE, text=True, env=environment()
        )
    assert done.returncode == 2
    assert done.stderr == "ocil: error: what the command prints cannot be written: No space left on device.\n"


def test_another_file_that_cannot_be_read_is_not_taken_for_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a broken disk has no name."""

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("ocil.cli._refuse_empty", broken)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        main(["methods"])


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of Unix closes the streams")
def test_closed_streams_are_no_files() -> None:
    """Without standard error, its lines went to standard output, and what was printed next into the next open file."""

    def run(words: str) -> "subprocess.CompletedProcess[str]":
        command = f"exec {shlex.quote(sys.executable)} -m ocil {words}"
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment())

    silent = run("rnu 2>&-")
    assert (silent.returncode, silent.stdout) == (2, "")
    assert (run("methods >&-").returncode, run("methods >&-").stderr) == (0, "")
    assert run("methods <&- 2>&-").stdout == run("methods").stdout
    code = "import os; from ocil.__main__ import _open_what_is_closed as o; o(); print(os.open(os.devnull, 0), end='')"
    command = f'exec {shlex.quote(sys.executable)} -c "{code}" <&- 2>&-'
    assert subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment()).stdout == "3"


def test_a_command_ends_without_a_search_for_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take half a second once PyTorch is loaded."""
    at_exit: list[object] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr("ocil.cli.main", lambda: None)
    ocil.__main__.main()
    assert at_exit == [gc.freeze]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_output_in_another_encoding_than_utf8(encoding: str) -> None:
    code = """
from ocil.cli import console, main
console.accept_all_text()
console.print_table(("method", "accuracy %"), [("er ▁█ ü", "31.8 ± 16.5 → 2")])
console.print_line("curve █▇▆▅▄▃▂▁, shades ░▒▓█")
main(["methods"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(PYTHONIOENCODING=encoding))
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode(encoding)
    assert ("31.8 +- 16.5 -> 2" if encoding == "ascii" else "31.8 ± 16.5 -> 2") in shown
    assert ("er _# ?" if encoding == "ascii" else "er _# ü") in shown
    assert "curve #*+=-:._, shades .+*#" in shown
    assert len({len(line) for line in shown.splitlines()[:5]}) == 1  # the frame of the table is straight


def environment(**variables: str) -> dict[str, str]:
    """For a process that imports the package from this checkout."""
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), **variables}


def test_a_narrow_terminal_cuts_nothing_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("ocil data download birds", "missing", "50000/10000")
    for columns in (60, 100):
        monkeypatch.setattr(console, "stdout", partial(Console, width=columns, highlight=False))
        titles = ("name", "images", "state of it", "how to get it")
        console.print_table(titles, [("birds" * 5, *reversed(words))], "Data", "none", "last")
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= columns
        assert all(word in shown for word in words)
        assert (f"{'birds' * 5}\n" in shown) == (columns == 60)


# Experiments by name, and parts


def test_experiments_are_found_by_name_anywhere(
    ocil_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = shipped()["table1"]
    assert experiments() == list(shipped())
    assert {find_file(Path(name)) for name in ("table1", "table1.toml", "experiments/table1.toml")} == {table}
    assert find_file(Path("elsewhere/table1.toml")) == Path("elsewhere/table1.toml")
    Path("table1.toml").write_text("")
    assert find_file(Path("table1.toml")) == Path("table1.toml")  # a file that is there wins
    listed = json.loads(ocil_command("sweep", "--json").out)["experiments"]
    assert [each["name"] for each in listed] == list(shipped())
    assert all(each["title"] for each in listed)


def test_parts_are_all_runs_once() -> None:
    for count in (1, 3, 8, 20):
        parts = [SweepPart(number, count).of(range(17)) for number in range(1, count + 1)]
        assert sorted(run for part in parts for run in part) == list(range(17))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert str(SweepPart.parse(" 3/8 ")) == "3/8"


def test_a_sweep_in_parts_is_the_sweep(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    settings = f'dataset = "{tiny_npz}"\nmemory = 20\nwidth = 2\ntasks = 2\nmemory_batch = 5\n'
    file.write_text(f'title = "Small"\nseeds = 2\n[settings]\n{settings}[[cells]]\nmethod = ["er", "fine-tune"]\n')
    words = ("sweep", file, "--out", tmp_path / "runs", "--workers", 1)
    dry = json.loads(ocil_command(*words, "--part", "2/3", "--dry-run", "--json").out)
    assert dry["part"] == {"number": 2, "of": 3, "runs": 1, "finished": 0, "begun": 0, "to_run": 1, **_seconds(dry)}
    done = []
    for number in (1, 2, 3):
        said = ocil_command(*words, "--part", f"{number}/3", "--json")
        assert said.code == 0, said.err
        done.append(json.loads(said.out)["finished"])
    assert done == [2, 1, 1]
    assert len(list((tmp_path / "runs").rglob("result.json"))) == 4
    all_of_them = ocil_command(*words)
    assert "4 runs are finished already" in all_of_them.err
    assert "lower is better" in all_of_them.out
    said = ocil_command(*words, "--part", "7/9")  # more parts than runs
    assert (said.code, said.out.startswith("Part 7/9: 0 of 0 runs")) == (0, True)


def _seconds(dry: dict[str, Any]) -> dict[str, Any]:
    return {"seconds": dry["part"]["seconds"]}


def test_only_names_the_methods_that_it_leaves_out(ocil_command: Call, tmp_path: Path) -> None:
    said = ocil_command("sweep", "table2", "--only", "regulariser=none", "--dry-run", "--out", tmp_path / "runs")
    assert said.code == 0
    assert "--only keeps" in said.err
