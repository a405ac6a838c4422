"""The functions of ``ocil.api``, and the page that promises them."""

import ast
import gc
import json
import math
import re
import runpy
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ocil
from ocil import devices
from ocil.methods import METHODS
from ocil.networks import evaluating, to_float
from ocil.online.model import Model
from ocil.runs.program_code import METHOD_ENTRY, digests_of_code
from ocil.runs.protocol import Interrupted
from ocil.runs.results import Result

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
SMALL = {"width": 2, "tasks": 2, "memory_batch": 5}


def configs(npz: Path, *names: str, seeds: int = 2) -> list[ocil.RunConfig]:
    def settings(name: str) -> dict[str, Any]:
        return SMALL | {"memory": 20} if METHODS[name].memory else {"width": 2, "tasks": 2}

    return [ocil.resolve(name, str(npz), seed=seed, settings=settings(name)) for name in names for seed in range(seeds)]


@pytest.fixture(scope="module")
def results(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    root = tmp_path_factory.mktemp("runs")
    return ocil.run_many(configs(tiny_npz, "fine-tune", "er"), root, workers=1, device="cpu")


def test_results_come_in_the_order_of_the_configurations(results: list[Result], tiny_npz: Path) -> None:
    wanted = [(config.method, config.seed) for config in configs(tiny_npz, "fine-tune", "er")]
    assert [(result.config.method, result.config.seed) for result in results] == wanted


def test_results_are_told_as_they_come(tiny_npz: Path, tmp_path: Path) -> None:
    told: list[Result] = []
    first, *rest = configs(tiny_npz, "fine-tune", "er")
    ocil.run_many([first], tmp_path, workers=1, device="cpu")
    found = ocil.run_many([first, *rest], tmp_path, workers=1, device="cpu", on_result=told.append)
    assert told == found  # that of the finished run too
    ocil.run_many(configs(tiny_npz, "fine-tune", "er"), tmp_path, workers=1, device="cpu", on_result=told.append)
    assert told == found * 2


def test_numbers_of_numpy_make_the_same_runs(results: list[Result], tiny_npz: Path, tmp_path: Path) -> None:
    (wanted,) = (result for result in results if result.config.seed == 1 and result.config.method == "fine-tune")
    settings = {"width": np.int64(2), "tasks": np.int32(2)}
    config = ocil.resolve("fine-tune", str(tiny_npz), seed=np.int64(1), settings=settings)  # type: ignore[arg-type]
    one: Any = np.int64(1)
    (found,) = ocil.run_many([config], tmp_path, workers=one, threads=one, device="cpu")
    assert (found.config, found.digest) == (wanted.config, wanted.digest)
    assert ocil.load_results(tmp_path, seeds=np.arange(3)) == [found]


def test_the_folders_are_those_of_the_command_line(results: list[Result], tiny: ocil.Dataset) -> None:
    assert {result.config.fingerprint for result in results} == {tiny.fingerprint}


def test_paths_may_be_text(tiny: ocil.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ocil.data import StoreWriter
    from ocil.experiments import read
    from ocil.report.collect import collect
    from ocil.report.write import write

    monkeypatch.chdir(tmp_path)
    tiny.save("data/tiny.npz")
    stored = ocil.Dataset.from_arrays(tiny.train_x, tiny.train_y, tiny.test_x, tiny.test_y, store="data/stored")
    with StoreWriter("data/written", tiny.classes) as writer:
        writer.add("train", tiny.train_x, tiny.train_y)
        writer.add("test", tiny.test_x, tiny.test_y)
    assert {len(ocil.load_dataset(name, "data").train_y) for name in ("tiny", "stored", "written")} == {
        len(stored.train_y)
    }

    config = ocil.resolve("fine-tune", Path("data/tiny.npz"), settings={"width": 1, "tasks": 2})
    assert config == ocil.resolve("fine-tune", "data/tiny.npz", settings={"width": 1, "tasks": 2})
    named = ocil.resolve("fine-tune", "tiny", settings={"width": 1, "tasks": 2})
    ocil.run_many([named], "runs", data_dir="data", workers=1, device="cpu")
    write(collect(["runs"]), "report")
    assert Path("report", "index.html").is_file()
    Path("mine.toml").write_text("[[cells]]\nmethod = 'fine-tune'\n")
    assert read("mine.toml").name == "mine"


@pytest.mark.parametrize("more", [{}, {"prequential": 2, "evaluate_every": 3}, {"growing": True}])
def test_the_learner_of_a_run(tiny: ocil.Dataset, tiny_npz: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    """It scores as the run's own learner did at its last evaluation."""
    config = ocil.resolve("er", tiny_npz, memory=20, settings=SMALL | more)
    config = replace(config, fingerprint=tiny.fingerprint)
    result = ocil.run(config, tmp_path, device="cpu")
    folder = tmp_path / config.cell / "seed-0"
    for learner in (ocil.load_learner(folder), ocil.load_learner(str(folder), tiny)):
        right = learner.scores(torch.from_numpy(tiny.test_x)).argmax(1).numpy() == tiny.test_y
        groups = [right[tiny.test_y < 2].mean(), right[tiny.test_y >= 2].mean()]
        assert groups == pytest.approx(result.matrix[-1])
    images = torch.from_numpy(tiny.test_x)
    with torch.no_grad(), evaluating(learner.network):
        features = learner.network.features(to_float(images))
        assert torch.allclose(learner.network.head(features), learner.scores(images))
    before = (folder / "checkpoint.safetensors").read_bytes()
    learner.learn(torch.from_numpy(tiny.train_x[:10]), torch.from_numpy(tiny.train_y[:10]))
    assert (folder / "checkpoint.safetensors").read_bytes() == before


def test_folders_without_a_learner(tiny: ocil.Dataset, tiny_npz: Path, tmp_path: Path) -> None:
    config = replace(ocil.resolve("er", tiny_npz, memory=20, settings=SMALL), fingerprint=tiny.fingerprint)
    ocil.run(config, tmp_path, device="cpu")
    folder = tmp_path / config.cell / "seed-0"
    with pytest.raises(ocil.OcilError, match=rf"{config.cell} is not the folder of a run.* for example .*/seed-0\."):
        ocil.load_learner(folder.parent)
    with pytest.raises(ocil.OcilError, match=r"there is no folder .*absent: result\.config\.cell and the seed name it"):
        ocil.load_learner(tmp_path / "absent")
    with pytest.raises(ocil.OcilError, match=r"It is the folder of a run: in Python, ocil\.load_learner"):
        Model.load(folder)
    content = json.loads((folder / "config.json").read_text())
    for change, words in (
        ({"dataset": "absent"}, "there is no dataset 'absent'.* give it to ocil.load_learner too"),
        ({"dataset": 5}, r"cannot read .*config\.json: dataset = 5 is not a name\.$"),
        ({"method": "mine"}, r"there is no method 'mine' here; if it is one of your own, register it first .*\)\.$"),
        (
            {"learner": content["learner"] | {"width": 3}},
            r"checkpoint\.safetensors does not fit the settings in config",
        ),
        ({"learner": content["learner"] | {"network": "module:os:abort"}}, "Python code .* module:os:abort"),
    ):
        (folder / "config.json").write_text(json.dumps(content | change))
        with pytest.raises(ocil.OcilError, match=words):
            ocil.load_learner(folder)
    other = replace(tiny, train_x=255 - tiny.train_x)
    other.save(tmp_path / "data" / "other.npz")
    (folder / "config.json").write_text(json.dumps(content | {"dataset": "other"}))
    with pytest.raises(ocil.OcilError, match="was begun with other images of that name"):
        ocil.load_learner(folder, data_dir=tmp_path / "data")
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "checkpoint.safetensors").unlink()
    with pytest.raises(ocil.OcilError, match=r"has no checkpoint\.safetensors: there is no learner to load"):
        ocil.load_learner(folder)


def test_the_learner_of_a_run_in_an_order_of_your_own(tiny: ocil.Dataset, tmp_path: Path) -> None:
    """The dataset that the run names is found. Another one is refused, and nobody is told to delete the run."""
    file = tmp_path / "tiny.npz"
    tiny.save(file)
    tasks = [np.flatnonzero(tiny.train_y % 2 == rest) for rest in (1, 0)]
    config = replace(ocil.resolve("er", file, memory=20, settings=SMALL), fingerprint="")
    result = ocil.run(config, tmp_path, stream=ocil.Stream.from_indices(tiny, tasks), device="cpu")
    folder = tmp_path / result.config.cell / "seed-0"
    learner = ocil.load_learner(folder, device="auto")
    right = learner.scores(torch.from_numpy(tiny.test_x).to(learner.device)).argmax(1).cpu().numpy() == tiny.test_y
    assert [right[tiny.test_y % 2 == rest].mean() for rest in (1, 0)] == pytest.approx(result.matrix[-1])
    part = ocil.Dataset.from_arrays(*(array[labels < 2] for array, labels in _pairs(tiny)))
    for given, message in (
        ({"dataset": part}, "or the dataset is not the one that the run learned from"),
        ({"dataset": str(file)}, "an ocil.Dataset is needed, not a str"),
        ({"device": "absent"}, "device 'absent' is not there: use auto"),
    ):
        with pytest.raises(ocil.OcilError, match=message) as error:
            ocil.load_learner(folder, **given)
        assert "elete" not in str(error.value)
    replace(tiny, train_x=255 - tiny.train_x).save(file)
    with pytest.raises(ocil.OcilError, match=r"with batches of your own: give their dataset \(dataset=\.\.\.\)"):
        ocil.load_learner(folder)


def _pairs(data: ocil.Dataset) -> Iterator[tuple[Any, Any]]:
    """Each array of a dataset with the labels of its samples, as ``from_arrays`` takes them."""
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        yield from ((x, y), (y, y))


def test_the_learner_of_a_run_needs_no_file_of_pretrained_weights(
    tiny: ocil.Dataset, tiny_npz: Path, tmp_path: Path
) -> None:
    """Its checkpoint has all weights. A method that begins anew with the file needs it still."""
    weights = tmp_path / "weights.safetensors"
    trained = ocil.make_learner("er", tiny, memory=20, width=1).network.state_dict()
    save_file({name: tensor.contiguous() for name, tensor in trained.items()}, weights)
    found = {}
    for name in ("er", "gdumb"):
        config = ocil.resolve(name, tiny_npz, memory=20, settings={"width": 1, "tasks": 2, "pretrained": str(weights)})
        result = ocil.run(config, tmp_path, device="cpu")
        found[name] = tmp_path / result.config.cell / "seed-0"
    x = torch.from_numpy(tiny.test_x)
    before = ocil.load_learner(found["er"]).scores(x)
    weights.unlink()
    assert torch.equal(ocil.load_learner(found["er"]).scores(x), before)
    with pytest.raises(ocil.OcilError, match=r"cannot read pretrained = .*weights\.safetensors"):
        ocil.load_learner(found["gdumb"])


def test_a_long_tailed_run_has_no_learner_to_load(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"variant": "oltr-rfld", "dataset": "cifar10", "seed": 0}))
    with pytest.raises(ocil.OcilError, match="it is not the configuration of a class-incremental run"):
        ocil.load_learner(tmp_path)


