"""Cells of a table from start to end, without the command line's libraries: all seeds, the table, the time.

python benchmarks/cell.py DATASET METHOD [FIELD=VALUE ...] [+ METHOD [FIELD=VALUE ...]] ...
                          [--seeds N] [--workers N] [--root runs] [--data-dir DIR] [--json OUT]

Several cells, joined by ``+``, share the GPU: a run begins when another ends.
"""

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
from itertools import groupby  # noqa: E402
from pathlib import Path  # noqa: E402

from ocil.config import RunConfig, resolve  # noqa: E402
from ocil.engine import execute  # noqa: E402
from ocil.engine.local import Job  # noqa: E402
from ocil.metrics import average_accuracy  # noqa: E402
from ocil.report import tables  # noqa: E402
from ocil.results import Result, summarise  # noqa: E402
from ocil.runner import pick_device  # noqa: E402


def plan(dataset: str, words: list[str], seeds: int) -> list[RunConfig]:
    found = []
    for is_plus, group in groupby(words, "+".__eq__):
        if not is_plus:
            method, *settings = group
            given = dict(word.split("=", 1) for word in settings)
            found += [resolve(method, dataset, seed=seed, settings=given) for seed in range(seeds)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("cells", nargs="+")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    configs = plan(options.dataset, options.cells, options.seeds)
    ready = time.perf_counter() - STARTED

    def hear(number: int, event: object) -> None:
        if isinstance(event, Result):
            now, config = f"{time.perf_counter() - STARTED:6.1f} s", event.config
            print(f"{now}  {config.label} seed {config.seed}: {average_accuracy(event.matrix):.4f}", flush=True)

    outcomes = execute(configs, Job(options.root, str(pick_device()), options.data_dir), options.workers, hear)
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    for outcome in outcomes:
        if not isinstance(outcome, Result):
            print(f"failed: {outcome}")
    cells = [list(group) for _, group in groupby(results, lambda result: result.config.cell)]
    if cells:
        print(tables.markdown([summarise(cell) for cell in cells]))
    seconds = time.perf_counter() - STARTED
    alone = max((result.wall_seconds for result in results), default=0.0)
    print(f"{seconds:.1f} s from start to table ({ready:.1f} s imports, {alone:.1f} s the longest run)", flush=True)
    if options.json:
        content = {"seconds_for_all": round(seconds, 1), "runs": [result.to_json() for result in results]}
        options.json.write_text(json.dumps(content))
    raise SystemExit(len(results) < len(configs))


if __name__ == "__main__":
    main()
