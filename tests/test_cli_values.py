"""Every option of every command with values that make no sense: one line and exit code 2, before anything runs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from cyclopts import App
from PIL import Image

from ocil.cli import app
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.serve.service import Service
from tests.conftest import Call, one_error

FORMS = {"--help", "-h", "--version"}


def commands(parent: App, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    for name in parent:
        if name not in FORMS:
            found = parent[name]
            below = list(commands(found, (*words, name)))
            yield from below or [((*words, name), found)]


def options(kinds: set[type]) -> list[tuple[tuple[str, ...], str]]:
    """Each command's options of these types, by their first name."""
    return [
        (words, argument.names[0])
        for words, command in commands(app)
        for argument in command.assemble_argument_collection()
        if kinds & {argument.hint, *get_args(argument.hint)} and argument.names[0].startswith("--")
    ]


NUMBERS, FRACTIONS, PATHS = options({int, float}), options({float}), options({Path})


class Reached(Exception):  # noqa: N818
    """The command got as far as its work."""


@pytest.fixture
def command(
    ocil_command: Call, tiny: Dataset, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[tuple[str, ...], tuple[object, ...]]:
    """Words with which each command would work; the work itself is not done."""

    def reached(*given: Any, **_: Any) -> Any:
        for service in given:
            if isinstance(service, Service):  # which the command would have closed
                service.log.close()
                service.catalogue.close()
        raise Reached

    for name in (
        "ocil.engines.execute",
        "ocil.engines.bench.measure",
        "ocil.online.feed.Feed.run",
        "ocil.serve.run.serve",
        "ocil.data.download.fetch",
        "ocil.report.collect.collect",
        "ocil.online.model.Model.load",
    ):
        monkeypatch.setattr(name, reached)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCIL_DATA", str(tmp_path / "data"))
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "a.png")
    for folder in ("train/a", "train/b"):
        for number in range(4):
            (tmp_path / "photos" / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "photos" / folder / f"{number}.png")
    (tmp_path / "list.csv").write_text("path,label\na.png,a\n")
    (tmp_path / "table.toml").write_text(
        f"[settings]\ndataset = '{tiny_npz}'\nmemory = 20\nmemory_batch = 5\ntasks = 2\n[[cells]]\nmethod = 'er'\n"
    )
    small = ("--dataset", tiny_npz, "--set", "memory_batch=5", "tasks=2", "width=2")
    tail = ("--dataset", "fashion-mini", "--set", "width=2")
    return {
        ("run",): ("er", "--memory", 20, *small),
        ("compare",): ("er", "--memory", 20, *small),
        ("tune",): ("er", "--memory", 20, "--grid", "lr=0.1,0.2", *small),
        ("sweep",): ("table.toml",),
        ("report",): ("runs",),
        ("show",): ("runs",),
        ("bench",): ("er", "--device", "cpu"),
        ("data", "import"): ("mine", tmp_path / "photos", "--data-dir", "data"),
        ("data", "download"): ("cifar10",),
        ("data", "check"): ("mine",),
        ("longtail", "run"): ("oltr", *tail),
        ("longtail", "compare"): ("oltr", *tail),
        ("longtail", "prepare"): ("mine", tmp_path, tmp_path),
        ("learn",): ("list.csv", "--model", "model", "--method", "er", "--width", 1),
        ("predict",): ("a.png", "--model", "model"),
        ("export",): ("--model", "model", "--out", "a.onnx"),
        ("serve",): ("--model", "served", "--method", "er", "--width", 1, "--port", 0),
    }


def outcome(call: Call, command: dict[Any, tuple[object, ...]], words: tuple[str, ...], option: str, value: str) -> str:
    """The one error, or nothing if the command would have done its work."""
    given = [str(word) for word in command.get(words, ())]
    if option in given:
        at = given.index(option)
        del given[at : at + 2]
    try:
        said = call(*words, *given, f"{option}={value}")
    except Reached:
        return ""
    return "" if said.code == 0 else one_error(said)


