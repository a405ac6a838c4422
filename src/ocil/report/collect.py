"""Find results under folders, group them to cells (runs that differ only by their seed) and summarise each cell."""

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ocil.data import CATALOG
from ocil.data.derived import base_of
from ocil.errors import OcilError, UnknownNameError
from ocil.longtail.results import LongTailResult, from_content, is_longtail
from ocil.longtail.results import cells as longtail_cells
from ocil.methods import METHODS
from ocil.processes import garbage_kept
from ocil.report.cells import Collection, FinishedRun, MeasuredCell, title_of
from ocil.report.formatting import count
from ocil.runs.config import RunConfig, code_of
from ocil.runs.program_code import CODE_ENTRIES, changed_code
from ocil.runs.results import UNREADABLE, References, Result, order_has_changed, read_json, reason_of, summarise
from ocil.text import escaped

Found = tuple[Path, Result | LongTailResult]
BySeed = dict[int, FinishedRun]


def collect(paths: Sequence[Path | str], seeds: Container[int] | None = None) -> Collection:
    """Every result under ``paths``: folders of any depth, or result files themselves. ``seeds`` leaves out the others.

    Intransigence is against fine-tuned runs of the same seed and settings, where they are among what was found. Raises
    an ``OcilError`` if a path does not exist or no result can be read.
    """
    return find([Path(path) for path in paths]).collection(seeds)


@dataclass(frozen=True)
class FoundResults:
    """Every result under some paths, read and checked once; cells can be made of them more than once."""

    where: str
    found: Sequence[Found]
    warnings: Sequence[str]
    unfinished: Mapping[Path, int] = field(default_factory=dict)
    """The folders of runs that have begun and are not finished, with their seeds."""

    def collection(self, seeds: Container[int] | None = None) -> Collection:
        """The cells of all runs, or of those with one of these seeds. See ``collect``."""
        found, warnings = list(self.found), list(self.warnings)
        if begun := [path for path, seed in self.unfinished.items() if seeds is None or seed in seeds]:
            warnings.append(_left_out(begun))
        if seeds is not None:
            found = [(path, result) for path, result in found if result.config.seed in seeds]
            if not found:
                raise OcilError(f"no finished run under {self.where} has one of these seeds.")
        found = _without_other_images(_with_one_name(found), warnings)
        _warn_of_other_images(found, warnings)
        _warn_of_other_orders(found, warnings)
        cells = _by_cell_and_seed(found, warnings)
        references = References(run.result for by_seed in cells.values() for run in by_seed.values())
        measured = _with_what_is_common([_cell(runs, references) for runs in cells.values()])
        _warn_of_other_code(measured, warnings)
        tailed = longtail_cells([result for _, result in found if isinstance(result, LongTailResult)])
        texts = (warning.encode(errors="backslashreplace").decode() for warning in warnings)  # a path need not be text
        return Collection(tuple(sorted(measured, key=_order)), tuple(texts), tailed)


def find(paths: Sequence[Path]) -> FoundResults:
    """Read every result under ``paths``. See ``collect``."""
    warnings: list[str] = []
    files, begun = _files(paths)
    with garbage_kept():  # all that is read stays
        found = _read_all(files, warnings)
    where, unfinished = ", ".join(map(str, paths)), _seeds(begun)
    if not found:
        if warnings:
            raise OcilError(f"no result under {where} can be read: {warnings[0]}")
        what = _left_out([*unfinished]) if unfinished else "Run something first: ocil run afs"
        raise OcilError(f"no finished run (result.json) under {where}. {what}")
    return FoundResults(where, found, warnings, unfinished)


def read(path: Path, load: Callable[[Path], Any] = read_json) -> Result:
    """One result file, checked. Any mistake in it is an ``OcilError`` that names the file. ``load``: reads its JSON."""
    try:
        return Result.from_json(load(path))
    except OSError as error:
        raise OcilError(f"cannot read {path}: {reason_of(error)}.") from None
    except OcilError as error:  # a method that is not registered here, or settings that cannot be
        raise _UnknownHereError(path, _reason_here(error, path)) from None
    except UNREADABLE as error:
        raise OcilError(f"{path} is not a result of ocil, or it is broken: {reason_of(error)}") from None


