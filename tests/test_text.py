"""Text that others wrote does nothing to a terminal or a spreadsheet."""

import csv
import io
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocil.data import Dataset
from ocil.report.table import csv_text, markdown_text
from ocil.text import bytes_text, escaped, lines_of, number_text
from tests.conftest import SMALL, Call, Said

ESC, BELL, CSI, DEL, TURNED = "\x1b", "\x07", "\x9b", "\x7f", "\u202e"
EVIL = f"bird{ESC}]0;title{BELL}{CSI}31m{DEL}{TURNED}gnp"
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(said: Said) -> bool:
    return not FORBIDDEN.search(said.out + said.err)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("robin", "robin"),
        ("Ärger 鳥 👩‍👧 a b", "Ärger 鳥 👩‍👧 a b"),
        (EVIL, r"bird\x1b]0;title\x07\x9b31m\x7f\u202egnp"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\udc80", r"\udc80"),
        ("\u2028\u2029\u2066\u0000", r"\u2028\u2029\u2066\x00"),
    ],
)
def test_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert escaped(shown) == shown


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (600, "600 B"), (999.6, "1 kB"), (19_812_345, "19.8 MB"), (1e12, "1 TB")]
)
def test_bytes(number: float, text: str) -> None:
    assert bytes_text(number) == text


def test_every_character_that_moves_or_hides_text_is_escaped() -> None:
    for letter in map(chr, range(sys.maxunicode + 1)):
        if FORBIDDEN.match(letter) or letter == "\n":
            assert escaped(letter) != letter, hex(ord(letter))


def test_learn_and_predict(ocil_command: Call, tmp_path: Path) -> None:
    for name in (EVIL, "plain"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.full((12, 12), 40 * number, np.uint8)).save(
                tmp_path / "photos" / name / f"{number}{ESC}[2J.png"
            )
    (tmp_path / "photos" / EVIL / "broken.png").write_bytes(b"no image")
    words = ("--model", tmp_path / "model")
    small = ("--method", "er", "--memory", 20, "--width", 1, "--size", 12, "--gray", "--batch-size", 4)
    learned = ocil_command("learn", tmp_path / "photos", *words, *small)
    assert learned.code == 1
    assert "left out" in learned.err
    assert clean(learned)
    predicted = ocil_command("predict", tmp_path / "photos", *words)
    assert predicted.code == 1
    assert r"bird\x1b]0;title" in predicted.out.replace("\n", "")
    assert clean(predicted)
    rows = [
        json.loads(line) for line in ocil_command("predict", tmp_path / "photos", *words, "--json").out.splitlines()
    ]
    assert EVIL in {found["label"] for row in rows for found in row.get("top", ())}


def test_datasets_runs_and_reports(ocil_command: Call, tiny: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "data" / f"{EVIL}.npz"
    tiny.save(path)
    where = ("--data-dir", tmp_path / "data")
    listed = ocil_command("datasets", *where)
    assert r"\x1b]0;title" in listed.out
    assert clean(listed)
    assert EVIL in {entry["name"] for entry in json.loads(ocil_command("datasets", *where, "--json").out)["datasets"]}
    assert clean(ocil_command("data", "check", EVIL, *where))
    words = ("-d", path, "-n", 1, "--workers", 1, "-m", 20, "-o", tmp_path / "runs", "--set", *SMALL)
    for command in (("run", "er"), ("compare", "er", "fine-tune")):
        said = ocil_command(*command, *words)
        assert said.code == 0, said
        assert clean(said)
    (run,) = (tmp_path / "runs").glob("*-er-*/seed-0")
    for given in (("show", run), ("report", tmp_path / "runs", "--out", tmp_path / "report")):
        said = ocil_command(*given)
        assert said.code == 0, said
        assert clean(said)
    for table in (tmp_path / "report" / "tables").iterdir():
        assert not FORBIDDEN.search(table.read_text()), table
    assert not FORBIDDEN.search((tmp_path / "runs" / "table.md").read_text())


@pytest.mark.parametrize(
    "words",
    [
        ("run", EVIL),
        ("run", "er", "--dataset", EVIL),
        ("run", "er", "--set", f"{EVIL}=1"),
        ("run", "er", f"--{EVIL}"),
        ("data", "check", f"{EVIL}.npz"),
        ("show", EVIL),
        ("report", EVIL),
        ("predict", EVIL, "--model", EVIL),
        ("learn", EVIL, "--model", EVIL),
    ],
    ids=lambda words: words[0],
)
def test_errors(ocil_command: Call, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = ocil_command(*words)
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert clean(said)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-x", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1+1", "  @x"])
def test_a_spreadsheet_takes_no_name_for_a_formula(text: str) -> None:
    file = io.StringIO()
    csv.writer(file).writerow([csv_text(text)])
    (cell,) = next(csv.reader(io.StringIO(file.getvalue())))
    assert cell.startswith("'")
    assert cell == f"'{escaped(text)}"


def test_names_that_are_no_formula_stay() -> None:
    for text in ("er", "birds-2", "lr=0.1", "3.5", "a=b", ""):
        assert csv_text(text) == text
    assert markdown_text(f"a{ESC}|b") == r"a\\x1b\|b"


@pytest.mark.parametrize("half", [54.15, 54.25, 0.05, -0.05, -3.35, 1234.55])
def test_the_last_bits_of_a_number_change_no_digit(half: float) -> None:
    """A half is rounded away from zero; what is no half is rounded to the nearest digit."""
    text = f"{half + math.copysign(0.001, half):.1f}"
    below, above = math.nextafter(half, -math.inf), math.nextafter(half, math.inf)
    assert {number_text(each, ".1f") for each in (half, below, above)} == {text}
    assert {number_text(each / 100, "percent") for each in (half, below, above)} == {text}
    nearer_to_zero = half - math.copysign(1e-6, half)
    assert number_text(nearer_to_zero, ".1f") == f"{nearer_to_zero:z.1f}"


def test_numbers_of_any_kind_as_text() -> None:
    assert (number_text(-1e-17, "percent"), number_text(0.0, ".1f"), number_text(0.5, ".0f")) == ("0.0", "0.0", "1")
    assert (number_text(-0.0, ".3e"), number_text(-0.04, "8.1f"), number_text(-0.04, "+.1f")) == (
        "0.000e+00",
        "     0.0",
        "+0.0",
    )
    assert (number_text(-0.06, ".1f"), number_text(-math.inf, ".1f"), number_text(-1e-30, ".1e")) == (
        "-0.1",
        "-inf",
        "-1.0e-30",
    )
    assert (number_text(float("nan"), ".1f"), number_text(float("inf"), ".1f")) == ("nan", "inf")
    assert (number_text(12_345_678_901, ",.0f"), number_text(1e-30, ".3e")) == ("12,345,678,901", "1.000e-30")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\nb\n", ["a", "b"]),
        ("a\r\nb\rc\n\nd", ["a", "b", "c", "", "d"]),
        ("a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g\n", ["a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g"]),
    ],
)
def test_the_lines_of_a_text(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines
