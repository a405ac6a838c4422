"""``ocil report --examples``: images of old classes by the score that runs give them, as the paper's figure of them."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ocil import data
from ocil.config import RunConfig
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluate import EASY, HARD, scores_of
from ocil.methods import method
from ocil.precision import numerics
from ocil.report.collect import memory_of, read, title_of
from ocil.report.drawings import Example
from ocil.report.gallery import Drawing, examples
from ocil.results import Result, RunFolder, unreadable
from ocil.runner import build
from ocil.streams import Stream
from ocil.threads import using

SCORED = 500  # training images of which examples are chosen
ACROSS = 8

Run = tuple[RunFolder, Result]


def example_images(paths: Sequence[Path], data_dir: Path | None) -> tuple[list[Drawing], list[str]]:
    """A figure for each stream that the runs learned from, and a line for each run that is in none."""
    load = lru_cache(maxsize=1)(data.load)
    streams: dict[tuple[Any, ...], list[Run]] = {}
    warnings = []
    for path in dict.fromkeys(paths):
        folder = RunFolder(path.parent if path.name == "result.json" else path)
        if not (folder.path / "result.json").is_file():
            raise OcilError(f"--examples {path}: there is no finished run (result.json) in that folder.{_inside(path)}")
        result = read(folder.path / "result.json")
        config = result.config
        if not folder.checkpoint.is_file():
            warnings.append(f"{folder.path} has no checkpoint.safetensors: no example images of it.")
        elif not method(config.method).load().scores_are_logits:
            warnings.append(f"{folder.path}: {config.method} tells classes by distance, so no sample is hard or easy.")
        elif not result.same_images(load(config.dataset, data_dir)):
            warnings.append(f"{config.dataset} has changed since {folder.path} was run: no example images of it.")
        else:
            order = config.seed if config.stream.class_order == "seeded" else None
            streams.setdefault((config.dataset, config.stream, order), []).append((folder, result))
    return [_drawing(runs, load(runs[0][1].config.dataset, data_dir)) for runs in streams.values()], warnings


def _inside(path: Path) -> str:
    """Which folder may have been meant: a cell's holds its runs."""
    first = min(path.rglob("result.json"), default=None)
    return "" if first is None else f" Give one of its runs, for example {first.parent}"


def _drawing(runs: Sequence[Run], dataset: Dataset) -> Drawing:
    """The last run's scores decide of what kind a sample is; every run's are written above it."""
    configs = [result.config for _, result in runs]
    chosen = _old_images(configs[-1], dataset)
    scores = [_scores(folder, result.config, dataset, chosen) for folder, result in runs]
    names = _names(configs)
    kinds = {
        f"hard\n(below {HARD:g})": scores[-1] < HARD,
        "ambiguous": (scores[-1] >= HARD) & (scores[-1] <= EASY),
        f"easy\n(above {EASY:g})": scores[-1] > EASY,
    }
    groups = {}
    for kind, of_kind in kinds.items():
        order = np.flatnonzero(of_kind)[np.argsort(scores[-1][of_kind], kind="stable")]
        few = order[np.linspace(0, len(order) - 1, min(ACROSS, len(order))).astype(int)]
        groups[kind] = [
            Example(
                dataset.train_x[chosen[i]],
                {name: float(values[i]) for name, values in zip(names, scores, strict=True)},
                dataset.classes[dataset.train_y[chosen[i]]],
            )
            for i in few
        ]
    last = configs[-1]
    memory = f", memory {memory_of(last)}" if memory_of(last) else ""
    place = f"{' and '.join(names)}, {title_of(last.dataset)}{memory}, seed {last.seed}"
    return examples(f"{last.cell}-{last.seed}", place, groups)


def _names(configs: Sequence[RunConfig]) -> list[str]:
    """As short as they may be and still differ."""
    ways = (
        [config.label for config in configs],
        [f"{config.label} m{config.learner.memory}" for config in configs],
        [f"{config.label}, seed {config.seed}" for config in configs],
        [f"{config.label} m{config.learner.memory}, seed {config.seed}" for config in configs],
    )
    numbered = [f"{number} {config.label}" for number, config in enumerate(configs, 1)]
    return next((names for names in ways if len({*names}) == len(names)), numbered)


def _old_images(config: RunConfig, dataset: Dataset) -> NDArray[np.int64]:
    """Training images of the task before the last one; of all classes, if there is only one."""
    stream = Stream(dataset, config.stream, config.seed)
    classes = stream.new_classes(max(0, stream.checkpoints - 2))
    found = np.flatnonzero(np.isin(dataset.train_y, classes))
    some: NDArray[np.int64] = found[np.linspace(0, len(found) - 1, min(SCORED, len(found))).astype(int)]
    return some


def _scores(folder: RunFolder, config: RunConfig, dataset: Dataset, chosen: NDArray[np.int64]) -> NDArray[np.float32]:
    """Of the true class, as the run's final learner has it."""
    state = folder.load_checkpoint()
    if state is None:
        raise OcilError(f"{folder.checkpoint} has gone.")
    with numerics(config.learner.precision), using(1), torch.no_grad():
        learner = build(config, dataset)
        try:
            learner.load_state(state[0], generators=False)  # they may be another device's, and scores need none
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise OcilError(unreadable(folder.checkpoint, error)) from error
        x, y = torch.from_numpy(dataset.train_x[chosen]), torch.from_numpy(dataset.train_y[chosen])
        found: NDArray[np.float32] = scores_of(learner.scorer(), x).softmax(1).gather(1, y[:, None])[:, 0].numpy()
    return found