def test_a_dataset_in_memory_that_a_run_does_not_find(tiny: ocil.Dataset, tmp_path: Path) -> None:
    config = ocil.resolve("er", tiny, memory=20, settings=SMALL)
    for call in (partial(ocil.run, config), partial(ocil.run_many, [config])):
        with pytest.raises(ocil.OcilError, match=r"no dataset 'tiny' .* give dataset= to ocil\.run, or register"):
            call(tmp_path, data_dir=tmp_path)
    assert ocil.run(config, tmp_path, dataset=tiny, device="cpu").config.dataset == "tiny"


@pytest.mark.parametrize("first", ["run", "run_many"])
@pytest.mark.parametrize("by", ["dataset", "name", "path"])
def test_one_run_and_many_share_a_folder(tiny: ocil.Dataset, tmp_path: Path, first: str, by: str) -> None:
    """Whichever is called first: a finished run is not repeated."""
    data_dir = tmp_path / "data"
    file = data_dir / "tiny.npz"
    tiny.save(file)
    named: Any = {"dataset": tiny, "name": "tiny", "path": file}[by]
    config = ocil.resolve("er", named, memory=20, settings=SMALL, data_dir=data_dir)
    given: dict[str, Any] = {"dataset": tiny} if by == "dataset" else {}
    calls = [
        lambda: ocil.run(config, tmp_path / "runs", device="cpu", data_dir=data_dir, **given),
        lambda: ocil.run_many([config], tmp_path / "runs", workers=1, device="cpu", data_dir=data_dir)[0],
    ]
    one, again = [call() for call in (calls if first == "run" else calls[::-1])]
    assert one == again  # the time that it took included
    assert one.config.fingerprint == tiny.fingerprint
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [one.config.cell]
    assert ocil.load_learner(tmp_path / "runs" / one.config.cell / "seed-0", tiny).network is not None


