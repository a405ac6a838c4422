"""One cell of a table from start to end, without the command line's libraries: ten seeds, the table row, the time.

python benchmarks/cell.py DATASET METHOD [FIELD=VALUE ...] [--seeds N] [--root runs] [--data-dir DIR] [--json OUT]
"""

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402

from ocil.config import resolve  # noqa: E402
from ocil.engine import execute  # noqa: E402
from ocil.engine.local import Job  # noqa: E402
from ocil.report import tables  # noqa: E402
from ocil.results import Result, summarise  # noqa: E402
from ocil.runner import pick_device  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("method")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings = dict(word.split("=", 1) for word in options.settings)
    configs = [resolve(options.method, options.dataset, seed=seed, settings=settings) for seed in range(options.seeds)]
    ready = time.perf_counter() - STARTED
    outcomes = execute(configs, Job(options.root, str(pick_device()), options.data_dir))
    for outcome in outcomes:
        if not isinstance(outcome, Result):
            raise SystemExit(f"failed: {outcome}")
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    print(tables.markdown([summarise(results)]))
    seconds = time.perf_counter() - STARTED
    alone = max(result.wall_seconds for result in results)
    print(f"{seconds:.1f} s from start to table ({ready:.1f} s imports, {alone:.1f} s learning)", flush=True)
    if options.json:
        content = {"seconds_for_all": round(seconds, 1), "runs": [result.to_json() for result in results]}
        options.json.write_text(json.dumps(content))


if __name__ == "__main__":
    main()
