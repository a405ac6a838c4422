import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import ocil
from ocil import data
from ocil.data import Dataset
from ocil.engines import execute
from ocil.engines.job import Job, Outcomes
from ocil.errors import OcilError
from ocil.evaluation.measures import estimate
from ocil.experiments import search
from ocil.experiments.search_record import record_of, save_record
from ocil.experiments.search_split import search_split, write_data
from ocil.methods.er import ER, ERConfig
from ocil.runs.build import build
from ocil.runs.config import RunConfig, facts_of, resolve
from ocil.runs.protocol import Interrupted, RunKey
from ocil.runs.results import Result
from ocil.runs.stream_run import ActiveStreamRun, StreamRun
from ocil.streams import Stream
from tests.conftest import Call, Said, left_over, one_error
from tests.networks_to_try import Tiny

pytestmark = pytest.mark.usefixtures("quick_convolution")

CLASSES, TASKS = 6, 3
Tune = Callable[..., Said]


@pytest.fixture(scope="module")
def six() -> Dataset:
    """Three tasks of two classes, 20 training images each; brightness tells the classes apart."""
    rng = np.random.default_rng(1)

    def images(labels: np.ndarray) -> np.ndarray:
        return (rng.integers(0, 40, (len(labels), 8, 8, 1)) + 40 * labels[:, None, None, None]).astype(np.uint8)

    train_y, test_y = (rng.permutation(np.repeat(np.arange(CLASSES), n)) for n in (20, 10))
    return Dataset("six", images(train_y), train_y, images(test_y), test_y, tuple("abcdef"))


@pytest.fixture
def tune(ocil_command: Call, six: Dataset, tmp_path: Path) -> Tune:
    def call(method: str, *words: object, data: Dataset = six, out: str = "search") -> Said:
        path = tmp_path / "six.npz"
        data.save(path)
        memory = () if method == "fine-tune" else ("--memory", 20)
        small = ("width=2", f"tasks={TASKS}", *(() if method == "fine-tune" else ("memory_batch=5",)))
        return ocil_command(
            "tune", method, "-d", path, *memory, "--workers", 1, "-o", tmp_path / out, *words, "--set", *small
        )

    return call


def poisoned(data: Dataset) -> Dataset:
    """Other test images, and other training images of the last task."""
    later = data.train_y >= 4
    train = data.train_x.copy()
    train[later] = 255 - train[later]
    return replace(data, train_x=train, test_x=np.full_like(data.test_x, 7), test_y=data.test_y[::-1].copy())


def test_the_search_data_is_the_training_data_of_the_first_tasks(six: Dataset) -> None:
    config = resolve("er", "six", settings={"tasks": TASKS}, classes=CLASSES)
    split = search_split(six, config, 2, 0.2)
    assert split.tasks == (("a", "b"), ("c", "d"))
    assert split.data.classes == ("a", "b", "c", "d")
    assert np.bincount(split.data.train_y).tolist() == [16] * 4
    assert np.bincount(split.data.test_y).tolist() == [4] * 4

    def kept(x: np.ndarray, y: np.ndarray) -> set[tuple[int, bytes]]:
        return {(int(label), image.tobytes()) for label, image in zip(y, x, strict=True)}

    learned, held = kept(split.data.train_x, split.data.train_y), kept(split.data.test_x, split.data.test_y)
    theirs = kept(six.train_x, six.train_y)
    assert not learned & held
    assert learned | held == {(label, image) for label, image in theirs if label < 4}
    assert not held & kept(six.test_x, six.test_y)


def test_the_search_data_has_a_name_and_a_fingerprint_of_its_own(six: Dataset) -> None:
    config = resolve("er", "six", settings={"tasks": TASKS}, classes=CLASSES)
    cuts = [search_split(six, config, *how).data for how in ((2, 0.2), (2, 0.1), (1, 0.2))]
    names = {data.name for data in cuts} | {six.name}
    assert len(names) == 4
    assert "six-first-2-tasks-20-percent-held-out" in names
    assert len({data.fingerprint for data in [*cuts, six]}) == 4
    assert search_split(six, config, 2, 0.2).data.fingerprint == cuts[0].fingerprint


