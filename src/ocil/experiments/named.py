"""The experiments that come with ocil, by name: ``table1`` is the file ``shipped/table1.toml``."""

from pathlib import Path

SHIPPED = Path(__file__).parent / "shipped"


def shipped() -> dict[str, Path]:
    """The files that come with ocil, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"), key=lambda path: path.stem)}


def find_file(given: Path) -> Path:
    """The file at a path, else the file of that name that comes with ocil.

    ``table1``, ``table1.toml`` and ``experiments/table1.toml`` are all names of a shipped file. A path that leads
    nowhere is returned unchanged.
    """
    a_name = given.suffix in ("", ".toml") and str(given.parent) in (".", "experiments")
    if given.is_file() or not a_name:
        return given
    return shipped().get(given.stem.lower(), given)
