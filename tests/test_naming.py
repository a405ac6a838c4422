"""Names of run folders: what is added, moved or renamed later meets the finished runs, and nothing else does."""

import importlib.util
import json
import re
import shutil
import sys
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocil
from ocil import run_many, tensorfile
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.experiments import search
from ocil.longtail.config import STAGE1, LongTailConfig
from ocil.longtail.config import resolve as resolve_longtail
from ocil.longtail.runs import LongTailRun
from ocil.methods import METHODS
from ocil.report.cells import MeasuredColumn
from ocil.report.collect import collect
from ocil.runs import naming
from ocil.runs.config import RunConfig, resolve
from ocil.runs.folder import RunFolder
from ocil.runs.protocol import Interrupted
from ocil.runs.results import sealed
from ocil.runs.stream_run import run
from tests.conftest import Call, one_error
from tests.test_report_page import made_up, save

FORMER_DEFAULT = {"precision": "tf32"}  # as it was on all machines
FORMER = {  # folders of results/ as they were named once, of `ocil run METHOD --dataset cifar100 --set precision=bf16`
    "afs": "cifar100-afs-m5000-df043f90",
    "er": "cifar100-er-m5000-b4bd7e29",
    "agem": "cifar100-agem-m5000-d0ce7bc5",
    "gss": "cifar100-gss-m5000-6dbc599c",
    "gdumb": "cifar100-gdumb-m5000-4bc374c1",
    "mir": "cifar100-mir-m5000-de485cef",
    "er-ace": "cifar100-er-ace-m5000-e692283e",
    "dvc": "cifar100-dvc-m5000-6cdadff1",
    "ocm": "cifar100-ocm-m5000-1b14343e",
    "scr": "cifar100-scr-m5000-6b3dd1d7",
    "aser": "cifar100-aser-m5000-48422fc6",
    "aaer": "cifar100-aaer-m5000-a53f9f98",
    "fine-tune": "cifar100-fine-tune-234404d1",
    "iid-offline": "cifar100-iid-offline-232bad7e",
}


def with_one_more(config: Any) -> Any:
    """The same settings in a later version, whose class has one more."""
    later = make_dataclass("Later", [("later_setting", float, 0.5)], bases=(type(config),), frozen=True)
    return later(**{f.name: getattr(config, f.name) for f in fields(config)})


@pytest.mark.parametrize("name", METHODS)
def test_a_setting_that_is_added_renames_nothing(name: str) -> None:
    config = resolve(name, "cifar10", settings={"lr": 0.03, "drop_last": False})
    later = replace(config, stream=with_one_more(config.stream), learner=with_one_more(config.learner))
    assert later.cell == config.cell
    assert search.digest([later], "abc", 2) == search.digest([config], "abc", 2)
    changed = replace(later, learner=replace(later.learner, later_setting=0.25))  # type: ignore[call-arg]
    assert changed.cell != config.cell
    assert search.digest([changed], "abc", 2) != search.digest([config], "abc", 2)


@pytest.mark.parametrize("variant", ["ce", "oltr-rfld"])
def test_a_long_tailed_setting_that_is_added_renames_nothing(variant: str) -> None:
    config = resolve_longtail(variant, "cifar100", settings={"lr1": 0.03})
    later = with_one_more(config)
    assert (later.cell, later.stage1.cell) == (config.cell, config.stage1.cell)


def test_images_are_known_by_their_fingerprint_wherever_they_lie() -> None:
    here = replace(resolve("er", "/home/me/birds.npz"), fingerprint="0123456789ab")
    there = replace(here, dataset="/data/shared/birds.npz")
    assert there.cell == here.cell
    assert there.reference().cell == here.reference().cell
    assert replace(here, fingerprint="ba9876543210").cell != here.cell
    assert search.digest([there], "abc", 2) == search.digest([here], "abc", 2) != search.digest([here], "abd", 2)
    tailed = resolve_longtail("oltr", "/home/me/birds.npz", fingerprint="0123456789ab")
    moved = replace(tailed, dataset="birds.npz")
    assert (moved.cell, moved.stage1.cell) == (tailed.cell, tailed.stage1.cell)


