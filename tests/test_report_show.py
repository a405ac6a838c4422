"""``ocil show``: one run, or one cell, on the show."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ocil.report import show
from ocil.report.collect import collect
from ocil.runs.config import resolve
from ocil.runs.folder import RunFolder
from tests.conftest import Call, one_error
from tests.test_report_page import HOSTILE, hostile, made_up, save


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save(tmp_path, resolve("er", "cifar100", review=True), level=0.3)
    save(tmp_path, resolve("fine-tune", "cifar100"), level=0.1)
    return tmp_path


def cell_folder(root: Path) -> Path:
    (folder,) = root.glob("cifar100-er-rv-*")
    return folder


def test_a_cell(ocil_command: Call, root: Path) -> None:
    said = ocil_command("show", cell_folder(root))
    assert said.code == 0, said.err
    for text in (
        "er-rv on CIFAR-100, memory 5000, 3 seeds",
        "published %",
        "30.9 ± 0.6",
        "intransigence %",
        "a device",
        "ambiguous",
        "curve",
    ):
        assert text in said.out
    assert "no fine-tuned run" not in said.out  # found beside it
    assert said.out.count("abababababab") == 3
    *lines, last = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert last == "ocil run er --dataset cifar100 --memory 5000 --review --set precision=tf32 --seeds 3"


def test_one_run_by_its_folder_or_its_file(ocil_command: Call, root: Path) -> None:
    folder = cell_folder(root) / "seed-2"
    said = ocil_command("show", folder)
    assert said.code == 0
    assert "seed 2" in said.out
    assert "ab" * 32 in said.out
    assert "--seeds 1 --seed 2" in said.out
    assert ocil_command("show", folder / "result.json").out == said.out


def test_the_table_of_a_single_cell(ocil_command: Call, root: Path) -> None:
    """One that is asked for is printed, in place of all that is known of the cell."""
    said = ocil_command("show", cell_folder(root), "--markdown")
    assert said.code == 0, said.err
    assert said.out.splitlines()[-1] == "| CIFAR-100, memory 5000 | 32.5 ± 1.6 |"
    said = ocil_command("show", cell_folder(root), "--measure", "forgetting")
    assert said.code == 0, said.err
    assert "Forgetting in percent, mean over seeds" in said.out
    assert "'fun' is no measure of a result." in one_error(ocil_command("show", root, "--measure", "fun"))
    assert "'fun' is no measure of a result." in one_error(ocil_command("show", cell_folder(root), "--measure", "fun"))


def test_json(ocil_command: Call, root: Path) -> None:
    said = ocil_command("show", cell_folder(root), "--json")
    content = json.loads(said.out)
    assert (content["method"], content["memory"], len(content["runs"])) == ("er-rv", 5000, 3)
    files = [json.loads(path.read_text()) for path in sorted(cell_folder(root).glob("seed-*/result.json"))]
    assert content["average_accuracy"]["values"] == pytest.approx([run["average_accuracy"] for run in files])
    assert content["matrix"] == pytest.approx(np.mean([run["matrix"] for run in files], axis=0))
    assert content["published"]["mean"] == pytest.approx(0.309)
    assert content["average_intransigence"] is not None
    assert "seed" not in content["config"]
    assert [{k: v for k, v in run.items() if k != "path"} for run in content["runs"]] == files


def test_the_matrix_is_a_triangle(root: Path) -> None:
    matrix = np.array([[0.9, 0.5], [0.25, 0.75]])
    head, first, second = (line.plain for line in show.triangle(matrix))
    assert head.split() == ["1", "2", "mean"]
    assert first.split() == ["1", "90", "·", "90.0"]
    assert second.split() == ["2", "25", "75", "50.0"]
    _, whole = (line.plain for line in show.triangle(np.array([[0.1, 0.2, 0.3]])))
    assert whole.split() == ["1", "10", "20", "30", "20.0"]


@pytest.mark.parametrize("value", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_letters_can_be_read_on_every_colour(value: float) -> None:
    found = re.fullmatch(r"(\w+) on rgb\((\d+),(\d+),(\d+)\)", show.colour(value))
    assert found is not None
    letters, r, g, b = found.groups()

    def light(*rgb: int) -> float:
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pair = sorted([light(int(r), int(g), int(b)), 0.0 if letters == "black" else 1.0])
    assert (pair[1] + 0.05) / (pair[0] + 0.05) > 4.5


def test_a_curve_of_zeros_and_one_task() -> None:
    assert show.sparkline([0.0, 0.0]).startswith("▁▁")
    assert show.sparkline([0.7]) == "█  70.0 → 70.0 %"


def test_names_from_files_are_no_markup(ocil_command: Call, tmp_path: Path) -> None:
    config = resolve("er", "cifar100")
    RunFolder.of(tmp_path, config).save_result(made_up(config, device="[bold]x[/bold][/nonsense]"))
    said = ocil_command("show", tmp_path)
    assert said.code == 0, said.err
    assert "[bold]x[/bold][/nonsense]" in said.out
    hostile(tmp_path / "other")
    assert ocil_command("show", tmp_path / "other").code == 0
    assert HOSTILE[:20] in ocil_command("show", tmp_path / "other").out


def test_offline_and_bare_results(ocil_command: Call, tmp_path: Path) -> None:
    config = resolve("iid-offline", "cifar10")
    RunFolder.of(tmp_path, config).save_result(replace(made_up(config), evaluations=[], environment={}, digest=""))
    said = ocil_command("show", tmp_path)
    assert said.code == 0, said.err
    assert "nan" not in said.out
    assert "unknown" in said.out


def test_runs_that_are_not_finished_are_named(ocil_command: Call, tmp_path: Path) -> None:
    """They are missing in every number, which a reader of the tables could not know."""
    runs = tmp_path / "runs"
    begun = [resolve("er", "cifar100", seed=seed) for seed in (3, 4)]
    folders = [RunFolder.of(runs, config) for config in begun]
    for folder, config in zip(folders, begun, strict=True):
        folder.save_config(config)
    (runs / "other").mkdir()
    (runs / "other" / "config.json").write_text('{"of": "another program"}')
    said = one_error(ocil_command("show", runs))
    assert f"2 runs are not finished: {folders[0].path} and others. What was stopped goes on" in said
    for method in ("er", "afs"):
        save(runs, resolve(method, "cifar100"))
    folders[0].save_result(made_up(begun[0]))
    for words in (("show", runs), ("show", folders[0].path.parent), ("report", runs, "--out", tmp_path / "report")):
        said_now = ocil_command(*words, "--json")
        assert said_now.code == 0
        assert said_now.err.count("\n") == 1
        assert f"1 run is not finished: {folders[1].path}. What was stopped goes on" in said_now.err
        assert len(json.loads(said_now.out)["warnings"]) == 1
        assert ocil_command(*words, "--seeds", "0-3", "--json").err == ""


def test_mistakes(ocil_command: Call, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no" in one_error(ocil_command("show", root / "nowhere"))
    (root / "empty").mkdir()
    assert "no finished run" in one_error(ocil_command("show", root / "empty"))
    config = resolve("er", "cifar100", seed=4)
    folder = RunFolder.of(root / "begun", config)
    folder.save_config(config)
    message = one_error(ocil_command("show", folder.path))
    assert "is not finished" in message
    go_on = "To go on: ocil run er --dataset cifar100 --memory 5000 --set precision=tf32 --seed 4 --seeds 1"
    assert message.endswith(f"{go_on} --out {root / 'begun'}")
    monkeypatch.chdir(tmp_path)
    begun = RunFolder.of(Path("runs"), config)
    begun.save_config(config)
    assert one_error(ocil_command("show", begun.path)).endswith(go_on)
    broken = root / "broken"
    broken.mkdir()
    (broken / "result.json").write_text("{")
    message = one_error(ocil_command("show", broken))
    assert "broken/result.json is not a result of ocil, or it is broken: JSONDecodeError" in message
    assert "Run something first" not in message


def test_a_real_run(run_tiny: Call, ocil_command: Call, tmp_path: Path) -> None:
    run_tiny("er", "--seeds", 1)
    (folder,) = (tmp_path / "runs").glob("tiny-er-*/seed-0")
    said = ocil_command("show", folder, "--json")
    assert said.code == 0, said.err
    content = json.loads(said.out)
    assert content["average_intransigence"] is not None
    assert content["runs"][0]["digest"] == json.loads((folder / "result.json").read_text())["digest"]
    assert collect([folder]).cells[0].command in ocil_command("show", folder).out
