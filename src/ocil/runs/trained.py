"""The learner that a run has trained, from the run's folder."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ocil.data import Dataset
from ocil.data.dataset import require_dataset
from ocil.devices import pick_device
from ocil.errors import LaterVersionError, OcilError
from ocil.methods import METHODS
from ocil.methods.base import Learner
from ocil.networks.registry import names_code
from ocil.runs.build import build, named_dataset
from ocil.runs.config import RunConfig
from ocil.runs.folder import COUNTS, RunFolder, State, is_folder
from ocil.runs.results import if_there, read_json, reason_of
from ocil.streams.stream import fingerprint_with


def load_learner(
    run: Path | str,
    dataset: Dataset | None = None,
    *,
    device: torch.device | str = "cpu",
    data_dir: Path | str | None = None,
    trust: bool = False,
) -> Learner:
    """The learner of a run as it was last saved: after the whole stream, if the run is finished.

    It predicts, and can learn on; the run's folder stays as it is. Random numbers begin anew.

    Args:
        run: The folder of one run, ``ROOT/CELL/seed-N``.
        dataset: What the run learned from, if it has no name. It is asked for its shapes and classes only.
        device: Where the learner is, and where images must be: auto, cpu, cuda or mps.
        data_dir: The data folder; by default ``$OCIL_DATA``, else the user's.
        trust: Whether the run may name Python code as its network (``module:...``), which is then run.

    Raises:
        OcilError: There is no such run, it cannot be read, or its dataset has changed.

    Examples:
        >>> result = ocil.run(ocil.resolve("fine-tune", settings={"width": 1}), "runs", device="cpu")
        >>> learner = ocil.load_learner(f"runs/{result.config.cell}/seed-0")
        >>> batch = next(iter(ocil.Stream(ocil.load_dataset())))
        >>> tuple(learner.scores(batch.x).shape)
        (10, 10)
    """
    if not isinstance(run, str | PathLike):
        raise OcilError(f"a {type(run).__name__} is not the folder of a run: give OUT/CELL/seed-N.")
    folder = RunFolder(Path(run))
    config = _config_of(folder)
    device = pick_device(device)
    if not trust and any(map(names_code, (config.learner.network, config.learner.features))):
        network = config.learner.network if names_code(config.learner.network) else config.learner.features
        raise OcilError(f"{folder.path} has Python code for a network, {network}. If you trust it, give trust=True.")
    if dataset is not None:
        require_dataset(dataset)
        return trained(folder, config, dataset, device)
    dataset = named_dataset(config, data_dir, "give it to ocil.load_learner too (dataset=...)")
    tensors, progress = _checkpoint_of(folder)
    _refuse_other_images(folder, progress, dataset)
    return _restored(folder, tensors, config, dataset, device)


def trained(folder: RunFolder, config: RunConfig, dataset: Dataset, device: torch.device | str = "cpu") -> Learner:
    """The learner of a run's configuration, with what its checkpoint holds."""
    tensors, _ = _checkpoint_of(folder)
    return _restored(folder, tensors, config, dataset, device)


def _checkpoint_of(folder: RunFolder) -> tuple[State, dict[str, Any]]:
    found = folder.load_checkpoint()
    if found is None:
        raise OcilError(f"{folder.path} has no {folder.checkpoint.name}: there is no learner to load.")
    return found


def _restored(
    folder: RunFolder, state: State, config: RunConfig, dataset: Dataset, device: torch.device | str
) -> Learner:
    """A learner in the state that a run has saved."""
    if not config.learner_class.restarts:  # the checkpoint has all weights; the file may have been moved since
        config = replace(config, learner=replace(config.learner, pretrained=""))
    learner = build(config, dataset, device)
    tensors = {name: tensor for name, tensor in state.items() if not name.startswith(COUNTS)}
    try:
        learner.load_state(tensors, generators=False)  # they may be another device's
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise OcilError(
            f"{folder.checkpoint} does not fit the settings in config.json, or the dataset is not the one that the run "
            f"learned from: {reason_of(error)}."
        ) from error
    return learner


def _refuse_other_images(folder: RunFolder, progress: Mapping[str, Any], dataset: Dataset) -> None:
    """Raise if a run did not learn from this dataset, neither in an order that was drawn nor in one that was given."""
    own_order = fingerprint_with(dataset, str(progress.get("order", "")))
    if progress.get("images", dataset.fingerprint) not in (dataset.fingerprint, own_order):
        raise OcilError(
            f"{folder.path} was begun with other images of that name, or with batches of your own: give their dataset "
            "(dataset=...)."
        )


def _config_of(folder: RunFolder) -> RunConfig:
    path = folder.path / "config.json"
    config = if_there(path, lambda: _read_config(path), _unreadable)
    if config is None:
        if not is_folder(folder.path):
            name = "result.config.cell and the seed name it, such as er-m200-0123abcd/seed-0"
            raise OcilError(f"there is no folder {folder.path}: {name}.")
        inside = min(folder.path.glob("**/config.json"), default=None)
        hint = "" if inside is None else f" Give one of its runs, for example {inside.parent}."
        raise OcilError(f"{folder.path} is not the folder of a run: it has no config.json.{hint}")
    return config


def _read_config(path: Path) -> RunConfig:
    content = read_json(path)
    if not isinstance(content, dict) or "method" not in content:
        raise OcilError("it is not the configuration of a class-incremental run, which has a method")
    if METHODS.find(str(content["method"])) is None:
        how = "register it first (ocil.register, ocil.plugins.load)"
        raise OcilError(f"there is no method '{content['method']}' here; if it is one of your own, {how}")
    return RunConfig.from_json(content)


def _unreadable(path: Path, error: Exception) -> str:
    """What is wrong with a configuration. Nobody is told to delete it: its learner took time to train."""
    advice = " Update ocil." if isinstance(error, LaterVersionError) else ""
    return f"cannot read {path}: {reason_of(error)}.{advice}"
