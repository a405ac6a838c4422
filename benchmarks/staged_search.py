"""A search in stages by the protocol of ``ocil tune``: each stage tries a small grid and keeps the best point.

    python benchmarks/staged_search.py METHOD DATASET [FIELD=VALUE ...] [--stage FIELD=A,B,... [FIELD=A,B,...]] ...
                                       [--memory N] [--tasks 2] [--seeds 3] [--validation 0.1] [--device auto]
                                       [--workers N] [--out tuning/staged] [--data-dir DIR] [--json OUT.json]

Points are tried on the first tasks alone and scored on training images of them that are held out, so no test image has
an influence. A stage changes the settings that the stages before it chose. A point replaces these only if it is better
by more than the interval of the difference over the seeds, which all points share: chance does not move settings.
Without ``--stage`` the stages are those of STAGES. OUT is written anew after each stage; the same command goes on.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from ocil.devices import pick_device
from ocil.engines import execute
from ocil.engines.job import Job, Outcomes
from ocil.evaluation.measures import average_accuracy, estimate, estimate_json
from ocil.experiments import configure
from ocil.experiments.plan import results_of
from ocil.experiments.search import Search
from ocil.files import write_bytes
from ocil.runs.config import command
from ocil.runs.environment import environment

STARTED = time.perf_counter()
STAGES = {
    "aaer": [
        ["memory_batch=10,50,100,200", "augment=true,false"],  # what is replayed, and how much of it
        ["updates=1,2,4"],  # how often
        ["drift_weight=0,0.3,1,3", "anchor_margin=0,0.5,1"],
        ["compensation=backward,forward,none"],
        ["review=false,true"],
        ["lr=0.03,0.1,0.3"],
    ]
}


def log(*what: object) -> None:
    print(f"[{time.perf_counter() - STARTED:6.1f} s]", *what, flush=True)


def space_of(words: list[str]) -> dict[str, list[str]]:
    return {name: values.split(",") for name, values in (word.split("=", 1) for word in words)}


def accuracies(search: Search, outcomes: Outcomes) -> list[list[float]]:
    """The accuracy of each finished run on the images held out, point by point, in the order of the seeds."""
    return [[average_accuracy(result.matrix) for result in results_of(cell, outcomes)] for cell in search.cells]


def better(found: list[list[float]], start: int | None, seeds: int) -> int | None:
    """The best point, or ``start`` if the best is not clearly better than it; None if no point is finished."""
    whole = [number for number, values in enumerate(found) if len(values) == seeds]
    if not whole:
        return None
    best = max(whole, key=lambda number: sum(found[number]))
    if start is None or start not in whole or best == start:
        return best
    gain = estimate([a - b for a, b in zip(found[best], found[start], strict=True)])
    return best if gain.interval is not None and gain.mean > gain.interval else start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("method")
    parser.add_argument("dataset")
    parser.add_argument("settings", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--stage", nargs="+", action="append", metavar="FIELD=A,B,...")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--validation", type=float, default=0.1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("tuning/staged"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    settings: dict[str, str] = dict(word.split("=", 1) for word in options.settings)
    device = pick_device(options.device)
    record: dict[str, Any] = {
        "method": options.method,
        "dataset": options.dataset,
        "given": dict(settings),
        "tasks": options.tasks,
        "seeds": options.seeds,
        "validation_share": options.validation,
        "environment": environment(device),
        "stages": [],
    }
    folder = options.out / f"{options.method}-{Path(options.dataset).stem}-m{options.memory or 'default'}"
    given = settings | ({"memory": str(options.memory)} if options.memory else {})
    learner = configure(options.method, options.dataset, settings=given, data_dir=options.data_dir).config.learner
    for words in options.stage or STAGES[options.method]:
        space = space_of(words)
        before = {name: value for name, value in settings.items() if name not in space}
        search = Search.prepare(
            options.method,
            options.dataset,
            space,
            memory=options.memory,
            settings=before,
            tasks=options.tasks,
            seeds=options.seeds,
            validation=options.validation,
            out=folder,
            data_dir=options.data_dir,
        )
        start = next((n for n, config in enumerate(search.configs) if config.learner == learner), None)
        plan = search.plan()
        search.write_data()
        outcomes = execute(plan.runs, Job(folder, str(device), options.data_dir, options.workers))
        found = accuracies(search, outcomes)
        chosen = better(found, start, options.seeds)
        if chosen is None:
            raise SystemExit(f"no point of {' '.join(words)} finished all its runs")
        settings, learner = before | search.points[chosen], search.configs[chosen].learner
        rows = [
            {"values": point, "accuracy": estimate_json(estimate(values)) if values else None, "runs": values}
            for point, values in zip(search.points, found, strict=True)
        ]
        stage = {"space": space, "before": before, "points": rows, "chosen": search.points[chosen]}
        record["stages"].append(stage)
        record |= {"chosen": settings, "command": f"{command(search.configs[chosen])} --seeds 10"}
        for row in rows:
            log("  " + " ".join(f"{k}={v}" for k, v in row["values"].items()), [round(100 * v, 1) for v in row["runs"]])
        log(" ".join(words), "->", search.points[chosen])
        if options.json:
            write_bytes(options.json, json.dumps(record, indent=1).encode() + b"\n")
    log(record["command"])


if __name__ == "__main__":
    main()
