"""Mixed load on ``ocil serve`` with kills: is anything lost, is the model the same, does memory grow?

    python benchmarks/serve_soak.py soak.json --minutes 60 --kill-minutes 4 --calm-minutes 20

Clients learn, predict, correct, forget, review, save versions, restore, pin and delete them, read all kinds of answers
and make backups, each at a moderate rate. The service is killed with SIGKILL every few minutes and started again; what
was not acknowledged is sent again under its key. It is not killed in the last ``--calm-minutes``, which show whether
its memory grows.

In the end it compares what was acknowledged with the log, the list of samples and the last backup, and the model, bit
for bit, with one that learned the same log in one go (tests/serving.py). It writes a JSON file and exits with 1 if
anything differs. Linux only: it reads /proc.
"""

import argparse
import base64
import http.client
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.serving import batches_of, changes_of, relearned

import ocil
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.runs.environment import digest
from ocil.serve.records import SampleRecord
from ocil.serve.segment import read
from ocil.serve.versions import Versions

SIDE, CLASSES = 32, 20
RECIPE, FORM = Recipe("er", memory=500, width=8, batch_size=10), ImageFormat((SIDE, SIDE, 3))
WORDS = ["--method", "er", "--memory", "500", "--width", "8", "--batch-size", "10", "--size", str(SIDE)]
WORDS += ["--threads", "1", "--keep-log", "--save-seconds", "20", "--port", "0", "--json"]
READS = ("/status", "/metrics", "/samples?limit=1000", "/memory?per_class=8", "/versions", "/label/queue")
MEGABYTE = 1e6


def image(number: int) -> np.ndarray:
    """Pixels of a class, ``number % CLASSES``; no two images are the same."""
    pattern = np.random.default_rng(number % CLASSES).integers(0, 160, (SIDE, SIDE, 3))
    return (pattern + np.random.default_rng([1, number]).integers(0, 96, (SIDE, SIDE, 3))).astype(np.uint8)


