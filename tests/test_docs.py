"""What the documentation promises to list, it lists."""

import ast
import importlib.util
import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ocil.experiments import files as experiments
from ocil.experiments.named import shipped
from ocil.longtail.config import VARIANTS, LongTailConfig
from ocil.longtail.results import LongTailResult
from ocil.methods import METHODS
from ocil.methods.config import LearnerConfig
from ocil.report.cells import Collection
from ocil.report.collect import FoundResults, find
from ocil.report.result_tables import ALL_METHODS_RECORD, cells_document
from ocil.report.table import csv as as_csv
from ocil.runs.config import resolve
from ocil.runs.results import Result
from ocil.streams import StreamConfig
from tests.test_report_page import PAPER, RESULTS, by_hand, csv_of, rows_of, table1

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/ocil"
WITHOUT_INDEX = ("ocil", "kernels", "papers")  # it has its public names; a table; no modules
ROOMS = [path.parent for path in sorted(SOURCE.rglob("__init__.py")) if path.parent.name not in WITHOUT_INDEX]


@pytest.mark.parametrize("config", [StreamConfig, LearnerConfig])
def test_the_protocol_names_every_setting_that_methods_share(config: type) -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    missing = [field.name for field in fields(config) if f"`{field.name}`" not in text]
    assert not missing


def test_the_protocol_names_every_method_with_another_default() -> None:
    rows = [row for row in (ROOT / "docs/protocol.md").read_text().splitlines() if row.startswith("| `")]
    row_of = {name: row for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    for name, info in METHODS.items():
        title = title_of(name)
        defaults = {field.name: field.default for field in fields(info.load().Config)}
        for field in fields(LearnerConfig):
            if defaults[field.name] != field.default:
                assert re.search(rf"\b{re.escape(title)}\b", row_of[field.name]), f"{field.name} of {name}"


def title_of(name: str) -> str:
    head = (ROOT / f"docs/methods/{name}.md").read_text().splitlines()[0].removeprefix("# ")
    return re.split(r" \(|, ", head)[0]


RANKS_ONLY = {name for name, info in METHODS.items() if not info.load().scores_are_logits}
NEEDS_TASK_ENDS = {name for name, info in METHODS.items() if info.needs_task_ends}
NO_AVERAGE = {name for name, info in METHODS.items() if info.load().no_average}


@pytest.mark.parametrize(
    ("page", "sentence", "names"),
    [
        ("protocol.md", r"counted\. ([^.]*) have none of these numbers", RANKS_ONLY),
        ("protocol.md", r"new network\. ([^.]*) refuse the setting", NO_AVERAGE),
        ("online.md", r"Those of ([^.]*) only rank the classes", RANKS_ONLY),
        ("online.md", r"a method that needs task ends \((.*?)\)", NEEDS_TASK_ENDS),
    ],
)
def test_pages_name_the_methods_of_a_kind(page: str, sentence: str, names: set[str]) -> None:
    (found,) = re.findall(sentence, (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert set(re.split(r",\s+|\s+and\s+", found)) == {title_of(name) for name in names}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_that_names_its_settings(name: str) -> None:
    text = (ROOT / f"docs/methods/{name}.md").read_text()
    shared = {field.name: field.default for field in fields(LearnerConfig)}
    own = [f.name for f in fields(METHODS[name].load().Config) if shared.get(f.name, ...) != f.default]
    missing = [field for field in own if f"`{field}`" not in text]
    assert not missing
    assert f"ocil run {name}" in text or f"ocil compare {name}" in text
    assert METHODS[name].paper.split(" et al.")[0].split(",")[0].casefold() in text.casefold()


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def named_by_a_rule(module: Path) -> bool:
    """Whether a module need not be in the index of its folder: a method, what methods share, or a command."""
    if module.parent.name == "methods":
        return module.stem.startswith("_") or any(
            str(info.target).startswith(f"{module.stem}:") for info in METHODS.values()
        )
    return module.parent.name == "cli" and docstring(module).startswith("``ocil")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(SOURCE)))
def test_the_docstring_of_a_folder_is_an_index_of_its_modules(room: Path) -> None:
    modules = [path for path in room.glob("*.py") if path.name != "__init__.py"]
    folders = [path.parent for path in room.glob("*/__init__.py")]
    text = docstring(room / "__init__.py")
    missing = [path.stem for path in (*modules, *folders) if f"``{path.stem}``" not in text]
    assert [name for name in missing if not named_by_a_rule(room / f"{name}.py")] == []
    heads = [line.partition("  ")[0] for line in text.splitlines() if line.startswith("``")]
    listed = {name for head in heads for name in re.findall(r"``(\w+)``", head)}
    assert listed <= {path.stem for path in (*modules, *folders)}


def test_the_page_on_long_tails_names_every_setting_and_its_default() -> None:
    text = (ROOT / "docs/longtail.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]*?)`? \|", text.split("## Settings")[1], flags=re.MULTILINE))
    own = {"variant", "dataset", "seed", "fingerprint"}
    assert rows == {f.name: str(f.default).lower() for f in fields(LongTailConfig) if f.name not in own}
    assert all(f"`{name}`" in text for name in VARIANTS)