def test_a_changed_dataset_is_not_taken_for_the_one_of_its_name(tiny: ocil.Dataset, tmp_path: Path) -> None:
    """A part of a dataset, to be quick, has the name of the whole: results would be those of the whole."""
    tiny.save(tmp_path / "data" / "tiny.npz")
    part = replace(tiny, train_x=tiny.train_x[::2], train_y=tiny.train_y[::2])
    whole, config = (ocil.resolve("er", data, memory=20, settings=SMALL) for data in (tiny, part))
    assert whole.cell != config.cell
    assert "made_for" not in whole.to_json()
    for call in (partial(ocil.run, whole), partial(ocil.run_many, [whole], workers=1)):
        call(tmp_path / "runs", data_dir=tmp_path / "data", device="cpu")
    for call in (partial(ocil.run, config), partial(ocil.run_many, [config])):
        with pytest.raises(ocil.OcilError, match="found as 'tiny' is not the one that this configuration was made for"):
            call(tmp_path / "runs", data_dir=tmp_path / "data")
    ocil.run(config, tmp_path / "others", dataset=part, device="cpu")


def test_the_first_error_is_raised_before_anything_runs(tiny_npz: Path, tmp_path: Path) -> None:
    good, bad = configs(tiny_npz, "er", seeds=1)[0], ocil.resolve("er", str(tiny_npz), settings=SMALL | {"tasks": 5})
    with pytest.raises(ocil.OcilError, match="tasks"):
        ocil.run_many([good, bad], tmp_path / "runs", device="cpu")
    assert not (tmp_path / "runs").exists()


def resolved(method: str, **settings: Any) -> ocil.RunConfig:
    return ocil.resolve(method, settings={"width": 1} | settings)


def run_here(root: Path, config: ocil.RunConfig) -> Result:
    return ocil.run(config, root, device="cpu")


def begun_on_two_threads(root: Path) -> None:
    config = resolved("fine-tune")
    with pytest.raises(Interrupted):
        ocil.run(config, root, device="cpu", threads=2, should_stop=lambda: True)
    run_here(root, config)


MISTAKES: dict[str, Callable[[Path], object]] = {
    "memory": lambda root: resolved("er", memory=5),
    "no memory": lambda root: ocil.resolve("fine-tune", memory=20),
    "a memory too large": lambda root: ocil.make_learner("er", ocil.load_dataset(), memory=10**12),
    "task ends": lambda root: resolved("agem", task_ends="hidden"),
    "reviews": lambda root: run_here(root, resolved("er", memory=20, review=True, review_every=9999)),
    "a whole review": lambda root: run_here(root, resolved("er", memory=20, review=True, review_batch=30)),
    "domains": lambda root: ocil.Stream(ocil.load_dataset(), ocil.StreamConfig(scenario="domain")),
    "loss": lambda root: run_here(root, resolved("fine-tune", lr=1e6)),
    "threads": begun_on_two_threads,
    "no module": lambda root: ocil.make_learner("fine-tune", ocil.load_dataset(), network="module:nowhere:f"),
    "no space": lambda root: ocil.tune("fine-tune", device="cpu"),
    "searched twice": lambda root: ocil.tune("er", {"lr": [0.1]}, settings={"lr": 0.1}, device="cpu"),
    "no search": lambda root: ocil.tune("er", {"tasks": [2]}, device="cpu"),
    "all tasks": lambda root: ocil.tune("er", {"lr": [0.1]}, tasks=5, device="cpu"),
    "validation": lambda root: ocil.tune("er", {"lr": [0.1]}, validation=2.0, device="cpu"),
    "no seeds": lambda root: ocil.tune("er", {"lr": [0.1]}, seeds=0, device="cpu"),
}


