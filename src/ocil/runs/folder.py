"""The folder of a run: its configuration, its checkpoint and, once it is finished, its result.

    ROOT/CELL/seed-0/config.json, checkpoint.safetensors, result.json

CELL names the dataset, the method and the memory; it ends in a digest of the images and of the settings that are not at
their default, so runs with equal settings share a folder. Folders with former names are found too: see ``find_run``.
ROOT may be a symbolic link. A link in the place of a cell, a run or a file is refused: it may have come with another
person's folder and lead anywhere.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ocil import precision, tensorfile
from ocil.errors import OcilError
from ocil.files import is_link, locked
from ocil.precision import Precision
from ocil.runs.config import RunConfig
from ocil.runs.naming import seed_folder
from ocil.runs.results import Result, if_there, other_images, read_json, read_result, unreadable, write_json
from ocil.tensorfile import DamagedFileError


class RunSettings(Protocol):
    """The configuration of any kind of run, as far as its folder and an engine are concerned."""

    @property
    def dataset(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Digest of a dataset outside the catalog, else empty."""

    @property
    def cell(self) -> str: ...

    @property
    def former_cell(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """What distinguishes the run from others."""

    @property
    def precision(self) -> Precision: ...

    def in_precision(self, chosen: Precision) -> Self:
        """The same run, computed in another precision."""

    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self: ...


class StoredResult(Protocol):
    """The result of any kind of run, as far as its folder is concerned: a dataclass that has the configuration."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def config(self) -> RunSettings: ...


S = TypeVar("S", bound=RunSettings)
R = TypeVar("R", bound=StoredResult)
COUNTS = "evaluation."  # before the names of tensors in a checkpoint that are not the learner's
State = dict[str, Tensor]


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path
    config: RunSettings | None = None
    """The run that is expected here: files of another one are refused."""

    @classmethod
    def of(cls, root: Path, config: RunSettings) -> "RunFolder":
        return cls(find_run(root, config), config)

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def is_begun(self) -> bool:
        """Whether there is something of the run that would be lost."""
        return any(os.path.exists(file) for file in (self.checkpoint, self.path / "result.json"))  # noqa: PTH110

    def images(self) -> str | None:
        """The fingerprint of the images that the run had so far, as its files say; None if it is not begun.

        "" if they do not say it: files from before it was kept, and damaged ones.
        """
        try:
            if (result := self.result()) is not None:
                return result.images
            found = self.load_checkpoint()
        except OcilError:  # whoever uses these files says what is wrong with them
            return ""
        return None if found is None else str(found[1].get("images", ""))

    def result(self) -> Result | None:
        """The result of a class-incremental run, if it is finished."""
        return self.read_result(read_result)

    def read_result(self, read: Callable[[Path], R | None]) -> R | None:
        """The result of any kind of run, if it is finished. ``read``: what reads the file, None if there is none."""
        result = read(self.path / "result.json")
        if result is None or self.config is None:
            return result
        self.check_settings(result.config)
        return replace(result, config=self.config)  # the same run; its images may have been moved since

    def check_settings(self, stored: RunSettings) -> None:
        """Raise if the run that is stored here has other settings than the expected one: its name does not show whether
        a default has changed since."""
        expected = self.config
        if isinstance(expected, RunConfig) and not stored.fingerprint:
            expected = expected.by_name
        if expected is None or stored.identity == expected.identity:
            return
        one, other = _flat(stored.identity), _flat(expected.identity)
        names = ", ".join(sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)))
        raise OcilError(
            f"{self.path} holds a run with other settings ({names}): their defaults may have changed since. "
            "Use another folder of runs (--out), or delete that one."
        )

    def save_result(self, result: Result) -> None:
        write_json(self.path / "result.json", result.to_json())

    def check_checkpoint_settings(self) -> None:
        """Raise if there is a checkpoint of other settings than the expected ones."""
        if self.config is not None and self.checkpoint.exists():
            self.check_settings(self.stored_config(self.config))

    def save_config(self, config: RunSettings) -> None:
        """Write the configuration. Call ``check_checkpoint_settings`` first: a checkpoint must be of the same."""
        write_json(self.path / "config.json", config.to_json())

    def stored_config(self, default: S) -> S:
        """The configuration that the run was begun with; ``default``, of the same kind, if there is no file of it."""
        path = self.path / "config.json"
        found = if_there(path, lambda: default.from_json(read_json(path)))
        return default if found is None else found

    def save_checkpoint(self, tensors: State, progress: dict[str, Any]) -> None:
        """Write tensors and the JSON that goes with them into one file, so that they cannot disagree."""
        tensorfile.write(self.checkpoint, tensors, {"progress": json.dumps(progress)})

    def save_for_resume(self, tensors: State, progress: dict[str, Any], device: torch.device, fingerprint: str) -> None:
        """Write a checkpoint with what ``resume`` compares: the kind of device, the threads and the images."""
        made_with = {"device": device.type, "threads": torch.get_num_threads(), "images": fingerprint}
        self.save_checkpoint(tensors, progress | made_with)

    def load_checkpoint(self) -> tuple[State, dict[str, Any]] | None:
        """What ``save_checkpoint`` wrote last; None if there is no file. Raises ``OcilError`` if it is damaged."""
        return read_tensors(self.checkpoint, "progress")

    def resume(
        self,
        device: torch.device,
        fingerprint: str,
        load: Callable[[State, dict[str, Any]], None],
        own_batches: bool = False,
    ) -> None:
        """Call ``load`` with what the checkpoint holds, if there is one. ``fingerprint``: of the dataset.
        ``own_batches``: see ``other_images``.

        Raises ``OcilError`` if a run that goes on from it would have another result, or if ``load`` cannot read it.
        """
        if (found := self.load_checkpoint()) is None:
            return
        begun = found[1].get("device", device.type)
        if begun != device.type:
            raise OcilError(f"{self.path} was begun on {begun}: go on there (--device {begun}), or delete that folder.")
        threads = found[1].get("threads", torch.get_num_threads())
        if device.type == "cpu" and threads != torch.get_num_threads():
            raise OcilError(
                f"{self.path} was begun with {threads} threads: go on with as many (--threads {threads}), or delete "
                "that folder."
            )
        if found[1].get("images", fingerprint) != fingerprint:
            raise OcilError(other_images(self.path, own_batches))
        try:
            load(*found)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise OcilError(unreadable(self.checkpoint, error)) from error

    def lock(self) -> AbstractContextManager[None]:
        """Lets one process at a time work on a run. The lock ends with the process, however that ends."""
        for place in (self.path.parent, self.path):
            if is_link(place):
                raise OcilError(f"cannot write to {place}: it is a symbolic link. Link the folder of all runs instead.")
        taken = f"another process is working on {self.path}: wait for it, or use another folder of runs (--out)."
        return locked(self.path, "Choose another folder of runs (--out).", taken)


def find_run(root: Path, config: RunSettings) -> Path:
    """Where a run is, else where other seeds of its cell are, else where it will be: ROOT/CELL/seed-N.

    The file of a dataset outside the catalog may have been renamed since; then the digest alone identifies the cell. A
    run of ``ocil.run`` may have a name from before it looked at the images: then these must be the same.
    """
    cell = config.cell
    present, digest = root / cell / seed_folder(config.seed), cell.rsplit("-", 1)[1]
    if is_folder(present):
        return present
    renamed = sorted(root.glob(f"*-{digest}")) if config.fingerprint and is_folder(root) else []
    cells = [path for path in (root / cell, *renamed, root / config.former_cell) if is_folder(path)]
    runs = [path / present.name for path in cells]
    begun = [path for path in runs if is_folder(path)] or _begun_by_name(root, config)
    return (*begun, *runs, present)[0]


def _begun_by_name(root: Path, config: RunSettings) -> list[Path]:
    """The folders of this run from before ``ocil.run`` looked at the images."""
    if not isinstance(config, RunConfig) or not config.fingerprint:
        return []
    places = [root / cell / seed_folder(config.seed) for cell in (config.by_name.cell, config.by_name.former_cell)]
    begun = ((path, RunFolder(path).images()) for path in places if is_folder(path))
    return [path for path, images in begun if images in (config.fingerprint, "")]


def images_of_name(root: Path, config: RunConfig) -> set[str]:
    """The fingerprints of the images, of all datasets of this name, on which there is such a run. "" stands for those
    that a file from before they were kept does not have, and is left out if there are others.
    """
    words = config.cell.rsplit("-", 1)[0]
    cells = [*(sorted(root.glob(f"{escape(words)}-*")) if is_folder(root) else ()), root / config.by_name.former_cell]
    found: set[str] = set()
    for folder in (RunFolder(cell / seed_folder(config.seed)) for cell in cells):
        with suppress(OcilError):  # a run of something that is not known here is not this one
            begun = _begun_config(folder, config)
            if begun is None or begun.by_name.identity != config.by_name.identity:
                continue
            if (images := folder.images()) is not None:
                found.add(images)
    return found - {""} or found


def _begun_config(folder: RunFolder, like: RunConfig) -> RunConfig | None:
    """The configuration of whatever run a folder holds. Its own file is read sooner than a result."""
    if (folder.path / "config.json").exists():
        return folder.stored_config(like)
    result = folder.result()
    return None if result is None else result.config


def refuse_begun_elsewhere(configs: Iterable[RunSettings], root: Path) -> None:
    """Raise if some of these runs, whose precision nobody gave, were begun on a machine with another default precision:
    here they would be run anew."""
    begun = Counter[tuple[Precision, Precision]]()
    for config in configs:
        theirs = precision.elsewhere(config.precision)
        if theirs is None or RunFolder.of(root, config).is_begun:
            continue
        if RunFolder.of(root, config.in_precision(theirs)).is_begun:
            begun[config.precision, theirs] += 1
    for (ours, theirs), count in begun.items():
        what = "a run" if count == 1 else f"{count} runs"
        raise OcilError(
            f"{root} has {what} of this command in {theirs}, and the default on this machine is {ours}: go on with "
            f"--set precision={theirs}, or give --set precision={ours} to run anew."
        )


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OcilError(f"cannot write to {path}: {error.strerror}. Choose another place.") from None


def is_folder(path: Path) -> bool:
    """Like ``Path.is_dir``, which raises for a name that is too long for the file system."""
    return os.path.isdir(path)  # noqa: PTH112


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    parts = (value if isinstance(value, Mapping) else {name: value} for name, value in identity.items())
    return {name: value for part in parts for name, value in part.items()}


def read_tensors(path: Path, text: str) -> tuple[State, dict[str, Any]] | None:
    """The tensors of a file and the JSON object that it keeps as ``text``; None if there is no such file."""

    def read() -> tuple[State, dict[str, Any]]:
        tensors, texts = tensorfile.read(path)
        found = json.loads(texts[text])
        if not isinstance(found, dict):
            raise DamagedFileError(f"its {text} is not an object")
        return tensors, found

    return if_there(path, read)
