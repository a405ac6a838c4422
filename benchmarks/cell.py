"""Cells of a table from start to end, without the command line's libraries: all seeds, the table, the time.

python benchmarks/cell.py DATASET METHOD [FIELD=VALUE ...] [+ METHOD [FIELD=VALUE ...]] ...
python benchmarks/cell.py EXPERIMENT[,EXPERIMENT...] [FIELD=VALUE ...] [--only 'FIELD=VALUE ...']
                          [--seeds N] [--workers N] [--limit SECONDS] [--device auto] [--root runs] [--data-dir DIR]
                          [--json OUT]

An experiment is a file, or the name of one that comes with ocil. Several cells, joined by ``+`` or from experiments,
share the GPU: a run begins when another ends. ``seeds=N`` among a cell's settings is for that cell alone. On Ctrl-C, on
SIGTERM and after ``--limit`` runs are saved; the same command goes on. OUT is written anew whenever a run ends, and at
last with the runs that had finished before.
"""

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import signal  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Iterable, Iterator, Mapping  # noqa: E402
from itertools import groupby  # noqa: E402
from pathlib import Path  # noqa: E402

from ocil.devices import pick_device  # noqa: E402
from ocil.engines import execute  # noqa: E402
from ocil.engines.job import Event, Job, Observer  # noqa: E402
from ocil.evaluation.measures import average_accuracy  # noqa: E402
from ocil.experiments import files as experiments  # noqa: E402
from ocil.files import write_bytes  # noqa: E402
from ocil.report.result_tables import summary_table  # noqa: E402
from ocil.report.table import markdown_table  # noqa: E402
from ocil.runs.config import RunConfig, resolve  # noqa: E402
from ocil.runs.protocol import Progress, Run, RunKey  # noqa: E402
from ocil.runs.results import Result, summarise  # noqa: E402
from ocil.runs.stream_run import StreamRun  # noqa: E402


def plan(place: str, words: list[str], seeds: int | None, only: str = "") -> list[RunConfig]:
    """``place``: a dataset, or experiments; a dataset is followed by a method."""
    if all("=" in word for word in words):
        settings = dict(word.split("=", 1) for word in words)
        files = (experiments.read(Path(name), seeds=seeds, settings=settings, only=only) for name in place.split(","))
        return list(dict.fromkeys(config for each in files for config in each.configs))
    found = []
    for is_plus, group in groupby(words, "+".__eq__):
        if not is_plus:
            method, *settings_given = group
            given = dict(word.split("=", 1) for word in settings_given)
            count = int(given.pop("seeds", seeds or 10))
            found += [resolve(method, place, seed=seed, settings=given) for seed in range(count)]
    return list(dict.fromkeys(found))


def unfinished(outcomes: Mapping[RunKey, object], latest: Mapping[RunKey, Progress]) -> Iterator[str]:
    """A line per run that has no result: why, and how far it came."""
    for key, outcome in outcomes.items():
        if not isinstance(outcome, Result):
            far = f" ({latest[key].done} of {latest[key].total} batches)" if key in latest else ""
            yield f"not finished: {outcome}{far}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", help="a dataset, or experiments")
    parser.add_argument("cells", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which runs are saved")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    configs = plan(options.place, options.cells, options.seeds, options.only)
    ready = time.perf_counter() - STARTED
    texts: list[str] = []  # the JSON of the runs that have ended, made once: a run may end every second
    latest: dict[RunKey, Progress] = {}
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True

    def on_event(run: Run, event: Event) -> None:
        if isinstance(event, Progress):
            latest[run.key] = event
        elif isinstance(event, Result):
            now, config = f"{time.perf_counter() - STARTED:6.1f} s", event.config
            print(f"{now}  {config.label} seed {config.seed}: {average_accuracy(event.matrix):.4f}", flush=True)
            texts.append(json.dumps(event.to_json()))
            save(texts)

    def save(runs: Iterable[str]) -> None:
        if options.json:
            seconds = round(time.perf_counter() - STARTED, 1)
            write_bytes(options.json, f'{{"seconds_for_all": {seconds}, "runs": [{", ".join(runs)}]}}'.encode())

    def stopped() -> bool:
        return asked or time.perf_counter() - STARTED > options.limit

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    job = Job(options.root, str(pick_device(options.device)), options.data_dir, options.workers)
    outcomes = execute([StreamRun(config) for config in configs], job, Observer(on_event, stopped))
    for line, count in Counter(unfinished(outcomes, latest)).items():
        print(line + (f" ({count} runs)" if count > 1 else ""))
    keys = [StreamRun(config).key for config in configs]
    finished = [outcome for key in keys if isinstance(outcome := outcomes[key], Result)]
    save(json.dumps(result.to_json()) for result in finished)
    if cells := [list(group) for _, group in groupby(finished, lambda result: result.config.cell)]:
        print(markdown_table(summary_table([summarise(cell) for cell in cells]), level=0), end="\n\n")
    alone = max((result.wall_seconds for result in finished), default=0.0)
    seconds = time.perf_counter() - STARTED
    print(f"{seconds:.1f} s from start to table ({ready:.1f} s imports, {alone:.1f} s the longest run)", flush=True)
    raise SystemExit(len(finished) < len(configs))


if __name__ == "__main__":
    main()
