import dataclasses
import json
import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Optional, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ocil import precision
from ocil.cli.options import RunOptions
from ocil.data import CATALOG, DEFAULT, Dataset, load
from ocil.errors import OcilError
from ocil.experiments import configure
from ocil.methods import METHODS, MethodInfo, register
from ocil.methods.afs import AFSConfig
from ocil.methods.config import AugmentedConfig, LearnerConfig, check_config_class
from ocil.methods.er import ER, ERConfig
from ocil.precision import Precision, usual
from ocil.runs.build import build, make_learner
from ocil.runs.config import RunConfig, command, concerns, memory_settings, resolve
from ocil.runs.defaults import DEFAULT_MEMORY
from ocil.runs.settings import as_argument, fill, meanings
from ocil.streams import StreamConfig
from ocil.streams.kinds import settings_of_others
from tests.conftest import Call

with_memory = [name for name, info in METHODS.items() if info.memory]


@pytest.mark.parametrize("dataset", [*CATALOG, "my-birds", "/data/my.npz"])
@pytest.mark.parametrize("name", METHODS)
def test_every_default_resolves(name: str, dataset: str) -> None:
    config = resolve(name, dataset)
    assert config.method == name
    assert config.dataset == dataset
    assert type(config.learner) is METHODS[name].load().Config
    assert (config.learner.memory > 0) == METHODS[name].memory
    if dataset in CATALOG:
        assert config.stream.tasks == CATALOG[dataset].tasks


def test_shared_defaults_are_those_of_the_published_protocol() -> None:
    c, s, views = LearnerConfig(), StreamConfig(), AugmentedConfig()
    assert (c.memory_batch, c.lr, c.momentum, c.weight_decay, c.optimizer, c.width) == (10, 0.1, 0, 0, "sgd", 20)
    assert (c.review, c.review_every, c.review_batch) == (False, 0, 10)
    assert (c.review_lr_scale, c.review_keep_last, c.average) == (0.1, False, 0)
    assert (s.batch_size, s.class_order, s.boundary, s.epochs, s.drop_last) == (10, "fixed", "clear", 1, True)
    assert (s.blurry_share, s.disjoint_share, s.return_share, s.fade) == (0.1, 0.5, 0.2, 0.5)
    assert (views.crop, views.flip, views.jitter, views.gray) == (0.75, 0.5, 0.8, 0)
    assert (views.brightness, views.contrast, views.saturation, views.hue) == (0.4, 0.4, 0.4, 0.1)


@pytest.mark.parametrize(
    ("dataset", "memory", "beta"),
    [
        ("cifar10", 200, 0.05),
        ("cifar10", 500, 0.05),
        ("cifar10", 1000, 0.1),
        ("cifar100", 1000, 0.15),
        ("cifar100", 2000, 0.05),
        ("cifar100", 5000, 0.1),
        ("mini_imagenet", 1000, 0.05),
        ("mini_imagenet", 2000, 0.1),
        ("mini_imagenet", 5000, 0.05),
    ],
)
def test_published_beta(dataset: str, memory: int, beta: float) -> None:
    for given_memory in (memory, str(memory)):
        learner = resolve("afs", dataset, memory=given_memory).learner  # type: ignore[arg-type]
        assert isinstance(learner, AFSConfig)
        assert (learner.beta, learner.memory) == (beta, memory)


def test_gray_only_on_cifar10() -> None:
    gray = {dataset: resolve("afs", dataset).learner.gray for dataset in CATALOG}  # type: ignore[attr-defined]
    assert gray == dict.fromkeys(CATALOG, 0.0) | {"cifar10": 0.2}


@pytest.mark.parametrize("spelling", ["CIFAR-10", "cifar_10", "Cifar10"])
def test_a_dataset_has_its_settings_however_it_is_spelled(spelling: str, tiny: Dataset) -> None:
    assert resolve("afs", spelling) == resolve("afs", "cifar10")
    learner = make_learner("afs", replace(tiny, name=spelling), memory=200, width=2)
    assert learner.config.beta == 0.05  # type: ignore[attr-defined]


def test_a_dataset_itself_has_its_facts() -> None:
    rows, labels = np.zeros((12, 5), np.float32), np.arange(12) % 3
    data = Dataset("rows", rows, labels, rows, labels, ("a", "b", "c"))
    config = resolve("er", data, memory=10)
    assert config.by_name == resolve("er", "rows", memory=10, classes=3, train=12, vectors=True)
    assert (config.dataset, config.stream.tasks, config.learner.network) == ("rows", 3, "linear")


