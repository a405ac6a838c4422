import re
import textwrap
from collections import Counter
from pathlib import Path

import pytest

import ocil.experiments
from ocil.errors import OcilError
from ocil.experiments import configure, named
from ocil.experiments.files import Experiment, KnownDataset, read, select
from ocil.methods import method
from ocil.report.papers import ColumnKey, load

SHIPPED = sorted(named.SHIPPED.glob("*.toml"))
COUNTS = {  # cells, seeds
    "table1": (19 * 9 + 2 * 3, 10),
    "table2": (10 * 3, 10),
    "table3": (5 * 9, 10),
    "alpha": (6, 10),
    "sigma": (6, 10),
    "bias": (3, 10),
    "balance": (12 * 3, 10),
    "steps": (12 * 3, 10),
    "time": (12, 10),
    "memory-batch": (6, 10),
    "samples": (2, 1),
    "equal-compute": (16 * 3, 10),
    "field": (13 * 3, 3),
    "ce-scale": (8 * 3, 10),
    "no-task-ends": (15 * 2, 10),
    "class-orders": (11 * 3, 10),
    "frozen-features": (7 * 2, 10),
    "stride": (4 * 9, 10),
    "stride-parts": (7 * 3, 10),
    "compute": (4 * 5 + 3, 10),
    "anytime": (6 * 6, 10),
    "networks": (2, 3),
    "streams": (20 * 2, 3),
    "mini-imagenet": (3, 10),
    "precision": (3, 10),
}


def shipped(name: str, **options: object) -> Experiment:
    return read(Path(name), **options)  # type: ignore[arg-type]


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("name", ["stride", "stride-parts", "compute", "anytime"])
def test_results_of_our_own_method_are_on_seeds_that_no_search_has_seen(name: str) -> None:
    assert {config.seed for config in shipped(name).configs} == set(range(10, 20))
    assert {config.seed for config in shipped(name, seeds=2).configs} == {10, 11}


def test_the_compute_of_each_point_of_the_curve_is_what_its_title_says() -> None:
    found: dict[str, list[float]] = {}
    for cell in shipped("compute").cells:
        kind, learner = method(cell.config.method).load(), cell.config.learner
        step = sum(each.images for each in kind.passes(learner, 10, 100))
        review = sum(each.images for each in kind.review_passes(learner, 100)) / learner.review_batch * 5000 / 500
        found.setdefault(cell.config.method, []).append(step + (review if learner.review else 0))
    assert found.keys() == {"stride", "afs", "er", "scr", "mose"}
    for name, totals in found.items():
        for total, wanted in zip(totals, (55, 110, 220, 440, 880)[2 if name == "mose" else 0 :], strict=True):
            assert 0.96 * wanted <= total <= wanted


