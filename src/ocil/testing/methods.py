"""What every method promises. docs/adding-a-method.md explains the reasons."""

from typing import Any

from ocil.methods import MethodInfo
from ocil.methods.base import Learner
from ocil.testing import method_state, method_steps
from ocil.testing.contract import Check, Promises, run_all
from ocil.testing.subject import MethodSubject

promise: Promises[MethodSubject] = Promises(method_steps.promise, method_state.promise)


def method_checks(target: type[Learner] | MethodInfo | str, **settings: Any) -> list[Check[MethodSubject]]:
    """The checks of a method, given as a class, a ``MethodInfo`` or a registered name.

    A class that keeps no memory, needs task ends or cannot be captured must come in a ``MethodInfo`` that says so.
    ``settings`` are fields of the method's config: they replace the tiny values that the checks use. The network has a
    width of 2, the memory holds 12 images, 8 are replayed in a step, and the optimiser is SGD.
    """
    return promise.checks(MethodSubject.of(target, settings))


def check_method(target: type[Learner] | MethodInfo | str, **settings: Any) -> None:
    """Run all ``method_checks``. Raises ``ContractError`` with one line for each promise that is not kept.

    An error that stops several checks has one line, which names them.
    """
    run_all(method_checks(target, **settings))
