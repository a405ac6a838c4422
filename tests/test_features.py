"""Features that are computed once, kept on disk, and learned from as vectors."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ocil
from ocil.cli import main
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.files import locked
from ocil.runs import features as module
from ocil.runs.build import check
from ocil.runs.config import command
from ocil.runs.features import Encoder, features_of, features_once, missing
from ocil.runs.protocol import Interrupted
from tests.reference.datasets import patterned

TINY = "module:tests.test_features:Tiny"
DATA = patterned(per_class=12)
PASSED: list[int] = []


class Tiny(nn.Module):
    """A network that somebody has trained, as far as we know."""

    input_size = (6, 6)

    def __init__(self, input_shape: tuple[int, ...], length: int = 5) -> None:
        super().__init__()
        weight = torch.randn(length, 6 * 6 * input_shape[2], generator=torch.Generator().manual_seed(0))
        self.weight = nn.Buffer(weight)
        self.norm = nn.BatchNorm1d(length)

    def forward(self, x: Tensor) -> Tensor:
        PASSED.append(len(x))
        found: Tensor = self.norm(x.flatten(1) @ self.weight.T)
        return found


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "PART", 20)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setitem(module.BATCH, "cpu", 8)
    module._features_in.cache_clear()
    PASSED.clear()
    yield
    module._features_in.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    DATA.save(tmp_path / "patterned.npz")
    return tmp_path


def total(data: Dataset = DATA) -> int:
    return len(data.train_y) + len(data.test_y)


def computed() -> int:
    """Images that passed in batches: one or two at a time were for looking at the network."""
    return sum(count for count in PASSED if count > 2)


def test_vectors_are_those_of_the_network_in_evaluation_mode(tmp_path: Path) -> None:
    found = features_of(DATA, Encoder(TINY), data_dir=tmp_path)
    assert found.input_shape == (5,)
    assert found.train_x.dtype == np.float32
    network = Encoder(TINY).build(DATA.input_shape)
    x = torch.from_numpy(DATA.test_x).permute(0, 3, 1, 2).float() / 255
    np.testing.assert_allclose(found.test_x, network.plain_features(x).numpy(), atol=1e-5)
    np.testing.assert_array_equal(found.train_y, DATA.train_y)
    assert found.fingerprint == DATA.fingerprint


def test_dropout_of_a_network_that_never_trains_is_welcome(tmp_path: Path) -> None:
    encoder = Encoder("module:tests.networks_to_try:dropping")
    check(ocil.resolve("er", DATA, memory=20, settings={"features": encoder.network, "tasks": 2}), DATA)
    first, again = (features_of(DATA, encoder, data_dir=tmp_path / name) for name in ("one", "two"))
    np.testing.assert_array_equal(first.train_x, again.train_x)


def test_they_are_computed_once(tmp_path: Path) -> None:
    first = features_of(DATA, Encoder(TINY), data_dir=tmp_path)
    assert computed() == total()
    second = features_of(DATA, Encoder(TINY), data_dir=tmp_path)
    assert computed() == total()
    np.testing.assert_array_equal(first.train_x, second.train_x)
    features_of(DATA, Encoder(f"{TINY}(length=3)"), data_dir=tmp_path)
    assert computed() == 2 * total()
    assert len(list((tmp_path / "features").iterdir())) == 2


def test_a_worker_says_that_features_are_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features_once(DATA, Encoder(TINY), tmp_path, torch.device("cpu"))
    said = capsys.readouterr().err
    assert said == f"ocil: features of {DATA.name} by {TINY} are computed: 0/{total()}\n"
    module._features_in.cache_clear()
    features_once(DATA, Encoder(TINY), tmp_path, torch.device("cpu"))
    assert not capsys.readouterr().err


def test_a_stopped_computation_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        features_of(DATA, Encoder(TINY), data_dir=tmp_path, should_stop=lambda: computed() >= 30)
    assert missing(DATA, Encoder(TINY), tmp_path) == total() - 20  # the second part was under way
    PASSED.clear()
    seen: list[tuple[int, int]] = []
    found = features_of(DATA, Encoder(TINY), data_dir=tmp_path, on_progress=lambda *state: seen.append(state))
    assert computed() == total() - 20
    assert seen[0] == (20, total())
    assert seen[-1] == (total(), total())
    assert seen == sorted(seen)
    other = features_of(DATA, Encoder(TINY), data_dir=tmp_path / "other")
    np.testing.assert_array_equal(found.train_x, other.train_x)


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "folder"])
def test_a_damaged_part_is_computed_again(how: str, tmp_path: Path) -> None:
    right = features_of(DATA, Encoder(TINY), data_dir=tmp_path)
    (place,) = (tmp_path / "features").iterdir()
    part = min(place.glob("train-*"))
    content = bytearray(part.read_bytes())
    content[-3] ^= 1
    part.write_bytes({"flipped": bytes(content), "cut": bytes(content[:-9])}.get(how, b""))
    PASSED.clear()
    again = features_of(DATA, Encoder(TINY), data_dir=tmp_path)
    assert computed() == 20
    np.testing.assert_array_equal(again.train_x, right.train_x)


def test_a_network_that_has_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(TINY)
    with pytest.raises(Interrupted):
        features_of(DATA, encoder, data_dir=tmp_path, should_stop=lambda: computed() >= 30)
    monkeypatch.setattr(Tiny.__init__, "__defaults__", (4,))
    with pytest.raises(OcilError, match=r"vectors of 4 now.*Delete that folder"):
        features_of(DATA, encoder, data_dir=tmp_path)


def test_another_plugin_file_makes_other_features(tmp_path: Path) -> None:
    folders, plugin = [], tmp_path / "mine.py"
    for length in (3, 4):
        plugin.write_text(
            "import ocil\nfrom tests.test_features import Tiny\n"
            f"make = lambda shape: Tiny(shape, {length})\n"
            "ocil.register(ocil.NetworkInfo('mine', make, 'mine', 'images'))\n"
        )
        ocil.plugins.load(plugin)
        folders.append(Encoder("mine").folder(DATA, tmp_path))
        assert features_once(DATA, Encoder("mine"), tmp_path, torch.device("cpu")).input_shape == (length,)
    assert folders[0] != folders[1]


def test_whoever_comes_second_waits(tmp_path: Path) -> None:
    found: list[Dataset] = []
    encoder = Encoder(TINY)
    place = encoder.folder(DATA, tmp_path)
    with locked(place, "", ""):
        (place / "kept").touch()
        thread = threading.Thread(target=lambda: found.append(features_of(DATA, encoder, data_dir=tmp_path)))
        thread.start()
        thread.join(0.2)
        assert not found
        with pytest.raises(Interrupted):
            features_of(DATA, encoder, data_dir=tmp_path, should_stop=lambda: True)
    thread.join(30)
    assert found[0].input_shape == (5,)


def test_what_cannot_be_computed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OcilError, match=r"random weights.*pretrained=FILE"):
        features_of(DATA, Encoder("resnet18"), data_dir=tmp_path)
    vectors = features_of(DATA, Encoder(TINY), data_dir=tmp_path)
    with pytest.raises(OcilError, match="holds vectors already"):
        features_of(vectors, Encoder(TINY), data_dir=tmp_path)
    with pytest.raises(OcilError, match="scr cannot learn from vectors"):
        ocil.make_learner("scr", DATA, memory=20, memory_batch=10, features=TINY)


def test_a_learner_for_the_features_of_images() -> None:
    learner = ocil.make_learner("er", DATA, memory=20, features=TINY)
    assert learner.problem.input_shape == (5,)
    assert learner.config.network == "linear"
    assert not list(learner.network.body.parameters())  # type: ignore[union-attr]
    with pytest.raises(OcilError, match="one by one"):
        type(learner)(learner.config, ocil.make_learner("er", DATA, memory=20).problem)


def settings(**more: Any) -> dict[str, Any]:
    return {"features": TINY, "tasks": 2, **more}


@pytest.mark.parametrize("name", ["slda", "er"])
def test_a_run(name: str, folder: Path) -> None:
    given = settings(memory=20) if name == "er" else settings()
    path = str(folder / "patterned.npz")
    config = ocil.resolve(name, path, settings=given, classes=4, train=48)
    check(config, DATA)
    result = ocil.run(config, folder / "runs", device="cpu", data_dir=folder)
    assert computed() == total()
    assert result.images == DATA.fingerprint
    assert len(result.matrix) == 2
    if name == "slda":
        assert np.mean(result.matrix[-1]) > 0.9
    again = ocil.run(config, folder / "again", device="cpu", data_dir=folder)
    assert computed() == total()
    assert again.digest == result.digest
    assert config.cell != ocil.resolve(name, path, settings=given | {"features": f"{TINY}(length=3)"}).cell
    assert "network" not in command(config)


def ocil_command(*words: str) -> int:
    try:
        main(list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(folder / "patterned.npz")
    places = ("--data-dir", str(folder), "--device", "cpu", "--workers", "1")
    chosen = ("--set", f"features={TINY}", "tasks=2")
    experiment = folder / "frozen.toml"
    experiment.write_text(
        f'[settings]\ndataset = "{path}"\nfeatures = "{TINY}"\ntasks = 2\n[[cells]]\nmethod = "ncm"\n'
    )
    sweep = ("sweep", str(experiment), "--seeds", "1", "--out", str(folder / "runs"), *places)
    assert ocil_command(*sweep, "--dry-run") == 0
    assert f"features of {total()} images of patterned by {TINY}" in " ".join(capsys.readouterr().out.split())
    assert computed() == 0
    assert ocil_command("data", "features", path, TINY, "--data-dir", str(folder), "--device", "cpu", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["length"], answer["computed"]) == (5, total())
    assert ocil_command(*sweep, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["features"] == []
    assert ocil_command(*sweep, "--json") == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["average_accuracy"]["mean"] > 0.8
    tune = ("tune", "er", "-d", path, "--memory", "10", "--grid", "lr=0.1,0.3", "--tasks", "1", "--seeds", "1")
    assert ocil_command(*tune, *chosen, "--out", str(folder / "tuning"), *places, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert f"features={TINY}" in record["command"]
    assert computed() == total()  # the search has its held-out images from the same vectors


def test_random_weights_are_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ocil_command("run", "slda", "-d", str(folder / "patterned.npz"), "--out", str(folder / "runs")) == 2
    message = capsys.readouterr().err
    assert "random weights" in message
    assert len(message.splitlines()) == 1
