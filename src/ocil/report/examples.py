"""``ocil report --examples``: training images of old classes by the score that runs give them."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ocil import data
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluation.evaluator import scores_of
from ocil.evaluation.record_types import EASY, HARD
from ocil.networks.registry import names_code
from ocil.precision import numerics
from ocil.report.cells import MeasuredColumn, memory_of
from ocil.report.collect import read
from ocil.report.drawings import Drawing, file_name
from ocil.report.plots import Example, examples
from ocil.report.style import render
from ocil.runs.config import RunConfig
from ocil.runs.features import Encoder, inputs_of, missing
from ocil.runs.folder import RunFolder
from ocil.runs.results import Result
from ocil.runs.trained import trained
from ocil.streams import Stream
from ocil.threads import using

SCORED = 500  # training images of which examples are chosen
ACROSS = 8

FolderAndResult = tuple[RunFolder, Result]


def example_images(paths: Sequence[Path], data_dir: Path | None) -> tuple[list[Drawing], list[str]]:
    """A figure for each stream that the runs learned from, and a warning for each run that is in none."""
    load = lru_cache(maxsize=1)(data.load)
    streams: dict[tuple[Any, ...], list[FolderAndResult]] = {}
    warnings = []
    for path in dict.fromkeys(paths):
        folder = RunFolder(path.parent if path.name == "result.json" else path)
        if not (folder.path / "result.json").is_file():
            raise OcilError(f"--examples {path}: there is no finished run (result.json) in that folder.{_inside(path)}")
        result = read(folder.path / "result.json")
        config = result.config
        if not folder.checkpoint.is_file():
            warnings.append(f"{folder.path} has no checkpoint.safetensors: no example images of it.")
        elif names_code(config.learner.network) or names_code(config.learner.features):
            warnings.append(f"{folder.path} names Python code for its network, which a report does not run.")
        elif not config.learner_class.scores_are_logits:
            warnings.append(
                f"{folder.path}: {config.method} distinguishes classes by distance, so no sample is hard or easy."
            )
        elif not result.same_images(load(config.dataset, data_dir)):
            warnings.append(f"{config.dataset} has changed since {folder.path} was run: no example images of it.")
        elif not load(config.dataset, data_dir).is_images:
            warnings.append(f"{folder.path} learned from vectors, which no figure shows: no example images of it.")
        elif (encoder := Encoder.of(config.learner)) and missing(load(config.dataset, data_dir), encoder, data_dir):
            warnings.append(f"the features that {folder.path} learned from are not there: no example images of it.")
        else:
            drawn = config.stream.class_order == "seeded" or config.stream.boundary == "si-blurry"
            order = config.seed if drawn else None
            streams.setdefault((config.dataset, config.stream, order), []).append((folder, result))
    return [_drawing(runs, load(runs[0][1].config.dataset, data_dir), data_dir) for runs in streams.values()], warnings


def _inside(path: Path) -> str:
    """A hint which folder may have been meant: that of a cell holds its runs."""
    first = min(path.rglob("result.json"), default=None)
    return "" if first is None else f" Give one of its runs, for example {first.parent}"


def _drawing(runs: Sequence[FolderAndResult], dataset: Dataset, data_dir: Path | None) -> Drawing:
    """One figure. The last run's scores decide the kind of a sample; the scores of all runs are written above it."""
    configs = [result.config for _, result in runs]
    chosen = _old_images(configs[-1], dataset)
    scores = [
        _scores(folder, result.config, inputs_of(result.config.learner, dataset, data_dir), chosen)
        for folder, result in runs
    ]
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
    where = MeasuredColumn(last.dataset, memory_of(last)).title
    return Drawing(
        file_name(f"examples-{last.cell}-{last.seed}"),
        f"Hard, ambiguous and easy samples: {' and '.join(names)}, {where}, seed {last.seed}",
        "Training images of the task before the last, after the last was learned, from low to high score of their true "
        "class (above each image; its class below). Of several runs the last decides of what kind a sample is.",
        render(examples, groups),
        examples,
        (groups,),
        photos=True,
    )


def _names(configs: Sequence[RunConfig]) -> list[str]:
    """Names of the runs, as short as they can be and still differ."""
    ways = (
        [config.label for config in configs],
        [f"{config.label} m{config.learner.memory}" for config in configs],
        [f"{config.label}, seed {config.seed}" for config in configs],
        [f"{config.label} m{config.learner.memory}, seed {config.seed}" for config in configs],
    )
    numbered = [f"{number} {config.label}" for number, config in enumerate(configs, 1)]
    return next((names for names in ways if len({*names}) == len(names)), numbered)


def _old_images(config: RunConfig, dataset: Dataset) -> NDArray[np.int64]:
    """Training images of the task before the last one; of all classes, if there is only one or tasks are domains."""
    stream = Stream(dataset, config.stream, config.seed)
    classes = stream.new_classes(max(0, stream.evaluation_points - 2)) or range(dataset.num_classes)
    found = np.flatnonzero(np.isin(dataset.train_y, classes))
    some: NDArray[np.int64] = found[np.linspace(0, len(found) - 1, min(SCORED, len(found))).astype(int)]
    return some


def _scores(folder: RunFolder, config: RunConfig, dataset: Dataset, chosen: NDArray[np.int64]) -> NDArray[np.float32]:
    """The scores of the true classes by the run's final learner."""
    with numerics(config.learner.precision), using(1), torch.no_grad():
        learner = trained(folder, config, dataset)
        x, y = torch.from_numpy(dataset.train_x[chosen]), torch.from_numpy(dataset.train_y[chosen])
        found: NDArray[np.float32] = scores_of(learner.scorer(), x).softmax(1).gather(1, y[:, None])[:, 0].numpy()
    return found
