"""What every network promises: those of the registry, a user's module, and models of timm."""

import builtins
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import ocil
from ocil import tensorfile
from ocil.data import Dataset
from ocil.engines.job import Job
from ocil.errors import OcilError
from ocil.experiments.estimate import Estimator, Size
from ocil.methods import METHODS
from ocil.methods._gradients import gradient_products
from ocil.methods.base import Learner
from ocil.networks import NETWORKS, NetworkInfo, WrappedNetwork, build, evaluating, register, to_float
from ocil.networks.base import stages
from ocil.networks.registry import names_code, spec_of
from ocil.networks.spec import Spec
from ocil.online.images import ImageFormat
from ocil.online.model import FILE, Model, Recipe
from ocil.runs.build import check, network_of
from ocil.runs.config import RunConfig, command, resolve
from ocil.runs.environment import digest
from ocil.runs.fit import run_bytes
from ocil.testing import check_network
from ocil.testing.watch import watched
from tests.conftest import Call, one_error
from tests.networks_to_try import MODULE, TINY, Tiny

IMAGE, VECTOR = (9, 8, 3), (5,)
FOR_IMAGES = [
    "reduced-resnet18(width=2)",
    "resnet18(width=2)",
    "resnet18(width=2, stem='imagenet', input_size=32)",
    TINY,
    f"{MODULE}Tokens",
]
FOR_VECTORS = ["linear", "linear(normalise=True)", "mlp(hidden=6)", f"{MODULE}Residual"]
OF_TIMM = ["test_resnet(input_size=32)", "test_vit(img_size=32)", "test_efficientnet_gn(input_size=32)"]
ALL = [(spec, IMAGE) for spec in FOR_IMAGES] + [(spec, VECTOR) for spec in FOR_VECTORS]
every_network = pytest.mark.parametrize(("spec", "shape"), ALL, ids=[spec for spec, _ in ALL])
every_model_of_timm = pytest.mark.parametrize("name", OF_TIMM)
# Two entries may share a class: its behaviour is tested once.
STAGES = ("mose",)  # methods that need a network with stages
ALL_METHODS = list({info.target: name for name, info in reversed(list(METHODS.items()))}.values())[::-1]
TRAINED = [name for name in ALL_METHODS if METHODS[name].load().why_not_images(METHODS[name].load().Config()) is None]
DISTINCT = [name for name in TRAINED if name not in STAGES]
every_method = pytest.mark.parametrize("name", DISTINCT)
BEFORE_BATCH_NORM = {"body.stem.0.bias", "body.mix.0.bias"}  # in TINY: the gradient of such a bias is 0
BATCH = 8

pytestmark = pytest.mark.usefixtures("quick_convolution")


