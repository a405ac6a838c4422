"""``ocil learn`` and ``ocil predict`` on rows of numbers: .npy, .npz, .parquet and .csv files, also hostile ones."""

import io
import json
import os
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

from ocil import load_dataset
from ocil.data.mapped import is_mapped
from ocil.errors import OcilError
from ocil.online.arrays import ArrayRows, Names, as_labels, open_labels, open_rows
from ocil.online.feed import Feed
from ocil.online.model import FILE, Model, Recipe
from ocil.online.sources import LabelledRows, open_source
from ocil.online.vectors import VectorFormat
from ocil.runs.environment import digest
from tests.conftest import Call, Said, left_over, one_error

ROWS, SIZE = 60, 6
SMALL = ("--method", "er", "--memory", 20, "--batch-size", 8)
RECIPE = Recipe("er", memory=20, batch_size=8)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(ROWS) % 3
    return (rng.normal(size=(ROWS, SIZE)) + 4 * (np.arange(SIZE) % 3 == y[:, None])).astype(np.float32), y


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    x, y = data()
    words = np.array([f"class {label}" for label in y])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x))
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "y.txt").write_text("\n".join(words) + "\n")
    np.savez(tmp_path / "both.npz", x=x, y=words)
    np.savez_compressed(tmp_path / "packed.npz", emb=x.astype(np.float16), lab=y.astype(float))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tables(folder: Path) -> Path:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'ocil[parquet]'")
    from pyarrow import parquet

    x, y = data()
    words = pa.array([f"class {label}" for label in y])
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), SIZE)
    columns = {f"f{number}": x[:, number] for number in range(SIZE)}
    for name, table in {
        "lists": {"emb": list(x), "label": words, "path": ["a.txt"] * ROWS},
        "fixed": {"emb": fixed, "label": words.dictionary_encode()},
        "wide": columns | {"y": y},
        "half": {"emb": pa.array(list(x.astype(np.float16))), "label": words},
        "holes": {"emb": [*list(x[:-1]), None], "label": words},
        "gaps": {"emb": [[None] * SIZE, *[row.tolist() for row in x[1:]]], "label": words},
        "ragged": {"emb": [*list(x[:-1]), x[-1, :3]], "label": words},
        "unlabelled": {"emb": list(x), "label": pa.array([None, *words.to_pylist()[1:]])},
        "texts": {"path": ["a.txt"] * ROWS, "label": words},
    }.items():
        parquet.write_table(pa.table(table), folder / f"{name}.parquet", row_group_size=17)
    return folder


def write_csv(path: Path, label: str = "label", index: bool = False) -> Path:
    x, y = data()
    columns = [f"f{number}" for number in range(SIZE)]
    lines = [",".join([*[""] * index, *columns, label])]
    for number, (row, one) in enumerate(zip(x.tolist(), y, strict=True)):
        lines.append(",".join([*[str(number)] * index, *map(repr, row), f'"class {one}"']))
    path.write_text("\n".join(lines) + "\n")
    return path


def check(path: Path, names: Names = Names(), dtype: Any = np.float32) -> None:  # noqa: B008
    x, y = data()
    rows, labels = open_rows(path, names), open_labels(path, names)
    assert (len(rows), rows.size, rows.dtype) == (ROWS, SIZE, dtype)
    assert [str(label).removeprefix("class ") for label in labels] == [str(label) for label in y]
    for first, last in ((0, 10), (10, 30), (5, 6), (0, 0), (59, 60), (0, ROWS)):
        assert np.array_equal(rows.read(first, last), x[first:last].astype(dtype))


def test_arrays(folder: Path) -> None:
    check(folder / "x.npy", Names(labels=folder / "y.npy"))
    check(folder / "fortran.npy", Names(labels=folder / "y.txt"))
    check(folder / "both.npz")
    check(folder / "packed.npz", Names(("emb",), "lab"), np.float16)
    for name in ("x.npy", "both.npz"):  # mapped, not read
        rows = open_rows(folder / name, Names())
        assert isinstance(rows, ArrayRows)
        assert is_mapped(rows.array)


@pytest.mark.parametrize("name", ["x.npy", "both.npz"])
def test_a_file_that_is_cut_while_it_is_used_is_an_error_and_no_crash(name: str, folder: Path) -> None:
    names = Names(labels=folder / "y.npy") if name == "x.npy" else Names()
    plain, mixed = open_source(folder / name, names), open_source(folder / name, names, shuffle=3)
    plain.batch(0, 5, VectorFormat(SIZE))
    os.truncate(folder / name, 200)
    for source in (plain, mixed):
        with pytest.raises(OcilError, match="has been cut short"):
            source.batch(0, ROWS, VectorFormat(SIZE))


