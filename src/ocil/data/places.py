"""Where this user's datasets lie, and where what can be made again is kept."""

import os
import sys
from pathlib import Path

from ocil.errors import OcilError
from ocil.files import is_there


def data_dir(explicit: Path | str | None = None) -> Path:
    """The folder of the datasets: the given one, else that of OCIL_DATA, else one in the user's data folder."""
    if explicit is not None:
        return Path(explicit).expanduser()
    if named := os.environ.get("OCIL_DATA"):
        return Path(named).expanduser()
    return user_data_dir(sys.platform)


def data_dirs(explicit: Path | None = None) -> list[Path]:
    """The folders in which datasets are looked up: ``data_dir``, then the one in the user's cache folder, which was
    the default up to version 0.2. A folder that was named is the only one."""
    folder = data_dir(explicit)
    if is_there(folder) and not folder.is_dir():
        raise OcilError(f"{folder} is a file, not the folder of the datasets. Name another (--data-dir or OCIL_DATA).")
    former = user_cache_dir(sys.platform)
    named = explicit is not None or os.environ.get("OCIL_DATA")
    return [folder] if named or former == folder else [folder, former]


def cache_dir() -> Path:
    """The folder of what can be made again: that of OCIL_CACHE, else one in the user's cache folder."""
    if named := os.environ.get("OCIL_CACHE"):
        return Path(named).expanduser()
    return user_cache_dir(sys.platform)


def user_data_dir(platform: str) -> Path:
    if platform == "win32":
        return _local_app_data() / "ocil"
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "ocil"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "ocil"


def user_cache_dir(platform: str) -> Path:
    if platform == "win32":
        return _local_app_data() / "ocil"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ocil"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ocil"


def _local_app_data() -> Path:
    return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
