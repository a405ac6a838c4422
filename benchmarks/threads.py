"""What a second CPU thread gains, by method, image size and width: on an idle machine and next to a busy process.

    python benchmarks/threads.py [--quick] [--cases er-14-4 afs-32-20 ...] [--threads 1 2] [--json OUT.json]

A case is METHOD-SIDE-WIDTH. How threads wait is fixed when PyTorch is loaded, so every measurement has a process of its
own: waiting threads spin there (GNU OpenMP's default on Linux) or sleep (what ocil asks for). Times are milliseconds of
a step, and of CPU behind the stroke: the least of several, since whatever else the machine does only adds to them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CASES = ("er-14-4", "afs-14-8", "er-14-20", "afs-14-20", "er-32-8", "er-32-20", "afs-32-20")
QUICK = ("er-14-4", "er-32-8")
WAITING = {"spin": {"GOMP_SPINCOUNT": "300000"}, "sleep": {"OMP_WAIT_POLICY": "passive"}}


def time_steps(case: str, threads: int, seconds: float) -> dict[str, float]:
    """Measure in this process."""
    from ocil.engines.bench import made_up
    from ocil.runs.build import make_learner
    from ocil.streams import Stream
    from ocil.threads import using

    method, side, width = case.rsplit("-", 2)
    data = made_up(10, (int(side), int(side), 3), per_class=50)
    learner = make_learner(method, data, memory=200, width=int(width))
    batches = [(batch.x, batch.y) for _, batch in zip(range(30), Stream(data), strict=False)]
    walls, used = [], []
    with using(threads):
        for batch in batches[:12]:  # fills the memory, so that further steps replay a whole batch
            learner.learn(*batch)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(walls) < 3:
            wall, cpu = time.perf_counter(), time.process_time()
            learner.learn(*batches[12 + len(walls) % 18])
            walls.append(time.perf_counter() - wall)
            used.append(time.process_time() - cpu)
    return {"ms": 1e3 * min(walls), "cpu_ms": 1e3 * min(used), "steps": len(walls)}


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run this many processes that compute without end."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(case: str, waiting: str, threads: int, others: int, seconds: float) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    words = [sys.executable, __file__, "--child", case, str(threads), str(seconds)]
    with busy(others):
        done = subprocess.run(words, env=kept | WAITING[waiting], check=True, stdout=subprocess.PIPE, text=True)
    about = {"case": case, "threads": threads, "waiting": waiting, "busy": others, "load": os.getloadavg()[0]}
    return about | json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="two small cases for a moment each")
    parser.add_argument("--cases", nargs="+")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, os.cpu_count() or 1])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        case, threads, seconds = options.child
        print(json.dumps(time_steps(case, int(threads), float(seconds))))
        return
    seconds = 0.2 if options.quick else options.seconds
    ways = [(count, waiting) for count in options.threads for waiting in WAITING if count > 1 or waiting == "sleep"]
    columns = [(count, waiting, others) for others in (0, 1) for count, waiting in ways]
    titles = [
        f"{count}{f' {waiting}' if count > 1 else ''}, {'busy' if others else 'idle'}"
        for count, waiting, others in columns
    ]
    print("| case | " + " | ".join(titles) + " |\n|" + "---|" * (len(columns) + 1))
    rows = []
    for case in options.cases or (QUICK if options.quick else CASES):
        found = [measure(case, waiting, count, others, seconds) for count, waiting, others in columns]
        rows += found
        print(f"| {case} | " + " | ".join(f"{one['ms']:.0f} / {one['cpu_ms']:.0f}" for one in found) + " |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
