"""The code of the documentation runs: Python blocks, commands, examples of docstrings, notebooks."""

import ast
import contextlib
import doctest
import importlib.util
import json
import re
import shlex
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ocil
import ocil.cli
from ocil.data import lookup
from ocil.data.catalog import DEFAULT

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = ("README.md", "docs/api.md")  # test_public_api and test_api run their blocks
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]*?) -->\n)?^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:(?<=\n\n)|(?<=\A))((?: {4}.*\n|\n)+)")
NEEDS = {"OnlineClassifier": "sklearn", "onnxruntime": "onnxruntime"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the reason why it is not run, or ''."""
    return [(found["code"], found["reason"] or "") for found in BLOCK.finditer(page.read_text())]


WITH_CODE = [page for page in PAGES if blocks(page) and name_of(page) not in ELSEWHERE]


def one_in(every: int, folder: Path) -> Path:
    """Each twentieth of the embedded images, for example, in a file."""
    data = ocil.load_dataset()
    parts = {name: getattr(data, name)[::every] for name in ("train_x", "train_y", "test_x", "test_y")}
    path = folder / f"{data.name}.npz"
    replace(data, **parts).save(path)
    return path


def embed(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded dataset is what this file has: the code as it is, in less time."""
    dataset_path = lookup.dataset_path

    def place(name: str | Path, *rest: Any) -> Any:
        return contextlib.nullcontext(images) if name == DEFAULT else dataset_path(name, *rest)

    monkeypatch.setattr(lookup, "dataset_path", place)


@pytest.fixture(scope="module")
def few_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_in(20, tmp_path_factory.mktemp("few"))


@pytest.fixture
def few(few_images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A twentieth of the embedded images, and a folder of one's own."""
    embed(few_images, monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_no_python_block_is_missed() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *(?:```|~~~) *(?:python|py)\b", page.read_text(), flags=re.MULTILINE)
        assert len(blocks(page)) == len(fences), name_of(page)


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_python_blocks_are_python(page: Path) -> None:
    for code, _ in blocks(page):
        ast.parse(code)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("few", "quick_convolution")
@pytest.mark.parametrize(
    "page", [page for page in WITH_CODE if not all(reason for _, reason in blocks(page))], ids=name_of
)
def test_the_python_blocks_of_a_page_run_in_their_order(page: Path) -> None:
    """As one program. A block that cannot run here has a comment <!-- not run: why --> above it."""
    names: dict[str, Any] = {"__name__": "page"}
    for number, (code, reason) in enumerate(blocks(page)):
        for word, package in NEEDS.items():
            if word in code:
                pytest.importorskip(package, reason=f"{package} is not installed: make test installs it")
        if not reason:
            exec(compile(code, f"{page.name}, block {number}", "exec"), names)


def commands(page: Path) -> list[str]:
    """The lines of a page that call ocil, in code blocks, with continued lines joined."""
    text = page.read_text()
    parts = [found[1] for found in FENCED.finditer(text)] + [
        textwrap.dedent(found[1]) for found in INDENTED.finditer(text)
    ]
    lines = "\n".join(parts).replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"ocil [a-z]", line)]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    """Names of commands and options are right. What they do is tested elsewhere."""
    for line in commands(page):
        words = shlex.split(re.sub(r" --plugin \S+", "", line), comments=True)[1:]  # taken before all others
        try:
            ocil.cli.app.parse_args(words, exit_on_error=False, print_error=False)
        except Exception as error:  # cyclopts has many kinds
            pytest.fail(f"{line}: {error}")


def test_the_docstring_of_every_public_name_has_an_example() -> None:
    missing = [name for name, examples in examples_by_name().items() if not examples]
    assert not missing


def examples_by_name() -> dict[str, list[doctest.DocTest]]:
    """The examples in the docstrings of what is public, and of its public methods."""
    finder = doctest.DocTestFinder(recurse=True)
    found = {}
    for name in ocil.__all__:
        thing = getattr(ocil, name)
        if name == "METHODS":  # an object: its examples are those of its module
            thing = importlib.import_module("ocil.methods")
        if isinstance(thing, ModuleType):  # the module's own docstring and those of its functions
            tests = finder.find(thing, name, globs={"ocil": ocil})
        else:
            tests = finder.find(thing, name, module=False, globs={"ocil": ocil})
        found[name] = [test for test in tests if test.examples]
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("few", "quick_convolution")
@pytest.mark.parametrize("name", ocil.__all__)
def test_the_examples_of_docstrings_run(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    for test in examples_by_name()[name]:
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("quick_convolution")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_show_what_they_keep(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fifth of the images, since most take a fourth of them; but for one that says how many there are."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")
    if path.stem != "own-method":
        embed(one_in(5, tmp_path), monkeypatch)
    monkeypatch.chdir(tmp_path)
    kept = json.loads(path.read_text())
    shown = tool("notebooks").run(json.loads(path.read_text()))

    def kinds(notebook: dict[str, Any]) -> list[list[str]]:
        cells = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        return [sorted(kind for output in outputs for kind in output.get("data", {"text": 0})) for outputs in cells]

    assert kinds(shown) == kinds(kept)
    assert "image/png" in str(kinds(kept))


def test_there_are_five_notebooks_and_all_are_listed() -> None:
    listed = (ROOT / "docs/notebooks/index.md").read_text()
    assert len(NOTEBOOKS) == 5
    assert all(f"({path.name})" in listed for path in NOTEBOOKS)


@pytest.mark.slow
def test_the_drawings_are_those_of_their_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawings = tool("drawings")
    monkeypatch.setattr(drawings, "IMAGES", tmp_path)
    for name in ("setting", "review", "growing", "anytime"):
        getattr(drawings, name)()
        drawn = (tmp_path / f"concept-{name}.svg").read_text()
        assert drawn == (ROOT / f"docs/images/concept-{name}.svg").read_text()