def test_values_that_are_equal_make_one_name() -> None:
    @dataclass(frozen=True)
    class Part:
        rate: Any = 0.5
        sizes: Any = (1, 2)
        more: Any = field(default_factory=dict)

    assert naming.distinct(Part(sizes=[1.0, 2])) == naming.distinct(Part()) == {}
    same = [Part(1), Part(1.0), Part(True), Part(1, more={})]
    assert len({naming.short_digest(naming.distinct(part)) for part in same}) == 1
    assert naming.distinct(Part(1, [3, (4.0, 0.1)], {"a": 2.0})) == {
        "rate": 1,
        "sizes": [3, [4, 0.1]],
        "more": {"a": 2},
    }
    assert naming.distinct(Part(more=Part(2.0))) == {"more": {"rate": 2}}
    learner = replace(resolve("er").learner, lr=1)
    assert replace(resolve("er"), learner=learner).cell == resolve("er", settings={"lr": 1.0}).cell


@given(st.text(min_size=1))
def test_every_file_system_takes_a_name(stem: str) -> None:
    for cell in (resolve("er", f"/data/{stem}.npz").cell, resolve_longtail("oltr", f"/data/{stem}.npz").stage1.cell):
        assert len(cell.encode()) <= 255
        assert cell.isprintable()
        assert not re.search(r'^[.-]|[<>:"/\\|?*]', cell)


# Former names


@pytest.mark.parametrize("name", FORMER)
def test_former_names_stay_what_they_were(name: str) -> None:
    """If this fails because you added a setting: add it to ``naming.ADDED_SINCE``."""
    then = {"updates": 1} if name == "aaer" else {}  # on CIFAR it takes four steps since
    assert resolve(name, "cifar100", settings={"precision": "bf16"} | then).former_cell == FORMER[name]


def test_former_names_of_special_cases() -> None:
    growing = resolve("afs", "cifar100", settings={"precision": "bf16", "growing": True})
    assert growing.former_cell == "cifar100-afs-m5000-689acade"
    own = replace(resolve("er", "/home/me/birds.npz", memory=5000, settings=FORMER_DEFAULT), fingerprint="0123456789ab")
    assert own.former_cell == "birds-er-m5000-113eaf92"
    names = {
        "ce": "b7ad1368",
        "oltr": "c8051d65",
        "oltr-fl": "3ff392d5",
        "oltr-rfl": "3d7cd40c",
        "oltr-rfld": "de859d26",
    }
    for variant, digest in names.items():
        config = resolve_longtail(variant, "cifar100", image_side=32, settings={"precision": "bf16"})
        assert config.former_cell == f"cifar100-lt100-{variant}-{digest}"
        assert config.stage1.former_cell == "cifar100-lt100-stage1-2f36e806"


def test_the_former_name_of_a_search() -> None:
    points = [resolve("er", "cifar100", settings={"lr": lr} | FORMER_DEFAULT) for lr in (0.2, 0.1)]
    assert search.former_digest(points, "abc", 2) == "1fe1c4a0"


@pytest.fixture
def config(tiny: Dataset, tiny_npz: Path) -> RunConfig:
    settings = {"width": 2, "memory_batch": 5, "tasks": 2}
    return replace(resolve("er", str(tiny_npz), memory=20, settings=settings), fingerprint=tiny.fingerprint)


def stop_at_the_third_batch(config: RunConfig, root: Path) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        run(config, root, device="cpu", should_stop=lambda: next(asked))