def test_poison_changes_nothing(six: Dataset) -> None:
    config = resolve("er", "six", settings={"tasks": TASKS}, classes=CLASSES)
    clean, other = (search_split(data, config, 2, 0.1).data for data in (six, poisoned(six)))
    assert clean.fingerprint == other.fingerprint
    assert poisoned(six).fingerprint != six.fingerprint


@pytest.mark.slow
def test_a_search_from_start_to_end(tune: Tune, six: Dataset, tmp_path: Path) -> None:
    words = ("--grid", "lr=0.1,0.0001", "forward=separate,joint", "--seeds", 2, "--json")
    said = tune("er", *words)
    assert said.code == 0, said.err
    content = json.loads(said.out)
    record = tmp_path / "search" / "tuning.json"
    assert json.loads(record.read_text()) == {key: value for key, value in content.items() if key != "record"}
    assert content["grid"] == {"lr": ["0.1", "0.0001"], "forward": ["separate", "joint"]}
    assert content["tasks"] == [["a", "b"], ["c", "d"]]
    assert (content["train_images"], content["validation_images"], content["validation_share"]) == (72, 8, 0.1)
    assert [score["values"] for score in content["scores"]] == [
        {"lr": lr, "forward": forward} for lr in ("0.1", "0.0001") for forward in ("separate", "joint")
    ]
    means = [score["accuracy"]["mean"] for score in content["scores"]]
    assert content["chosen"] == content["scores"][means.index(max(means))]["values"]
    assert f"--dataset {tmp_path / 'six.npz'}" in content["command"]
    result = json.loads((Path(content["scores"][0]["runs"][0]) / "result.json").read_text())["environment"]
    same = {name: str(result[name]) for name in ("ocil", "python", "torch", "device", "threads")}
    assert content["environment"].items() >= same.items()
    assert content["environment"]["finished"] >= result["finished"]
    runs = [run for score in content["scores"] for run in score["runs"]]
    assert len(set(runs)) == 8
    for run in runs:
        result = json.loads((Path(run) / "result.json").read_text())
        assert Path(result["config"]["dataset"]).parent == tmp_path / "search" / "data"
        assert result["config"]["fingerprint"] == content["data"]["fingerprint"]
        assert (np.asarray(result["matrix"]).shape, result["config"]["stream"]["tasks"]) == ((2, 2), 2)
    assert not left_over(tmp_path)

    poison = json.loads(tune("er", *words, data=poisoned(six), out="poisoned").out)
    assert poison["chosen"] == content["chosen"]
    assert [s["accuracy"] for s in poison["scores"]] == [s["accuracy"] for s in content["scores"]]
    digests = [
        sorted(json.loads(path.read_text())["digest"] for path in (tmp_path / out).rglob("result.json"))
        for out in ("search", "poisoned")
    ]
    assert digests[0] == digests[1]

    # A second call runs nothing and says the same; a larger grid runs only what is new.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "search").rglob("result.json")}
    again = tune("er", *words)
    assert json.loads(again.out) == content
    assert "8 runs are finished already." in again.err
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "search").rglob("result.json")}
    shown = tune("er", "--grid", "lr=0.1,0.0001,0.05", "forward=separate", "--seeds", 2)
    assert shown.code == 0
    assert "4 runs are finished already." in shown.err
    assert shown.err.count("seed") == 2
    assert "er on the first 2 tasks of six" in shown.out
    assert "er on the first task of six" in tune("er", "--grid", "lr=0.1", "--tasks", 1, "--seeds", 1, out="one").out
    assert "chosen" in shown.out
    assert "Learned from 72 and scored on 8 training images of those tasks; 2 seeds per point." in shown.out
    assert "To run it: ocil run er " in shown.out


WIDTH_2 = ("width=2", f"tasks={TASKS}", "memory_batch=5")