OF_ANOTHER_KIND: dict[str, Callable[[Any], object]] = {
    "an evaluator needs an ocil.Stream, not a Dataset: ocil.Stream(data).": lambda given: ocil.Evaluator(given),
    "summarise takes a list of results, and '3' is none.": lambda _: ocil.summarise([3]),  # type: ignore[list-item]
    "summarise takes a list of results: ocil.load_results reads those in a folder.": lambda _: ocil.summarise("runs"),  # type: ignore[arg-type]
    "lr = 0.1 is not a list of values to try: give [0.1].": lambda _: ocil.tune("er", {"lr": 0.1}),  # type: ignore[dict-item]
    "lr = '0.1' is not a list of values to try: give ['0.1'].": lambda _: ocil.tune("er", {"lr": "0.1"}),
    "engine = 'Ray' is not a choice. Did you mean 'ray'? Known: local, ray.": lambda _: ocil.run_many([], engine="Ray"),  # type: ignore[arg-type]
    "workers = '2' must be a whole number from 0 to 1,024.": lambda _: ocil.run_many([], workers="2"),  # type: ignore[arg-type]
    "workers = -1 must be a whole number from 0 to 1,024.": lambda _: ocil.tune("er", {"lr": [0.1]}, workers=-1),
    "a method is given by its name, such as 'er', not by a Dataset.": lambda given: ocil.resolve(given, "er"),
    "a dataset is loaded by its name or path, not by a Dataset.": lambda given: ocil.load_dataset(given),
    "settings = 'width=2' must be a dictionary, such as {'lr': 0.05}.": lambda given: ocil.resolve(
        "er",
        given,
        settings="width=2",  # type: ignore[arg-type]
    ),
    "a Dataset is not the folder of a run: give OUT/CELL/seed-N.": lambda given: ocil.load_learner(given),
    "stream is an ocil.Stream, not a Dataset.": lambda given: ocil.run(ocil.resolve("er"), "runs", stream=given),
    "device = 0 must be auto, cpu, cuda or mps, or a torch.device.": lambda _: ocil.run(
        ocil.resolve("er"),
        "runs",
        device=0,  # type: ignore[arg-type]
    ),
    "task_sizes = 3 is not a list (as text: '4,3,3').": lambda given: ocil.resolve(
        "er", given, settings={"task_sizes": 3}
    ),
}


@pytest.mark.parametrize(("message", "mistake"), OF_ANOTHER_KIND.items(), ids=OF_ANOTHER_KIND)
def test_what_is_of_another_kind_is_refused_in_one_line(
    message: str, mistake: Callable[[Any], object], tiny: ocil.Dataset
) -> None:
    with pytest.raises(ocil.OcilError) as found:
        mistake(tiny)
    assert str(found.value) == message


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_message_names_options_of_commands_in_brackets_alone(
    mistake: Callable[[Path], object], tmp_path: Path
) -> None:
    """So that it can be understood by those who call a function, and by those who give a command."""
    with pytest.raises(ocil.OcilError) as found:
        mistake(tmp_path)
    assert "--" not in re.sub(r"\([^()]*\)", "", str(found.value))