def test_tables(tables: Path) -> None:
    for name in ("lists", "fixed", "wide"):
        check(tables / f"{name}.parquet")
    check(tables / "half.parquet", dtype=np.float16)
    check(tables / "wide.parquet", Names(("f*",)))
    assert open_rows(tables / "wide.parquet", Names(("f1", "f2"))).size == 2
    check(tables / "wide.parquet", Names(("f?",), "y"))
    check(tables / "lists.parquet", Names(("emb",), labels=tables / "y.npy"))


def test_learned_from_any_file_it_is_the_same(tables: Path, ocil_command: Call) -> None:
    found = set()
    for number, words in enumerate((("both.npz",), ("lists.parquet",), ("x.npy", "--labels", "y.txt"))):
        said = ocil_command("learn", *words, "--model", f"m{number}", *SMALL, "--json")
        assert said.code == 0, said
        assert json.loads(said.out)["accuracy"] > 0.5
        model = Model.load(f"m{number}", "cpu")
        found.add((digest(model.learner), model.note["feed"]["digest"]))
    assert len(found) == 1
    again = ocil_command("learn", "lists.parquet", "--model", "m0", *SMALL)  # the same rows in another file
    assert "0 samples learned now, 60 in all" in again.out
    wide = ocil_command("learn", "wide.parquet", "--model", "m0", *SMALL)  # its labels are numbers
    assert "this list is not the one" in one_error(wide)


@pytest.mark.parametrize("name", ["both.npz", "lists.parquet"])
def test_stopped_and_resumed_in_random_order(name: str, tables: Path) -> None:
    source = open_source(tables / name, shuffle=3)
    assert Feed(Model(RECIPE, VectorFormat(SIZE)), source).run(tables / "whole")
    feed = Feed(Model(RECIPE, VectorFormat(SIZE)), source)
    assert not feed.run(tables / "parts", should_stop=lambda: feed.position >= 24)
    assert Feed(Model.load(tables / "parts", "cpu"), open_source(tables / name, shuffle=3)).run(tables / "parts")
    whole, parts = (Model.load(tables / one, "cpu") for one in ("whole", "parts"))
    assert digest(whole.learner) == digest(parts.learner)
    assert whole.note == parts.note
    with pytest.raises(OcilError, match="this list is not the one"):
        Feed(parts, open_source(tables / name, shuffle=4))


def test_rows_that_are_added_are_learned_too(folder: Path) -> None:
    x, y = data()
    np.savez(folder / "first.npz", x=x[:30], y=y[:30])
    np.savez(folder / "more.npz", x=x, y=y)
    Feed(Model(RECIPE, VectorFormat(SIZE)), open_source(folder / "first.npz")).run(folder / "m")
    feed = Feed(Model.load(folder / "m", "cpu"), open_source(folder / "more.npz"))
    assert feed.position == 30
    feed.run(folder / "m")
    assert Model.load(folder / "m", "cpu").samples == 60


def test_predictions(folder: Path, ocil_command: Call) -> None:
    assert ocil_command("learn", "both.npz", "--model", "m", *SMALL).code == 0
    x, y = data()
    said = ocil_command("predict", "x.npy", "packed.npz", "--x", "emb", "--model", "m", "--json")
    assert "holds one array without a name" in one_error(said)
    lines = ocil_command("predict", "x.npy", "both.npz", "--model", "m", "--json").out.splitlines()
    found = [json.loads(line) for line in lines]
    assert [(one["path"], one["row"]) for one in found] == [(p, n) for p in ("x.npy", "both.npz") for n in range(ROWS)]
    assert np.mean([one["label"] == f"class {label}" for one, label in zip(found, y, strict=False)]) > 0.9
    x[7, 2] = np.nan
    np.save(folder / "nan.npy", x)
    said = ocil_command("predict", "nan.npy", "--model", "m", "--json")
    assert said.code == 1
    assert json.loads(said.out.splitlines()[7])["error"].startswith("row 7 of nan.npy has numbers that are NaN")
    assert "row" not in json.loads(said.out.splitlines()[8]).get("error", "")
    assert "x.npy:59" in ocil_command("predict", "x.npy", "--model", "m").out
    for words, reason in (
        (("predict", "a.png"), "a.png is no .npy, .npz, .parquet or .csv file of numbers"),
        (("predict", "y.npy"), "an array of 60"),
    ):
        assert reason in one_error(ocil_command(*words, "--model", "m"))
    np.save(folder / "wide.npy", np.zeros((2, 9)))
    assert "has rows of 9 numbers" in one_error(ocil_command("predict", "wide.npy", "--model", "m"))