def inputs(shape: tuple[int, ...], count: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if len(shape) == 1:
        return torch.randn((count, *shape), generator=generator)
    return to_float(torch.randint(256, (count, *shape), generator=generator, dtype=torch.uint8))


def dataset(vectors: bool, classes: int = 3, each: int = 40) -> Dataset:
    """Classes that are easy to tell apart: by brightness and colour, or by direction."""
    rng = np.random.default_rng(0)

    def draw(labels: np.ndarray) -> np.ndarray:
        if vectors:
            return (3 * np.eye(classes)[labels] + 0.3 * rng.normal(size=(len(labels), classes))).astype(np.float32)
        base = np.stack([20 + 90 * labels, 230 - 100 * labels, np.full_like(labels, 100)], 1)[:, None, None]
        return (base + rng.integers(0, 20, (len(labels), 8, 8, 3))).astype(np.uint8)

    train, test = (rng.permutation(np.repeat(np.arange(classes), count)) for count in (each, 10))
    return Dataset("easy", draw(train), train, draw(test), test, tuple("abc"[:classes]))


IMAGES, VECTORS = dataset(vectors=False), dataset(vectors=True)


def make(name: str, network: str, data: Dataset, **settings: Any) -> Learner:
    usual: dict[str, Any] = {"memory": 30, "memory_batch": BATCH} if METHODS[name].memory else {}
    if name == "gdumb":
        usual["rehearsal_epochs"] = 20
    if name == "rar":
        usual["repeats"] = 2
    if name == "ccl-dc":  # published for thousands of steps, as is mkd
        usual |= {"optimizer": "sgd", "lr": 0.1, "crop": 0.75}
    if name == "mkd":
        usual |= {"optimizer": "sgd", "lr": 0.1, "alpha": 0.2}
    if name == "ranpac":
        usual["projection"] = 60
    return ocil.make_learner(name, data, network=network, batch_size=BATCH, **usual | settings)


def batch(data: Dataset, number: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(number * BATCH, (number + 1) * BATCH) % len(data.train_y)
    return torch.from_numpy(data.train_x)[index], torch.from_numpy(data.train_y)[index]


def learn(learner: Learner, data: Dataset, numbers: range) -> list[float]:
    found = []
    for number in numbers:
        learner.learn(*batch(data, number))
        found.append(float(learner.last_loss))
    return found


# What all promise


@every_network
def test_conforms(spec: str, shape: tuple[int, ...]) -> None:
    check_network(spec, shape)


@every_model_of_timm
def test_models_of_timm_conform(name: str, timm: Any) -> None:
    check_network(f"timm:{name}", IMAGE)
    network = build(IMAGE, 3, seed=5, spec=f"timm:{name}")
    assert network.normalises
    gray = build((9, 8, 1), 3, seed=5, spec=f"timm:{name}")
    with torch.no_grad(), evaluating(gray), evaluating(network):
        x = inputs((9, 8, 1))
        torch.testing.assert_close(gray.features(x), network.features(x.expand(-1, 3, -1, -1)))


@every_network
def test_bf16_is_near_and_gives_float32(spec: str, shape: tuple[int, ...]) -> None:
    exact, rough = (build(shape, 3, seed=5, spec=spec, precision=kind) for kind in ("fp32", "bf16"))
    with torch.no_grad(), evaluating(exact), evaluating(rough):
        wanted, found = exact.features(inputs(shape)), rough.features(inputs(shape))
    assert found.dtype == torch.float32
    assert float((found - wanted).norm() / wanted.norm()) < 0.03


@pytest.mark.parametrize("spec", FOR_IMAGES[1:4])
def test_images_and_weights_are_channels_last(spec: str) -> None:
    network = build(IMAGE, 3, spec=spec)
    assert isinstance(network, WrappedNetwork)
    seen: list[bool] = []
    first = next(m for m in network.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_hook(
        lambda module, given, found: seen.append(given[0].is_contiguous(memory_format=torch.channels_last))
    )
    network(inputs(IMAGE))
    assert seen == [True]
    assert first.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_large_evaluation_is_cut_into_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(IMAGE, 3, spec=TINY)
    assert isinstance(network, WrappedNetwork)
    x = inputs(IMAGE, 7)
    sizes: list[int] = []
    network.body.register_forward_hook(lambda module, given, found: sizes.append(len(given[0])))
    with torch.no_grad(), evaluating(network):
        whole = network.features(x)
        largest = max(network.numbers_written.values())
        monkeypatch.setattr("ocil.networks.wrapped.LARGEST_MAP", 3 * largest)
        parts = network.features(x)
    network.features(x)
    assert sizes == [7, 3, 3, 1, 7]  # where images share statistics they stay together
    torch.testing.assert_close(whole, parts)


# Names


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("mlp", "mlp", {}),
        (" mlp ( hidden = ( 2 , 3 ) ) ", "mlp", {"hidden": (2, 3)}),
        ("timm:a.b_c(drop=-0.5, name='x)')", "timm:a.b_c", {"drop": -0.5, "name": "x)"}),
        ("module:a.b:C.d(x=None, y=[1, {'z': True}])", "module:a.b:C.d", {"x": None, "y": [1, {"z": True}]}),
        ("f()", "f", {}),
    ],
)
def test_names_with_options(text: str, name: str, options: dict[str, Any]) -> None:
    spec = Spec.parse(text, "network")
    assert (spec.name, spec.options) == (name, options)
    assert Spec.parse(str(spec), "network") == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "f(",
        "f)",
        "f(1)",
        "f(x)",
        "f(x=y)",
        "f(x=f())",
        "f(**{})",
        "f(x=1)(y=2)",
        "f(x=1",
        "f(x=1, x=2)",
        f"f(x={'(' * 200})",
    ],
)
def test_what_is_no_name_with_options(text: str) -> None:
    with pytest.raises(OcilError, match="network = "):
        Spec.parse(text, "network")


