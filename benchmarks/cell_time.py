"""Where the time of a cell goes, from the start of the process to its table.

    python benchmarks/cell_time.py [--json OUT.json] [--profile] [--limit SECONDS] [WORDS OF `ocil run` ...]

Without words it is the cell of docs/performance.md: ten seeds of AFS on CIFAR-100 with memory 5000 in bf16, without the
fine-tuned runs that intransigence compares with. The command runs in this process; every moment is counted to the
innermost phase that is going on:

| phase | what happens |
|---|---|
| import | Python and PyTorch are loaded, and what the command imports later |
| load | the dataset is read, decompressed and its fingerprint computed |
| check | the configurations of all seeds are checked |
| upload | images and labels go to the device |
| open | learners, streams and evaluators are built |
| compile | Triton compiles kernels, or finds them in its cache |
| first steps | steps that are taken one operation at a time, before one is captured |
| capture | steps are recorded as CUDA graphs |
| steps, reviews, evaluations | they are queued, and the device is waited for while it does them |
| reports | losses and accuracies are read for the progress display; most of it is waiting for queued steps |
| write | checkpoints, digests and results |
| rest | everything else: the loop, the display, the table |

While the host waits for the device, the time counts to what was queued last: steps, reviews or evaluations. Runs go on
side by side, so where one phase ends and the next begins is sharp only to the few steps that a run may be ahead.
Without a GPU the runs follow one after the other in this process (``--workers 1``).
"""

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402
import cProfile  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import pstats  # noqa: E402
import shlex  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from functools import wraps  # noqa: E402
from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from typing import Any  # noqa: E402

PHASES = (
    "import", "load", "check", "upload", "open", "compile", "first steps", "capture", "steps", "reviews",
    "evaluations", "reports", "write", "rest",
)  # fmt: skip
ON_DEVICE = ("steps", "reviews", "evaluations")
CELL = shlex.split("afs --dataset cifar100 --memory 5000 --seeds 10 --no-reference --set precision=bf16")


class Clock:
    """Counts every moment to one phase: to the innermost one that was entered and not left."""

    def __init__(self, started: float) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.stack = ["import"]
        self.since = started
        self.queued = "steps"
        """What the device was given last."""

    def count(self) -> None:
        now = time.perf_counter()
        self.seconds[self.stack[-1]] += now - self.since
        self.since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """``name`` is a phase; ``waiting`` is the one that was queued last. Threads that help are not counted."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if name in ON_DEVICE:
            self.queued = name
        name = self.queued if name == "waiting" else name
        self.count()
        self.calls[name] += 1
        self.stack.append(name)
        try:
            yield
        finally:
            self.count()
            self.stack.pop()

    def timed(self, name: str, function: Callable[..., Any], after: Callable[[], None] = lambda: None) -> Any:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            with self.phase(name):
                found = function(*arguments, **options)
                after()
                return found

        return call

    def watch(self, name: str, place: Any, *attributes: str, after: Callable[[], None] = lambda: None) -> None:
        """Count the time inside functions of a module or class to a phase."""
        for attribute in attributes:
            setattr(place, attribute, self.timed(name, getattr(place, attribute), after))


def watch_everything(clock: Clock, on_gpu: bool) -> None:
    """Wrap what the phases consist of. Imports all that the command will need, so that it counts as import."""
    import torch

    import ocil.cli.progress
    import ocil.engines.gpu
    import ocil.engines.pool
    import ocil.experiments.plan
    import ocil.report.result_tables  # noqa: F401
    from ocil import data
    from ocil.data.dataset import Dataset
    from ocil.engines import lanes
    from ocil.evaluation.anytime import AnytimeEvaluator
    from ocil.evaluation.evaluator import Evaluator, StartedEvaluation
    from ocil.runs import captured, stream_run
    from ocil.runs.build import Checks
    from ocil.runs.folder import RunFolder
    from ocil.runs.stepper import Stepper
    from ocil.runs.stream_run import ActiveStreamRun, StreamRun

    def synchronize() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    clock.watch("load", data, "load", "load_once")
    clock.watch("load", Dataset.__dict__["fingerprint"], "func")
    clock.watch("check", Checks, "check")
    clock.watch("check", sys.modules["ocil.experiments.configure"], "check_images")
    clock.watch("upload", stream_run, "DeviceData", after=synchronize)
    clock.watch("open", StreamRun, "open")
    clock.watch("capture", captured, "record")
    clock.watch("first steps" if on_gpu else "steps", Stepper, "learn")
    clock.watch("reviews", Stepper, "review_step", "task_end_step")
    clock.watch("steps", captured.CapturedStepper, "learn")
    clock.watch("reviews", captured.CapturedStepper, "review_step", "task_end_step")
    clock.watch("reports", ActiveStreamRun, "check_loss", "progress")
    clock.watch("write", RunFolder, "save_for_resume", "save_result", "save_config")
    clock.watch("write", stream_run, "digest")
    lanes.time = SimpleNamespace(sleep=clock.timed("waiting", time.sleep))  # type: ignore[assignment]
    clock.watch("evaluations", Evaluator, "start")
    clock.watch("evaluations", StartedEvaluation, "result")  # waits for it
    clock.watch("evaluations", AnytimeEvaluator, "count")
    if on_gpu:
        from triton.runtime.jit import JITFunction

        from ocil.kernels import network

        clock.watch("compile", network, "_compile")
        if hasattr(JITFunction, "_do_compile"):
            clock.watch("compile", JITFunction, "_do_compile")


def words_of(given: list[str], root: str, on_gpu: bool) -> list[str]:
    words = ["run", *(given or CELL)]
    place = [] if "--out" in words else ["--out", root]
    workers = [] if on_gpu or "--workers" in words else ["--workers", "1"]
    at = words.index("--set") if "--set" in words else len(words)
    return [*words[:at], *place, *workers, *words[at:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="also print the functions that take the host longest")
    parser.add_argument("--limit", type=float, help="exit with 1 if the cell takes more seconds")
    options, given = parser.parse_known_args()
    clock = Clock(STARTED)
    import torch

    from ocil.cli import main as ocil
    from ocil.devices import pick_device

    on_gpu = pick_device().type == "cuda" and "cpu" not in given
    watch_everything(clock, on_gpu)
    clock.count()
    clock.stack = ["rest"]
    profile = cProfile.Profile()
    code = 0
    with tempfile.TemporaryDirectory() as root:
        words = words_of([word for word in given if word != "--"], root, on_gpu)
        if options.profile:
            profile.enable()
        try:
            ocil(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        profile.disable()
        clock.count()
        total = clock.since - STARTED
    table = {name: {"seconds": round(clock.seconds[name], 3), "calls": clock.calls[name]} for name in PHASES}
    device = torch.cuda.get_device_name() if on_gpu else "cpu"
    result = {
        "command": shlex.join(["ocil", *words]),
        "device": device,
        "torch": torch.__version__,
        "seconds": round(total, 2),
    }
    result |= {"code": code, "phases": table}
    print(json.dumps(result, indent=1), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.profile:
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(30)
        print(text.getvalue(), file=sys.stderr)
    raise SystemExit(code or (options.limit is not None and total > options.limit))


if __name__ == "__main__":
    main()
