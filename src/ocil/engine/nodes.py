"""Is a node of a cluster fit to work? It must share the folder of the runs, and have the same code and images."""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ocil.files import write_bytes

Facts = dict[str, Any]
Examine = Callable[[str | None, Sequence[str], str | None], Facts]


def examiner() -> Examine:
    """What every node is asked, and the driver too, for comparison.

    A function inside a function travels to the node as code, so it answers even where ocil is missing or another one.
    """

    def examine(marker: str | None, datasets: Sequence[str], data_dir: str | None) -> Facts:
        import hashlib
        from pathlib import Path

        facts: dict[str, Any] = {}
        if marker is not None:
            try:
                Path(marker).unlink()  # seen and removed: so it is the same folder, and can be written to
            except OSError as error:
                facts["folder"] = error.strerror
        try:
            import torch

            import ocil
            from ocil import data
        except ImportError as error:
            return facts | {"import": str(error)}
        package = Path(ocil.__file__).parent
        sha = hashlib.sha256()
        for path in sorted(package.rglob("*.py")):
            sha.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
        facts |= {"ocil": f"{ocil.__version__}, code {sha.hexdigest()[:8]}", "torch": torch.__version__}
        facts |= {"images": {}, "no images": {}}
        for name in datasets:
            try:
                loaded = data.load(name, None if data_dir is None else Path(data_dir))
                facts["images"][name] = loaded.fingerprint
            except ocil.OcilError as error:
                facts["no images"][name] = str(error)
        return facts

    return examine


def place_marker(root: Path) -> Path:
    """A file that a node must find, and removes."""
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
            "to write. Choose such a folder with --out."
        )
    for reason in theirs["no images"].values():
        return f"lacks a dataset: {reason} Or use a folder that all nodes share: --data-dir."
    for name, fingerprint in theirs["images"].items():
        if fingerprint != mine["images"].get(name, fingerprint):
            return f"has other images under the name {name} than this machine: copy the file, or share --data-dir."
    return None