def test_labels_that_are_floats_are_whole_numbers() -> None:
    path = Path("y.npy")
    assert as_labels(path, np.array([3.0, -1.0, 2.0**53])) == [3, -1, 2**53]
    for odd in (0.5, np.nan, np.inf, 1e300, 2.0**63):  # the last ones would all become the same number
        with pytest.raises(OcilError, match=r"^the labels in y\.npy must be text or whole numbers, not float64\.$"):
            as_labels(path, np.array([1.0, odd]))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("x.npy",), "x.npy has no labels: name a file of them with --labels"),
        (("x.npy", "--labels", "no.npy"), "no.npy cannot be read: No such file"),
        (("x.npy", "--labels", "short.npy"), "x.npy has 60 rows, and there are 2 labels"),
        (("x.npy", "--labels", "halves.npy"), "must be text or whole numbers, not float64"),
        (("x.npy", "--labels", "blank.txt"), "blank.txt, line 2: a label is missing"),
        (("x.npy", "--labels", "y.npy", "--y", "y"), "--y and --labels both name the labels"),
        (("both.npz", "--x", "z"), "both.npz has no array 'z': it has x, y. Name one with --x"),
        (("both.npz", "--x", "x", "y"), "so name one"),
        (("nan.npy", "--labels", "y.npy"), "row 40 of nan.npy has a number that is NaN, infinite or too large"),
        (("nan.npy", "--labels", "y.npy", "--shuffle", 1), "row 40 of nan.npy .* The first row is row 0."),
        (("large.npy", "--labels", "y.npy"), "row 3 of large.npy has a number that is NaN, infinite or too large"),
        (("images.npy", "--labels", "y.npy"), "an array of 60x4x4: rows of numbers"),
        (("words.npy", "--labels", "y.npy"), "holds <U3, not numbers"),
        (("pickled.npy", "--labels", "y.npy"), "pickled Python objects"),
        (("bomb.npy", "--labels", "y.npy"), "its header asks for 1000000000000x384 numbers"),
        (("cut.npy", "--labels", "y.npy"), "which are not what it holds"),
        (("long.npy", "--labels", "y.npy"), "cannot be read"),
        (("text.npy", "--labels", "y.npy"), "cannot be read"),
        (("empty.npy", "--labels", "none.npy"), "empty.npy has no rows"),
        (("torn.npy", "--labels", "y.npy"), "torn.npy cannot be read: it is damaged"),
        (("text.npz",), "text.npz cannot be read"),
        (("secret.npz",), "secret.npz cannot be read: it is encrypted"),
        (("lzma.npz",), "lzma.npz cannot be read: it is damaged"),
        (("zipbomb.npz",), "zipbomb.npz has .* unpacked|'x' of zipbomb.npz has"),
        (("lying.npz",), "lying.npz cannot be read"),
        (("x.npy", "--labels", "y.npy", "--vectors", 9), "--vectors 9 was given"),
        (("x.npy", "--labels", "y.npy", "--gray"), "--size and --gray are for images"),
        (("nowhere.npz",), "nowhere.npz cannot be read: No such file"),
    ],
)
def test_files_that_are_refused(words: tuple[Any, ...], reason: str, folder: Path, ocil_command: Call) -> None:
    make_hostile(folder)
    assert re.search(reason, one_error(ocil_command("learn", *words, "--model", "m", *SMALL)))
    assert not (folder / "m").exists()
    assert not left_over(folder)


