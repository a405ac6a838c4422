"""What mkdocs does not do by itself: pages that lie outside docs/, and notebooks.

Links in our pages are those of the repository: docs/api.md links to ../CHANGELOG.md and ../examples/folder.py. Here
every such file becomes a part of the site, at its path in the repository, and links are changed accordingly. A link to
a file that does not exist is left as it is: a strict build refuses it.
"""

import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^( *(?:```|~~~)).*?^\1 *$", re.MULTILINE | re.DOTALL)
PAGES = (*sorted(path.name for path in ROOT.glob("*.md") if path.name != "README.md"), "results/README.md")


def repository_path(uri: str) -> str:
    """Where a file of the site lies in the repository."""
    return uri if uri in PAGES else f"docs/{uri}"


def site_path(path: str) -> str:
    """Where a file of the repository lies in the site."""
    if (ROOT / path).is_dir():
        return f"{path}/index.md"
    return re.sub(r"\.(py|ipynb)$", ".md", path.removeprefix("docs/"))


def outside_code(text: str, change: Any) -> str:
    """Apply a function to all of a page but its code blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join((*parts, change(text[end:])))


def targets(path: str, text: str) -> set[str]:
    """The files of the repository that a page links to."""
    found: set[str] = set()

    def look(part: str) -> str:
        found.update(
            posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2])) for link in LINK.finditer(part)
        )
        return part

    outside_code(text, look)
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that the menu of mkdocs.yml does not name at the end of one of its parts, so that none is lost."""
    listed, docs = json.dumps(config.nav), ROOT / "docs"
    pages = {"How to": docs.glob("*.md"), "Methods": docs.glob("methods/*.md"), "Project": map(ROOT.joinpath, PAGES)}
    for entry in config.nav or []:
        for title, section in entry.items():
            names = sorted(
                str(path.relative_to(docs if docs in path.parents else ROOT)) for path in pages.get(title, ())
            )
            section += [name for name in names if f'"{name}"' not in listed]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and a page for each notebook."""
    for path in PAGES:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    linked: set[str] = set()
    for file in files.documentation_pages():
        linked |= targets(repository_path(file.src_uri), Path(str(file.abs_src_path)).read_text())
    for path in sorted(linked):
        if path.startswith(("docs/", "..")) or path in PAGES or not (ROOT / path).exists():
            continue
        if (ROOT / path).is_dir() or path.endswith(".py"):
            files.append(File.generated(config, site_path(path), content=shown(ROOT / path)))
        else:
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            notebook = json.loads(Path(str(file.abs_src_path)).read_text())
            files.append(File.generated(config, site_path(file.src_uri), content=page_of(notebook, file.name)))
    return files


def shown(path: Path) -> str:
    """A page with the text of a file, or of all files of a folder."""
    if path.is_file():
        return f"# {path.name}\n\n{fenced(path)}"
    parts = [f"## {file.name}\n\n{fenced(file)}" for file in sorted(path.iterdir()) if file.is_file()]
    return "\n".join((f"# {path.name}\n", *parts))


def fenced(path: Path) -> str:
    return f"````{'python' if path.suffix == '.py' else ''}\n{path.read_text()}````\n"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Change links from places in the repository to places in the site."""
    here = repository_path(page.file.src_uri)
    start = posixpath.dirname(page.file.src_uri) or "."

    def moved(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[2]))
        if not (ROOT / path).exists():
            return link[0]
        return f"{link[1]}{posixpath.relpath(site_path(path), start)}{link[3] or ''}{link[4]}"

    return outside_code(markdown, lambda part: LINK.sub(moved, part))


def page_of(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown: its text, its code, and what its cells printed and drew."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [
            f'<div class="cell-output">{shown}</div>' for output in cell["outputs"] if (shown := output_of(output))
        ]
    parts.append(f'<a href="{name}.ipynb" download>Download the notebook</a>')
    return "\n\n".join(parts) + "\n"


def output_of(output: dict[str, Any]) -> str:
    """An output of a cell as HTML, in its richest form."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).strip()
        return f'<img alt="The plot that this cell draws" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        return "".join(data["text/html"]).replace("\n\n", "\n")
    text = "".join(output.get("text", data.get("text/plain", "")))
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(os.linesep * 2, "\n&#8203;\n")
    return f"<pre>{escaped}</pre>" if text.strip() else ""
