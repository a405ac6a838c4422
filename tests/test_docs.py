"""What the documentation promises to list, it lists."""

import importlib.util
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from ocil.longtail.config import VARIANTS, LongTailConfig
from ocil.methods import METHODS
from ocil.methods.config import LearnerConfig
from ocil.streams import StreamConfig

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("config", [StreamConfig, LearnerConfig])
def test_the_protocol_names_every_setting_that_methods_share(config: type) -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    missing = [field.name for field in fields(config) if f"`{field.name}`" not in text]
    assert not missing


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_page_that_names_its_settings(name: str) -> None:
    text = (ROOT / f"docs/methods/{name}.md").read_text()
    shared = {field.name: field.default for field in fields(LearnerConfig)}
    own = [f.name for f in fields(METHODS[name].load().Config) if shared.get(f.name, ...) != f.default]
    missing = [field for field in own if f"`{field}`" not in text]
    assert not missing
    assert f"ocil run {name}" in text or f"ocil compare {name}" in text
    assert METHODS[name].paper.split(" et al.")[0].split(",")[0].casefold() in text.casefold()


def test_the_page_on_long_tails_names_every_setting_and_its_default() -> None:
    text = (ROOT / "docs/longtail.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]*?)`? \|", text.split("## Settings")[1], flags=re.MULTILINE))
    own = {"variant", "dataset", "seed", "fingerprint"}
    assert rows == {f.name: str(f.default).lower() for f in fields(LongTailConfig) if f.name not in own}
    assert all(f"`{name}`" in text for name in VARIANTS)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]:
        assert not re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE), f"{page.name} has marks of a merge"
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.slow
def test_the_tables_are_those_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``tools/results_page.py`` has nothing to change."""
    root = ROOT
    spec = importlib.util.spec_from_file_location("results_page", root / "tools" / "results_page.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    pages = ("README.md", "docs/results.md", "docs/methods/stride.md", "results/README.md")
    shutil.copytree(root / "results", tmp_path / "results")
    for page in pages[:-1]:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / page, tmp_path / page)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    tool.main()
    for page in pages:
        assert (tmp_path / page).read_text() == (root / page).read_text(), f"run tools/results_page.py: {page}"
