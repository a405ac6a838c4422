"""Online class-incremental learning: learn to classify images from a stream seen once, while new classes arrive.

data = ocil.load_dataset()                  a dataset by name
stream = ocil.Stream(data, seed=0)          the order in which its images arrive
learner = ocil.make_learner("afs", data)    a method by name: learn(x, y), scores(x), review(), end_task()
evaluate = ocil.Evaluator(stream)           rows of the accuracy matrix
ocil.metrics, ocil.losses                   measures and losses as pure functions
ocil.METHODS                                all methods by name
ocil.resolve, ocil.run                      whole runs, with checkpoints and resume
ocil.load_learner, ocil.load_results        the learner that a run has trained, the results of runs
ocil.run_many, ocil.summarise, ocil.tune    many runs, their table and plot, a search for settings
ocil.register, ocil.plugins                 methods, networks, datasets and measures of your own
ocil.testing                                checks of what is expected from a method or a network
ocil.OnlineClassifier                       a scikit-learn estimator for your own stream (extra sklearn)

``__all__`` is the public API. docs/api.md has what is promised about it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocil import variables
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil import plugins, testing
    from ocil.api import Comparison, load_results, register, run_many, summarise, tune
    from ocil.data import Dataset, DatasetInfo, DatasetSource
    from ocil.data import load as load_dataset
    from ocil.evaluation import measures as metrics
    from ocil.evaluation.evaluator import Evaluator
    from ocil.evaluation.measures import Measure
    from ocil.learning import losses
    from ocil.methods import METHODS, MethodInfo
    from ocil.methods.base import Learner
    from ocil.methods.config import LearnerConfig
    from ocil.networks import NetworkInfo
    from ocil.online.classifier import OnlineClassifier as OnlineClassifier
    from ocil.runs.build import make_learner
    from ocil.runs.config import RunConfig, resolve
    from ocil.runs.results import Result
    from ocil.runs.stream_run import run
    from ocil.runs.trained import load_learner
    from ocil.streams import Batch, Stream, StreamConfig

__version__ = "0.3.0"

variables.prepare()  # before torch is loaded, which the names below do on first use

_HOMES = {  # imported on first use, so that the command line answers --help without loading torch
    "Batch": "streams:Batch",
    "Comparison": "api:Comparison",
    "Dataset": "data:Dataset",
    "DatasetInfo": "data:DatasetInfo",
    "DatasetSource": "data:DatasetSource",
    "Evaluator": "evaluation.evaluator:Evaluator",
    "Learner": "methods.base:Learner",
    "LearnerConfig": "methods.config:LearnerConfig",
    "METHODS": "methods:METHODS",
    "Measure": "evaluation.measures:Measure",
    "MethodInfo": "methods:MethodInfo",
    "NetworkInfo": "networks:NetworkInfo",
    "Result": "runs.results:Result",
    "RunConfig": "runs.config:RunConfig",
    "Stream": "streams:Stream",
    "StreamConfig": "streams:StreamConfig",
    "load_dataset": "data:load",
    "load_learner": "runs.trained:load_learner",
    "load_results": "api:load_results",
    "losses": "learning.losses:",
    "make_learner": "runs.build:make_learner",
    "metrics": "evaluation.measures:",
    "plugins": "plugins:",
    "register": "api:register",
    "resolve": "runs.config:resolve",
    "run": "runs.stream_run:run",
    "run_many": "api:run_many",
    "summarise": "api:summarise",
    "testing": "testing:",
    "tune": "api:tune",
}

_EXTRAS = {"OnlineClassifier": "online.classifier:OnlineClassifier"}  # not in __all__: it needs the extra sklearn

__all__ = [
    "METHODS",
    "Batch",
    "Comparison",
    "Dataset",
    "DatasetInfo",
    "DatasetSource",
    "Evaluator",
    "Learner",
    "LearnerConfig",
    "Measure",
    "MethodInfo",
    "NetworkInfo",
    "OcilError",
    "Result",
    "RunConfig",
    "Stream",
    "StreamConfig",
    "load_dataset",
    "load_learner",
    "load_results",
    "losses",
    "make_learner",
    "metrics",
    "plugins",
    "register",
    "resolve",
    "run",
    "run_many",
    "summarise",
    "testing",
    "tune",
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
