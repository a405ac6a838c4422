"""Put the runs of a benchmark's JSON where ``ocil report`` finds them: FOLDER/CELL/seed-N/result.json.

python tools/take_runs.py out.json results
"""

import json
import sys
from pathlib import Path

from ocil.longtail.results import LongTailResult
from ocil.results import write_json


def main(source: Path, folder: Path) -> int:
    runs = json.loads(source.read_text())["runs"]
    for content in runs:
        config = LongTailResult.from_json(content).config
        write_json(folder / config.cell / f"seed-{config.seed}" / "result.json", content)
    return len(runs)


if __name__ == "__main__":
    print(f"{main(Path(sys.argv[1]), Path(sys.argv[2]))} runs")
