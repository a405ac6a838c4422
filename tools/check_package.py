"""Builds the source distribution and the wheel, installs each into a fresh environment, and uses it there.

    make package        # or: python tools/check_package.py [--borrow] [--out FOLDER] [--address ADDRESS]

With ``--borrow`` the environment uses the packages of this Python, so that nothing is downloaded: only ocil itself
comes from the wheel. That of the source distribution always does. The files are left in ``dist/``, or in the folder
that ``--out`` names.

A package index shows the README, where links to files of the repository lead nowhere. With ``--address``, the address
of the repository, the package gets links that are whole, and the address among its urls.
"""

import argparse
import json
import os
import re
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
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--borrow", action="store_true")
    options.add_argument("--out", type=Path, default=ROOT / "dist")
    options.add_argument("--address", default="")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        archive, wheel = build(folder, chosen.address)
        chosen.out.mkdir(parents=True, exist_ok=True)
        for file in (archive, wheel):
            shutil.copy(file, chosen.out)
            print(f"{chosen.out / file.name}: {file.stat().st_size / 2**20:.2f} MiB")
        check_content(wheel)
        if (relative := relative_links(wheel)) and chosen.address:
            sys.exit(f"{wheel.name}: README has links that are not whole: {relative}")
        if relative:
            print(f"{len(relative)} links of README lead nowhere on a package index: make package ADDRESS=https://...")
        use(install(wheel, folder / "environment", chosen.borrow), folder / "elsewhere")
        command = install(archive, folder / "from-source", borrow=True)
        print(f"{run(command, '--version', cwd=folder / 'elsewhere').strip()} from {archive.name}")


def build(folder: Path, address: str = "") -> tuple[Path, Path]:
    """The wheel is built from the unpacked source distribution, so a file that is missing there is noticed."""
    (folder / "built").mkdir()
    source = folder / "source"
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    if address:
        settle(source, address.rstrip("/"))
    run(sys.executable, "-c", BUILD, "build_sdist", folder / "built", cwd=source)
    (archive,) = (folder / "built").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", BUILD, "build_wheel", folder / "built", cwd=unpacked)
    (wheel,) = (folder / "built").glob("*.whl")
    return archive, wheel


def settle(source: Path, address: str) -> None:
    """Give a copy of the tree a public address: in the links of its README, and among the urls of the package."""
    found = re.search(r'^__version__ = "(.+)"', (source / "src/ocil/__init__.py").read_text(), re.MULTILINE)
    tag = f"v{found[1]}" if found else "main"
    readme, project = source / "README.md", source / "pyproject.toml"
    readme.write_text(whole_links(readme.read_text(), address, tag))
    urls = {
        "Homepage": address,
        "Documentation": f"{address}/blob/{tag}/docs/index.md",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    lines = "\n".join(f'{name} = "{url}"' for name, url in urls.items())
    project.write_text(f"{project.read_text()}\n[project.urls]\n{lines}\n")


def whole_links(text: str, address: str, tag: str) -> str:
    """Links to files of the repository, as addresses of what the tag has: shown pages, and pictures as files."""

    def whole(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return LINK.sub(whole, text).replace("<this repository>", address)


def relative_links(wheel: Path) -> list[str]:
    """Links of the package's description that are not whole addresses."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return [path for _, _, path in LINK.findall(opened.read(name).decode())]


def check_content(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    missing = [name for name in NEEDED if name not in names]
    foreign = sorted(name for name in names if not name.startswith(("ocil/", "ocil-")))
    if missing or foreign or wheel.stat().st_size > MOST_BYTES:
        sys.exit(f"{wheel.name}: missing {missing}, foreign {foreign[:5]}, {wheel.stat().st_size} bytes")


def install(package: Path, environment: Path, borrow: bool) -> Path:
    """Install a wheel or a source distribution. Returns the ``ocil`` command of the new environment."""
    python = environment / "bin" / "python"
    words = ("install", "--quiet", "--disable-pip-version-check")
    if borrow:  # without the pip and setuptools of the environment, which would hide what is borrowed
        run(sys.executable, "-m", "venv", "--without-pip", environment)
        (packages,) = environment.glob("lib/python*/site-packages")
        (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        pip = (sys.executable, "-m", "pip", "--python", python, *words)
        run(*pip, "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed", package)
    else:
        run(sys.executable, "-m", "venv", environment)
        flags = os.environ.get("PIP_FLAGS", "").split()
        run(python, "-m", "pip", *words, *flags, "--constraint", ROOT / "constraints.txt", package)
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
