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
from ocil.online.images import ImageFormat
from ocil.online.model import FILE, Model, Recipe, has_model
from ocil.runs.protocol import out_of_memory

NOT_A_MODEL = {".lock", "log"}
"""What a folder without a model may hold."""


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

    def check(self, folder: Path) -> None:
        """Raise if the settings of a new model are wrong, before anything is written."""
        if not has_model(folder):
            memory = self._recipe().config().memory
            refuse_what_cannot_fit(memory, self._format().shape, [torch.device("cpu")])

    def open(self, folder: Path, device: torch.device) -> Model:
        """The folder's model, or a new one. Raises if the model was made with other settings."""
        if has_model(folder):
            found = Model.load(folder, device)
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

    def _format(self) -> ImageFormat:
        side = self.size or 32
        return ImageFormat((side, side, 1 if self.gray else 3))

    def _recipe(self) -> Recipe:
        return Recipe(**self.recipe, settings=dict(self.settings))

    def _refuse_other(self, found: Model, folder: Path) -> None:
        given = dict(self.recipe)
        if "method" in given:
            given["method"] = method(given["method"]).name
        asked = {name: (value, getattr(found.recipe, name)) for name, value in given.items()}
        if self.settings:
            config = replace(found.recipe, settings=dict(self.settings)).config()
            asked |= {name: (getattr(config, name), getattr(found.config, name)) for name in self.settings}
        height, _, channels = found.images.shape
        asked["size"] = (self.size or height, height)
        asked["gray"] = (self.gray or channels == 1, channels == 1)
        for name, (wanted, has) in asked.items():
            if wanted != has:
                raise OcilError(
                    f"the model in {folder} was made with {name} = {has}, not {wanted}: leave that out, "
                    "or choose another folder with --model."
                )


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