def test_a_run_with_a_former_name_goes_on_and_is_found(config: RunConfig, tmp_path: Path) -> None:
    stop_at_the_third_batch(config, tmp_path)
    (tmp_path / config.cell).rename(tmp_path / config.former_cell)
    result = run(config, tmp_path, device="cpu")
    assert {path.name for path in tmp_path.iterdir()} == {config.former_cell}
    assert run(config, tmp_path, device="cpu") == result
    other = replace(config, seed=1)  # a new seed joins those that are there
    run(other, tmp_path, device="cpu")
    assert {path.name for path in tmp_path.iterdir()} == {config.former_cell}
    assert run(config, tmp_path / "whole", device="cpu").digest == result.digest


def test_of_two_folders_the_present_name_counts(config: RunConfig, tmp_path: Path) -> None:
    now, once = (tmp_path / name / "seed-0" for name in (config.cell, config.former_cell))
    for folder, level in ((now, 0.5), (once, 0.25)):
        RunFolder(folder).save_result(made_up(config, level))
    assert RunFolder.of(tmp_path, config).path == now
    shutil.rmtree(now)
    assert RunFolder.of(tmp_path, config).path == once
    assert RunFolder.of(tmp_path, replace(config, seed=1)).path == now.parent / "seed-1"


def test_former_names_of_long_tailed_runs_are_found(tmp_path: Path) -> None:
    config = resolve_longtail("oltr", "cifar100")
    assert LongTailRun(config).folder(tmp_path).path == tmp_path / config.cell / "seed-0"
    for name in (config.former_cell, config.stage1.former_cell):
        (tmp_path / name / "seed-0").mkdir(parents=True)
    assert LongTailRun(config).folder(tmp_path).path == tmp_path / config.former_cell / "seed-0"
    assert LongTailRun(config).stage1.folder(tmp_path).path == tmp_path / config.stage1.former_cell / "seed-0"


# Moved and renamed datasets


@pytest.mark.parametrize("name", ["tiny.npz", "other name.npz"])
def test_a_file_that_was_moved_meets_its_finished_runs(
    run_tiny: Call, tiny_npz: Path, tmp_path: Path, name: str
) -> None:
    first = json.loads(run_tiny("er", "--seeds", 2, "--json").out)
    moved = tmp_path / "elsewhere" / name
    moved.parent.mkdir()
    shutil.copy(tiny_npz, moved)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json")}
    again = json.loads(run_tiny("er", "--seeds", 2, "--json", "--dataset", moved).out)
    assert again == first | {"dataset": str(moved)}  # the comparison with fine-tuning included
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.json")}


def test_a_report_has_one_table_for_the_same_images(config: RunConfig, tmp_path: Path) -> None:
    later = replace(config, dataset="/elsewhere/birds.npz")
    save(tmp_path / "a", config, 2, finished="2026-01-01")
    RunFolder.of(tmp_path / "b", replace(later, seed=2)).save_result(
        made_up(replace(later, seed=2), finished="2026-02-01")
    )
    save(tmp_path / "b", replace(later, learner=replace(later.learner, lr=0.03)), 2, finished="2026-01-15")
    save(tmp_path / "b", later.reference(), 3, finished="2026-01-15")
    found = collect([tmp_path])
    assert not found.warnings
    assert [len(cell.runs) for cell in found.cells if cell.config.method == "er"] == [3, 2]
    assert found.columns == [MeasuredColumn("/elsewhere/birds.npz", 20)]
    assert found.cells[1].summary.average_intransigence is not None


def test_show_finds_references_that_knew_the_images_by_another_name(
    config: RunConfig, tmp_path: Path, ocil_command: Call
) -> None:
    save(tmp_path, config, 2, finished="2026-01-01")
    save(tmp_path, replace(config, dataset="/elsewhere/birds.npz").reference(), 2, finished="2026-02-01")
    said = ocil_command("show", tmp_path / config.cell, "--json")
    assert json.loads(said.out)["average_intransigence"] is not None


# Runs of ocil.run from before it looked at the images: their dataset is known by its name


