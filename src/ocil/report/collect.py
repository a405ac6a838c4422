"""Find results under folders, group them to cells (runs that differ only by their seed) and summarise each cell."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ocil.config import RunConfig, command
from ocil.config import changed as different
from ocil.data import CATALOG
from ocil.errors import OcilError
from ocil.longtail.results import LongTailCell, read_if_longtail
from ocil.longtail.results import cells as longtail_cells
from ocil.methods import METHODS, method
from ocil.report.published import MEMORY
from ocil.results import Result, Summary, summarise

BOUNDS = ("fine-tune", "iid-offline")  # they frame the comparison and take no part in it
LABEL_FREE = {"precision"}  # the paper says nothing of it: such a cell still is what the paper's row names


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
        seeds = [run.result.config.seed for run in self.runs]
        first = f" --seed {seeds[0]}" if seeds[0] else ""
        return f"{command(self.config)} --seeds {seeds[-1] - seeds[0] + 1}{first}"


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
    cells: dict[str, dict[int, Run]] = {}
    warnings = []
    tailed = []
    for path in _files(paths):
        try:
            if (found := read_if_longtail(path)) is not None:
                tailed.append(found)
                continue
            result = read(path)
        except OcilError as error:
            warnings.append(str(error))
            continue
        seeds = cells.setdefault(result.config.cell, {})
        other = seeds.setdefault(result.config.seed, Run(path, result))
        if other.result.digest != result.digest:
            warnings.append(f"{path} is left out: another run of the same settings and seed is {other.path}.")
    if not cells and not tailed:
        reason = f" {warnings[0]}" if warnings else ""
        where = ", ".join(map(str, paths))
        raise OcilError(f"no finished run (result.json) under {where}.{reason} Run something first: ocil run afs")
    warnings += _mixed(run for runs in cells.values() for run in runs.values())
    grouped = [_cell([runs[seed] for seed in sorted(runs)], cells) for runs in cells.values()]
    return Collection(tuple(sorted(_marked(grouped), key=_order)), tuple(warnings), longtail_cells(tailed))


def read(path: Path) -> Result:
    """One result file, checked: whatever else it is, it is an ``OcilError`` that names the file."""
    try:
        content = json.loads(path.read_bytes())
        json.dumps(content, ensure_ascii=False).encode()  # half a character could not be written again
        result = Result.from_json(content)
        _check(result)
    except OSError as error:
        raise OcilError(f"cannot read {path}: {error.strerror}.") from None
    except OcilError as error:  # a method that is not registered here, or settings that cannot be
        raise OcilError(f"{path} cannot be read here: {' '.join(str(error).split())[:200]}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = " ".join(str(error).split())[:200]
        raise OcilError(f"{path} is not a result of ocil: {type(error).__name__}: {what}") from None
    return result


def changed(config: RunConfig) -> dict[str, Any]:
    """Settings that differ from the usual ones, but for the review, which a row's name tells."""
    return {name: value for name, value in different(config).items() if name != "review"}


def memory_of(config: RunConfig) -> int:
    return config.learner.memory if method(config.method).memory else 0


def title_of(dataset: str) -> str:
    return CATALOG[dataset].title if dataset in CATALOG else Path(dataset).stem


def written(settings: dict[str, Any]) -> str:
    """``loss=ce regulariser=none``, as ``--set`` takes it."""
    return " ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items())


def pick(cells: Iterable[Cell]) -> Cell | None:
    """Of cells that stand for the same row: most seeds first, then the precision that most of the table has."""
    return min(cells, key=lambda c: (-len(c.runs), not c.common, "precision" in c.changed, c.name), default=None)


def _files(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise OcilError(f"there is no {path}: name folders of runs, such as the --out of ocil run.")
        for file in [path] if path.is_file() else sorted(path.rglob("result.json")):
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _mixed(runs: Iterable[Run]) -> list[str]:
    """A line for each dataset that was not the same images in all runs: the catalog's names do not vouch for that."""
    found: dict[tuple[str, str], dict[str, Path]] = {}
    for run in runs:
        if images := run.result.environment.get("images"):
            config = run.result.config
            found.setdefault((config.dataset, config.fingerprint), {}).setdefault(str(images), run.path)
    lines = []
    for (dataset, _), paths in found.items():
        if len(paths) > 1:
            first, second, *_ = paths.values()
            what = f"{title_of(dataset)} was not the same images in all runs"
            lines.append(f"{what}, as in {first} and {second}: do not compare them.")
    return lines


def _cell(runs: list[Run], cells: dict[str, dict[int, Run]]) -> Cell:
    references = [cells.get(run.result.config.reference().cell, {}).get(run.result.config.seed) for run in runs]
    compared = [reference.result if reference else None for reference in references]
    return Cell(tuple(runs), summarise([run.result for run in runs], compared))


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


def _check(result: Result) -> None:
    """Raise what a page could not show. A file may come from anywhere."""
    config = result.config
    if not isinstance(config.dataset, str) or not config.dataset or not _whole(config.seed):
        raise ValueError("dataset or seed is not what it should be")
    for part in (config.stream, config.learner):
        for f in fields(part):
            value, usual = getattr(part, f.name), f.default
            if not isinstance(value, type(usual)) and not (isinstance(usual, float) and _number(value)):
                raise ValueError(f"{f.name} = {str(value)[:40]} is not what it should be")
    rows = 1 if config.stream.boundary == "iid" else config.stream.tasks
    if not isinstance(result.matrix, list) or len(result.matrix) != rows:
        raise ValueError(f"the accuracy matrix does not have {rows} rows")
    for row in result.matrix:
        if len(row) != config.stream.tasks or not all(_number(a) and 0 <= a <= 1 for a in row):
            raise ValueError(f"a row of the accuracy matrix is not {config.stream.tasks} shares")
    for evaluation in result.evaluations:
        for name, value in evaluation.items():
            if name != "accuracy" and value is not None and not _number(value):
                raise ValueError(f"{name} of an evaluation is not a number")
    if not _number(result.wall_seconds) or not isinstance(result.digest, str):
        raise ValueError("wall_seconds or digest is not what it should be")
    if not isinstance(result.environment, dict) or not isinstance(result.peak_memory, dict):
        raise ValueError("environment or peak_memory is not an object")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
