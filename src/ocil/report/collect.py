"""Find results under folders, group them to cells (runs that differ only by their seed) and summarise each cell."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ocil.config import RunConfig, command, for_seeds, typed
from ocil.config import changed as different
from ocil.data import CATALOG
from ocil.errors import OcilError
from ocil.longtail.results import LongTailCell, LongTailResult, read_if_longtail
from ocil.longtail.results import cells as longtail_cells
from ocil.methods import METHODS, method
from ocil.report.published import MEMORY
from ocil.results import UNREADABLE, Result, Summary, read_json, reason_of, summarise
from ocil.text import escaped

BOUNDS = ("fine-tune", "iid-offline")  # they frame the comparison and take no part in it
LABEL_FREE = {"precision"}  # the paper says nothing of it: such a cell still is what the paper's row names


Found = tuple[Path, Result | LongTailResult]


@dataclass(frozen=True)
class Run:
    """A finished run and the file it was read from."""

    path: Path
    result: Result

    @property
    def device(self) -> str:
        return str(self.result.environment.get("device", "unknown"))


@dataclass(frozen=True)
class Cell:
    """Runs that differ only by their seed, in the order of their seeds."""

    runs: tuple[Run, ...]
    summary: Summary
    common: bool = False
    """Whether most cells of its dataset have its precision."""

    @property
    def config(self) -> RunConfig:
        return self.summary.config

    @property
    def name(self) -> str:
        return self.config.cell

    @cached_property
    def changed(self) -> dict[str, Any]:
        """Settings that differ from what ``ocil run METHOD`` would choose, the review trick aside."""
        return changed(self.config)

    @property
    def plain(self) -> bool:
        """Whether the cell is what its label says, so that the paper's row of that name is its counterpart."""
        return not set(self.changed) - LABEL_FREE

    @property
    def devices(self) -> str:
        return " + ".join(dict.fromkeys(run.device for run in self.runs))

    @property
    def command(self) -> str:
        """What to type to get all its seeds."""
        return for_seeds(command(self.config), [run.result.config.seed for run in self.runs])


@dataclass(frozen=True)
class Collection:
    cells: tuple[Cell, ...]
    warnings: tuple[str, ...]
    """A line for each file that could not be used, and for runs that should not be compared."""
    longtail: tuple[LongTailCell, ...] = ()
    """Cells of long-tailed runs, which have a table of their own."""

    def of(self, dataset: str, memory: int) -> list[Cell]:
        """Cells of one dataset and memory size, and those of methods that keep none."""
        found = [cell for cell in self.cells if cell.config.dataset == dataset]
        return [cell for cell in found if memory_of(cell.config) in (memory, 0)]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Every dataset and memory size with runs, in the order of tables."""
        return list(dict.fromkeys((c.config.dataset, m) for c in self.cells if (m := memory_of(c.config))))


def collect(paths: Sequence[Path]) -> Collection:
    """Every result under ``paths``: folders of any depth, or result files themselves.

    Intransigence is against fine-tuned runs of the same seed and settings, where they are among what was found.
    """
    results: list[Found] = []
    warnings = []
    for path in _files(paths):
        try:
            results.append((path, read_if_longtail(path) or read(path)))
        except OcilError as error:
            warnings.append(str(error))
    found: dict[str, list[Found]] = {}
    for path, result in _with_one_name(results):
        found.setdefault(result.config.cell, []).append((path, result))
    if not found:
        where = ", ".join(map(str, paths))
        if warnings:
            raise OcilError(f"no result under {where} can be read: {warnings[0]}")
        raise OcilError(f"no finished run (result.json) under {where}. Run something first: ocil run afs")
    for name, runs in found.items():
        found[name], lines = _of_one_dataset(runs)
        warnings += lines
    everything = [run for runs in found.values() for run in runs]
    warnings += _mixed((result.config.dataset, result.images, path) for path, result in everything)
    cells: dict[str, dict[int, Run]] = {}
    for path, result in everything:
        if isinstance(result, Result):
            other = cells.setdefault(result.config.cell, {}).setdefault(result.config.seed, Run(path, result))
            if other.result.digest != result.digest:
                warnings.append(f"{path} is left out: another run of the same settings and seed is {other.path}.")
    grouped = [_cell([runs[seed] for seed in sorted(runs)], cells) for runs in cells.values()]
    told = (warning.encode(errors="backslashreplace").decode() for warning in warnings)  # a path need not be text
    long_tails = longtail_cells([result for _, result in everything if isinstance(result, LongTailResult)])
    return Collection(tuple(sorted(_marked(grouped), key=_order)), tuple(told), long_tails)


def read(path: Path) -> Result:
    """One result file, checked: whatever else it is, it is an ``OcilError`` that names the file."""
    try:
        return Result.from_json(read_json(path))
    except OSError as error:
        raise OcilError(f"cannot read {path}: {reason_of(error)}.") from None
    except OcilError as error:  # a method that is not registered here, or settings that cannot be
        raise OcilError(f"{path} cannot be read here: {reason_of(error)}") from None
    except UNREADABLE as error:
        raise OcilError(f"{path} is not a result of ocil, or it is broken: {reason_of(error)}") from None


def changed(config: RunConfig) -> dict[str, Any]:
    """Settings that differ from the usual ones, but for the review, which a row's name tells."""
    return {name: value for name, value in different(config).items() if name != "review"}


