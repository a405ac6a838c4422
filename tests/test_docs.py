"""What the documentation promises to list, it lists."""

from dataclasses import fields
from pathlib import Path

import pytest

from ocil.methods import METHODS
from ocil.streams import StreamConfig

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = {StreamConfig, *(info.load().Config for info in METHODS.values())}


@pytest.mark.parametrize("config", sorted(CONFIGS, key=lambda c: c.__name__), ids=lambda c: c.__name__)
def test_protocol_names_every_setting(config: type) -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    missing = [field.name for field in fields(config) if f"`{field.name}`" not in text]
    assert not missing


def test_links_between_pages_lead_somewhere() -> None:
    import re

    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
