"""Methods, networks, datasets and measures from plugin files and from entry points of packages."""

import importlib
import importlib.metadata
import json
import os
import pickle
import re
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import ocil
from ocil import plugins
from ocil.data.catalog import CATALOG, SOURCES
from ocil.engines.nodes import pickled_questions
from ocil.evaluation.measures import MEASURES
from ocil.methods import METHODS, method
from ocil.networks import NETWORKS
from ocil.plugins import PluginFile
from ocil.runs.build import network_of
from ocil.runs.config import resolve
from ocil.runs.features import Encoder
from ocil.runs.protocol import Interrupted
from ocil.runs.stream_run import StreamRun
from tests.conftest import SMALL, Call, one_error
from tests.forking import Forked

pytestmark = pytest.mark.usefixtures("clean")

Fork = Callable[..., Forked]

MINE = """
import ocil
from ocil.methods.er import ER

class Mine(ER):
    "Mine."

ocil.register(ocil.MethodInfo("mine", Mine, "like er", "-"))
"""
ALL = """
import numpy as np
import torch
import ocil

class Body(torch.nn.Module):
    def __init__(self, input_shape, size=4):
        super().__init__()
        height, width, channels = input_shape
        self.layer = torch.nn.Linear(height * width * channels, size)

    def forward(self, x):
        return self.layer(x.flatten(1))

def images():
    x = np.arange(4 * 8 * 8 * 8, dtype=np.uint8).reshape(32, 8, 8, 1)
    y = np.arange(32) % 4
    return ocil.Dataset("other", x, y, x[:8], y[:8], tuple("abcd"))

def last(result):
    return result.matrix[-1][-1]

def broken(result):
    return 1 / 0

ocil.register(ocil.NetworkInfo("flat", Body, "one layer"))
ocil.register(ocil.DatasetSource("stripes", images))
ocil.register(ocil.Measure("last-task", last))
ocil.register(ocil.Measure("odd", broken, higher_is_better=False, format=".2f"))
"""