def test_a_finished_result_of_a_class_that_has_changed_is_named(
    own_plugins: None, tiny_npz: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    fine_tune = METHODS["fine-tune"].load()

    def result(first: bool, times: float, root: Path = tmp_path) -> Result:
        class Mine(fine_tune):  # type: ignore[misc,valid-type]
            factor = times

            def learn(self, x: torch.Tensor, y: torch.Tensor) -> None:
                return super().learn(x, y)

        class Other(fine_tune):  # type: ignore[misc,valid-type]
            def learn(self, x: torch.Tensor, y: torch.Tensor) -> None:
                return super().learn(x.flip(1), y)

        Other.__name__ = "Mine"
        ocil.register(ocil.MethodInfo("own", Mine if first else Other, "-", "-", memory=False), replace=True)
        config = ocil.resolve("own", str(tiny_npz), settings={"width": 1, "tasks": 2})
        ocil.run_many([config], root, workers=1, device="cpu")
        return ocil.run(config, root, device="cpu")

    before = result(True, 1.0)
    assert result(True, 1.0).digest == before.digest
    assert not recwarn
    with pytest.warns(UserWarning, match="the code of own has changed since .* seed 0 was finished") as found:
        assert result(True, 2.0).digest == result(False, 1.0).digest == before.digest
    assert len(found) == 4
    assert result(False, 1.0, tmp_path / "anew").digest != before.digest


@pytest.mark.parametrize("kind", [property, cached_property])
def test_properties_are_code_of_a_class(kind: Callable[..., Any], own_plugins: None, tiny_npz: Path) -> None:
    def digest(read: Callable[[Any], float]) -> str:
        class Mine(ocil.Learner):
            slope = kind(read)

        ocil.register(ocil.MethodInfo("own", Mine, "-", "-", memory=False), replace=True)
        return digests_of_code(ocil.resolve("own", str(tiny_npz)))[METHOD_ENTRY]

    assert digest(lambda self: 1.0) == digest(lambda self: 1.0) != digest(lambda self: 2.0)


def test_a_run_does_not_go_on_with_other_code(own_plugins: None, tiny_npz: Path, tmp_path: Path) -> None:
    """Somebody stops a run because of a mistake in the method, and corrects it: the result was of both."""
    fine_tune = METHODS["fine-tune"].load()

    class Wrong(fine_tune):  # type: ignore[misc,valid-type]
        def learn(self, x: torch.Tensor, y: torch.Tensor) -> None:
            super().learn(x.flip(1), y)

    class Right(fine_tune):  # type: ignore[misc,valid-type]
        def learn(self, x: torch.Tensor, y: torch.Tensor) -> None:
            super().learn(x, y)

    Right.__name__ = "Wrong"

    def begin(kind: type[ocil.Learner], stop: bool) -> None:
        ocil.register(ocil.MethodInfo("own", kind, "-", "-", memory=False), replace=True)
        config = ocil.resolve("own", str(tiny_npz), settings={"width": 1, "tasks": 2})
        ocil.run(config, tmp_path, device="cpu", should_stop=lambda: stop)

    with pytest.raises(Interrupted):
        begin(Wrong, stop=True)
    with pytest.raises(ocil.OcilError, match=r"code of own has changed since .*seed-0 was begun: delete that folder"):
        begin(Right, stop=False)
    begin(Wrong, stop=False)  # to finish it


def test_a_finished_result_of_a_network_that_was_registered_anew_is_named(
    own_plugins: None, tiny_npz: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    def small(input_shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 4))

    def large(input_shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 8))

    for factory in (small, small, large):
        assert not recwarn
        ocil.register(ocil.NetworkInfo("own-net", factory, "-"), replace=True)
        config = ocil.resolve("fine-tune", str(tiny_npz), settings={"network": "own-net", "tasks": 2})
        ocil.run(config, tmp_path, device="cpu")
    assert "the code of the network own-net has changed since" in str(recwarn.pop(UserWarning).message)


def test_a_search_needs_a_dataset_that_workers_can_find(tiny: ocil.Dataset) -> None:
    wrong: Any = tiny
    with pytest.raises(ocil.OcilError, match=r"not a Dataset: register an ocil\.DatasetSource"):
        ocil.tune("er", {"lr": [0.1]}, wrong)


SCRIPT = """
import sys, ocil

def learn():
    class Mine(ocil.METHODS["fine-tune"].load()):
        pass

    ocil.register(ocil.MethodInfo("mine", Mine, "like fine-tuning", "-", memory=False))
    configs = [ocil.resolve("mine", sys.argv[1], seed=seed, settings={"width": 1, "tasks": 2}) for seed in (0, 1, 2)]
    try:
        ocil.run_many(configs, sys.argv[2], workers=2, device="cpu")
    except ocil.OcilError as error:
        print(error)

"""


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("learn()", 'put the call below `if __name__ == "__main__":`, or give workers=1.'),
        ('if __name__ == "__main__":\n    learn()', "does not have what this run needs: unknown method 'mine'."),
    ],
)
def test_a_script_that_workers_cannot_import(
    call: str, says: str, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, request: Any
) -> None:
    """It is run in this process; its workers are processes of their own that import it. Some end while they start."""
    if call != "learn()":
        request.getfixturevalue("quick_workers")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + call)
    monkeypatch.setattr(sys, "argv", [str(script), str(tiny_npz), str(tmp_path / "runs")])
    runpy.run_path(str(script), run_name="__main__")
    out, err = capfd.readouterr()
    assert says in out
    assert out.count("\n") == 1
    assert err == ""


def test_a_summary_is_the_table_and_the_plot_of_the_same_numbers(results: list[Result], tmp_path: Path) -> None:
    found = ocil.summarise(results)
    assert found.names == ["fine-tune", "er"]
    er = [ocil.metrics.average_accuracy(result.matrix) for result in results if result.config.method == "er"]
    assert found.accuracy["er"].mean == pytest.approx(sum(er) / 2)
    assert found.summaries[1].average_intransigence is not None  # the references are among the results
    shown = f"{100 * found.accuracy['er'].mean:.1f} ("  # of two seeds, the lowest and the highest
    assert shown in str(found)
    assert shown in found._repr_html_()
    legend = found.plot().axes[0].get_legend()
    assert legend is not None
    assert f"er  {100 * found.accuracy['er'].mean:.1f} %" in [text.get_text() for text in legend.get_texts()]
    for name in ("plot.png", "plot.svg", "plot.pdf", "table.md", "table.csv"):
        found.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 100
    found.save(tmp_path / "PLOT.PDF")  # as some systems write endings
    assert (tmp_path / "PLOT.PDF").read_bytes().startswith(b"%PDF")
    found.save(tmp_path / "TABLE.CSV")
    assert (tmp_path / "TABLE.CSV").read_bytes() == (tmp_path / "table.csv").read_bytes()
    with pytest.raises(ocil.OcilError, match=r"must end in \.png, \.svg, \.pdf, \.md or \.csv"):
        found.save(tmp_path / "table.xls")