def test_a_dataset_that_is_named_has_the_settings_of_the_command(tiny: Dataset, tmp_path: Path) -> None:
    """Else the same name would be learned with another memory, other tasks or another network from Python."""
    tiny.save(tmp_path / "mine.npz")
    vectors = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)
    Dataset("rows", vectors, tiny.train_y, vectors, tiny.train_y, tiny.classes).save(tmp_path / "rows.npz")
    for name in ("mine", "rows"):
        wanted = configure("er", name, data_dir=tmp_path, seeds=1).config
        assert replace(resolve("er", name, data_dir=tmp_path), fingerprint=wanted.fingerprint) == wanted
        assert resolve("er", tmp_path / f"{name}.npz").learner == wanted.learner
    domains = resolve("er", "fashion-mini:noise,domains=3", settings={"scenario": "domain"})
    assert domains.stream.tasks == 3
    assert resolve("er", "mine").learner.memory == DEFAULT_MEMORY  # it is not found: a run says so


def test_the_user_wins() -> None:
    given_settings = {"beta": "0.7", "gray": 0.5, "tasks": "3", "review": "no", "lr": 0.01, "boundary": "blurry"}
    config = resolve("afs", "cifar10", memory=300, settings=given_settings)
    learner = config.learner
    assert isinstance(learner, AFSConfig)
    assert (learner.beta, learner.gray, learner.review, learner.lr, learner.memory) == (0.7, 0.5, False, 0.01, 300)
    assert (config.stream.tasks, config.stream.boundary) == (3, "blurry")
    offline = resolve("iid-offline", settings={"epochs": 2, "batch_size": 16})
    assert (offline.stream.epochs, offline.stream.batch_size) == (2, 16)


def test_iid_offline_is_the_upper_bound() -> None:
    stream = resolve("iid-offline", "cifar10").stream
    assert (stream.boundary, stream.epochs, stream.batch_size) == ("iid", 50, 128)


@pytest.mark.parametrize("name", [name for name in with_memory if METHODS[name].needs_task_ends])
def test_methods_that_need_task_ends_say_so(name: str) -> None:
    with pytest.raises(OcilError, match="needs task ends"):
        resolve(name, settings={"boundary": "none"})


@pytest.mark.parametrize("name", [name for name in with_memory if not METHODS[name].needs_task_ends])
@pytest.mark.parametrize("zero", [None, 0, "0"])
def test_without_boundaries_reviews_are_periodic(name: str, zero: object) -> None:
    found = resolve(name, settings={"boundary": "none"} | ({} if zero is None else {"review_every": zero}))
    assert found.learner.review_every == 60  # the length of a task, which is less than 500
    assert resolve(name, "cifar100", settings={"boundary": "none"}).learner.review_every == 500
    assert resolve(name, settings={"boundary": "none", "review_every": "70"}).learner.review_every == 70
    assert resolve(name).learner.review_every == 0
    assert "review_every" not in command(found), "it is what the command chooses anyway"
    assert "review_every=70" in command(resolve(name, settings={"boundary": "none", "review_every": "70"}))


@pytest.mark.parametrize("name", METHODS)
def test_names_of_stream_and_learner_do_not_collide(name: str) -> None:
    stream, learner = ({f.name for f in fields(kind)} for kind in (StreamConfig, METHODS[name].load().Config))
    assert not stream & learner
    assert not {"method", "dataset", "seed", "seeds"} & (stream | learner)  # keys of a TOML file


