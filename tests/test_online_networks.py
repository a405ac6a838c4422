"""Models with other networks than the default: saved, loaded, served, exported."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ocil import tensorfile
from ocil.errors import OcilError
from ocil.networks import NETWORKS, InputShape, NetworkInfo, register
from ocil.online.export import export
from ocil.online.images import ImageFormat
from ocil.online.model import FILE, Model, Recipe
from ocil.online.vectors import VectorFormat
from ocil.runs.environment import digest
from tests import networks_to_try
from tests.conftest import Call, one_error
from tests.networks_to_try import MODULE
from tests.serving import picture, running

IMAGES, VECTORS = ImageFormat((12, 12, 1)), VectorFormat(6)
HERE = "module:tests.test_online_networks:Small"


class Small(nn.Module):
    """A network from outside that resizes, normalises and reads a number back while it is built."""

    input_size, mean, std, interpolation = (9, 9), (0.5,), (0.25,), "bicubic"

    def __init__(self, input_shape: InputShape, readable: bool = True) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.scale = 1.0 if readable else float(torch.ones(1).cumsum(0)[0])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.scale * self.norm(self.layer(x))
        return found


def with_statistics(input_shape: InputShape) -> nn.Module:
    return nn.BatchNorm1d(input_shape[0])


def images(count: int) -> tuple[np.ndarray, list[str]]:
    x = np.stack([picture(80 * (number % 3), number) for number in range(count)])[..., None]
    return x, [f"class {number % 3}" for number in range(count)]


def vectors(count: int) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 6)) + 4 * (np.arange(count)[:, None] % 3 == np.arange(6) % 3)
    return x.astype(np.float32), [f"class {number % 3}" for number in range(count)]


def taught(form: ImageFormat | VectorFormat, method: str = "er", **settings: Any) -> Model:
    model = Model(Recipe(method, memory=20, settings=settings), form)
    x, labels = (images if isinstance(form, ImageFormat) else vectors)(24)
    for first in range(0, 24, 6):
        model.learn(form.read(x[first : first + 6]), labels[first : first + 6])
    return model


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.pth"
    torch.save(Small((12, 12, 1)).state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        (IMAGES, {"network": HERE, "freeze": "backbone"}),
        (IMAGES, {"network": f"{HERE}(readable=False)", "optimizer": "adamw"}),
        (VECTORS, {"network": "mlp(hidden=8)", "optimizer": "adam", "lr": 0.01}),
        (VECTORS, {}),
    ],
    ids=["frozen", "not without numbers", "mlp", "linear"],
)
def test_saved_loaded_and_on(form: ImageFormat | VectorFormat, settings: dict[str, Any], tmp_path: Path) -> None:
    one = taught(form, **settings)
    one.save(tmp_path)
    other = Model.load(tmp_path, "cpu", trust=True)
    assert other.config == one.config
    x, labels = (images if isinstance(form, ImageFormat) else vectors)(12)
    assert np.array_equal(one.probabilities(x), other.probabilities(x))
    for model in (one, other, again := one.copy("cpu")):
        model.learn(x, labels)
    assert digest(one.learner) == digest(other.learner) == digest(again.learner)


def test_buffers_that_no_file_would_have(tmp_path: Path) -> None:
    """One that changes is refused; a table that never does needs no place in the file."""
    for name, reason in (("Centred", "changes its buffer centre while it trains"), ("Noisy", "draws random numbers")):
        with pytest.raises(OcilError, match=reason):
            Model(Recipe(settings={"network": f"{MODULE}{name}"}), IMAGES)
    one = taught(IMAGES, network=f"{MODULE}Centred(saved=True)")
    one.save(tmp_path)
    other = Model.load(tmp_path, "cpu", trust=True)
    assert np.array_equal(one.probabilities(images(12)[0]), other.probabilities(images(12)[0]))


def test_a_network_that_was_mended_is_no_longer_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, where a class is defined anew."""
    recipe = Recipe(settings={"network": f"{MODULE}Centred"})
    with pytest.raises(OcilError, match="changes its buffer centre"):
        Model(recipe, IMAGES)
    monkeypatch.setattr(networks_to_try, "Centred", networks_to_try.Tiny)
    Model(recipe, IMAGES)