def test_the_page_on_experiments_lists_those_that_come_with_ocil() -> None:
    text = (ROOT / "docs/experiments.md").read_text()
    listed = [name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)]
    assert sorted(listed) == sorted(shipped())


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]:
        assert not re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE), f"{page.name} has marks of a merge"
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def tool() -> Any:
    """``tools/results_page.py`` as a module."""
    spec = importlib.util.spec_from_file_location("results_page", ROOT / "tools" / "results_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up(*names: str, seeds: int = 1) -> Collection:
    """What ``ocil sweep`` would leave of experiments: runs of which nothing is known but accuracies."""
    read = [experiments.read(Path(name), seeds=seeds, settings={"precision": "bf16"}) for name in names]
    found: list[tuple[Path, Result | LongTailResult]] = []
    for config in dict.fromkeys(config for each in read for config in each.configs):
        matrix = [[0.5] * config.stream.tasks] * config.stream.tasks
        found.append((Path(config.cell), Result(config, matrix, [], 1.0, {}, "", {})))
    return FoundResults("", found, []).collection()


def lines_of(text: str) -> list[str]:
    """The first cells of the rows of tables, and the lines between tables."""
    return [line.split(" | ")[0].strip("| `") for line in text.splitlines() if line and not line.startswith("|---")]


def test_each_experiment_has_a_table_that_takes_its_runs(tool: Any) -> None:
    streams = made_up("streams")
    assert {tool.group(cell) for cell in streams.cells} == {"streams"}
    kinds = {line.split(" | ")[0].strip("| ") for line in tool.streams(list(streams.cells)).splitlines()[2:]}
    assert kinds == {"i-Blurry-50-10", "Si-Blurry", "no boundaries", "noise"}
    assert {tool.group(cell) for cell in made_up("no-task-ends").cells} == {"no task ends"}
    anytime = lines_of(tool.over_time(tool.of_group(made_up("anytime"), "any time")))
    assert anytime[0] == "CIFAR-100"
    assert anytime.count("afs") == 2
    assert anytime.index("CIFAR-10") == 2 + 6
    parts = lines_of(tool.parts(made_up("stride-parts")))
    assert parts == ["stride with", *tool.PARTS.values()]
    assert tool.parts(made_up("stride")) == ""
    compute = tool.compute(made_up("compute"))
    assert lines_of(compute) == ["method", *tool.BY_COMPUTE]
    assert compute.count("50.0") == 4 * 5 + 3
    assert tool.compute(made_up("stride")) == ""
    field = tool.field(made_up("field", "stride", seeds=10))
    assert re.findall(r"^\| afs \|.* \| ([^|]+) \|$", field, re.MULTILINE) == ["212 to 220", "211"]
    assert "stride, afs, scr and er-rv have 10 to 19" in field


@pytest.fixture(scope="module")
def kept() -> FoundResults:
    """All that is kept under results/: thousands of files, which two tests need."""
    return find([RESULTS])


@pytest.mark.slow
def test_tables_agree_with_the_files_they_come_from(kept: FoundResults) -> None:
    """What is kept under results/: each cell's mean and interval, and the place it has in Table I."""
    found = kept.collection()
    assert not found.warnings
    lines = {row["cell"]: row for row in rows_of(as_csv(cells_document(found.cells, PAPER).records))}
    folders = {path.parent.parent.name: path.parent.parent for path in RESULTS.glob("*/seed-*/result.json")}
    tailed = {cell.config.cell for cell in found.longtail}  # in a table of their own
    assert set(lines) | tailed == set(folders)
    folders = {name: folder for name, folder in folders.items() if name not in tailed}
    for name, folder in folders.items():
        if len(list(folder.glob("seed-*"))) not in (2, 3, 5, 10, 20):
            continue
        mean, interval, seeds = by_hand(folder)
        row = lines[name]
        assert float(row["mean"]) == pytest.approx(mean, abs=1e-3)
        assert float(row["interval"]) == pytest.approx(interval, abs=2e-3)
        assert int(row["seeds"]) == seeds
    table = rows_of(csv_of(table1(found)))
    assert list(table[0]) == list(ALL_METHODS_RECORD)
    (afs,) = (r for r in table if (r["dataset"], r["memory"], r["method"]) == ("cifar100", "5000", "afs"))
    mean, interval, seeds = by_hand(RESULTS / resolve("afs", "cifar100", settings={"precision": "bf16"}).cell)
    assert (float(afs["mean"]), float(afs["interval"])) == pytest.approx((mean, interval), abs=2e-3)
    assert (afs["published"], afs["published_interval"], afs["review"]) == ("42.3", "0.4", "true")
    assert float(afs["difference"]) == pytest.approx(mean - 42.3, abs=2e-3)
    assert afs["device"] == "NVIDIA H200"


@pytest.mark.slow
def test_the_tables_are_those_of_the_runs(
    tool: Any, kept: FoundResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tools/results_page.py`` has nothing to change."""
    root, pages = ROOT, tool.PAGES
    found = {(tmp_path / "results",): kept}
    monkeypatch.setattr(tool, "find", lambda paths: found[tuple(paths)])
    for page in pages:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / page, tmp_path / page)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    tool.main()
    for page in pages:
        assert (tmp_path / page).read_text() == (root / page).read_text(), f"run tools/results_page.py: {page}"