def other_value(name: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    if kind is bool:
        return not value
    if kind is str:
        return {"optimizer": "adam", "network": "resnet18", "freeze": "backbone"}.get(name, "own")
    if get_origin(kind) is tuple:
        return ("1",) if name == "arrival_order" else (1, 2)
    if value is None:
        return 0.125
    if name == "imbalance_factor":
        return 2.0
    return value + 1 if kind is int else value + (0.125 if value < 0.875 else -0.125)


@pytest.mark.parametrize("name", METHODS)
def test_the_cell_names_every_setting_but_the_seed(name: str) -> None:
    config = resolve(
        name, "cifar10", settings={"boundary": "iid", "optimizer": "sgd", "evaluate_every": 9}
    )  # all settings
    assert len({resolve(name, "cifar10", seed=seed).cell for seed in range(5)}) == 1
    variants = [config, replace(config, dataset="cifar100")]
    for part in ("stream", "learner"):
        settings_of = getattr(config, part)
        hints = get_type_hints(type(settings_of))
        for field in fields(settings_of):
            if field.name == "order":
                continue  # a file: tests/test_streams_given.py
            if field.name == "boundary":
                changed = replace(settings_of, boundary="blurry", epochs=1)
                variants.append(replace(config, stream=replace(settings_of, epochs=1)))
            else:
                value = other_value(field.name, getattr(settings_of, field.name), hints[field.name])
                changed = replace(settings_of, **{field.name: value})
            variants.append(replace(config, **{part: changed}))
    different = dict.fromkeys(variants)
    assert len({variant.cell for variant in different}) == len(different)


def test_cells_can_be_read_by_people() -> None:
    assert resolve("er", "cifar10", memory=500).cell.startswith("cifar10-er-m500-")
    assert resolve("er", "/data/my birds.npz", memory=500, review=True).cell.startswith("my birds-er-rv-m500-")
    assert resolve("afs", review=False).cell.startswith("fashion-mini-afs-no-rv-m200-")
    assert resolve("fine-tune").cell.startswith("fashion-mini-fine-tune-")


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind is bool:
        return st.booleans()
    if get_origin(kind) is tuple:
        return st.lists(st.integers(1, 9), min_size=1).map(tuple)
    return st.integers(1, 10**6) if kind is int else st.floats(1e-3, 0.5)


@st.composite
def run_configs(draw: st.DrawFn) -> RunConfig:
    name = draw(st.sampled_from(list(METHODS)))
    parts = (METHODS[name].load().Config, StreamConfig)
    kinds = {field.name: get_type_hints(part)[field.name] for part in parts for field in fields(part)}
    del kinds["epochs"]
    # Names: their own tests have them.
    for key in ("network", "pretrained", "features", "optimizer", "order", "order_digest"):
        del kinds[key]
    # Settings that contradict others: tests/test_streams_kinds.py has them.
    for key in ("arrival_order", "first_task", "imbalance_factor", "tasks", "noise_among"):
        del kinds[key]
    kinds["freeze"] = Literal["none", "backbone", "blocks.3"]
    if not METHODS[name].memory:
        del kinds["memory"], kinds["review"]
    given_settings = draw(st.fixed_dictionaries({}, optional={key: values_of(kind) for key, kind in kinds.items()}))
    given_settings["epochs"] = draw(st.integers(1, 9)) if given_settings.get("boundary") == "iid" else 1
    if parts[0]().optimizer != "sgd":
        given_settings.pop("momentum", None)
    if "width" in given_settings:
        given_settings["width"] = min(given_settings["width"], 1024)
    if "projection" in given_settings:
        given_settings["projection"] = min(given_settings["projection"], 30_000)
    if METHODS[name].memory:
        given_settings["memory"] = 10**6
    if "evaluate_on" in given_settings:
        given_settings["evaluate_every"] = 5
    if "candidates" in kinds:
        given_settings["candidates"] = 10**6  # at least a memory batch
    if "hybrid" in kinds:
        given_settings["hybrid"] = True  # other settings need it
    if METHODS[name].needs_task_ends or name == "pcr":
        given_settings["boundary"] = "clear"
        given_settings["epochs"] = 1
    for key in settings_of_others(given_settings.get("boundary", "iid" if METHODS[name].offline else "clear")):
        if key != "epochs":
            given_settings.pop(key, None)
        given_settings.pop("task_ends", None)
    if given_settings.get("boundary") == "none":
        given_settings.pop("task_ends", None)
    if given_settings.get("boundary") == "si-blurry":
        given_settings.pop("task_sizes", None)
    dataset = draw(st.sampled_from(list(CATALOG)) | st.text(min_size=1))
    return resolve(name, dataset, seed=draw(st.integers(0, 2**40)), settings=given_settings)


@given(run_configs())
@settings(max_examples=100, deadline=None)
def test_json_round_trip(config: RunConfig) -> None:
    again = RunConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.cell == config.cell
    assert again.reference().reference() == again.reference()


@given(run_configs())
@settings(max_examples=50, deadline=None)
def test_text_and_values_mean_the_same(config: RunConfig) -> None:
    words = {key: as_argument(value) for part in (config.stream, config.learner) for key, value in vars(part).items()}
    if not METHODS[config.method].memory:
        del words["memory"], words["review"]
    assert resolve(config.method, config.dataset, seed=config.seed, settings=words) == config


def test_the_reference_shares_stream_network_and_learning_rate() -> None:
    config = resolve(
        "afs", "cifar10", seed=3, settings={"lr": 0.05, "width": 4, "boundary": "blurry", "precision": "bf16"}
    )
    reference = config.reference()
    assert reference.method == "fine-tune"
    assert (reference.seed, reference.stream, reference.dataset) == (3, config.stream, "cifar10")
    for name in ("lr", "width", "momentum", "weight_decay", "precision"):
        assert getattr(reference.learner, name) == getattr(config.learner, name), name
    assert reference.learner.memory == 0
    assert resolve("er", "cifar10", seed=3).reference() == resolve("afs", "cifar10", seed=3).reference()


def test_fine_tune_is_its_own_reference() -> None:
    config = resolve("fine-tune", "cifar10", settings={"lr": 0.2, "width": 3, "precision": "bf16", "memory_batch": 7})
    assert config.reference() == config


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"lr": "abc"}, "lr = 'abc' is not a number."),
        ({"lr": "nan"}, "lr = 'nan' is not a number."),
        ({"lr": float("inf")}, "lr = inf is not a number."),
        ({"fade": "nan"}, "fade = 'nan' is not a number."),
        ({"lr": -0.1}, "lr = -0.1 must be more than 0."),
        ({"lr": True}, "lr = True is not a number."),
        ({"lr": None, "width": []}, "width = [] is not a whole number."),
        ({"tasks": "2.5"}, "tasks = '2.5' is not a whole number."),
        ({"tasks": 2.5}, "tasks = 2.5 is not a whole number."),
        ({"tasks": 0}, "tasks = 0 must be at least 1."),
        ({"review": "maybe"}, "review = 'maybe' is not true or false."),
        ({"review": 2}, "review = 2 is not true or false."),
        ({"boundary": "blury"}, "Did you mean 'blurry'?"),
        ({"forward": 3}, "forward = 3 is not a choice."),
        ({"widht": 3}, "unknown setting 'widht' for er. Did you mean 'width'?"),
        ({"epochs": 2}, "epochs > 1 needs boundary = 'iid'"),
        ({"memory": 5}, "er: memory = 5 is smaller than batch_size = 10: give a memory of 10 or more"),
        ({"memory": 15, "memory_batch": 30}, "memory = 15 is smaller than memory_batch = 30"),
        ({"memory": -1}, "memory = -1 must be at least 0."),
        ({"blurry_share": 1.5}, "blurry_share = 1.5 must be from 0 to 1."),
        ({"fade": 1}, "fade has no effect with boundary = 'clear': give boundary=none, or leave it out."),
        (
            {"boundary": "none", "blurry_share": 0.3},
            "blurry_share has no effect with boundary = 'none': give boundary=blurry or boundary=i-blurry or "
            "boundary=si-blurry, or leave it out.",
        ),
    ],
)
def test_bad_settings(given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OcilError) as error:
        resolve("er", settings=given_settings)
    assert message in str(error.value)