def as_before(config: RunConfig, root: Path, cell: str) -> None:
    """Give a run the folder and the files that ``ocil.run`` made once."""
    (root / config.cell).rename(root / cell)
    folder = RunFolder(root / cell / "seed-0")
    folder.save_config(config.by_name)
    if (result := folder.result()) is not None:
        folder.save_result(replace(result, config=config.by_name))


@pytest.fixture(params=["cell", "former_cell"])
def cell_before(request: pytest.FixtureRequest, config: RunConfig) -> str:
    cell: str = getattr(config.by_name, request.param)
    assert cell not in (config.cell, config.former_cell)
    return cell


def test_a_finished_run_that_knew_its_dataset_by_name_is_found(
    config: RunConfig, cell_before: str, tmp_path: Path
) -> None:
    first = run(config.by_name, tmp_path, device="cpu")
    assert first.config == config
    as_before(config, tmp_path, cell_before)
    before = tree_with_times(tmp_path)
    assert run(config.by_name, tmp_path, device="cpu") == first
    assert run_many([config.by_name], tmp_path, workers=1, device="cpu") == [first]
    assert run(config, tmp_path, device="cpu") == first
    assert tree_with_times(tmp_path) == before
    (found,) = collect([tmp_path]).cells
    assert found.runs[0].result.digest == first.digest


def test_a_result_in_two_folders_is_read_without_its_images(config: RunConfig, tiny: Dataset, tmp_path: Path) -> None:
    """As ``ocil.run`` and ``run_many`` wrote it, each into a folder of its own, before both looked at the images."""
    file, root = tmp_path / "tiny.npz", tmp_path / "runs"
    tiny.save(file)
    mine = replace(config.by_name, dataset=str(file))
    first = run(mine, root, device="cpu")
    as_before(first.config, root, mine.cell)
    run_many([mine], tmp_path / "others", workers=1, device="cpu")
    (there,) = (tmp_path / "others").iterdir()
    there.rename(root / there.name)
    file.unlink()
    assert run(mine, root, device="cpu").digest == first.digest


@pytest.mark.parametrize("call", ["run", "run_many"])
def test_a_begun_run_that_knew_its_dataset_by_name_goes_on(
    config: RunConfig, cell_before: str, tmp_path: Path, call: str
) -> None:
    root = tmp_path / "runs"
    stop_at_the_third_batch(config, root)
    as_before(config, root, cell_before)
    saved = RunFolder(root / cell_before / "seed-0").load_checkpoint()
    assert saved is not None
    if call == "run":
        result = run(config.by_name, root, device="cpu")
    else:
        (result,) = run_many([config.by_name], root, workers=1, device="cpu")
    assert {path.name for path in root.iterdir()} == {cell_before}
    assert result.config == config
    assert result.wall_seconds > saved[1]["seconds"] > 0
    assert result.digest == run(config, tmp_path / "whole", device="cpu").digest


def test_a_run_of_other_images_that_knew_its_dataset_by_name_is_left_alone(
    config: RunConfig, tiny: Dataset, tmp_path: Path
) -> None:
    file, root = tmp_path / "tiny.npz", tmp_path / "runs"
    mine = replace(config.by_name, dataset=str(file))
    replace(tiny, train_x=255 - tiny.train_x).save(file)
    other = run(mine, root, device="cpu")
    as_before(other.config, root, mine.cell)
    before = tree_with_times(root)
    tiny.save(file)
    result = run(mine, root, device="cpu")
    assert result.images == tiny.fingerprint != other.images
    assert tree_with_times(root).items() >= before.items()
    assert run_many([mine], root, workers=1, device="cpu") == [result]


def tree_with_times(root: Path) -> dict[str, int]:
    return {name: (root / name).stat().st_mtime_ns for name in tree(root)}


# Other settings under the same name


