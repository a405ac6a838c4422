"""Who is told that a method of one's own records no loss: it runs, but no loss is shown, and none is checked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ocil
from ocil import plugins
from ocil.runs.protocol import Interrupted, Progress
from tests.conftest import Call

SILENT = """
import ocil
from ocil.methods.er import ER

class Silent(ER):
    "Records no loss of a step."

    def record_loss(self, loss, phase="stream", /, **parts):
        if phase != "stream":
            super().record_loss(loss, phase, **parts)

class Frozen(Silent):
    "Trains no network."

    trains_network = False

ocil.register(ocil.MethodInfo("silent", Silent, "records no loss", "-"))
ocil.register(ocil.MethodInfo("frozen", Frozen, "trains no network", "-"))
"""
WARNING = "Silent records no loss, so none is shown, and one that is not finite does not stop it: "
SMALL = {"width": 1, "tasks": 2, "memory_batch": 5}


@pytest.fixture
def plugin(tmp_path: Path, own_plugins: None) -> Path:
    path = tmp_path / "silent.py"
    path.write_text(SILENT)
    return path


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("words", [(), ("--workers", 2)], ids=["one", "several"])
@pytest.mark.parametrize("review", ["review=false", "review=true"])
def test_a_command_says_it_once(run_tiny: Call, plugin: Path, review: str, words: Any) -> None:
    options = ("--plugin", plugin, "--seeds", 2, "--no-reference", "--json", *words)
    said = run_tiny("silent", *options, settings=(review,))
    assert said.code == 0, said
    assert said.err.count(WARNING) == 1
    assert len(json.loads(said.out)["runs"]) == 2
    assert WARNING not in run_tiny("silent", *options, settings=(review,)).err, "nothing was run now"


def test_from_python(tiny_npz: Path, tmp_path: Path, plugin: Path) -> None:
    plugins.load(plugin)
    configs = [ocil.resolve("silent", dataset=str(tiny_npz), seed=seed, memory=20, settings=SMALL) for seed in (0, 1)]
    with pytest.warns(UserWarning, match=f"^{WARNING}") as found:
        one = ocil.run(configs[0], tmp_path / "one", device="cpu")
    assert [Path(warning.filename).name for warning in found] == [Path(__file__).name]
    with pytest.warns(UserWarning, match=f"^{WARNING}") as found:
        many = ocil.run_many(configs, tmp_path / "many", workers=1, device="cpu")
    assert [Path(warning.filename).name for warning in found] == [Path(__file__).name]
    assert many[0].matrix == one.matrix
    assert ocil.run(configs[0], tmp_path / "one", device="cpu").matrix == one.matrix  # read, without a warning


def test_a_search_says_it_once(tiny_npz: Path, tmp_path: Path, plugin: Path) -> None:
    plugins.load(plugin)
    where: Any = {"root": tmp_path / "search", "workers": 1, "device": "cpu", "seeds": 1, "tasks": 1}
    with pytest.warns(UserWarning, match=f"^{WARNING}") as found:
        ocil.tune("silent", {"lr": [0.01, 0.1]}, dataset=str(tiny_npz), memory=20, settings=SMALL, **where)
    assert len(found) == 1


def test_a_run_that_goes_on_is_examined_after_a_batch(tiny_npz: Path, tmp_path: Path) -> None:
    """Losses are no part of a checkpoint: a run that was read from one has none yet."""
    settings = {**SMALL, "tasks": 3}
    config = ocil.resolve("er", dataset=str(tiny_npz), memory=20, settings=settings)
    seen: list[Progress] = []
    with pytest.raises(Interrupted):
        ocil.run(config, tmp_path, device="cpu", on_progress=seen.append, should_stop=lambda: len(seen) > 2)
    first = len(seen)
    ocil.run(config, tmp_path, device="cpu", on_progress=seen.append)
    assert seen[first].evaluations
    assert not any(progress.warning for progress in seen)


def test_a_method_that_trains_no_network_stays_silent(run_tiny: Call, plugin: Path) -> None:
    assert "records no loss" not in run_tiny("frozen", "--plugin", plugin, "--seeds", 1, "--no-reference").err


def test_learn_says_it(ocil_command: Call, plugin: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("dark", "light")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(6):
            pixels = np.full((12, 12, 3), 200 * number + image, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{image}.png")
    photos = tmp_path / "photos"
    words = ("--memory", 20, "--width", 1, "--size", 12, "--batch-size", 4, "--plugin", plugin, "--json")
    said = ocil_command("learn", photos, "--model", tmp_path / "model", "--method", "silent", *words)
    assert said.code == 0
    assert said.err.count(WARNING) == 1
    again = ocil_command("learn", photos, "--model", tmp_path / "model", "--plugin", plugin, "--json")
    assert json.loads(again.out)["learned"] == 0
    assert WARNING not in again.err
    fine = ocil_command("learn", photos, "--model", tmp_path / "other", "--method", "er", *words)
    assert "records no loss" not in fine.err