def encoded(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


class Server:
    """The service in a process of its own."""

    def __init__(self, folder: Path) -> None:
        started = time.monotonic()
        command = [sys.executable, "-m", "ocil", "serve", "--model", str(folder), *WORDS]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.port, self.replay = int(ready["address"].rpartition(":")[2]), ready["replay"]
        self.start_seconds = round(time.monotonic() - started, 1)

    def memory(self) -> float:
        """Resident memory in MB."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / MEGABYTE

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        return self.process.wait()


class Client(threading.Thread):
    """Asks one thing after the other, ``seconds`` apart. What was not answered is sent again under its key."""

    port = 0  # of all clients
    stopping = threading.Event()

    def __init__(self, number: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.number, self.seconds = number, seconds
        self.random, self.keys = random.Random(number), itertools.count()
        self.answered: Counter[str] = Counter()
        self.problems: list[str] = []
        self.repeated = 0

    def run(self) -> None:
        try:
            while not self.stopping.wait(self.seconds * self.random.uniform(0.5, 1.5)):
                self.turn()
        except Exception as error:
            self.problems.append(f"{type(self).__name__} {self.number} ended: {error!r}")

    def turn(self) -> None:
        raise NotImplementedError

    def ask(self, method: str, path: str, content: object = None) -> bytes | None:
        """The answer; None if the request was refused for what others did before it, or it is time to stop."""
        body = None if content is None else json.dumps(content).encode()
        headers = {} if method == "GET" else {"Idempotency-Key": f"{self.number}-{next(self.keys)}"}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                found = answer.read()
            except (OSError, http.client.HTTPException):  # killed, or not up again
                if self.stopping.wait(0.2):
                    return None
                continue
            finally:
                connection.close()
            self.answered[f"{method} {_kind(path)} {answer.status}"] += 1
            if answer.status == 200:
                return found
            if answer.status in (429, 503):
                if self.stopping.wait(1):
                    return None
                continue
            if answer.status not in (404, 409):
                self.problems.append(f"{method} {path}: {answer.status} {found[:200]!r}")
            return None

    def ask_json(self, method: str, path: str, content: object = None) -> dict | None:
        found = self.ask(method, path, content)
        return None if found is None else json.loads(found)


def _kind(path: str) -> str:
    """A path without the numbers and names in it."""
    parts = path.partition("?")[0].split("/")
    return "/".join("*" if n == 2 and part not in ("pinned", "queue") else part for n, part in enumerate(parts))


class Learner(Client):
    def __init__(self, number: int, seconds: float) -> None:
        super().__init__(number, seconds)
        self.sent = itertools.count(number * 10**7)
        self.acknowledged: dict[int, tuple[str, bytes]] = {}
        """By the number that the service gave: label and pixels."""

    def turn(self) -> None:
        numbers = [next(self.sent) for _ in range(self.random.randint(1, 4))]
        samples = [(f"class {number % CLASSES}", image(number)) for number in numbers]
        content = {"samples": [{"image": encoded(pixels), "label": label} for label, pixels in samples]}
        if (found := self.ask_json("POST", "/learn", content)) is None:
            return
        self.repeated += found["repeated"]
        for number, (label, pixels) in zip(range(found["first"], found["last"] + 1), samples, strict=True):
            if number in self.acknowledged:
                self.problems.append(f"the number {number} was given twice")
            self.acknowledged[number] = label, pixels.tobytes()


class Predictor(Client):
    def __init__(self, number: int, seconds: float) -> None:
        super().__init__(number, seconds)
        self.taken: list[float] = []

    def turn(self) -> None:
        content, started = {"images": [encoded(image(self.random.randrange(10**9)))]}, time.monotonic()
        if self.ask("POST", "/predict", content) is not None:
            self.taken.append(time.monotonic() - started)


class Changer(Client):
    """Corrects and forgets samples, and saves, restores, pins and deletes versions."""

    def __init__(self, number: int, seconds: float, learners: list[Learner]) -> None:
        super().__init__(number, seconds)
        self.learners, self.versions, self.turns = learners, [], 0
        self.changes: dict[int, tuple[str, int]] = {}
        """By the number that the service gave: the action, and the number of the sample."""

    def turn(self) -> None:
        self.turns += 1
        known = list(self.random.choice(self.learners).acknowledged)[-300:]
        if self.turns % 30 == 0:
            self.version(self.turns // 30)
        elif self.turns % 50 == 1:
            self.change("review", 0, "POST", "/review")
        elif known and self.random.random() < 0.6:
            label, sample = f"class {self.random.randrange(CLASSES)}", self.random.choice(known)
            self.change("correct", sample, "PUT", f"/samples/{sample}", {"label": label})
        elif known:
            sample = self.random.choice(known)
            self.change("forget", sample, "DELETE", f"/samples/{sample}")

    def version(self, turn: int) -> None:
        if turn % 2 or not self.versions:
            if len(self.versions) == 3:
                self.change("pin", 0, "PUT", "/versions/pinned", {"name": None})
                self.change("drop", 0, "DELETE", f"/versions/{self.versions.pop(0)}")
            self.versions.append(f"version-{turn}")
            self.change("save", 0, "POST", "/versions", {"name": self.versions[-1]})
        elif turn % 4 == 2:
            self.change("pin", 0, "PUT", "/versions/pinned", {"name": self.versions[-1]})
        else:
            path = f"/versions/{self.random.choice(self.versions)}/restore"
            self.change("restore", 0, "POST", path, {"relearn": turn % 8 == 0})

    def change(self, action: str, sample: int, method: str, path: str, content: object = None) -> None:
        if (found := self.ask_json(method, path, content)) is not None and found["change"]:
            self.changes[found["change"]] = action, sample
            self.repeated += found["repeated"]


class Reader(Client):
    def __init__(self, number: int, seconds: float, learners: list[Learner]) -> None:
        super().__init__(number, seconds)
        self.learners, self.turns = learners, 0
        self.backup: tuple[list[int], bytes] = [], b""
        """The samples that were acknowledged before the last backup was asked for, and that backup."""

    def turn(self) -> None:
        self.turns += 1
        if self.turns % 12 == 1:
            self.take_backup()
        else:
            self.ask("GET", self.random.choice(READS))

    def take_backup(self) -> None:
        before = [number for learner in self.learners for number in list(learner.acknowledged)]
        if (found := self.ask("GET", "/backup")) is not None:
            self.backup = before, found


class Soak:
    """The service, its clients and what is measured."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, time.monotonic()
        learners = [Learner(number, 1.0) for number in (1, 2)]
        self.learners, self.predictors = learners, [Predictor(number, 0.2) for number in (3, 4)]
        self.changer, self.reader = Changer(5, 2.0, learners), Reader(6, 5.0, learners)
        self.clients = [*learners, *self.predictors, self.changer, self.reader]
        self.lives: list[dict] = []

    def run(self, seconds: float, kill_seconds: float, calm_seconds: float) -> None:
        moment = random.Random(0)
        while True:
            server, born = Server(self.folder), time.monotonic()
            Client.port = server.port
            life = {"started_s": round(born - self.started), "start_s": server.start_seconds, "replay": server.replay}
            self.lives.append(life | {"memory": []})
            for client in self.clients:
                if client.ident is None:
                    client.start()
            left = self.started + seconds - born
            calm = left < calm_seconds + kill_seconds / 2 and len(self.lives) > 1
            until = born + max(5.0, left) if calm else born + kill_seconds * moment.uniform(0.5, 1.5)
            self.watch(server, until)
            if calm:
                break
            server.end(signal.SIGKILL)
        self.stop(server)

    def watch(self, server: Server, until: float) -> None:
        """Note down the memory of the service, every 5 s of a short life and every 30 s of a long one."""
        born = time.monotonic()
        while time.monotonic() < until and server.process.poll() is None:
            age = time.monotonic() - born
            self.lives[-1]["memory"].append([round(age), round(server.memory(), 1), server.open_files()])
            self.lives[-1]["cpu_s"] = server.cpu_seconds()
            time.sleep(max(0.0, min(5 if age < 120 else 30, until - time.monotonic())))
        if server.process.poll() is not None:
            self.reader.problems.append(f"the service ended by itself, with {server.process.returncode}")

    def stop(self, server: Server) -> None:
        Client.stopping.set()
        for client in self.clients:
            client.join()
        Client.stopping.clear()
        while (status := self.reader.ask_json("GET", "/status")) and status["queue"]:
            time.sleep(0.2)
        if not self.reader.backup[1]:  # a short soak on a slow machine
            self.reader.take_backup()
        self.listed = self.list_samples()
        if code := server.end(signal.SIGTERM):
            self.reader.problems.append(f"the service ended with {code}")

    def list_samples(self) -> dict[int, str]:
        """The label of each sample as the service tells it."""
        found: dict[int, str] = {}
        while page := (self.reader.ask_json("GET", f"/samples?limit=1000&after={max(found, default=0)}"))["samples"]:
            found |= {sample["number"]: sample["label"] for sample in page}
        return found

    def differences(self) -> list[str]:
        """All that was lost, learned twice, or is not as it would be without kills."""
        found = [problem for client in self.clients for problem in client.problems]
        learned = [one for batch in batches_of(self.folder) for one in batch]
        logged = {number: (label, pixels.tobytes()) for number, label, pixels in learned}
        if [number for number, _, _ in learned] != list(range(1, len(learned) + 1)):
            found.append("the numbers of the samples learned are not 1, 2, 3, ...")
        if len({pixels for _, pixels in logged.values()}) != len(logged):
            found.append("a sample is in the log twice")
        for learner in self.learners:
            lost = [n for n, sample in learner.acknowledged.items() if logged.get(n) != sample]
            found += [f"sample {number} was acknowledged and is not in the log" for number in lost]
        changes = changes_of(self.folder)
        for number, asked in self.changer.changes.items():
            if number not in changes or (changes[number].action, changes[number].sample) != asked:
                found.append(f"change {number} was acknowledged and is not in the log")
        labels: dict[int, str | None] = {number: label for number, (label, _) in logged.items()}
        for change in changes.values():
            if change.action in ("correct", "forget") and labels[change.sample] is not None:
                labels[change.sample] = change.label if change.action == "correct" else None
        if self.listed != {number: label for number, label in labels.items() if label is not None}:
            found.append("the list of samples does not follow from the log")
        return found + self.differences_of_backup() + self.differences_of_model()

    def differences_of_backup(self) -> list[str]:
        before, content = self.reader.backup
        if not content:
            return ["there was no backup"]
        with tempfile.TemporaryDirectory() as place, tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(place, filter="data")
            Model.load(Path(place), "cpu")
            records = [record for path in sorted(Path(place, "log").glob("*.log")) for record in read(path)]
        kept = {n for one in records if isinstance(one, SampleRecord) for n in range(one.first, one.last + 1)}
        return [f"sample {number} is not in the backup" for number in before if number not in kept]

    def differences_of_model(self) -> list[str]:
        saved: dict[int, str] = {}
        torch.set_num_threads(1)
        model, served, found = relearned(self.folder, RECIPE, FORM, saved), Model.load(self.folder, "cpu"), []
        if (served.samples, served.labels, served.batches) != (model.samples, model.labels, model.batches):
            found.append("the model has learned other samples than one that was never killed")
        if digest(served.learner) != digest(model.learner):
            found.append("the model is not bit for bit the one that was never killed")
        versions = Versions(self.folder)
        kept = {one: digest(Model.load(versions.path(one.number), "cpu").learner) for one in versions.all}
        other = [one for one, found_digest in kept.items() if found_digest != saved[one.number]]
        return found + [f"the version {one.name} is not as it was saved" for one in other]

    def report(self) -> dict:
        taken = np.array([1000 * one for client in self.predictors for one in client.taken])
        answered = sum((client.answered for client in self.clients), Counter())
        return {
            "minutes": round((time.monotonic() - self.started) / 60, 1),
            "kills": len(self.lives) - 1,
            "cpu_share": round(sum(life["cpu_s"] for life in self.lives) / (time.monotonic() - self.started), 2),
            "samples_acknowledged": sum(len(client.acknowledged) for client in self.learners),
            "changes_acknowledged": dict(Counter(action for action, _ in self.changer.changes.values())),
            "repeated_under_their_keys": sum(client.repeated for client in self.clients),
            "predictions": len(taken),
            "predict_p50_ms": round(float(np.percentile(taken, 50))),
            "predict_p99_ms": round(float(np.percentile(taken, 99))),
            "answers": dict(sorted(answered.items())),
            "growth": growth(self.lives[-1]["memory"]),
            "lives": self.lives,
        }


def growth(memory: list[list[float]]) -> dict:
    """Memory of the last life: its mean in MB over each quarter, and the slope over the second half in MB per hour."""
    age, used = np.array([[row[0], row[1]] for row in memory]).T
    quarters = [used[(age >= a * age[-1] / 4) & (age <= (a + 1) * age[-1] / 4)] for a in range(4)]
    late = age >= age[-1] / 2
    slope = np.polyfit(age[late], used[late], 1)[0] * 3600 if late.sum() > 2 else None
    means = [round(float(part.mean()), 1) if len(part) else None for part in quarters]
    return {"quarters_mb": means, "second_half_mb_per_hour": None if slope is None else round(float(slope), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the JSON file to write")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kill-minutes", type=float, default=4, help="between two kills, on average")
    parser.add_argument("--calm-minutes", type=float, default=20, help="at the end, without kills")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        soak = Soak(Path(place) / "model")
        soak.run(60 * given.minutes, 60 * given.kill_minutes, 60 * given.calm_minutes)
        found = {"ocil": ocil.__version__, "torch": torch.__version__, "minutes_asked_for": given.minutes}
        found |= soak.report() | {"differences": soak.differences()}
    lives = ",\n".join(f"  {json.dumps(life)}" for life in found["lives"])  # one per line
    rest = json.dumps({name: value for name, value in found.items() if name != "lives"}, indent=1).removesuffix("\n}")
    given.out.write_text(f'{rest},\n "lives": [\n{lives}\n ]\n}}\n')
    print(json.dumps({name: found[name] for name in found if name not in ("lives", "answers")}, indent=1))
    sys.exit(1 if found["differences"] else 0)


if __name__ == "__main__":
    main()
