"""Builds the source distribution and the wheel, installs the wheel into a fresh environment, and uses it there.

    make package        # or: python tools/check_package.py [--borrow] [--out FOLDER]

With ``--borrow`` the environment uses the packages of this Python, so that nothing is downloaded: only ocil itself
comes from the wheel. The files are left in ``dist/``, or in the folder that ``--out`` names.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 4 * 2**20
NEEDED = (
    "ocil/py.typed",
    "ocil/data/embedded/LICENSE-fashion-mnist",
    "ocil/experiments/shipped/table1.toml",
    "ocil/report/papers/afs.toml",
    "ocil/serve/page/page.js",
)
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--borrow", action="store_true")
    options.add_argument("--out", type=Path, default=ROOT / "dist")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        archive, wheel = build(folder)
        chosen.out.mkdir(parents=True, exist_ok=True)
        for file in (archive, wheel):
            shutil.copy(file, chosen.out)
            print(f"{chosen.out / file.name}: {file.stat().st_size / 2**20:.1f} MiB")
        check_content(wheel)
        use(install(wheel, folder / "environment", chosen.borrow), folder / "elsewhere")


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel is built from the unpacked source distribution, so a file that is missing there is noticed."""
    (folder / "built").mkdir()
    source = folder / "source"
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    run(sys.executable, "-c", BUILD, "build_sdist", folder / "built", cwd=source)
    (archive,) = (folder / "built").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", BUILD, "build_wheel", folder / "built", cwd=unpacked)
    (wheel,) = (folder / "built").glob("*.whl")
    return archive, wheel


def check_content(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    missing = [name for name in NEEDED if name not in names]
    foreign = sorted(name for name in names if not name.startswith(("ocil/", "ocil-")))
    if missing or foreign or wheel.stat().st_size > MOST_BYTES:
        sys.exit(f"{wheel.name}: missing {missing}, foreign {foreign[:5]}, {wheel.stat().st_size} bytes")


def install(wheel: Path, environment: Path, borrow: bool) -> Path:
    """Returns the ``ocil`` command of the new environment."""
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if borrow:
        run(*pip, "--no-index", "--no-deps", wheel)
        (packages,) = environment.glob("lib/python*/site-packages")
        (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    else:
        flags = os.environ.get("PIP_FLAGS", "").split()
        run(*pip, *flags, "--constraint", ROOT / "constraints.txt", wheel)
    return environment / "bin" / "ocil"


def use(command: Path, elsewhere: Path) -> None:
    """In a folder where nothing of the repository is."""
    elsewhere.mkdir()
    print(run(command, "--version", cwd=elsewhere).strip())
    found = json.loads(run(command, "doctor", "--quick", "--json", cwd=elsewhere))
    if found["problems"] or str(command.parents[1]) not in found["versions"]["ocil"]:
        sys.exit(f"the wrong ocil, or a problem: {found}")
    listed = json.loads(run(command, "sweep", "--json", cwd=elsewhere))["experiments"]
    settings = ("--set", "width=2", "batch_size=50", "memory_batch=50")
    result = json.loads(run(command, "run", "er", "--seeds", 1, "--no-reference", "--json", *settings, cwd=elsewhere))
    print(f"{len(listed)} experiments; er learned, accuracy {100 * result['average_accuracy']['mean']:.1f} %")


def run(*words: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OCIL"))}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))[:300]}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
