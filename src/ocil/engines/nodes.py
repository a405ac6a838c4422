"""Whether a node of a cluster can work: it must share the folder of the runs and have the same code and images."""

import pickle
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypedDict

from ocil import plugins
from ocil.files import write_bytes
from ocil.runs.protocol import Run

Facts = TypedDict(
    "Facts",
    {
        "folder": str | None,  # why the folder of the runs cannot be used
        "import": str,  # why ocil cannot be imported
        "ocil": str,
        "torch": str,
        "images": dict[str, str],  # fingerprints by dataset
        "no images": dict[str, str],  # why a dataset is missing
    },
    total=False,
)
"""What a node reports about itself. What does not apply is left out."""
Examine = Callable[[str | None, bytes, str | None], Facts]


def examiner() -> Examine:
    """The function that every node runs, and the driver too, for comparison.

    Ray sends a nested function as code, so it runs even on a node where ocil is missing or of another version.
    ``questions``: see ``pickled_questions``. PyTorch, which takes seconds to load, is left to the workers.
    """

    # ``Facts`` in quotes: the name itself would go along, and a node could not find it without ocil.
    def examine(marker: str | None, questions: bytes, data_dir: str | None) -> "Facts":
        import hashlib
        import pickle
        from importlib.metadata import version
        from pathlib import Path

        facts: Facts = {}
        if marker is not None:
            try:
                Path(marker).unlink()  # if that works, it is the same folder and can be written to
            except OSError as error:
                facts["folder"] = error.strerror
        try:
            import ocil

            facts["torch"] = version("torch")
        except ImportError as error:
            facts["import"] = str(error)
            return facts
        package = Path(ocil.__file__).parent
        sha = hashlib.sha256()
        for path in sorted(package.rglob("*.py")):
            sha.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
        facts["ocil"] = f"{ocil.__version__}, code {sha.hexdigest()[:8]}"
        facts["images"], facts["no images"] = {}, {}
        try:
            from ocil import plugins

            files, pickled = pickle.loads(questions)  # noqa: S301  # the driver sent it with this function
            plugins.install(files)
            fingerprints = pickle.loads(pickled)  # noqa: S301
        except Exception as error:  # the node has another ocil, which ``unfit`` reports first
            facts["no images"] = {"": f"{error}."}
            return facts
        for name, fingerprint in fingerprints.items():
            try:
                facts["images"][name] = fingerprint(None if data_dir is None else Path(data_dir))
            except ocil.OcilError as error:
                facts["no images"][name] = str(error)
        return facts

    return examine


def pickled_questions(runs: Iterable[Run]) -> bytes:
    """For ``examiner``: the plugin files, and by dataset the function that finds the fingerprint of its images, which
    cannot be unpickled without them."""
    found = {run.dataset: run.fingerprint_there() for run in runs}
    return pickle.dumps((plugins.loaded(), pickle.dumps(found)))


def place_marker(root: Path) -> Path:
    """Write a file that a node must find and remove."""
    marker = root / f".node-{uuid.uuid4().hex[:12]}"
    write_bytes(marker, b"")
    return marker


def unfit(theirs: Facts, mine: Facts, root: Path, torch_version: str | None) -> str | None:
    """Why a node cannot work, and what to do; None if it can. ``torch_version`` is that of the other nodes."""
    if "import" in theirs:
        return f"cannot load ocil ({theirs['import']}): install it there, the version that is here."
    if theirs["ocil"] != mine["ocil"]:
        return f"has another ocil ({theirs['ocil']}) than this machine ({mine['ocil']}): install the same on all."
    if torch_version is not None and theirs["torch"] != torch_version:
        return f"has PyTorch {theirs['torch']}, other nodes have {torch_version}: install the same on all."
    if "folder" in theirs:
        return (
            f"cannot work in {root} ({theirs['folder']}): runs live there, so all nodes must share it and be allowed "
            "to write. Choose such a folder (--out)."
        )
    for reason in theirs["no images"].values():
        return f"lacks a dataset: {reason} Or use a data folder that all nodes share (--data-dir)."
    for name, fingerprint in theirs["images"].items():
        if fingerprint != mine["images"].get(name, fingerprint):
            return (
                f"has other images under the name {name} than this machine: copy the file, or share the data folder "
                "(--data-dir)."
            )
    return None