def memory_of(config: RunConfig) -> int:
    return config.learner.memory if method(config.method).memory else 0


def title_of(dataset: str) -> str:
    """How pages, tables and figures call a dataset."""
    return CATALOG[dataset].title if dataset in CATALOG else escaped(Path(dataset).stem)


def written(settings: dict[str, Any]) -> str:
    """``loss=ce regulariser=none``, as ``--set`` takes it."""
    return " ".join(f"{name}={typed(value)}" for name, value in settings.items())


def pick(cells: Iterable[Cell]) -> Cell | None:
    """Of cells that stand for the same row: most seeds first, then the precision that most of the table has."""
    return min(cells, key=lambda c: (-len(c.runs), not c.common, "precision" in c.changed, c.name), default=None)


def _files(paths: Sequence[Path]) -> list[Path]:
    """A path that was named may be a symbolic link; one below it is not followed."""
    found: dict[Path, Path] = {}
    for path in paths:
        try:
            inside = [path.resolve()] if path.is_file() else sorted(path.rglob("result.json"))
            there = path.exists()
        except OSError:  # its name is too long, for example
            there = False
        if not there:
            raise OcilError(f"there is no {path}: name folders of runs, such as the --out of ocil run.")
        for file in inside:
            found.setdefault(file.parent.resolve() / file.name, file)
    return list(found.values())


def _with_one_name(found: Sequence[Found]) -> list[Found]:
    """Runs of the same images, with the name that these had last: their file may have been moved or renamed."""
    in_time = sorted(found, key=lambda each: str(each[1].environment.get("finished", "")))
    names = {result.config.fingerprint: result.config.dataset for _, result in in_time}
    names.pop("", None)  # of the catalog
    return [(path, _renamed(result, names.get(result.config.fingerprint))) for path, result in found]


def _renamed(result: Result | LongTailResult, dataset: str | None) -> Result | LongTailResult:
    if dataset is None:
        return result
    if isinstance(result, Result):
        return replace(result, config=replace(result.config, dataset=dataset))
    return replace(result, config=replace(result.config, dataset=dataset))


def _of_one_dataset(found: Sequence[Found]) -> tuple[list[Found], list[str]]:
    """The runs of a cell that had the images that most of them had, and a line for each other one."""
    counts = Counter(result.images for _, result in found if result.images)
    if len(counts) < 2:
        return list(found), []
    usual, _ = counts.most_common(1)[0]
    others = [path for path, result in found if result.images not in (usual, "")]
    kept = [(path, result) for path, result in found if path not in others]
    return kept, [f"{path} is left out: it had other images than the other runs of its cell." for path in others]


def _mixed(used: Iterable[tuple[str, str, Path]]) -> list[str]:
    """A line for each dataset that was not the same images in all runs: its name does not vouch for that."""
    found: dict[str, dict[str, Path]] = {}
    for dataset, images, path in used:
        if images:
            found.setdefault(dataset, {}).setdefault(images, path)
    lines = []
    for dataset, paths in found.items():
        if len(paths) > 1:
            first, second, *_ = paths.values()
            what = f"{title_of(dataset)} was not the same images in all runs"
            lines.append(f"{what}, as in {first} and {second}: do not compare them.")
    return lines


def _cell(runs: list[Run], cells: dict[str, dict[int, Run]]) -> Cell:
    references = [cells.get(run.result.config.reference().cell, {}).get(run.result.config.seed) for run in runs]
    compared = [
        reference.result if reference and _alike(run.result, reference.result) else None
        for run, reference in zip(runs, references, strict=True)
    ]
    return Cell(tuple(runs), summarise([run.result for run in runs], compared))


def _alike(one: Result, other: Result) -> bool:
    """Whether they had the same images, as far as they tell."""
    return one.images == other.images or not (one.images and other.images)


def _marked(cells: Sequence[Cell]) -> list[Cell]:
    """With a mark on those of the precision that most cells of their dataset have."""
    counts: dict[str, Counter[str]] = {}
    for cell in cells:
        counts.setdefault(cell.config.dataset, Counter())[cell.config.learner.precision] += 1
    most = {dataset: max(found, key=lambda name: (found[name], name)) for dataset, found in counts.items()}
    return [replace(cell, common=cell.config.learner.precision == most[cell.config.dataset]) for cell in cells]


def _order(cell: Cell) -> tuple[Any, ...]:
    """Datasets as in the paper, then memory, then methods as they are listed, plain cells before changed ones, and
    those by what was changed, numbers by their size."""
    config, datasets, methods = cell.config, list(MEMORY), list(METHODS)
    known = datasets.index(config.dataset) if config.dataset in datasets else len(datasets)
    values = [(0, v, "") if isinstance(v, int | float) else (1, 0, str(v)) for v in cell.changed.values()]
    return (
        known, title_of(config.dataset), config.dataset, memory_of(config), methods.index(config.method),
        config.learner.review, len(cell.changed), tuple(cell.changed), values, cell.name,
    )  # fmt: skip
