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
    for path, text in (contents | pictures | index).items():
        write_bytes(path, text.encode())
    return Written(out / "index.html", tuple(contents), tuple(pictures))