WRONG = [
    ("reduced-resnet19", "unknown network 'reduced-resnet19'. Did you mean 'reduced-resnet18'?"),
    ("resnet18(depth=3)", "unexpected keyword argument 'depth'"),
    ("resnet18(stem='big')", "use 'small' or 'imagenet'"),
    ("resnet18(width=0)", "from 1 to 1,024"),
    ("reduced-resnet18(depth=3)", "has no option 'depth', only width"),
    ("reduced-resnet18(width='a')", "must be a whole number"),
    ("linear", "takes vectors, and these are images"),
    ("module:tests.networks_to_try", "write module:package.module:factory"),
    ("module:tests.networks_to_try:Nobody", "has no 'Nobody'"),
    ("module:tests.nothing:Nobody", "cannot be imported (ModuleNotFoundError: No module named 'tests.nothing')."),
    ("module:nowhere_at_all:Nobody", "Install it, put its folder into PYTHONPATH, or load a plugin file"),
    ("module:tests.networks_to_try:MODULE", "is not a function or class"),
    ("module:tests.networks_to_try:not_a_module", "must return a torch module, not int"),
    ("module:tests.networks_to_try:scripted", "return the torch module that it was made from"),
    ("module:tests.networks_to_try:gives_a_list", "but it gives list for B = 1"),
    ("module:tests.networks_to_try:gives_the_first", "but it gives [1, 64] for B = 2"),
    ("module:tests.networks_to_try:dropping", "has dropout (1, 0.5), which ocil cannot repeat bit for bit"),
    ("module:tests.networks_to_try:raises", "cannot be built: 'nothing of the kind'"),
    ("module:tests.networks_to_try:Recorded(size=(0, 4))", "must be a side or (height, width)"),
    ("module:tests.networks_to_try:Recorded(mean=(0.5,))", "a mean without a std"),
    ("module:tests.networks_to_try:Recorded(mean=(0.5,), std=(0.0,))", "more than 0"),
    ("module:tests.networks_to_try:Recorded(mean=(0.5,), std=(float,))", "cannot be read"),
    ("module:tests.networks_to_try:Recorded(mean=(.1, .2), std=(1, 1))", "takes images of 2 channels"),
    ("module:tests.networks_to_try:Recorded(interpolation='nearest')", "use bilinear or bicubic"),
    ("module:tests.networks_to_try:Tiny(input_size=5000)", "up to 4096 pixels"),
    ("module:tests.networks_to_try:Tiny(input_size=2.5)", "must be a side or (height, width)"),
    ("module:tests.networks_to_try:Tiny(input_size=(8, 8, 8))", "must be a side or (height, width)"),
]


@pytest.mark.parametrize(("spec", "reason"), WRONG, ids=[spec for spec, _ in WRONG])
def test_a_wrong_network_is_one_line(spec: str, reason: str) -> None:
    with pytest.raises(OcilError) as raised:
        build((8, 8, 1), 3, spec=spec)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_wrong_network_on_the_command_line(ocil_command: Call, tiny_npz: Path, tmp_path: Path) -> None:
    def run(*settings: str) -> str:
        words = ("run", "er", "--dataset", tiny_npz, "--memory", 20, "--workers", 1, "--out", tmp_path / "runs")
        return one_error(ocil_command(*words, "--set", "memory_batch=5", "tasks=2", *settings))

    assert "unknown network 'resnet'" in run("network=resnet")
    assert "takes vectors, and these are images" in run("network=mlp")
    assert "width is a setting of reduced-resnet18" in run("network=resnet18", "width=4")
    assert "freeze = 'layer9' names no stage" in run("network=resnet18(width=2)", "freeze=layer9")
    assert "unknown optimizer 'adan'. Did you mean 'adam'?" in run("optimizer=adan")
    assert "cannot read pretrained = nowhere.pth: No such file" in run("pretrained=nowhere.pth")
    assert not list((tmp_path / "runs").glob("*/seed-*/checkpoint*"))


def test_networks_and_their_options_are_listed(ocil_command: Call) -> None:
    rows = {row["name"]: row for row in json.loads(ocil_command("networks", "--json").out)["networks"]}
    assert rows.keys() >= {*NETWORKS, "timm:MODEL", "module:PACKAGE.MODULE:FACTORY"}
    assert (rows["mlp"]["inputs"], rows["resnet18"]["inputs"]) == ("vectors", "images")
    options = json.loads(ocil_command("networks", "resnet18", "--json").out)["options"]
    assert [(one["name"], one["default"]) for one in options[:2]] == [("width", 64), ("stem", "small")]
    assert all(one["meaning"] for one in options)
    assert "hidden" in ocil_command("networks", "mlp").out
    assert "channels" in ocil_command("networks", TINY).out
    assert "unknown network 'mpl'. Did you mean 'mlp'?" in one_error(ocil_command("networks", "mpl"))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("timm:tf_efficientnet_lite00", "timm has no model 'tf_efficientnet_lite00'. Did you mean"),
        ("timm:test_resnet(pretrained=True)", "use the setting pretrained = own"),
        ("timm:test_resnet(num_classes=4)", "its own head"),
        ("timm:test_resnet(nothing=4)", "cannot be built"),
    ],
)
def test_wrong_models_of_timm(spec: str, reason: str, timm: Any) -> None:
    with pytest.raises(OcilError) as raised:
        build(IMAGE, 3, spec=spec)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_torchvision_that_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def broken(name: str, *rest: Any) -> Any:
        if name == "timm":
            raise RuntimeError("operator torchvision::nms does not exist")
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(OcilError, match=r"^network = timm:test_resnet needs a torchvision that fits PyTorch, [^\n]*$"):
        build(IMAGE, 3, spec="timm:test_resnet")


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr("ocil.errors._is_there", lambda name: name != "timm")
    with pytest.raises(OcilError, match=r"timm is not installed: pip install 'ocil\[timm\]'"):
        build(IMAGE, 3, spec="timm:test_resnet")