def test_pretrained_weights_are_in_the_file_and_their_path_is_not(tmp_path: Path, weights: Path) -> None:
    one = taught(IMAGES, network=HERE, pretrained=str(weights), freeze="backbone")
    before = torch.load(weights, weights_only=True)
    assert torch.equal(one.learner.network.state_dict()["body.layer.weight"], before["layer.weight"])
    one.save(tmp_path / "model")
    assert str(weights).encode() not in (tmp_path / "model" / FILE).read_bytes()
    with pytest.raises(OcilError, match="gdumb begins anew with the pretrained weights"):
        taught(IMAGES, "gdumb", network=HERE, pretrained=str(weights))
    weights.unlink()
    other = Model.load(tmp_path / "model", "cpu", trust=HERE)
    assert (other.weights, len(other.weights)) == (one.weights, 12)
    assert digest(other.learner) == digest(one.learner)


def rewrite(folder: Path, change: Any) -> None:
    tensors, texts = tensorfile.read(folder / FILE)
    header = json.loads(texts["ocil"])
    change(header)
    tensorfile.write(folder / FILE, tensors, {"ocil": json.dumps(header)})


def test_a_stranger_names_a_file_or_code(tmp_path: Path) -> None:
    taught(IMAGES, network=HERE).save(tmp_path)
    with pytest.raises(OcilError, match=r"has Python code for a network, module:tests\..*--trust") as error:
        Model.load(tmp_path, "cpu")
    assert "\n" not in str(error.value)
    rewrite(tmp_path, lambda header: header["config"].update(network="module:antigravity:fly"))
    with pytest.raises(OcilError, match="has Python code"):
        Model.load(tmp_path, "cpu", trust=HERE)
    assert "antigravity" not in sys.modules
    taught(VECTORS).save(tmp_path)
    for changes, reason in (
        ({"pretrained": "/dev/zero"}, "it names a file of weights"),
        ({"features": "linear"}, "features = linear is for runs"),
        ({"network": "mlp(hidden=(65536, 65536))"}, "is missing|is unknown|its settings ask for"),
        ({"network": "reduced-resnet18"}, "takes images"),
        ({"optimizer": "adam"}, None),
        ({"memory_batch": 1000}, None),
    ):
        taught(VECTORS).save(tmp_path)
        rewrite(tmp_path, lambda header, changes=changes: header["config"].update(changes))
        if reason is None:
            Model.load(tmp_path, "cpu")
        else:
            with pytest.raises(OcilError, match=reason):
                Model.load(tmp_path, "cpu")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda vectors: vectors.update(size=7), "its settings ask for"),
        (lambda vectors: vectors.update(size=2**40), "a vector must have from 1 to"),
        (lambda vectors: vectors.update(size=0), "less than 1"),
        (lambda vectors: vectors.update(precision="float64"), "float16 or float32"),
        (lambda vectors: vectors.update(precision="float16"), "its settings ask for"),
        (lambda vectors: vectors.update(more=1), "unknown part 'more'"),
    ],
)
def test_headers_of_vectors_that_are_wrong(change: Any, reason: str, tmp_path: Path) -> None:
    taught(VECTORS).save(tmp_path)
    rewrite(tmp_path, lambda header: change(header["vectors"]))
    with pytest.raises(OcilError, match=reason):
        Model.load(tmp_path, "cpu")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("optimizer.9.exp_avg", torch.zeros(())),
        ("optimizer.-1.exp_avg", torch.zeros(())),
        ("optimizer.0.exp_avg", torch.zeros(5, 5)),
        ("optimizer.1.exp_avg", torch.zeros(16, 6)),
    ],
)
def test_tensors_that_no_optimiser_has(name: str, tensor: Tensor, tmp_path: Path) -> None:
    taught(VECTORS, optimizer="adam").save(tmp_path)
    tensors, texts = tensorfile.read(tmp_path / FILE)
    tensorfile.write(tmp_path / FILE, tensors | {name: tensor}, texts)
    with pytest.raises(OcilError, match=f"its tensor {name} is"):
        Model.load(tmp_path, "cpu")


def test_a_registered_network_needs_no_trust(tmp_path: Path) -> None:
    with NETWORKS.preserved():
        register(NetworkInfo("small", Small, "small"))
        taught(IMAGES, network="small(readable=False)").save(tmp_path)
        Model.load(tmp_path, "cpu")
    with pytest.raises(OcilError, match="unknown network 'small'"):
        Model.load(tmp_path, "cpu")


