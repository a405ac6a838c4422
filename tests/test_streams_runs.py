"""Runs on every kind of stream: by the command line, with known and growing classes, stopped and gone on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocil
from ocil import Dataset, OcilError, resolve
from ocil.data import derived
from ocil.methods import METHODS
from ocil.runs.captured import CapturedStepper
from ocil.runs.config import RunConfig
from ocil.runs.protocol import Interrupted
from ocil.runs.stepper import Stepper, classes_to_meet
from ocil.runs.stream_run import ActiveStreamRun, StreamRun
from ocil.streams import KINDS, Stream
from tests.conftest import Call
from tests.networks_to_try import TINY
from tests.reference.datasets import patterned

FEW = "class_counts=" + ",".join(["10"] * 10)  # of the embedded images: a run takes a moment
STREAMS: dict[str, tuple[str, ...]] = {
    **{kind: (f"boundary={kind}", FEW) for kind in KINDS},
    "task sizes": ("task_sizes=4,3,3", FEW),
    "first task": ("first_task=6", "tasks=3", FEW),
    "given order": ("arrival_order=bag,0,1,2,3,4,5,6,7,9", FEW),
    "long tail": ("imbalance_factor=10", "batch_size=50"),
    "label noise": ("label_noise=0.4", FEW),
    "hidden ends": ("task_ends=hidden", FEW),
}
SETTINGS: list[dict[str, Any]] = [
    *({"boundary": kind} for kind in KINDS),
    {"task_sizes": (1, 3)},
    {"arrival_order": ("3", "1", "0", "2")},
    {"imbalance_factor": 3.0},
    {"label_noise": 0.5},
    {"scenario": "domain", "tasks": 3},
]
NETWORK = TINY
DATA = derived.with_domains(patterned(12, 4), derived.ImageChange("noise", 3, 1.0), "noisy")


def config_of(settings: dict[str, Any], name: str = "er", **more: Any) -> RunConfig:
    small = {"tasks": 2, "network": NETWORK, "memory": 20, "memory_batch": 5, "batch_size": 6}
    return resolve(name, "noisy", settings=small | settings | more)


def run_it(ocil_command: Call, out: Path, *words: object) -> dict[str, Any]:
    small = ("--workers", 1, "--seeds", 1, "--no-reference", "--memory", 50, "--out", out, "--json")
    said = ocil_command("run", "er", *small, *words)
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    (folder,) = found["runs"]
    result: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
    return result


@pytest.mark.parametrize("name", list(STREAMS))
def test_the_command_runs_every_kind_of_stream(name: str, ocil_command: Call, tmp_path: Path) -> None:
    result = run_it(ocil_command, tmp_path, "--set", f"network={NETWORK}", "memory_batch=5", *STREAMS[name])
    rows, columns = np.shape(result["matrix"])
    assert columns == result["config"]["stream"]["tasks"]
    assert rows == (1 if name == "iid" else columns)


def test_the_command_runs_domains_and_joined_datasets(ocil_command: Call, tmp_path: Path) -> None:
    few = (f"network={NETWORK}", "memory_batch=5", "batch_size=50")
    noisy = run_it(ocil_command, tmp_path, "--dataset", "fashion-mini:blur,domains=3", "--set", "scenario=domain", *few)
    assert np.shape(noisy["matrix"]) == (3, 3)
    patterned(10, 4).save(tmp_path / "one.npz")
    patterned(10, 6, seed=1).save(tmp_path / "two.npz")
    name = f"{tmp_path / 'one.npz'}+{tmp_path / 'two.npz'}"
    joined = run_it(ocil_command, tmp_path, "--dataset", name, "--set", f"network={NETWORK}", "memory_batch=5")
    assert joined["config"]["stream"]["task_sizes"] == [1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert joined["config"]["dataset"] == name
    assert run_it(ocil_command, tmp_path, "--dataset", name, "--set", f"network={NETWORK}", "memory_batch=5") == joined


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("growing", [False, True], ids=["known", "growing"])
def test_a_run_goes_on_bit_identically(settings: dict[str, Any], growing: bool, tmp_path: Path) -> None:
    config = config_of(settings, growing=growing)
    whole = ocil.run(config, tmp_path / "a", dataset=DATA, device="cpu")
    stops = iter(range(1000))
    with pytest.raises(Interrupted):
        ocil.run(config, tmp_path / "b", dataset=DATA, device="cpu", should_stop=lambda: next(stops) == 3)
    again = ocil.run(config, tmp_path / "b", dataset=DATA, device="cpu")
    assert (again.digest, again.matrix, again.evaluations) == (whole.digest, whole.matrix, whole.evaluations)
    stored = type(whole).from_json(json.loads(json.dumps(whole.to_json())))
    assert stored.config == config.identified(DATA)


def test_a_growing_learner_meets_the_labels_that_it_hears() -> None:
    config = config_of({"label_noise": 0.9, "tasks": 4})
    stream = Stream(DATA, config.stream, seed=0)
    met = classes_to_meet(stream)
    heard: set[int] = set()
    for batch in stream:
        new = set(batch.y.tolist()) - heard
        assert met.get(batch.number, set()) == new
        heard |= new


def test_a_captured_step_takes_the_labels_of_its_stream(tmp_path: Path) -> None:
    """Recorded on a CPU by a stand-in for a CUDA graph."""

    class Recorded(CapturedStepper):
        def record(self, work: Any) -> Any:
            return type("Graph", (), {"replay": staticmethod(work)})()

    config = config_of({"label_noise": 0.5, "boundary": "i-blurry"})
    digests = []
    for stepper in (Stepper, Recorded):
        folder = StreamRun(config).folder(tmp_path / stepper.__name__)
        with folder.lock():
            resident = ocil.streams.DeviceData(DATA, "cpu")
            active = ActiveStreamRun(config, folder, DATA, resident, stepper, 100.0, {})
            for _ in active.steps():
                pass
            digests.append(active.finish().digest)
    assert digests[0] == digests[1]


# Task ends


@pytest.mark.parametrize("name", [info.name for info in METHODS.values() if info.needs_task_ends])
def test_methods_that_need_task_ends_refuse_streams_without(name: str) -> None:
    for settings in (
        {"boundary": "i-blurry"},
        {"boundary": "si-blurry"},
        {"boundary": "none"},
        {"task_ends": "hidden"},
    ):
        with pytest.raises(OcilError, match=f"^{name} needs task ends, which a stream with") as caught:
            resolve(name, settings=settings)
        remedy = "ocil stream kinds" if settings.get("boundary") == "none" else "task_ends=announced"
        assert remedy in str(caught.value)
    resolve(name, settings={"boundary": "i-blurry", "task_ends": "announced"})


def test_hpcr_says_what_to_set_instead() -> None:
    with pytest.raises(OcilError, match="distil_from=start"):
        resolve("pcr", settings={"boundary": "i-blurry", "hybrid": True})
    resolve("pcr", settings={"boundary": "i-blurry", "hybrid": True, "distil_from": "start"})
    resolve("pcr", settings={"boundary": "i-blurry"})


def test_reviews_come_at_a_period_where_no_task_ends_are_announced() -> None:
    assert resolve("afs", "cifar100", settings={"boundary": "i-blurry"}).learner.review_every == 500
    assert resolve("afs", "cifar100", settings={"boundary": "repeated"}).learner.review_every == 0
    config = resolve("er", settings={"task_ends": "hidden", "imbalance_factor": 50.0}, review=True)
    assert config.learner.review_every == 0  # the run knows how long its stream is


# Names


def test_made_datasets_have_the_settings_of_their_images() -> None:
    for name, base in (("cifar100:noise", "cifar100"), ("cifar10:blur,domains=5", "cifar10")):
        made, usual = resolve("afs", name, classes=100, train=50_000), resolve("afs", base)
        assert made.learner == usual.learner
        assert made.stream == usual.stream
        assert made.cell != usual.cell


def test_new_settings_rename_no_run() -> None:
    """Names that were computed before there were these settings."""
    assert resolve("afs", "cifar100", settings={"boundary": "none", "tasks": 20}).cell == "cifar100-afs-m5000-c0da06ac"
    assert resolve("er", "cifar10").former_cell == "cifar10-er-m1000-ff4ab88e"


# ocil stream


def test_stream_kinds(ocil_command: Call) -> None:
    said = ocil_command("stream", "kinds", "--json")
    assert [kind["boundary"] for kind in json.loads(said.out)["kinds"]] == list(KINDS)
    assert "si-blurry" in ocil_command("stream", "kinds").out


def test_stream_show_counts_what_a_run_sees(ocil_command: Call, tmp_path: Path) -> None:
    words = ("stream", "show", "i-blurry", "--seed", 2, "--set", "label_noise=0.2")
    said = ocil_command(*words, "--json", "--figure", tmp_path / "a.svg", "--save-order", tmp_path / "order.npz")
    assert said.code == 0
    found = json.loads(said.out)
    config = resolve("er", settings={"boundary": "i-blurry", "label_noise": 0.2})
    stream = Stream(ocil.load_dataset(), config.stream, seed=2)
    assert found["fingerprint"] == stream.fingerprint
    labels = np.concatenate([batch.y.numpy() for batch in stream])
    counts = np.bincount(labels, minlength=10)
    assert np.sum(found["counts"], axis=1).tolist() == counts[found["units"]].tolist()
    assert np.sum(found["by_task"], axis=0).tolist() == counts[found["units"]].tolist()
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    replayed = ocil_command("stream", "show", "--set", f"order={tmp_path / 'order.npz'}", "--json")
    assert json.loads(replayed.out)["fingerprint"] == found["fingerprint"]
    text = ocil_command(*words).out
    assert "no task ends are announced" in text
    assert "600 of them have a wrong label" in text or "of them have a wrong label" in text
    assert "ankle-boot" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("iid", "--set", "batch_size=3000"), "in 1 batch of 3000."),
        (("--set", "batch_size=7", "drop_last=false"), "in 430 batches of 5 or 7."),
        (("--set", "first_task=3", "batch_size=70", "drop_last=false"), "in 45 batches of 20 to 70."),
    ],
    ids=str,
)
def test_stream_show_names_the_sizes_of_batches(words: tuple[str, ...], said: str, ocil_command: Call) -> None:
    assert said in ocil_command("stream", "show", *words).out


def test_stream_show_counts_what_never_arrives(ocil_command: Call) -> None:
    words = ("stream", "show", "--set", "batch_size=7")
    assert "25 more never arrive: an incomplete last batch is dropped" in ocil_command(*words).out  # 5 of 600, 5 tasks
    assert json.loads(ocil_command(*words, "--json").out)["dropped"] == 25
    assert "never arrive" not in ocil_command(*words, "drop_last=false").out
    assert "never arrive" not in ocil_command(*words, "boundary=iid", "epochs=9").out  # others are left over in each
    assert "never arrive" not in ocil_command("stream", "show").out


def test_endings_in_capitals_name_the_same_files(ocil_command: Call, tmp_path: Path) -> None:
    picture, order = tmp_path / "A.PDF", tmp_path / "ORDER.NPZ"
    said = ocil_command("stream", "show", "--seed", 1, "--figure", picture, "--save-order", order, "--json")
    assert picture.read_bytes().startswith(b"%PDF")
    replayed = ocil_command("stream", "show", "--set", f"order={order}", "--json")
    assert json.loads(replayed.out)["fingerprint"] == json.loads(said.out)["fingerprint"]


def test_stream_show_of_domains_and_of_many_classes(ocil_command: Call, tmp_path: Path) -> None:
    text = ocil_command("stream", "show", "--dataset", "fashion-mini:noise,domains=4", "--set", "scenario=domain").out
    assert "4: noise 3.6" in text
    many = Dataset(
        "many",
        np.zeros((400, 2, 2, 1), np.uint8),
        np.arange(400) % 100,
        np.zeros((100, 2, 2, 1), np.uint8),
        np.arange(100),
        tuple(f"c{c}" for c in range(100)),
    )
    many.save(tmp_path / "many.npz")
    said = ocil_command("stream", "show", "iid", "--dataset", tmp_path / "many.npz", "--figure", tmp_path / "many.png")
    assert said.code == 0
    assert len(said.out.splitlines()) < 60
    assert (tmp_path / "many.png").read_bytes().startswith(b"\x89PNG")


def test_stream_show_of_names_that_the_font_lacks(
    ocil_command: Call, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Characters of double width stay in their column, and a picture has no warning per character."""
    names = ("雀", "翠鳥", "wren")
    x, y = np.zeros((60, 4, 4, 1), np.uint8), np.arange(60) % 3
    Dataset("birds", x, y, x, y, names).save(tmp_path / "birds.npz")
    words = ("stream", "show", "--dataset", tmp_path / "birds.npz", "--figure")
    said = ocil_command(*words, tmp_path / "birds.svg")
    assert "ocil: warning" not in said.err
    assert all(name in (tmp_path / "birds.svg").read_text() for name in names)
    for start in ("  雀 ", "翠鳥 ", "wren "):
        assert any(line.startswith(start) for line in said.out.splitlines()), start
    said = ocil_command(*words, tmp_path / "birds.png")
    assert said.err.count("has boxes in the place of characters that the font of figures lacks") == 1
    assert not [each for each in recwarn if "Glyph" in str(each.message)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("wrong",), "boundary = 'wrong' is not a choice"),
        (("none", "--set", "boundary=clear"), "boundary is given twice"),
        (("--set", "task_sizes=3,4"), "7 classes, and fashion-mini has 10"),
        (("--set", "task_sizes=5,5", "tasks=3"), "leave out tasks"),
        (("--set", "label_noise=nan"), "label_noise = 'nan' is not a number"),
        (("--set", "lr=0.1"), "unknown setting 'lr' for a stream"),
        (("--figure", "a.gif"), "must end in .png, .svg or .pdf"),
        (("--seed", "-1"), "seed = -1"),
    ],
)
def test_stream_show_refuses_in_one_line(words: tuple[str, ...], message: str, ocil_command: Call) -> None:
    said = ocil_command("stream", "show", *words)
    assert said.code == 2
    assert len(said.errors) == 1
    assert message in said.errors[0]