def test_a_registered_network_and_a_factory_itself() -> None:
    register(NetworkInfo("tiny", Tiny, "a test's"))
    register(NetworkInfo("tiny", Tiny, "a test's"))
    for network in ("tiny(channels=4)", "Tiny"):
        assert isinstance(make("er", network, IMAGES).network.body, Tiny)
    with pytest.raises(OcilError, match="there is a network 'tiny' already"):
        register(NetworkInfo("tiny", Tiny, "another"))
    register(NetworkInfo("tiny", Tiny, "another"), replace=True)
    with pytest.raises(OcilError, match="a network's name has small letters"):
        register(NetworkInfo("My Net", Tiny, "mine"))
    learner = ocil.make_learner("er", IMAGES, network=Tiny, memory=20)
    assert learner.config.network == TINY
    assert spec_of(Tiny.Inner) == f"{MODULE}Tiny.Inner"
    with pytest.raises(OcilError, match="cannot be found by its name"):
        ocil.make_learner("er", IMAGES, network=lambda shape: Tiny(shape), memory=20)
    with pytest.raises(OcilError, match=r"network = Tiny\(\.\.\.\) is an object, and each run makes its own"):
        ocil.resolve("er", settings={"network": Tiny((8, 8, 1))})
    with pytest.raises(OcilError, match=r"network = 5 must be the name of a network"):
        ocil.resolve("er", settings={"network": 5})


def test_a_file_of_a_stranger_imports_nothing(tmp_path: Path) -> None:
    assert not names_code("mlp")
    assert not names_code("")
    assert names_code(f"{MODULE}Tiny(channels=3)")
    model = Model(Recipe("er", memory=20, settings={"network": TINY}), ImageFormat((16, 16, 3)))
    model.learn(IMAGES.train_x[:8].repeat(2, 1).repeat(2, 2), IMAGES.train_y[:8].tolist())
    model.save(tmp_path)
    for trust in (True, TINY):
        assert isinstance(Model.load(tmp_path, "cpu", trust).learner.network, WrappedNetwork)
    tensors, texts = tensorfile.read(tmp_path / FILE)
    texts = {key: text.replace("tests.networks_to_try:Tiny", "antigravity:fly") for key, text in texts.items()}
    tensorfile.write(tmp_path / FILE, tensors, texts)
    for trust in (False, TINY):
        with pytest.raises(OcilError, match="has Python code for a network, module:antigravity:fly"):
            Model.load(tmp_path, "cpu", trust)
    assert "antigravity" not in sys.modules


