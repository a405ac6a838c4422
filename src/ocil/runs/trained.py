"""The learner that a run has trained, from the run's folder."""

from pathlib import Path

import torch

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.methods.base import Learner
from ocil.networks.registry import names_code
from ocil.runs.build import build, named_dataset
from ocil.runs.config import RunConfig
from ocil.runs.folder import COUNTS, RunFolder
from ocil.runs.results import if_there, other_images, read_json, unreadable


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
        device: Where the learner is, and where images must be.
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
    folder = RunFolder(Path(run))
    config = _config_of(folder)
    if not trust and any(map(names_code, (config.learner.network, config.learner.features))):
        network = config.learner.network if names_code(config.learner.network) else config.learner.features
        raise OcilError(f"{folder.path} has Python code for a network, {network}. If you trust it, give trust=True.")
    if dataset is None:
        dataset = named_dataset(config, data_dir)
        found = folder.load_checkpoint()
        if found is not None and found[1].get("images", dataset.fingerprint) != dataset.fingerprint:
            raise OcilError(other_images(folder.path))
    return trained(folder, config, dataset, device)


def trained(folder: RunFolder, config: RunConfig, dataset: Dataset, device: torch.device | str = "cpu") -> Learner:
    """The learner of a run's configuration, with what its checkpoint holds."""
    found = folder.load_checkpoint()
    if found is None:
        raise OcilError(f"{folder.path} has no {folder.checkpoint.name}: there is no learner to load.")
    learner = build(config, dataset, device)
    tensors = {name: tensor for name, tensor in found[0].items() if not name.startswith(COUNTS)}
    try:
        learner.load_state(tensors, generators=False)  # they may be another device's
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise OcilError(unreadable(folder.checkpoint, error)) from error
    return learner


def _config_of(folder: RunFolder) -> RunConfig:
    path = folder.path / "config.json"
    config = if_there(path, lambda: RunConfig.from_json(read_json(path)))
    if config is None:
        inside = min(folder.path.glob("**/config.json"), default=None) if folder.path.is_dir() else None
        hint = "" if inside is None else f" Give one of its runs, for example {inside.parent}."
        raise OcilError(f"{folder.path} is not the folder of a run: it has no config.json.{hint}")
    return config