def make_hostile(folder: Path) -> None:
    x, _ = data()
    np.save(folder / "short.npy", np.array([1, 2]))
    np.save(folder / "halves.npy", np.arange(ROWS) / 2)
    (folder / "blank.txt").write_text("a\n\nb\n")
    wrong, large = x.copy(), x.astype(np.float64)
    wrong[40, 1], large[3, 0] = np.inf, 1e300
    np.save(folder / "nan.npy", wrong)
    np.save(folder / "large.npy", large)
    np.save(folder / "images.npy", np.zeros((ROWS, 4, 4), np.uint8))
    np.save(folder / "words.npy", np.full((ROWS, 2), "abc"))
    np.save(folder / "pickled.npy", np.array([[{}, {}]], object), allow_pickle=True)
    np.save(folder / "empty.npy", np.zeros((0, SIZE)))
    np.save(folder / "none.npy", np.zeros(0, int))
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 384)})
    (folder / "bomb.npy").write_bytes(header.getvalue() + bytes(100))
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:-4])
    (folder / "long.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 100)
    (folder / "text.npy").write_text("no array")
    torn = b"{'descr': '<f4', 'shape': (3, "
    (folder / "torn.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(torn)) + torn)
    (folder / "text.npz").write_text("no archive")
    secret = bytearray((folder / "both.npz").read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(mark), bytes(secret)):
            secret[found.start() + flags] |= 1
    (folder / "secret.npz").write_bytes(secret)
    with zipfile.ZipFile(folder / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.write(folder / "x.npy", "x.npy")
    broken = bytearray((folder / "lzma.npz").read_bytes())
    broken[60:400] = b"\xff" * 340
    (folder / "lzma.npz").write_bytes(broken)
    with zipfile.ZipFile(folder / "lying.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(100))
    with zipfile.ZipFile(folder / "zipbomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(100))
    claim(folder / "zipbomb.npz", 2**31 - 1)


def claim(path: Path, size: int) -> None:
    """Let an archive's directory claim that its only entry has so many bytes."""
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = struct.pack("<I", size)
    path.write_bytes(content)


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocil.online.arrays.machine_memory", lambda: 2**31)


@pytest.mark.parametrize(
    ("name", "names", "reason"),
    [
        ("holes", Names(), "has lists of other lengths"),
        ("gaps", Names(), "has missing values"),
        ("ragged", Names(), "has lists of other lengths than 6"),
        ("unlabelled", Names(), "has missing labels: row 0"),
        ("texts", Names(), "column 'path' of .* has string, not numbers"),
        ("lists", Names(("path",)), "column 'path' of .* has string"),
        ("lists", Names(("none*",)), "has no columns of numbers"),
        ("lists", Names(y="nothing"), "has no column 'nothing': there are emb, label, path"),
        ("wide", Names(y="f1"), "has float, but labels must be text or whole numbers"),
    ],
)
def test_tables_that_are_refused(name: str, names: Names, reason: str, tables: Path) -> None:
    def read() -> None:
        source = LabelledRows.of(tables / f"{name}.parquet", names)
        source.check(source.input_format)

    with pytest.raises(OcilError, match=reason) as error:
        read()
    assert "\n" not in str(error.value)


def test_broken_tables(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tables / "lists.parquet"
    monkeypatch.setattr("ocil.online.sources.SHUFFLED_BYTES", 100)
    with pytest.raises(OcilError, match="too many to read in a random order"):
        open_source(path, shuffle=1)
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], b"PAR1" + bytes(100) + whole[-8:], whole[:-8] + bytes(8)):
        path.write_bytes(content)
        with pytest.raises(OcilError, match=r"lists\.parquet cannot be read") as error:
            open_source(path)
        assert "\n" not in str(error.value)


def test_the_other_kind_of_model(folder: Path, ocil_command: Call) -> None:
    from PIL import Image

    (folder / "photos" / "a").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "photos" / "a" / "0.png")
    images = ("photos", "--model", "images", "--method", "er", "--size", 8, "--memory", 20, "--width", 1)
    assert ocil_command("learn", *images).code == 0
    assert ocil_command("learn", "both.npz", "--model", "vectors", *SMALL).code == 0
    other = one_error(ocil_command("learn", "both.npz", "--model", "images"))
    assert "takes images of 8x8x3, and these are vectors of 6 numbers" in other
    assert "the model takes vectors of 6 numbers, and these are images" in one_error(
        ocil_command("learn", "photos", "--model", "vectors")
    )
    assert "x.npy is rows of numbers" in one_error(ocil_command("predict", "x.npy", "--model", "images"))
    assert "are for files of numbers" in one_error(ocil_command("learn", *images, "--x", "x"))
    assert (folder / "vectors" / FILE).is_file()


def test_without_pyarrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "ocil.online.parquet", raising=False)
    with pytest.raises(OcilError, match=r"pip install 'ocil\[parquet\]'"):
        open_rows(folder / "x.parquet", Names())


def test_a_csv_of_numbers(folder: Path, ocil_command: Call) -> None:
    """Columns by their names: labels under the usual or another name, an index as pandas writes it, chosen columns."""
    check(write_csv(folder / "plain.csv"))
    check(write_csv(folder / "indexed.csv", index=True))
    check(write_csv(folder / "named.csv", label="kind"), Names(y="kind"))
    check(folder / "named.csv", Names(x=("f*",), y="kind"))
    check(folder / "plain.csv", Names(labels=folder / "y.txt"))
    said = ocil_command("learn", "indexed.csv", "--model", "model", "--shuffle", 0, *SMALL)
    assert said.code == 0, said
    assert f"{ROWS} in all, 3 classes" in said.out
    shown = [ocil_command("predict", name, "--model", "model").out for name in ("plain.csv", "x.npy")]
    assert shown[0].replace("plain.csv", "x.npy").split() == shown[1].split()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("f0,f1,label\n1,2,a\n3,x,b\n", "line 3: column 'f1' has 'x', not a number"),
        ("f0,f1,label\n1,2,a\n3,,b\n", "line 3: column 'f1' is empty"),
        ("f0,f1,label\n1,2,a\n3,4\n", "line 3 has 2 values for 3 columns"),
        ("f0,f1,label\n1,2,\n", "line 2 has no label"),
        ("f0,f1,label\n1,nan,a\n", "row 0 of .* has a number that is NaN"),
        ("f0,f0,label\n1,2,a\n", "several columns with the name 'f0'"),
        ("f0,f1\n1,2\n", "has no column of labels"),
        ("1,2,3\n4,5,6\n", "its first line must name the columns"),
        ("f0;f1;label\n1;2;a\n", "with commas between them"),
    ],
)
def test_a_csv_of_something_else(folder: Path, ocil_command: Call, content: str, words: str) -> None:
    (folder / "wrong.csv").write_text(content)
    before = sorted(folder.iterdir())
    assert re.search(words, one_error(ocil_command("learn", "wrong.csv", "--model", "model", *SMALL)))
    assert sorted(folder.iterdir()) == before