class _UnknownHereError(OcilError):
    """A sound result of something that is not known here. Many results may have the same ``reason``."""

    def __init__(self, path: Path, reason: str, others: int = 0) -> None:
        more = f" and {count(others, 'other result')}" if others else ""
        super().__init__(f"{path}{more} cannot be read here: {reason}")
        self.path, self.reason = path, reason


def _reason_here(error: OcilError, path: Path) -> str:
    """What is not known, and how to make it known if the file says where it comes from."""
    try:
        (origin, *_) = read_json(path)["environment"]["plugins"]
        if "file" in origin:
            remedy = f"It is of a plugin: give --plugin {escaped(str(origin['file']))}"
        else:
            remedy = f"It is of the package {escaped(str(origin['package']))}: install it"
    except (*UNREADABLE, OcilError):
        return reason_of(error)
    reason = error.brief if isinstance(error, UnknownNameError) else reason_of(error)
    return f"{reason.rstrip('.')}. {remedy}"


def _files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The result files under ``paths``, and the configurations of runs that have no result beside them.

    A given path may be a symbolic link; links below it are not followed.
    """
    results: dict[Path, Path] = {}
    begun: dict[Path, None] = {}
    for path in paths:
        try:
            is_file, there = path.is_file(), path.exists()
        except OSError:  # its name is too long, for example
            there = False
        if not there:
            raise OcilError(f"there is nothing at {path}: name folders of runs, such as the --out of ocil run.")
        finished, unfinished = ([path.resolve()], []) if is_file else _walk(path)
        for file in finished:
            results.setdefault(file.parent.resolve() / file.name, file)
        begun |= dict.fromkeys(unfinished)
    return list(results.values()), list(begun)


def _walk(path: Path) -> tuple[list[Path], list[Path]]:
    """``_files`` for one folder, sorted. A folder of thousands of runs is read once."""
    results, begun = [], []
    for place, folders, files in os.walk(path):
        if "result.json" in files or "result.json" in folders:
            results.append(Path(place, "result.json"))
        elif "config.json" in files:
            begun.append(Path(place, "config.json"))
    return sorted(results), sorted(begun)


def _seeds(configs: Iterable[Path]) -> dict[Path, int]:
    """The seeds of runs by their folders, from the files of their configurations."""
    found: dict[Path, int] = {}
    for file in configs:
        with suppress(*UNREADABLE, OcilError):  # another program's file, or of a method that is not known here
            found[file.parent] = RunConfig.from_json(read_json(file)).seed
    return found


def _left_out(unfinished: Sequence[Path]) -> str:
    what = "1 run is" if len(unfinished) == 1 else f"{len(unfinished)} runs are"
    others = " and others" if len(unfinished) > 1 else ""
    return f"{what} not finished: {unfinished[0]}{others}. What was stopped goes on when its command is given again."


def _read_all(files: Iterable[Path], warnings: list[str]) -> list[Found]:
    found: list[Found] = []
    unknown: dict[str, list[Path]] = {}
    for path in files:
        try:
            found.append((path, _read_either(path)))
        except _UnknownHereError as error:
            unknown.setdefault(error.reason, []).append(error.path)
        except OcilError as error:
            warnings.append(str(error))
    warnings += [str(_UnknownHereError(first, reason, len(more))) for reason, (first, *more) in unknown.items()]
    return found


def _read_either(path: Path) -> Result | LongTailResult:
    """A result of either kind; the file is read once."""
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError):
        return read(path)  # which says what is wrong
    return from_content(path, content) if is_longtail(content) else read(path, lambda _: content)


def _with_one_name(found: Sequence[Found]) -> list[Found]:
    """Give runs of the same images the name that these had last: their file may have been moved or renamed."""
    known = {result.config.fingerprint for _, result in found} - {""}
    found = [(path, _with_fingerprint(result, known)) for path, result in found]
    in_time = sorted(found, key=lambda each: str(each[1].environment.get("finished", "")))
    names = {result.config.fingerprint: result.config.dataset for _, result in in_time}
    names.pop("", None)  # of the catalog
    return [(path, _renamed(result, names.get(result.config.fingerprint))) for path, result in found]


def _with_fingerprint(result: Result | LongTailResult, known: Container[str]) -> Result | LongTailResult:
    """A result of ``ocil.run`` from when its configuration had no fingerprint, as it is written now, if other runs had
    the same images: settings that are the same are then one cell."""
    config, images = result.config, str(result.environment.get("images", ""))
    if not isinstance(result, Result) or config.fingerprint or config.dataset in CATALOG or images not in known:
        return result
    return replace(result, config=replace(result.config, fingerprint=images))


def _renamed(result: Result | LongTailResult, dataset: str | None) -> Result | LongTailResult:
    if dataset is None:
        return result
    if isinstance(result, Result):
        return replace(result, config=replace(result.config, dataset=dataset))
    return replace(result, config=replace(result.config, dataset=dataset))


def _without_other_images(found: Sequence[Found], warnings: list[str]) -> list[Found]:
    """For each cell, the runs with the images that most of its runs had."""
    cells: dict[str, list[Found]] = {}
    for path, result in found:
        cells.setdefault(result.config.cell, []).append((path, result))
    kept: list[Found] = []
    for runs in cells.values():
        counts = Counter(result.images for _, result in runs if result.images)
        common = counts.most_common(1)[0][0] if counts else ""
        for path, result in runs:
            if result.images in (common, ""):
                kept.append((path, result))
            else:
                warnings.append(f"{path} is left out: it had other images than the other runs of its cell.")
    return kept


def _warn_of_other_images(found: Sequence[Found], warnings: list[str]) -> None:
    """Warn where runs of one dataset had different images, which its name does not rule out."""
    used: dict[str, dict[str, Path]] = {}
    for path, result in found:
        if result.images:
            used.setdefault(result.config.dataset, {}).setdefault(result.images, path)
    for dataset, paths in used.items():
        if len(paths) > 1:
            first, second, *_ = paths.values()
            what = f"{title_of(dataset)} was not the same images in all runs"
            warnings.append(f"{what}, as in {first} and {second}: do not compare them.")


def _warn_of_other_orders(found: Sequence[Found], warnings: list[str]) -> None:
    """Warn where another version of ocil drew another order of arrival from the same settings and seed, or may have."""
    drawn: dict[Any, dict[str, Path]] = {}
    for path, result in found:
        if isinstance(result, Result) and (result.order or order_has_changed(result.config.stream)):
            stream = (result.images, result.config.stream.unmeasured, result.config.seed)
            drawn.setdefault(stream, {}).setdefault(result.order, path)
    if not (several := [paths for paths in drawn.values() if len(paths) > 1]):
        return
    paths = min(several, key=lambda paths: "" in paths)  # where it is known, rather than only possible
    first, second, *_ = paths.values()
    came = "may have come" if "" in paths else "came"
    warnings.append(
        f"samples {came} in another order in {first} than in {second}, though settings and seed are the same: another "
        "version of ocil drew it. Run the older ones again before you compare them."
    )


def _warn_of_other_code(cells: Sequence[MeasuredCell], warnings: list[str]) -> None:
    """Warn where code of others has changed since its runs: tables show their numbers as if they were new."""
    other = [cell for cell in cells if cell.is_of_other_code]
    absent = {cell.name: file for cell in other if (file := _absent_plugin(cell))}
    for file in dict.fromkeys(absent.values()):
        labels = ", ".join(dict.fromkeys(cell.label for cell in other if absent.get(cell.name) == file))
        warnings.append(f"these were run with a plugin file that is not loaded: {labels}. Give it too: --plugin {file}")
    former = [cell for cell in other if cell.name not in absent]
    if former:
        labels = ", ".join(dict.fromkeys(cell.label for cell in former))
        folders = f"{former[0].runs[0].path.parent.parent}{' and others' if len(former) > 1 else ''}"
        warnings.append(
            f"the plugin file has changed since these were run: {labels}. Give their commands again to run the present "
            f"file. To leave the former results out, delete {folders}."
        )
    for changed, folder in dict.fromkeys(found for cell in cells if (found := _former_code(cell))):
        warnings.append(
            f"the code of {changed} has changed since runs in {folder} were finished: tables have their former "
            "numbers. Delete that folder, and give its command again, to have new ones."
        )


def _absent_plugin(cell: MeasuredCell) -> str:
    """The name of the plugin file of a cell, if nothing of its method and network comes from such a file here."""
    if code_of(cell.config.method, cell.config.learner):
        return ""
    recorded = cell.runs[0].result.environment.get("plugins", ())
    return next((escaped(str(each["file"])) for each in recorded if "file" in each), "")


def _former_code(cell: MeasuredCell) -> tuple[str, Path] | None:
    """The method or network of a cell, if its code has changed since one of the runs, and the folder of that run."""
    by_code = {tuple(run.result.environment.get(entry) for entry in CODE_ENTRIES): run for run in cell.runs}
    found = ((changed_code(run.result), run.path.parent.parent) for run in by_code.values())
    return next(((changed, folder) for changed, folder in found if changed), None)


def _by_cell_and_seed(found: Sequence[Found], warnings: list[str]) -> dict[str, BySeed]:
    cells: dict[str, BySeed] = {}
    for path, result in found:
        if isinstance(result, Result):
            config = result.config
            other = cells.setdefault(config.cell, {}).setdefault(config.seed, FinishedRun(path, result))
            if other.result.digest != result.digest:
                warnings.append(f"{path} is left out: another run of the same settings and seed is {other.path}.")
    return cells


def _cell(by_seed: BySeed, known: References) -> MeasuredCell:
    runs = [by_seed[seed] for seed in sorted(by_seed)]
    references = []
    for run in runs:
        reference = known.of(run.result)
        references.append(reference if reference and _same_images(run.result, reference) else None)
    return MeasuredCell(tuple(runs), summarise([run.result for run in runs], references))


def _same_images(one: Result, other: Result) -> bool:
    """Whether they had the same images, as far as that is known."""
    return one.images == other.images or not (one.images and other.images)


def _with_what_is_common(cells: Sequence[MeasuredCell]) -> list[MeasuredCell]:
    """Mark what is common, which names in tables leave out: the precision that most cells of a dataset have. Where the
    catalog does not know them, the number of tasks and the period of reviews are common if all cells share them.

    Cells are also marked if the name of their dataset stands for several sets of images, which do not belong into one
    column.
    """
    counts: dict[str, Counter[str]] = {}
    tasks: dict[str, set[int]] = {}
    images: dict[str, set[str]] = {}
    for cell in cells:
        images.setdefault(cell.config.dataset, set()).add(cell.config.fingerprint)
        counts.setdefault(cell.config.dataset, Counter())[cell.config.learner.precision] += 1
        tasks.setdefault(cell.config.dataset, set()).add(cell.config.stream.tasks)
    most = {dataset: max(found, key=lambda name: (found[name], name)) for dataset, found in counts.items()}
    same = {dataset for dataset, found in tasks.items() if len(found) == 1 and dataset not in CATALOG}
    marked = [
        replace(
            cell,
            common_precision=cell.config.learner.precision == most[cell.config.dataset],
            common_tasks=cell.config.dataset in same,
            other_images=len(images[cell.config.dataset]) > 1,
        )
        for cell in cells
    ]
    if not (as_often := _reviewed_as_often(marked)):
        return marked
    return [replace(cell, common_reviews=(cell.config.dataset, cell.stream) in as_often) for cell in marked]


def _reviewed_as_often(cells: Sequence[MeasuredCell]) -> set[tuple[str, str]]:
    """The datasets and streams without task ends, outside the catalog, in which all reviews come at one distance."""
    periods: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        config = cell.config
        if config.learner.review and not config.stream.announces_tasks and base_of(config.dataset) not in CATALOG:
            periods.setdefault((config.dataset, cell.stream), set()).add(config.learner.review_every)
    return {stream for stream, found in periods.items() if len(found) == 1}


def _order(cell: MeasuredCell) -> tuple[Any, ...]:
    """The order of cells: known datasets first, by classes and image size; then memory, the order of methods, and what
    was changed, with plain cells first and numbers by their size."""
    config, known = cell.config, CATALOG.get(cell.config.dataset)
    size = (-known.classes, *(-length for length in known.image_shape)) if known else (0,)
    values = [(0, v, "") if isinstance(v, int | float) else (1, 0, str(v)) for v in cell.changed.values()]
    return (
        *(size, title_of(config.dataset), config.dataset, cell.column.memory, list(METHODS).index(config.method)),
        *(config.learner.review, len(cell.changed), tuple(cell.changed), values, cell.name),
    )
