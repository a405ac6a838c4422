"""Names that the shell completes: methods, networks, datasets and experiments. Nothing here loads torch."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cyclopts import Parameter


def _completed(names: Callable[[], Iterable[str]]) -> Parameter:
    def complete(context: Any) -> list[str]:
        return [name for name in names() if name.startswith(context.incomplete)]

    return Parameter(completer=complete)


def _methods() -> Iterable[str]:
    from ocil.methods import METHODS

    return METHODS


def _datasets() -> Iterable[str]:
    from ocil.data import available

    return (entry.name for entry in available(None))


def _networks() -> Iterable[str]:
    return ("reduced-resnet18", "resnet18", "mlp", "linear", "timm:", "module:")


def experiments() -> list[str]:
    """The experiments that come with ocil."""
    return sorted(path.stem for path in (Path(__file__).parents[1] / "experiments" / "shipped").glob("*.toml"))


METHOD = _completed(_methods)
DATASET = _completed(_datasets)
NETWORK = _completed(_networks)
EXPERIMENT = _completed(experiments)
DEVICE = _completed(lambda: ("auto", "cpu", "cuda", "mps"))
TRACKER = _completed(lambda: ("tensorboard", "wandb", "mlflow", "trackio"))