# Inputs


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(5, 4), (23, 31), (6, 20), (12, 10)])
def test_images_are_resized_as_pillow_does(size: tuple[int, int], interpolation: str) -> None:
    pixels = torch.randint(256, (2, 12, 10, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    options = f"size={size}, interpolation='{interpolation}', mean=(0., 0., 0.), std=(1., 1., 1.)"
    network = build((12, 10, 3), 3, spec=f"{MODULE}Recorded({options})")
    found = network.features(to_float(pixels)).view(2, 3, *size)
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    for image, one in zip(pixels.numpy(), found, strict=True):
        for channel, found_channel in zip(np.moveaxis(image, 2, 0), one, strict=True):
            exact = Image.fromarray(channel.astype(np.float32)).resize(size[::-1], filters[interpolation])
            wanted = torch.from_numpy(np.array(exact)).clamp(0, 255) / 255
            torch.testing.assert_close(found_channel, wanted, rtol=0, atol=1e-5)


def test_normalisation_by_hand_and_gray_as_three_channels() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    network = build((4, 5, 1), 3, spec=f"{MODULE}Recorded(mean={mean}, std={std})")
    gray = inputs((4, 5, 1))
    wanted = [(gray[:, 0] - m) / s for m, s in zip(mean, std, strict=True)]
    torch.testing.assert_close(network.features(gray), torch.stack(wanted, 1).flatten(1))
    assert network.normalises
    assert "input_mean" not in network.state_dict()  # a fact about the network, not a state


def test_without_a_record_inputs_stay_as_they_are() -> None:
    network = build(IMAGE, 3, spec=f"{MODULE}Recorded")
    x = 2 * inputs(IMAGE) - 1  # ER-ACE and OCM have inputs below 0
    assert torch.equal(network.features(x), x.flatten(1))
    resized = build(IMAGE, 3, spec=f"{MODULE}Recorded(input_size=12, interpolation='bicubic')")
    assert resized.feature_size == 3 * 12 * 12
    assert float(resized.features(x).min()) < -0.5
    assert not resized.normalises


@pytest.mark.parametrize("name", ["er-ace", "ocm"])
def test_methods_leave_the_range_to_a_network_that_normalises(name: str) -> None:
    learner = make(name, f"{MODULE}Recorded(mean=(0.5, 0.5, 0.5), std=(1., 1., 1.))", IMAGES)
    x = torch.from_numpy(IMAGES.train_x[:4])
    assert torch.equal(learner.inputs(x), to_float(x))


# Every method


@pytest.mark.parametrize("name", ALL_METHODS)
@pytest.mark.parametrize(
    ("network", "data"),
    [
        (TINY, IMAGES),
        ("mlp(hidden=8)", VECTORS),
        pytest.param("resnet18(width=4)", IMAGES, marks=pytest.mark.slow),
    ],
    ids=["module", "mlp", "resnet18"],
)
def test_every_method_learns_or_says_why_not(name: str, network: str, data: Dataset) -> None:
    if data is VECTORS and name in ("ocm", "scr", "dvc", "mose", "gsa"):
        with pytest.raises(OcilError, match=rf"^{name} cannot learn from vectors: it [^\n]*\.$"):
            make(name, network, data)
        return
    if network.startswith("resnet18") and name not in TRAINED:  # a module of one's own may be trained already
        with pytest.raises(OcilError, match=rf"^{name} cannot learn from images: its network never learns[^\n]*\.$"):
            make(name, network, data)
        return
    deep = network.startswith("resnet18")
    # Views of tiny images and so few steps leave it to chance whether SGD gets anywhere in so deep a network.
    gentle: dict[str, Any] = {"crop": 1.0, "gray": 0.0, "optimizer": "adam", "lr": 0.01}
    learner = make(name, network, data, **(gentle if deep and name == "ocm" else {}))
    slow = deep and name in ("gss", "mir", "er-ace", "dvc", "pcr")  # to get anywhere
    steps = 30 if data is VECTORS or slow else 12 if name == "ocm" else 15
    before = {key: value.detach().clone() for key, value in learner.network.named_parameters()}
    lost = learn(learner, data, range(steps))
    learner.end_task()
    assert int(learner.failed_at) == -1
    if name in TRAINED:  # a lucky accuracy would not show it
        same = {key for key, value in learner.network.named_parameters() if torch.equal(value, before[key])}
        assert same <= BEFORE_BATCH_NORM
    x, y = torch.from_numpy(data.test_x), torch.from_numpy(data.test_y)
    if name in ("gdumb", "ocm") and deep:
        # Their few steps leave the running statistics of so deep a network far off: take the batch's.
        with torch.no_grad():
            right = learner.network.train()(learner.inputs(x)).argmax(1) == y
        assert float(right.double().mean()) > 0.8
        return
    right = learner.scores(x).argmax(1) == y
    assert float(right.double().mean()) > 0.55 or np.mean(lost[-3:]) < 0.9 * np.mean(lost[1:4])


@pytest.mark.parametrize("name", STAGES)
def test_a_network_that_does_not_show_its_stages(name: str) -> None:
    with pytest.raises(OcilError, match=rf"^{name} needs a network that shows its stages[^\n]*\.$"):
        make(name, f"{MODULE}smooth", IMAGES)
    with pytest.raises(OcilError, match=rf"^{name} needs a network that shows its stages[^\n]*\.$"):
        check(resolve(name, IMAGES, settings={"network": f"{MODULE}smooth"}), IMAGES)  # before any run


@pytest.mark.parametrize(("name", "setting"), [("afs", "views"), ("er-ace", "augment"), ("aaer", "augment")])
def test_views_of_vectors_are_refused(name: str, setting: str) -> None:
    value = {"views": "both", "augment": "both" if name == "er-ace" else True}[setting]
    with pytest.raises(OcilError, match=f"{name} cannot learn from vectors: {setting}"):
        make(name, "linear", VECTORS, **{setting: value})


@every_method
@pytest.mark.parametrize("until", ["backbone", "stem"])
def test_what_is_frozen_does_not_move_by_one_bit(name: str, until: str) -> None:
    learner = make(name, TINY, IMAGES, freeze=until)
    network = learner.network
    before = {key: value.clone() for key, value in network.state_dict().items()}
    learn(learner, IMAGES, range(5))
    learner.end_task()
    learn(learner, IMAGES, range(5, 7))
    if METHODS[name].memory:
        learner.review()
    learner.train()
    learn(learner, IMAGES, range(7, 8))
    learner.end_task()
    moved = {key for key, value in network.state_dict().items() if not torch.equal(value, before[key])}
    frozen = {key for key in before if network.is_frozen(key)}
    assert {"body.shift", "body.stem.0.weight", "body.stem.1.running_mean", "body.stem.1.weight"} <= frozen
    assert ("body.mix.1.running_var" in frozen) == (until == "backbone")
    assert not moved & frozen
    assert any(key.startswith("head.") for key in moved)
    assert until == "backbone" or {"body.mix.0.weight", "body.mix.1.running_var"} <= moved
    stem = set(network.get_submodule("body.stem").parameters())
    assert not stem & set(learner.optimizer.parameters)


def test_dropout_that_is_off_or_frozen_is_welcome() -> None:
    build(IMAGE, 3, spec=f"{MODULE}dropping(share=0.0)")
    build(IMAGE, 3, spec=f"{MODULE}dropping", freeze="backbone")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Noisy", "Noisy draws random numbers while it trains"),
        ("Centred", "Centred changes its buffer centre while it trains, and has it registered with persistent=False"),
    ],
)
def test_what_no_seed_decides_and_what_nothing_saves_is_refused(
    ocil_command: Call, tiny_npz: Path, tmp_path: Path, name: str, reason: str
) -> None:
    """Two runs of one seed had different results, and so had one that was resumed."""
    where = ("--dataset", tiny_npz, "--memory", 20, "--out", tmp_path / "runs")
    how = ("--seeds", 1, "--workers", 1, "--no-reference")
    words = ("run", "er", *where, *how, "--set", "memory_batch=5", "tasks=2", f"network={MODULE}{name}")
    assert reason in one_error(ocil_command(*words))
    assert not (tmp_path / "runs").exists()
    assert ocil_command(*words, "freeze=backbone").code == 0


