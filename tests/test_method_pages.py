"""The page of each method states the defaults that it has."""

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ocil.methods import METHODS
from ocil.methods.config import LearnerConfig

PAGES = Path(__file__).parents[1] / "docs" / "methods"
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", re.MULTILINE)
SHARED = {field.name: field.default for field in fields(LearnerConfig)}


def stated(name: str) -> dict[str, str]:
    """The default of each setting in a page's table; what holds for a dataset, in brackets, is left out."""
    _, _, after = (PAGES / f"{name}.md").read_text().partition("\n## Settings\n")
    found: dict[str, str] = {}
    for names, defaults in ROW.findall(after.partition("\n## ")[0]):
        settings = [one.strip("` ") for one in names.split(",")]
        texts = re.findall(r"`[^`]+`|[^,`]+", re.sub(r" \([^)]*\)(?=,|$)", "", defaults.strip()))
        values = [text.strip("` ") for text in texts if text.strip(" ,")]
        found |= dict(zip(settings, values if len(values) == len(settings) else [defaults], strict=True))
    return found


def is_written(text: str, value: Any) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return math.isclose(float(text.removeprefix("published, else ")), value)
    return text == (value if isinstance(value, str) else str(value).lower())


@pytest.mark.parametrize("name", METHODS)
def test_a_page_states_the_defaults_of_its_method(name: str) -> None:
    defaults = {field.name: field.default for field in fields(METHODS[name].load().Config)}
    found = {setting: text for setting, text in stated(name).items() if setting in defaults}
    own = {setting for setting, default in defaults.items() if SHARED.get(setting, ...) != default}
    assert own <= found.keys()
    wrong = {setting: text for setting, text in found.items() if not is_written(text, defaults[setting])}
    assert not wrong


def test_a_table_is_read_as_people_read_it() -> None:
    found = stated("gsa")
    assert (found["memory_batch"], found["optimizer"], found["lr"]) == ("64", "adam(betas=(0.9, 0.99))", "0.001")
    assert stated("afs")["crop_rule"] == "reject"
    assert not is_written("0.1", 0.2)
    assert is_written("none", None)
    assert is_written("true", True)