@pytest.mark.parametrize("key", ["memory", "review"])
def test_fine_tune_has_no_memory(key: str) -> None:
    for nothing in ({"review": "false"}, {"memory": "0"}, {"review": False, "memory": 0}):
        assert resolve("fine-tune", settings=nothing) == resolve("fine-tune")
    with pytest.raises(OcilError, match=f"fine-tune keeps no memory: leave out {key}"):
        resolve("fine-tune", settings={key: 1})


@pytest.mark.parametrize(("label", "value"), [("er-rv", "true"), ("afs-no-rv", "false")])
def test_a_label_of_tables_is_no_method_and_says_which_it_is(label: str, value: str) -> None:
    """It was taken for a typing error of the method without the reviews."""
    name = label.split("-")[0]
    with pytest.raises(OcilError, match=f"^{label} is the method {name} with review = {value}: name the method, and "):
        resolve(label)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("afss", "afs"),
        ("erx", "er"),
        ("fine_tuen", "fine-tune"),
        ("iid-ofline", "iid-offline"),
        ("ace-er", "er-ace"),
        ("re", "er"),
    ],
)
def test_method_typos(typo: str, meant: str) -> None:
    with pytest.raises(OcilError, match=f"unknown method '{typo}'. Did you mean '{meant}'"):
        resolve(typo)


def test_a_dataset_with_few_classes_gets_fewer_tasks() -> None:
    assert resolve("er", "my-birds", classes=3).stream.tasks == 3
    assert resolve("er", "my-birds", classes=300).stream.tasks == 5