def test_a_network_that_cannot_be_copied_or_has_odd_tables_is_welcome(tiny_npz: Path, tmp_path: Path) -> None:
    settings = {"memory_batch": 5, "tasks": 2, "network": f"{MODULE}Odd"}
    ocil.run(ocil.resolve("er", tiny_npz, memory=20, settings=settings), tmp_path, device="cpu")


def test_stages_by_name() -> None:
    network = build(IMAGE, 3, spec="resnet18(width=2)")
    assert stages(network) == ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"]
    for until, open_ in (("layer1", "layer2.0.conv1"), ("layer2.0", "layer2.1.conv1"), ("layer4", None)):
        network = build(IMAGE, 3, spec="resnet18(width=2)", freeze=until)
        trained = {name for name, p in network.named_parameters() if p.requires_grad}
        assert "body.conv1.weight" not in trained
        assert (f"body.{open_}.weight" in trained) if open_ else trained == {"head.weight", "head.bias"}
    reduced = build(IMAGE, 3, 2, freeze="blocks.2")
    assert next(name for name, p in reduced.named_parameters() if p.requires_grad).startswith("blocks.3.")
    assert not reduced.get_submodule("blocks.2").training
    assert reduced.get_submodule("blocks.3").training
    for wrong in ("head", "body", "", "conv", "layer1.", "conv1.weight"):
        with pytest.raises(OcilError, match="names no stage"):
            build(IMAGE, 3, spec="resnet18(width=2)", freeze=wrong)


OPTIMISED = [*((name, "sgd") for name in DISTINCT), ("er", "adamw"), ("afs", "adamw"), ("gdumb", "nadam")]


@pytest.mark.parametrize(("name", "optimizer"), OPTIMISED)
def test_a_state_continues_bit_for_bit(name: str, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "growing": True}
    first = make(name, f"{MODULE}Tiny(channels=4)", IMAGES, **settings)
    learn(first, IMAGES, range(4))
    first.end_task()
    state = {key: value.clone() for key, value in first.state().items()}
    second = make(name, f"{MODULE}Tiny(channels=4)", IMAGES, **settings)
    second.load_state(state)
    for learner in (first, second):
        learn(learner, IMAGES, range(4, 6))
        learner.end_task()
    assert digest(first) == digest(second)


@every_method
def test_heads_grow_with_any_network(name: str) -> None:
    learner = make(name, f"{MODULE}Tiny(channels=4)", IMAGES, growing=True)
    assert learner.classes_met == []
    x, y = batch(IMAGES, 0)
    learner.learn(x, y)
    learner.learn(x, y + 20)  # more classes than there was room for
    assert learner.classes_met == sorted({*y.tolist(), *(y + 20).tolist()})
    scores = learner.scores(x)
    assert scores.shape == (BATCH, 32)
    unmet = [number for number in range(32) if number not in learner.classes_met]
    assert not set(scores.argmax(1).tolist()) & set(unmet)


