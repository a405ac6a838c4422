"""``ocil tune``: choose settings on the first tasks, never on test images."""

import hashlib
import json
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ocil.cli.common import (
    FOLDER,
    WORDS,
    Settings,
    Where,
    Whole,
    carry_out,
    dataset_of_a_run,
    numbers,
    plain,
    print_line,
    read_settings,
    refuse_seeds,
    refuse_twice,
    say,
    say_error,
    whole_number,
)
from ocil.cli.data import DataDir, Json
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.cli.progress import CellBoard
    from ocil.config import RunConfig
    from ocil.data import Dataset
    from ocil.engine.local import Job
    from ocil.experiments import Cell
    from ocil.metrics import Estimate
    from ocil.results import Result

SCHEMA = 1


def tune(
    method: str,
    /,
    *,
    dataset: Annotated[str | None, Parameter(alias="-d")] = None,
    memory: Annotated[int | None, Parameter(converter=whole_number, alias="-m")] = None,
    review: bool | None = None,
    grid: Annotated[tuple[str, ...], WORDS] = (),
    tasks: Whole = 2,
    seeds: Annotated[int, Parameter(converter=whole_number, alias="-n")] = 3,
    validation: float = 0.1,
    set: Settings = (),  # noqa: A002
    where: Where | None = None,
    out: Annotated[Path | None, Parameter(alias="-o"), FOLDER] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Search a grid of settings on the first tasks and say which point is best.

    Every point runs on the first tasks' training images, some of them held out; the best mean accuracy on those at the
    end wins. Test images and later tasks are not looked at. Two tasks and three seeds are what the online continual
    learning survey (Mai et al., 2021) uses. A search that was stopped goes on with the same command.

    Example: `ocil tune er --dataset cifar100 --memory 5000 --grid lr=0.03,0.1,0.3 weight_decay=0,1e-4`

    Parameters
    ----------
    method
        A name from `ocil methods`.
    dataset
        A name from `ocil datasets`, or a prepared .npz. Default: the embedded fashion-mini.
    memory
        Images kept for replay. Default: as in `ocil run`.
    review
        The review trick. Default: the paper's.
    grid
        FIELD=VALUE,VALUE,... of any setting; several fields make a cross product. Default for afs: the paper's grid of
        beta.
    tasks
        Tasks to search on, from the first.
    seeds
        Runs of each point.
    validation
        Share of each class's training images that is held out to score on.
    set
        Other settings as FIELD=VALUE, the same for all points.
    out
        Folder of the search: its runs, its data and tuning.json. Default: a folder of its own below tuning/ for each
        grid, settings, tasks and validation.
    """
    where = where or Where()
    refuse_seeds(seeds)
    given = read_settings(set)
    refuse_twice(given, (name for name, value in (("memory", memory), ("review", review)) if value is not None))
    fixed = {*given, *(name for name, value in (("memory", memory), ("review", review)) if value is not None)}

    from ocil import data, methods, tuning
    from ocil.config import command, resolve
    from ocil.experiments import Cell
    from ocil.metrics import average_accuracy, estimate
    from ocil.naming import readable
    from ocil.results import Result, RunFolder, is_folder, write_json
    from ocil.runner import check

    info = methods.method(method)
    searched = read_grid(grid, fixed) or tuning.GRIDS.get(info.name)
    if not searched:
        raise OcilError(f"say what to search, for example: ocil tune {info.name} --grid lr=0.03,0.1,0.3")
    if twice := fixed & searched.keys():
        raise OcilError(f"{min(twice)} is what would be searched: leave it out, or name another with --grid.")
    name = data.DEFAULT if dataset is None else dataset
    loaded = data.load(name, data_dir)
    known = dataset_of_a_run(name, loaded)

    reals: dict[RunConfig, dict[str, str]] = {}  # points that come to the same are one
    for point in tuning.points(searched):
        config = resolve(info.name, known, memory=memory, review=review, settings=given | point,
                         classes=loaded.num_classes, train=len(loaded.train_y))  # fmt: skip
        reals.setdefault(config, point)
    first = next(iter(reals))
    ground = tuning.ground(loaded, first, tasks, validation)
    fingerprint = ground.data.fingerprint
    search, former = (name(reals, fingerprint, tasks) for name in (tuning.digest, tuning.former_digest))
    repeat = written(
        ["ocil", "tune", info.name, "--dataset", known],
        {"memory": memory, "grid": [f"{field}={','.join(values)}" for field, values in searched.items()],
         "tasks": tasks, "seeds": seeds, "validation": validation,
         "set": [f"{field}={value}" for field, value in given.items()],
         "device": where.device, "threads": where.threads, "data-dir": data_dir, "out": out},
        {None: [], True: ["--review"], False: ["--no-review"]}[review],
    )  # fmt: skip
    stem, words = Path(known).stem, f"{_memory(first)}-{'-'.join(searched)}"
    usual = Path("tuning") / f"{first.label}-{readable(stem)}{words}-{search}"
    old = Path("tuning") / f"{first.label}-{stem}{words}-{former}"
    out = out or (old if is_folder(old) and not is_folder(usual) else usual)
    job, folder = where.job(out, data_dir), out / "data"
    for real in reals:
        check(tuning.on_ground(real, folder, fingerprint, tasks), ground.data)
    path = tuning.keep(ground.data, folder)
    cells = []
    for real, point in reals.items():
        config = tuning.on_ground(real, path, fingerprint, tasks)
        cells.append(Cell(_text(point), tuple(replace(config, seed=seed) for seed in range(seeds))))

    order = [config for cell in cells for config in cell.configs]
    label_of = {config: cell.label for cell in cells for config in cell.configs}
    outcomes, failed = carry_out(
        order, where, job, _board(cells, order, job, where.workers, ground.data),
        lambda config, error: f"{label_of[config]}, seed {config.seed}: {error}",
    )  # fmt: skip
    scores: list[Estimate | None] = []
    finished: list[Result] = []
    for cell in cells:
        results = [result for config in cell.configs if isinstance(result := outcomes[config], Result)]
        finished += results
        complete = len(results) == len(cell.configs)
        scores.append(estimate([average_accuracy(r.matrix) for r in results]) if complete else None)
    winner = tuning.best(scores)
    if winner is None:
        say_error("no point of the grid has finished all its runs, so nothing was chosen.")
        if as_json:
            print(json.dumps({"chosen": None, "failed": failed}))
        return 2
    chosen, point = list(reals.items())[winner]
    close = [list(reals.values())[number] for number in tuning.rivals(scores, winner)]
    content = {
        "schema": SCHEMA,
        "search": search,
        "method": chosen.label,
        "dataset": known,
        "memory": chosen.learner.memory,
        "settings": given,
        "grid": searched,
        "tasks": [list(group) for group in ground.tasks],
        "train_images": len(ground.data.train_y),
        "validation_images": len(ground.data.test_y),
        "validation_share": validation,
        "data": {"path": str(path), "fingerprint": fingerprint},
        "seeds": seeds,
        "scores": [
            {
                "values": point_of,
                "accuracy": numbers(score),
                "runs": [str(RunFolder.of(out, config).path) for config in cell.configs],
            }
            for point_of, score, cell in zip(reals.values(), scores, cells, strict=True)
        ],
        "chosen": point,
        "close": close,
        "note": note(point, close, seeds, len(reals)),
        "failed": failed,
        "command": f"{command(chosen)} --seeds 10",
        "repeat": repeat,
        "environment": environment_of(finished),
    }
    set_aside(out / "tuning.json", content, former)
    write_json(out / "tuning.json", content)
    if as_json:
        print(json.dumps(content | {"record": str(out / "tuning.json")}))
    else:
        _print_scores(list(reals.values()), scores, winner, content)
        say(f"Record: {out / 'tuning.json'}")
    return 1 if failed else 0


def read_grid(words: tuple[str, ...], given: Collection[str]) -> dict[str, list[str]]:
    grid: dict[str, list[str]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        values = [value.strip() for value in text.split(",")]
        if not equals or not name or not all(values):
            raise OcilError(f"--grid {word}: write FIELD=VALUE,VALUE, for example --grid beta=0.05,0.1.")
        if name in grid or name in given:
            raise OcilError(f"--grid {word}: {name} is given twice.")
        if name in ("tasks", "class_order"):
            raise OcilError(f"--grid {word}: {name} makes another problem; it cannot be searched.")
        grid[name] = list(dict.fromkeys(values))
    return grid


def set_aside(record: Path, content: dict[str, Any], former: str) -> None:
    """A record of another search, or of other seeds, that is in the place of the new one gets a name of its own.

    ``former``: how the same search was called in records from before digests left the defaults out.
    """
    if not record.is_file():
        return
    old = record.read_bytes()
    try:
        known = json.loads(old)
        if known["search"] in (content["search"], former) and known["seeds"] == content["seeds"]:
            return
    except (ValueError, KeyError, TypeError):  # of an earlier version, perhaps
        pass
    record.rename(record.with_name(f"tuning-{hashlib.sha256(old).hexdigest()[:8]}.json"))


def environment_of(results: "Sequence[Result]") -> dict[str, str]:
    """What the runs were measured with, all of it where they differ, and when the last one finished."""
    found = [result.environment for result in results]
    names = ("ocil", "python", "torch", "device", "threads")
    content = {name: " + ".join(dict.fromkeys(str(one.get(name, "unknown")) for one in found)) for name in names}
    return content | {"finished": max(str(one.get("finished", "")) for one in found)}


def note(chosen: dict[str, str], close: list[dict[str, str]], seeds: int, points: int) -> str:
    """What is to be said if the choice is not sure."""
    if seeds == 1 and points > 1:
        return "One seed a point has no interval: with more seeds another point may win."
    if not close:
        return ""
    *others, last = map(_text, [chosen, *close])
    return f"{', '.join(others)} and {last} are within their intervals: more seeds may tell them apart."


def written(words: list[str], options: dict[str, Any], more: list[str]) -> str:
    """A command as it is typed. Options without a value are left out."""
    for name, value in options.items():
        if value not in (None, []):
            words = [*words, f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join([*words, *more])


def _text(point: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())


def _memory(config: "RunConfig") -> str:
    return f"-m{config.learner.memory}" if config.learner.memory else ""


def _board(cells: "list[Cell]", order: "list[RunConfig]", job: "Job", workers: int, data: "Dataset") -> "CellBoard":
    from ocil.cli.estimate import Estimator, Size
    from ocil.cli.progress import CellBoard
    from ocil.cli.sweep import Plan

    size = Size.of(data)
    finished = Plan.of(cells, job.root, reference=False).finished
    estimator = Estimator.of(job, workers, {order[0].dataset: size})
    seconds = [estimator.seconds(config, size) for config in order]
    to_come = [s for config, s in zip(order, seconds, strict=True) if config not in finished]
    return CellBoard(cells, order, seconds, estimator.together(to_come), finished)


def _print_scores(
    points: list[dict[str, str]], scores: "list[Estimate | None]", winner: int, content: dict[str, Any]
) -> None:
    from rich.console import Console
    from rich.table import Table

    from ocil.report.tables import percent

    title = f"{content['method']} on the first {len(content['tasks'])} tasks of {Path(content['dataset']).stem}"
    table = Table(*points[0], "accuracy on held-out images %", "", title=plain(title))
    for number, (point, score) in enumerate(zip(points, scores, strict=True)):
        state = "failed" if score is None else percent(score)
        table.add_row(*map(plain, point.values()), state, "chosen" if number == winner else "")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print(
        f"Learned from {content['train_images']} and scored on {content['validation_images']} training images of those "
        f"tasks; {content['seeds']} seeds a point."
    )
    if content["note"]:
        print_line(content["note"])
    print_line(f"To run it: {content['command']}")
