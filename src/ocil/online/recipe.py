"""What a model is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ocil.errors import OcilError
from ocil.methods import MethodInfo, method
from ocil.methods.config import LearnerConfig
from ocil.networks.registry import spec_of
from ocil.online.header import refuse_unfit
from ocil.online.inputs import InputError
from ocil.rng import check_seed
from ocil.runs.config import resolve_named
from ocil.runs.settings import refuse_unknown
from ocil.streams import StreamConfig

OWN = {"memory", "batch_size", "review_every", "seed"}  # settings that have a place of their own in a recipe


@dataclass(frozen=True)
class Recipe:
    """What a model is made of. Equal recipes that learn equal samples become equal models, bit for bit on a CPU."""

    method: str = "afs"
    memory: int = 1000
    batch_size: int = 10
    width: int = 20
    review_every: int | None = None
    """Batches between two reviews or, for a method that needs task ends, two task ends; 0: neither. None: 500 for
    methods that review or need task ends, 0 for others. A run has ``LearnerConfig.review_every`` instead, whose 0 means
    at task ends."""
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, vectors: bool = False) -> LearnerConfig:
        """Every setting of the learner, complete and checked. ``vectors``: whether it is to learn from vectors."""
        info = method(self.method)
        if info.offline:
            raise OcilError(f"{info.name} sees the data mixed and many times: it cannot learn from a stream.")
        check_seed(self.seed)
        _refuse_misplaced(info, self.settings)
        given = dict(self.settings)
        if "network" in given:
            given["network"] = spec_of(given["network"])
        if info.memory:
            given["memory"] = self.memory
        given |= {name: value for name, value in self._defaults(info).items() if given.get(name) is None}
        given["batch_size"] = self.batch_size
        config = resolve_named(info.name, "stream", 0, given, vectors=vectors).learner
        _refuse_unusable(info, config, vectors)
        return config

    def _defaults(self, info: MethodInfo) -> dict[str, Any]:
        """Settings of a model where a run of the method has others."""
        found: dict[str, Any] = {"growing": True}
        if self.width != Recipe.width:  # the default is also the default of the one network that has a width
            found["width"] = self.width
        if info.memory:
            # A memory that is smaller than the method's usual draw from it, or a review's, is drawn from in full.
            default = info.learner_class.Config()
            for name in ("memory_batch", "review_batch"):
                if value := getattr(default, name):  # 0: the method finds its own
                    found[name] = max(1, min(value, self.memory))
        return found


def _refuse_misplaced(info: MethodInfo, given: Mapping[str, Any]) -> None:
    """Raise if a setting was given that has its own place in a recipe, is one of streams, or does not exist."""
    if taken := given.keys() & OWN:
        option = min(taken).replace("_", "-")
        raise OcilError(f"give {min(taken)} by its own name, not among the settings (--{option} N).")
    own = {one.name for one in fields(info.learner_class.Config)}
    of_streams = {one.name for one in fields(StreamConfig)} - own
    if idle := given.keys() & of_streams:
        raise OcilError(
            f"{min(idle)} is a setting of a benchmark's stream, a model learns what it is given: leave it out."
        )
    refuse_unknown(info.name, given, own | OWN)


def _refuse_unusable(info: MethodInfo, config: LearnerConfig, vectors: bool) -> None:
    """Raise if a model cannot learn with these settings, though a run may."""
    refuse_unfit(config)
    info.learner_class.check_scoring(config, vectors)
    if config.pretrained and info.learner_class.restarts:
        raise OcilError(
            f"{info.name} begins anew with the pretrained weights at each task end, and a model does not keep "
            "them: leave out pretrained, or choose another method."
        )
    if vectors and (reason := info.learner_class.why_not_vectors(config)):
        raise InputError(f"{info.name} cannot learn from vectors: {reason}.")
