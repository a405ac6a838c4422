"""Give folders of runs the names that this version of ocil gives them: ROOT/CELL/seed-N.

python tools/rename_runs.py ROOT... [--dry-run]

Runs in folders with former names are found as they are; this tool is for those who want uniform names. It moves nothing
if two runs would get the same folder, and a second call has nothing left to do.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ocil.errors import OcilError
from ocil.longtail.config import STAGE1, LongTailConfig, Stage1Config
from ocil.runs.config import RunConfig
from ocil.runs.folder import RunFolder
from ocil.runs.results import UNREADABLE


def cell_of(content: dict[str, Any]) -> str:
    """The name of a configuration's cell. A stage 1 has only the settings that it depends on."""
    if "variant" in content:
        return LongTailConfig.from_json(content).cell
    if set(content) <= set(STAGE1):
        return Stage1Config.from_json(content).cell
    return RunConfig.from_json(content).cell


def wanted(folder: Path) -> Path | None:
    """Where the folder of a run belongs. None: it holds no run, or one that cannot be read here."""
    for name, part in (("result.json", "config"), ("config.json", None)):
        try:
            content = json.loads((folder / name).read_bytes())
            return folder.parent.parent / cell_of(content[part] if part else content) / folder.name
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (*UNREADABLE, OcilError) as error:
            print(f"{folder} stays: {name} cannot be read here: {' '.join(str(error).split())[:200]}")
            return None
    return None


def plan(roots: list[Path]) -> dict[Path, Path]:
    """The folders to move, each with its new place. Exits with a message if two runs would get the same one."""
    moves: dict[Path, Path] = {}
    for root in roots:
        for folder in sorted(path for path in root.rglob("seed-*") if path.is_dir()):
            target = wanted(folder)
            if target is None or target == folder:
                continue
            if target.exists() or target in moves.values():
                raise SystemExit(f"{folder} and another run both belong to {target}: move one of them elsewhere.")
            moves[folder] = target
    return moves


def move(folder: Path, target: Path) -> None:
    unfinished = not (folder / "result.json").exists()
    with RunFolder(folder).lock() if unfinished else nullcontext():
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
    if not any(folder.parent.iterdir()):
        folder.parent.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("roots", type=Path, nargs="+")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    options = parser.parse_args()
    moves = plan(options.roots)
    for old, new in dict.fromkeys((folder.parent, target.parent) for folder, target in moves.items()):
        print(f"{old} -> {new.name}")
    if not options.dry_run:
        for folder, target in moves.items():
            move(folder, target)
    print(f"{len(moves)} runs {'would be' if options.dry_run else 'were'} moved")


if __name__ == "__main__":
    main()
