"""A folder of runs: one folder a run, holding its configuration, its checkpoint and, once finished, its result.

    ROOT/CELL/seed-0/config.json, checkpoint.safetensors, result.json

CELL names the dataset, the method and the memory; it ends in a digest of the images and of the settings that are not at
their default, so equal settings meet in one place. Folders with former names are found too: see ``find_run``.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
from torch import Tensor

from ocil import metrics
from ocil.config import RunConfig
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.files import locked, write_bytes
from ocil.metrics import Estimate, estimate

SCHEMA = 1
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
        return {
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
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Result":
        refuse_newer(content, SCHEMA)
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
            result = Result.from_json(json.loads(path.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (*UNREADABLE, OcilError) as error:
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
        host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        content = safetensors.torch.save(host, {"progress": json.dumps(progress)})
        write_bytes(self.checkpoint, content)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        path = self.checkpoint
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, "pt") as file:
                progress = json.loads(file.metadata()["progress"])
                return {name: file.get_tensor(name) for name in file.keys()}, progress  # noqa: SIM118
        except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
            raise OcilError(unreadable(path, error)) from error

    def lock(self) -> AbstractContextManager[None]:
        """One process at a time works on a run. The lock goes with the process, however that ends."""
        taken = f"another process is working on {self.path}: wait for it, or use another --out."
        return locked(self.path, "Choose another folder with --out.", taken)


def find_run(root: Path, cell: str, former: str, seed: int, own_images: bool) -> Path:
    """Where a run is, else where other seeds of its cell are, else where it will be: ROOT/CELL/seed-N.

    ``former``: the cell's name when digests covered every default. ``own_images``: they are of a dataset outside the
    catalog, whose file may have been renamed since; then the digest tells the cell, whatever stands before it.
    """
    renamed = sorted(root.glob(f"*-{cell[-8:]}")) if own_images and _is_folder(root) else []
    cells = [path for path in (root / cell, *renamed, root / former) if _is_folder(path)]
    runs = [path / f"seed-{seed}" for path in (*cells, root / cell)]
    return next((path for path in runs if _is_folder(path)), runs[0])


def _is_folder(path: Path) -> bool:
    """Also asked of names that are too long for a file system, for which ``Path.is_dir`` raises."""
    return os.path.isdir(path)  # noqa: PTH112


def begun_with(folder: Path, read: Callable[[Any], C], otherwise: C) -> C:
    """The configuration that a run was begun with, as its folder tells; ``otherwise`` if it does not tell."""
    path = folder / "config.json"
    try:
        return read(json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return otherwise
    except (*UNREADABLE, OcilError) as error:
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


def refuse_newer(content: Mapping[str, Any], schema: int) -> None:
    """A later version may mean something else by the same names."""
    if content["schema"] != schema:
        raise ValueError(f"its schema is {content['schema']}, this version of ocil reads {schema}")


def unreadable(path: Path, error: Exception) -> str:
    return f"cannot read {path}: {type(error).__name__}: {error}. Delete it to start that run again."


def other_images(path: Path) -> str:
    found = f"{path} was begun with other images of that name"
    return f"{found}: import those again, use another --out, or delete that folder."


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