def test_results_on_disk(results: list[Result], tiny_npz: Path, tmp_path: Path) -> None:
    ocil.run_many(configs(tiny_npz, "fine-tune", "er"), tmp_path, workers=1, device="cpu")
    found = ocil.load_results(tmp_path)
    assert [(one.config, one.matrix) for one in found] == [(one.config, one.matrix) for one in results]
    (cell,) = tmp_path.glob("*-er-*")
    assert [one.config.seed for one in ocil.load_results(cell, seeds=[1])] == [1]
    (cell / "seed-0" / "result.json").write_text("{}")
    with pytest.warns(UserWarning, match="is not a result of ocil, or it is broken"):
        assert len(ocil.load_results(tmp_path)) == 3
    with pytest.raises(ocil.OcilError, match="there is nothing at"):
        ocil.load_results(tmp_path / "none")
    with pytest.raises(ocil.OcilError, match="is not the name of a folder"):
        ocil.load_results([tmp_path])  # type: ignore[arg-type]
    for seed in (1, 1.0, np.int64(1)):
        with pytest.raises(ocil.OcilError, match="is not a list of seeds"):
            ocil.load_results(tmp_path, seeds=seed)  # type: ignore[arg-type]
    with pytest.raises(ocil.OcilError, match="name the folders of the runs"):
        ocil.load_results()
    for no_seed in ("0", 1.5, [0]):
        with pytest.raises(ocil.OcilError, match=re.escape(f"seed = {no_seed!r} is not a whole number.")):
            ocil.load_results(tmp_path, seeds=[no_seed])  # type: ignore[list-item]


def test_accuracy_over_time_is_that_of_the_results(
    results: list[Result], tiny_npz: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    settings = SMALL | {"evaluate_every": 2}
    both = [ocil.resolve("er", str(tiny_npz), memory=10, seed=seed, settings=settings) for seed in (0, 1)]
    measured = ocil.run_many(both, tmp_path, workers=1, device="cpu")
    found = ocil.summarise([*measured, results[0]])  # the last one has recorded none
    assert list(found.over_time) == ["er"]
    curve = found.over_time["er"]
    one, two = (result.anytime["points"] for result in found.results[0])
    assert curve.batches == tuple(point["batch"] for point in one)
    assert [point.values for point in curve.accuracy] == [
        (a["accuracy"], b["accuracy"]) for a, b in zip(one, two, strict=True)
    ]
    (axes,) = found.plot(over_time=True).axes
    drawn = next(line for line in axes.lines if str(line.get_label()).startswith("er"))
    assert np.asarray(drawn.get_ydata()) == pytest.approx([100 * point.mean for point in curve.accuracy])
    assert axes.get_title() == "tiny, memory 10, 2 seeds"
    found.save(tmp_path / "curve.pdf", over_time=True)
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ocil.OcilError, match=r"a plot over time must end in \.png, \.svg or \.pdf"):
        found.save(tmp_path / "curve.csv", over_time=True)
    with pytest.raises(ocil.OcilError, match="have no accuracy over time: run them with the setting evaluate_every"):
        ocil.summarise(results).plot(over_time=True)
    assert not recwarn.list


