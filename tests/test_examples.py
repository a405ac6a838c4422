"""The programs in examples/ run, on tiny data."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import ocil
from ocil.methods import METHODS, MethodInfo, method, register
from ocil.methods.er import ER, ERConfig

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {"memory": 30, "width": 1, "device": "cpu"}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def methods() -> Iterator[None]:
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def test_each_is_short_and_tested() -> None:
    found = {path.stem: path.read_text() for path in EXAMPLES.glob("*.py")}
    assert found.keys() == {"folder", "array_stream", "own_method", "frozen_features"}
    for name, text in found.items():
        assert len(text.splitlines()) < 50
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


def test_frozen_features(tiny_npz: Path, tmp_path: Path) -> None:
    module = example("frozen_features")
    accuracy = module.main(str(tiny_npz), "module:tests.test_features:Tiny", data_dir=tmp_path)
    assert accuracy > 0.3
    assert len(list((tmp_path / "features").glob("*/*.safetensors"))) == 2


def test_own_method(methods: None, tiny_npz: Path, tmp_path: Path) -> None:
    module = example("own_method")
    settings = {"memory": 20, "memory_batch": 5, "width": 2, "tasks": 2, "repeats": 3}
    config = ocil.resolve("repeat", str(tiny_npz), settings=settings)
    result = ocil.run(config, tmp_path, device="cpu")
    assert len(result.matrix) == 2
    assert METHODS["repeat"].load() is module.Repeat


@dataclass(frozen=True)
class _LayersConfig(ERConfig):
    layers: tuple[int, ...] = (1, 2)
    limit: int | None = None


class _Layers(ER):
    Config = _LayersConfig


def test_settings_of_any_type_can_be_read_again(methods: None, tiny_npz: Path, tmp_path: Path) -> None:
    register(MethodInfo("layers", _Layers, "layers", "-"))
    settings = {"memory": 20, "memory_batch": 5, "width": 2, "tasks": 2}
    config = ocil.resolve("layers", str(tiny_npz), settings=settings)
    config = replace(config, learner=replace(config.learner, limit=3))  # type: ignore[call-arg]
    assert ocil.run(config, tmp_path, device="cpu").digest == ocil.run(config, tmp_path, device="cpu").digest


def test_a_name_is_registered_once(methods: None) -> None:
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
def test_names_that_cannot_be_a_folder_or_a_setting(name: str, methods: None) -> None:
    with pytest.raises(ocil.OcilError, match="a method's name has small letters and digits"):
        register(MethodInfo(name, ER, "mine", "-"))


@pytest.mark.parametrize("name", ["mine-rv", "mine-no-rv"])
def test_names_that_tables_give_to_reviews(name: str, methods: None) -> None:
    with pytest.raises(ocil.OcilError, match="how tables name a method with or without reviews"):
        register(MethodInfo(name, ER, "mine", "-"))