@pytest.fixture
def clean(own_plugins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable, and entry points are looked up anew."""
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    plugins._installed.cache_clear()
    for registry in (METHODS, NETWORKS, CATALOG, SOURCES, MEASURES):
        registry._waiting = None


def test_what_a_block_loads_and_registers_is_forgotten_after_it(mine: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    before = set(METHODS), plugins.loaded()
    for _ in range(2):  # the second time everything is as new
        with plugins.preserved():
            plugins.load_or_warn(broken)
            ocil.register(ocil.DatasetSource("odd", lambda: ocil.load_dataset()))
            assert METHODS["mine" if plugins.load(mine) else ""].name == "mine"
            assert "A plugin that may have it is broken" in str(METHODS.unknown("theirs"))
        assert (set(METHODS), plugins.loaded()) == before
        assert "odd" not in SOURCES
        assert "broken" not in str(METHODS.unknown("theirs"))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Install a package: its name, the code of its module, and its entry points by group."""
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.syspath_prepend(place)

    def install(name: str, code: str, **groups: str) -> None:
        (place / f"{name}.py").write_text(code)
        info = place / f"{name}-2.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
        (info / "entry_points.txt").write_text("\n".join(f"[ocil.{kind}]\n{line}\n" for kind, line in groups.items()))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install


# Files


def test_a_file_is_loaded(mine: Path) -> None:
    module = plugins.load(mine)
    assert method("Mine").load() is module.Mine
    assert plugins.load(mine) is module  # it has not changed
    origin = METHODS.origin("mine")
    assert (origin.kind, origin.name, str(origin)) == ("file", "mine.py", str(mine))
    assert plugins.loaded() == (PluginFile.read(mine),)


def test_a_file_that_has_changed_is_loaded_again(mine: Path) -> None:
    first = plugins.load(mine)
    mine.write_text(MINE.replace("like er", "another"))
    second = plugins.load(mine)
    assert second is not first
    assert METHODS["mine"].summary == "another"
    assert len(plugins.loaded()) == 1


NET = """
import ocil
from ocil.networks import NetworkInfo
from torch import nn

def net(input_shape):
    {first}
    return nn.Sequential(nn.Flatten(), nn.Linear(192, {size}))

ocil.register(NetworkInfo("own-net", net, "a net", "images"))
"""


def test_a_network_whose_file_has_changed_is_built_again(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    config = None
    for size in (7, 9):
        path.write_text(NET.format(first="", size=size))
        plugins.load(path)
        config = config or resolve("er", "cifar10", settings={"network": "own-net"}).learner
        assert network_of(config, (8, 8, 3)).feature_size == size
        assert Encoder("own-net").vector_shape((8, 8, 3)) == (size,)


@pytest.mark.parametrize("first", ["raise SystemExit(3)", "import sys; sys.exit('bye')"])
def test_a_factory_that_ends_the_program_is_one_line(first: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(NET.format(first=first, size=5))
    plugins.load(path)
    config = resolve("er", "cifar10", settings={"network": "own-net"}).learner
    with pytest.raises(
        ocil.OcilError, match=r"own-net cannot be built: its factory ends the program \(SystemExit: "
    ) as found:
        network_of(config, (8, 8, 3))
    assert "\n" not in str(found.value)


def test_line_ends_do_not_make_another_file(tmp_path: Path) -> None:
    assert PluginFile("a.py", b"x = 1\r\n").digest == PluginFile("b.py", b"x = 1\n").digest
    assert PluginFile("a.py", b"x = 1\n").digest != PluginFile("a.py", b"x = 2\n").digest


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'."),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "SystemExit: 3."),
        (MINE + "1 / 0", "(line 9): ZeroDivisionError: division by zero."),
        ("import json\njson.loads('')", "(line 2): JSONDecodeError: "),
        (MINE.replace('"mine"', '"er"'), "there is a method 'er' already, from the package ocil; "),
        (MINE.replace('"mine"', '"My Own"'), "a method's name has small letters and digits"),
        (MINE + MINE.replace('"like er"', '"another"'), "(line 16): there is a method 'mine' already: choose another"),
        (
            "import ocil\nocil.register(3)",
            "cannot register '3': give a MethodInfo, NetworkInfo, DatasetInfo, Dataset",
        ),
    ],
)
def test_a_broken_file_leaves_nothing_behind(code: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(code)
    before = set(METHODS), set(sys.modules)
    with pytest.raises(ocil.OcilError, match=r"broken\.py cannot be loaded( \(line \d+\))?: ") as found:
        plugins.load(path)
    assert reason in str(found.value)
    assert "\n" not in str(found.value)
    assert set(METHODS) == before[0]
    assert not [name for name in set(sys.modules) - before[1] if name.startswith("ocil_plugin_")]


def test_a_file_that_imports_its_neighbour_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("x = 1")
    (tmp_path / "mine.py").write_text("from neighbour_of_mine import x")
    with pytest.raises(ocil.OcilError, match="cannot import what lies next to it: put all into one file, or install"):
        plugins.load(tmp_path / "mine.py")


def test_two_files_with_one_name(mine: Path, tmp_path: Path) -> None:
    plugins.load(mine)
    other = tmp_path / "other.py"
    other.write_text(MINE.replace("like er", "another"))
    with pytest.raises(ocil.OcilError) as found:
        plugins.load(other)
    assert str(mine) in str(found.value)
    assert str(other) in str(found.value)
    assert METHODS["mine"].summary == "like er"


def test_a_file_that_is_edited_and_edited_back(mine: Path) -> None:
    for text in (MINE + MINE.replace('"mine"', '"other"'), MINE, MINE + MINE.replace('"mine"', '"other"')):
        mine.write_text(text)
        plugins.load(mine)
    assert {"mine", "other"} <= set(METHODS)


def test_a_file_that_is_not_there(tmp_path: Path, ocil_command: Call) -> None:
    assert "cannot read the plugin" in one_error(ocil_command("methods", "--plugin", tmp_path / "no.py"))
    assert "cannot read the plugin" in one_error(ocil_command("methods", "--plugin", tmp_path))


# The command line


def test_methods_of_a_plugin_are_listed_and_described(mine: Path, ocil_command: Call) -> None:
    said = ocil_command("methods", "--plugin", mine, "--json")
    assert "mine" in [info["name"] for info in json.loads(said.out)["methods"]]
    assert json.loads(ocil_command("--plugin", mine, "methods", "mine", "--json").out)["settings"]


def test_a_run_records_where_its_method_came_from(mine: Path, run_tiny: Call, ocil_command: Call) -> None:
    said = run_tiny("mine", "--plugin", mine, "--json", "--seeds", 1, "--no-reference")
    (folder,) = json.loads(said.out)["runs"]
    result = json.loads((Path(folder) / "result.json").read_text())
    digest = PluginFile.read(mine).digest
    assert result["environment"]["plugins"] == [{"file": "mine.py", "digest": digest}]
    assert result["config"]["code"] == digest
    assert str(mine) not in json.dumps(result)  # the same result wherever the file lies
    shown = ocil_command("show", folder, "--plugin", mine)
    assert "--plugin mine.py" in shown.out


@pytest.mark.slow
def test_a_changed_file_makes_another_run_and_the_report_tells_them_apart(
    mine: Path, run_tiny: Call, ocil_command: Call, tmp_path: Path
) -> None:
    words = ("--plugin", mine, "--json", "--seeds", 1, "--no-reference")
    first = json.loads(run_tiny("mine", *words).out)["runs"]
    assert json.loads(run_tiny("mine", *words).out)["runs"] == first
    old = PluginFile.read(mine).digest
    assert "has changed" not in ocil_command("show", tmp_path / "runs", "--plugin", mine).err
    mine.write_text(MINE + "# another line\n")
    warned = ocil_command("show", tmp_path / "runs", "--plugin", mine).err
    assert "the plugin file has changed since these were run: mine. Give their commands again" in warned
    assert f"delete {Path(first[0]).parent}." in warned
    second = json.loads(run_tiny("mine", *words).out)["runs"]
    assert first != second
    said = ocil_command("report", tmp_path / "runs", "--out", tmp_path / "page", "--plugin", mine)
    assert said.code == 0, said
    cells = (tmp_path / "page" / "tables" / "cells.md").read_text()
    assert f"code={old}" in cells
    assert f"code={PluginFile.read(mine).digest}" not in cells


def test_results_of_a_network_whose_file_is_not_given_are_not_said_to_have_changed(
    ocil_command: Call, tiny_npz: Path, tmp_path: Path
) -> None:
    net = tmp_path / "net.py"
    net.write_text(f"import ocil\n{LOOSE_NET}\nocil.register(ocil.NetworkInfo('loose', make, 'a layer'))\n")
    with plugins.preserved():
        words = ("run", "er", "--dataset", tiny_npz, "--memory", 20, "--seeds", 1, "--workers", 1, "--device", "cpu")
        settings = ("--set", "network=loose", "tasks=2", "memory_batch=5")
        assert ocil_command(*words, *settings, "--out", tmp_path / "runs", "--plugin", net).code == 0
        assert not ocil_command("show", tmp_path / "runs", "--plugin", net).err
    warned = ocil_command("show", tmp_path / "runs").err
    assert "these were run with a plugin file that is not loaded: er, fine-tune. Give it too: --plugin net.py" in warned
    assert "has changed" not in warned


LOOSE_NET = """
from torch import nn

def make(input_shape):
    return nn.Sequential(nn.Conv2d(input_shape[2], 4, 3), nn.ReLU())
"""


def test_a_finished_result_of_a_network_that_has_changed_is_named(
    ocil_command: Call, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "net_that_changes.py"
    file.write_text(LOOSE_NET)
    folder, settings = tmp_path / "runs", ("network=module:net_that_changes:make", "tasks=2")

    def warned(seeds: int) -> str:
        words = ("--dataset", tiny_npz, "--out", folder, "--seeds", seeds, "--workers", 1, "--set", *settings)
        said = ocil_command("run", "fine-tune", *words)
        assert said.code == 0, said
        return "".join(line for line in said.err.splitlines() if "has changed" in line)

    assert warned(1) == warned(1) == ""
    file.write_text(LOOSE_NET.replace("4, 3", "4, 5"))
    named = "the code of the network module:net_that_changes:make has changed since runs in "
    assert warned(1).count(f"{named}{next(folder.iterdir())} were finished") == 1
    assert warned(2).count(named) == 1, "also if a new seed was run by the new code"


PACKAGE = {
    "__init__": "",
    "steps": """
from ocil.methods.er import ER
from changing.helpers import scaled

class Own(ER):
    "Own steps."
    def learn(self, x, y):
        super().learn(scaled(x), y)
""",
    "helpers": """
FACTOR = 1

def scaled(x):
    return x * FACTOR
""",
    "net": """
from torch import nn

def make(input_shape, channels=4):
    "One layer."
    return nn.Sequential(nn.Conv2d(input_shape[2], channels, 3), nn.ReLU())
""",
}
ENTRY_POINTS = """
[ocil.methods]
own-steps = changing.steps:Own
[ocil.networks]
own-net = changing.net:make
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("steps", "scaled(x), y", "scaled(x.flip(1)), y", ["own-steps"]),
        ("helpers", "FACTOR = 1", "FACTOR = 2", ["own-steps"]),
        ("helpers", "return x", "return x.flip(1)", ["own-steps"]),
        ("net", "channels=4", "channels=5", ["the network own-net"]),
        ("steps", "super()", "# a comment\n        super()", []),
    ],
)
def test_a_finished_result_of_a_package_that_has_changed_is_named(
    file: str,
    old: str,
    new: str,
    named: list[str],
    ocil_command: Call,
    tiny_npz: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its version tells nothing while somebody works on it: the former numbers were shown without a word."""
    place, folder, sources = tmp_path / "site-packages", tmp_path / "runs", dict(PACKAGE)
    (place / "changing").mkdir(parents=True)
    (info := place / "changing-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: changing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one length that are written in one second

    def warned() -> list[str]:
        for name, text in sources.items():
            (place / "changing" / f"{name}.py").write_text(text)
        for name in [name for name in sys.modules if name.partition(".")[0] == "changing"]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        words = ("--dataset", tiny_npz, "--memory", 20, "--out", folder, "--seeds", 1, "--workers", 1)
        with plugins.preserved():
            said = ocil_command("run", "own-steps", *words, "--no-reference", "--set", "network=own-net", "tasks=2")
            shown = ocil_command("show", folder)
        assert (said.code, shown.code) == (0, 0), (said, shown)
        found = [re.findall(r"the code of (.*) has changed since runs in", each.err) for each in (said, shown)]
        assert found[0] == found[1]
        return found[0]

    assert warned() == warned() == []
    sources[file] = sources[file].replace(old, new)
    assert warned() == named


RESTLESS = {
    "__init__": """
        import os
        import time

        import ocil
        from ocil.methods import METHODS

        steps, STARTED = 0, time.time_ns()
        PROCESS = os.getpid() * 1.0 + STARTED

        class Restless(METHODS["fine-tune"].load()):
            calls = 0
            began = str(STARTED) + str(time.time_ns())

            def learn(self, x, y):
                "A step."
                global steps
                steps += 1
                Restless.calls += 1
                from restless.later import same
                super().learn(same(x), y)

        info = ocil.MethodInfo("restless", Restless, "-", "-", memory=False)
        """,
    "later": """
        def same(x):
            return x
        """,
}


def test_a_run_of_a_package_goes_on_though_its_counters_and_times_differ(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a module counts, measures or imports later is no change of its code: such runs could not be resumed."""
    place = tmp_path / "site-packages"
    (place / "restless").mkdir(parents=True)
    (info := place / "restless-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: restless\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ocil.methods]\nrestless = restless:info\n")
    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def in_new_process(stop: bool, **changed: str) -> None:
        for name, text in (RESTLESS | changed).items():
            (place / "restless" / f"{name}.py").write_text(textwrap.dedent(text))
        for name in [name for name in sys.modules if name.partition(".")[0] == "restless"]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        with plugins.preserved():
            for seed in range(2):
                config = resolve("restless", str(tiny_npz), seed=seed, settings={"width": 1, "tasks": 2})
                with pytest.raises(Interrupted) if stop else nullcontext():
                    ocil.run(config, tmp_path / "runs", device="cpu", should_stop=lambda: stop)

    in_new_process(stop=True)
    start = RESTLESS["__init__"]
    with pytest.raises(ocil.OcilError, match="the code of restless has changed since"):
        in_new_process(stop=False, __init__=start.replace("same(x)", "same(x).flip(1)"))
    in_new_process(stop=False, __init__=start.replace("A step.", "One step."))


def test_a_report_names_the_plugin_that_it_lacks(
    mine: Path, run_tiny: Call, ocil_command: Call, tmp_path: Path
) -> None:
    with plugins.preserved():
        run_tiny("mine", "--plugin", mine, "--seeds", 2, "--no-reference")
    said = ocil_command("report", tmp_path / "runs", "--out", tmp_path / "page")
    assert one_error(said).endswith(
        " and 1 other result cannot be read here: unknown method 'mine'. It is of a plugin: give --plugin mine.py"
    )  # once, and without the names of all methods


def test_a_run_is_refused_after_its_plugin_has_changed(mine: Path, tiny_npz: Path, tmp_path: Path) -> None:
    plugins.load(mine)
    config = resolve("mine", str(tiny_npz), settings=dict(setting.split("=") for setting in SMALL) | {"memory": 20})
    assert config.reference().code == ""
    mine.write_text(MINE + "#")
    plugins.load(mine)
    with pytest.raises(ocil.OcilError, match="the plugin of mine has changed"):
        ocil.run(config, tmp_path, device="cpu")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_worker_processes_know_the_plugin(mine: Path, run_tiny: Call) -> None:
    said = run_tiny("mine", "--plugin", mine, "--workers", 2, "--seeds", 2, "--no-reference", "--json")
    assert said.code == 0, said
    assert json.loads(said.out)["seeds"] == 2


@pytest.mark.slow
def test_a_node_of_a_cluster_gets_the_plugin_with_its_runs(
    mine: Path, tiny_npz: Path, tmp_path: Path, fork_python: Fork
) -> None:
    """In another process, which has not loaded it."""
    plugins.load(mine)
    config = resolve("mine", str(tiny_npz))
    (tmp_path / "samples").write_bytes(pickled_questions([StreamRun(config)]))
    script = f"""
import sys
from pathlib import Path
from ocil.engines.nodes import examiner
facts = examiner()(None, Path({str(tmp_path / "samples")!r}).read_bytes(), None)
assert not facts["no images"], facts
print(facts["images"])
"""
    out, err = (process := fork_python("-c", script)).communicate()
    assert process.returncode == 0, err
    assert str(tiny_npz) in out


def test_a_run_of_a_plugin_can_be_pickled(mine: Path, tiny_npz: Path) -> None:
    plugins.load(mine)
    run = StreamRun(resolve("mine", str(tiny_npz)))
    assert pickle.loads(pickle.dumps(run)) == run


@pytest.mark.slow
def test_every_command_takes_plugins_and_the_variable(mine: Path, tmp_path: Path, fork_python: Fork) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    named = os.environ | {plugins.VARIABLE: os.pathsep.join([str(broken), str(mine)])}
    script = """
import sys
from ocil.cli import main
for words in (["--help"], ["run", "--help"]):
    try:
        main(words)
    except SystemExit as stopped:
        assert stopped.code == 0
assert not [name for name in sys.modules if name.startswith("ocil_plugin_")]
main(["methods", "mine", "--json"])
"""
    out, err = (process := fork_python("-c", script, env=named)).communicate()
    assert process.returncode == 0, err
    assert out.count("--plugin") >= 2
    (line,) = [line for line in err.splitlines() if "broken.py" in line]
    reason = "cannot be loaded (line 1): ZeroDivisionError: division by zero."
    assert line == f"ocil: warning: left out: the plugin {broken} {reason}"


def test_the_name_that_a_broken_plugin_would_have_given(tmp_path: Path, ocil_command: Call) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    said = ocil_command("methods", "theirs", "--plugin", broken)
    assert f"unknown method 'theirs'. A plugin that may have it is broken: the plugin {broken}" in one_error(said)
    assert "left out: the plugin" in said.err
    assert ocil_command("methods", "er", "--plugin", broken).code == 0


# Networks, datasets, measures


def test_networks_datasets_and_measures(tmp_path: Path, ocil_command: Call, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "all.py"
    path.write_text(ALL)
    words = ("--plugin", path, "--dataset", "Stripes", "--memory", 12, "--workers", 1, "--seeds", 2, "--no-reference")
    small = ("--set", "network=flat(size=3)", "memory_batch=5", "tasks=2", "batch_size=4")
    out = ("--out", tmp_path / "runs")
    said = ocil_command("run", "er", *words, *out, *small, "--json")
    assert said.code == 0, said
    content = json.loads(said.out)
    assert content["dataset"] == "stripes"
    assert content["measures"]["odd"] is None
    assert len(content["measures"]["last-task"]["values"]) == 2
    assert said.err.count("the measure 'odd'") == 1
    assert "ZeroDivisionError: division by zero" in said.err
    result = json.loads((Path(content["runs"][0]) / "result.json").read_text())
    assert [origin["file"] for origin in result["environment"]["plugins"]] == ["all.py"]
    said = ocil_command("run", "er", *words, *out, *small)
    assert "last task %" in said.out
    assert "odd" in said.out
    assert "±" not in said.out  # of two seeds the lowest and highest, as its title says
    shown = ocil_command("show", tmp_path / "runs", "--plugin", path)
    assert "last task %" in shown.out
    listed = ocil_command("datasets", "--plugin", path, "--json")
    assert "stripes" in [entry["name"] for entry in json.loads(listed.out)["datasets"]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 3, "a function that returns a int, not an ocil.Dataset"),
        (lambda: 1 / 0, "cannot be made: ZeroDivisionError: division by zero"),
    ],
)
def test_a_dataset_that_cannot_be_made(make: Callable[[], Any], message: str) -> None:
    ocil.register(ocil.DatasetSource("odd", make))
    with pytest.raises(ocil.OcilError, match=message):
        ocil.load_dataset("odd")


def test_a_name_is_looked_up_while_another_thread_registers_one(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()

    def spelling(name: str) -> str:
        with ThreadPoolExecutor(1) as other:
            other.submit(MEASURES.register, ocil.Measure(f"new-{next(numbers)}", lambda result: 0.0)).result()
        return name

    with plugins.preserved():
        monkeypatch.setattr(MEASURES, "spelling", spelling)
        assert MEASURES.find("nothing like it") is None
        monkeypatch.undo()
        assert MEASURES.find("new-1") is not None


def test_a_name_of_a_dataset_is_taken_once() -> None:
    ocil.register(ocil.DatasetSource("odd", lambda: ocil.load_dataset()))
    with pytest.raises(ocil.OcilError, match="there is a dataset 'cifar10' already, from the package ocil"):
        ocil.register(ocil.DatasetSource("cifar10", lambda: ocil.load_dataset()))
    with pytest.raises(ocil.OcilError, match="format = 'x' is not 'percent'"):
        ocil.Measure("m", lambda result: 1.0, format="x")


# Packages


def test_entry_points_are_imported_when_their_name_is_asked_for(package: Package) -> None:
    package("outside", MINE.replace("ocil.register", "info = "), methods="mine = outside:info")
    package("unasked", "import nowhere_at_all", methods="other = unasked:info")
    assert method("er").name == "er"
    assert "outside" not in sys.modules
    assert method("mine").summary == "like er"
    assert METHODS.origin("mine").to_json() == {"package": "outside", "version": "2.5"}
    assert "other" not in METHODS._broken


def test_installed_packages_are_read_once_for_all_registries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    look, looks = importlib.metadata.entry_points, list[object]()
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **words: (looks.append(words), look(**words))[1])
    for _ in range(2):
        with plugins.preserved():
            assert METHODS.find("nobody") is None
            assert NETWORKS.find("nobody") is None
    assert len(looks) == 1
    monkeypatch.syspath_prepend(tmp_path)  # which may have other packages
    with plugins.preserved():
        assert METHODS.find("nobody") is None
    assert len(looks) == 2


def test_a_broken_file_takes_no_entry_point_with_it(package: Package, tmp_path: Path) -> None:
    package("outside", MINE.replace("ocil.register", "info = "), methods="mine = outside:info")
    (tmp_path / "mine.py").write_text("import ocil; ocil.METHODS['mine']; raise ValueError('later')")
    with pytest.raises(ocil.OcilError, match="later"):
        plugins.load(tmp_path / "mine.py")
    assert method("mine").summary == "like er"


def test_forms_of_entry_points(package: Package) -> None:
    code = """
from ocil import Measure, MethodInfo
from ocil.methods.er import ER
class Own(ER):
    "Own steps."
def several():
    return [MethodInfo("one", Own, "one", "-"), MethodInfo("two", Own, "two", "-")]
def share(result):
    return 0.5
def body(input_shape):
    "A body."
"""
    lines = "own = forms:Own\nsome = forms:several"
    package("forms", code, methods=lines, measures="half = forms:share", networks="their_body = forms:body")
    assert method("two").summary == "two"  # no entry point has that name: all are loaded
    assert method("own").summary == "Own steps"
    assert METHODS["one"].name == "one"
    assert MEASURES["half"].title == "half %"
    assert (NETWORKS["their-body"].summary, NETWORKS["their-body"].inputs) == ("A body.", "any")


def test_a_broken_package_is_named_and_does_not_stop_others(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    package("good", MINE.replace("ocil.register", "info = "), methods="mine = good:info")
    package("bad", "import nowhere_at_all", methods="theirs = bad:info")
    package("worse", "info = 3", methods="third = worse:info", datasets="set = worse:info", measures="m = worse:info")
    assert "mine" in list(METHODS)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    wanted = (
        "the package bad, entry point 'theirs' of ocil.methods: ModuleNotFoundError: No module named 'nowhere_at_all'"
    )
    assert any(wanted in line for line in lines)
    with pytest.raises(ocil.OcilError, match="the method 'theirs' cannot be loaded: the package bad, entry point"):
        method("theirs")
    assert all(measure.is_ours for measure in MEASURES.values())
    assert "set" not in list(CATALOG)


def test_two_packages_with_one_name(package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("alpha", "beta"):
        code = MINE.replace("ocil.register", "info = ").replace("like er", name)
        package(name, code, methods=f"mine = {name}:info")
    assert method("mine").summary == "alpha"
    assert "'mine' already, from the package alpha; the package beta has one too" in capsys.readouterr().err