@pytest.mark.parametrize(
    ("name", "dataset", "options"),
    [
        ("afs", "cifar100", {}),
        ("er", "cifar10", {"memory": 500, "review": True}),
        ("afs", "cifar100", {"review": False, "settings": {"beta": 0.3, "tasks": 5, "double_bn_update": False}}),
        ("fine-tune", "cifar100", {"settings": {"precision": "bf16"}}),
        ("afs", "cifar100", {"memory": 20, "settings": {"memory_batch": 10}}),  # smaller than the usual batch
    ],
)
def test_a_command_makes_its_configuration_again(name: str, dataset: str, options: dict[str, Any]) -> None:
    config = resolve(name, dataset, **options)
    words = command(config).split()
    assert words[:5] == ["ocil", "run", name, "--dataset", dataset]
    memory = int(words[words.index("--memory") + 1]) if "--memory" in words else None
    review = True if "--review" in words else False if "--no-review" in words else None
    settings = dict(word.split("=") for word in words[words.index("--set") + 1 :]) if "--set" in words else {}
    assert resolve(name, dataset, memory=memory, review=review, settings=settings) == config


@pytest.mark.parametrize("name", ["memory", "lr", "momentum", "width"])
def test_a_bounded_setting_must_not_be_none(name: str) -> None:
    nothing: dict[str, Any] = {name: None}
    with pytest.raises(OcilError, match=f"^{name} = None must be a number"):
        LearnerConfig(**nothing)


def test_bounds_of_a_setting_that_may_be_none() -> None:
    @dataclass(frozen=True)
    class Mine(LearnerConfig):
        cap: int | None = None
        minimum: ClassVar[dict[str, float]] = LearnerConfig.minimum | {"cap": 1}

    assert Mine().cap is None
    with pytest.raises(OcilError, match="cap = 0 must be at least 1"):
        Mine(cap=0)


def test_fields_say_what_they_concern() -> None:
    memory, review = (
        {"memory", "memory_batch"},
        {"review", "review_every", "review_batch", "review_lr_scale", "review_keep_last"},
    )
    for info in METHODS.values():  # also where a method has another default
        own = concerns(info.load().Config, "memory", "review")
        assert own - {"review_augment"} == memory | review
        assert concerns(info.load().Config, "memory") == memory
    assert memory_settings() == memory | review | {"review_augment"}
    kinds = {"boundary", "blurry_share", "fade", "disjoint_share", "return_share", "task_ends"}
    assert concerns(StreamConfig, "boundaries") == kinds | {"order", "order_digest"}
    assert concerns(StreamConfig, "epochs") == {"epochs"}


def test_a_config_class_without_source_has_no_meanings() -> None:
    """As one is that was made in a notebook; what it inherits is known."""
    space: dict[str, Any] = {"LearnerConfig": LearnerConfig, "dataclass": dataclass}
    exec('@dataclass(frozen=True)\nclass Mine(LearnerConfig):\n    mine: int = 1\n    """What it means."""', space)
    found = meanings(space["Mine"])
    assert "mine" not in found
    assert found["lr"] == meanings(LearnerConfig)["lr"]


# Settings of a method from outside this package


@dataclass(frozen=True)
class OwnConfig(ERConfig):
    temp: float | None = 1.0
    mode: Literal["auto"] | float | None = None
    count: int | float = 1
    either: Optional[int | str] = None  # noqa: UP045  (the older way to write it)
    flag: bool | int = False
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] | None = None
    table: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    anything: Any = None
    made: int = dataclasses.field(init=False, default=3)


class Own(ER):
    Config = OwnConfig


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(METHODS, "own", MethodInfo("own", Own, "own", "-"))
    return "own"


@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("temp", "0.5", 0.5),
        ("temp", "none", None),
        ("temp", "None", None),
        ("temp", 2, 2.0),
        ("mode", "auto", "auto"),
        ("mode", "0.5", 0.5),
        ("mode", "none", None),
        ("count", "2", 2),
        ("count", "2.5", 2.5),
        ("count", 2.0, 2.0),
        ("either", "5", 5),
        ("either", "five", "five"),
        ("either", "none", None),
        ("flag", True, True),
        ("flag", 4, 4),
        ("flag", "no", False),
        ("sizes", "3, 4", (3, 4)),
        ("sizes", [3, 4], (3, 4)),
        ("sizes", "", ()),
        ("sizes", "3", (3,)),
        ("pair", "3,a", (3, "a")),
        ("pair", [3, "a"], (3, "a")),
        ("pair", "none", None),
        ("table", [[1, 2], [3, 4]], [(1.0, 2.0), (3.0, 4.0)]),
        ("anything", [{"a": 1}], [{"a": 1}]),
    ],
)
def test_fields_of_several_types_and_of_several_items(name: str, given_value: Any, expected: Any, own: str) -> None:
    found = getattr(resolve(own, settings={name: given_value}).learner, name)
    assert (type(found), found) == (type(expected), expected)
    if name not in ("table", "anything"):
        assert getattr(resolve(own, settings={name: as_argument(found)}).learner, name) == expected