@pytest.fixture
def at_home(ocil_command: Call, six: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A search without --out, from a folder of its own; what it says."""
    monkeypatch.chdir(tmp_path)
    six.save(tmp_path / "six.npz")

    def call(*words: object) -> Any:
        usual = () if "--seeds" in words else ("--seeds", 1)
        said = ocil_command(
            "tune", "er", "-d", "six.npz", "--memory", 20, "--workers", 1, "--json", *usual, *words, "--set", *WIDTH_2
        )
        assert said.code == 0, said.err
        return json.loads(said.out)

    return call


@pytest.mark.slow
def test_another_search_is_another_folder(at_home: Callable[..., Any], tmp_path: Path) -> None:
    searches = [
        ("--grid", "lr=0.1,0.2"),
        ("--grid", "lr=0.1,0.3"),
        ("--grid", "lr=0.1,0.2", "--tasks", 1),
        ("--grid", "lr=0.1,0.2", "--validation", 0.2),
        ("--grid", "lr=0.1,0.2", "--review"),
        ("--grid", "lr=0.1,0.2", "forward=joint"),
    ]
    contents = [at_home(*words) for words in searches]
    records = [Path(content["record"]) for content in contents]
    assert len(set(records)) == len(list((tmp_path / "tuning").glob("*/tuning.json"))) == len(searches)
    assert records[0].parent.name == f"er-six-m20-lr-{contents[0]['search']}"
    assert records[-1].parent.name.startswith("er-six-m20-lr-forward-")
    for content, record in zip(contents, records, strict=True):
        assert json.loads(record.read_text())["grid"] == content["grid"]


def test_the_same_search_goes_on_in_its_folder(at_home: Callable[..., Any], tmp_path: Path) -> None:
    content = at_home("--grid", "lr=0.1,0.2")
    for words in (("--grid", "lr=0.20,0.1"), ("--grid", "lr=0.1,0.2", "--seeds", 2)):
        assert at_home(*words)["record"] == content["record"]
    runs = list((tmp_path / "tuning").rglob("result.json"))
    assert len(runs) == 4


def test_a_search_with_a_former_name_goes_on(at_home: Callable[..., Any], tmp_path: Path) -> None:
    content = at_home("--grid", "lr=0.1,0.2")
    settings = dict(word.split("=") for word in WIDTH_2)
    points = [resolve("er", str(tmp_path / "six.npz"), memory=20, settings=settings | {"lr": lr}) for lr in (0.1, 0.2)]
    older = search.former_digest(points, content["data"]["fingerprint"], 2)
    record = Path(content["record"])
    record.write_text(record.read_text().replace(content["search"], older))
    former = record.parent.rename(record.parent.with_name(f"er-six-m20-lr-{older}"))
    again = at_home("--grid", "lr=0.1,0.2")
    assert again["search"] == content["search"]
    assert [path.name for path in (tmp_path / "tuning").iterdir()] == [former.name]
    assert [path.name for path in former.glob("*.json")] == ["tuning.json"]
    assert again["environment"] == content["environment"]  # nothing was run again


def test_the_record_says_how_to_repeat_it(at_home: Callable[..., Any], ocil_command: Call) -> None:
    content = at_home("--grid", "lr=0.1,0.2", "--review", "--validation", 0.2)
    words = shlex.split(content["repeat"])
    assert words[:3] == ["ocil", "tune", "er"]
    before = Path(content["record"]).read_text()
    said = ocil_command(*words[1:])
    assert said.code == 0, said.err
    assert "2 runs are finished already." in said.err
    assert Path(content["record"]).read_text() == before  # not even the date is another


def test_a_record_that_is_in_the_way_is_kept(tune: Tune, tmp_path: Path) -> None:
    grids = ("lr=0.1", "lr=0.1,0.2")
    record = tmp_path / "search" / "tuning.json"
    assert tune("fine-tune", "--grid", grids[0], "--seeds", 1).code == 0
    first = record.read_text()
    assert tune("fine-tune", "--grid", grids[0], "--seeds", 1).code == 0
    assert [path.name for path in record.parent.glob("*.json")] == ["tuning.json"]
    assert tune("fine-tune", "--grid", grids[1], "--seeds", 1).code == 0
    (older,) = record.parent.glob("tuning-*.json")
    assert older.read_text() == first
    assert json.loads(record.read_text())["grid"] == {"lr": ["0.1", "0.2"]}
    record.write_text("{")
    assert tune("fine-tune", "--grid", grids[0], "--seeds", 1).code == 0
    assert len(list(record.parent.glob("tuning-*.json"))) == 2


def test_the_network_has_an_output_for_every_class(six: Dataset, tmp_path: Path) -> None:
    """The pull of virtual distillation is divided by the number of outputs, so a search must not have fewer."""
    config = resolve("er", "six", settings={"tasks": TASKS, "width": 2}, classes=CLASSES)
    cut, path = search_split(six, config, 2, 0.1).data, tmp_path / "cut.npz"
    write_data(cut, path)
    kept = data.load(path)
    assert (kept.num_classes, kept.unseen, kept.fingerprint) == (4, 2, cut.fingerprint)
    assert build(config, kept).problem.classes == CLASSES


def test_nothing_but_the_search_data_reaches_a_run(tune: Tune, six: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Dataset] = []
    start = ActiveStreamRun.__init__

    def watched(self: ActiveStreamRun, config: RunConfig, folder: Any, dataset: Dataset, *rest: Any) -> None:
        seen.append(dataset)
        start(self, config, folder, dataset, *rest)

    monkeypatch.setattr(ActiveStreamRun, "__init__", watched)
    assert tune("fine-tune", "--grid", "lr=0.1,0.2", "--seeds", 1).code == 0
    allowed = {image.tobytes() for image, label in zip(six.train_x, six.train_y, strict=True) if label < 4}
    assert len(seen) == 2
    for dataset in seen:
        assert {image.tobytes() for part in (dataset.train_x, dataset.test_x) for image in part} == allowed


def test_afs_has_the_paper_s_grid(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunConfig] = []

    def run_all(runs: list[StreamRun], *_: Any) -> dict[RunKey, Exception]:
        asked.extend(run.config for run in runs)
        return {run.key: OcilError("not now") for run in runs}

    monkeypatch.setattr("ocil.engines.pool.run_all", run_all)
    said = tune("afs", "--seeds", 1)
    assert said.code == 2
    assert "no point of the grid has finished" in said.errors[-1]
    betas = [config.learner.beta for config in asked]  # type: ignore[attr-defined]
    assert betas == [0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5]
    assert {config.stream.tasks for config in asked} == {2}


def test_a_point_that_fails_is_not_chosen(tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = ER.learn

    def failing(self: ER, x: torch.Tensor, y: torch.Tensor) -> None:
        learn(self, x, y)
        if self.config.lr == 0.2 and self.rng.seed == 1:
            self.record_loss(torch.tensor(float("inf")))

    monkeypatch.setattr(ER, "learn", failing)
    said = tune("er", "--grid", "lr=0.2,0.0001", "--seeds", 2)
    assert said.code == 1
    assert "lr=0.2, seed 1: er seed 1: the loss is not finite" in said.errors[0]
    content = json.loads((tmp_path / "search" / "tuning.json").read_text())
    assert content["scores"][0]["accuracy"] is None
    assert content["chosen"] == {"lr": "0.0001"}
    assert len(content["failed"]) == 1


def test_the_best_point() -> None:
    a, b = estimate([0.2, 0.4]), estimate([0.5, 0.1])
    assert search.best([a, None, b]) == 0
    assert search.best([None, b, a, a]) == 2
    assert search.best([None]) is None


def test_points_that_cannot_be_told_from_the_best() -> None:
    best, near, far = estimate([0.6, 0.55, 0.5]), estimate([0.5, 0.52, 0.55]), estimate([0.1, 0.1, 0.1])
    sure = estimate([0.6, 0.6, 0.6])
    assert search.rivals([near, best, None, estimate([0.5, 0.5, 0.5])], 1) == [0, 3]
    assert search.rivals([estimate([0.5, 0.55]), estimate([0.6, 0.5])], 1) == []  # no interval of these is shown
    assert search.rivals([far, sure], 1) == []
    assert search.rivals([estimate([0.5]), estimate([0.6])], 1) == []


def test_a_choice_that_is_not_sure_is_said_to_be(tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = {0.1: [0.5, 0.51, 0.5], 0.2: [0.5, 0.5, 0.5], 0.3: [0.1, 0.1, 0.1]}

    def run_all(runs: list[StreamRun], *_: Any) -> dict[RunKey, Result]:
        return {
            run.key: Result(
                run.config,
                [[accuracies[run.config.learner.lr][run.seed]] * 2] * 2,
                [],
                1.0,
                {},
                "",
                {"ocil": "1", "torch": run.seed},
            )
            for run in runs
        }

    monkeypatch.setattr("ocil.engines.pool.run_all", run_all)
    said = tune("er", "--grid", "lr=0.3,0.2,0.1", "--seeds", 3)
    line = "lr=0.1 and lr=0.2 are within their intervals: more seeds may separate them."
    assert line in said.out
    content = json.loads((tmp_path / "search" / "tuning.json").read_text())
    assert (content["note"], content["chosen"], content["close"]) == (line, {"lr": "0.1"}, [{"lr": "0.2"}])
    assert (content["environment"]["ocil"], content["environment"]["torch"]) == ("1", "0 + 1 + 2")
    accuracies[0.1] = [0.6, 0.6, 0.6]
    assert "within their intervals" not in tune("er", "--grid", "lr=0.3,0.2,0.1", "--seeds", 3).out
    two = tune("er", "--grid", "lr=0.3,0.2,0.1", "--seeds", 2).out
    assert "There is no interval with two seeds per point: with more seeds another point may win." in two
    assert "within their intervals" not in two
    assert "There is no interval with one seed per point" in tune("er", "--grid", "lr=0.3,0.2", "--seeds", 1).out
    alone = tune("er", "--grid", "lr=0.3", "--seeds", 1).out
    assert "There is no interval" not in alone
    assert "; 1 seed per point." in alone


def test_data_that_was_cut_is_written_again(six: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "six.npz"
    write_data(six, path)
    stamp = path.stat().st_mtime_ns
    write_data(six, path)
    assert path.stat().st_mtime_ns == stamp
    path.write_bytes(path.read_bytes()[:100])
    write_data(six, path)
    assert path.stat().st_size > 100


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "er has no search space of its own: name the settings to search"),
        (("--grid", "lr"), "write FIELD=VALUE,VALUE"),
        (("--grid", "lr=0.1,"), "write FIELD=VALUE,VALUE"),
        (("--grid", "lr=fast"), "lr = 'fast' is not a number"),
        (("--grid", "lrr=1"), "unknown setting 'lrr' for er. Did you mean 'lr'?"),
        (("--grid", "lr=1", "lr=2"), "lr is given twice"),
        (("--grid", "width=1"), "width is given twice"),
        (("--grid", "class_order=seeded"), "cannot be searched"),
        (("--grid", "first_task=2,4"), "first_task changes the problem; it cannot be searched"),
        (("--grid", "imbalance_factor=1,20"), "imbalance_factor changes the problem; it cannot be searched"),
        (("--grid", "evaluate_every=0,5"), "evaluate_every changes nothing that is learned"),
        (("--grid", "memory=20,30"), "memory is given twice"),
        (("--grid", "review=true,false", "--review"), "review is given twice"),
        (("--grid", "batch_size=10", "--review", "-s", "review_every=9999"), "review_every = 9999 is more than"),
        (("--grid", "lr=0.1", "--tasks", 3), "1 to 2 of the 3 tasks"),
        (("--grid", "lr=0.1", "--tasks", 0), "1 to 2 of the 3 tasks"),
        (("--grid", "lr=0.1", "--validation", 0), "validation = 0.0 must be more than 0 and less than 1"),
        (("--grid", "lr=0.1", "--validation", 0.99), "leaves no image of a"),
        (("--grid", "lr=0.1", "--seeds", 0), "seeds = 0 must be a whole number from 1"),
        (("--grid", "lr=0.1", "--address", "x"), "add --engine ray"),
        (("--grid", "lr=0.1", "-s", "class_order=seeded"), "fixed order"),
    ],
)
def test_mistakes(tune: Tune, tmp_path: Path, words: tuple[object, ...], says: str) -> None:
    assert says in one_error(tune("er", *words))
    assert not (tmp_path / "search").exists()


def test_a_search_from_python(six: Dataset, tmp_path: Path) -> None:
    six.save(tmp_path / "six.npz")
    settings = {"width": "2", "tasks": str(TASKS)}
    found = search.Search.prepare(
        "fine-tune", str(tmp_path / "six.npz"), {"lr": ["0.1", "0.01"]}, settings=settings, seeds=2, out=tmp_path / "s"
    )
    plan = found.plan()
    assert not found.out.exists()
    found.write_data()
    outcomes = execute(plan.runs, Job(found.out, "cpu", workers=1))
    scores = found.scores(outcomes)
    choice = found.choose(scores)
    assert choice is not None
    assert [score.mean for score in scores if score][choice.number] == max(score.mean for score in scores if score)
    assert (choice.config.learner.lr, choice.config.stream.tasks) == (float(choice.point["lr"]), TASKS)
    record = json.loads(save_record(found, record_of(found, outcomes, choice)).read_text())
    assert (record["chosen"], record["grid"]) == (choice.point, {"lr": ["0.1", "0.01"]})


@dataclass(frozen=True)
class OwnConfig(ERConfig):
    own: Any = None
    steps: Literal[1, 2] = 1


class OwnER(ER):
    Config = OwnConfig


def test_a_search_takes_settings_as_resolve_does(six: Dataset, tmp_path: Path) -> None:
    """A factory, None for the default, values of other kinds than text, whatever a setting of one's own may hold."""
    ocil.register(ocil.MethodInfo("own", OwnER, "like er", "-"))
    six.save(tmp_path / "six.npz")
    shared = {"network": Tiny, "task_sizes": (3, 2, 1), "arrival_order": list("fedcba"), "lr": None, "own": [1]}
    space = {"lr": (None, 0.2), "steps": np.array([1, 2])}
    numbers = {"tasks": np.int64(2), "seeds": np.int64(1), "validation": np.float32(0.1)}
    where = {"memory": 20, "review": False, "settings": shared, "out": tmp_path / "s", **numbers}
    found = search.Search.prepare("own", str(tmp_path / "six.npz"), space, **where)  # type: ignore[arg-type]
    assert found.points == [{"lr": lr, "steps": steps} for lr in (None, 0.2) for steps in (1, 2)]
    assert [(config.learner.lr, config.learner.steps) for config in found.configs] == [  # type: ignore[attr-defined]
        (lr, steps) for lr in (0.1, 0.2) for steps in (1, 2)
    ]
    for point, config in zip(found.points, found.configs, strict=True):
        settings = shared | point
        alone = resolve("own", config.dataset, memory=20, review=False, settings=settings, **facts_of(six))
        assert config == alone
    assert [cell.label for cell in found.cells][:2] == ["lr=default steps=1", "lr=default steps=2"]
    outcomes: Outcomes = {
        run.key: Result(run.config, [[0.5] * 2] * 2, [], 1.0, {}, "", {"ocil": "1"}) for run in found.plan().runs
    }
    choice = found.choose(found.scores(outcomes))
    assert choice is not None
    record = json.loads(save_record(found, record_of(found, outcomes, choice)).read_text())
    assert record["grid"] == {"lr": ["default", "0.2"], "steps": ["1", "2"]}
    assert (record["seeds"], record["validation_share"]) == (1, 0.1)
    assert record["settings"]["network"] == "module:tests.networks_to_try:Tiny"
    assert record["chosen"] == record["scores"][0]["values"] == {"lr": "default", "steps": "1"}


@pytest.mark.parametrize(
    ("space", "settings", "says"),
    [
        (["lr"], {}, r"space = \['lr'\] must be a dictionary, such as {'lr': \[0.03, 0.1\]}."),
        ({"lr": []}, {}, r"lr = \[\] has no value to try: give some, or leave lr out."),
        ({"lr": [0.1]}, "width=2", "settings = 'width=2' must be a dictionary, such as {'lr': 0.05}."),
        ({"lr": [0.1]}, {"widht": None}, "unknown setting 'widht' for er. Did you mean 'width'?"),
        ({"memory": [20, 50]}, {"memory": 50}, r"memory is given twice, to search \(20,50\) and as a setting"),
        ({"review": [True]}, {"review": False}, r"review is given twice, to search \(true\) and as a setting"),
        ({"task_sizes": [(3, 3)]}, {}, "task_sizes=3,3: task_sizes changes the problem; it cannot be searched."),
    ],
)
def test_what_is_no_search_from_python(six: Dataset, tmp_path: Path, space: Any, settings: Any, says: str) -> None:
    six.save(tmp_path / "six.npz")
    with pytest.raises(OcilError, match=says):
        ocil.tune("er", space, str(tmp_path / "six.npz"), settings=settings, root=tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"tasks": 1.5}, "tasks = 1.5 is not a whole number."),
        ({"tasks": True}, "tasks = True is not a whole number."),
        ({"validation": None}, "validation = None is not a number."),
    ],
)
def test_a_search_on_a_number_that_is_none(tmp_path: Path, numbers: Any, says: str) -> None:
    with pytest.raises(OcilError, match=says):
        ocil.tune("er", {"lr": [0.1]}, root=tmp_path / "s", **numbers)


