"""How fast ``ocil serve`` predicts, alone and while it learns: requests per second, their latency, and where time goes.

    python benchmarks/serve_load.py er afs --clients 1 4 16 64 --sizes 32 --seconds 15
    python benchmarks/serve_load.py er --clients 16 --sizes 224 4000 --learning yes

Starts the service on this machine with a network for 32x32 images (width 20; ``--model-size``, ``--set`` for others),
teaches it some samples, and then sends prediction requests of one image each from a process of its own, over
connections that stay open. Images of 32 pixels are PNG files, larger ones JPEG files. While learning goes on, one more
client keeps the queue of samples filled. Prints one JSON object per line.

``cpu_ms`` is the CPU time per prediction in milliseconds, by thread of the service and for the clients: unlike
predictions per second it hardly depends on what else the machine does.
"""

import argparse
import base64
import collections
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

LABELS = [f"class {number}" for number in range(10)]
TICK = os.sysconf("SC_CLK_TCK")


def image(number: int, size: int) -> bytes:
    """A file with a blurred pattern: noise alone would be the worst case of every decoder."""
    small = np.random.default_rng(number).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    file = io.BytesIO()
    pixels = Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC)
    pixels.save(file, **({"format": "PNG"} if size <= 32 else {"format": "JPEG", "quality": 85}))
    return file.getvalue()


def learning_body(number: int) -> bytes:
    samples = [
        {"image": base64.b64encode(image(10 * number + n, 32)).decode(), "label": label}
        for n, label in enumerate(LABELS)
    ]
    return json.dumps({"samples": samples}).encode()


class Connection:
    """A client that costs little itself: it runs on the cores that it measures."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=300)

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        self.socket.sendall(head.encode() + b"\r\n" + body)
        content = b""
        while b"\r\n\r\n" not in content:
            content += self._more()
        head_bytes, _, content = content.partition(b"\r\n\r\n")
        length = int(head_bytes.lower().partition(b"content-length:")[2].split()[0])
        while len(content) < length:
            content += self._more()
        return int(head_bytes.split()[1]), content

    def _more(self) -> bytes:
        if not (part := self.socket.recv(2**16)):
            raise ConnectionError("the service closed the connection")
        return part


def status_of(port: int) -> dict:
    return json.loads(Connection(port).ask("GET", "/status")[1])


def measure(port: int, clients: int, size: int, seconds: float, learning: bool) -> dict:
    """Run in the process of the clients."""
    stop = threading.Event()
    taken: list[float] = []
    acknowledged: list[float] = []
    edge = b'--b\r\nContent-Disposition: form-data; name="image"; filename="i"\r\n\r\n'
    bodies = [edge + image(number, size) + b"\r\n--b--\r\n" for number in range(20 if size < 1000 else 2)]
    lessons = [learning_body(number) for number in range(20)]

    def predict() -> None:
        connection, number = Connection(port), 0
        while not stop.is_set():
            started = time.perf_counter()
            kind = "multipart/form-data; boundary=b"
            status, content = connection.ask("POST", "/predict", bodies[number % len(bodies)], kind)
            taken.append(time.perf_counter() - started)
            assert status == 200, content
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
                stop.wait(0.25)

    before, used = status_of(port), time.process_time()
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
    found = {
        "predictions": len(taken),
        "predictions_per_second": round(len(taken) / elapsed, 1),
        "p50_ms": round(1000 * float(np.percentile(taken, 50)), 1),
        "p99_ms": round(1000 * float(np.percentile(taken, 99)), 1),
        "samples_learned_per_second": round((status_of(port)["learned"] - before["learned"]) / elapsed, 1),
        "client_cpu_ms": round(1000 * (time.process_time() - used) / len(taken), 2),
    }
    if acknowledged:
        found |= {
            "acknowledge_p50_ms": round(1000 * float(np.percentile(acknowledged, 50)), 1),
            "acknowledge_p99_ms": round(1000 * float(np.percentile(acknowledged, 99)), 1),
        }
    return found


def report_threads(file: Path) -> None:
    """In the service's process: write the CPU seconds of its threads, by name, to a file upon SIGUSR1."""

    def write(*_: object) -> None:
        names = {thread.native_id: thread.name.rpartition("_")[0] or thread.name for thread in threading.enumerate()}
        used: dict[str, float] = collections.defaultdict(float)
        for task in Path("/proc/self/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            used[names.get(int(task.name), "other")] += (int(fields[11]) + int(fields[12])) / TICK
        file.with_suffix(".new").write_text(json.dumps(used))
        file.with_suffix(".new").rename(file)

    signal.signal(signal.SIGUSR1, write)


class Server:
    """The service in a process of its own."""

    def __init__(self, method: str, folder: Path, words: list[str]) -> None:
        self.threads_file = folder / "threads.json"
        options = ["serve", "--model", str(folder / "model"), "--method", method, "--port", "0", "--json", *words]
        command = [sys.executable, __file__, "--run", str(self.threads_file), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["address"].rpartition(":")[2])

    def threads(self) -> dict[str, float]:
        self.threads_file.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        while not self.threads_file.exists():
            time.sleep(0.01)
        return json.loads(self.threads_file.read_text())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--sizes", type=int, nargs="+", default=[32])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--learning", nargs="+", choices=["no", "yes"], default=["no", "yes"])
    parser.add_argument("--model-size", type=int, default=32)
    parser.add_argument("--set", nargs="+", default=[])
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.port:
        learning = given.learning == ["yes"]
        print(json.dumps(measure(given.port, given.clients[0], given.sizes[0], given.seconds, learning)))
        return
    words = ["--max-queue", "64", "--size", str(given.model_size)]
    words += ["--set", *given.set] if given.set else []
    for method in given.methods:
        with tempfile.TemporaryDirectory() as folder:
            server = Server(method, Path(folder), words)
            try:
                for number in range(3):
                    Connection(server.port).ask("POST", "/learn?wait=true", learning_body(number))
                for learning in given.learning:
                    for size in given.sizes:
                        for clients in given.clients:
                            one = [method, "--port", server.port, "--clients", clients, "--sizes", size]
                            one += ["--seconds", given.seconds, "--learning", learning]
                            before = server.threads()
                            command = [sys.executable, __file__, *map(str, one)]
                            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                            found, after = json.loads(out), server.threads()
                            count = found.pop("predictions")
                            cpu = {
                                name: round(1000 * (used - before.get(name, 0)) / count, 2)
                                for name, used in after.items()
                                if used - before.get(name, 0) >= 0.02
                            }
                            cpu["clients"] = found.pop("client_cpu_ms")
                            row = {"method": method, "size": size, "clients": clients, "learning": learning}
                            load = round(os.getloadavg()[0], 1)
                            print(json.dumps(row | found | {"cpu_ms": cpu, "load": load}), flush=True)
            finally:
                server.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        from ocil.cli import main as ocil

        report_threads(Path(sys.argv[2]))
        sys.argv = ["ocil", *sys.argv[3:]]
        ocil()
    else:
        main()