@pytest.mark.parametrize("name", ["er", "afs", "gss", "mir", "gdumb"])
@pytest.mark.parametrize("network", [f"{MODULE}Tiny(channels=4)", f"{MODULE}Recorded(input_size=6)"])
def test_steady_steps_read_nothing_and_keep_their_shapes(name: str, network: str) -> None:
    settings = {"gss": {"groups": 2, "group_size": 4}, "mir": {"candidates": 10}}.get(name, {})
    learner = make(name, network, IMAGES, **settings)
    learn(learner, IMAGES, range(5))
    assert learner.shapes_are_static()
    traces = []
    for number in (5, 6):
        x, y = batch(IMAGES, number)
        traces.append(watched(lambda x=x, y=y: learner.learn(x, y)))  # type: ignore[misc]
    assert traces[0] == traces[1]


@pytest.mark.parametrize("network", [TINY, f"{MODULE}Tokens", f"{MODULE}Residual", "mlp(hidden=6)"])
def test_gradients_of_single_samples_with_any_layers(network: str) -> None:
    """GSS's inner products against gradients taken one after the other."""
    data = VECTORS if network.endswith("Residual") or network.startswith("mlp") else IMAGES
    made = build(data.input_shape, 3, spec=network).eval()
    x, y = to_float(torch.from_numpy(data.train_x[:6])), torch.from_numpy(data.train_y[:6])
    parameters = list(made.parameters())

    def gradient(part: slice) -> Tensor:
        found = torch.autograd.grad(F.cross_entropy(made(x[part]), y[part]), parameters)
        return torch.cat([one.flatten() for one in found])

    rows = torch.stack([gradient(slice(i, i + 1)) for i in range(2)] + [gradient(slice(i, i + 2)) for i in (2, 4)])
    found = gradient_products(made, x, y, singles=2, group_size=2)
    torch.testing.assert_close(found, rows @ rows.T, rtol=1e-4, atol=1e-6)


# Configurations


def test_the_default_network_renames_nothing() -> None:
    assert not resolve("er", "cifar100").settings["learner"].keys() & {"network", "pretrained", "freeze", "optimizer"}
    plain = resolve("er", "cifar100")
    spelled = {"network": "reduced-resnet18", "optimizer": "sgd", "freeze": "none", "pretrained": ""}
    assert resolve("er", "cifar100", settings=spelled).cell == plain.cell
    others: list[dict[str, Any]] = [{"network": "resnet18"}, {"optimizer": "adam"}, {"freeze": "backbone"}]
    assert len({plain.cell, *(resolve("er", "cifar100", settings=other).cell for other in others)}) == 4


def test_a_command_can_be_pasted() -> None:
    config = resolve("er", "cifar100", settings={"network": "resnet18(stem='imagenet')", "optimizer": "adam(eps=1e-6)"})
    words = shlex.split(command(config))
    given = dict(word.split("=", 1) for word in words[words.index("--set") + 1 :])
    assert resolve("er", "cifar100", settings=given) == config


def test_width_belongs_to_the_reduced_network() -> None:
    with pytest.raises(OcilError, match="width is a setting of reduced-resnet18: give resnet18 its own options"):
        resolve("er", "cifar100", settings={"network": "resnet18", "width": 4})
    with pytest.raises(OcilError, match=r"reduced-resnet18\(width=4\) and width = 8 differ: leave out one of them"):
        resolve("er", "cifar100", settings={"network": "reduced-resnet18(width=4)", "width": "8"})
    assert resolve("er", "cifar100", settings={"network": "reduced-resnet18(width=4)", "width": "4"}).learner.width == 4
    config = resolve("er", "cifar100", settings={"network": "reduced-resnet18(width=4)"})
    assert network_of(config.learner, (32, 32, 3)).get_parameter("conv1.weight").shape[0] == 4


@pytest.mark.parametrize(
    "same",
    [
        (
            {"width": 4},
            {"network": "reduced-resnet18(width=4)"},
            {"network": "reduced_resnet18( width = 4 )", "width": 4},
        ),
        ({}, {"network": "reduced-resnet18(width=20)"}, {"network": "reduced-resnet18()"}),
        ({"network": "resnet18"}, {"network": "ResNet18(width=64)"}, {"network": "resnet18(stem='small')"}),
        (
            {"network": "resnet18(stem='imagenet', width=8)"},
            {"network": "resnet18(width=8, input_size=None, stem='imagenet')"},
        ),
        ({"network": "timm:a(b=1, c='d')"}, {"network": "timm:a(c = 'd', b=1)"}),
    ],
    ids=str,
)
def test_a_network_written_in_another_way_is_the_same_cell(same: tuple[dict[str, Any], ...]) -> None:
    configs = [resolve("er", "cifar100", settings=settings) for settings in same]
    assert len({config.cell for config in configs}) == 1
    assert len(set(configs)) == 1
    other = resolve("er", "cifar100", settings={"network": "resnet18(width=3)"})
    assert other.cell != configs[0].cell


