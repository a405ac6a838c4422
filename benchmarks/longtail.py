"""The table of long-tailed recognition from start to end, without the command line's libraries.

python benchmarks/longtail.py [FIELD=VALUE ...] [--datasets cifar100 mini_imagenet] [--variants ...] [--seeds 3]
                              [--first-seed 0] [--imbalance 100] [--open 0.2] [--side-by-side N]
                              [--device auto] [--root runs] [--data-dir DIR] [--json OUT] [--seconds N]

All runs share the GPU from one thread: they take turns, a replayed step each, on CUDA streams of their own. Threads
would gain nothing: a replay costs the host little, and while one records its step the others may not touch the device.
--json is written anew as each run ends, so a time limit loses only what is running. After --seconds, on Ctrl-C and on
SIGTERM runs are saved; the same command goes on.
"""

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402
import signal  # noqa: E402
from pathlib import Path  # noqa: E402

from ocil import data  # noqa: E402
from ocil.devices import pick_device  # noqa: E402
from ocil.engines import execute  # noqa: E402
from ocil.engines.job import Event, Job, Observer  # noqa: E402
from ocil.longtail.config import VARIANTS, LongTailConfig, resolve  # noqa: E402
from ocil.longtail.results import LongTailResult, cells  # noqa: E402
from ocil.longtail.runs import LongTailRun  # noqa: E402
from ocil.report.longtail import document  # noqa: E402
from ocil.report.papers import load  # noqa: E402
from ocil.report.table import markdown  # noqa: E402
from ocil.runs.protocol import Run, RunKey  # noqa: E402
from ocil.runs.results import write_json  # noqa: E402


def plan(options: argparse.Namespace) -> list[LongTailConfig]:
    given = {"imbalance": options.imbalance, "open_share": options.open}
    given |= dict(word.split("=", 1) for word in options.settings)
    found = []
    for name in options.datasets:
        entry = data.CATALOG.get(name)
        if entry is not None:
            side, fingerprint = max(entry.image_shape[:2]), ""
        else:
            whole = data.load(name, options.data_dir)
            side, fingerprint = max(whole.image_shape[:2]), whole.fingerprint
        found += [
            resolve(variant, name, seed=seed, image_side=side, fingerprint=fingerprint, settings=given)
            for seed in range(options.first_seed, options.first_seed + options.seeds)
            for variant in options.variants
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--datasets", nargs="+", default=["cifar100", "mini_imagenet"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--imbalance", type=float, default=100.0)
    parser.add_argument("--open", type=float, default=0.2)
    parser.add_argument("--side-by-side", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    configs, device = plan(options), pick_device(options.device)
    results: list[LongTailResult] = []
    first: dict[RunKey, float] = {}
    spent = lambda: time.perf_counter() - STARTED  # noqa: E731
    print(f"{spent():6.1f} s  {len(configs)} runs on {device}", flush=True)

    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True

    def on_event(run: Run, event: Event) -> None:
        name = f"{run.config.dataset_label} {run.name}"
        if isinstance(event, LongTailResult):
            results.append(event)
            shown = {key: round(100 * value, 1) for key, value in event.measures.items() if value is not None}
            print(f"{spent():6.1f} s  {name}: {shown}", flush=True)
            if options.json:
                content = {"seconds_so_far": round(spent(), 1), "runs": [result.to_json() for result in results]}
                write_json(options.json, content)
        elif isinstance(event, Exception):
            print(f"{spent():6.1f} s  {name}: {type(event).__name__}: {event}", flush=True)
        elif run.key not in first:
            first[run.key] = spent()
            print(f"{spent():6.1f} s  {name} begins", flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    job = Job(options.root, str(device), options.data_dir, options.side_by_side, checkpoint_seconds=120.0)
    observer = Observer(on_event, lambda: asked or spent() > options.seconds)
    execute([LongTailRun(config) for config in configs], job, observer)
    if results:
        print(markdown(document(cells(results), load())))
    print(f"{spent():.1f} s from start to table", flush=True)
    raise SystemExit(len(results) < len(configs))


if __name__ == "__main__":
    main()
