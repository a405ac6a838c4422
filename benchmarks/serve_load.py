"""How fast ``ocil serve`` predicts, alone and while it learns: requests per second and their latency.

    python benchmarks/serve_load.py er afs --clients 1 4 --seconds 15

Starts the service on this machine with a network for 32x32 images (width 20), teaches it some samples, and then sends
prediction requests of one PNG image each from a process of its own, over connections that stay open. While learning
goes on, one more client keeps the queue of samples filled. Prints one JSON object per line.
"""

import argparse
import base64
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

LABELS = [f"class {number}" for number in range(10)]


def png(number: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


def learning_body(number: int) -> bytes:
    samples = [
        {"image": base64.b64encode(png(10 * number + n)).decode(), "label": label} for n, label in enumerate(LABELS)
    ]
    return json.dumps({"samples": samples}).encode()


class Connection:
    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, dict]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())


def measure(port: int, clients: int, seconds: float, learning: bool) -> dict:
    """Run in the process of the clients."""
    stop = threading.Event()
    taken: list[float] = []
    acknowledged: list[float] = []
    bodies = [json.dumps({"images": [base64.b64encode(png(n)).decode()]}).encode() for n in range(20)]
    lessons = [learning_body(n) for n in range(20)]

    def predict() -> None:
        connection, number = Connection(port), 0
        while not stop.is_set():
            started = time.perf_counter()
            status, _ = connection.ask("POST", "/predict", bodies[number % len(bodies)])
            taken.append(time.perf_counter() - started)
            assert status == 200, status
            number += 1

    def teach() -> None:
        number = 0
        while not stop.is_set():
            connection = Connection(port)  # a refusal closes it
            started = time.perf_counter()
            status, _ = connection.ask("POST", "/learn", lessons[number % len(lessons)])
            if status == 200:
                acknowledged.append(time.perf_counter() - started)
                number += 1
            else:
                stop.wait(0.05)

    before = Connection(port).ask("GET", "/status")[1]
    threads = [threading.Thread(target=predict) for _ in range(clients)]
    threads += [threading.Thread(target=teach)] if learning else []
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    after = Connection(port).ask("GET", "/status")[1]
    found = {
        "clients": clients,
        "learning": learning,
        "predictions_per_second": round(len(taken) / elapsed, 1),
        "p50_ms": round(1000 * float(np.percentile(taken, 50)), 1),
        "p99_ms": round(1000 * float(np.percentile(taken, 99)), 1),
        "samples_learned_per_second": round((after["learned"] - before["learned"]) / elapsed, 1),
    }
    if acknowledged:
        found |= {
            "acknowledge_p50_ms": round(1000 * float(np.percentile(acknowledged, 50)), 1),
            "acknowledge_p99_ms": round(1000 * float(np.percentile(acknowledged, 99)), 1),
        }
    return found


def serve(method: str, folder: Path) -> "tuple[subprocess.Popen[str], int]":
    words = ["serve", "--model", str(folder), "--method", method, "--port", "0", "--json", "--max-queue", "64"]
    server = subprocess.Popen([sys.executable, "-m", "ocil", *words], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, int(json.loads(server.stdout.readline())["address"].rpartition(":")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--learning", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.port:
        print(json.dumps(measure(given.port, given.clients[0], given.seconds, given.learning)))
        return
    for method in given.methods:
        with tempfile.TemporaryDirectory() as folder:
            server, port = serve(method, Path(folder))
            try:
                for number in range(3):
                    Connection(port).ask("POST", "/learn?wait=true", learning_body(number))
                for learning in ([], ["--learning"]):
                    for clients in given.clients:
                        words = [
                            method,
                            "--port",
                            str(port),
                            "--clients",
                            str(clients),
                            "--seconds",
                            str(given.seconds),
                        ]
                        command = [sys.executable, __file__, *words, *learning]
                        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                        print(json.dumps({"method": method, "cores": os.cpu_count()} | json.loads(out)), flush=True)
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait()


if __name__ == "__main__":
    main()
