"""A folder of runs: one folder a run, holding its configuration, its checkpoint and, once finished, its result.

    ROOT/CELL/seed-0/config.json, checkpoint.safetensors, result.json

CELL names the dataset, the method and the memory; it ends in a digest of the images and of the settings that are not at
their default, so equal settings meet in one place. Folders with former names are found too: see ``find_run``.
ROOT may be a symbolic link. In the place of a cell, a run or a file, a link is refused: it may have come with a folder
of somebody else and lead anywhere.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from ocil import metrics, tensorfile
from ocil.config import RunConfig
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.files import NOWHERE, is_link, locked, read_regular, write_bytes
from ocil.metrics import Estimate, estimate
from ocil.tensorfile import DamagedFileError

SCHEMA = 2
"""Of results; since 2 they have a checksum."""
CHECKSUM = "checksum"
MOST_BYTES = 1 << 26  # of a JSON file, far above any of ours
LONGEST_PATH = 4096  # of a dataset's file, in characters
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

C = TypeVar("C")


@dataclass(frozen=True)
class Result:
    """What one finished run found. Accuracies are shares, 0 to 1."""

    config: RunConfig
    matrix: list[list[float]]
    """Accuracy by class group, one row after each group of the stream."""
    evaluations: list[dict[str, Any]]
    """After each group: mean weights and logits of old and new classes, counts of hard, ambiguous and easy samples."""
    wall_seconds: float
    peak_memory: dict[str, int]
    """Bytes: ``host`` and, on a GPU, ``device``."""
    digest: str
    """SHA-256 of the final learner: weights, memory and generators."""
    environment: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return sealed({
            "schema": SCHEMA,
            "config": self.config.to_json(),
            "average_accuracy": metrics.average_accuracy(self.matrix),
            "average_forgetting": metrics.average_forgetting(self.matrix),
            "average_forgetting_common": metrics.average_forgetting_common(self.matrix),
            "accuracy_curve": metrics.accuracy_curve(self.matrix),
            "matrix": self.matrix,
            "evaluations": self.evaluations,
            "wall_seconds": self.wall_seconds,
            "peak_memory": self.peak_memory,
            "digest": self.digest,
            "environment": self.environment,
        })  # fmt: skip

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Result":
        check_sealed(content, SCHEMA)
        result = cls(
            RunConfig.from_json(content["config"]),
            *(content[name] for name in (
                "matrix", "evaluations", "wall_seconds", "peak_memory", "digest", "environment",
            )),
        )  # fmt: skip
        _check(result)
        return result

    @property
    def images(self) -> str:
        """Fingerprint of the dataset; empty in results from before it was kept."""
        return str(self.environment.get("images", self.config.fingerprint))

    def same_images(self, dataset: Dataset) -> bool:
        """As far as is known."""
        return not self.images or self.images == dataset.fingerprint

    def refuse_other(self, dataset: Dataset, path: Path) -> "Result":
        """Itself, if it was measured on that dataset."""
        if not self.same_images(dataset):
            raise OcilError(other_images(path))
        return self


@dataclass(frozen=True)
class RunFolder:
    path: Path
    config: RunConfig | None = None
    """The run that is looked for here: what is found of another one is refused."""

    @classmethod
    def of(cls, root: Path, config: RunConfig) -> "RunFolder":
        return cls(find_run(root, config.cell, config.former_cell, config.seed, bool(config.fingerprint)), config)

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def result(self) -> Result | None:
        """The result, if the run is finished."""
        path = self.path / "result.json"
        try:
            result = Result.from_json(read_json(path))
        except (*UNREADABLE, OcilError) as error:
            if is_nowhere(error):
                return None
            raise OcilError(unreadable(path, error)) from error
        if self.config is None:
            return result
        refuse_other_settings(self.path, result.config.identity, self.config.identity)
        return replace(result, config=self.config)  # the same run; its images may have been moved since

    def save_result(self, result: Result) -> None:
        write_json(self.path / "result.json", result.to_json())

    def save_config(self, config: RunConfig) -> None:
        if self.checkpoint.exists():
            begun = begun_with(self.path, RunConfig.from_json, config)
            refuse_other_settings(self.path, begun.identity, config.identity)
        write_json(self.path / "config.json", config.to_json())

    def save_checkpoint(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Tensors and the JSON that goes with them, in one file, so that they cannot disagree."""
        tensorfile.write(self.checkpoint, tensors, {"progress": json.dumps(progress)})

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What was saved last, if there is something. What is not as it was written is an ``OcilError``."""
        return read_tensors(self.checkpoint, "progress")

    def lock(self) -> AbstractContextManager[None]:
        """One process at a time works on a run. The lock goes with the process, however that ends."""
        for place in (self.path.parent, self.path):
            if is_link(place):
                raise OcilError(f"cannot write to {place}: it is a symbolic link. Link the folder of all runs instead.")
        taken = f"another process is working on {self.path}: wait for it, or use another --out."
        return locked(self.path, "Choose another folder with --out.", taken)


def find_run(root: Path, cell: str, former: str, seed: int, own_images: bool) -> Path:
    """Where a run is, else where other seeds of its cell are, else where it will be: ROOT/CELL/seed-N.

    ``former``: the cell's name when digests covered every default. ``own_images``: they are of a dataset outside the
    catalog, whose file may have been renamed since; then the digest tells the cell, whatever stands before it.
    """
    present, digest = root / cell / f"seed-{seed}", cell.rsplit("-", 1)[1]
    if is_folder(present):
        return present
    renamed = sorted(root.glob(f"*-{digest}")) if own_images and is_folder(root) else []
    cells = [path for path in (root / cell, *renamed, root / former) if is_folder(path)]
    runs = [path / present.name for path in cells]
    return next((path for path in runs if is_folder(path)), (*runs, present)[0])


def is_folder(path: Path) -> bool:
    """Also to be asked of names that are too long for a file system, for which ``Path.is_dir`` raises."""
    return os.path.isdir(path)  # noqa: PTH112


def begun_with(folder: Path, read: Callable[[Any], C], otherwise: C) -> C:
    """The configuration that a run was begun with, as its folder tells; ``otherwise`` if it does not tell."""
    path = folder / "config.json"
    try:
        return read(read_json(path))
    except (*UNREADABLE, OcilError) as error:
        if is_nowhere(error):
            return otherwise
        raise OcilError(unreadable(path, error)) from error


def refuse_other_settings(folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise if a folder's run is another than the one that is asked for: its name does not tell where a default has
    changed since."""
    if begun == asked:
        return
    one, other = _flat(begun), _flat(asked)
    names = ", ".join(sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)))
    raise OcilError(
        f"{folder} holds a run with other settings ({names}): their defaults may have changed since. "
        "Use another --out, or delete that folder."
    )


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    parts = (value if isinstance(value, Mapping) else {name: value} for name, value in identity.items())
    return {name: value for part in parts for name, value in part.items()}


