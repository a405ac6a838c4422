"""The datasets of runs: which are there, what a configuration needs to know about them, and how it names them."""

from collections.abc import Iterable
from pathlib import Path

from ocil import data
from ocil.data import DEFAULT, Dataset
from ocil.data.catalog import find
from ocil.data.derived import is_derived, renamed_bases
from ocil.data.lookup import locate
from ocil.errors import OcilError
from ocil.experiments.estimate import Size
from ocil.experiments.files import Cell, KnownDataset
from ocil.runs.config import facts_of


def dataset_name(given: str, loaded: Dataset) -> str:
    """How a configuration names a dataset: a file by its absolute path, others by their name."""
    if is_derived(given):
        return renamed_bases(given, _known_name)
    return _known_name(given, loaded.name)


def _known_name(given: str, otherwise: str = "") -> str:
    path = Path(given).expanduser()
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        raise OcilError(f"the name of {given!r} is not text, so no result could hold it: rename the file.") from None
    if path.suffix.lower() == ".npz" or len(path.parts) > 1:
        return str(path.resolve())
    entry = find(given)
    return otherwise or (entry.name if entry else given)


class Datasets:
    """Finds the datasets of an experiment, each one once, and remembers which are missing."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self.data_dir = data_dir
        self.missing: dict[str, str] = {}
        """Why a dataset cannot be used, by its name."""
        self.sizes: dict[str, Size] = {}
        self._found: dict[str, KnownDataset] = {}

    def source(self, name: str) -> KnownDataset:
        """A dataset by any of its names, for ``ocil.experiments.files.read``."""
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> KnownDataset:
        entry = find(name)
        try:
            if entry is not None:
                self.sizes[entry.name] = Size.of(entry)
                if entry.name != DEFAULT:
                    locate(entry.name, self.data_dir)
                return KnownDataset(entry.name)
            loaded = self.load(name)
        except OcilError as error:
            known = entry.name if entry else name
            self.missing[known] = str(error)
            return KnownDataset(known)
        known = dataset_name(name, loaded)
        self.sizes[known] = Size.of(loaded)
        return KnownDataset(known, loaded.fingerprint, facts_of(loaded))

    def missing_from(self, cells: Iterable[Cell]) -> dict[str, str]:
        """The datasets that these cells use and that are not there, each with the reason."""
        used = {cell.config.dataset for cell in cells}
        return {name: reason for name, reason in self.missing.items() if name in used}

    def load(self, name: str) -> Dataset:
        return data.load(name, self.data_dir)
