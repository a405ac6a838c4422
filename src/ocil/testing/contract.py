"""A check: a promise in one sentence, and a function that finds out whether it is kept."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S")


class ContractError(AssertionError):
    """A promise is not kept. The message has the promise and what happened, in one line each."""


class Broken(AssertionError):  # noqa: N818  # caught by ``Check``; the user sees a ContractError
    """Raised by ``must``."""


@dataclass(frozen=True)
class Promise(Generic[S]):
    """What is expected of a subject ``S``, and how it is examined."""

    name: str
    text: str
    examine: Callable[[S], None]
    slow: bool
    applies: Callable[[S], bool]


@dataclass(frozen=True)
class Check(Generic[S]):
    """One promise of one method or network. Call it: it raises ``ContractError`` if the promise is not kept."""

    subject: S
    promise: Promise[S]

    @property
    def slow(self) -> bool:
        """Whether it may take more than a second."""
        return self.promise.slow

    def __str__(self) -> str:
        return self.promise.name

    def __call__(self) -> None:
        try:
            self.promise.examine(self.subject)
        except Broken as broken:
            raise self._error(str(broken)) from None
        except Exception as error:
            raise self._error(_one_line(error)) from error

    def _error(self, happened: str) -> ContractError:
        return ContractError(f"{self.subject}: {self.promise.name}: {self.promise.text} But: {happened[:400]}")


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


class Promises(Generic[S]):
    """The promises of a kind of subject, in the order in which they are examined. ``parts``: those to begin with."""

    def __init__(self, *parts: "Promises[S]") -> None:
        self.all: list[Promise[S]] = [promise for part in parts for promise in part.all]

    def __call__(
        self, text: str, *, slow: bool = False, applies: Callable[[S], bool] = lambda subject: True
    ) -> Callable[[Callable[[S], None]], Callable[[S], None]]:
        """A decorator: the function below examines the promise in ``text``, where it applies."""

        def add(examine: Callable[[S], None]) -> Callable[[S], None]:
            self.all.append(Promise(examine.__name__.replace("_", "-"), text, examine, slow, applies))
            return examine

        return add

    def checks(self, subject: S) -> list[Check[S]]:
        return [Check(subject, promise) for promise in self.all if promise.applies(subject)]


def must(holds: Any, happened: str) -> None:
    """Report what happened, unless it ``holds``."""
    if not holds:
        raise Broken(happened)


def run_all(checks: Sequence[Check[Any]] | Iterable[Check[Any]]) -> None:
    """Run all checks. Raises one ``ContractError`` with a line for each promise that is not kept.

    Checks that one and the same error stopped have one line together, with their names.
    """
    broken: dict[str, list[tuple[Check[Any], ContractError]]] = {}
    for check in checks:
        try:
            check()
        except ContractError as error:
            reason = str(error) if error.__cause__ is None else _one_line(error.__cause__)
            broken.setdefault(reason, []).append((check, error))
    if broken:
        lines = [_line(reason, *together) for reason, together in broken.items()]
        ((_, first), *_) = next(iter(broken.values()))
        raise ContractError("\n".join(lines)) from first


def _line(reason: str, first: tuple[Check[Any], ContractError], *others: tuple[Check[Any], ContractError]) -> str:
    """About checks that failed for one reason."""
    check, error = first
    if not others:
        return str(error)
    names = ", ".join(str(one) for one, _ in (first, *others))
    return f"{check.subject}: {reason.rstrip('.')}. This stopped {len(others) + 1} checks: {names}."