@pytest.mark.parametrize(
    ("name", "given_value", "words"),
    [
        ("temp", "warm", "temp = 'warm' is not a number or none."),
        ("temp", float("nan"), "temp = nan is not a number."),
        ("temp", True, "temp = True is not a number or none."),
        ("count", "many", "count = 'many' is not a whole number or a number."),
        ("sizes", "3,x", "sizes = 'x' is not a whole number."),
        ("sizes", 3, "sizes = 3 is not a list (as text: '4,3,3')."),
        ("pair", [3], "pair = [3] is not a list (as text: '4,3,3') or none."),
    ],
)
def test_what_fits_none_of_several_types(name: str, given_value: Any, words: str, own: str) -> None:
    with pytest.raises(OcilError) as error:
        resolve(own, settings={name: given_value})
    assert str(error.value) == words


def test_a_config_of_several_types_survives_json(own: str) -> None:
    config = OwnConfig(temp=None, mode="auto", sizes=(1, 2), pair=(1, "b"), table=[(0.5, 1.5)])
    assert fill(OwnConfig, json.loads(json.dumps(asdict(config)))) == config


def test_configurations_with_a_list_can_be_told_apart(own: str) -> None:
    one, same, other = (resolve(own, settings={"table": [[1, last]]}) for last in (2, 2, 3))
    assert list(dict.fromkeys([one, same, other])) == [one, other]
    assert hash(replace(one, learner=replace(one.learner, lr=1))) == hash(
        replace(one, learner=replace(one.learner, lr=1.0))
    )


def test_settings_of_a_method_with_a_list_are_listed(own: str, ocil_command: Call) -> None:
    said = ocil_command("methods", own, "--json")
    defaults = {setting["name"]: setting["default"] for setting in json.loads(said.out)["settings"]}
    assert (defaults["table"], defaults["sizes"]) == ([], [])
    assert "│ table " in ocil_command("methods", own).out


class NoDataclass(ERConfig):
    strength: float = 0.5


@dataclass(frozen=True)
class NoType(ERConfig):
    memory_batch = 30


@dataclass(frozen=True)
class BoundsNothing(ERConfig):
    strength: float = 0.5
    minimum = ERConfig.minimum | {"strenght": 0}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (NoDataclass, "NoDataclass has settings, and the line @dataclass(frozen=True) is missing above it."),
        (NoType, "NoType: memory_batch = ... does not change the default: write memory_batch: TYPE = ..."),
        (BoundsNothing, "BoundsNothing: minimum has a bound of 'strenght', which is not one of its settings."),
        (dict, "Mine.Config must be a class derived from ocil.LearnerConfig."),
    ],
)
def test_a_config_class_that_does_not_do_what_it_says(config: Any, words: str) -> None:
    with pytest.raises(OcilError) as error:
        register(MethodInfo("mine", type("Mine", (ER,), {"Config": config}), "mine", "-"))
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("my_package.mine:Mine", "ocil has no class 'my_package.mine:Mine': give the method 'mine' its class itself."),
        (int, "the method 'mine' must be a subclass of ocil.Learner, not <class 'int'>."),
        (3, "the method 'mine' must be a subclass of ocil.Learner, not 3."),
    ],
)
def test_what_is_no_class_of_a_method(target: Any, words: str) -> None:
    with pytest.raises(OcilError) as error:
        register(MethodInfo("mine", target, "mine", "-"))
    assert str(error.value) == words


@dataclass(frozen=True)
class HasWorkers(ERConfig):
    workers: int = 1


def test_a_method_may_have_a_setting_with_the_name_of_an_option() -> None:
    register(MethodInfo("mine", type("Mine", (ER,), {"Config": HasWorkers}), "mine", "-"))
    options = RunOptions(set=("workers=3",))
    assert options.settings("mine", None) == {"workers": "3"}
    with pytest.raises(OcilError, match="workers is an option of its own, --workers 3"):
        options.settings("er", None)


