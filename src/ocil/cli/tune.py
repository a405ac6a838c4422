"""``ocil tune``: choose settings on the first tasks, never on test images."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ocil.cli import console
from ocil.cli.execute import execute
from ocil.cli.names import DATASET, METHOD
from ocil.cli.options import FOLDER, WHOLE, WORDS, DataDir, Execution, Json, MemorySize, Settings, Whole, read_settings
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.evaluation.measures import Estimate
    from ocil.experiments.search import Choice, Search


def tune(
    method: Annotated[str, METHOD],
    /,
    *,
    dataset: Annotated[str | None, Parameter(alias="-d"), DATASET] = None,
    memory: MemorySize = None,
    review: bool | None = None,
    grid: Annotated[tuple[str, ...], WORDS] = (),
    tasks: Whole = 2,
    seeds: Annotated[int, WHOLE, Parameter(alias="-n")] = 3,
    validation: float = 0.1,
    set: Settings = (),  # noqa: A002
    execution: Execution | None = None,
    out: Annotated[Path | None, Parameter(alias="-o"), FOLDER] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Choose settings by a grid search on the first tasks.

    Every point of the grid learns from the first tasks' training images, without some that are held out; the point with
    the best mean accuracy on those wins. Test images and later tasks are not looked at. Two tasks and three seeds are
    what the online continual learning survey (Mai et al., 2021) uses. A search that was stopped goes on with the same
    command.

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
        The review trick. Default: as published for the method.
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
    execution = execution or Execution()
    from ocil.cli.features import features_of
    from ocil.cli.progress import CellTable
    from ocil.experiments.estimate import Estimator, Forecast, Size
    from ocil.experiments.search import Search
    from ocil.experiments.search_record import record_of, repeat_command, save_record

    search = Search.prepare(
        method,
        dataset,
        read_space(grid),
        memory=memory,
        review=review,
        settings=read_settings(set, memory=memory, review=review),
        tasks=tasks,
        seeds=seeds,
        validation=validation,
        out=out,
        data_dir=data_dir,
        features=lambda loaded, encoder: features_of(loaded, encoder, data_dir, execution.job(Path(), data_dir).device),
    )
    job, plan = execution.job(search.out, data_dir), search.plan()
    search.write_data()
    sizes = {str(search.data_path): Size.of(search.split.data)}
    display = CellTable.of(Forecast(plan, Estimator.of(job, sizes), sizes))
    outcomes, failed = execute(plan.runs, job, display, execution, search.describe)
    scores = search.scores(outcomes)
    choice = search.choose(scores)
    if choice is None:
        console.error("no point of the grid has finished all its runs, so nothing was chosen.")
        if as_json:
            console.print_json({"chosen": None, "failed": failed})
        return 2
    options = {"device": execution.device, "threads": execution.threads, "data-dir": data_dir, "out": out}
    record = record_of(search, outcomes, choice, failed, repeat_command(search, options))
    path = save_record(search, record)
    if as_json:
        console.print_json(record | {"record": str(path)})
    else:
        _print_scores(search, scores, choice)
        console.print_line(f"To run it: {record['command']}")
        console.info(f"Record: {path}")
    return 1 if failed else 0


def read_space(words: tuple[str, ...]) -> dict[str, list[str]]:
    """The search space of words such as ``lr=0.1,0.2``."""
    space: dict[str, list[str]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        values = [value.strip() for value in text.split(",")]
        if not equals or not name or not all(values):
            raise OcilError(f"--grid {word}: write FIELD=VALUE,VALUE, for example --grid beta=0.05,0.1.")
        if name in space:
            raise OcilError(f"--grid {word}: {name} is given twice.")
        space[name] = list(dict.fromkeys(values))
    return space


def _print_scores(search: "Search", scores: "list[Estimate | None]", choice: "Choice") -> None:
    from ocil.experiments.search_space import as_texts
    from ocil.report.formatting import percent

    shown = ["failed" if score is None else percent(score) for score in scores]
    chosen = ["chosen" if number == choice.number else "" for number in range(len(scores))]
    rows = [(*as_texts(point).values(), *rest) for point, *rest in zip(search.points, shown, chosen, strict=True)]
    first = "task" if search.tasks == 1 else f"{search.tasks} tasks"
    title = f"{choice.config.label} on the first {first} of {Path(search.dataset).stem}"
    console.print_table((*search.space.values, "accuracy on held-out images %", ""), rows, title)
    data, least, most = search.split.data, min(search.samples), max(search.samples)
    learned = str(least) if least == most else f"{least} to {most}"
    print(
        f"Learned from {learned} and scored on {len(data.test_y)} training images of those tasks; "
        f"{search.seeds} {'seed' if search.seeds == 1 else 'seeds'} per point."
    )
    if choice.note:
        console.print_line(choice.note)