def searched_stream(dataset: Dataset, folder: Path, **settings: str) -> Stream:
    """The stream that the runs of a search on the first two tasks learn from."""
    dataset.save(folder / "data.npz")
    space, path = {"lr": ["0.1"]}, str(folder / "data.npz")
    found = search.Search.prepare("er", path, space, memory=20, settings=settings, out=folder / "s")
    (config,) = (cell.config for cell in found.plan().cells)
    return Stream(found.split.data, config.stream, config.seed)


def test_a_search_on_vectors_has_a_network_for_vectors(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(CLASSES), 20)
    vectors = np.eye(CLASSES, dtype=np.float32)[labels]
    Dataset("rows", vectors, labels, vectors, labels, tuple("abcdef")).save(tmp_path / "rows.npz")
    found = search.Search.prepare("er", str(tmp_path / "rows.npz"), {"lr": ["0.1"]}, memory=20, out=tmp_path / "s")
    assert found.plan().cells[0].config.learner.network == "linear"


def test_the_first_tasks_have_the_sizes_and_the_order_that_were_given(six: Dataset, tmp_path: Path) -> None:
    stream = searched_stream(six, tmp_path, width="2", task_sizes="3,2,1", arrival_order="f,e,d,c,b,a")
    assert [[stream.data.classes[label] for label in group] for group in stream.groups] == [["f", "e", "d"], ["c", "b"]]


