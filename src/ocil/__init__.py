"""Online class-incremental learning: learn to classify images from a stream seen once, while new classes arrive.

data = ocil.load_dataset()                      a dataset by name
stream = ocil.Stream(data, seed=0)              the order its images arrive in
learner = ocil.make_learner("afs", data)        a method by name; learn(x, y), scores(x), review()
evaluate = ocil.Evaluator(stream)               rows of the accuracy matrix
ocil.metrics, ocil.losses                       pure functions
ocil.resolve, ocil.run                          whole runs, with checkpoint and resume
ocil.OnlineClassifier                           a scikit-learn estimator for streams of your own (extra sklearn)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocil import environment
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil import losses, metrics
    from ocil.config import RunConfig, resolve
    from ocil.data import Dataset
    from ocil.data import load as load_dataset
    from ocil.evaluate import Evaluator
    from ocil.methods import METHODS
    from ocil.methods.base import Learner
    from ocil.online.classifier import OnlineClassifier as OnlineClassifier
    from ocil.results import Result
    from ocil.runner import make_learner, run
    from ocil.streams import Batch, Stream, StreamConfig

__version__ = "0.1.0"

environment.prepare()  # before torch is loaded, which all that follows does on first use only

_HOMES = {  # imported on first use, so that the command line answers --help without loading torch
    "Batch": "streams:Batch",
    "Dataset": "data:Dataset",
    "Evaluator": "evaluate:Evaluator",
    "Learner": "methods.base:Learner",
    "METHODS": "methods:METHODS",
    "Result": "results:Result",
    "RunConfig": "config:RunConfig",
    "Stream": "streams:Stream",
    "StreamConfig": "streams:StreamConfig",
    "load_dataset": "data:load",
    "losses": "losses:",
    "make_learner": "runner:make_learner",
    "metrics": "metrics:",
    "resolve": "config:resolve",
    "run": "runner:run",
}

_EXTRAS = {"OnlineClassifier": "online.classifier:OnlineClassifier"}  # not in __all__: it needs the extra sklearn

__all__ = [
    "METHODS",
    "Batch",
    "Dataset",
    "Evaluator",
    "Learner",
    "OcilError",
    "Result",
    "RunConfig",
    "Stream",
    "StreamConfig",
    "load_dataset",
    "losses",
    "make_learner",
    "metrics",
    "resolve",
    "run",
]


def __getattr__(name: str) -> Any:
    homes = _HOMES | _EXTRAS
    if name not in homes:
        raise AttributeError(f"module 'ocil' has no attribute '{name}'")
    module, _, attribute = homes[name].partition(":")
    home = import_module(f"ocil.{module}")
    value = getattr(home, attribute) if attribute else home
    globals()[name] = value
    return value