def read_tensors(path: Path, text: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors of a file and the JSON object that it keeps as ``text``; None if there is no such file."""
    try:
        tensors, texts = tensorfile.read(path)
        found = json.loads(texts[text])
        if not isinstance(found, dict):
            raise DamagedFileError(f"its {text} is not an object")
    except UNREADABLE as error:
        if is_nowhere(error):
            return None
        raise OcilError(unreadable(path, error)) from error
    return tensors, found


@dataclass(frozen=True)
class Summary:
    """Runs that differ only by their seed."""

    config: RunConfig
    average_accuracy: Estimate
    average_forgetting: Estimate | None
    average_forgetting_common: Estimate | None
    average_intransigence: Estimate | None
    wall_seconds: Estimate
    accuracy_curve: list[Estimate]


def summarise(results: Sequence[Result], references: Sequence[Result | None] | None = None) -> Summary:
    """Means and intervals over seeds; ``references`` are the fine-tuned runs of the same seeds."""
    matrices = [result.matrix for result in results]
    pairs = zip(matrices, references or [None] * len(results), strict=True)
    curves = zip(*map(metrics.accuracy_curve, matrices), strict=True)
    return Summary(
        results[0].config,
        estimate([metrics.average_accuracy(m) for m in matrices]),
        _estimate([metrics.average_forgetting(m) for m in matrices]),
        _estimate([metrics.average_forgetting_common(m) for m in matrices]),
        _estimate([None if r is None else metrics.average_intransigence(m, r.matrix) for m, r in pairs]),
        estimate([result.wall_seconds for result in results]),
        [estimate(values) for values in curves],
    )


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """With a checksum of everything else, whatever checksum it had."""
    return {**content, CHECKSUM: _checksum(content)}


def check_sealed(content: Mapping[str, Any], schema: int) -> None:
    """Raise if it has changed since it was written. The first schema had no checksum; a later one than ours may mean
    something else by the same names.
    """
    if content["schema"] not in range(1, schema + 1):
        raise ValueError(f"its schema is {content['schema']}, this version of ocil reads up to {schema}")
    if content["schema"] == 1 and CHECKSUM not in content:
        return
    if content.get(CHECKSUM) != _checksum(content):
        raise DamagedFileError("it is damaged: its content does not match its checksum")


def _checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of what a file holds, however it is spaced and ordered."""
    rest = json.loads(json.dumps({name: value for name, value in content.items() if name != CHECKSUM}))
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def is_nowhere(error: Exception) -> bool:
    """Whether a file could not be read because there is none."""
    return isinstance(error, OSError) and error.errno in NOWHERE


def unreadable(path: Path, error: Exception) -> str:
    return f"cannot read {path}: {reason_of(error)}. Delete it to start that run again."


def reason_of(error: Exception) -> str:
    """Why a file could not be read, in a line that is not too long."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    meant = isinstance(error, OcilError | DamagedFileError)
    text = str(error) if meant else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200].rstrip(".")


def other_images(path: Path) -> str:
    found = f"{path} was begun with other images of that name"
    return f"{found}: import those again, use another --out, or delete that folder."


def read_json(path: Path) -> Any:
    content = json.loads(read_regular(path, MOST_BYTES))
    json.dumps(content, ensure_ascii=False).encode()  # half a character could not be written again
    return content


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=1) + "\n").encode())


def _estimate(values: list[float | None]) -> Estimate | None:
    """None where the quantity is not defined for every run."""
    known = [value for value in values if value is not None]
    return estimate(known) if known and len(known) == len(values) else None


def _check(result: Result) -> None:
    """Raise what could not be shown or averaged. A file may come from anywhere."""
    config = result.config
    if not isinstance(config.dataset, str) or not config.dataset or not _whole(config.seed):
        raise ValueError("dataset or seed is not what it should be")
    if not isinstance(config.fingerprint, str):
        raise ValueError("fingerprint is not what it should be")
    if len(config.dataset) > LONGEST_PATH:
        raise ValueError("the name of its dataset is too long")
    for part in (config.stream, config.learner):
        for f in fields(part):
            value, usual = getattr(part, f.name), f.default
            if not isinstance(usual, bool | int | float | str):  # of a method of somebody's own, anything
                continue
            if not isinstance(value, type(usual)) and not (isinstance(usual, float) and is_number(value)):
                raise ValueError(f"{f.name} = {str(value)[:40]} is not what it should be")
    rows = 1 if config.stream.boundary == "iid" else config.stream.tasks
    if not isinstance(result.matrix, list) or len(result.matrix) != rows:
        raise ValueError(f"the accuracy matrix does not have {rows} rows")
    for row in result.matrix:
        if len(row) != config.stream.tasks or not all(is_number(a) and 0 <= a <= 1 for a in row):
            raise ValueError(f"a row of the accuracy matrix is not {config.stream.tasks} shares")
    for evaluation in result.evaluations:
        for name, value in evaluation.items():
            if name != "accuracy" and value is not None and not is_number(value):
                raise ValueError(f"{name} of an evaluation is not a number")
    if not is_number(result.wall_seconds) or not isinstance(result.digest, str):
        raise ValueError("wall_seconds or digest is not what it should be")
    if not isinstance(result.environment, dict) or not isinstance(result.peak_memory, dict):
        raise ValueError("environment or peak_memory is not an object")


def is_number(value: Any) -> bool:
    """One that a float can hold: what JSON calls an integer may be longer."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
