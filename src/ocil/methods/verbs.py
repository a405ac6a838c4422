"""What happens around the verbs of every learner, whoever calls them, so that a method's file holds its step alone.

- On a CPU a verb runs on as many threads as pay off for this network (see ``ocil.threads``).
- ``learn`` first refuses a batch that is empty or has not the form of the data, and labels that are no classes;
  ``scores`` refuses inputs of another form.
- ``learn`` then meets the classes of its batch, unless the caller announces them (see ``growth``): a class that was
  not met has no weights to learn.
- ``scorer`` sees the averaged network as ``self.network``, if there is one (the setting ``average``). With
  ``test_flip`` what it returns is called on each image and on its mirror image. Both compute without gradients and in
  evaluation mode: a batch normalisation that learned from test images would make results wrong without a word.

A run takes ``scores``, ``review`` and ``end_task`` apart, to stop or to capture steps in between: a method overrides
their parts, never the whole.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from ocil.errors import OcilError
from ocil.methods.config import Problem
from ocil.threads import default_if_free

if TYPE_CHECKING:
    from ocil.methods.base import Learner

WIDTH = 2  # the dimension of stored images [B, H, W, C]
_mirrors = ContextVar("_mirrors", default=False)
"""Whether a scorer is being made that will mirror: one that it inherits and calls must not do so again."""
Verb = TypeVar("Verb", bound=Callable[..., Any])
VERBS = ("learn", "scores", "review", "end_task")  # what a user calls; end_task calls task_ended
PARTS = {
    "scores": "`scorer`, which returns the function that scores",
    "review": "`review_loss`, `review_step` or `review_batches`",
    "end_task": "`task_ended`, `task_end_batches` or `task_end_step`",
}
"""What a method overrides in the place of a verb that a run does not call as a whole."""

FORMER_NAMES = {
    "rehearsal": "task_end_batches",
    "rehearsal_step": "task_end_step",
    "review_slots": "review_batches",
    "steady": "shapes_are_static",
    "form": "step_variant",
    "needs_images": "why_not_vectors",
    "needs_vectors": "why_not_images",
    "needs_task_ends": "why_task_ends",
}
"""What methods overrode in earlier versions, and its present name."""


def refuse_former_names(cls: "type[Learner]") -> None:
    """Raise an ``OcilError`` if a method overrides what only earlier versions called: it would have no effect."""
    for former, name in FORMER_NAMES.items():
        if callable(getattr(cls, former, None)):
            raise OcilError(
                f"{cls.__name__} has a method `{former}`, which has no effect any more: it is called `{name}`. "
                "Rename it."
            )


def refuse_whole_verbs(cls: "type[Learner]", base: "type[Learner]") -> None:
    """Raise an ``OcilError`` if a method overrides a verb that a run does not call: it would have no effect there."""
    for name, parts in PARTS.items():
        if getattr(cls, name) is not getattr(base, name):
            raise OcilError(f"{cls.__name__} overrides `{name}`, which runs do not call: override {parts}.")


def wrap_verbs(cls: "type[Learner]", base: bool = False) -> None:
    """Wrap the verbs that a class or a mixin of it defines. Those inherited from a learner are wrapped already.

    ``base``: whether the class is ``Learner`` itself, whose ``scorer`` does nothing but to score.
    """
    wrappers: dict[str, Callable[[Any], Any]] = dict.fromkeys(VERBS, on_default_threads) | {
        "learn": lambda learn: on_default_threads(meets_first(learn)),
        "scorer": scores_as_set if base else lambda scorer: scores_as_set(scores_alone(scorer)),
    }
    for name, wrap in wrappers.items():
        verb = getattr(cls, name)
        if not hasattr(verb, "wrapped"):
            setattr(cls, name, wrap(verb))
            getattr(cls, name).wrapped = True


def on_default_threads(verb: Verb) -> Verb:
    @wraps(verb)
    def scoped(self: "Learner", *arguments: Any, **named: Any) -> Any:
        if self.device.type != "cpu":
            return verb(self, *arguments, **named)
        with default_if_free(self.network.multiply_adds):
            return verb(self, *arguments, **named)

    return cast(Verb, scoped)


def meets_first(learn: Verb) -> Verb:
    @wraps(learn)
    def step(self: "Learner", x: Tensor, y: Tensor, *arguments: Any, **named: Any) -> Any:
        check_batch(self.problem, x, y)
        if self.met is not None and not self.classes_announced:
            self.meet(y.tolist())
        elif not self.classes_announced and y.device.type == "cpu":  # a GPU would have to be waited for
            check_labels(self.problem.classes, y)
        return learn(self, x, y, *arguments, **named)

    return cast(Verb, step)


def check_batch(problem: Problem, x: Any, y: Any) -> None:
    """Raise an ``OcilError`` if a batch is not as a learner takes it, before it has changed anything."""
    wanted = (("inputs", x, problem.dtype, problem.input_shape), ("labels", y, torch.int64, ()))
    for name, given, dtype, shape in wanted:
        _check_tensor(name, given, dtype, shape)
        if given.dtype != dtype:
            raise OcilError(_mismatch(name, given, dtype, shape))
    if len(x) != len(y):
        raise OcilError(f"{len(x)} inputs came with {len(y)} labels: give one label for each.")
    if not len(y):
        raise OcilError("a batch without samples has no loss: leave it out.")


def check_labels(classes: int, y: Tensor) -> None:
    """Raise an ``OcilError`` if labels on a CPU are not among the classes, which are known in advance."""
    labels = y.numpy()
    for label in (labels.min(), labels.max()):
        if not 0 <= label < classes:
            raise OcilError(
                f"label {label} is none of the {classes} classes, which count from 0: give their numbers, "
                "or growing=True if classes are not known in advance."
            )


def check_inputs(problem: Problem, x: Any) -> None:
    """Raise an ``OcilError`` if inputs have another shape than those that a learner was made for."""
    _check_tensor("inputs", x, problem.dtype, problem.input_shape)


def _check_tensor(name: str, given: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(given, Tensor):
        raise OcilError(f"{name} must be a tensor, not a {type(given).__name__}: torch.from_numpy makes one.")
    if given.shape[1:] != shape or not given.ndim:
        raise OcilError(_mismatch(name, given, dtype, shape))


def _mismatch(name: str, given: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    form = ", ".join(map(str, ("B", *shape)))
    return f"{name} must be {dtype} [{form}], not {given.dtype} {list(given.shape)}."


def scores_as_set(scorer: Verb) -> Verb:
    """``scorer`` sees the averaged network, with ``average``. With ``test_flip``, the function that it returns gives
    the mean of the scores of an image and of its mirror image."""

    @wraps(scorer)
    def scoring(self: "Learner") -> Callable[[Tensor], Tensor]:
        view = _averaged(self)
        if not self.config.test_flip or _mirrors.get():
            return cast(Callable[[Tensor], Tensor], scorer(view))
        token = _mirrors.set(True)
        try:
            plain = scorer(view)
        finally:
            _mirrors.reset(token)
        return lambda x: (plain(x) + plain(x.flip(WIDTH))) / 2

    return cast(Verb, scoring)


def scores_alone(scorer: Verb) -> Verb:
    """``scorer`` and what it returns compute in evaluation mode and without gradients."""

    @wraps(scorer)
    def scoring(self: "Learner") -> Callable[[Tensor], Tensor]:
        with _evaluating(self):
            plain: Callable[[Tensor], Tensor] = scorer(self)

        def scores(x: Tensor) -> Tensor:
            with _evaluating(self):
                return plain(x)

        return scores

    return cast(Verb, scoring)


@contextmanager
def _evaluating(learner: "Learner") -> Iterator[None]:
    """Inside the block there are no gradients, and no module trains. Afterwards each is in the mode that it was in."""
    before = {module: module.training for module in learner.modules() if module is not learner}
    training = [part for part in learner.children() if part.training]
    for part in training:
        part.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.train()
        for module, mode in before.items():
            if module.training != mode:
                module.training = mode


def _averaged(learner: "Learner") -> "Learner":
    """A view of the learner that has the averaged network, if there is one, in the place of the trained one.

    A view shares all else. It is no swap of weights: captured steps know the weights by their addresses, and in a
    service another thread may read the same learner.
    """
    if learner.average is None:
        return learner
    view = object.__new__(type(learner))
    view.__dict__ |= vars(learner)
    view._modules = {**learner._modules, "network": learner.average.network}
    return view