# What is counted


def test_costs_of_a_network_by_hand() -> None:
    """A 3x3 convolution with stride 2 from 9x8x3 to 5x4x8, one in two groups to 3x2x16."""
    network = build(IMAGE, 10, spec=TINY)
    assert isinstance(network, WrappedNetwork)
    assert network.multiply_adds == 5 * 4 * 8 * 27 + 3 * 2 * 16 * (9 * 4)
    assert sum(network.numbers_written.values()) == 3 * 5 * 4 * 8 + 2 * 3 * 2 * 16
    assert network.trained_numbers_written == sum(network.numbers_written.values())
    network.freeze("stem")
    assert network.trained_numbers_written == 2 * 3 * 2 * 16
    network.freeze("backbone")
    assert network.trained_numbers_written == 0
    assert build((8, 8, 3), 1, spec=TINY).smallest_batch == 1
    assert build((4, 4, 3), 1, spec=TINY).smallest_batch == 2  # one place is left: no batch statistics


def test_full_resnet18_has_the_published_size() -> None:
    with torch.device("meta"):
        from ocil.networks.resnet18 import ResNet18

        network = ResNet18((224, 224, 3), stem="imagenet")
    assert sum(p.numel() for p in network.parameters()) == 11_689_512 - 513_000  # torchvision's, without its classifier
    assert len(network.state_dict()) == 122 - 2


def sized(network: str, **settings: Any) -> RunConfig:
    return resolve("er", "cifar100", memory=1000, settings={"network": network} | settings)


def test_the_estimate_of_device_memory_follows_the_network() -> None:
    data = IMAGES
    small, large = sized("resnet18(width=4)"), sized("resnet18(width=16)")
    assert 2.5 < run_bytes(large, data) / run_bytes(small, data) < 17
    frozen = sized("resnet18(width=16)", freeze="backbone")
    assert run_bytes(frozen, data) < run_bytes(large, data)
    adam = sized("resnet18(width=16)", optimizer="adam")
    weights = sum(p.numel() for p in network_of(large.learner, data.input_shape).parameters())
    more = run_bytes(adam, data) - run_bytes(large, data)
    assert 8 * weights <= more < 8.5 * weights


@pytest.mark.parametrize("setting", ["network", "features"])
def test_an_estimate_runs_no_code_that_a_result_names(setting: str, tmp_path: Path) -> None:
    config = sized("resnet18").to_json()
    config["learner"][setting] = "module:this:s"
    folder = tmp_path / "cell" / "seed-0"
    folder.mkdir(parents=True)
    content = {"config": config, "environment": {"device": platform.machine()}, "wall_seconds": 1.0}
    (folder / "result.json").write_text(json.dumps(content))
    estimator = Estimator.of(Job(tmp_path, "cpu"), {"cifar100": Size(50, 10, 10, (32, 32, 3))})
    assert estimator.ratios == {}
    assert "this" not in sys.modules


@pytest.mark.parametrize(("device", "known"), [("cuda:1", True), ("cuda:0", False), ("auto", False)])
def test_an_estimate_is_from_runs_on_the_gpu_that_is_named(
    device: str, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "new" if device == "cuda:1" else "old")
    folder = tmp_path / "cell" / "seed-0"
    folder.mkdir(parents=True)
    content = {"config": sized("resnet18").to_json(), "environment": {"device": "new"}, "wall_seconds": 1.0}
    (folder / "result.json").write_text(json.dumps(content))
    sizes = {"cifar100": Size(50, 10, 10, (32, 32, 3))}
    assert bool(Estimator.of(Job(tmp_path, device), sizes).ratios) == known


def test_the_estimate_of_time_follows_the_multiply_adds() -> None:
    estimator, size = Estimator("cpu", 1, {}), Size(50000, 10000, 100, (32, 32, 3))
    narrow, wide = (estimator.tabled(sized(f"resnet18(width={width})"), size) for width in (8, 32))
    assert 4 < wide / narrow < 17
    assert estimator.tabled(sized("reduced-resnet18(width=8)"), size) == estimator.tabled(
        sized("reduced-resnet18", width=8), size
    )
    ratios = Estimator("cpu", 1, {("er", "cifar100", "tf32", "resnet18", "none", ""): 3.0})
    assert ratios.seconds(sized("resnet18"), size) == 3 * estimator.seconds(sized("resnet18"), size)
    assert ratios.seconds(sized("resnet18(width=8)"), size) == narrow
