"""A report on disk: one page, tables in three formats, figures. All is made before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ocil.files import write_bytes
from ocil.report import formats, longtail
from ocil.report.collect import Collection
from ocil.report.comparison import paper_tables
from ocil.report.gallery import Drawing, gallery
from ocil.report.page import page


@dataclass(frozen=True)
class Written:
    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]


def write(collection: Collection, out: Path, more: Sequence[Drawing] = ()) -> Written:
    """``more`` are figures that need more than results, such as example images. The page is written last."""
    tables = paper_tables(collection)
    drawings = [*gallery(collection, tables[0]), *more]
    texts = formats.files(tables, collection.cells) | longtail.files(collection.longtail)
    contents = {out / "tables" / name: text for name, text in texts.items()}
    pictures = {out / "figures" / f"{drawing.name}.svg": drawing.svg for drawing in drawings}
    index = {out / "index.html": page(collection, tables, drawings)}
    earlier = _earlier(out)
    for path, text in (contents | pictures | index).items():
        write_bytes(path, text.encode())
    for path in earlier - contents.keys() - pictures.keys():  # they tell of runs that this report does not have
        path.unlink()
    return Written(out / "index.html", tuple(contents), tuple(pictures))


def _earlier(out: Path) -> set[Path]:
    """Tables and figures of the report that is there already."""
    if not (out / "index.html").is_file():
        return set()
    patterns = ("tables/*.md", "tables/*.csv", "tables/*.tex", "figures/*.svg")
    return {path for pattern in patterns for path in out.glob(pattern)}