def test_whoever_bounds_a_setting_of_their_own_keeps_the_bounds_of_the_others() -> None:
    @dataclass(frozen=True)
    class Bounded(ERConfig):
        strength: float = 0.5
        minimum: ClassVar[dict[str, float]] = {"strength": 0, "memory": 5}

    for wrong, least in (("strength", 0), ("width", 1), ("memory", 5)):
        given: dict[str, Any] = {"memory": 9, wrong: -1}
        with pytest.raises(OcilError, match=f"^{wrong} = -1 must be at least {least}"):
            Bounded(**given)
    with pytest.raises(OcilError, match="lr = 0 must be more than 0"):
        Bounded(memory=9, lr=0)


def test_a_class_that_only_bounds_settings_is_no_dataclass() -> None:
    class Bounded(ERConfig):
        minimum: ClassVar[dict[str, float]] = ERConfig.minimum | {"memory": 5}

    check_config_class(Bounded, "Mine")


def test_a_config_class_may_have_slots() -> None:
    @dataclass(frozen=True, slots=True)
    class Slots(LearnerConfig):
        mine: int = 3

    check_config_class(Slots, "Mine")


@pytest.mark.parametrize("name", METHODS)
def test_the_config_classes_of_our_methods(name: str) -> None:
    check_config_class(METHODS[name].load().Config, name)
    resolve(name, "cifar10")  # no setting has the name of one of the stream's


def test_a_setting_with_the_name_of_one_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.make_dataclass("Config", [("tasks", int, 3)], bases=(ERConfig,), frozen=True)
    monkeypatch.setitem(METHODS, "own", MethodInfo("own", type("Mine", (ER,), {"Config": config}), "own", "-"))
    with pytest.raises(OcilError, match=r"^own has a setting 'tasks', as streams have: give it another name\.$"):
        resolve("own")


@pytest.mark.parametrize("seed", [1.5, "1", True, None])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(OcilError, match=r"^seed = .* is not a whole number\.$"):
        resolve("er", seed=seed)


@pytest.mark.parametrize("name", ["batch_size", "memory_batch", "memory", "lr"])
def test_none_is_the_default(name: str) -> None:
    sizes: dict[str, Any] = {"train": 100, "classes": 5}
    assert resolve("afs", "x", settings={name: None}, **sizes) == resolve("afs", "x", **sizes)
    with pytest.raises(OcilError, match="unknown setting 'lrr'"):
        resolve("afs", "x", settings={"lrr": None}, **sizes)


def test_the_help_names_the_memories_of_the_catalog() -> None:
    """The command line does not import the catalog, which needs NumPy, so its help repeats these numbers."""
    text = " ".join(meanings(RunOptions)["memory"].split())
    by_size: dict[int, list[str]] = {}
    for info in CATALOG.values():
        by_size.setdefault(info.memory, []).append(info.name if info.name == DEFAULT else info.title)
    for size, names in by_size.items():
        assert f"{size} for {' and '.join(names)}" in text
    assert f"at most {DEFAULT_MEMORY}" in text


