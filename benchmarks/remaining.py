"""What docs/results.md lists as not measured, within a time: the doubts that a short time settles come first.

    python benchmarks/wide_rows.py --out wide.toml
    python benchmarks/remaining.py OUT --limit 1500 [--wide wide.toml] [--data-dir DIR] [--list]
    python tools/take_runs.py OUT/times.json results
    python tools/take_runs.py OUT/wide.json results --side-by-side N        # and so on with the long tails

First the GPU tests, then the running times with the GPU to itself; after these the long tails and the wide rows of
Table I, side by side. A step begins when its dataset is there, so a dataset may still be on its way. Every step writes
its JSON anew whenever a run ends: what is stopped loses only the runs that are going on. What a step prints is in
OUT/STEP.log. A step that does not end in time is ended. The same command goes on where it was stopped, also by Ctrl-C
or SIGTERM; it repeats the tests.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from ocil import data
from ocil.errors import OcilError

STARTED = time.perf_counter()
HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
LONGER = ("epochs1=90", "decay_every1=30", "epochs2=180", "decay_every2=60", "precision=bf16")
SIDE_BY_SIDE = ("-n", "5") if find_spec("xdist") else ()
FINISHED = 0
ASKED = signal.SIGINT if os.name == "posix" else signal.SIGTERM  # then pytest still writes what it found
TO_SAVE = 60.0  # seconds, for a step that stops by itself when its time is over
FOR_TESTS = 600.0  # seconds: they take two minutes, and one that hangs must not take the time of all else


@dataclass(frozen=True)
class Step:
    """One process. In its words ``{out}`` is the folder, ``{left}`` the seconds that are left."""

    name: str
    words: tuple[str, ...]
    datasets: tuple[str, ...] = ()
    limit: float = float("inf")
    """Seconds after which it is ended, whatever is left."""


def script(name: str, script: str, *words: str, datasets: tuple[str, ...]) -> Step:
    limit = "--seconds" if script == "longtail.py" else "--limit"
    root = ("--root", "{out}/" + name, "--json", "{out}/" + name + ".json", limit, "{left}")
    return Step(name, (str(HERE / script), *words, *root), datasets)


def alone() -> Iterator[Step]:
    """What has the GPU to itself."""
    tests = (str(path) for path in sorted(TESTS.glob("test_*.py")) if "mark.gpu" in path.read_text(encoding="utf-8"))
    options = ("-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors", *SIDE_BY_SIDE)
    yield Step("tests", ("-m", "pytest", *options, "--junitxml", "{out}/tests.xml", *tests), limit=FOR_TESTS)
    words = ("time", "--only", "method=aaer,gss,ocm", "--seeds", "1", "--workers", "1")
    yield script("times", "cell.py", *words, datasets=("cifar100",))


def long_tails() -> Iterator[Step]:
    """Five seeds with three times the epochs. CIFAR-100-LT has three of them."""
    for name, first, lacking in (("cifar100", "3", "2"), ("mini_imagenet", "0", "5")):
        words = (*LONGER, "--datasets", name, "--first-seed", first, "--seeds", lacking)
        yield script(f"longtail-{name}", "longtail.py", *words, datasets=(name,))


def wide_rows(file: Path | None) -> Iterator[Step]:
    if file is not None:
        yield script("wide", "cell.py", str(file), datasets=("cifar100", "cifar10"))


def is_there(dataset: str, data_dir: Path | None) -> bool:
    try:
        data.load(dataset, data_dir)
    except OcilError:
        return False
    return True


class Measurement:
    """Carries out steps until a time is over."""

    def __init__(self, out: Path, limit: float, data_dir: Path | None) -> None:
        self.out, self.limit, self.data_dir = out, limit, data_dir
        self.failed: list[str] = []
        self.stopped = False

    @property
    def left(self) -> float:
        return 0.0 if self.stopped else self.limit - (time.perf_counter() - STARTED)

    def stop(self, *_: object) -> None:
        self.stopped = True

    def carry_out(self, steps: Sequence[Step]) -> None:
        """One after the other, in this order but for those whose dataset is not there yet."""
        waiting, said = list(steps), False
        while waiting and self.left > 0:
            ready = (step for step in waiting if all(is_there(name, self.data_dir) for name in step.datasets))
            if (step := next(ready, None)) is None:
                if not said:
                    self._say(f"{', '.join(step.name for step in waiting)}: a dataset is not there yet")
                said = True
                time.sleep(min(2.0, max(0.0, self.left)))
                continue
            waiting.remove(step)
            self._run(step)
        self.failed += [f"{step.name}: its time was over, or its dataset did not come" for step in waiting]

    def _run(self, step: Step) -> None:
        words = [word.replace("{out}", str(self.out)).replace("{left}", f"{self.left:.0f}") for word in step.words]
        words += ["--data-dir", str(self.data_dir)] if step.datasets and self.data_dir else []
        self._say(f"{step.name} begins")
        with (self.out / f"{step.name}.log").open("a") as log:
            process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=subprocess.STDOUT)
            code = self._ended(process, step)
        self._say(f"{step.name} ended with {code}")
        if code != FINISHED:
            self.failed.append(f"{step.name}: exit code {code}, see {self.out / step.name}.log")

    def _ended(self, process: "subprocess.Popen[bytes]", step: Step) -> int:
        """The exit code of a process, which is asked to end when its time is over, and forced to a little later."""
        grace = TO_SAVE if "{left}" in step.words else 0.0
        until = time.perf_counter() + min(step.limit, self.left + grace)
        while process.poll() is None and time.perf_counter() < until and not self.stopped:
            time.sleep(0.5)
        if process.poll() is None:
            process.send_signal(ASKED)
        try:
            return process.wait(TO_SAVE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    @staticmethod
    def _say(text: str) -> None:
        print(f"{time.perf_counter() - STARTED:6.1f} s  {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all")
    parser.add_argument("--wide", type=Path, help="an experiment from wide_rows.py")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--list", action="store_true", help="print the commands instead")
    options = parser.parse_args()
    first, *together = [[*alone()], [*long_tails()], [*wide_rows(options.wide)]]
    if options.list:
        for step in (*first, *chain(*together)):
            print(step.name, *step.words)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    measurement = Measurement(options.out, options.limit, options.data_dir)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, measurement.stop)
    measurement.carry_out(first)
    with ThreadPoolExecutor() as pool:
        list(pool.map(measurement.carry_out, together))  # raises what a thread has raised
    print("\n".join(measurement.failed) or "all is measured", flush=True)
    raise SystemExit(bool(measurement.failed))


if __name__ == "__main__":
    main()
