"""Labels images in a real Label Studio with ``ocil serve`` as its backend, and checks that the model learns.

It needs Label Studio in an environment of its own, and nothing else:

    python -m venv /tmp/label-studio && /tmp/label-studio/bin/pip install label-studio==1.23.2
    python tools/label_studio_check.py /tmp/label-studio/bin/label-studio

It starts both programs on free ports and in a temporary folder, makes a project by Label Studio's API, connects the
backend, labels, asks for predictions, changes one annotation and deletes another. ``--record FILE`` writes down what
Label Studio asked, for ``tests/test_label_studio.py``, which plays it back. It takes about two minutes.
"""

import argparse
import base64
import http.cookiejar
import http.server
import io
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TOKEN = "a-token-for-label-studio"  # of a service that lives for two minutes
EMAIL, PASSWORD = "someone@example.org", "not-a-secret-1"
CONFIG = """<View><Image name="image" value="$image"/><Choices name="kind" toName="image" choice="single">
<Choice value="dark"/><Choice value="light"/></Choices></View>"""
IMAGES = 24  # dark and light in turn
LEARNED = 16  # labelled before predictions are asked for
RECORDED_HEADERS = ("content-type", "user-agent", "authorization")


def picture(number: int) -> bytes:
    """12x12, gray, dark or light, not two alike."""
    noise = np.random.default_rng(number).integers(0, 30, (12, 12))
    file = io.BytesIO()
    Image.fromarray((noise + 200 * (number % 2)).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(condition: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while True:
        try:
            found = condition()
        except OSError:
            found = None
        if found:
            return found
        if time.monotonic() > end:
            raise SystemExit(f"it did not happen: {what}")
        time.sleep(0.2)


class Recorder(http.server.ThreadingHTTPServer):
    """Passes requests on to the service and writes them down with their answers."""

    def __init__(self, port: int, target: str) -> None:
        self.target, self.requests = target, []
        super().__init__(("127.0.0.1", port), _Forward)


class _Forward(http.server.BaseHTTPRequestHandler):
    server: Recorder

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length) if length else None
        headers = {name: value for name, value in self.headers.items() if name.lower() in RECORDED_HEADERS}
        asked = urllib.request.Request(self.server.target + self.path, body, headers, method=self.command)
        try:
            with urllib.request.urlopen(asked) as answer:
                status, content = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        self.server.requests.append(
            {
                "method": self.command,
                "path": self.path,
                "headers": headers,
                "body": json.loads(body) if body else None,
                "status": status,
                "answer": json.loads(content),
            }
        )
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


class Studio:
    """Label Studio's API, as a program uses it that has a personal access token."""

    def __init__(self, address: str) -> None:
        self.address, self.access = address, ""
        self.cookies = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def log_in(self) -> str:
        """A personal access token."""
        self.opener.open(f"{self.address}/user/login/").read()
        form = {"csrfmiddlewaretoken": self._csrf(), "email": EMAIL, "password": PASSWORD}
        headers = {"referer": f"{self.address}/user/login/"}
        body = urllib.parse.urlencode(form).encode()
        self.opener.open(urllib.request.Request(f"{self.address}/user/login/", body, headers)).read()
        key = str(self.ask("POST", "/api/token/", {})["token"])
        self.access = str(self.ask("POST", "/api/token/refresh", {"refresh": key})["access"])
        return key

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"content-type": kind, "x-csrftoken": self._csrf(), "referer": self.address}
        if self.access:
            headers["authorization"] = f"Bearer {self.access}"
        asked = urllib.request.Request(self.address + path, content, headers, method=method)
        try:
            with self.opener.open(asked, timeout=120) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.code} {error.read()[:2000]!r}") from None
        return json.loads(text) if text else None

    def _csrf(self) -> str:
        return next((one.value or "" for one in self.cookies if one.name == "csrftoken"), "")

    def upload(self, project: int, images: dict[str, bytes]) -> None:
        edge = "a-boundary"
        parts = [
            f'--{edge}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
            f"Content-Type: image/png\r\n\r\n".encode()
            + content
            + b"\r\n"
            for name, content in images.items()
        ]
        body = b"".join(parts) + f"--{edge}--\r\n".encode()
        self.ask("POST", f"/api/projects/{project}/import", body, f"multipart/form-data; boundary={edge}")


def choice(label: str) -> list[dict[str, Any]]:
    return [{"from_name": "kind", "to_name": "image", "type": "choices", "value": {"choices": [label]}}]


def truth(task: dict[str, Any]) -> str:
    return ("dark", "light")[int(re.findall(r"image-(\d+)\.png", task["data"]["image"])[0]) % 2]


