"""Which tests may be skipped, and the list at the end of a run of those that were. A plugin of pytest.

OCIL_NO_SKIP names what must be there, by commas: ``packages``, those of the extra ``test``; ``browser``, a Chromium.
"""

import importlib.metadata
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
KINDS = ("packages", "browser")


def must_run(kind: str) -> bool:
    return kind in os.environ.get("OCIL_NO_SKIP", "").split(",")


def packages_of(extra: str) -> Iterator[str]:
    """The names of what an extra installs on this machine, those of the extras that it includes among them."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    for requirement in map(Requirement, extras[extra]):
        if requirement.name == "ocil":
            for included in sorted(requirement.extras):
                yield from packages_of(included)
        elif requirement.marker is None or requirement.marker.evaluate():
            yield requirement.name


def is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def pytest_configure() -> None:
    """Where everything is installed on purpose, a test that would be skipped for want of a package is a failure."""
    for kind in filter(None, os.environ.get("OCIL_NO_SKIP", "").split(",")):
        if kind not in KINDS:
            raise pytest.UsageError(f"OCIL_NO_SKIP names {kind!r}: use {' or '.join(KINDS)}")
    missing = [name for name in packages_of("test") if not is_installed(name)] if must_run("packages") else []
    if missing:
        raise pytest.UsageError(f"OCIL_NO_SKIP=packages, but {', '.join(missing)} is not installed: run make test")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if any(not mark.kwargs.get("optional") for mark in item.iter_markers("gpu")):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """``-m gpu`` imports only files that have such tests: others may need packages that the machine of a GPU lacks."""
    if config.option.markexpr != "gpu" or collection_path.suffix != ".py":
        return None
    return "mark.gpu" not in collection_path.read_text() or None


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test or a whole file was skipped."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    return re.sub(r"could not import '(\w+)'.*", r"\1 is not installed: make test installs it", reason)


def summary_of(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """One line per reason, the most frequent first. A file that is skipped whole counts as one."""
    counts = Counter(
        (reason_of(report), "file" if isinstance(report, pytest.CollectReport) else "test") for report in reports
    )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:4d} {what}{'s' if count > 1 else ' '}  {reason}" for (reason, what), count in ordered]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lines := summary_of(terminalreporter.stats.get("skipped", [])):
        terminalreporter.section("skipped, and why")
        for line in lines:
            terminalreporter.line(line)
