"""What the package offers beyond its parts: registering, many runs in one call, a summary of results, a search.

Every function here is public: see docs/api.md for what is promised.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ocil.errors import OcilError
from ocil.files import folder_path, path_or_none
from ocil.limits import MAX_THREADS, check_threads, whole
from ocil.plugins import PROGRAM
from ocil.seeds import check_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ocil.data import DatasetInfo, DatasetSource
    from ocil.engines.job import Event
    from ocil.evaluation.measures import Estimate, Measure
    from ocil.experiments.search import Choice
    from ocil.methods import MethodInfo
    from ocil.networks import NetworkInfo
    from ocil.report.records import OverTime
    from ocil.report.table import Table
    from ocil.runs.config import RunConfig
    from ocil.runs.protocol import Run
    from ocil.runs.results import Result, Summary


def register(thing: "MethodInfo | NetworkInfo | DatasetInfo | DatasetSource | Measure", replace: bool = False) -> None:
    """Register a method, a network, a dataset or a measure: everything that takes such a name then takes this one.

    In a plugin file (``ocil.plugins``) it is known to every command and to worker processes; elsewhere to this process.

    Args:
        thing: What to register.
        replace: Allows a name that is taken.

    Raises:
        OcilError: The name is taken or not valid.

    Examples:
        >>> ocil.register(ocil.MethodInfo("again", ocil.METHODS["er"].load(), "like er", "-"))
        >>> "again" in ocil.METHODS
        True
    """
    from ocil.data import DatasetInfo, DatasetSource
    from ocil.data import catalog as datasets
    from ocil.evaluation.measures import MEASURES, Measure
    from ocil.methods import MethodInfo
    from ocil.methods import register as register_method
    from ocil.networks import NETWORKS, NetworkInfo

    parts = (NetworkInfo, "target", "factory"), (Measure, "function", "function"), (DatasetSource, "make", "function")
    for kind, part, what in parts:
        if isinstance(thing, kind) and not callable(given := getattr(thing, part)) and not isinstance(given, str):
            raise OcilError(f"the {kind.__name__} '{thing.name}' has no {what}: {part} = {given!r} cannot be called.")
    if isinstance(thing, NetworkInfo) and isinstance(thing.target, str):
        try:
            thing.load()
        except (ImportError, AttributeError, ValueError):
            what = f"give the network '{thing.name}' its factory itself"
            raise OcilError(f"ocil has no network '{thing.target}': {what}.") from None
    if isinstance(thing, MethodInfo):
        register_method(thing, replace)
    elif isinstance(thing, NetworkInfo):
        NETWORKS.register(thing, replace)
    elif isinstance(thing, Measure):
        MEASURES.register(thing, replace)
    elif isinstance(thing, DatasetInfo | DatasetSource):
        datasets.register(thing, replace)
    else:
        raise OcilError(
            f"cannot register {str(thing)[:50]!r}: give a MethodInfo, NetworkInfo, DatasetInfo, DatasetSource or "
            "Measure."
        )


def run_many(
    configs: "Iterable[RunConfig]",
    root: Path | str = "runs",
    *,
    engine: Literal["local", "ray"] = "local",
    workers: int = 0,
    device: str = "auto",
    threads: int = 1,
    data_dir: Path | str | None = None,
    address: str | None = None,
    on_result: "Callable[[Result], object]" = lambda result: None,
) -> "list[Result]":
    """Carry out many runs where they are fastest, and return their results in the order of ``configs``.

    Every configuration is checked before the first run starts. Finished runs under ``root`` are read, unfinished ones
    go on; the folders are those of ``ocil run``. If a run fails, the others are finished first; then the first error is
    raised. In a script, call this below ``if __name__ == "__main__":``, because worker processes import the script.

    Args:
        configs: What to run, from ``ocil.resolve``.
        root: The folder of all runs.
        engine: ``local``: this machine; ``ray``: a cluster.
        workers: How many runs go on at a time; 0: as many as keep the cores busy, or ten on a GPU.
        device: auto, cpu, cuda or mps.
        threads: CPU threads per run.
        data_dir: The data folder; by default ``$OCIL_DATA``, else the user's.
        address: The head of the Ray cluster.
        on_result: Called with each result as soon as it is there, finished before or not; ``print`` shows a line.

    Raises:
        OcilError: A configuration cannot run, or a run failed.

    Examples:
        >>> configs = [ocil.resolve("fine-tune", seed=seed, settings={"width": 1}) for seed in (0, 1)]
        >>> results = ocil.run_many(configs, "runs", workers=1, device="cpu")
        >>> [result.config.seed for result in results]
        [0, 1]
    """
    from ocil import engines
    from ocil.devices import pick_device
    from ocil.engines.job import Job, Observer, WarningsOfRuns
    from ocil.engines.names import Engine
    from ocil.engines.pool import end_if_starting
    from ocil.runs.config import RunConfig
    from ocil.runs.program_code import warn_if_changed
    from ocil.runs.results import Result
    from ocil.runs.settings import read_as
    from ocil.runs.stream_run import StreamRun

    end_if_starting()
    data_dir = path_or_none(data_dir)
    read_as("engine", engine, Engine)
    _check_numbers(workers, threads)
    if isinstance(configs, RunConfig):
        raise OcilError("run_many takes a list of configurations. For one of them there is ocil.run.")
    if not isinstance(configs, Iterable):
        raise OcilError(f"run_many takes a list of configurations, not a {type(configs).__name__}.")
    if not callable(on_result):
        raise OcilError(f"on_result = {on_result!r} must be a function of a result, such as print.")
    root = folder_path("root", root)
    configs = list(configs)  # an iterator is read once
    runs = [StreamRun(_checked(config, data_dir)) for config in configs]
    chosen_device = device if engine == "ray" else str(pick_device(device))
    if engine == "ray" or chosen_device == "cpu":
        workers = _workers_that_know(configs, workers)
    job = Job(root, chosen_device, data_dir, workers, threads)

    def on_event(run: "Run", event: "Event") -> None:
        heard.on_event(run, event)
        if isinstance(event, Result) and run.key in wanted:
            on_result(event)

    wanted, heard = {run.key for run in runs}, WarningsOfRuns()
    outcomes = engines.execute(runs, replace(job, engine=engine, address=address), Observer(on_event))
    for warning in heard.texts:
        warnings.warn(warning, stacklevel=2)
    found = [outcomes[run.key] for run in runs]
    for outcome in found:
        if not isinstance(outcome, Result):
            raise outcome if isinstance(outcome, Exception) else TypeError(f"{outcome!r} is not a result")
    results = [outcome for outcome in found if isinstance(outcome, Result)]
    for result in results:
        warn_if_changed(result)
    return results


def _check_numbers(workers: int, threads: int) -> None:
    whole("workers", workers, 0, MAX_THREADS)
    check_threads(threads)


def _workers_that_know(configs: "Sequence[RunConfig]", workers: int) -> int:
    """How many workers may be used: one if something was registered in a session that other processes cannot import."""
    if hasattr(sys.modules["__main__"], "__file__"):
        return workers
    for config in configs:
        if here := _registered_here(config):
            if workers > 1:
                raise OcilError(
                    f"{here} was registered in this session, which worker processes cannot import: "
                    "give workers=1, or put it into a file and load that with ocil.plugins.load."
                )
            return 1
    return workers


def _registered_here(config: "RunConfig") -> str:
    """The method, network or dataset of a run that this program has registered, outside of a plugin file."""
    from ocil.data.catalog import SOURCES
    from ocil.methods import METHODS
    from ocil.networks.registry import origin_of

    if METHODS.origin(config.method) == PROGRAM:
        return f"the method {config.method}"
    for spec in filter(None, (config.learner.network, config.learner.features)):
        if origin_of(spec) == PROGRAM or spec.startswith("module:__main__:"):
            return f"the network {spec}"
    is_made = config.dataset in SOURCES and SOURCES.origin(config.dataset) == PROGRAM
    return f"the dataset {config.dataset}" if is_made else ""


def _checked(config: "RunConfig", data_dir: Path | None) -> "RunConfig":
    """The configuration as ``ocil run`` completes it: a dataset outside the catalog is identified by its images."""
    from ocil.runs.build import check, named_dataset
    from ocil.runs.config import refuse_unresolved

    refuse_unresolved(config)
    dataset = named_dataset(config, data_dir)
    check(config, dataset)
    return config.identified(dataset)


@dataclass(frozen=True)
class Comparison:
    """Means and 95 % intervals over seeds, one entry per method and settings, as ``ocil compare`` prints them.

    ``str`` gives Markdown; a notebook shows a table. ``over_time`` has the accuracy between task ends, of runs with the
    setting ``evaluate_every``.

    Examples:
        >>> configs = [ocil.resolve("fine-tune", seed=seed, settings={"width": 1}) for seed in (0, 1)]
        >>> found = ocil.summarise(ocil.run_many(configs, "runs", workers=1, device="cpu"))
        >>> found.names
        ['fine-tune']
        >>> found.save("accuracy.csv")
    """

    summaries: "tuple[Summary, ...]"
    results: "tuple[tuple[Result, ...], ...]"
    """The results that each summary is of, by seed."""

    @property
    def table(self) -> "Table":
        """Mean and interval of every measure, one row per name."""
        from ocil.report.result_tables import summary_table

        return summary_table(self.summaries)

    @property
    def accuracy(self) -> "dict[str, Estimate]":
        """Average accuracy at the end, by ``names``."""
        return dict(zip(self.names, (summary.average_accuracy for summary in self.summaries), strict=True))

    @property
    def names(self) -> list[str]:
        """The labels of the methods; behind those of one method, the settings in which they differ."""
        from ocil.report.cells import names_apart

        return names_apart([summary.config for summary in self.summaries])

    @property
    def over_time(self) -> "dict[str, OverTime]":
        """Accuracy on the classes that have arrived, every so many stream batches, by ``names``.

        A curve has ``batches``, and as many numbers ``accuracy``, each with ``mean`` and ``interval``; ``tasks`` and
        ``reviews`` are the batches after which a task ended or a review took place. Runs without the setting
        ``evaluate_every`` have none.

        Examples:
            >>> config = ocil.resolve("fine-tune", settings={"width": 1, "evaluate_every": 5})
            >>> found = ocil.summarise([ocil.run(config, "runs", device="cpu")])
            >>> found.over_time["fine-tune"].batches[:2]
            (5, 10)
        """
        from ocil.report.records import curve_of

        found = (curve_of([result.anytime for result in group]) for group in self.results)
        return {name: curve for name, curve in zip(self.names, found, strict=True) if curve is not None}

    def plot(self, over_time: bool = False) -> "Figure":
        """Accuracy after each task, with intervals: the same numbers as in the table.

        Args:
            over_time: Draws the curves of ``over_time`` instead.

        Raises:
            OcilError: ``over_time`` is asked for, and no run was evaluated between task ends.
        """
        from ocil.report.plots import accuracy_after_each_task

        if over_time:
            return self._plot_over_time()
        return accuracy_after_each_task(self.summaries, self.names)

    def _plot_over_time(self) -> "Figure":
        import matplotlib as mpl

        from ocil.report.plots import title_of
        from ocil.report.record_plots import over_time
        from ocil.report.style import STYLE

        if not (curves := self.over_time):
            raise OcilError(
                "the results have no accuracy over time: run them with the setting evaluate_every, for example 20 "
                "(--set evaluate_every=20)."
            )
        shown = [summary for name, summary in zip(self.names, self.summaries, strict=True) if name in curves]
        by_domain = all(summary.config.stream.scenario == "domain" for summary in shown)
        with mpl.rc_context(STYLE):
            figure = over_time(curves, "domains" if by_domain else "classes")
            figure.axes[0].set_title(title_of(shown))
        return figure

    def save(self, path: Path | str, over_time: bool = False) -> None:
        """Write the plot (.png, .svg, .pdf) or the table (.md, .csv).

        Args:
            path: Its ending chooses what is written.
            over_time: Whether the plot is that of accuracy over time. A table has none.

        Raises:
            OcilError: Nothing is written under such a name, or no run was evaluated between task ends.
        """
        from ocil.files import PICTURES, write_bytes
        from ocil.report.style import save
        from ocil.report.table import csv

        path = Path(path)
        ending = path.suffix.lower()
        if ending in PICTURES:
            if boxes := save(self.plot(over_time), path):
                warnings.warn(boxes, stacklevel=2)
        elif over_time:
            raise OcilError(f"{path}: the name of a plot over time must end in .png, .svg or .pdf.")
        elif ending in (".md", ".csv"):
            write_bytes(path, (f"{self}\n" if ending == ".md" else csv(self.table)).encode())
        else:
            raise OcilError(f"{path}: the name must end in .png, .svg, .pdf, .md or .csv.")

    def __repr__(self) -> str:
        """One line, without all results."""
        return f"<Comparison of {', '.join(self.names)}>"

    def __str__(self) -> str:
        """The table as Markdown."""
        from ocil.report.table import markdown_table

        return markdown_table(self.table, level=0)

    def _repr_html_(self) -> str:
        """For notebooks: the table."""
        from ocil.report.html_table import html

        return html(self.table, self.table.title)


def load_results(*folders: Path | str, seeds: Iterable[int] | None = None) -> "list[Result]":
    """Read the results of all finished runs under some folders, as ``ocil show`` and ``ocil report`` do.

    Those that differ only by their seed come one after the other. What is left out, such as runs that are not finished,
    is named in warnings. Results of methods and networks of a plugin file need it: ``ocil.plugins.load`` comes first.

    Args:
        folders: Folders of runs, of one cell or of one run, at any depth.
        seeds: Leaves out runs of other seeds.

    Raises:
        OcilError: A folder does not exist, or no result can be read.

    Examples:
        >>> config = ocil.resolve("fine-tune", settings={"width": 1})
        >>> result = ocil.run(config, "runs", device="cpu")
        >>> [result.config.method for result in ocil.load_results("runs")]
        ['fine-tune']
    """
    from ocil.report.collect import collect

    if not folders:
        raise OcilError("name the folders of the runs, for example: ocil.load_results('runs').")
    for folder in folders:
        if not isinstance(folder, str | PathLike):
            raise OcilError(f"{folder!r} is not the name of a folder: give ocil.load_results('runs', 'more').")
    if isinstance(seeds, str) or not isinstance(seeds, Iterable | None):
        raise OcilError(f"seeds = {seeds!r} is not a list of seeds, such as [0, 1] or range(10).")
    found = collect(folders, None if seeds is None else frozenset(map(check_seed, seeds)))
    for warning in found.warnings:
        warnings.warn(warning, stacklevel=2)
    return [run.result for cell in found.cells for run in cell.runs]


def summarise(results: "Iterable[Result]", over_streams: bool = False) -> Comparison:
    """Group results that differ only by their seed, and average over seeds.

    Intransigence is against fine-tuned runs of the same seeds and settings, where these are among the results.

    Args:
        results: Those of ``ocil.run``, ``ocil.run_many`` or ``ocil.load_results``.
        over_streams: Whether results in streams of your own that differ are averaged too, as for an order per seed. No
            two streams of a method may have one seed.

    Raises:
        OcilError: There are no results, they are of several datasets, streams to average over have one seed, or two
            results of one seed and the same settings differ. Of two that are equal, the first one counts.

    Examples:
        >>> results = [ocil.run(ocil.resolve("fine-tune", settings={"width": 1}), "runs", device="cpu")]
        >>> 0 <= ocil.summarise(results).accuracy["fine-tune"].mean <= 1
        True
    """
    from ocil.runs.results import References, Result
    from ocil.runs.results import summarise as summarise_cell

    if isinstance(results, Result):
        raise OcilError("summarise takes a list of results: give [result].")
    if isinstance(results, str | Path):
        raise OcilError("summarise takes a list of results: ocil.load_results reads those in a folder.")
    if not isinstance(results, Iterable):
        raise OcilError(f"summarise takes a list of results, not a {type(results).__name__}.")
    results = list(results)  # an iterator is read once
    cells: dict[str, dict[int, Result]] = {}
    for result in results:
        if not isinstance(result, Result):
            raise OcilError(f"summarise takes a list of results, and {str(result)[:50]!r} is none.")
        config = _of_any_stream(result.config) if over_streams else result.config
        kept = cells.setdefault(config.cell, {}).setdefault(config.seed, result)
        if kept.config.cell != result.config.cell:
            what = f"{config.label} has results in several streams with seed {config.seed}"
            raise OcilError(f"{what}: give each stream a seed of its own.")
        if kept.digest != result.digest:
            what = f"two results of {result.config.cell} with seed {config.seed} differ"
            raise OcilError(f"{what}, though their settings are the same: leave one of them out.")
    if not cells:
        raise OcilError("there are no results to summarise: give those of ocil.run or ocil.run_many.")
    if len(datasets := {result.config.dataset for result in results}) > 1:
        raise OcilError(f"the results are of several datasets ({', '.join(sorted(datasets))}): summarise each alone.")

    references = References(results)
    groups = tuple(tuple(by_seed[seed] for seed in sorted(by_seed)) for by_seed in cells.values())
    return Comparison(tuple(summarise_cell(group, list(map(references.of, group))) for group in groups), groups)


def _of_any_stream(config: "RunConfig") -> "RunConfig":
    """The configuration without what tells streams of one's own apart."""
    return replace(config, fingerprint="", stream=replace(config.stream, order="", order_digest=""))


