"""Put the runs of a benchmark's JSON where ``ocil report`` finds them: FOLDER/CELL/seed-N/result.json.

python tools/take_runs.py OUT.json results [--side-by-side N]

N: how many runs shared the GPU. It is kept with each run, since their times do not hold for a run alone. A run that is
there already stays as it is. If that one had other images, as another split of Mini-ImageNet has, nothing is taken; the
oldest runs do not know theirs.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ocil.longtail.results import LongTailResult
from ocil.runs.naming import seed_folder
from ocil.runs.results import Result, read_json, sealed, write_json


def read(content: Mapping[str, Any]) -> Result | LongTailResult:
    """The result, checked: one that was damaged on its way raises."""
    return LongTailResult.from_json(content) if "variant" in content["config"] else Result.from_json(content)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side-by-side", type=int)
    options = parser.parse_args()
    runs = json.loads(options.source.read_text())["runs"]
    new, unknown = {}, []
    for content in runs:
        result = read(content)
        path = options.folder / result.config.cell / seed_folder(result.config.seed) / "result.json"
        if not path.exists():
            new[path] = content
            continue
        there = read(read_json(path))
        if there.images and result.images:
            if there.images != result.images:
                raise SystemExit(f"{path} had other images: take these runs into another folder")
        elif there.digest != result.digest:
            unknown.append(path)
    for path, content in new.items():
        if options.side_by_side:
            content["environment"]["side_by_side"] = options.side_by_side
        write_json(path, sealed(content))
    print(f"{len(new)} of {len(runs)} runs are new")
    if unknown:
        print(f"{len(unknown)} are left out that may have other images than those that are there, as {unknown[0]}")


if __name__ == "__main__":
    main()
