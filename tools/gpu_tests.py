"""Keep the outcome of the GPU half of the tests beside the measurements: one entry of a list in a JSON file.

    pytest -m gpu --junitxml=gpu.xml
    python tools/gpu_tests.py gpu.xml results/performance/h200-gpu-tests.json [--note "before ..."] [--device NAME]

Run it on the machine of the GPU, which it names; the commit is that of the working folder, if there is one. Where
pytest-benchmark is installed, pytest wants ``-p no:benchmark`` beside ``-n``: its warning would fail the run. An entry
holds device, torch, commit, command, the numbers of tests that passed, failed and were skipped, the reasons why, the
names of those that failed, and the seconds that they took. The exit code is 1 if a test failed or none ran.
"""

import argparse
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

COMMAND = "pytest -m gpu"


def outcome(report: Path) -> dict[str, Any]:
    """What a JUnit file of pytest says."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skips = [skip for case in cases if (skip := case.find("skipped")) is not None]
    reasons = Counter(skip.get("message", "").splitlines()[0] if skip.get("message") else "" for skip in skips)
    return {
        "passed": len(cases) - len(failed) - len(skips),
        "failed": len(failed),
        "skipped": len(skips),
        "seconds": round(sum(float(case.get("time", 0)) for case in cases), 1),
        "failures": [f"{case.get('classname', '')}.{case.get('name', '')}" for case in failed],
        "reasons": dict(reasons.most_common()),
    }


def place(device: str | None) -> dict[str, str]:
    """Device, version of PyTorch and commit."""
    import torch

    if device is None:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = {"commit": git.stdout.strip()} if git.returncode == 0 else {}
    return {"device": device, "torch": torch.__version__} | commit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--note", default="")
    parser.add_argument("--command", default=COMMAND)
    parser.add_argument("--device")
    options = parser.parse_args()
    found = outcome(options.report)
    entries = json.loads(options.file.read_text()) if options.file.exists() else []
    entry = place(options.device) | {"command": options.command} | found
    entries.append(entry | ({"note": options.note} if options.note else {}))
    options.file.write_text(json.dumps(entries, indent=1) + "\n")
    print(f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped, in {options.file}")
    raise SystemExit(bool(found["failed"]) or not found["passed"])


if __name__ == "__main__":
    main()
