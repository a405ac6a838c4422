"""Opens the model of a folder, or makes a new one from a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from ocil.errors import OcilError
from ocil.learning.memory import refuse_what_cannot_fit
from ocil.methods import method
from ocil.networks.pretrained import digest
from ocil.networks.registry import spec_of
from ocil.online.formats import InputFormat
from ocil.online.header import format_problem
from ocil.online.images import ImageFormat
from ocil.online.model import FILE, Model, Recipe, has_model
from ocil.online.sources import LabelledRows, LabelledSource
from ocil.online.vectors import VectorFormat
from ocil.runs.protocol import out_of_memory

DATABASES = {f"{name}.sqlite{end}" for name in ("samples", "labelling") for end in ("", "-wal", "-shm")}
NOT_A_MODEL = {".lock", "log", "log.newest", "audit.jsonl", "versions", "held-out.safetensors"} | DATABASES
"""What a folder without a model may hold."""

Compared = dict[str, tuple[Any, Any]]
"""By the name of a setting: what is wanted, and what the model was made with."""


@dataclass(frozen=True)
class ModelRequest:
    """The settings asked for. A model that exists keeps its own, and a request for it must agree with them."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``Recipe``, as far as they were given."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the method."""
    size: int | None = None
    """Images are resized to squares of this side. Default: 32."""
    gray: bool = False
    vectors: VectorFormat | None = None
    """The format of vectors, for a model that takes them instead of images. Its precision is that of a new model."""
    trust: bool = False
    """Whether a model file may name Python code as its network."""

    def __post_init__(self) -> None:
        if self.vectors is not None and (self.size is not None or self.gray):
            raise OcilError("--size and --gray are for images, and these are vectors: leave them out.")

    def of(self, source: LabelledSource) -> "ModelRequest":
        """The request for a model that is to learn these samples."""
        if not isinstance(source, LabelledRows):
            return self
        if self.vectors is not None and self.vectors.size != source.input_format.size:
            raise OcilError(f"--vectors {self.vectors.size} was given, and these are {source.input_format}.")
        return replace(self, vectors=source.input_format)

    def check(self, folder: Path) -> None:
        """Raise if the settings of a new model are wrong, before anything is written."""
        if not has_model(folder):
            config, problem = self._recipe().config(self.vectors is not None), format_problem(self._format(), 1)
            refuse_what_cannot_fit(config.memory, problem.input_shape, [torch.device("cpu")], problem.dtype)

    def open(self, folder: Path, device: torch.device) -> Model:
        """The folder's model, or a new one. Raises if the model was made with other settings."""
        if has_model(folder):
            found = Model.load(folder, device, self.trust or spec_of(self.settings.get("network", "")))
            self._refuse_other(found, folder)
            return found
        try:
            return Model(self._recipe(), self._format(), device)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise OcilError(
                "this model does not fit on the device: give a smaller --width, --size or --memory."
            ) from None

    def _format(self) -> InputFormat:
        if self.vectors is not None:
            return self.vectors
        side = self.size or 32
        return ImageFormat((side, side, 1 if self.gray else 3))

    def _recipe(self) -> Recipe:
        return Recipe(**self.recipe, settings=dict(self.settings))

    def _refuse_other(self, found: Model, folder: Path) -> None:
        """Raise if a model was made with other settings than these."""
        compared = self._compare_recipe(found) | self._compare_settings(found)
        self._refuse_other_inputs(found.input_format, folder)
        compared |= self._compare_images(found.input_format)
        for name, (wanted, has) in compared.items():
            if wanted != has:
                raise OcilError(
                    f"the model in {folder} was made with {name} = {has}, not {wanted}: leave that out, "
                    "or choose another folder with --model."
                )

    def _compare_recipe(self, found: Model) -> Compared:
        given = dict(self.recipe)
        if "method" in given:
            given["method"] = method(given["method"]).name
        return {name: (value, getattr(found.recipe, name)) for name, value in given.items()}

    def _compare_settings(self, found: Model) -> Compared:
        settings, compared = dict(self.settings), Compared()
        if "pretrained" in settings:
            path = settings.pop("pretrained")
            compared["pretrained"] = (digest(path) or path, found.weights)
        if settings:
            vectors = isinstance(found.input_format, VectorFormat)
            config = replace(found.recipe, settings=settings).config(vectors)
            compared |= {name: (getattr(config, name), getattr(found.config, name)) for name in settings}
        return compared

    def _compare_images(self, found: InputFormat) -> Compared:
        if not isinstance(found, ImageFormat) or self.vectors is not None:
            return {}
        height, _, channels = found.shape
        return {"size": (self.size or height, height), "gray": (self.gray or channels == 1, channels == 1)}

    def _refuse_other_inputs(self, found: InputFormat, folder: Path) -> None:
        """Raise if the model takes other inputs than these vectors, or vectors where images were described."""
        if self.vectors is not None and found.shape != self.vectors.shape:
            raise OcilError(f"the model in {folder} takes {found}, and these are {self.vectors}.")
        if isinstance(found, VectorFormat) and self.vectors is None and (self.size is not None or self.gray):
            raise OcilError(f"the model in {folder} takes {found}: leave out --size and --gray.")


def check_folder(folder: Path, new: bool) -> None:
    """Raise unless a folder holds a model or, if ``new`` allows one to begin, is free for it."""
    if has_model(folder):
        return
    if folder.exists() and not folder.is_dir():
        raise OcilError(f"{folder} is a file, not the folder of a model.")
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    unfinished = f".{FILE}.*.tmp"  # of a process that was killed while it saved
    if any(name not in NOT_A_MODEL and not fnmatch(name, unfinished) for name in found):
        raise OcilError(f"{folder} is not the folder of a model, and it is not empty. Choose another one.")
    if not new:
        raise OcilError(f"there is no model in {folder}: to begin one, name a method, for example --method afs.")
