"""``ocil serve`` from the command line: what it says, what it refuses, and how it shares a folder."""

import json
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocil.cli.serve import LIMITS, LimitOptions
from ocil.online.model import Model
from ocil.serve.limits import Limits
from tests.conftest import Call, one_error
from tests.forking import Forked
from tests.serving import picture

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")
SMALL = ("--method", "er", "--memory", 20, "--width", 1, "--size", 12, "--gray", "--batch-size", 4)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("dark", "light")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(4):
            Image.fromarray(picture(150 * number, image)).save(tmp_path / "photos" / name / f"{image}.png")
    return tmp_path / "photos"


def test_a_folder_without_a_model(ocil_command: Call, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert "name a method, for example --method afs" in one_error(ocil_command("serve", "--model", missing))
    assert not missing.exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    said = ocil_command("serve", "--model", tmp_path / "other", *SMALL)
    assert "is not the folder of a model, and it is not empty" in one_error(said)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter.txt"]
    assert "is a file" in one_error(ocil_command("serve", "--model", tmp_path / "other" / "letter.txt", *SMALL))


def test_settings_that_are_wrong(ocil_command: Call, tmp_path: Path) -> None:
    for words, message in (
        (("--method", "afx"), "afs"),
        (("--method", "er", "--set", "lr"), "FIELD=VALUE"),
        (("--method", "er", "--threads", 0), "must be a whole number from 1"),
        (("--method", "er", "--save-seconds", 0), "more than 0"),
        (("--method", "er", "--max-queue", 5), "--max-queue 5 must not be below --max-batch 64"),
        (("--method", "er", "--max-predictions", 5), "--max-predictions 5 must not be below --max-batch 64"),
        (("--method", "er", "--max-bodies", 5), "--max-bodies 5 must not be below --max-body 16"),
        (("--method", "er", "--max-connections", 0), "--max-connections 0 must be from 1"),
        (("--method", "er", "--max-body", "much"), "much"),
        (("--method", "er", "--port", 70000), "70000"),
        (("--method", "er", "--host", "no such host"), "no such host"),
        (("--method", "er", "--width", 0), "at least 1"),
        (("--method", "er", "--set", "growing=no"), "growing = false"),
        (("--method", "er", "--set", "boundary=none"), "boundary is a setting of a benchmark's stream"),
        (("--method", "er", "--label-studio", "ftp://x"), "ftp://x is no address of Label Studio"),
        (("--method", "er", "--label-studio-host", "x"), "--label-studio-host needs --label-studio"),
    ):
        assert message in one_error(ocil_command("serve", "--model", tmp_path / "m", *words)), words
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name", LIMITS)
def test_limits_out_of_bounds(ocil_command: Call, tmp_path: Path, name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    for value in (0, -1, 10**13):
        said = one_error(ocil_command("serve", "--model", tmp_path / "m", *SMALL, option, value))
        assert f"{option} {value} must be more than 0 and at most" in said
    assert not (tmp_path / "m").exists()


def test_each_limit_has_one_option() -> None:
    """Their defaults are those of the limits, and each option reaches its own limit."""
    assert LimitOptions().limits == Limits()
    assert sorted(limit for limit, _ in LIMITS.values()) == sorted(field.name for field in fields(Limits))
    assert list(LIMITS) == [field.name for field in fields(LimitOptions)]
    for name, (limit, unit) in LIMITS.items():
        value = 600 if name in ("max_queue", "max_predictions", "max_bodies") else 3
        assert getattr(LimitOptions(**{name: value}).limits, limit) == value * unit
    large = LimitOptions(max_batch=300, max_body=400).limits
    assert (large.predictions, large.bodies_bytes) == (300, 400 * 2**20)


def test_a_port_in_use(ocil_command: Call, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = ocil_command("serve", "--model", tmp_path / "m", *SMALL, "--port", port)
    assert f"port {port} of 127.0.0.1 is in use: choose another one with --port" in one_error(said)
    assert not (tmp_path / "m").exists()


def test_another_address_needs_a_token(ocil_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCIL_TOKEN", raising=False)
    words = ("serve", "--model", tmp_path / "m", *SMALL, "--host", "0.0.0.0", "--port", 0)
    assert "can be reached from elsewhere: set a token in OCIL_TOKEN" in one_error(ocil_command(*words))
    monkeypatch.setenv("OCIL_TOKEN", "short")
    assert "at least 16 characters" in one_error(ocil_command(*words))
    file = tmp_path / "token"
    assert "cannot be read" in one_error(ocil_command(*words, "--token-file", file))
    file.write_text("")
    file.chmod(0o600)
    assert "is empty" in one_error(ocil_command(*words, "--token-file", file))
    file.write_text("a-token-of-some-length")
    file.chmod(0o644)
    assert "can be read by everybody: chmod 600" in one_error(ocil_command(*words, "--token-file", file))
    assert "--token " not in ocil_command("serve", "--help").out  # never a word of the command line


@pytest.mark.parametrize("package", ["uvicorn", "prometheus_client"])
def test_a_missing_package_is_named(
    ocil_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in ("run", "app", "guard", "routes", "metrics"):
        monkeypatch.delitem(sys.modules, f"ocil.serve.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    answer = ocil_command("serve", "--model", tmp_path / "m", *SMALL)
    assert f"{package} is not installed: pip install 'ocil[serve]'" in one_error(answer)
    assert ocil_command("serve", "--help").code == 0


def test_damaged_logs_are_said_in_one_line(ocil_command: Call, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "00000000000000000001-0000.log").write_bytes(b"something else entirely, and long enough")
    assert "does not begin like a log" in one_error(ocil_command("serve", "--model", tmp_path, *SMALL, "--port", 0))


@pytest.mark.slow
def test_learn_serve_and_learn_again(
    ocil_command: Call, photos: Path, tmp_path: Path, fork_python: Callable[..., Forked]
) -> None:
    """One folder, two commands in turn; while one works there the other is refused."""
    folder = tmp_path / "model"
    assert ocil_command("learn", photos, "--model", folder, *SMALL, "--shuffle", 0).code == 0
    said = ocil_command("serve", "--model", folder, "--method", "afs")
    assert "was made with method = er, not afs" in one_error(said)
    server = fork_python("-m", "ocil", "serve", "--model", folder, "--port", 0, "--json")
    try:
        address = json.loads(server.stdout.readline())["address"]
        busy = ocil_command("learn", photos, "--model", folder, "--append")
        assert "another process is learning in" in one_error(busy)
        assert "another process is learning in" in one_error(ocil_command("serve", "--model", folder, "--port", 0))
        body = (
            b"".join(
                b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (name, extra, content)
                for name, extra, content in (
                    (b"image", b'; filename="x.png"', (photos / "dark" / "0.png").read_bytes()),
                    (b"label", b"", b"dark"),
                )
            )
            + b"--b--\r\n"
        )
        request = urllib.request.Request(
            f"{address}/learn?wait=true", body, {"Content-Type": "multipart/form-data; boundary=b"}
        )
        with urllib.request.urlopen(request) as answer:
            told: dict[str, Any] = json.load(answer)
        assert (told["first"], told["applied"], told["model_samples"]) == (1, True, 9)
    finally:
        os.kill(server.pid, signal.SIGTERM)
        out, err = server.communicate(timeout=600)
    assert (server.returncode, out) == (0, ""), err
    model = Model.load(folder, "cpu")
    assert (model.samples, model.note["feed"]["position"], model.note["serve"]["position"]) == (9, 8, 1)
    assert ocil_command("learn", photos, "--model", folder, "--shuffle", 0, "--json").code == 0
    found = ocil_command("predict", photos / "dark" / "0.png", "--model", folder, "--json")
    assert np.isfinite(json.loads(found.out)["probability"])