@pytest.mark.parametrize("change", [{"lr": 0.2}, {"review": True, "momentum": 0.5}])
def test_a_result_of_other_settings_is_not_taken(config: RunConfig, tmp_path: Path, change: dict[str, Any]) -> None:
    """As after a change of the defaults, which no name shows."""
    other = replace(config, learner=replace(config.learner, **change))
    RunFolder.of(tmp_path, config).save_result(made_up(other))
    for attempt in (lambda: RunFolder.of(tmp_path, config).result(), lambda: run(config, tmp_path, device="cpu")):
        with pytest.raises(OcilError, match=rf"a run with other settings \({', '.join(sorted(change))}\)"):
            attempt()
    assert RunFolder(RunFolder.of(tmp_path, config).path).result() is not None  # whoever asks for any run gets it


def test_the_command_line_says_so_in_a_line(run_tiny: Call, tmp_path: Path) -> None:
    (folder,) = json.loads(run_tiny("fine-tune", "--seeds", 1, "--json").out)["runs"]
    path = Path(folder) / "result.json"
    content = json.loads(path.read_text())
    content["config"]["learner"]["lr"] = 0.25
    path.write_text(json.dumps(sealed(content)))
    assert "holds a run with other settings (lr)" in one_error(run_tiny("fine-tune", "--seeds", 1))


def test_the_result_of_another_seed_is_not_taken(config: RunConfig, tmp_path: Path) -> None:
    RunFolder.of(tmp_path, config).save_result(made_up(replace(config, seed=1)))
    with pytest.raises(OcilError, match=r"other settings \(seed\)"):
        RunFolder.of(tmp_path, config).result()


def test_a_checkpoint_of_other_settings_is_not_taken(config: RunConfig, tmp_path: Path) -> None:
    stop_at_the_third_batch(config, tmp_path)
    folder = RunFolder.of(tmp_path, config).path
    content = config.to_json()
    (folder / "config.json").write_text(json.dumps(content | {"learner": content["learner"] | {"lr": 0.5}}))
    with pytest.raises(OcilError, match=r"a run with other settings \(lr\)"):
        run(config, tmp_path, device="cpu")
    (folder / "config.json").write_text("{")
    with pytest.raises(OcilError, match=r"cannot read .*config\.json"):
        run(config, tmp_path, device="cpu")
    del content["learner"]["growing"]  # written before there was that setting
    (folder / "config.json").write_text(json.dumps(content))
    assert run(config, tmp_path, device="cpu").matrix


def test_long_tailed_runs_of_other_settings_are_not_taken(tmp_path: Path) -> None:
    path = next((Path(__file__).resolve().parents[1] / "results").glob("cifar100-lt100-oltr-rfld-*/seed-0/result.json"))
    content = json.loads(path.read_text())
    config = LongTailConfig.from_json(content["config"])
    folder = LongTailRun(config).folder(tmp_path).path
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(content))
    found = LongTailRun(replace(config, capture=False)).result(tmp_path)  # which changes the speed only
    assert found is not None
    content["config"] |= {"lr1": 0.3, "lr2": 0.3}
    (folder / "result.json").write_text(json.dumps(sealed(content)))
    with pytest.raises(OcilError, match=r"other settings \(lr1, lr2\)"):
        LongTailRun(config).result(tmp_path)
    stage1 = LongTailRun(config).stage1.folder(tmp_path).path
    stage1.mkdir(parents=True)
    part = {name: content["config"][name] for name in STAGE1}
    (stage1 / "config.json").write_text(json.dumps(part))
    assert LongTailRun(config).stage1.weights(tmp_path) is None
    tensorfile.write(stage1 / "weights.safetensors", {}, {"found": "{}"})
    with pytest.raises(OcilError, match=r"other settings \(lr1\)"):
        LongTailRun(config).stage1.weights(tmp_path)


# Files of other versions


@pytest.mark.parametrize("part", ["stream", "learner"])
def test_a_setting_that_a_file_lacks_has_its_default(config: RunConfig, part: str) -> None:
    content = config.to_json()
    for name in ("class_order", "growing"):
        content[part].pop(name, None)
    assert RunConfig.from_json(content) == config
    content[part]["of_a_later_version"] = 1
    with pytest.raises(ValueError, match="this version of ocil has no setting 'of_a_later_version'"):
        RunConfig.from_json(content)


