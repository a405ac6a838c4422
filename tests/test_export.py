"""What is exported gives the model's own probabilities, without ocil."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ocil.errors import OcilError
from ocil.methods import METHODS
from ocil.methods.base import Learner
from ocil.networks import networks_in
from ocil.online.export import export
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.runs.environment import digest
from tests.networks_to_try import MODULE, TINY

pytestmark = pytest.mark.usefixtures("quick_onnx")
ONLINE = {name: info.load() for name, info in METHODS.items() if not info.offline}
ALIKE = ("rar", "gsa", "mkd")  # they score as scr, pcr and er do
OWN = [
    name
    for name, cls in ONLINE.items()
    if (cls.scorer, cls.inputs) != (Learner.scorer, Learner.inputs) and name not in ALIKE
]
"""Methods that score in a way of their own. The others have one and the same program, and an export takes seconds."""
"""An export takes seconds for a ResNet: what does not depend on the network is tested with a few layers."""
FORMS = {"gray, enlarged": ImageFormat((8, 8, 1)), "colours": ImageFormat((12, 12, 3))}


def taught(method: str, form: ImageFormat, **changes: Any) -> Model:
    quick = {"gdumb": {"rehearsal_epochs": 1}, "ranpac": {"projection": 30}, "rar": {"repeats": 2}}
    settings: dict[str, Any] = quick.get(method, {})
    width = {} if "network" in changes else {"width": 1}
    model = Model(Recipe(method, memory=30, review_every=2, settings=settings | changes, **width), form)
    rng = np.random.default_rng(0)
    for _ in range(3):
        x = rng.integers(0, 256, (10, *form.shape), dtype=np.uint8)
        model.learn(form.read(x), [f"class {label}" for label in rng.integers(0, 20, 10)])
    return model


def images(form: ImageFormat, count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, *form.shape), dtype=np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er", *OWN])
def test_onnx(method: str, tmp_path: Path) -> None:
    form = FORMS["colours" if method in ("er-ace", "scr") else "gray, enlarged"]
    check_onnx(taught(method, form, **({} if method == "er" else {"network": TINY})), form, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 8])
def test_onnx_of_a_network_that_resizes_and_normalises(size: int, tmp_path: Path) -> None:
    form = FORMS["colours"]
    network = f"{MODULE}Normalised(input_size={size})"
    check_onnx(taught("er", form, network=network, freeze="backbone"), form, tmp_path)


def check_onnx(model: Model, form: ImageFormat, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'ocil[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'ocil[onnx]'")
    before = digest(model.learner)
    export(model, tmp_path / "model.onnx")
    assert digest(model.learner) == before
    assert model.learner.network.training
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["labels"]) == model.labels
    assert [(one.name, one.type) for one in session.get_inputs()] == [("images", "tensor(uint8)")]
    assert [one.name for one in session.get_outputs()] == ["probabilities"]
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]  # the weights are in it
    for count in (1, 2, 7):
        x = images(form, count)
        (found,) = session.run(["probabilities"], {"images": x})
        assert found.shape == (count, len(model.labels))
        np.testing.assert_allclose(found, model.probabilities(form.read(x)), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er", "scr", "aaer"])
def test_program_of_torch_export(method: str, tmp_path: Path) -> None:
    form = FORMS["gray, enlarged"]
    model = taught(method, form, network=TINY)  # ONNX is made from such a program, and of a ResNet too
    export(model, tmp_path / "model.pt2")
    extra = {"labels.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert json.loads(extra["labels.json"]) == model.labels
    for count in (1, 5):
        x = images(form, count)
        found = program.module()(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(found, model.probabilities(form.read(x)), atol=1e-5)


@pytest.mark.slow
def test_the_estimator_exports_itself(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")
    from ocil import OnlineClassifier

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)).astype(np.float32), np.array(["wren", "owl", "robin", "owl"] * 10)
    classifier = OnlineClassifier("er", memory=20, random_state=0)
    with pytest.raises(ValueError, match="not fitted yet"):
        classifier.export(tmp_path / "model.pt2")
    classifier.partial_fit(x, y).export(str(tmp_path / "model.pt2"))
    extra = {"labels.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    columns = [json.loads(extra["labels.json"]).index(label) for label in classifier.classes_]
    found = program.module()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found[:, columns], classifier.predict_proba(x), atol=1e-5)


@pytest.mark.slow
def test_no_stored_image_leaves_with_an_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'ocil[onnx]'")
    model = taught("aaer", FORMS["colours"], network=TINY)  # which keeps some images outside its memory too
    stored = model.learner.memory.images[0].numpy().tobytes()
    model.save(tmp_path)
    assert stored in (tmp_path / "model.safetensors").read_bytes()
    for name in ("model.onnx", "model.PT2"):  # an ending may be in capitals
        export(model, tmp_path / name)
        assert stored not in (tmp_path / name).read_bytes()
    with zipfile.ZipFile(tmp_path / "model.PT2") as archive:
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er", "mkd", "ccl-dc"])  # the others have a second network
def test_half_precision_is_exported_in_full(method: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'ocil[onnx]'")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'ocil[onnx]'")
    form = FORMS["colours"]
    model = taught(method, form, network=TINY)
    for network in networks_in(model.learner):
        network.precision = "bf16"  # as on a GPU
    export(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    x = images(form, 3)
    np.testing.assert_allclose(session.run(None, {"images": x})[0], model.probabilities(form.read(x)), atol=0.05)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="has learned nothing yet"):
        export(Model(Recipe("er", width=1), FORMS["colours"]), tmp_path / "model.onnx")
    with pytest.raises(OcilError, match=r"must end in \.onnx or \.pt2"):
        export(taught("er", FORMS["colours"]), tmp_path / "model.h5")
    assert not list(tmp_path.iterdir())


class Branches(nn.Module):
    """A network that looks at values: the exporters have none."""

    def __init__(self, shape: tuple[int]) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if float(y.detach().sum()) > 0 else -y


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_a_network_that_cannot_be_exported(tmp_path: Path, capfd: pytest.CaptureFixture[str], ending: str) -> None:
    if ending == "onnx":
        pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'ocil[onnx]'")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")
    from ocil import OnlineClassifier

    x, y = np.random.default_rng(0).random((20, 6), np.float32), np.arange(20) % 2
    model = OnlineClassifier("er", memory=10, network=Branches).fit(x, y)
    with pytest.raises(OcilError, match=rf"^PyTorch {re.escape(torch.__version__)} cannot make .*data-dependent.*\.$"):
        model.export(tmp_path / f"model.{ending}")
    assert (capfd.readouterr(), list(tmp_path.iterdir())) == (("", ""), [])


@pytest.mark.slow
def test_onnx_files_hold_nothing_of_the_machine(tmp_path: Path) -> None:
    """The exporter would note lines of code and their files. Equal models make equal files."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'ocil[onnx]'")
    model = taught("er", FORMS["colours"], network=TINY)
    for name in ("one.onnx", "two.onnx"):
        export(model, tmp_path / name)
    content = (tmp_path / "one.onnx").read_bytes()
    assert content == (tmp_path / "two.onnx").read_bytes()
    for word in (b"stack_trace", b".py", str(Path.cwd()).encode()):
        assert word not in content


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    import sys

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OcilError, match="pip install 'ocil\\[onnx\\]'"):
        export(taught("er", FORMS["colours"]), tmp_path / "model.onnx")