def test_a_search_measures_the_accuracy_after_each_task_alone(six: Dataset, tmp_path: Path) -> None:
    """The first tasks may be shorter than the time between two evaluations of the whole stream."""
    six.save(tmp_path / "six.npz")
    settings = {"evaluate_every": 25, "probe": True}
    found = search.Search.prepare("er", str(tmp_path / "six.npz"), {"lr": [0.1]}, settings=settings, tasks=1)
    (cell,) = found.cells
    assert (cell.config.stream.evaluate_every, cell.config.stream.probe) == (0, False)
    assert found.configs[0].stream.evaluate_every == 25
    found.plan()


def test_ctrl_c_leaves_no_record(tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocil.engines.pool.run_all", lambda runs, *_: {run.key: Interrupted("") for run in runs})
    assert tune("er", "--grid", "lr=0.1", "--seeds", 1).code == 130
    assert not (tmp_path / "search" / "tuning.json").exists()


def test_a_search_on_vectors_has_their_network(six: Dataset, tmp_path: Path) -> None:
    shape = (len(six.train_x), -1), (len(six.test_x), -1)
    train, test = (x.reshape(to).astype(np.float32) for x, to in zip((six.train_x, six.test_x), shape, strict=True))
    replace(six, train_x=train, test_x=test).save(tmp_path / "vectors.npz")
    settings = {"tasks": str(TASKS), "memory_batch": "5"}
    found = search.Search.prepare(
        "afs", str(tmp_path / "vectors.npz"), memory=20, settings=settings, out=tmp_path / "s"
    )
    found.plan()
    learner: Any = found.configs[0].learner
    assert (learner.network, learner.views) == ("linear", "raw")


def test_a_search_takes_the_sizes_of_the_first_tasks(six: Dataset, tmp_path: Path) -> None:
    six.save(tmp_path / "six.npz")
    settings = {"width": "2", "task_sizes": "1,3,2"}
    found = search.Search.prepare(
        "fine-tune", str(tmp_path / "six.npz"), {"lr": ["0.1"]}, settings=settings, out=tmp_path
    )
    found.plan()
    assert [len(classes) for classes in found.split.tasks] == [1, 3]
    assert found.cells[0].config.stream.task_sizes == (1, 3)


LONG_TAIL = {"width": "2", "tasks": "3", "drop_last": "false"}


@pytest.mark.parametrize("order", ["arrival", "seeded"])
def test_classes_are_as_large_in_a_search_as_in_the_whole_stream(six: Dataset, tmp_path: Path, order: str) -> None:
    """Of 20 images per class at most, a tenth is held out."""
    settings = LONG_TAIL | {"arrival_order": "f,e,d,c,b,a", "imbalance_factor": "20", "imbalance_order": order}
    six.save(tmp_path / "six.npz")
    path, out = str(tmp_path / "six.npz"), tmp_path / "s"
    found = search.Search.prepare("fine-tune", path, {"lr": ["0.1", "0.2"]}, settings=settings, seeds=4, out=out)
    for cell in found.cells:
        for seed, config in enumerate(cell.configs):
            whole = Stream(six, found.configs[0].stream, seed)
            in_whole = np.bincount(six.train_y[whole.samples.numpy()], minlength=CLASSES)
            cut = Stream(found.split.data, config.stream, seed)
            in_search = np.bincount(found.split.data.train_y[cut.samples.numpy()])
            expected = [max(1, round(0.9 * in_whole[six.classes.index(name)])) for name in found.split.data.classes]
            assert in_search.tolist() == expected
        assert len({config.cell for config in cell.configs}) == 1, "the runs of a point differ by their seed alone"
    cuts = [Stream(found.split.data, config.stream, config.seed) for config in found.cells[0].configs]
    assert found.samples == [len(cut.samples) for cut in cuts]
    assert max(found.samples) < len(found.split.data.train_y)
    assert (len(set(found.samples)) > 1) == (order == "seeded")


def test_a_search_says_how_many_samples_its_runs_learned(tune: Tune, tmp_path: Path) -> None:
    """Which classes are large is drawn by the seed, so the runs of the seeds learn from different numbers."""
    settings = ("imbalance_factor=5", "imbalance_order=seeded")
    said = tune("fine-tune", "--grid", "lr=0.1", "--seeds", 3, "-s", *settings)
    assert said.code == 0, said.err
    numbers = json.loads((tmp_path / "search" / "tuning.json").read_text())["train_images"]
    assert len(numbers) == 3
    assert f"Learned from {min(numbers)} to {max(numbers)} and scored on" in said.out


def test_the_seeds_of_a_search_are_one_cell_where_they_shuffle_sizes(
    tune: Tune, ocil_command: Call, tmp_path: Path
) -> None:
    settings = ("imbalance_factor=5", "imbalance_order=seeded")
    assert tune("fine-tune", "--grid", "lr=0.1", "--seeds", 3, "-s", *settings).code == 0
    shown = json.loads(ocil_command("show", tmp_path / "search", "--json").out)
    assert [run["config"]["seed"] for run in shown["runs"]] == [0, 1, 2], "one cell with all seeds"


def test_given_counts_are_those_of_the_classes_of_a_search(six: Dataset, tmp_path: Path) -> None:
    stream = searched_stream(six, tmp_path, **LONG_TAIL, class_counts="20,10,4,1,20,20")
    assert np.bincount(stream.data.train_y[stream.samples.numpy()]).tolist() == [18, 9, 4, 1]