def test_unknown_settings_elsewhere_in_a_file(config: RunConfig) -> None:
    with pytest.raises(ValueError, match="has no setting 'network'"):
        RunConfig.from_json(config.to_json() | {"network": "large"})
    tailed = resolve_longtail("oltr")
    content = tailed.to_json()
    del content["margin"]
    assert LongTailConfig.from_json(content) == tailed
    with pytest.raises(ValueError, match="has no setting 'later'"):
        LongTailConfig.from_json(content | {"later": 1})


def test_a_file_holds_every_setting(config: RunConfig) -> None:
    content = config.to_json()
    assert set(content["learner"]) == {f.name for f in fields(config.learner)}
    assert set(content["stream"]) == {f.name for f in fields(config.stream)}


# The tool that renames folders


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "tools" / "rename_runs.py"
    spec = importlib.util.spec_from_file_location("rename_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != ".lock"}


def test_folders_are_renamed_once(
    tool: ModuleType,
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finished, begun = tmp_path / config.former_cell, tmp_path / config.reference().former_cell
    RunFolder(finished / "seed-0").save_result(made_up(config))
    RunFolder(begun / "seed-0").save_config(config.reference())
    tailed = resolve_longtail("oltr", "cifar100")
    content = {name: value for name, value in tailed.to_json().items() if name in STAGE1}
    stage1 = tmp_path / tailed.stage1.former_cell / "seed-0"
    stage1.mkdir(parents=True)
    (stage1 / "config.json").write_text(json.dumps(content))
    (tmp_path / "mine" / "seed-0").mkdir(parents=True)
    (tmp_path / "mine" / "seed-0" / "result.json").write_text("{")
    before = tree(tmp_path)

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["rename_runs.py", str(tmp_path), *words])
        tool.main()
        return capsys.readouterr().out

    assert "3 runs would be moved" in call("--dry-run")
    assert tree(tmp_path) == before
    assert "3 runs were moved" in call()
    cells = {config.cell: "result", config.reference().cell: "config", tailed.stage1.cell: "config", "mine": "result"}
    assert tree(tmp_path) == {f"{cell}/seed-0/{name}.json" for cell, name in cells.items()}
    assert {path.name for path in tmp_path.iterdir()} == set(cells)
    assert "0 runs were moved" in call()


def test_no_run_is_moved_onto_another(
    tool: ModuleType, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (config.former_cell, "by-hand"):
        RunFolder(tmp_path / name / "seed-0").save_result(made_up(config))
    RunFolder(tmp_path / "by-hand" / "seed-1").save_result(made_up(replace(config, seed=1)))
    before = tree(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rename_runs.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="both belong to"):
        tool.main()
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("default", "value", "kind"),
    [(Path("weights"), Path("others"), "PosixPath|WindowsPath"), (None, {1, 2}, "set"), (None, [b"bytes"], "bytes")],
    ids=str,
)
def test_a_setting_that_json_cannot_hold_is_refused_before_the_run(
    tiny: Dataset, tmp_path: Path, default: Any, value: Any, kind: str
) -> None:
    base = METHODS["fine-tune"].load()
    own = make_dataclass("OwnConfig", [("own", Any, field(default=default))], bases=(base.Config,), frozen=True)
    method = type("Own", (base,), {"Config": own})
    ocil.register(ocil.MethodInfo("own", method, "like fine-tune", "-", memory=False))
    config = resolve("own", "tiny", settings={"width": 1, "tasks": 2, "own": value})
    with pytest.raises(OcilError, match=f"^the setting own holds a ({kind}), which a result cannot: let it hold"):
        run(config, tmp_path, dataset=tiny, device="cpu")
    assert not list(tmp_path.iterdir())
