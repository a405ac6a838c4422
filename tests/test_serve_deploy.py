"""The files in deploy/ agree with the command line, and a copy of a running model is a model."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from ocil.online.model import Model
from tests.conftest import Call
from tests.serving import picture, running

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
pytestmark = pytest.mark.usefixtures("quick_convolution")


def options(ocil_command: Call) -> set[str]:
    return set(re.findall(r"--[a-z-]+", ocil_command("serve", "--help").out))


def test_the_container(ocil_command: Call) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    instructions = [line.split(maxsplit=1) for line in re.sub(r"\\\n", "", text).splitlines() if line[:1].isupper()]
    last = dict(instructions)
    stages = [words for name, words in instructions if name == "FROM"]
    assert len(stages) == 2
    assert all(re.match(r"[a-z]+:\d", words) for words in stages)  # no image without a version
    assert last["USER"] == "10001:10001"
    assert list(last).index("USER") < list(last).index("ENTRYPOINT")
    assert last["VOLUME"] == "/models"
    assert "/health/ready" in last["HEALTHCHECK"]
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert last["ENTRYPOINT"] == '["ocil", "serve"]'
    used = set(re.findall(r'"(--[a-z-]+)"', last["CMD"]))
    used |= set(re.findall(r"--(?:model|method|size|host|token-file)\b", text))
    assert used <= options(ocil_command)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for needed in ("pyproject.toml", "src", "constraints.txt", project["readme"], project["license-files"][0]):
        assert f"!{needed}\n" in ignored
        assert (ROOT / needed).exists()


def test_the_unit(ocil_command: Call) -> None:
    unit = dict(line.split("=", 1) for line in (DEPLOY / "ocil.service").read_text().splitlines() if "=" in line)
    words = shlex.split(unit["ExecStart"])
    assert words[1] == "serve"
    assert {word for word in words if word.startswith("--")} <= options(ocil_command)
    assert (unit["User"], unit["NoNewPrivileges"]) == ("ocil", "yes")
    assert float(unit["TimeoutStopSec"]) > 60


def test_the_proxy_passes_on_what_the_service_needs() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    assert text.count("{") == text.count("}")
    for line in (
        "proxy_set_header Host $host;",
        "proxy_set_header X-Request-Id $request_id;",
        "client_max_body_size 16m;",
    ):
        assert line in text


def test_a_backup_of_a_running_model(tmp_path: Path) -> None:
    """As docs/serve.md says: the log, then the model. The copy has all that was acknowledged before it began."""
    with running(tmp_path / "birds", keep_log=False, save_seconds=0.05) as service:

        def learn(number: int) -> None:
            images = np.stack([picture(value, number)[:, :, None] for value in (0, 100, 200)])
            service.writer.submit(images, ["a", "b", "c"]).result(60)

        for copy in range(4):
            for number in range(5):
                learn(number)
            before = service.writer.acknowledged
            backup = tmp_path / f"backup {copy}"
            while True:
                try:
                    shutil.copytree(tmp_path / "birds" / "log", backup / "log")
                    break
                except shutil.Error:
                    shutil.rmtree(backup)
            learn(9)
            shutil.copy(tmp_path / "birds" / "model.safetensors", backup)
            with running(backup, keep_log=False) as restored:
                restored.trainer.waiters.wait_for(before).result(60)
                assert restored.statistics.position >= before
            assert Model.load(backup, "cpu").samples >= before
