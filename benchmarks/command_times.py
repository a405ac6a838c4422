"""Times the commands that a new user types, and writes the table of docs/commands.md.

python benchmarks/command_times.py --machine "2 ARM cores"              # all of them: about half an hour
python benchmarks/command_times.py --machine "2 ARM cores" --only doctor methods

Run it where `make setup` was run. Each command runs once, as a process of its own. Processor time is that of all its
processes. Wall time is kept only if the machine was idle when the command began. What was measured is kept in
results/performance/commands.json, and commands that are left out keep their times.
"""

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ocil.report.formatting import duration

ROOT = Path(__file__).resolve().parent.parent
OCIL = f"{shlex.quote(sys.executable)} -m ocil"
IDLE = 0.1  # the share of the processors that others may take in a second in which the machine counts as idle
COMMANDS = {
    "methods": ("ocil methods", "the list of methods"),
    "doctor": ("ocil doctor", "what is installed, and how fast a step is"),
    "run": ("ocil run afs --seeds 1", "one run, and the one it is compared with, on the embedded images"),
    "dry-run": ("ocil sweep table1 --dry-run", "what a table of the paper would take"),
    "show": ("ocil show results", "who is ahead in all results kept here"),
    "report": ("ocil report results --out report", "the page of all of them, with every table and figure"),
    "docs": ("make docs", "the documentation as a site"),
    "demo": ("make demo", "three methods, three seeds"),
    "package": ("make package", "both packages, installed and used; the time of downloads is in it"),
    "test": ("make test", "every check and test"),
}  # by name: the command, and what it gives
FOLDER = "ocil"  # commands that begin with it run in an empty folder


def measure(name: str, words: str) -> dict[str, Any]:
    """Seconds of the wall and of the processor. ``SystemExit`` if the command fails."""
    taken = busy()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as empty:
        if words.startswith(FOLDER):
            (Path(empty) / "results").symlink_to(ROOT / "results")
            command, folder = words.replace(FOLDER, OCIL, 1), Path(empty)
        else:
            command, folder = words, ROOT
        done = subprocess.run(shlex.split(command), cwd=folder, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{words} failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: {wall:.1f} s, {processor:.1f} s of the processor, {taken:.0%} of it taken before", flush=True)
    return {"seconds": round(wall, 1) if taken < IDLE else None, "processor_seconds": round(processor, 1)}


def busy() -> float:
    """The share of the processors that was taken in the last second; where Linux does not tell, the load per core."""
    try:
        before, _, after = jiffies(), time.sleep(1), jiffies()
    except OSError:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    return 1 - (after[1] - before[1]) / max(1, after[0] - before[0])


def jiffies() -> tuple[int, int]:
    """All time of all processors, and that in which they had nothing to do or waited for a disk."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4]


def table(kept: dict[str, Any]) -> str:
    rows = ["| command | gives | time | processor time |", "|---|---|---|---|"]
    for name, (words, gives) in COMMANDS.items():
        if found := kept["commands"].get(name):
            wall = duration(found["seconds"]) if found["seconds"] is not None else "not measured"
            rows.append(f"| `{words}` | {gives} | {wall} | {duration(found['processor_seconds'])} |")
    return "\n".join([f"Measured on {kept['machine']}.", "", *rows])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--machine", required=True)
    options.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options.add_argument("--kept", type=Path, default=ROOT / "results/performance/commands.json")
    options.add_argument("--page", type=Path, default=ROOT / "docs/commands.md")
    chosen = options.parse_args()
    kept = json.loads(chosen.kept.read_text()) if chosen.kept.exists() else {"commands": {}}
    if kept.get("machine", chosen.machine) != chosen.machine:
        kept["commands"] = {}  # times of another machine do not compare
    kept["machine"] = chosen.machine
    for name in chosen.only:
        kept["commands"][name] = measure(name, COMMANDS[name][0])
        chosen.kept.write_text(json.dumps(kept, indent=1) + "\n")
    page, marks = chosen.page.read_text(), r"(<!-- times -->\n).*?(<!-- end -->)"
    chosen.page.write_text(
        re.sub(marks, lambda found: f"{found[1]}{table(kept)}\n{found[2]}", page, count=1, flags=re.DOTALL)
    )


if __name__ == "__main__":
    main()