@pytest.mark.parametrize("first", ["-1", "true", "1.5", '"ten"', str(2**64)])
def test_a_first_seed_that_is_none(write, first: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OcilError, match=r"mine\.toml.*first_seed = "):
        read(write(f'first_seed = {first}\n[[cells]]\nmethod = "er"'))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_shipped_expands(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("efficientnet-lite0-57934424.pth").write_bytes(b"a file of weights is known by its digest")
    cells, seeds = COUNTS[path.stem]
    experiment = read(path)
    assert len(experiment.cells) == cells
    assert {len(cell.configs) for cell in experiment.cells} == {seeds}
    assert len(set(experiment.configs)) == cells * seeds
    assert all((experiment.title, experiment.about, experiment.paper))
    names = Counter((cell.label, cell.config.dataset, cell.config.learner.memory) for cell in experiment.cells)
    assert set(names.values()) == {1}, "a row has one cell a column"
    usual = "fp32" if path.stem == "precision" else "tf32"  # of no other file's business
    assert {config.learner.precision for config in experiment.configs} == {usual}
    bf16 = read(path, settings={"precision": "bf16"})
    assert {config.learner.precision for config in bf16.configs} == {"bf16"}
    assert len(bf16.cells) == cells


def test_every_count_has_a_file() -> None:
    assert sorted(COUNTS) == sorted(path.stem for path in SHIPPED)


def test_the_page_of_the_experiments_counts_them_right() -> None:
    page = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text()
    rows = re.findall(r"^\| (`[\w`, -]+) \|.*\| (\d+)(?: each)? \| (\d+)(?: each)? \|$", page, re.MULTILINE)
    said = {name: (int(cells), int(runs)) for names, cells, runs in rows for name in re.findall(r"[\w-]+", names)}
    assert said == {name: (cells, cells * seeds) for name, (cells, seeds) in COUNTS.items()}


def test_table_1_is_the_paper_s() -> None:
    """Each cell has a published number and each published number a cell: nine columns, 19 rows, two bounds."""
    cells = shipped("table1").cells
    found = {(cell.label, cell.config.dataset, cell.config.learner.memory) for cell in cells}
    paper = load()
    assert all(paper.published(label, {}, ColumnKey(data, size)) is not None for label, data, size in found)
    columns = {key[1:] for key in found if key[2]}
    assert columns == {(dataset, size) for dataset, sizes in paper.tables[0].memory.items() for size in sizes}
    rows = Counter(key[0] for key in found)
    assert sorted(rows.values()) == [3, 3] + [9] * 19
    with_review = {cell.label for cell in cells if cell.config.learner.review}
    assert with_review == {label for label in rows if label.endswith("-rv")} | {"afs", "scr"}
    assert {cell.config.learner.memory for cell in cells if cell.config.method in ("fine-tune", "iid-offline")} == {0}
    beta = {cell.config.learner.memory: cell.value("beta") for cell in select(cells, "method=afs dataset=cifar100")}
    assert beta == {1000: 0.15, 2000: 0.05, 5000: 0.1}


def test_table_2_is_the_ladder_of_the_protocol() -> None:
    rows = {cell.label: (cell.value("loss"), cell.value("regulariser")) for cell in shipped("table2").cells}
    assert rows == {
        "ER-RV": (None, None),
        "Baseline": ("ce", "none"),
        "Baseline + FL": ("focal", "none"),
        "Baseline + RFL": ("rfl", "none"),
        "Baseline + LSR": ("ce", "lsr"),
        "Baseline + VKD": ("ce", "vkd"),
        "Baseline + FL + LSR": ("focal", "lsr"),
        "Baseline + FL + VKD": ("focal", "vkd"),
        "Baseline + RFL + LSR": ("rfl", "lsr"),
        "Baseline + RFL + VKD": ("rfl", "vkd"),
    }


@pytest.mark.parametrize("name", ["balance", "steps", "time"])
def test_who_has_review_in_the_figures(name: str) -> None:
    """All but GDumb, OCM and AAER, as in the paper's text and Table I."""
    cells = shipped(name).cells
    without = {cell.config.method for cell in cells if not cell.config.learner.review}
    assert without == {"gdumb", "ocm", "aaer"}
    table = set(shipped("table1").configs)
    assert all(config in table for config in shipped(name).configs)


def test_the_caption_of_the_steps_can_be_followed_too() -> None:
    cells = shipped("steps", only="method=gdumb,aaer", settings={"review": "true"}).cells
    assert {cell.label for cell in cells} == {"gdumb-rv", "aaer-rv"}
    assert len(cells) == 6


def test_equal_compute_is_equal() -> None:
    replayed: dict[str, set[int]] = {}
    for cell in shipped("equal-compute").cells:
        views = 2 if cell.config.method in ("afs", "scr") else 1
        replayed.setdefault(cell.config.method, set()).add(views * cell.config.learner.memory_batch)
    assert set(map(frozenset, replayed.values())) == {frozenset({10, 20, 100, 200})}
    assert len(replayed) == 4


def test_no_task_ends_reviews_at_distances() -> None:
    cells = shipped("no-task-ends").cells
    assert {cell.value("boundary") for cell in cells} == {"none"}
    assert {cell.value("review_every") for cell in cells if cell.config.learner.review} == {500, 1000}


# Filters


@pytest.mark.parametrize(
    ("only", "count"),
    [
        ("dataset=cifar100 method=afs,er", 9),
        ("dataset=CIFAR-100 method=er-rv", 3),
        ("method=er review=true memory=5000", 2),
        ("memory=5000 method=afs,scr", 4),
        ("label=er-ace-rv dataset=cifar10 memory=200", 1),
        ("beta=0.15", 1),
        ("method=ER_ACE", 18),
        ("", 177),
    ],
)
def test_only(only: str, count: int) -> None:
    assert len(shipped("table1", only=only).cells) == count


@pytest.mark.parametrize(
    ("only", "says"),
    [
        ("dataset", "write FIELD=VALUE"),
        ("dataset=", "write FIELD=VALUE"),
        ("datset=cifar10", "Did you mean 'dataset'?"),
        ("dataset=cifar1000", "no cell has dataset=cifar1000. Did you mean 'cifar100'?"),
        ("method=afs,err", "no cell has method=err. Did you mean 'er'?"),
        ("memory=many", "no cell has memory=many."),
        ("dataset=cifar10 memory=5000", "leaves no cell"),
    ],
)
def test_filters_that_match_nothing(only: str, says: str) -> None:
    with pytest.raises(OcilError) as error:
        shipped("table1", only=only)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


# The format


def test_axes_and_tables_by_dataset(write) -> None:  # type: ignore[no-untyped-def]
    path = write("""
        seeds = 2
        [settings]
        dataset = ["cifar10", "cifar100"]
        memory = { cifar10 = [200, 500], CIFAR-100 = 1000 }
        [[cells]]
        method = "er"
        lr = [0.05, 0.1]
    """)
    experiment = read(path)
    assert experiment.title == "mine"
    found = [(c.label, c.config.dataset, c.config.learner.memory, c.value("lr")) for c in experiment.cells]
    assert sorted(found) == sorted(
        (f"er, lr={lr}", dataset, memory, lr)
        for dataset, memory in (("cifar10", 200), ("cifar10", 500), ("cifar100", 1000))
        for lr in (0.05, 0.1)
    )
    assert [config.seed for config in experiment.cells[0].configs] == [0, 1]


def test_a_label_gets_what_is_varied_and_not_in_it(write) -> None:  # type: ignore[no-untyped-def]
    path = write("""
        [settings]
        memory = [200, 500]
        boundary = ["clear", "blurry"]
        [[cells]]
        label = "AFS, beta {beta}"
        method = "afs"
        beta = [0.05, 0.1]
        [[cells]]
        label = "replay"
        method = ["er", "mir"]
        review = [false, true]
        [[cells]]
        label = "{boundary} tasks"
        method = "scr"
        """)
    names = Counter((cell.label, cell.config.learner.memory) for cell in read(path).cells)
    assert set(names.values()) == {1}
    afs = {f"AFS, beta {beta}, boundary={kind}" for beta in ("0.05", "0.1") for kind in ("clear", "blurry")}
    methods = ("er", "er-rv", "mir", "mir-rv")
    replay = {f"replay, boundary={kind}, {method}" for kind in ("clear", "blurry") for method in methods}
    assert {label for label, _ in names} == {*afs, *replay, "clear tasks", "blurry tasks"}


def test_entries_of_one_name_are_told_apart_by_what_they_write(write) -> None:  # type: ignore[no-untyped-def]
    path = write("""
        [settings]
        memory = [200, 500]
        [[cells]]
        method = ["er", "afs"]
        [[cells]]
        method = ["er", "mir"]
        boundary = ["i-blurry", "none"]
        lr = 0.3
        [[cells]]
        method = "er"
        boundary = "i-blurry"
        label_noise = 0.2
        imbalance_factor = 10
        [[cells]]
        method = "mir"
        [[cells]]
        method = "mir"
        boundary = "none"
        """)
    cells = read(path).cells
    assert Counter(cell.label for cell in cells) == dict.fromkeys(
        [
            *("er", "afs", "mir", "er, boundary=i-blurry", "er, boundary=none", "mir, boundary=i-blurry"),
            *("mir, boundary=none, lr=0.3", "mir, boundary=none"),
            "er, boundary=i-blurry, label_noise=0.2, imbalance_factor=10.0",
        ],
        2,
    )


def test_duplicates_collapse_and_the_first_label_stays(write) -> None:  # type: ignore[no-untyped-def]
    path = write("""
        [[cells]]
        label = "first"
        method = "afs"
        [[cells]]
        method = "afs"
        beta = [0.1, 0.2]
    """)
    cells = read(path).cells
    assert [cell.label for cell in cells] == ["first", "afs, beta=0.2"]
    assert len(cells[0].configs) == 3


def test_settings_for_all_cells_go_where_they_belong(write) -> None:  # type: ignore[no-untyped-def]
    path = write("""
        [settings]
        memory = 500
        boundary = "blurry"
        [[cells]]
        method = ["fine-tune", "iid-offline", "er", "afs"]
    """)
    cells = {cell.label: cell for cell in read(path, settings={"beta": "0.3", "epochs": "7"}).cells}
    assert {name: cell.value("boundary") for name, cell in cells.items()} == {
        "fine-tune": "blurry",
        "iid-offline": "iid",
        "er": "blurry",
        "afs": "blurry",
    }
    assert cells["afs"].value("beta") == 0.3
    assert cells["er"].value("beta") is None
    assert (cells["iid-offline"].value("epochs"), cells["er"].value("epochs")) == (7, 1)
    assert (cells["fine-tune"].value("memory"), cells["er"].value("memory")) == (0, 500)


def test_a_width_for_all_cells_concerns_those_whose_network_has_it(write) -> None:  # type: ignore[no-untyped-def]
    path = write("""
        [settings]
        width = [2, 4]
        [[cells]]
        method = "er"
        [[cells]]
        method = "er"
        dataset = "mine.npz"
        [[cells]]
        method = "er"
        network = "resnet18"
    """)
    source = {"mine.npz": KnownDataset("mine.npz", "abc", {"classes": 4, "vectors": True})}
    cells = read(path, source=lambda name: source.get(name, KnownDataset(name))).cells
    found = [(cell.label, cell.value("network"), cell.value("width")) for cell in cells]
    assert found == [
        ("er, width=2", "reduced-resnet18", 2),
        ("er, width=4", "reduced-resnet18", 4),
        ("er", "linear", 20),
        ("er", "resnet18", 8),
    ]
    other = write('[[cells]]\nmethod = "er"\nnetwork = "resnet18"\n')
    with pytest.raises(OcilError, match="--set width: it concerns no cell of"):
        read(other, settings={"width": "4"})
    with pytest.raises(OcilError, match="cell 1: width is a setting of reduced-resnet18"):
        read(write('[[cells]]\nmethod = "er"\nnetwork = "resnet18"\nwidth = 4\n'))


def test_settings_of_a_kind_of_stream_concern_the_cells_of_that_kind(write) -> None:  # type: ignore[no-untyped-def]
    def shares(text: str) -> list[tuple[str, float]]:
        return [(c.config.stream.boundary, c.config.stream.blurry_share) for c in read(write(text)).cells]

    found = [("clear", 0.1), ("blurry", 0.3)]
    both = 'boundary = ["clear", "blurry"]'
    assert shares(f'[settings]\nblurry_share = 0.3\n[[cells]]\nmethod = "er"\n{both}') == found
    assert shares(f'[[cells]]\nmethod = "er"\n{both}\nblurry_share = 0.3') == found
    with pytest.raises(OcilError, match="blurry_share has no effect with boundary = 'clear'"):
        shares('[[cells]]\nmethod = "er"\nblurry_share = 0.3')


def test_the_command_line_wins_over_an_axis(write) -> None:  # type: ignore[no-untyped-def]
    path = write('[[cells]]\nmethod = "afs"\nbeta = [0.1, 0.2]\nmemory = {cifar10 = 200}\n')
    cells = read(path, seeds=1, settings={"beta": "0.4", "dataset": "cifar100", "memory": "300"}).cells
    assert [(c.value("beta"), c.value("memory"), c.value("dataset")) for c in cells] == [(0.4, 300, "cifar100")]


def test_a_dataset_of_one_s_own(write) -> None:  # type: ignore[no-untyped-def]
    path = write('[[cells]]\nmethod = "er"\ndataset = "mine.npz"\n')
    (cell,) = read(path, source=lambda name: KnownDataset("/data/mine.npz", "abc", {"classes": 3})).cells
    assert (cell.config.dataset, cell.config.fingerprint, cell.config.stream.tasks) == ("/data/mine.npz", "abc", 3)
    assert select([cell], "dataset=mine") == [cell]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seeds = 0\n[[cells]]\nmethod='er'", "seeds = 0 must be a whole number"),
        ("seeds = true\n[[cells]]\nmethod='er'", "seeds = True must be a whole number"),
        ("tilte = 'x'\n[[cells]]\nmethod='er'", "unknown key 'tilte'"),
        ("lr = 1\n[[cells]]\nmethod='er'", "go below [settings] or [[cells]]"),
        ("title = 3\n[[cells]]\nmethod='er'", "title = 3 must be text"),
        ("title = 'x'", "has no cells"),
        ("cells = 3", "has no cells"),
        ("settings = 3\n[[cells]]\nmethod='er'", "settings must be a table"),
        ("[[cells]]\nlr=1", "cell 1: name a method"),
        ("[[cells]]\nmethod='er'\n[[cells]]\nmethod='err'", "cell 2: unknown method 'err'. Did you mean 'er'?"),
        ("[[cells]]\nmethod='er'\nseeds=3", "cell 1: seeds is for the whole file: write seeds = 3 above [settings]"),
        ("[[cells]]\nmethod='er'\nseed=3", "cell 1: seed is for the whole file: write first_seed = 10 above"),
        ("[settings]\nseeds=3\n[[cells]]\nmethod='er'", "toml, settings: seeds is for the whole file: write seeds = 3"),
        ("[[cells]]\nmethod='er'\nmemmory=3", "cell 1: unknown setting 'memmory' for er. Did you mean 'memory'?"),
        (
            "[settings]\nmemmory=3\n[[cells]]\nmethod='er'",
            "settings: unknown setting 'memmory'. Did you mean 'memory'?",
        ),
        ("[[cells]]\nmethod='er'\nlr='fast'", "cell 1: lr = 'fast' is not a number"),
        ("[[cells]]\nmethod='er'\nlr=[]", "an empty list"),
        ("[[cells]]\nmethod='er'\nlr=[[1]]", "lr = [1] is not a value"),
        ("[[cells]]\nmethod='er'\nmemory={cifar10=3}", "memory has no value for fashion-mini"),
        ("[[cells]]\nmethod='er'\nlabel='{alpha}'", "unknown setting 'alpha'"),
        ("[[cells]]\nmethod='er'\nlabel=3", "label = 3 must be text"),
        ("[[cells]]\nmethod=3", "method = 3 is not a name"),
        ("[[cells]]\nmethod='er'\ndataset=3", "dataset = 3 is not a name"),
        ("[[cells]]\nmethod='ocm'\nboundary='none'", "cell 1: ocm needs task ends"),
        ("[[cells\n", "is not a TOML file"),
        (f"[[cells]]\nmethod='er'\nmemory={'9' * 5000}", "is not a TOML file"),
        ("[[cells]]\nmethod='er'\nlr=" + "[" * 3000, "is not a TOML file"),
        ("[[cells]]\nmethod='fine-tune'\nmemory_bach=3", "cell 1: unknown setting 'memory_bach' for fine-tune"),
    ],
)
def test_mistakes_in_a_file(write, text: str, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OcilError) as error:
        read(write(text))
    assert says in str(error.value)
    assert "mine.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_mistakes_on_the_command_line(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write('[[cells]]\nmethod = "er"\n')
    with pytest.raises(OcilError, match="--set: unknown setting 'betta'"):
        read(path, settings={"betta": "1"})
    with pytest.raises(OcilError, match=r"--set epochs: it concerns no cell of .*mine.toml"):
        read(path, settings={"epochs": "3"})
    both = write('[[cells]]\nmethod = ["er", "afs"]\n')
    assert read(both, settings={"beta": "0.2"}, only="method=afs").cells[0].value("beta") == 0.2
    with pytest.raises(OcilError, match="--set beta: it concerns no cell that --only 'method=er' leaves"):
        read(both, settings={"beta": "0.2"}, only="method=er")
    with pytest.raises(OcilError, match="seeds = 0 must be"):
        read(path, seeds=0)
    with pytest.raises(OcilError, match='--only method="er: No closing quotation'):
        read(path, only='method="er')
    with pytest.raises(OcilError, match="choose methods with --only"):
        read(path, settings={"method": "afs"})
    with pytest.raises(OcilError, match=r"Did you mean '.*mine.toml'"):
        read(tmp_path / "mien.toml")