def tune(
    method: str,
    space: Mapping[str, Sequence[Any]] | None = None,
    dataset: str | Path | None = None,
    *,
    memory: int | None = None,
    review: bool | None = None,
    settings: Mapping[str, Any] | None = None,
    tasks: int = 2,
    seeds: int = 3,
    validation: float = 0.1,
    root: Path | str | None = None,
    workers: int = 0,
    device: str = "auto",
    threads: int = 1,
    data_dir: Path | str | None = None,
) -> "Choice":
    """Choose settings on the first tasks alone: every point of ``space``, several seeds each, scored on training images
    that are held out. No test image has an influence.

    Args:
        method: A method from ``ocil.METHODS``.
        space: The values to try by setting, as ``ocil.resolve`` takes them; several settings make a cross product. By
            default the method's own.
        dataset: A name, or the path of a prepared file.
        memory: Samples kept for replay.
        review: Whether the memory is reviewed at task ends.
        settings: Settings that all points share, as ``ocil.resolve`` takes them.
        tasks: How many of the first tasks are learned.
        seeds: Runs per point.
        validation: The share of training images that is held out.
        root: The folder of the search.
        workers: How many runs go on at a time; 0 leaves it to the engine.
        device: auto, cpu, cuda or mps.
        threads: CPU threads per run.
        data_dir: The data folder.

    Returns:
        ``choice.point`` has the best values, ``choice.config`` the configuration for the whole stream.

    Raises:
        OcilError: There is nothing to search, a setting is not allowed, or every run failed.

    Examples:
        >>> small = {"width": 1, "memory_batch": 5}
        >>> where = {"root": "search", "workers": 1, "device": "cpu"}
        >>> choice = ocil.tune("er", {"lr": [0.03, 0.1]}, memory=50, settings=small, tasks=1, seeds=1, **where)
        >>> choice.config.learner.lr in (0.03, 0.1)
        True
    """
    from ocil import engines
    from ocil.devices import pick_device
    from ocil.engines.job import Job, Observer, WarningsOfRuns
    from ocil.engines.pool import end_if_starting
    from ocil.experiments.search import Search
    from ocil.experiments.search_record import record_of, save_record

    end_if_starting()
    data_dir = path_or_none(data_dir)
    _check_numbers(workers, threads)
    _refuse_unnamed(dataset)
    search = Search.prepare(
        method,
        None if dataset is None else str(dataset),
        space,
        memory=memory,
        review=review,
        settings=settings,
        tasks=tasks,
        seeds=seeds,
        validation=validation,
        out=path_or_none(root, "root"),
        data_dir=data_dir,
    )
    chosen_device = str(pick_device(device))
    workers = _workers_that_know(search.configs, workers) if chosen_device == "cpu" else workers
    job = Job(search.out, chosen_device, data_dir, workers, threads)
    plan = search.plan()
    search.write_data()
    heard = WarningsOfRuns()
    outcomes = engines.execute(plan.runs, job, Observer(heard.on_event))
    for warning in heard.texts:
        warnings.warn(warning, stacklevel=2)
    choice = search.choose(search.scores(outcomes))
    if choice is None:
        raise next(error for error in outcomes.values() if isinstance(error, Exception))
    save_record(search, record_of(search, outcomes, choice))
    return choice


def _refuse_unnamed(dataset: object) -> None:
    """Raise if a search gets a dataset itself, which worker processes could not find."""
    if not isinstance(dataset, str | Path | None):
        kind = type(dataset).__name__
        raise OcilError(
            f"tune needs the name of a dataset, not a {kind}: register an ocil.DatasetSource that makes it."
        )