def test_a_gpu_has_another_default_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    from ocil.longtail import config as tailed

    before = resolve("afs", "cifar100", settings={"precision": "tf32"}).cell
    chosen = resolve("afs", "cifar100", settings={"precision": "bf16"})
    monkeypatch.setattr(precision, "usual", usual)
    for there, able, expected in ((True, True, "bf16"), (True, False, "tf32"), (False, True, "tf32")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        monkeypatch.setattr(precision, "has_bf16_units", lambda device, able=able: able)
        assert resolve("afs", "cifar100").learner.precision == expected
        assert resolve("afs", "cifar100", settings={"precision": "fp32"}).learner.precision == "fp32"
        assert tailed.resolve("oltr", "cifar100").precision == expected
        # Folders keep their names, and a command says what it runs on any machine.
        assert resolve("afs", "cifar100", settings={"precision": "tf32"}).cell == before
        assert resolve("afs", "cifar100", settings={"precision": "bf16"}) == chosen
        assert "precision=bf16" in command(chosen)
        assert "precision=tf32" in tailed.command(tailed.resolve("oltr", settings={"precision": "tf32"}))


def test_a_method_may_have_a_precision_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that takes gradients of gradients, which the kernels for bf16 refuse."""

    @dataclass(frozen=True)
    class Exact(ERConfig):
        precision: Precision = "fp32"

    monkeypatch.setattr(precision, "usual", lambda: "bf16")
    assert resolve("er", "cifar100").learner.precision == "bf16"
    monkeypatch.setattr(ER, "Config", Exact)
    assert resolve("er", "cifar100").learner.precision == "fp32"


def test_a_given_precision_takes_no_gpu_into_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from ocil.longtail import config as tailed

    def refuse() -> Precision:
        raise AssertionError("the GPU was asked")

    monkeypatch.setattr(precision, "usual", refuse)
    assert resolve("er", "cifar100", settings={"precision": "fp32"}).learner.precision == "fp32"
    assert tailed.resolve("ce", "cifar100", settings={"precision": "fp32"}).precision == "fp32"


def test_a_cpu_computes_in_float32_whatever_the_precision_is() -> None:
    data = load()
    x = torch.from_numpy(data.train_x[:8])
    scores = []
    for name in ("fp32", "tf32", "bf16"):
        config = resolve("er", data.name, memory=20, settings={"precision": name, "width": 1})
        scores.append(build(config, data, torch.device("cpu")).scores(x))
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [("cuda", (9, 0), "bf16"), ("cuda", (8, 0), "bf16"), ("cuda", (7, 5), "tf32"), ("mps", (0, 0), "tf32")],
)
def test_bf16_is_for_gpus_that_have_it(
    device: str, capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of a newer GPU goes on on an older one."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert precision.on(torch.device(device), "bf16") == expected
    assert precision.on(torch.device(device), "fp32") == "fp32"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert precision.on(torch.device("cuda"), "bf16") == "bf16"


def test_numbers_of_numpy_are_those_of_python() -> None:
    """Nothing that JSON cannot hold, no other name of the same run, and no float32 with digits that nobody wrote."""
    plain = {
        "lr": 0.1,
        "memory_batch": 5,
        "blurry_share": 0.3,
        "task_sizes": [4, 6],
        "review": True,
        "boundary": "blurry",
    }
    numpy = {
        "lr": np.float32(0.1),
        "memory_batch": np.int16(5),
        "blurry_share": np.float64(0.3),
        "task_sizes": np.array([4, 6]),
        "review": np.bool_(True),
        "boundary": np.str_("blurry"),
    }
    known = {"classes": 10, "train": 2000}
    wanted = resolve("er", "own", memory=50, seed=3, settings=plain, **known)  # type: ignore[arg-type]
    facts = {name: np.int64(value) for name, value in known.items()}
    found = resolve("er", "own", memory=np.int64(50), seed=np.uint8(3), settings=numpy, **facts)  # type: ignore[arg-type]
    assert (found, found.cell) == (wanted, wanted.cell)
    assert json.dumps(found.to_json()) == json.dumps(wanted.to_json())


def test_a_number_of_numpy_keeps_its_value_however_numpy_prints() -> None:
    exact = 0.1 + 1e-13
    with np.printoptions(legacy="1.13"):
        assert resolve("er", settings={"lr": np.float64(exact)}).learner.lr == exact
        assert resolve("er", settings={"lr": np.float32(0.1)}).learner.lr == 0.1


def test_config_classes_take_numbers_of_numpy() -> None:
    stream = StreamConfig(tasks=np.int64(2), blurry_share=np.float32(0.3), class_counts=[np.int64(7)] * 3)  # type: ignore[arg-type]
    learner = ERConfig(memory=np.int64(50), lr=np.float32(0.1))  # type: ignore[arg-type]
    found = json.loads(json.dumps(RunConfig("er", "own", stream=stream, learner=learner).to_json()))
    assert (found["stream"]["blurry_share"], found["stream"]["class_counts"]) == (0.3, [7, 7, 7])
    assert (found["learner"]["memory"], found["learner"]["lr"]) == (50, 0.1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"seed": np.array([1, 2])}, "seed = array([1, 2]) is not a whole number."),
        ({"seed": np.float64(1)}, "seed = np.float64(1.0) is not a whole number."),
        ({"memory": np.array([20, 50])}, "memory = [20, 50] is not a whole number."),
        ({"settings": {"boundary": np.array(["iid", "none"])}}, "boundary = ['iid', 'none'] is not a choice."),
        ({"settings": {3: 4}}, "unknown setting '3' for er."),
    ],
)
def test_arrays_where_a_number_is_meant_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(OcilError, match=re.escape(says)):
        resolve("er", **arguments)