def test_a_csv_of_numbers_as_a_dataset(folder: Path, ocil_command: Call) -> None:
    write_csv(folder / "features.csv")
    said = ocil_command("data", "import", "mine", "features.csv", "--data-dir", "data", "--test-share", 0.2)
    assert said.code == 0, said
    assert f"3 classes, {SIZE} numbers, 48 train, 12 test" in said.out
    found, (x, _) = load_dataset("mine", folder / "data"), data()
    assert {tuple(row) for row in (*found.train_x.tolist(), *found.test_x.tolist())} == {
        tuple(row) for row in x.tolist()
    }
    (folder / "features.csv").write_text("f0,f1\n1,2\n")
    said = ocil_command("data", "import", "mine", "features.csv", "--data-dir", "data")
    assert "has no column with the name label" in one_error(said)


def test_a_csv_of_numbers_with_a_split(folder: Path, ocil_command: Call) -> None:
    def imported(parts: list[str]) -> Said:
        lines = write_csv(folder / "plain.csv").read_text().splitlines()
        words = ["split", *(parts[number % len(parts)] for number in range(ROWS))]
        (folder / "features.csv").write_text("\n".join(f"{a},{b}" for a, b in zip(lines, words, strict=True)))
        return ocil_command("data", "import", "mine", "features.csv", "--data-dir", "data")

    said = imported(["train", "Test", "train", "val"])
    assert f"3 classes, {SIZE} numbers, 30 train, 15 test" in said.out
    assert f"features.csv was read as vectors of {SIZE} numbers: f0, f1, " in said.out
    assert "validation vectors of features.csv are left out" in said.out
    x, y = data()
    found = load_dataset("mine", folder / "data")
    np.testing.assert_array_equal(found.test_x, x[1::4])
    assert [found.classes[label] for label in found.test_y] == [f"class {label}" for label in y[1::4]]

    assert "30 train, 30 test" in imported(["train", "val"]).out
    assert "a sixth of each class is held out" in imported(["train"]).out
    assert f"{SIZE + 1} numbers" in imported(["1", "2"]).out  # a feature of that name
    assert "line 3: the split is 'later'" in one_error(imported(["train", "later"]))
    assert "has no vectors for training" in one_error(imported(["test"]))