def check(studio: Studio, backend: str, status: Callable[[], dict[str, Any]]) -> None:
    """What a person would do, and what should come of it."""

    def say(text: str) -> None:
        print(text, flush=True)

    def samples(count: int) -> None:
        until(lambda: status()["learned"] >= count, f"{count} samples learned")

    def classes() -> dict[str, int]:
        return {one["label"]: one["stored"] for one in status()["classes"]}

    settings = {"title": "check", "label_config": CONFIG, "sampling": "Uncertainty sampling"}
    project = studio.ask("POST", "/api/projects/", settings)["id"]
    studio.upload(project, {f"image-{number}.png": picture(number) for number in range(IMAGES)})
    made = studio.ask(
        "POST",
        "/api/ml/",
        {
            "url": backend,
            "project": project,
            "title": "ocil",
            "auth_method": "BASIC_AUTH",
            "basic_auth_user": "ocil",
            "basic_auth_pass": TOKEN,
        },
    )
    say(f"connected: {made['readable_state']}")
    (hook,) = studio.ask("GET", f"/api/webhooks/?project={project}")
    headers = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
    studio.ask("PATCH", f"/api/webhooks/{hook['id']}/", headers)  # Label Studio itself sends none

    tasks = studio.ask("GET", f"/api/tasks/?project={project}&page_size=100")["tasks"]
    annotations = []
    for task in tasks[:LEARNED]:
        body = {"result": choice(truth(task))}
        annotations.append(studio.ask("POST", f"/api/tasks/{task['id']}/annotations/", body)["id"])
    samples(LEARNED)
    say(f"learned from annotations: {classes()}")

    everything = {"selectedItems": {"all": True, "excluded": []}}
    studio.ask("POST", f"/api/dm/actions/?id=retrieve_tasks_predictions&project={project}", everything)
    predicted, right, scores = 0, 0, {}
    for task in tasks[LEARNED:]:
        for one in studio.ask("GET", f"/api/tasks/{task['id']}/")["predictions"]:
            predicted += 1
            right += one["result"][0]["value"]["choices"] == [truth(task)]
            scores[task["id"]] = one["score"]
    say(f"predicted {predicted} tasks, {right} of them correctly")
    if predicted != IMAGES - LEARNED or right < 0.7 * predicted:
        raise SystemExit("the model has not learned.")
    version = studio.ask("GET", f"/api/ml/{made['id']}")["model_version"]
    studio.ask("PATCH", f"/api/projects/{project}/", {"model_version": version})
    first = studio.ask("GET", f"/api/projects/{project}/next/")["id"]
    say(f"the next task has a score of {scores[first]:.3f}, the smallest is {min(scores.values()):.3f}")
    if scores[first] != min(scores.values()):
        raise SystemExit("the least certain task does not come first.")

    before = classes()
    studio.ask("PATCH", f"/api/annotations/{annotations[0]}/", {"result": choice("light")})  # it was dark
    until(lambda: classes()["light"] == before["light"] + 1, "a correction")
    say(f"after a correction: {classes()}")
    studio.ask("DELETE", f"/api/annotations/{annotations[1]}/")  # it was light
    until(lambda: classes()["light"] == before["light"], "a deletion")
    say(f"after a deletion: {classes()}")
    studio.ask("POST", f"/api/tasks/{tasks[LEARNED]['id']}/annotations/", {"result": [], "was_cancelled": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("program", type=Path, help="the program label-studio, version 1.23.2")
    parser.add_argument("--record", type=Path, help="write down what Label Studio asked")
    parser.add_argument("--data", type=Path, help="a folder for Label Studio's data, to start faster the next time")
    arguments = parser.parse_args()
    ports = [free_port() for _ in range(3)]
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    with tempfile.TemporaryDirectory() as folder:
        quiet = {
            "LATEST_VERSION_CHECK": "false",
            "COLLECT_ANALYTICS": "false",
            "SENTRY_DSN": "",
            "FRONTEND_SENTRY_DSN": "",
        }
        local = {"ML_BLOCK_LOCAL_IP": "false", "SSRF_PROTECTION_ENABLED": "false"}  # the backend is on this machine
        words = f"start --no-browser --internal-host 127.0.0.1 --port {ports[0]} --init check --data-dir"
        login = [
            str(arguments.data or f"{folder}/studio"),
            "--username",
            EMAIL,
            "--password",
            PASSWORD,
            "--log-level",
            "ERROR",
        ]
        environment = os.environ | quiet | local
        started = [subprocess.Popen([arguments.program, *words.split(), *login], env=environment)]
        try:
            studio = Studio(addresses[0])
            until(
                lambda: urllib.request.urlopen(f"{addresses[0]}/health", timeout=2).status == 200,
                "Label Studio starts",
                900,
            )
            key = studio.log_in()
            words = f"serve --model {folder}/model --method er --size 12 --gray --width 8 --memory 40 --port {ports[1]}"
            environment = os.environ | {"OCIL_TOKEN": TOKEN, "LABEL_STUDIO_API_KEY": key, "OMP_NUM_THREADS": "1"}
            serve = [sys.executable, "-m", "ocil", *words.split(), "--label-studio", addresses[0]]
            started.append(subprocess.Popen(serve, env=environment))

            def status() -> dict[str, Any]:
                asked = urllib.request.Request(f"{addresses[1]}/status", headers={"authorization": f"Bearer {TOKEN}"})
                with urllib.request.urlopen(asked, timeout=5) as answer:
                    found: dict[str, Any] = json.load(answer)
                    return found

            until(status, "ocil serve starts")
            recorder = Recorder(ports[2], addresses[1])
            threading.Thread(target=recorder.serve_forever, daemon=True).start()
            check(studio, f"{addresses[2]}/label-studio", status)
            recorder.shutdown()
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(60)
    if arguments.record:
        lines = ",\n".join(json.dumps(one) for one in _cleaned(recorder.requests))
        arguments.record.write_text(f"[\n{lines}\n]\n")
    print("all as it should be")


def _cleaned(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the keys of the Label Studio that asked."""
    for one in requests:
        body = one["body"] or {}
        if "access_token" in body:
            body["access_token"] = "a-key-of-label-studio"
        if "token" in body.get("project", ()) and isinstance(body["project"], dict):
            body["project"]["token"] = "a-token-of-the-project"
        sent = one["headers"].get("Authorization", "")
        if sent.startswith("Basic") and base64.b64decode(sent[6:]).decode() != f"ocil:{TOKEN}":
            raise SystemExit("Label Studio sent another password than it was given.")
    return requests


if __name__ == "__main__":
    main()