# From Python


def test_the_example_of_the_package_runs(
    tmp_path: Path, tiny_npz: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ocil.experiments.__doc__ is not None
    code = "\n".join(line for line in ocil.experiments.__doc__.splitlines() if line.startswith("    ") or not line)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "table2.toml").write_text(
        f'[settings]\ndataset = "{tiny_npz}"\nmemory = 20\nwidth = 2\ntasks = 2\nmemory_batch = 5\n'
        '[[cells]]\nmethod = ["er", "afs"]\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocil.engines.pool.cores", lambda: 1)  # in this process: others take seconds to load PyTorch
    exec(compile(textwrap.dedent(code), "example", "exec"), {})
    assert capsys.readouterr().out.startswith("er Estimate(")
    assert len(list((tmp_path / "runs").glob("*/seed-*/result.json"))) == 6  # three seeds and their references


def test_the_runs_of_one_method(tmp_path: Path, tiny_npz: Path) -> None:
    file, notes = tmp_path / "run.toml", list[str]()
    file.write_text(f'method = "er"\ndataset = "{tiny_npz}"\nseed = 4\nmemory_batch = 5\nlr = 0.05\n')
    cell = configure(file=file, seeds=2, settings={"tasks": 2}, note=notes.append)
    assert (cell.label, [config.seed for config in cell.configs]) == ("er", [4, 5])
    assert (cell.value("memory_batch"), cell.value("tasks"), cell.value("lr")) == (5, 2, 0.05)
    assert cell.config.fingerprint
    (note,) = notes
    assert "a memory of" in note
    shared = {"memory": 20, "memory_batch": 5, "epochs": 2, "tasks": 2}
    assert configure("fine-tune", str(tiny_npz), settings=shared, shared=True).value("memory") == 0
    assert configure("er", str(tiny_npz), settings=shared, shared=True).value("epochs") == 1
    with pytest.raises(OcilError, match="fine-tune keeps no memory"):
        configure("fine-tune", str(tiny_npz), settings=shared)
