"""The files in deploy/ agree with the command line."""

import re
import shlex
import tomllib
from pathlib import Path

from tests.conftest import Call

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"


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
    assert "/health/live" in last["HEALTHCHECK"]  # one that is replaying its log must not be restarted
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
