"""``ocil doctor``: what is installed, which device is used, which data there are, and how fast a step is."""

import os
import platform
import re
import sys
from pathlib import Path
from typing import Annotated, Any

from ocil.cli import console
from ocil.cli.options import FLAG, DataDir, Json

NOT_SHOWN = ("all", "track", "dev", "test", "docs")
"""Extras of ``pyproject.toml`` that are lists of others, or for work on ocil itself."""
BENCH_SECONDS = 1.0


def doctor(*, quick: Annotated[bool, FLAG] = False, data_dir: DataDir = None, as_json: Json = False) -> int:
    """Print what is installed, which device is used, which data there are, and how fast a training step is.

    Paste the output into a report of a problem. The exit code is 1 if something is broken, and the line says what.

    Examples: `ocil doctor`, `ocil doctor --quick --json`

    Parameters
    ----------
    quick
        Leave out the training step that is timed, which takes a few seconds.
    """
    found = {
        "versions": versions(),
        "device": devices(),
        "extras": extras(),
        "data": datasets(data_dir),
        "speed": {} if quick else speed(),
    }
    problems = [part["problem"] for part in found.values() if "problem" in part]
    if as_json:
        console.print_json(found | {"problems": problems})
    else:
        for title, part in found.items():
            if part:
                console.print_line(title.capitalize())
                console.print_pairs([(name, str(value)) for name, value in part.items() if name != "problem"])
        for problem in problems:
            console.error(problem)
    return 1 if problems else 0


def versions() -> dict[str, Any]:
    import numpy
    import torch

    import ocil

    found = {
        "ocil": f"{ocil.__version__}, in {Path(ocil.__file__).parent}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": platform.platform(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    if plugins := os.environ.get("OCIL_PLUGINS"):
        found["plugins"] = plugins
    return found


def devices() -> dict[str, Any]:
    """The device that ``--device auto`` picks, and all that there are."""
    import torch

    from ocil.devices import computes_correctly, pick_device
    from ocil.threads import cores

    found: dict[str, Any] = {"used": str(pick_device())}
    found["cpu"] = f"{platform.machine()}, {cores()} cores"
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            found[f"cuda:{number}"] = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB"
        if not _has("triton"):
            found["kernels"] = "Triton is not installed, so steps are slower: pip install triton"
    elif torch.version.cuda:
        found["cuda"] = f"this torch is built for CUDA {torch.version.cuda}, but no GPU can be used"
    if torch.backends.mps.is_available():
        right = computes_correctly("mps")
        found["mps"] = "an Apple GPU" + ("" if right else " that computes wrong results with this torch; not used")
    return found


def extras() -> dict[str, Any]:
    """Each extra of the package: the versions of what it needs, or the command that installs it."""
    from importlib import metadata  # slow to import, and help needs this module

    try:
        required = metadata.requires("ocil") or []
    except metadata.PackageNotFoundError:
        return {"problem": "ocil is not installed, only imported from a folder: pip install ocil"}
    packages: dict[str, list[str]] = {}
    for line in required:
        name, extra = re.match(r"[\w.-]+", line), re.search(r"extra == [\"'](\w+)[\"']", line)
        if name and extra and extra[1] not in NOT_SHOWN:
            packages.setdefault(extra[1], []).append(name[0])
    found = {}
    for extra_name, names in packages.items():
        there = {name: version for name in names if (version := _version(name))}
        missing = [name for name in names if name not in there]
        text = ", ".join(f"{name} {version}" for name, version in there.items())
        found[extra_name] = f"not installed: pip install 'ocil[{extra_name}]'" if missing else text
    return found


def datasets(data_dir: Path | None) -> dict[str, Any]:
    from ocil.data import available
    from ocil.data.places import data_dir as folder_of

    found: dict[str, Any] = {"folder": str(folder_of(data_dir))}
    for entry in available(data_dir):
        found[entry.name] = "ready" if entry.ready else f"{entry.state}: {entry.how}"
    return found


def speed() -> dict[str, Any]:
    """The time of a training step of ER, as ``ocil bench er`` measures it, and what a first run will take."""
    from ocil.data import CATALOG, DEFAULT
    from ocil.devices import pick_device
    from ocil.engines.bench import made_up, measure
    from ocil.runs.config import resolve
    from ocil.threads import using

    info = CATALOG[DEFAULT]
    try:
        with using(1):
            data = made_up(info.classes, info.image_shape, per_class=20)
            timing = measure([resolve("er", info.name)], data, pick_device(), seconds=BENCH_SECONDS)
    except Exception as error:
        return {"problem": f"a training step fails: {type(error).__name__}: {' '.join(str(error).split())}"}
    run = info.train / 10 * timing.ms_per_step / 1000
    return {
        "step of er": f"{timing.ms_per_step:.1f} ms, {timing.images_per_second:,.0f} images per second",
        "ocil run er --seeds 1": f"about {max(1, round(run))} s for the stream, on {timing.device}",
    }


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