def test_learn_again_with_and_without_the_settings(
    ocil_command: Call, tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    for number, pixels in enumerate(images(6)[0]):
        (tmp_path / "photos" / f"class {number % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[:, :, 0]).save(tmp_path / "photos" / f"class {number % 3}" / f"{number}.png")
    usual = ("learn", "photos", "--model", "m", "--method", "er", "--size", 12, "--gray")
    given = (f"network={HERE}", "pretrained=weights.pth", "freeze=backbone")
    assert ocil_command(*usual, "--memory", 20, "--set", *given).code == 0
    assert ocil_command(*usual, "--set", *given).code == 0
    assert "has Python code for a network" in one_error(ocil_command(*usual))
    assert ocil_command(*usual, "--trust").code == 0
    torch.save(Small((12, 12, 1)).state_dict(), "others.pth")
    other = (f"network={HERE}", "pretrained=others.pth")
    assert "was made with pretrained = " in one_error(ocil_command(*usual, "--set", *other))
    image = "photos/class 0/0.png"
    assert "has Python code" in one_error(ocil_command("predict", image, "--model", "m"))
    assert ocil_command("predict", image, "--model", "m", "--trust").code == 0
    wide = ("learn", "photos", "--model", "w", "--method", "er", "--width", 3, "--set", f"network={HERE}")
    assert "width is a setting of reduced-resnet18" in one_error(ocil_command(*wide))


def test_a_network_that_cannot_learn_from_one_input() -> None:
    spec = "module:tests.test_online_networks:with_statistics"
    with pytest.raises(OcilError, match="cannot learn from a single input of 6, which has no batch statistics"):
        taught(VECTORS, network=spec)
    taught(VECTORS, network=spec, freeze="backbone")
    taught(VECTORS, method="ncm", network=spec)  # it takes the network as it is


def test_predictions_share_frozen_weights(tmp_path: Path) -> None:
    recipe = Recipe("er", memory=20, batch_size=4, settings={"network": HERE, "freeze": "backbone"})
    with running(tmp_path, recipe, IMAGES) as service:
        x, labels = images(12)
        for first in range(0, 12, 4):
            receipt = service.writer.submit(x[first : first + 4], labels[first : first + 4]).result(60)
            service.trainer.waiters.wait_for(receipt.last).result(60)
        found = service.predictor.ask(x).result(60).probabilities
        assert np.allclose(found, service.model.probabilities(x))
        mine = service.model.learner.network.state_dict()
        copies = [one.network.state_dict() for one in service.trainer.snapshots._copies]
        assert len(copies) > 1
        for other in copies:
            shared = {name for name in mine if mine[name].data_ptr() == other[name].data_ptr()}
            assert shared == {name for name in mine if name.startswith("body.")}


def check_onnx(model: Model, x: np.ndarray, path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'ocil[onnx]'")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'ocil[onnx]'")
    export(model, path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    wanted = model.probabilities(model.input_format.read(x))
    for count in (1, len(x)):
        (found,) = session.run(None, {given.name: x[:count]})
        np.testing.assert_allclose(found, wanted[:count], atol=1e-5)
    assert np.ptp(wanted, 0).max() > 0.05  # else anything would agree


@pytest.mark.slow
@pytest.mark.usefixtures("quick_onnx")
def test_exported_with_its_resizing_and_normalisation(tmp_path: Path) -> None:
    """12x12 to 9x9: bicubic and antialiased."""
    check_onnx(taught(IMAGES, network=HERE, lr=0.5), images(5)[0], tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_onnx")
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_export_of_a_model_of_vectors(precision: Any, tmp_path: Path) -> None:
    model = taught(VectorFormat(6, precision))
    check_onnx(model, vectors(5)[0], tmp_path / "model.onnx")
    export(model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    x = vectors(3)[0]
    np.testing.assert_allclose(program(torch.from_numpy(x)), model.probabilities(model.input_format.read(x)), atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_onnx")
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_model_of_timm(name: str, timm: Any, tmp_path: Path) -> None:
    torch.save(timm.create_model(name, num_classes=0).state_dict(), tmp_path / "weights.pth")
    settings: dict[str, Any] = {"pretrained": str(tmp_path / "weights.pth"), "freeze": "backbone", "lr": 1.0}
    model = taught(ImageFormat((12, 12, 1)), network=f"timm:{name}", **settings)
    model.save(tmp_path)
    (tmp_path / "weights.pth").unlink()
    other = Model.load(tmp_path, "cpu")
    assert digest(other.learner) == digest(model.learner)
    if name == "test_resnet":
        check_onnx(other, images(4)[0], tmp_path / "model.onnx")


def test_models_of_format_1_are_read(tmp_path: Path) -> None:
    """They have no weights, and no settings of networks."""
    taught(IMAGES).save(tmp_path)
    before = digest(Model.load(tmp_path, "cpu").learner)

    def older(header: dict[str, Any]) -> None:
        header["format"] = 1
        del header["weights"]
        for name in ("network", "pretrained", "freeze", "features", "optimizer"):
            del header["config"][name]

    rewrite(tmp_path, older)
    assert digest(Model.load(tmp_path, "cpu").learner) == before