def test_streams_of_ones_own_can_be_averaged_over(tiny: ocil.Dataset, tmp_path: Path) -> None:
    """A usual protocol: one order per seed. Each order makes a cell of its own."""

    def result(name: str, seed: int, order: int) -> Result:
        tasks = [np.random.default_rng(order).permutation(np.flatnonzero(tiny.train_y // 2 == task)) for task in (0, 1)]
        stream = ocil.Stream.from_indices(tiny, tasks)
        settings = {"width": 1} if name == "fine-tune" else {"width": 1, "memory": 20, "memory_batch": 5}
        config = ocil.resolve(name, tiny, seed=seed, settings=settings)
        return ocil.run(config, tmp_path, stream=stream, device="cpu")

    results = [result(name, seed, seed) for name in ("fine-tune", "er") for seed in (0, 1)]
    assert len(ocil.summarise(results).names) == 4
    found = ocil.summarise(results, over_streams=True)
    assert found.names == ["fine-tune", "er"]
    accuracies = [ocil.metrics.average_accuracy(each.matrix) for each in results[2:]]
    assert found.accuracy["er"].values == tuple(accuracies)
    lost = found.summaries[1].average_intransigence
    assert lost is not None
    assert lost.values == tuple(
        ocil.metrics.average_intransigence(each.matrix, reference.matrix)
        for each, reference in zip(results[2:], results[:2], strict=True)
    )
    with pytest.raises(ocil.OcilError, match="er has results in several streams with seed 0: give each stream"):
        ocil.summarise([*results, result("er", 0, 2)], over_streams=True)


def test_results_are_shown_in_one_line(results: list[Result]) -> None:
    result = results[2]
    assert repr(result) == f"<Result of {result.config.cell}, seed 0: {result.headline}>"
    assert repr(ocil.summarise(results)) == "<Comparison of fine-tune, er>"


def test_an_iterator_of_results_is_summarised_as_a_list_is(results: list[Result]) -> None:
    wanted = ocil.summarise(results)
    assert wanted.summaries[1].average_intransigence is not None
    assert ocil.summarise(iter(results)).summaries == wanted.summaries
    other = replace(results[0], config=replace(results[0].config, dataset="cifar10"))
    with pytest.raises(ocil.OcilError, match="several datasets"):
        ocil.summarise(iter([*results, other]))


def test_two_results_of_one_seed(results: list[Result]) -> None:
    """The same run twice counts once, whatever time it took; another one of the same settings cannot be told apart."""
    again = replace(results[2], wall_seconds=99.0)
    assert ocil.summarise([*results, again]).summaries == ocil.summarise(results).summaries
    other = replace(results[2], digest="0" * 64)
    with pytest.raises(ocil.OcilError, match=rf"two results of {results[2].config.cell} with seed 0 differ, though"):
        ocil.summarise([*results, other])


def test_what_cannot_be_summarised(results: list[Result]) -> None:
    with pytest.raises(ocil.OcilError, match="no results to summarise"):
        ocil.summarise([])
    other = results[0].__class__(
        ocil.resolve("fine-tune", "cifar10", settings={"tasks": 2}), *list(vars(results[0]).values())[1:]
    )
    with pytest.raises(ocil.OcilError, match="of several datasets"):
        ocil.summarise([results[0], other])


def test_runs_with_other_settings_have_other_names(results: list[Result], tiny_npz: Path, tmp_path: Path) -> None:
    """Also those that differ in their memory alone: they are entries of a dictionary."""
    changes = ({"memory": 20, "lr": 0.05}, {"memory": 30})
    others = [ocil.resolve("er", str(tiny_npz), settings=SMALL | change) for change in changes]
    found = ocil.summarise([*results, *ocil.run_many(others, tmp_path, workers=1, device="cpu")])
    names = ["fine-tune", "er memory=20 lr=0.1", "er memory=20 lr=0.05", "er memory=30 lr=0.1"]
    assert found.names == names == list(found.accuracy)
    rows = [[value.text for value in row.values[:2]] for row in found.table.rows]
    assert rows == [["fine-tune", "-"], ["er lr=0.1", "20"], ["er lr=0.05", "20"], ["er lr=0.1", "30"]]


def test_the_error_of_a_method_is_the_cause(tiny_npz: Path, tmp_path: Path) -> None:
    """So a debugger, a notebook and a traceback show the user's own line. What the run held is not kept with it."""
    made: list[weakref.ref[Any]] = []

    class Wrong(METHODS["fine-tune"].load()):  # type: ignore[misc]
        def learn(self, x: torch.Tensor, y: torch.Tensor) -> None:
            made.append(weakref.ref(self))
            _ = 1 / 0

    ocil.register(ocil.MethodInfo("wrong", Wrong, "-", "-", memory=False))
    config = ocil.resolve("wrong", str(tiny_npz), settings={"width": 1, "tasks": 2})
    with pytest.raises(ocil.OcilError, match="ZeroDivisionError") as raised:
        ocil.run_many([config], tmp_path, workers=1, device="cpu")
    cause = raised.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert traceback.extract_tb(cause.__traceback__)[-1].line == "_ = 1 / 0"
    gc.collect()
    assert made[0]() is None


def test_the_error_of_a_function_that_makes_a_dataset_is_kept(tmp_path: Path) -> None:
    def made() -> ocil.Dataset:
        raise KeyError("nothing")

    ocil.register(ocil.DatasetSource("gone", made))
    with pytest.raises(ocil.OcilError, match=r"the dataset 'gone' .* cannot be made") as raised:
        ocil.run(ocil.resolve("fine-tune", "gone"), tmp_path, device="cpu")
    causes: list[BaseException] = [raised.value]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    assert isinstance(causes[-1], KeyError)


def test_a_search(tiny_npz: Path, tmp_path: Path) -> None:
    choice = ocil.tune(
        "er",
        {"lr": [0.03, 0.1], "momentum": [0]},
        str(tiny_npz),
        memory=20,
        settings=SMALL | {"review_every": None},
        tasks=1,
        seeds=1,
        root=tmp_path,
        workers=1,
        device="cpu",
    )
    assert choice.point == {"lr": choice.config.learner.lr, "momentum": 0}
    assert choice.config.stream.tasks == 2
    assert (tmp_path / "tuning.json").is_file()


def test_what_a_session_registers_stays_in_its_process(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    ocil.register(ocil.MethodInfo("mine", METHODS["er"].load(), "like er", "-"))
    both = configs(tiny_npz, "mine")
    with pytest.raises(ocil.OcilError, match="mine was registered in this session"):
        ocil.run_many(both, tmp_path, workers=2, device="cpu")
    assert len(ocil.run_many(both, tmp_path, device="cpu")) == 2
    ocil.register(ocil.NetworkInfo("flat", lambda shape: torch.nn.Flatten(), "no layer"))
    ocil.register(ocil.DatasetSource("made", lambda: ocil.load_dataset(tiny_npz)))
    for dataset, settings, what in (
        (str(tiny_npz), {"network": "flat"}, "the network flat"),
        ("made", {}, "the dataset made"),
    ):
        config = ocil.resolve("er", dataset, settings={"memory": 20, "tasks": 2} | settings)
        with pytest.raises(ocil.OcilError, match=f"{what} was registered in this session"):
            ocil.run_many([config], tmp_path, workers=2, device="cpu")


# The page


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_page_names_everything_that_is_public() -> None:
    named = set(re.findall(r"`(\w+)", PAGE))
    assert set(ocil.__all__) <= named
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    assert set(ocil.__all__) <= set(re.findall(r"`(\w+)", tables))


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    assert len(blocks()) == 4
    for block in blocks():
        ast.parse(block)
        exec(block, names)
    assert (tmp_path / "accuracy.png").is_file()
    assert names["choice"].config.learner.lr in (0.03, 0.1)


def test_a_name_in_the_place_of_a_dataset() -> None:
    for wants in (ocil.Stream, partial(ocil.make_learner, "er")):
        with pytest.raises(ocil.OcilError, match=r"an ocil.Dataset is needed, not a str: ocil\.load_dataset\('toy'\)"):
            wants("toy")  # type: ignore[arg-type]
    with pytest.raises(ocil.OcilError, match=r"the settings of a stream are an ocil\.StreamConfig, not a dict\."):
        ocil.Stream(ocil.load_dataset(), {"tasks": 2})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["names", "test_shares", "domains"])
def test_an_option_that_a_dataset_does_not_take(option: str) -> None:
    anything: Any = {option: None}
    with pytest.raises(TypeError, match=rf"from_arrays\(\) got an unexpected keyword argument '{option}'"):
        ocil.Dataset.from_arrays([[1.0], [2.0]], ["a", "b"], **anything)


def test_what_is_no_configuration(results: list[Result], tmp_path: Path) -> None:
    config = results[0].config
    anything: Any = ocil
    with pytest.raises(ocil.OcilError, match=r"a run needs a configuration, not a str: ocil\.resolve"):
        anything.run("er", tmp_path)
    with pytest.raises(ocil.OcilError, match="a run needs a configuration, not a str"):
        anything.run_many(["er", "afs"], tmp_path)
    with pytest.raises(ocil.OcilError, match="run_many takes a list of configurations"):
        anything.run_many(config, tmp_path)
    with pytest.raises(ocil.OcilError, match="summarise takes a list of results"):
        anything.summarise(results[0])
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_of_lists_is_one_line() -> None:
    with pytest.raises(ocil.OcilError, match="dataset 'x': train_x must be a numpy array, not a list"):
        ocil.Dataset("x", [[0.0]], [0], [[0.0]], [0], ("a",))  # type: ignore[arg-type]


NONE, NUMBER = cast(Any, None), cast(Any, 3)
WRONG_ARGUMENTS: dict[str, tuple[Callable[[ocil.RunConfig, ocil.Dataset], object], str]] = {
    "root": (lambda config, data: ocil.run(config, NONE), "root = None must be the path of a folder"),
    "a number as root": (lambda config, data: ocil.run(config, NUMBER), "root = 3 must be the path of a folder"),
    "root of many": (lambda config, data: ocil.run_many([config], NONE), "root = None must be the path of a"),
    "data_dir": (lambda config, data: ocil.run(config, "runs", data_dir=NUMBER), "data_dir = 3 must be the path"),
    "no list": (lambda config, data: ocil.run_many(NONE), "takes a list of configurations, not a NoneType"),
    "on_result": (lambda config, data: ocil.run_many([config], on_result=NONE), "on_result = None must be a funct"),
    "device of a run": (lambda config, data: ocil.run(config, "runs", device=NONE), "device = None must be auto"),
    "a learner's device": (lambda config, data: ocil.make_learner("er", data, device="gpu"), "'gpu' is not there: use"),
    "a stream's device": (lambda config, data: ocil.Stream(data, device="gpu"), "device 'gpu' is not there: use auto"),
    "no device": (lambda config, data: ocil.Stream(data, device=NONE), "device = None must be auto, cpu, cuda or"),
    "task_sizes": (lambda config, data: ocil.resolve("er", data, task_sizes=NUMBER), "task_sizes = 3 is not a list"),
    "sizes as facts": (lambda config, data: ocil.resolve("er", data, task_sizes=[2, 4]), "are a setting: settings={"),
    "classes": (
        lambda config, data: ocil.resolve("er", data, classes=9),
        "classes = 9 is not so of this",
    ),
    "no results": (lambda config, data: ocil.summarise(NONE), "takes a list of results, not a NoneType"),
    "plugin": (lambda config, data: ocil.plugins.load(NONE), "is given by the path of its file, not by a NoneType"),
    "network": (lambda config, data: ocil.register(ocil.NetworkInfo("n", NONE, "-")), "the NetworkInfo 'n' has no"),
    "a network of another package": (
        lambda config, data: ocil.register(ocil.NetworkInfo("n", "mine:Tiny", "-")),
        "ocil has no network 'mine:Tiny': give the network 'n' its factory itself",
    ),
    "measure": (lambda config, data: ocil.register(ocil.Measure("m", NONE)), "the Measure 'm' has no function"),
    "a measure's name": (
        lambda config, data: ocil.register(ocil.Measure(NONE, lambda result: 1.0)),
        "a measure's name has small",
    ),
    "source": (lambda config, data: ocil.register(ocil.DatasetSource("s", NONE)), "the DatasetSource 's' has no"),
    "checks": (lambda config, data: ocil.testing.check_method(NUMBER), "by its class, its MethodInfo or its name"),
    "network checks": (
        lambda config, data: ocil.testing.check_network(NUMBER),
        "by its factory, NetworkInfo or name",
    ),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named(name: str, tiny: ocil.Dataset, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    call, words = WRONG_ARGUMENTS[name]
    with pytest.raises(ocil.OcilError, match=re.escape(words)) as found:
        call(ocil.resolve("er", tiny, memory=20, settings=SMALL), tiny)
    assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())


def test_a_learner_and_a_stream_where_auto_says(tiny: ocil.Dataset) -> None:
    stream = ocil.Stream(tiny, ocil.StreamConfig(tasks=2), device="auto")
    learner = ocil.make_learner("er", tiny, memory=20, device="auto", width=2)
    assert learner.device.type == stream.device.type == devices.pick_device().type
