"""A report on disk: one page, tables in three formats, figures. All is made before anything is written."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ocil.files import must_be_free, read_regular, sweep, write_bytes, write_together
from ocil.report import longtail
from ocil.report.cells import Collection
from ocil.report.comparison import compared_tables, concerned
from ocil.report.drawings import Drawing
from ocil.report.entries import entries
from ocil.report.figures import draw_all
from ocil.report.measure_tables import measures_document
from ocil.report.page import page
from ocil.report.papers import Paper, load
from ocil.report.rendering import OnFigure, ignore, render_all_as_pdf
from ocil.report.result_tables import cells_document, compared_document
from ocil.report.standing_tables import methods_document, standings_document
from ocil.report.standings import Standings

LIST = ".ocil-report.json"  # what was written, so that the next report deletes that and nothing else
STALE_SECONDS = 3600.0  # a temporary file as old as this is of a process that was killed


@dataclass(frozen=True)
class Written:
    """The files of a report."""

    page: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]


def write(
    collection: Collection,
    out: Path | str,
    more: Sequence[Drawing] = (),
    paper: Paper | None = None,
    against: str = "",
    workers: int = 1,
    pdf: bool = False,
    progress: OnFigure = ignore,
) -> Written:
    """Write the report into the folder ``out``, all of it or nothing; the page comes last. Files that no report has
    written stay there.

    ``more`` are figures that need more than results, such as example images. ``paper`` holds the tables and numbers to
    compare with; by default those of the AFS paper, if some of the results belong to them. ``against`` names the method
    that the others are compared with, by default the one with the best mean rank. Many figures are drawn in up to
    ``workers`` processes, which a script may ask for below ``if __name__ == "__main__":`` only. With ``pdf`` each
    figure is also written as a PDF file, which LaTeX can include. ``progress`` is told how many figures are drawn, and
    of how many; then the same of the PDF files.
    """
    out, paper = Path(out), concerned(load(), collection) if paper is None else paper
    found = entries(collection.cells)
    standings = Standings(found, chosen=found.named(against).name if against else "")
    compared = [(table, compared_document(table)) for table in compared_tables(collection, paper)]
    drawings = [*draw_all(collection, standings, paper, workers, progress), *more]
    own = [methods_document(standings)] if found.all else []
    own += [measured] if (measured := measures_document(standings)) else []
    documents = [standings_document(standings)] if found.all else []
    documents += [*own, *(document for _, document in compared), cells_document(collection.cells, paper)]
    documents += [longtail.document(collection.longtail, paper)] if collection.longtail else []
    texts = {name: text for document in documents for name, text in document.files().items()}
    tables = {out / "tables" / name: text.encode() for name, text in texts.items()}
    figures = {out / "figures" / f"{drawing.name}.svg": drawing.svg.encode() for drawing in drawings}
    if pdf:
        files = render_all_as_pdf([(drawing.paint, drawing.args) for drawing in drawings], workers, progress)
        named = zip(drawings, files, strict=True)
        figures |= {out / "figures" / f"{drawing.name}.pdf": file for drawing, file in named}
    index = out / "index.html"
    _save(out, tables | figures, index, page(collection, standings, own, compared, drawings, paper).encode())
    return Written(index, tuple(tables), tuple(figures))


def _save(out: Path, files: Mapping[Path, bytes], index: Path, page: bytes) -> None:
    """Write tables and figures, then the page, and delete tables and figures of an earlier report that are not among
    these: of runs that this report does not have. If a file cannot be written, the earlier report stays as it is."""
    written = {**files, index: page}
    for path in written:
        must_be_free(path)
    for folder in {path.parent for path in written}:
        sweep(folder, STALE_SECONDS)
    earlier = _earlier(out)
    write_together({out / LIST: _listed(out, files.keys() | earlier), **written})
    for path in earlier - files.keys():
        path.unlink(missing_ok=True)  # another report into this folder may have been faster
    write_bytes(out / LIST, _listed(out, files))


def _earlier(out: Path) -> set[Path]:
    """Tables and figures of the report that is there already. Other files are left alone."""
    try:
        listed = {str(name) for name in json.loads(read_regular(out / LIST))}
    except (OSError, ValueError, TypeError):
        return set()
    patterns = ("tables/*.md", "tables/*.csv", "tables/*.tex", "figures/*.svg", "figures/*.pdf")
    return {path for pattern in patterns for path in out.glob(pattern) if str(path.relative_to(out)) in listed}


def _listed(out: Path, paths: Iterable[Path]) -> bytes:
    return json.dumps(sorted(str(path.relative_to(out)) for path in paths), indent=1).encode()