@pytest.mark.parametrize(("words", "option"), NUMBERS, ids=[f"{' '.join(words)} {name}" for words, name in NUMBERS])
def test_numbers_that_make_no_sense(
    words: tuple[str, ...], option: str, ocil_command: Call, command: dict[Any, tuple[object, ...]], tmp_path: Path
) -> None:
    fractions = (words, option) in FRACTIONS  # what is no digits is one mistake to an option for whole numbers
    for value in ("x", "-1", "9" * 30, "-" + "9" * 30, *(("nan", "inf", "-inf", "1e400") if fractions else ())):
        if (option, value) not in HARMLESS:
            assert outcome(ocil_command, command, words, option, value), value
            assert not [path for path in tmp_path.iterdir() if path.name in ("runs", "model", "served", "tuning")]
    outcome(ocil_command, command, words, option, "0")  # a value or a mistake, and no traceback


HARMLESS = {("--top", "9" * 30), ("--review-every", "9" * 30), ("--config", "file"), ("--examples", "file")}
"""More classes than there are, reviews that a list may be long enough for, an empty TOML file, what may be a run."""


@pytest.mark.parametrize(("words", "option"), PATHS, ids=[f"{' '.join(words)} {name}" for words, name in PATHS])
def test_places_that_make_no_sense(
    words: tuple[str, ...], option: str, ocil_command: Call, command: dict[Any, tuple[object, ...]], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir(mode=0o500)
    values = ["", " ", "x" * 300, "loop", "loop/below", "file/below", "file"]
    if os.geteuid():  # the superuser may write everywhere
        values.append("mine/below")
    for value in values:
        if (option, value) not in HARMLESS:
            assert outcome(ocil_command, command, words, option, value), value


def test_every_command_is_walked() -> None:
    assert {("run",), ("learn",), ("serve",), ("data", "import"), ("longtail", "run")} <= {w for w, _ in NUMBERS}
    assert {("datasets",), ("data", "list"), ("report",)} <= {w for w, _ in PATHS}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bench", "er", "--seeds", 0), "seeds = 0 must be"),
        (("run", "er", "--set"), "--set needs a value"),
        (("run", "er", "--set", "lr=0"), "lr = 0.0 must be more than 0"),
        (("run", "er", "--set", "lr=0.1", "lr=0.5"), "--set lr=0.5: lr is given twice"),
        (("run", "er", "--memory", 30, "--set", "memory=20"), "memory is given twice"),
        (("run", "afs", "--set", "crop=2"), "crop = 2.0 must be more than 0 and at most 1"),
        (("run", "ocm", "--set", "crop=0"), "crop = 0.0 must be more than 0"),
        (("run", "er", "--set", "boundary=none", "fade=0"), "fade = 0 with boundary = 'none'"),
        (("run", "er", "--set", "width=1000000"), "width = 1000000 must be at most 1024"),
        (("run", "er", "--set", "momentum=1"), "momentum = 1.0 must be less than 1"),
        (("run", "er", "--seed", 2**64), "seed = 18446744073709551616 must be from 0"),
        (("run", "er", "--gpu-share", 0.5), "--gpu-share is for a Ray cluster"),
        (("run", "iid-offline", "--set", "epochs=1000000000000"), "epochs = 1000000000000 must be at most"),
        (("learn", "list.csv", "--model", "model", "--size", 100000), "--size 100000 must be from 1 to 1,024"),
        (("learn", "list.csv", "--model", "model", "--width", 1000000), "width = 1000000 must be at most"),
        (("learn", "list.csv", "--model", "model", "--shuffle", 2**32), "the seed 4294967296 of the random order"),
        (("longtail", "run", "oltr", "--seed", 2**64), "seed = 18446744073709551616 is too large"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_values_that_were_once_taken(
    words: tuple[object, ...], message: str, ocil_command: Call, command: object, tmp_path: Path
) -> None:
    assert message in one_error(ocil_command(*words))
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "model").exists()


@pytest.mark.usefixtures("command")
def test_a_learning_that_is_refused_leaves_no_folder(ocil_command: Call, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    message = one_error(ocil_command("learn", "list.csv", "--model", "model", "--width", 1))
    assert message.startswith("not one of 1 images could be read")
    assert not (tmp_path / "model").exists()


def test_an_error_of_the_file_system_is_one_line(ocil_command: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "some/file")

    monkeypatch.setattr("ocil.data.available", fail)
    assert one_error(ocil_command("datasets")) == "some/file: Permission denied. Choose another place."
    monkeypatch.setattr("ocil.data.available", lambda _: (_ for _ in ()).throw(OcilError("ours")))
    assert one_error(ocil_command("datasets")) == "ours"
